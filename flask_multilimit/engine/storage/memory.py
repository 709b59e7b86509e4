"""``memory://``: quotas in this process. Each check evaluates and charges all hits under one lock."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Lock
from time import monotonic, monotonic_ns, time_ns
from typing import Any
from uuid import UUID

from ..algorithms import calendar, concurrency, sliding_window
from ..algorithms.base import AHEAD, Unit
from ..decision import NOT_SETTLED, Charge, Decision, DecisionFields, decision_of
from ..forks import Lazy, lock_for_forks
from ..hits import BanHit, Hit, bans_of, calendars_of, memoized, new_id
from ..reply import ALLOWED, NOW, Reply, head, standing_of, start_of
from ..rules import Rule
from ..text import SafeLogger
from ..threads import Beat
from .base import ORIGIN, Lost, Slot, StoredKey, check_clock
from .evaluate import decide, evaluate_and_charge, settle
from .forgetting import MOST_KEYS, Forgetting
from .tallies import Tallies, TalliesInMemory, Tally

SWEEPS = 2
"""How many due keys are looked at for each hit of a check: more than a hit adds, so expired keys do not pile up."""
QUIET_SECONDS = 3600.0
"""The least time between two warnings that memory is full."""


class MemoryStorage:
    """Quotas in the memory of this process. Gives the reply that Redis would give to the same history, and keeps
    nothing beyond its window.

    ``clock`` returns microseconds, from any origin (with calendars, Unix time); ``None``: the clock of the process,
    which follows the clock of the system, if that was set, at the next check of a calendar. Each check forgets a few
    keys whose quota is full again, without a thread or timer. Clients can invent any number of keys: beyond
    ``most_keys``, those whose quota is full again soonest are forgotten first, and those that refuse now last.
    ``most_keys`` is 100,000, unless the :class:`Layers` of a limiter say otherwise.
    """

    shared = False

    def __init__(self, clock: Callable[[], int] | None = None, *, most_keys: int | None = None) -> None:
        if clock is not None:
            check_clock(clock)
        self.clock = clock
        self._origin = ORIGIN
        self._after_fork_in_child()
        lock_for_forks(self, inner=True)
        self._states: dict[str, Any] = {}
        self._rules: dict[str, Rule] = {}  # the rule that last wrote each state
        self._costs: dict[str, int] = {}  # the last cost of each key that was above 1
        self._warning = Lazy(lambda: Beat(self._warn_of_full_memory, name="multilimit-memory"))
        self._logger = SafeLogger()
        self._quiet_until = 0.0
        self._forgetting = Forgetting(MOST_KEYS if most_keys is None else most_keys)
        self._has_default_most = most_keys is None
        self._tallies = TalliesInMemory()
        self._latest = 0  # no state is later, except those of slots

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        # `with` takes three times as long, and a signal handler may raise between acquire() and `try`, but not here.
        for _ in self._acquiring:
            try:
                now = self._origin + monotonic_ns() // 1000 if self.clock is None else self.clock()
                if now >= self._forgetting.first_due:
                    self._sweep(now, SWEEPS * len(hits))
                try:  # as memoized() does, with one call fewer: every check comes here
                    fast_path = hits.cache[_fast_path]  # type: ignore[attr-defined]
                except (AttributeError, KeyError):
                    fast_path = memoized(hits, _fast_path)
                if fast_path is not None and check_id is None and now >= self._latest:
                    charge, units, blank, refusable = fast_path
                    new = new_id()
                    reply = blank.copy()
                    reply[NOW] = now
                    new_keys = charge(self._states, units, now, new, reply)
                    if new_keys is not None:
                        self._latest = now
                        if new_keys:
                            self._record_new(hits, now, new_keys)
                        break
                    if refusable and sliding_window.refuse_units(self._states, refusable, now, reply):
                        reply[ALLOWED] = 0
                        break
                    reply = evaluate_and_charge(hits, self._states, now, new, charging=True, stepped_back=False)
                    decision = decision_of(new, hits, reply, "memory")
                else:
                    now = self._now_for(hits, now)
                    decision = decide(hits, self._states, now, check_id, decided_by="memory")
                if decision.reply[ALLOWED] or bans_of(hits):
                    self._record_written(hits, now, decision.reply)
                return decision
            finally:
                self._lock.release()
        made: Any = DecisionFields()  # as decision_of() does, with one call fewer
        made.check_id = new
        made.hits = hits
        made.reply = reply
        made.decided_by = "memory"
        made.settled = NOT_SETTLED
        made.ahead = None
        made.__class__ = Decision
        return made  # type: ignore[no-any-return]

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        with self._lock:
            return decide(hits, self._states, self._now_for(hits), charging=False, decided_by="memory")

    def check_many(self, many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        each_id: Sequence[UUID | None] = ids or [None] * len(many)
        return [self.check(hits, id_) for hits, id_ in zip(many, each_id, strict=True)]

    def settle(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        with self._lock:
            now = self._now_for(tuple(charge.hit for charge in charges))
            settle(self._states, check_id, charges, now)
            for hit, _, units in charges:
                if units > hit.cost and hit.key in self._states:  # the key may be new
                    self._record_rule(hit.rule, hit.key, now + hit.rule.quota.window, now)
                    self._latest = max(self._latest, now)

    def release(self, slots: Sequence[Slot], lost: Lost | None = None) -> None:  # noqa: ARG002 - nothing is lost
        with self._lock:
            now = self._now()
            for check_id, hit in slots:
                state, rule = self._states.get(hit.key), hit.rule
                if state is not None:
                    by = rule.implementation
                    self._states[hit.key] = by.settle(state, rule.quota, hit.cost, 0, now, now, check_id)

    def renew(self, slots: Sequence[Slot]) -> None:
        with self._lock:
            now = self._now()
            for check_id, hit in slots:
                state = self._states.get(hit.key)
                self._states[hit.key] = concurrency.renew(state, hit.rule.quota, hit.cost, now, check_id)
                self._record_rule(hit.rule, hit.key, now + hit.rule.quota.window, now)

    def reset(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                if key in self._states:
                    self._states[key] = None  # the key stays until its turn to be forgotten: it must not get two turns

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def keys(self, prefix: str, limit: int | None = None, *, containing: str = "") -> list[StoredKey]:
        with self._lock:
            now = self._now()
            matching = (key for key in self._rules if key.startswith(prefix) and containing in key[len(prefix) :])
            keys = sorted(key for key in matching if self._states[key] is not None)[:limit]
            return [StoredKey(key, max(self.reset_after(key, now), 0) / 1_000_000) for key in keys]

    def tally(self, tallies: Sequence[Tally], *, source: str, number: int) -> float:
        return self._tallies.tally(tallies, source=source, number=number)

    def tallies(self, keys: Sequence[str]) -> Tallies:
        return self._tallies.tallies(keys)

    def sweep(self, most: int) -> None:
        """Forget keys whose quota is full again, as every check does. Looks at ``most`` keys at most."""
        with self._lock:
            self._sweep(self._now(), most)

    def reset_after(self, key: str, now: int) -> int:
        """Microseconds until the quota of a known ``key`` is full again; a calendar is kept longer."""
        state, rule = self._states[key], self._rules[key]
        algorithm, quota = rule.implementation, rule.longest_quota
        if quota.periods is not None:
            return calendar.kept_for(state, quota, now)
        return algorithm.reset_after(state, quota, now, algorithm.evaluate(state, quota, 0, now)[3])

    def refuses_for(self, key: str, now: int) -> int:
        """Microseconds until a known ``key`` allows the cost of its earlier charges again; 0 if it does now."""
        rule, cost = self._rules[key], self._costs.get(key, 1)
        retry_after = rule.implementation.evaluate(self._states[key], rule.quota, cost, now)[1]
        return self.reset_after(key, now) if retry_after < 0 else retry_after  # below 0: not known, or never

    def keep_at_most(self, keys: int, logger: logging.Logger | None) -> None:
        """Keep at most this many ``keys``, unless ``most_keys`` was given, and warn by ``logger`` if they are not
        enough."""
        self._logger = SafeLogger(logger)
        if self._has_default_most:
            self._forgetting.most = keys

    def __len__(self) -> int:
        return len(self._states)

    def _now(self) -> int:
        return self._origin + monotonic_ns() // 1000 if self.clock is None else self.clock()

    def _now_for(self, hits: tuple[Hit, ...], now: int | None = None) -> int:
        """``now``, by default the clock's. Before a check of a calendar, the clock follows the clock of the system if
        that was set, which makes it another instant."""
        if self.clock is None and calendars_of(hits):
            origin = (time_ns() - monotonic_ns()) // 1000
            if abs(origin - self._origin) > AHEAD:
                self._origin, now = origin, None
        return self._now() if now is None else now

    def _after_fork_in_child(self) -> None:
        self._lock = Lock()
        self._acquiring = iter(self._lock.acquire, False)  # acquires it at each step, and never ends

    def _record_written(self, hits: tuple[Hit, ...], now: int, reply: Reply) -> None:
        """Record the rules and costs of the keys that a check with this ``reply`` has written: those that it charged,
        and bans, of which a refusal may be a strike."""
        self._latest = max(self._latest, now)
        rules = self._rules
        for place, hit in enumerate(hits):
            if hit.cost <= 1 and rules.get(hit.key) is hit.rule:  # nearly always
                continue
            _, retry_after, reset_after = standing_of(reply, place)
            if not isinstance(hit, BanHit) and (retry_after or not hit.cost or not reply[ALLOWED]):
                continue
            if hit.cost > 1:
                self._costs[hit.key] = hit.cost
            if rules.get(hit.key) is not hit.rule and self._states.get(hit.key) is not None:
                self._record_rule(hit.rule, hit.key, now + reset_after, now)

    def _record_new(self, hits: tuple[Hit, ...], now: int, keys: Sequence[str]) -> None:
        """As :meth:`_record_written` for new ``keys`` of sliding windows. The check of a new client takes a fifth less
        time."""
        for hit in hits:
            if hit.key in keys:
                self._record_rule(hit.rule, hit.key, now + hit.rule.quota.window, now)

    def _record_rule(self, rule: Rule, key: str, due: int, now: int) -> None:
        is_known, self._rules[key] = key in self._rules, rule
        if is_known:
            return
        window = rule.quota.window
        if self._forgetting.add(key, window, due + rule.longest_quota.window - window):
            self._forget(self._forgetting.surplus(self, now))
            if monotonic() >= self._quiet_until:
                self._quiet_until = monotonic() + QUIET_SECONDS
                self._warning().wake()  # in a thread: a log handler may ask this storage, whose lock is held here

    def _warn_of_full_memory(self) -> None:
        self._logger.warning(
            "Rate limits: memory is full (%d keys), so the keys whose quota is full again soonest are forgotten early. "
            "Raise MULTILIMIT_MEMORY_KEYS, or keep quotas on a server.",
            self._forgetting.most,
        )

    def _sweep(self, now: int, most: int) -> None:
        self._forget(self._forgetting.sweep(self, now, most))

    def _forget(self, keys: Sequence[str]) -> None:
        for key in keys:
            del self._states[key], self._rules[key]
            self._costs.pop(key, None)


_FastPath = tuple[Callable[..., Sequence[str] | None], Any, list[int], tuple[Unit, ...]]
"""How to charge one unit of each of some sliding windows in one pass (unpacking a named tuple would take three times as
long):

