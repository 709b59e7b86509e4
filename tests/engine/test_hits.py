"""Hits: a value of a wrong kind is an error, and never switches a limit off."""

from dataclasses import FrozenInstanceError
from enum import Enum
from math import nan
from typing import Any

import pytest

from flask_multilimit import LimitType
from flask_multilimit.engine import ConfigurationError, Hit, Rule, hits_for


@pytest.mark.parametrize(
    ("option", "wrong", "message"),
    [
        *[("shadow", wrong, "give True or False") for wrong in (None, 1, 0, "false", "")],
        *[
            ("prefix", wrong, "key prefix .*: 1 to 32 printable ASCII characters, no spaces or braces")
            for wrong in (None, 5, b"p:", "{", "}", "{x}", "a b", "a\n", "", "é", "x" * 33, "\0")
        ],
        *[("scope", wrong, "scope=.*must be text") for wrong in (None, 5, b"s")],
        *[
            ("subject", wrong, 'give TYPE:VALUE, such as "user:42"')
            for wrong in (None, 5, b"s", "42", ":42", "::1", "2001:db8::7", "1ip:42")
        ],
        *[
            ("subject", f"{wrong}:42", "subject=.*its type must match")
            for wrong in ("a b", f"{LimitType.IP!r}", "ip}", "ip\n", "é", "t" * 21)
        ],
        *[("cost", wrong, "cost=.*whole number") for wrong in (None, "1", 1.0, 1.5, nan, True, -1)],
        *[("ban", wrong, "ban=.*give a Ban, such as") for wrong in (3, True, {"after": 3})],
        *[("hash_tag", wrong, "hash_tag=.*give 'scope' or 'subject'") for wrong in (None, "slot")],
        *[
            ("on_storage_error", wrong, "on_storage_error=.*: give one of 'local', 'allow', 'deny', 'raise'")
            for wrong in ("locally", "", 1, True, ["local"])
        ],
    ],
)
def test_hits_for_refuses_a_wrong_kind_of_value(option: str, wrong: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        hits_for(**{"rules": "5/minute", "scope": "api", option: wrong})


def test_members_of_an_enum_count_as_their_text() -> None:
    class Word(str, Enum):
        MAIL = "mail"
        ANN = "user:ann"

    (by_name,) = hits_for("5/minute", scope=Word.MAIL, subject=Word.ANN)

    assert (by_name,) == tuple(hits_for("5/minute", scope="mail", subject="user:ann"))
    assert by_name.key == "rate_limit:{mail}:user:ann:sliding_window:60000"


@pytest.mark.parametrize(
    ("option", "wrong", "message"),
    [
        *[("shadow", wrong, "give True or False") for wrong in (None, 1, "false")],
        *[("rule", wrong, "give a Rule") for wrong in (None, "5/minute", {"count": 5})],
        *[
            ("name", wrong, "give printable ASCII without quotes and backslashes")  # it stands in a header field
            for wrong in ('a"b', "a\\b", "a\nb", "ä", b"a", None)
        ],
    ],
)
def test_a_hit_refuses_a_wrong_kind_of_value(option: str, wrong: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{option}=.*: {message}"):
        Hit(**{"key": "key", "rule": Rule(60, 5), option: wrong})


def test_a_hit_is_frozen_and_compared_by_value() -> None:
    hit = Hit("key", Rule(60, 5))
    with pytest.raises(FrozenInstanceError):
        hit.cost = 0  # type: ignore[misc]
    assert {hit, Hit("key", Rule(60, 5))} == {hit}
