"""What observing costs: `python -m benchmarks.observation`.

Each figure is what is added to one request's check in memory by three rules of one address, interleaved in blocks with
the same check that nobody observes; medians. Then what a flush takes, and the memory and the recall of the most refused
subjects.
"""

from __future__ import annotations

import logging
import random
import statistics
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

from flask import Flask, request
from prometheus_client import CollectorRegistry

from flask_multilimit import (
    IP,
    DenyCache,
    Hit,
    Limiter,
    MemoryStorage,
    MultiLimit,
    RedisStorage,
    Rule,
    hits_for,
    rate_limiter,
)
from flask_multilimit.observe.events import outcome_of
from flask_multilimit.observe.prometheus import PrometheusMetrics
from flask_multilimit.observe.traffic.counting import Counter as EventCounter
from flask_multilimit.observe.traffic.flushing import Outbox
from flask_multilimit.observe.traffic.heaviest import Heaviest
from flask_multilimit.serve.gate import gate_of

from .measure import cpu_of
from .setting import Setting

BLOCKS, IN_BLOCK = 400, 200
FLUSHES = 100
SUBJECTS = 1_000_000
EVENTS = 1_000_000
COUNTERS = 1024


def check_of(count: int, *, traffic: bool, prometheus: bool) -> Callable[[], object]:
    """One check at one endpoint, as the gate makes it."""
    app = Flask("benchmark")
    app.config["MULTILIMIT_TRAFFIC"] = traffic
    observers = [PrometheusMetrics(registry=CollectorRegistry())] if prometheus else []
    MultiLimit(app, storage=DenyCache(MemoryStorage(), seconds=60), observers=observers)
    rules = [Rule(600, count), Rule(6_000, 2 * count), Rule(60_000, 3 * count)]
    app.add_url_rule("/", "view", rate_limiter(type=IP, rules=rules)(lambda: "ok"))
    app.test_client().get("/")
    app.test_client().get("/")
    gate, context = gate_of(app), app.test_request_context("/", environ_base={"REMOTE_ADDR": "127.0.0.1"})
    with context:
        plan = gate.plans.of_request(request._get_current_object())  # type: ignore[attr-defined]
        assert plan is not None
        applied = plan.apply(gate.subjects.resolve)

    def check() -> object:
        with_context = gate.verdicts._decide("view", applied, record)
        record.decisions.clear()
        return with_context

    from flask_multilimit.serve.record import NO_PLAN, Record  # noqa: PLC0415 - not a name that users need

    record = Record(NO_PLAN)
    return check


def block(check: Callable[[], object]) -> float:
    """Microseconds a check."""
    begin = time.perf_counter()
    for _ in range(IN_BLOCK):
        check()
    return (time.perf_counter() - begin) / IN_BLOCK * 1e6


def added(count: int, *, traffic: bool, prometheus: bool) -> tuple[float, float]:
    """Median of a check that nobody observes, and of what observing adds."""
    bare = check_of(count, traffic=False, prometheus=False)
    observed = check_of(count, traffic=traffic, prometheus=prometheus)
    pairs = [(block(bare), block(observed)) for _ in range(BLOCKS)]
    return statistics.median(one for one, _ in pairs), statistics.median(two - one for one, two in pairs)


def flush() -> tuple[float, float]:
    """Milliseconds of CPU, of a process and of the server, to hand on what was counted in a second at 50 endpoints: all
    outcomes, and as many refused subjects as are sent."""
    with Setting().server() as server:
        outbox = Outbox(
            RedisStorage.from_url(server.tcp_url, timeout=10), "rate_limit:", logger=logging.getLogger("benchmark")
        )
        counter, limiter = EventCounter(subjects=True), Limiter(MemoryStorage())
        samples = []
        for _ in range(FLUSHES):
            for number in range(500):
                hits = hits_for("1/hour", scope=f"view-{number % 50}", subject=str(number))
                for _ in range(2):
                    decision = limiter.check(hits)
                    outcome = outcome_of(decision, 0.0)
                    applied = (Subject(("default", str(number)), hits),)
                    counter.count(f"view-{number % 50}", outcome, "storage", decision, applied)
            before, at_server = time.process_time_ns(), cpu_of(server.pid)
            outbox.put(counter.take())
            outbox.send()
            samples.append((time.process_time_ns() - before, cpu_of(server.pid) - at_server))
    ours, of_server = zip(*samples, strict=True)
    return statistics.median(ours) / 1e6, statistics.median(of_server) / 1e6


class Subject(NamedTuple):
    """One limiter that was asked."""

    subject: tuple[str, str]
    hits: tuple[Hit, ...]


def recall(exponent: float) -> float:
    """Of the 20 most frequent of a Zipf stream, the share that is found."""
    weights = list(accumulate(1 / rank**exponent for rank in range(1, SUBJECTS + 1)))
    stream = random.Random(1).choices(range(SUBJECTS), cum_weights=weights, k=EVENTS)
    heaviest: Heaviest[int] = Heaviest(COUNTERS)
    for subject in stream:
        heaviest.add(subject)
    exact = {subject for subject, _ in Counter(stream).most_common(20)}
    return len(exact & set(heaviest.top(20))) / 20


def memory() -> float:
    """Megabytes of the counters after a million subjects, each refused once."""
    tracemalloc.start()
    heaviest: Heaviest[tuple[str, str, str, str]] = Heaviest(COUNTERS)
    for number in range(SUBJECTS):
        heaviest.add(("api.search", "ip-60s", "ip", f"2001:db8:{number:x}::/64"))
    taken = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    return taken


def main() -> None:
    for name, count in (("admitted", 10**6), ("refused by the deny cache", 1)):
        for what, traffic, prometheus in (("traffic", True, False), ("Prometheus", False, True)):
            bare, more = added(count, traffic=traffic, prometheus=prometheus)
            print(f"{name}: a check takes {bare:.2f} us; {what} adds {more:.2f} us")
    ours, of_server = flush()
    print(f"a flush, once a second: {ours:.2f} ms of a process, {of_server:.2f} ms of the server")
    print(f"memory with {SUBJECTS:,} subjects: {memory():.2f} MB")
    for exponent in (0.9, 1.0, 1.1):
        print(f"recall of the top 20, Zipf {exponent}: {recall(exponent):.2f}")


if __name__ == "__main__":
    main()
