"""Every algorithm against its definition in exact rationals, under random traffic and rules; alone, and mixed."""

from dataclasses import dataclass
from math import ceil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.algorithms.conftest import Fresh
from engine.algorithms.oracles import ORACLES, Answer, Oracle, answer, oracle_for
from flask_multilimit.engine import Decision, Hit, Rule, hits_for
from flask_multilimit.engine.algorithms import ALGORITHMS
from flask_multilimit.engine.reply import DELAY, RESET_AFTER, RETRY_AFTER, standings_of
from support.bench import Bench

pytestmark = pytest.mark.slow

LONGEST = 400 * 86_400
SHAPES = list(ORACLES)

properties = settings(suppress_health_check=list(HealthCheck), print_blob=True)


# Random input

windows = st.one_of(
    st.integers(1, 20).map(lambda ms: ms / 1000),
    st.sampled_from([0.001, 1, 60, 86_400, LONGEST]),
    st.integers(1, LONGEST * 1000).map(lambda ms: ms / 1000),
)
counts = st.one_of(st.integers(1, 12), st.sampled_from([1, 7, 999_999_937, 10**9]), st.integers(1, 10**9))


def algorithm_of(shape: str) -> str:
    return "leaky_bucket" if shape == "leaky_queue" else shape


def takes_burst(shape: str) -> bool:
    return "burst" in ALGORITHMS[algorithm_of(shape)].PARAMETERS


@st.composite
def rules(draw: st.DrawFn, shape: str) -> Rule:
    window, count = draw(windows), draw(counts)
    if not takes_burst(shape):
        return Rule(window, count, algorithm=shape)
    most = min(int(LONGEST * count / window), 10**9)
    bursts = st.one_of(st.integers(1, min(12, most)), st.integers(1, most))
    burst = draw(st.none() | bursts)
    if shape != "leaky_queue":
        return Rule(window, count, algorithm=shape, burst=burst)
    longest = min(LONGEST, int(9 * 10**9 * window / count))
    delays = st.one_of(st.integers(1, 50).map(lambda ms: ms / 1000), st.integers(1, max(longest, 1)))
    delay = draw(delays if longest > 0 else st.just(0.001))
    return Rule(window, count, algorithm="leaky_bucket", burst=burst, max_delay=delay)


@dataclass(frozen=True)
class Step:
    """Wait as `kind` says, then ask for a part of the rule's burst."""

    kind: str
    amount: float
    cost: float

    def gap(self, last: Decision | None, interval: int) -> int:
        """Microseconds to wait: near an instant the last reply has promised, or a share of an interval."""
        promised = {"retry": RETRY_AFTER, "reset": RESET_AFTER}.get(self.kind)
        if promised and last is not None and last.reply[promised] > 0:
            return max(last.reply[promised] + round(self.amount * 2) - 1, 0)
        return round(self.amount * interval)

    def cost_for(self, rule: Rule) -> int:
        if self.cost <= 1:
            return round(self.cost)
        share = (self.cost - 1) * rule.quota.burst
        return min(ceil(share), rule.implementation.MAX_COST)


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["retry", "retry", "reset", "interval", "interval", "microseconds"]),
        st.floats(0, 1.5).map(lambda x: round(x, 3)),
        st.one_of(st.just(1.0), st.sampled_from([0.0, 1.0, 1.3, 1.5, 2.0, 2.2])),
    ),
    min_size=1,
    max_size=25,
)


# What is expected


def oracle_of(rule: Rule) -> Oracle:
    max_delay = None if rule.max_delay is None else round(rule.max_delay * 1_000_000)
    return oracle_for(rule.algorithm, rule.window_ms * 1000, rule.count, rule.burst, max_delay)


class Model:
    """What a storage should answer: one oracle per key, all or nothing."""

    def __init__(self) -> None:
        self.oracles: dict[str, Oracle] = {}

    def check(self, hits: tuple[Hit, ...], now: int) -> tuple[list[Answer], int]:
        oracles = [self.oracles.setdefault(hit.key, oracle_of(hit.rule)) for hit in hits]
        before = [answer(oracle, now, hit.cost) for oracle, hit in zip(oracles, hits, strict=True)]
        if not all(each.allowed for each in before):
            return before, -1
        delay = max(oracle.delay(now) if hit.cost else 0 for oracle, hit in zip(oracles, hits, strict=True))
        for oracle, hit in zip(oracles, hits, strict=True):
            if hit.cost:
                oracle.charge(now, hit.cost)
        after = [answer(oracle, now, 0) for oracle in oracles]
        return after, ceil(delay)


def answers_of(decision: Decision) -> list[Answer]:
    return [
        Answer(retry_after == 0, max(remaining, 0), retry_after, reset_after)
        for remaining, retry_after, reset_after in standings_of(decision.reply)
    ]


def assert_answers_as_the_oracles(bench: Bench, model: Model, hits: tuple[Hit, ...]) -> Decision:
    decision = bench.limiter.check(hits)
    expected, delay = model.check(hits, bench.clock.now)
    assert answers_of(decision) == expected, f"costs {[hit.cost for hit in hits]} -> {decision.reply}"
    assert decision.allowed == (delay >= 0)
    if decision.allowed:
        assert decision.reply[DELAY] == delay
    return decision


@pytest.mark.parametrize("shape", SHAPES)
@properties
@given(data=st.data())
def test_algorithm_gives_the_replies_of_its_definition_in_exact_rationals(
    fresh: Fresh, shape: str, data: st.DataObject
) -> None:
    bench, model = fresh(), Model()
    rule = data.draw(rules(shape))
    interval = max(rule.window_ms * 1000 // rule.count, 1)
    longest = rule.window_ms * 1000

    last = None
    for step in data.draw(steps):
        bench.clock.now += step.gap(last, {"interval": interval, "microseconds": 2}.get(step.kind, longest))
        plan = hits_for(rule, scope="oracle", cost=step.cost_for(rule))
        last = assert_answers_as_the_oracles(bench, model, plan)


def small_rules(shape: str) -> st.SearchStrategy[Rule]:
    """Rules that a few requests exhaust, of windows that overlap."""
    return st.builds(
        Rule,
        st.sampled_from([0.007, 0.01, 0.03]),
        st.integers(1, 9),
        algorithm=st.just(algorithm_of(shape)),
        burst=st.integers(2, 9) if takes_burst(shape) else st.none(),
        max_delay=st.sampled_from([0.004, 0.02]) if shape == "leaky_queue" else st.none(),
    )


@properties
@given(data=st.data())
def test_mixed_algorithms_are_charged_all_or_nothing_each_by_its_definition(fresh: Fresh, data: st.DataObject) -> None:
    bench, model = fresh(), Model()
    limits = [
        (f"s{number}", data.draw(small_rules(shape)))
        for number, shape in enumerate(data.draw(st.lists(st.sampled_from(SHAPES), min_size=2, max_size=7)))
    ]
    last = None
    for step in data.draw(steps):
        bench.clock.now += step.gap(last, 2000)
        asked = data.draw(st.lists(st.sampled_from(limits), min_size=1, unique_by=lambda limit: limit[0]))
        plan = tuple(
            hit
            for subject, rule in asked
            for hit in hits_for(
                rule, scope="oracle", subject=f"user:{subject}", cost=data.draw(st.sampled_from([1, 1, 1, 0, 2]))
            )
        )
        last = assert_answers_as_the_oracles(bench, model, plan)
