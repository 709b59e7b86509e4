"""Data checked against the models, and what Python alone can say beside it."""

from __future__ import annotations

import pytest

from flask_multilimit import Ban, ConfigurationError, LimitType, Rule
from flask_multilimit.declare.data import WrittenLimiter, limiter_options, validated
from flask_multilimit.declare.limiter import Declaration


@pytest.mark.parametrize("option", ["type", "rules", "cost", "exempt_when", "charge_when", "on_rejected"])
def test_data_from_outside_may_not_name_callables(option: str) -> None:
    written = {option: "module:tier"}

    with pytest.raises(ConfigurationError, match=f"{option}=.*names a callable, which only settings and files can"):
        validated(WrittenLimiter, "an override", written, imports=False)


def test_python_objects_may_stand_beside_data() -> None:
    written = {"type": LimitType.IP, "rules": [Rule(60, 5), "9/hour"], "charge_when": [401], "ban": {"after": 5}}

    declared = Declaration.of("here", limiter_options("here", written))

    assert (declared.type, declared.rules, declared.ban) == (LimitType.IP, (Rule(60, 5), Rule(3600, 9)), Ban(after=5))
    assert callable(declared.charge_when)
