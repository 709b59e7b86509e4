"""The leaky bucket as a queue: how long each request waits, in storage and in a Flask view."""

import time
from collections.abc import Callable

import pytest
from flask import Flask

from flask_multilimit import MultiLimit, Rule, current_decision, rate_limiter
from flask_multilimit.engine import Limiter, MemoryStorage
from flask_multilimit.serve.gate import gate_of
from support.bench import Bench, exhaust, hits
from support.clock import Clock

EVERY_HALF_SECOND = Rule(1, 2, algorithm="leaky_bucket", max_delay=2)


def test_check_of_cost_0_is_neither_delayed_nor_refused_by_a_full_queue(bench: Bench) -> None:
    exhaust(bench.limiter, hits(EVERY_HALF_SECOND))
    decision = bench.limiter.check(hits(EVERY_HALF_SECOND, cost=0))
    assert (decision.allowed, decision.delay, decision.remaining) == (True, 0, 0)
    assert decision.reset_after == 2.5


def test_the_delay_of_several_queues_is_the_longest(bench: Bench) -> None:
    slow = hits(Rule(1, 1, algorithm="leaky_bucket", max_delay=9), subject="bo")
    bench.limiter.check(hits(EVERY_HALF_SECOND) + slow)
    assert bench.limiter.check(hits(EVERY_HALF_SECOND) + slow).delay == 1


def test_check_refused_by_another_rule_takes_no_place_in_the_queue(bench: Bench) -> None:
    full = hits("1/minute", subject="bo")
    bench.limiter.check(hits(EVERY_HALF_SECOND) + full)

    refused = bench.limiter.check(hits(EVERY_HALF_SECOND) + full)

    assert (refused.allowed, refused.delay) == (False, 0)
    assert bench.limiter.check(hits(EVERY_HALF_SECOND)).delay == 0.5


def test_refund_shortens_the_queue_for_the_next_request(bench: Bench) -> None:
    decisions = [bench.limiter.check(hits(EVERY_HALF_SECOND)) for _ in range(3)]
    bench.limiter.refund(decisions[1])
    assert bench.limiter.check(hits(EVERY_HALF_SECOND)).delay == decisions[2].delay


# In Flask


@pytest.mark.parametrize(
    ("wait", "slept"), [(0, []), (0.07, [0.05]), (1, [0.05, 0.1])], ids=["no wait", "wait 0.07", "wait 1"]
)
def test_wait_option_sleeps_for_short_delays_and_leaves_longer_ones_to_the_view(
    wait: float, slept: list[float]
) -> None:
    sleeps: list[float] = []
    client = app_with(wait, Clock(), sleeps.append).test_client()

    delays = [client.get("/").get_json()["delay"] for _ in range(3)]

    assert delays == [0, 0.05, 0.1]
    assert sleeps == slept


def app_with(wait: float, clock: Clock | None = None, sleep: Callable[[float], None] = time.sleep) -> Flask:
    app = Flask("shop")
    MultiLimit(app)
    gate_of(app).limiter = Limiter(MemoryStorage(clock) if clock else "memory://", sleep=sleep)

    @app.get("/")
    @rate_limiter(rules=[Rule(0.05, 1, algorithm="leaky_bucket", max_delay=1)], wait=wait)
    def view() -> dict[str, float]:
        return {"delay": current_decision.delay}

    return app
