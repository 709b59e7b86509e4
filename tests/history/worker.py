"""One process of a concurrent run: random operations from several threads, which are recorded with their replies."""

import random
import time
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from typing import Any
from uuid import uuid4

from flask_multilimit.engine import Decision, Limiter, Rule, hits_for, storage_from_uri
from flask_multilimit.engine.hits import Hits
from flask_multilimit.engine.rules import changed
from history.broken import Defect, scripts_of_this_process
from history.operations import Operation
from history.processes import by_threads

LIMITS = {
    "own": Rule(0.05, 8),
    "shared": Rule(0.15, 30),
    "fixed": Rule(0.08, 18, algorithm="fixed_window"),
    "counter": Rule(0.06, 14, algorithm="sliding_window_counter"),
    "tokens": Rule(0.1, 20, algorithm="token_bucket"),
    "meter": Rule(0.1, 20, algorithm="leaky_bucket"),
    "queue": Rule(0.1, 20, algorithm="leaky_bucket", max_delay=0.05),
    "even": Rule(0.1, 20, algorithm="gcra", burst=15),
}
"""Short enough for many windows in a run of half a second. A slow machine needs longer ones for refusals."""
SHADOW = Rule(0.03, 5)
SUBJECTS = ("ada", "bo")
COSTS = (1, 1, 1, 1, 1, 1, 2, 3, 0, 11)
EXACTLY_REFUNDED = {"sliding_window", "fixed_window", "sliding_window_counter"}
"""What a refund does to other algorithms depends on its instant, which no reply shows."""
LONGEST_PAUSE = 0.003


def plan(limits: tuple[str, ...], subject: str, cost: int, *, shadow: bool, slowness: int = 1) -> Hits:
    rules = {name: changed(LIMITS[name], time=slowness * LIMITS[name].time) for name in limits}
    hits = [hit for name, rule in rules.items() for hit in _hits_of(name, rule, subject, cost)]
    return Hits([*hits, *hits_for(SHADOW, scope="shadow", cost=min(cost, 3), shadow=True)] if shadow else hits)


def _hits_of(name: str, rule: Rule, subject: str, cost: int) -> Hits:
    return hits_for(rule, scope=name, subject=f"user:{subject if name == 'own' else ''}", cost=cost)


def run(
    url: str, seed: int, threads: int, times: int, defect: Defect | None, slowness: int, *, are_compiled: bool
) -> list[Operation]:
    """``times`` operations of each thread against the server at ``url``, by scripts of one kind, which may have a
    ``defect``. Windows last ``slowness`` times as long."""
    with scripts_of_this_process(are_compiled=are_compiled, defect=defect):
        limiter = Limiter(storage_from_uri(url, timeout=30))
        limiter.peek(plan(("own",), "ada", 1, shadow=False))
        recent: deque[Decision] = deque(maxlen=20)
        plans = cache(
            partial(plan, slowness=slowness)
        )  # new in each run, because the storage keeps the script of hits with them
        recorded = by_threads(seed, threads, lambda dice, _: _Client(limiter, plans, recent, dice).ask(times))
        limiter.close()
    return [operation for operations in recorded for operation in operations]


class _Client:
    """One thread, and its operations so far."""

    def __init__(
        self, limiter: Limiter, plans: Callable[..., Hits], recent: deque[Decision], dice: random.Random
    ) -> None:
        self._limiter, self._plans, self._recent, self._dice = limiter, plans, recent, dice
        self._asked: list[Operation] = []
        by_id: Callable[[], None] = lambda: self._check("repeat", check_id=uuid4())  # noqa: E731
        self._kinds: list[Callable[[], None]] = [self._check, self._peek, by_id, self._repeat, self._refund]

    def ask(self, times: int) -> list[Operation]:
        for _ in range(times):
            self._dice.choices(self._kinds, [70, 8, 6, 6, 10])[0]()
            time.sleep(self._dice.random() * LONGEST_PAUSE)
        return self._asked

    def _plan(self) -> Hits:
        limits = self._dice.sample(sorted(LIMITS), self._dice.choice([1, 2, 2, 3, 5]))
        subject, cost = self._dice.choice(SUBJECTS), self._dice.choice(COSTS)
        return self._plans(tuple(limits), subject, cost, shadow=self._dice.random() < 0.2)

    def _check(self, kind: str = "check", **options: Any) -> None:
        invoked = time.monotonic_ns()
        decision = self._limiter.check(self._plan(), **options)
        self._note(kind, invoked, decision)
        if decision.charges:
            self._recent.append(decision)

    def _peek(self) -> None:
        invoked = time.monotonic_ns()
        self._note("peek", invoked, self._limiter.peek(self._plan()))

    def _repeat(self) -> None:
        if not self._recent:
            return
        earlier = self._dice.choice(list(self._recent))
        invoked = time.monotonic_ns()
        self._note("repeat", invoked, self._limiter.check(earlier.hits, check_id=earlier.id))

    def _refund(self) -> None:
        try:
            decision = self._recent.popleft() if self._dice.random() < 0.5 else self._recent.pop()
        except IndexError:
            return
        charges = tuple(charge for charge in decision.charges if charge.hit.rule.algorithm in EXACTLY_REFUNDED)
        hits = tuple(charge.hit for charge in charges)
        invoked = time.monotonic_ns()
        self._limiter.refund(decision, hits)
        returned = time.monotonic_ns()
        if charges:
            self._asked.append(Operation("refund", invoked, returned, decision.check_id, hits, charges=charges))

    def _note(self, kind: Any, invoked: int, decision: Decision) -> None:
        returned, reply = time.monotonic_ns(), tuple(decision.reply)
        self._asked.append(Operation(kind, invoked, returned, decision.check_id, decision.hits, reply))
