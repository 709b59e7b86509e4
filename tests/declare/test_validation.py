"""Data checked against the models, and what Python alone can say beside it."""

from __future__ import annotations

import pytest

from flask_multilimit import ConfigurationError, LimitType, Rule
from flask_multilimit.declare.data import WrittenLimiter, limiter_options, validated
from flask_multilimit.declare.limiter import Declaration


@pytest.mark.parametrize("option", ["type", "rules", "cost", "exempt_when", "charge_when", "on_rejected"])
def test_data_from_outside_may_not_name_callables(option: str) -> None:
    written = {option: "module:tier"}

    with pytest.raises(ConfigurationError, match=f"{option}=.*names a callable, which only settings and files can"):
        validated(WrittenLimiter, "an override", written, imports=False)


def test_python_objects_may_stand_beside_data() -> None:
    options = limiter_options("here", {"type": LimitType.IP, "rules": [Rule(60, 5), "9/hour"], "charge_when": [401]})

    declared = Declaration.of("here", options)

    assert (declared.type, declared.rules) == (LimitType.IP, (Rule(60, 5), Rule(3600, 9)))
    assert callable(declared.charge_when)
