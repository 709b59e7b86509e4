"""Ban as a value: its arguments, text and equality, and the hits that contain it."""

import copy
import pickle
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pytest

from flask_multilimit.engine import Ban, ConfigurationError, Hits, Limiter, Rule, hits_for
from flask_multilimit.engine.algorithms import ALGORITHMS, BAN

WRONG_ARGUMENTS = [
    ({"after": 0}, "after must be a whole number of refusals from 1 to 1000, got 0"),
    ({"after": 1001}, "after must be a whole number of refusals from 1 to 1000, got 1001"),
    ({"after": True}, "after must be a whole number"),
    ({"after": 2.0}, "after must be a whole number"),
    ({"after": "3"}, "after must be a whole number"),
    ({"within": 0}, "within must be between 0.001"),
    ({"within": -1}, "within must be between 0.001"),
    ({"within": "10m"}, "within must be a number of seconds or a timedelta, got '10m'"),
    ({"time": 0.0001}, "time must be between 0.001"),
    ({"time": 0.0015}, "time must be a whole number of milliseconds"),
    ({"time": float("nan")}, "time must be between 0.001"),
    ({"time": 401 * 86_400}, "time must be between 0.001"),
    ({"most": None}, "most must be a number of seconds or a timedelta"),
    ({"most": 60}, "most=60 is less than time=3600, which is how long the first ban lasts"),
    ({"factor": 0.5}, "factor must be a number from 1, .* to 1000, got 0.5"),
    ({"factor": float("nan")}, "factor must be a number from 1"),
    ({"factor": float("inf")}, "factor must be a number from 1"),
    ({"factor": 10**400}, "factor must be a number from 1"),
    ({"factor": True}, "factor must be a number from 1"),
    ({"after": 0, "factor": 0}, "after must be .*; factor must be"),
]


@pytest.mark.parametrize(("options", "message"), WRONG_ARGUMENTS, ids=[str(given)[:40] for given, _ in WRONG_ARGUMENTS])
def test_a_wrong_argument_of_a_ban_is_an_error_that_shows_its_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^Ban\(.*\): {message}"):
        Ban(**options)


def test_a_ban_is_immutable_and_compared_by_value() -> None:
    with pytest.raises(FrozenInstanceError):
        Ban().after = 5  # type: ignore[misc]

    same = Ban(within=timedelta(minutes=10), time=timedelta(hours=1), most=timedelta(days=1))
    assert {Ban(), Ban(after=3, within=600, time=3600, factor=2, most=86_400), same} == {Ban()}
    assert pickle.loads(pickle.dumps(Ban(after=5))) == copy.deepcopy(Ban(after=5)) == Ban(after=5)


def test_a_ban_is_shown_in_words() -> None:
    assert str(Ban()) == "ban of 60 min after 3 refusals in 10 min, 2 times as long each time, at most 24 h"
    assert str(Ban(time=60, factor=1)) == "ban of 60 s after 3 refusals in 10 min"
    assert str(Ban(after=1, factor=1)) == "ban of 60 min after 1 refusal in 10 min"


def test_ban_is_accepted_neither_as_a_rule_nor_as_an_algorithm() -> None:
    assert BAN not in ALGORITHMS
    with pytest.raises(ConfigurationError, match="algorithm must be one of"):
        Rule(algorithm=BAN)
    with pytest.raises(ConfigurationError, match="is not a rule"):
        hits_for([Ban()], scope="s")  # type: ignore[list-item]


def test_hits_with_a_ban_survive_pickling() -> None:
    hits = hits_for("1/minute", scope="s", ban=Ban())

    again = pickle.loads(pickle.dumps(hits))

    assert again == hits
    assert isinstance(again, Hits)
    assert Limiter().check(again).allowed


def test_key_of_a_ban_is_in_the_hash_slot_of_its_rules() -> None:
    rule, ban = hits_for("1/minute", scope="s", subject="user:ada", ban=Ban(within=90))
    assert rule.key == "rate_limit:{s}:user:ada:sliding_window:60000"
    assert ban.key == "rate_limit:{s}:user:ada:ban:90000"
    assert ban.name == "user-ban"
