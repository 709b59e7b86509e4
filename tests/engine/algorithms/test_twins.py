"""The twins in Python and Lua give the same replies to the same history, and brute force those of a sliding window."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple
from uuid import UUID

import pytest
import redis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from flask_multilimit.engine import Ban, Concurrent, Decision, Limiter, MemoryStorage, RedisStorage, Rule, hits_for
from flask_multilimit.engine.algorithms import ALGORITHMS
from flask_multilimit.engine.decision import Charge
from flask_multilimit.engine.reply import NOW, RESET_AFTERS, RETRY_AFTERS
from history.model import World
from history.operations import Kind, Operation
from support.clock import Clock
from support.rates import RATES
from support.server_clock import ServerClock, scripts_read_clock_of_test

pytestmark = pytest.mark.slow

LONGEST_MS = 400 * 86_400_000
SUBJECTS = ("ada", "bo")

histories = settings(
    max_examples=250,
    derandomize="CI" in os.environ,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


# Random steps


class Advance(NamedTuple):
    """Move the clock to an instant at which something could change, or a little before or after it."""

    what: str
    which: int
    parts: int
    beside: int


class Ask(NamedTuple):
    """A check or a peek of all rules, or of the first ``many``."""

    how: str
    subject: str
    cost: int
    many: int
    changed: bool
    settle: bool


class Again(NamedTuple):
    """Something about an earlier check: "settle" it at ``units``, "repeat" it with its id, "reset" what it charged."""

    how: str
    which: int
    units: int


def windows() -> st.SearchStrategy[float]:
    powers = st.integers(0, 34).flatmap(lambda power: st.integers(2**power, min(2 ** (power + 1), LONGEST_MS)))
    return (st.integers(1, 20) | powers | st.just(LONGEST_MS)).map(lambda milliseconds: milliseconds / 1000)


def counts() -> st.SearchStrategy[int]:
    return st.integers(1, 7) | st.sampled_from([13, 300, 1000, 999_999_937, 10**9])


@st.composite
def rules(draw: st.DrawFn, algorithms: Sequence[str]) -> Rule:
    time, count, algorithm = draw(windows()), draw(counts()), draw(st.sampled_from(algorithms))
    if algorithm not in RATES:
        return Concurrent(count, max(min(time, 86_400), 1))
    more: dict[str, Any] = {}
    if "lease" in ALGORITHMS[algorithm].PARAMETERS and time >= 1 and count >= 2 and draw(st.booleans()):
        more["lease"] = 2
    for name in sorted(ALGORITHMS[algorithm].PARAMETERS - {"lease"}):
        if draw(st.booleans()):
            more[name] = min(draw(windows()), time) if name == "max_delay" else draw(st.integers(1, count))
    return Rule(time, count, algorithm=algorithm, **more)


def plans(algorithms: Sequence[str]) -> st.SearchStrategy[list[Rule]]:
    return st.lists(rules(algorithms), min_size=1, max_size=6, unique_by=lambda rule: (rule.algorithm, rule.window_ms))


@st.composite
def bans(draw: st.DrawFn) -> Ban:
    time, most = sorted((draw(windows()), draw(windows())))
    factors = st.sampled_from([1, 1.000001, 1.1, 1.7, 2, 3, 1000]) | st.floats(1, 10)
    after = draw(st.sampled_from([1, 1, 2, 2, 3, 5, 1000]))
    return Ban(after=after, within=draw(windows()), time=time, factor=draw(factors), most=most)


def step(*, back: bool) -> st.SearchStrategy[Advance | Ask | Again]:
    instants = ["nothing", "window", "retry", "reset", "second"]
    backwards = ["back", "slip", "slip"]
    advance = st.builds(
        Advance,
        st.sampled_from([*instants, *backwards] if back else instants),
        st.integers(0, 5),
        st.sampled_from([1, 1, 1, 2, 3, 7]),
        st.sampled_from([0, 0, 0, 1, -1, 999]),
    )
    costs = st.sampled_from([1, 1, 1, 1, 2, 3, 5, 0]) | st.sampled_from([127, 129, 300])
    asks = st.builds(
        Ask,
        st.sampled_from(["check", "check", "check", "check", "peek"]),
        st.sampled_from(SUBJECTS),
        costs,
        st.sampled_from([6, 6, 1, 2]),
        st.sampled_from([False, False, False, True]),
        st.booleans(),
    )
    units = st.sampled_from([0, 0, 1, 2, 3, 10, 300, 2500])
    again = st.builds(Again, st.sampled_from(["settle", "settle", "repeat", "reset"]), st.integers(0, 5), units)
    return advance | asks | asks | again


# Playing them


@dataclass
class History:
    """Plays the same steps to all limiters, and in the model if there is one, and compares every reply."""

    plan: list[Rule]
    changed: list[Rule]
    clock: Clock
    limiters: list[Limiter]
    model: World | None = None
    decisions: list[list[Decision]] = field(default_factory=list)
    """The decisions of each check so far, one per limiter."""
    bans: tuple[Ban | None, Ban | None] = (None, None)
    """The ban of the plan, and of the changed plan."""
    shadow: bool = False
    settled: set[UUID] = field(default_factory=set)

    def play(self, steps: list[Advance | Ask | Again]) -> None:
        for step in steps:
            if isinstance(step, Advance):
                self._advance(step)
            elif isinstance(step, Ask):
                self._ask(step)
            elif self.decisions:
                self._again(step)

    def _advance(self, step: Advance) -> None:
        whole = self._duration(step)
        self.clock.now += max(whole // step.parts + step.beside, 0) if whole >= 0 else whole // step.parts

    def _duration(self, step: Advance) -> int:
        if step.what == "window":
            return self.plan[step.which % len(self.plan)].quota.window
        if step.what in {"retry", "reset"} and self.decisions:
            reply = self.decisions[-1][0].reply
            times = reply[RETRY_AFTERS] if step.what == "retry" else reply[RESET_AFTERS]
            due = [instant for instant in times if instant > 0] or [0]
            return max(due[step.which % len(due)] + reply[NOW] - self.clock.now, 0)
        return {"second": 1_000_000, "back": -30_000_000, "slip": -200_000 // (step.which + 1)}.get(step.what, 0)

    def _ask(self, step: Ask) -> None:
        rules, ban = (self.changed, self.bans[1]) if step.changed else (self.plan, self.bans[0])
        hits = hits_for(
            rules[: step.many],
            scope="s",
            subject=f"user:{step.subject}",
            cost=step.cost,
            settle=step.settle,
            ban=ban,
            shadow=self.shadow,
        )
        if step.how == "peek":
            self._compare("peek", [limiter.peek(hits) for limiter in self.limiters])
            return
        self._note([limiter.check(hits) for limiter in self.limiters])

    def _again(self, step: Again) -> None:
        decisions = self.decisions[step.which % len(self.decisions)]
        hits, check_id = decisions[0].hits, decisions[0].id
        if step.how == "settle":
            if decisions[0].charges and check_id not in self.settled:
                self._settle(self._latest(check_id), step.units)
        elif check_id in self.settled:
            return
        elif step.how == "repeat":
            again = zip(self.limiters, decisions, strict=True)
            self._note([limiter.check(hits, check_id=decision.id) for limiter, decision in again])
        else:
            for limiter in self.limiters:
                limiter.reset(hits)
            if self.model:
                self.model = self.model.without(hits)

    def _latest(self, check_id: UUID) -> list[Decision]:
        """A client that repeats a check has the decisions of its last attempt."""
        return next(each for each in reversed(self.decisions) if each[0].id == check_id)

    def _settle(self, decisions: list[Decision], units: int) -> None:
        self.settled.add(decisions[0].id)
        for limiter, decision in zip(self.limiters, decisions, strict=True):
            charges = tuple(charge._replace(units=units) for charge in decision.charges)
            limiter.storage.settle(decision.id, charges)
        if self.model:
            self._told("settle", decisions[0], charges)

    def _note(self, decisions: list[Decision]) -> None:
        self._compare("repeat", decisions)
        self.decisions.append(decisions)

    def _compare(self, kind: Kind, decisions: list[Decision]) -> None:
        first, *others = [decision.reply for decision in decisions]
        for other in others:
            assert list(other) == list(first)
        if self.model:
            assert tuple(first) == self._told(kind, decisions[0])

    def _told(self, kind: Kind, decision: Decision, charges: tuple[Charge, ...] = ()) -> tuple[int, ...]:
        """The reply of the model, which goes on with the world after it."""
        assert self.model
        asked = Operation(kind, 0, 0, decision.check_id, decision.hits, (self.clock.now,), charges)
        reply, self.model = self.model.after(asked)
        return reply


@dataclass(frozen=True)
class Game:
    """Rules, the changed counts that some checks use, and the steps."""

    plan: list[Rule]
    counts: list[int]
    steps: list[Advance | Ask | Again]

    @property
    def changed(self) -> list[Rule]:
        """The same keys, other counts; a queue keeps its own."""
        return [
            rule if rule.max_delay else Rule(rule.time, count, algorithm=rule.algorithm)
            for rule, count in zip(self.plan, self.counts, strict=False)
        ]

    def play(
        self,
        client: redis.Redis,
        compile_after: float,
        model: World | None = None,
        bans: tuple[Ban | None, Ban | None] = (None, None),
        *,
        shadow: bool = False,
    ) -> None:
        client.flushall()
        clock = ServerClock(client)
        limiters = [Limiter(RedisStorage(client)), Limiter(MemoryStorage(clock))]
        try:
            with scripts_read_clock_of_test(compile_after=compile_after):
                History(self.plan, self.changed, clock, limiters, model, bans=bans, shadow=shadow).play(self.steps)
        finally:
            for limiter in limiters:
                limiter.close()


def games(plans: st.SearchStrategy[list[Rule]], *, back: bool = False) -> st.SearchStrategy[Game]:
    steps = st.lists(step(back=back), min_size=5, max_size=40)
    return st.builds(Game, plans, st.lists(counts(), min_size=6, max_size=6), steps)


each_script = pytest.mark.parametrize("compile_after", [inf, 0], ids=["generic", "compiled"])


@each_script
@histories
@given(games(plans(list(ALGORITHMS))))
def test_python_and_lua_give_the_same_replies_to_any_history(
    redis_client: redis.Redis, compile_after: float, game: Game
) -> None:
    game.play(redis_client, compile_after)


@pytest.mark.usefixtures("_never_forgetting")
@each_script
@histories
@given(games(plans(list(ALGORITHMS)), back=True))
def test_python_and_lua_give_the_same_replies_when_the_clock_steps_back(
    redis_client: redis.Redis, compile_after: float, game: Game
) -> None:
    game.play(redis_client, compile_after)


@each_script
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(histories, max_examples=60)
@given(data=st.data())
def test_python_and_lua_of_each_algorithm_give_the_same_replies(
    redis_client: redis.Redis, compile_after: float, algorithm: str, data: st.DataObject
) -> None:
    data.draw(games(plans([algorithm]))).play(redis_client, compile_after)


@each_script
@histories
@given(games(plans(["sliding_window"])))
def test_sliding_window_agrees_with_brute_force(redis_client: redis.Redis, compile_after: float, game: Game) -> None:
    game.play(redis_client, compile_after, World())


small_plans = st.lists(st.integers(1, 3), min_size=1, max_size=2).map(
    lambda counts: [Rule(60 * number, count) for number, count in enumerate(counts, 1)]
)
"""Plans that refuse soon."""


@each_script
@histories
@given(games(small_plans | plans(list(ALGORITHMS))), bans(), st.booleans())
def test_python_and_lua_of_bans_give_the_same_replies(
    redis_client: redis.Redis, compile_after: float, game: Game, ban: Ban, shadow: bool
) -> None:
    game.play(redis_client, compile_after, bans=(ban, ban), shadow=shadow)


@pytest.mark.usefixtures("_never_forgetting")
@each_script
@histories
@given(games(small_plans) | games(small_plans, back=True), bans(), bans())
def test_python_and_lua_of_bans_give_the_same_replies_when_bans_and_clock_change(
    redis_client: redis.Redis, compile_after: float, game: Game, ban: Ban, changed: Ban
) -> None:
    other = Ban(changed.after, ban.within, changed.time, changed.factor, changed.most)  # of the same key
    game.play(redis_client, compile_after, bans=(ban, other))
