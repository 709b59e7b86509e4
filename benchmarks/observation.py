"""What observing costs: the time added to a request's check in memory by three rules of one address, the time of a
flush, once a second, and the memory and recall of the subjects that are refused most."""

from __future__ import annotations

import contextlib
import logging
import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import NamedTuple

from flask import Flask, request
from prometheus_client import CollectorRegistry

from flask_multilimit import IP, MultiLimit, Rule, rate_limiter
from flask_multilimit.engine import DenyCache, Hit, Limiter, MemoryStorage, RedisStorage, hits_for
from flask_multilimit.observe.events import outcome_of
from flask_multilimit.observe.prometheus import PrometheusMetrics
from flask_multilimit.observe.traffic.counting import MOST_SUBJECTS, Heaviest
from flask_multilimit.observe.traffic.counting import Counter as EventCounter
from flask_multilimit.observe.traffic.flushing import Outbox
from flask_multilimit.serve.gate import gate_of

from .measure import Variant, cpu_of, in_turn, pinned
from .results import Figure, median_of
from .setting import Setting

PART = "observation"
NOBODY, TRAFFIC, PROMETHEUS = "nobody", "traffic, which is on by default", "Prometheus"
CASES = {"admitted": 10**6, "refused by the deny cache": 1}
"""The cases, with the count of the first rule."""
IN_BLOCK = 200
SUBJECTS = 1_000_000
EVENTS = 1_000_000
EXPONENTS = (0.9, 1.0, 1.1)
FLUSH, MEMORY, RECALL = "a flush", f"{SUBJECTS:,} subjects", f"{EVENTS:,} refusals"


def measure(setting: Setting) -> Iterator[Figure]:
    yield from added(setting)
    yield from flush(setting)
    yield Figure(PART, TRAFFIC, MEMORY, "MB", round(memory(), 2))
    for exponent in EXPONENTS:
        yield Figure(PART, TRAFFIC, RECALL, of_zipf(exponent), recall(exponent))


def of_zipf(exponent: float) -> str:
    return f"share found of the top 20, Zipf {exponent}"


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
        with_context = gate._decide("view", applied, record)
        record.decisions.clear()
        return with_context

    from flask_multilimit.serve.state import NO_PLAN, Record  # noqa: PLC0415 - not a name that users need

    record = Record(NO_PLAN)
    return check


def added(setting: Setting) -> Iterator[Figure]:
    """The time that observing adds: in each round, compared with the check that nobody observes."""
    for case, count in CASES.items():
        checks = {
            Variant(who, case): check_of(count, traffic=who == TRAFFIC, prometheus=who == PROMETHEUS)
            for who in (NOBODY, TRAFFIC, PROMETHEUS)
        }
        with pinned() if setting.pinned else contextlib.nullcontext():
            samples = in_turn(checks, rounds=setting.rounds(1000), block=IN_BLOCK)
        bare = samples.pop(Variant(NOBODY, case))
        for (who, _), taken in samples.items():
            both = list(zip(taken, bare, strict=True))
            yield median_of(PART, who, case, "µs added", (more.wall - less.wall for more, less in both))
            yield median_of(PART, who, case, "CPU µs added", (more.client_cpu - less.client_cpu for more, less in both))


def flush(setting: Setting) -> Iterator[Figure]:
    """Milliseconds of CPU, of a process and of the server, to pass on the counts of a second at 50 endpoints: all
    outcomes, and as many refused subjects as are sent."""
    with setting.server() as server:
        outbox = Outbox(
            RedisStorage.from_url(server.tcp_url, timeout=10), "rate_limit:", logger=logging.getLogger("benchmark")
        )
        counter, limiter = EventCounter(subjects=True), Limiter(MemoryStorage())
        ours, of_server = [], []
        for _ in range(setting.rounds(100)):
            count_a_second(counter, limiter)
            before, at_server = time.process_time_ns(), cpu_of(server.pid)
            outbox.put(counter.take())
            outbox.send()
            ours.append((time.process_time_ns() - before) / 1e6)
            of_server.append((cpu_of(server.pid) - at_server) / 1e6)
    yield median_of(PART, TRAFFIC, FLUSH, "CPU ms", ours)
    yield median_of(PART, TRAFFIC, FLUSH, "server CPU ms", of_server)


def count_a_second(counter: EventCounter, limiter: Limiter) -> None:
    """A thousand checks of 500 subjects at 50 endpoints, half of them refused."""
    for number in range(500):
        hits = hits_for("1/hour", scope=f"view-{number % 50}", subject=f"user:{number}")
        for _ in range(2):
            decision = limiter.check(hits)
            applied = (Subject(("user", str(number)), hits),)
            counter.count(f"view-{number % 50}", outcome_of(decision, 0.0), "storage", decision, applied)


class Subject(NamedTuple):
    """One limiter that was asked."""

    subject: tuple[str, str]
    hits: tuple[Hit, ...]


def recall(exponent: float) -> float:
    """The share of the 20 most frequent subjects of a Zipf stream that is found."""
    weights = list(accumulate(1 / rank**exponent for rank in range(1, SUBJECTS + 1)))
    stream = random.Random(1).choices(range(SUBJECTS), cum_weights=weights, k=EVENTS)
    heaviest: Heaviest[int] = Heaviest(MOST_SUBJECTS)
    for subject in stream:
        heaviest.add(subject)
    exact = {subject for subject, _ in Counter(stream).most_common(20)}
    return len(exact & {subject for subject, _ in heaviest.most_common(20)}) / 20


def memory() -> float:
    """Megabytes of the counters after a million subjects, each refused once."""
    tracemalloc.start()
    heaviest: Heaviest[tuple[str, str, str, str]] = Heaviest(MOST_SUBJECTS)
    for number in range(SUBJECTS):
        heaviest.add(("api.search", "ip-60s", "ip", f"2001:db8:{number:x}::/64"))
    taken = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    return taken
