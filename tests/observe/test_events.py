"""What events say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flask_multilimit.engine import Limiter, hits_for
from flask_multilimit.observe.events import AFTERWARDS, OUTCOMES, PASSED, TURNED_AWAY, hits_near_limit

if TYPE_CHECKING:
    from support.clock import Clock
    from support.doubles import RecordingStorage


def test_a_rule_is_near_its_limit_from_80_percent_on(storage: RecordingStorage, clock: Clock) -> None:
    del clock
    limiter, near = Limiter(storage), []
    for _ in range(11):
        decision = limiter.check(hits_for("10/minute", scope="a"))
        near.append(bool(hits_near_limit(decision)))

    assert near == [False] * 8 + [True, True] + [False], "the last is refused"


def test_each_outcome_is_one_of_three_kinds() -> None:
    assert frozenset(OUTCOMES) == PASSED | TURNED_AWAY | AFTERWARDS
    assert not PASSED & TURNED_AWAY
