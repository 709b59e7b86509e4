"""Waiting instead of refusing: `wait=` of a limiter, and `Limiter.acquire` for scripts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from flask_multilimit import ConfigurationWarning, LimitType, MultiLimit, Rule, current_decision, rate_limiter
from flask_multilimit.engine import Limiter, hits_for
from flask_multilimit.serve.gate import gate_of
from support.asking import ask, statuses, view

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Flask

    from support.clock import Clock
    from support.doubles import RecordingStorage


class Sleeper:
    """Sleeps by advancing the clock; `wakes` is called before each return."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.slept: list[float] = []
        self.wakes: Callable[[], Any] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.advance(seconds)
        self.wakes()

    def monotonic(self) -> float:
        return self.clock.now / 1_000_000

    def limiter(self, storage: Any) -> Limiter:
        return Limiter(storage, sleep=self.sleep, monotonic=self.monotonic)


@pytest.fixture
def sleeper(clock: Clock) -> Sleeper:
    return Sleeper(clock)


@pytest.fixture
def app(app: Flask, any_storage: Any, sleeper: Sleeper) -> Flask:
    MultiLimit(app, storage=any_storage)
    gate_of(app).limiter = sleeper.limiter(any_storage)
    return app


class TestWaitOfALimiter:
    def test_sleeps_until_the_request_passes(self, app: Flask, sleeper: Sleeper) -> None:
        app.add_url_rule("/", "view", rate_limiter(rules="1 per 5 seconds", wait=5)(view()))

        assert statuses(app, "/", "/", "/") == [200, 200, 200]
        assert sleeper.slept == [5, 5]

    def test_is_that_of_the_stricter_one_of_two_limiters_in_one_key(self, app: Flask, sleeper: Sleeper) -> None:
        below = rate_limiter(rules="1 per 5 seconds", wait=5)(view())
        with pytest.warns(ConfigurationWarning, match="can never refuse"):
            app.add_url_rule("/", "view", rate_limiter(rules="9 per 5 seconds")(below))

        assert statuses(app, "/", "/") == [200, 200]
        assert sleeper.slept == [5]

    def test_refuses_at_once_when_it_would_not_be_enough(self, app: Flask, sleeper: Sleeper) -> None:
        app.add_url_rule("/", "view", rate_limiter(rules="1 per 5 seconds", wait=4.9)(view()))

        assert statuses(app, "/", "/") == [200, 429]
        assert sleeper.slept == []

    def test_refuses_at_once_what_never_passes(self, app: Flask, sleeper: Sleeper) -> None:
        app.add_url_rule("/", "view", rate_limiter(rules="1/second", wait=3600, cost=lambda: 2)(view()))

        assert statuses(app, "/") == [429]
        assert sleeper.slept == []

    def test_is_bounded_also_when_others_are_faster(self, app: Flask, sleeper: Sleeper) -> None:
        app.add_url_rule("/", "view", rate_limiter(rules="1 per 5 seconds", wait=12)(view()))
        app.add_url_rule("/other", "other", rate_limiter(rules="1 per 5 seconds", scope="view")(view()))
        statuses(app, "/")
        sleeper.wakes = lambda: statuses(app, "/other")

        assert statuses(app, "/") == [429]
        assert sleeper.slept == [5, 5]

    def test_needs_the_consent_of_every_limiter_that_refuses(self, app: Flask, sleeper: Sleeper) -> None:
        impatient = rate_limiter(rules="1 per 2 seconds", name="impatient")
        app.add_url_rule(
            "/", "view", rate_limiter(type=LimitType.IP, rules="1 per 5 seconds", wait=5)(impatient(view()))
        )
        app.add_url_rule(
            "/both",
            "both",
            rate_limiter(type=LimitType.IP, rules="1 per 5 seconds", wait=5)(
                rate_limiter(rules="1 per 2 seconds", wait=9)(view())
            ),
        )

        assert statuses(app, "/", "/") == [200, 429]
        assert statuses(app, "/both", "/both") == [200, 200]
        assert sleeper.slept == [5]

    def test_is_nothing_to_a_limiter_that_does_not_refuse(self, app: Flask, sleeper: Sleeper) -> None:
        patient = rate_limiter(type=LimitType.IP, rules="1 per 5 seconds", wait=5)
        app.add_url_rule("/", "view", patient(rate_limiter(rules="9/minute")(view())))

        assert statuses(app, "/", "/") == [200, 200]
        assert sleeper.slept == [5]

    def test_leads_to_one_decision_that_tells_of_the_passing(self, app: Flask) -> None:
        app.add_url_rule(
            "/", "view", rate_limiter(rules="1 per 5 seconds", wait=5)(lambda: str(current_decision.allowed))
        )

        second = [ask(app) for _ in range(2)][1]

        assert second.text == "True"
        assert second.headers["RateLimit"] == '"default-5s";r=0;t=5'
        assert "Retry-After" not in second.headers

    def test_sleeps_until_the_turn_in_a_queue(self, app: Flask, sleeper: Sleeper) -> None:
        queue = Rule(time=10, count=10, algorithm="leaky_bucket", max_delay=3)
        app.add_url_rule("/", "view", rate_limiter(rules=queue, wait=3)(view()))

        assert statuses(app, "/") == [200]
        sleeper.slept.clear()
        assert statuses(app, "/", "/") == [200, 200]
        assert sleeper.slept == [1, 1]


class TestAcquire:
    def test_waits_for_its_turn(self, any_storage: Any, sleeper: Sleeper) -> None:
        limiter, hits = sleeper.limiter(any_storage), hits_for("2 per 10 seconds", scope="script")

        decisions = [limiter.acquire(hits, timeout=10) for _ in range(4)]

        assert all(decision.allowed for decision in decisions)
        assert sleeper.slept == [10]

    @pytest.mark.parametrize("timeout", [0, 9.999, -1])
    def test_does_not_sleep_in_vain(self, any_storage: Any, sleeper: Sleeper, timeout: float) -> None:
        limiter, hits = sleeper.limiter(any_storage), hits_for("1 per 10 seconds", scope="script")
        limiter.check(hits)

        decision = limiter.acquire(hits, timeout=timeout)

        assert (decision.allowed, decision.retry_after, sleeper.slept) == (False, 10, [])

    @pytest.mark.parametrize("timeout", [1, math.inf])
    def test_does_not_wait_for_what_never_comes(self, any_storage: Any, sleeper: Sleeper, timeout: float) -> None:
        decision = sleeper.limiter(any_storage).acquire(hits_for("1/second", scope="script", cost=2), timeout=timeout)

        assert (decision.allowed, sleeper.slept) == (False, [])

    def test_tries_again_while_time_is_left(self, any_storage: Any, sleeper: Sleeper) -> None:
        limiter, hits = sleeper.limiter(any_storage), hits_for("1 per 10 seconds", scope="script")
        limiter.check(hits)
        sleeper.wakes = lambda: len(sleeper.slept) < 3 and limiter.check(hits)

        assert limiter.acquire(hits, timeout=35).allowed
        assert sleeper.slept == [10, 10, 10]

    def test_sleeps_in_earnest_by_default(self, storage: RecordingStorage) -> None:
        limiter, hits = Limiter(), hits_for(Rule(0.01, 1), scope="script")

        assert all(limiter.acquire(hits, timeout=1).allowed for _ in range(3))
        assert storage.checks == []
