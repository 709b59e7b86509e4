"""Waiting instead of refusing: `wait=` of a limiter, and `Limiter.acquire` for scripts."""

import math
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from flask import Flask

from flask_multilimit import ConfigurationWarning, LimitType, MultiLimit, Rule, current_decision, rate_limiter
from flask_multilimit.engine import Limiter, MemoryStorage, hits_for
from flask_multilimit.serve.gate import gate_of
from support.asking import ask, statuses, view
from support.clock import Clock


class Sleeper:
    """Sleeps by advancing the clock, then calls `wakes`."""

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


class TestWaitOption:
    def test_request_sleeps_until_it_passes(self, app: Flask, sleeper: Sleeper) -> None:
        app.add_url_rule("/", "view", rate_limiter(rules="1 per 5 seconds", wait=5)(view()))
        assert statuses(app, "/", "/", "/") == [200, 200, 200]
        assert sleeper.slept == [5, 5]

    def test_wait_of_the_stricter_of_two_limiters_with_one_key_applies(self, app: Flask, sleeper: Sleeper) -> None:
        below = rate_limiter(rules="1 per 5 seconds", wait=5)(view())
        with pytest.warns(ConfigurationWarning, match="can never refuse"):
            app.add_url_rule("/", "view", rate_limiter(rules="9 per 5 seconds")(below))

        assert statuses(app, "/", "/") == [200, 200]
        assert sleeper.slept == [5]

    def test_request_is_refused_at_once_when_the_wait_is_too_short(self, app: Flask, sleeper: Sleeper) -> None:
        app.add_url_rule("/", "view", rate_limiter(rules="1 per 5 seconds", wait=4.9)(view()))
        assert statuses(app, "/", "/") == [200, 429]
        assert sleeper.slept == []

    def test_request_that_a_timeout_has_ended_does_not_wait_and_the_next_one_does(
        self, app: Flask, sleeper: Sleeper
    ) -> None:
        key = Mock(side_effect=[SystemExit, SystemExit, None])
        waiting = rate_limiter(rules="1 per 5 seconds", wait=5)(view())
        app.add_url_rule("/", "view", rate_limiter(type=key, name="key", rules="9/second")(waiting))

        for _ in range(2):
            with pytest.raises(SystemExit):
                ask(app)
        assert sleeper.slept == []

        assert statuses(app, "/") == [200]
        assert sleeper.slept == [5]

    def test_request_that_can_never_pass_is_refused_at_once(self, app: Flask, sleeper: Sleeper) -> None:
        app.add_url_rule("/", "view", rate_limiter(rules="1/second", wait=3600, cost=lambda: 2)(view()))
        assert statuses(app, "/") == [429]
        assert sleeper.slept == []

    def test_wait_is_bounded_when_other_requests_take_the_units(self, app: Flask, sleeper: Sleeper) -> None:
        app.add_url_rule("/", "view", rate_limiter(rules="1 per 5 seconds", wait=12)(view()))
        app.add_url_rule("/other", "other", rate_limiter(rules="1 per 5 seconds", scope="view")(view()))
        statuses(app, "/")
        sleeper.wakes = lambda: statuses(app, "/other")

        assert statuses(app, "/") == [429]
        assert sleeper.slept == [5, 5]

    def test_request_waits_only_when_every_refusing_limiter_has_a_wait(self, app: Flask, sleeper: Sleeper) -> None:
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

    def test_limiter_without_a_wait_that_admits_does_not_stop_waiting(self, app: Flask, sleeper: Sleeper) -> None:
        patient = rate_limiter(type=LimitType.IP, rules="1 per 5 seconds", wait=5)
        app.add_url_rule("/", "view", patient(rate_limiter(rules="9/minute")(view())))
        assert statuses(app, "/", "/") == [200, 200]
        assert sleeper.slept == [5]

    def test_response_after_waiting_describes_the_admission(self, app: Flask) -> None:
        app.add_url_rule(
            "/", "view", rate_limiter(rules="1 per 5 seconds", wait=5)(lambda: str(current_decision.allowed))
        )

        second = [ask(app) for _ in range(2)][1]

        assert second.text == "True"
        assert second.headers["RateLimit"] == '"default-5s";r=0;t=5'
        assert "Retry-After" not in second.headers

    def test_request_in_a_leaky_bucket_queue_sleeps_until_its_turn(self, app: Flask, sleeper: Sleeper) -> None:
        queue = Rule(time=10, count=10, algorithm="leaky_bucket", max_delay=3)
        app.add_url_rule("/", "view", rate_limiter(rules=queue, wait=3)(view()))

        assert statuses(app, "/") == [200]
        sleeper.slept.clear()
        assert statuses(app, "/", "/") == [200, 200]
        assert sleeper.slept == [1, 1]


class TestAcquire:
    def test_acquire_sleeps_until_a_unit_is_free(self, any_storage: Any, sleeper: Sleeper) -> None:
        limiter, hits = sleeper.limiter(any_storage), hits_for("2 per 10 seconds", scope="script")
        decisions = [limiter.acquire(hits, timeout=10) for _ in range(4)]
        assert all(decision.allowed for decision in decisions)
        assert sleeper.slept == [10]

    @pytest.mark.parametrize("timeout", [0, 9.999, -1])
    def test_acquire_does_not_sleep_when_the_timeout_is_too_short(
        self, any_storage: Any, sleeper: Sleeper, timeout: float
    ) -> None:
        limiter, hits = sleeper.limiter(any_storage), hits_for("1 per 10 seconds", scope="script")
        limiter.check(hits)
        decision = limiter.acquire(hits, timeout=timeout)
        assert (decision.allowed, decision.retry_after, sleeper.slept) == (False, 10, [])

    @pytest.mark.parametrize("timeout", [1, math.inf])
    def test_acquire_does_not_sleep_for_a_cost_above_the_count(
        self, any_storage: Any, sleeper: Sleeper, timeout: float
    ) -> None:
        decision = sleeper.limiter(any_storage).acquire(hits_for("1/second", scope="script", cost=2), timeout=timeout)
        assert (decision.allowed, sleeper.slept) == (False, [])

    def test_acquire_really_sleeps_by_default(self) -> None:
        storage, hits = MemoryStorage(), hits_for(Rule(0.01, 1), scope="script")
        storage.check = check = Mock(wraps=storage.check)  # type: ignore[method-assign]
        limiter = Limiter(storage)
        assert all(limiter.acquire(hits, timeout=1).allowed for _ in range(3))
        assert check.call_count <= 10, "it asks again only after each pause"


def test_wait_sleeps_as_gevent_has_patched_it_after_the_limiter_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with ``gunicorn --preload``: the usual sleep would stop all greenlets."""
    limiter, once, slept = Limiter(), hits_for("1/second", scope="mail"), list[float]()
    limiter.check(once)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        limiter.reset(once)

    monkeypatch.setattr(time, "sleep", sleep)

    assert limiter.acquire(once, timeout=100).allowed
    assert slept


def test_wait_sleeps_as_gevent_has_patched_it_before_the_limiter_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module may have been imported in a master, and the limiter be made by the first task of a worker."""
    slept, once = list[float](), hits_for("1/second", scope="mail")
    monkeypatch.setattr(time, "sleep", slept.append)
    limiter = Limiter(monotonic=iter(range(9)).__next__)
    limiter.check(once)

    limiter.acquire(once, timeout=3)

    assert slept
