"""What observers are told, and how: each outcome is of one kind, and an observer that fails is logged."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from flask_multilimit.engine import Limiter, hits_for
from flask_multilimit.observe.events import AFTERWARDS, OUTCOMES, PASSED, TURNED_AWAY, Audience, hits_near_limit
from flask_multilimit.signals import Event

if TYPE_CHECKING:
    from support.clock import Clock
    from support.doubles import RecordingStorage


def test_an_observer_that_goes_on_raising_is_logged_again_after_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]

    def broken(_event: Event) -> None:
        raise RuntimeError("no")

    audience = Audience([broken], logging.getLogger("test"), clock=lambda: now[0])
    event = Event("view", "denied", "list", None, 0.0, 0.0, (), None)
    for now[0] in (0, 59, 60, 61, 121):
        audience.notify(event)

    assert len(caplog.records) == 3


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