- :func:`.sliding_window.charge_unit`, :func:`.sliding_window.charge_units` or :func:`_charge_unless_banned`
- the units to charge
- the reply if all are charged, without the instant and what remains
- the units to refuse in one pass, too; none if a refusal may be a strike, or that of a shadow
"""


def _fast_path(hits: tuple[Hit, ...]) -> _FastPath | None:
    bans = bans_of(hits)
    places = {ban.place for ban in bans}
    rules = [(place, hit) for place, hit in enumerate(hits) if place not in places]
    if any(hit.rule.implementation is not sliding_window or hit.cost != 1 for _, hit in rules):
        return None
    units = tuple([(hit.key, hit.rule.quota, start_of(place)) for place, hit in rules])
    reply = head(0)
    for place, hit in enumerate(hits):
        reply += (hit.rule.quota.count, 0, 0) if place in places else (0, 0, hit.rule.quota.window)
    if bans:
        return _charge_unless_banned, (frozenset([ban.hit.key for ban in bans]), units), reply, ()
    refusable = () if any(hit.shadow for hit in hits) else units
    if len(units) == 1:
        return sliding_window.charge_unit, units[0], reply, refusable
    return sliding_window.charge_units, units, reply, refusable


def _charge_unless_banned(
    states: dict[str, Any], units: tuple[frozenset[str], Any], now: int, check_id: bytes, reply: list[int]
) -> Sequence[str] | None:
    """:func:`.sliding_window.charge_units`, unless there are strikes or a ban."""
    ban_keys, charged = units
    if not states.keys().isdisjoint(ban_keys):
        return None
    return sliding_window.charge_units(states, charged, now, check_id, reply)
