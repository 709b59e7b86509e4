"""What hits are made of: a wrong kind of value is an error, and never a limit that is off."""

from __future__ import annotations

from typing import Any

import pytest

from flask_multilimit.engine import ConfigurationError, Hit, Layers, Limiter, Rule, hits_for, storage_from_uri


@pytest.mark.parametrize(
    ("option", "wrong", "message"),
    [
        *[("shadow", wrong, "give True or False") for wrong in (None, 1, 0, "false", "")],
        *[("type", wrong, "type=.*must match") for wrong in (None, 5, b"ip", "a b")],
        *[("prefix", wrong, "prefix=.*must match") for wrong in (None, 5, b"p:", "{")],
        *[("scope", wrong, "scope=.*must be text") for wrong in (None, 5, b"s")],
        *[("subject", wrong, "subject=.*must be text") for wrong in (None, 5, b"s")],
        *[("cost", wrong, "cost=.*whole number") for wrong in (None, "1", 1.0, True, -1)],
        *[("ban", wrong, "ban=.*give a Ban, such as") for wrong in (3, True, {"after": 3})],
        *[("hash_tag", wrong, "hash_tag=.*give 'scope' or 'subject'") for wrong in (None, "slot")],
        ("on_storage_error", "block", "on_storage_error='block': give one of"),
    ],
)
def test_hits_for_refuses_a_wrong_kind_of_value(option: str, wrong: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        hits_for(**{"rules": "5/minute", "scope": "api", option: wrong})


@pytest.mark.parametrize("wrong", [None, 1, "false"])
def test_the_shadow_of_a_hit_is_true_or_false(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"shadow=.*give True or False"):
        Hit("key", Rule(60, 5), shadow=wrong)


@pytest.mark.parametrize("wrong", [None, "5/minute", {"count": 5}])
def test_a_hit_has_a_rule(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"rule=.*: give a Rule"):
        Hit("key", wrong)


@pytest.mark.parametrize("wrong", ['a"b', "a\\b", "a\nb", "ä", b"a", None])
def test_the_name_of_a_hit_fits_into_a_header_field(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"name=.*: give printable ASCII without quotes and backslashes"):
        Hit("key", Rule(60, 5), name=wrong)


def test_a_limiter_and_its_layers_refuse_a_wrong_kind_of_value() -> None:
    wrong: Any = {"workers": 4}
    with pytest.raises(ConfigurationError, match=r"layers=\{'workers': 4\}: give Layers"):
        Limiter(layers=wrong)
    with pytest.raises(ConfigurationError, match=r"on_change=.*: give a callable with the Health"):
        Layers(on_change=wrong)
    with pytest.raises(ConfigurationError, match=r"uri=.*: give text, such as redis://localhost"):
        storage_from_uri(wrong)
