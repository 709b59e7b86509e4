"""Limiter, the entry point of the engine: check, peek, settle and reset, without Flask."""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from math import inf, isfinite
from typing import Any, cast
from uuid import UUID

from .algorithms.base import COUNTED
from .decision import NOT_SETTLED, Charge, Decision, require_decision
from .errors import ConfigurationError, check_iterable, is_number, require
from .forks import LateLock
from .hits import PEEK_ID, Hit, Hits, checked_hits
from .reply import as_allowed, head
from .rules import LONGEST
from .slots import KEEPER, require_slots, slots_of
from .storage import Health, Layers, MemoryStorage, Storage, is_storage, layers_of, storage_from, with_leases
from .threads import interrupts

MOST_SETTLEMENTS = 10_000
"""The most checks whose settlements a limiter remembers. Beyond that, it forgets the oldest."""
RESET_TOGETHER = 500
"""The most keys that one command resets."""
SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.25
"""Seconds between two attempts to get a slot, at first and later."""


def _sleep(seconds: float) -> None:
    time.sleep(seconds)  # that of the module now: gevent may have replaced it after the import


class Limiter:
    """Asks a storage whether hits may pass, all or nothing.

    ``storage`` is a URI (``memory://``, ``redis://localhost``), a client object of ``redis``, or a
    :class:`Storage`. For a URI or a client, the limiter adds the layers that views have: a guard for failures of the
    storage, a deny cache, and leases; ``layers`` are their options. A :class:`Storage` is used as it is unless
    ``layers`` are given. :meth:`acquire` uses ``sleep`` and ``monotonic``. Thread-safe.

    .. code-block:: python

        limiter = Limiter("redis://localhost")
        decision = limiter.check(hits_for("5/second; 100/minute", scope="send-mail", subject=f"user:{user_id}"))
        if not decision.allowed:
            raise TryLater(decision.retry_after)
    """

    def __init__(
        self,
        storage: Any = "memory://",
        *,
        layers: Layers | None = None,
        sleep: Callable[[float], None] = _sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        require(layers is None or isinstance(layers, Layers), "layers", layers, "Layers(...)")
        for name, function in (("sleep", sleep), ("monotonic", monotonic)):
            require(callable(function), name, function, f"a callable, such as time.{name}")
        if layers is None and not is_storage(storage):
            layers = Layers()
        innermost = storage_from(storage)
        self.layers: Layers | None = layers
        """The options of the layers that this limiter adds to its storage; ``None``: it adds none."""
        self._storage = innermost if layers is None else layers.around(innermost)
        self._to_add = [with_leases] if layers is not None and innermost.shared else []
        self._sleep = sleep
        self._monotonic = monotonic
        self._settled = _Settlements()
        self._keeps_slots: Any = None  # the storage, once it is known to keep slots; leases may be added around it
        self._apply_overrides: Callable[[Hits], Hits | None] | None = None

    def follow(self, apply_overrides: Callable[[Hits], Hits | None]) -> None:
        """Let ``apply_overrides`` change hits that come from :func:`hits_for` before they are checked; if it returns
        ``None``, nothing is limited. For :func:`.follow_control`."""
        self._apply_overrides = apply_overrides

    @property
    def follows(self) -> bool:
        """Whether overrides change what is checked."""
        return self._apply_overrides is not None

    def with_overrides(self, hits: Hits) -> Hits | None:
        """The hits to check in place of ``hits``; ``None`` if nothing is limited."""
        return hits if self._apply_overrides is None or not hits.revisable else self._apply_overrides(hits)

    @property
    def storage(self) -> Storage:
        """The storage that keeps the quotas, without its layers."""
        *_, innermost = layers_of(self._storage)
        return innermost

    @property
    def outermost(self) -> Storage:
        """The storage with its layers, which checks ask."""
        return self._storage

    def health(self) -> Health:
        """The state of the storage as far as this process knows, without asking it. Raises :class:`ConfigurationError`
        if the storage is shared and has no guard, which would count its failures."""
        for layer in layers_of(self._storage):
            if hasattr(layer, "health"):
                return cast("Health", layer.health())
        if not self.storage.shared:
            return Health.of_this_process()
        raise ConfigurationError(
            f"a {type(self.storage).__name__} is not guarded: give Limiter a GuardedStorage around it"
        )

    def check(self, hits: Iterable[Hit], *, check_id: UUID | None = None) -> Decision:
        """Charge every hit if all of them allow, otherwise none, in one round trip.

        A check that is repeated with its ``check_id`` (``decision.id``, or one of your own) is charged once if one of
        its rules is a ``sliding_window``, which remembers ids for the length of its window. Raises
        :class:`StorageError`, and :class:`ConfigurationError` for no hits or two with one key.

        To charge at the end of a generator, check at its beginning and :meth:`settle` at its end: garbage collection
        may end a dropped generator inside of another check in memory, for which a check would wait forever.
        """
        if check_id is not None:
            require(isinstance(check_id, UUID), "check_id", check_id, "a UUID: the id of a Decision, or uuid4()")
            self._settled.forget(check_id.bytes)  # its new charges can be settled again
        if not isinstance(hits, Hits):
            hits = Hits(hits)
        if self._apply_overrides is not None and hits.revisable:
            changed = self._apply_overrides(hits)
            if changed is None:
                return decide_unlimited(hits)
            hits = changed
        if self._to_add and hits.leased:
            self._add_leases()
        return self._storage.check(hits, check_id)

    def peek(self, hits: Iterable[Hit]) -> Decision:
        """What :meth:`check` would answer now, without charging anything."""
        hits = hits if isinstance(hits, Hits) else Hits(hits)
        revised = self.with_overrides(hits)
        return decide_unlimited(hits) if revised is None else self._storage.peek(revised)

    def check_many(self, many: Iterable[Iterable[Hit]]) -> list[Decision]:
        """Decide several checks in one round trip, each of them all or nothing: for batch jobs."""
        check_iterable("many", many, "a list of hits")
        checks = [hits if isinstance(hits, Hits) else Hits(hits) for hits in many]
        revised = [self.with_overrides(hits) for hits in checks]
        limited = [hits for hits in revised if hits is not None]
        if self._to_add and any(hits.leased for hits in limited):
            self._add_leases()
        decisions = iter(self._storage.check_many(limited) if limited else ())
        return [
            decide_unlimited(hits) if limited_hits is None else next(decisions)
            for hits, limited_hits in zip(checks, revised, strict=True)
        ]

    def _add_leases(self) -> None:
        with suppress(IndexError):  # another thread adds them
            self._storage = self._to_add.pop()(self._storage)

    def acquire(self, hits: Iterable[Hit], *, timeout: float) -> Decision:
        """:meth:`check`, and if refused sleep until it can pass, at most ``timeout`` seconds in all.

        Each attempt is a round trip; there may be several if others take the units that become free. It also sleeps for
        the ``delay`` of a queue. Returns the last decision, which is refused or has a ``delay`` left if the time was
        not enough. A ``timeout`` of 0 or less does not wait, ``math.inf`` waits as long as it takes.
        """
        hits = hits if isinstance(hits, Hits) else Hits(hits)
        return self._wait(self.check(hits), hits, timeout)

    def wait(self, decision: Decision, *, timeout: float) -> Decision:
        """As :meth:`acquire`, after a first check whose ``decision`` is given."""
        require_decision(decision)
        return self._wait(decision, decision.hits, timeout)

    def _wait(self, decision: Decision, hits: tuple[Hit, ...], timeout: float) -> Decision:
        """:meth:`wait`, with the ``hits`` of the first check before overrides, which may be others at the next one."""
        holds = is_number(timeout) and (timeout <= LONGEST or timeout == inf)
        require(holds, "timeout", timeout, "seconds; math.inf waits as long as it takes")
        deadline = self._monotonic() + timeout
        pauses = _pauses()
        while not decision.allowed:
            left, pause = deadline - self._monotonic(), decision.retry_after
            if decision.waits_for_slot:  # a free slot goes to the first request that asks
                pause = max(decision.refused_for, min(next(pauses), left))
            if not isfinite(pause) or pause > left or left <= 0:
                break
            self._sleep(pause)
            decision = self.check(hits)
        if decision.delay and self._monotonic() + decision.delay <= deadline:
            self._sleep(decision.delay)
        return decision

    def settle(self, decision: Decision, units: int, hits: Iterable[Hit] | None = None) -> Decision:
        """Replace what the check behind ``decision`` has charged to each quota, or to those of ``hits``, by ``units``,
        the real cost. One round trip.

        If it charged too much, the rest is given back where it was charged: exactly by ``sliding_window`` and, within
        the windows they count, by ``fixed_window`` and ``sliding_window_counter``. The other algorithms give back the
        part of the charge that has not come back by itself since, which is exact without requests in between, and less
        otherwise. (After a reset since then, they take it from the charges of other checks.) If it charged too little,
        the rest is charged now, even beyond the count: a debt, which refuses later checks until it has left the window.

        A charge is settled once: of the last 10,000 checks, a second settlement changes nothing. A refused check has
        charged nothing. Slots of :class:`.Concurrent` rules stay held unless ``units`` is 0, and a ``sliding_window``
        is charged at most 10,000 units. Raises :class:`ConfigurationError` unless ``units`` is a whole number from 0 to
        10**9, and for rules with a lease that are not settled at 0; :class:`StorageError` if the storage gave no
        answer: then the charge stays as it was, or is settled, but never settled twice. Returns the decision after the
        settlement. Called while garbage is collected, by a generator that was dropped, it lets a thread settle soon.
        """
        require_decision(decision)
        holds = type(units) is int and 0 <= units <= COUNTED
        require(holds, "units", units, f"a whole number from 0 to {COUNTED}")
        checked = decision.hits
        apply_overrides = getattr(checked, "apply_overrides", None)  # lost if the decision was pickled
        hits = checked if hits is None else self._with_stand_ins(checked_hits(hits), checked, apply_overrides)
        return self.settle_each(decision, {hit.key: units for hit in hits})

    def _with_stand_ins(
        self, hits: tuple[Hit, ...], among: object, apply_overrides: Callable[[Hits], Hits | None] | None = None
    ) -> tuple[Hit, ...]:
        """``hits``, which are ``among`` others, and those that are checked in their place because of overrides: those
        of an earlier check, or else the current ones."""
        if not hits or (apply_overrides is None and self._apply_overrides is None):
            return hits
        named = Hits({hit.key: hit for hit in hits}.values(), scope=getattr(among, "scope", None))
        return (*hits, *((apply_overrides or self.with_overrides)(named) or ()))

    def settle_each(self, decision: Decision, units: Mapping[str, int]) -> Decision:
        """As :meth:`settle`, with the units of each key."""
        charges = [
            Charge(hit, until, min(units[hit.key], hit.rule.implementation.MAX_COST))
            for hit, until, _ in decision.charges
            if hit.key in units and not (units[hit.key] and hit.rule.holds_slots)
        ]
        for hit, _, real in charges:
            if hit.rule.lease is not None and real not in {0, hit.cost}:
                raise ConfigurationError(
                    f"{hit.rule} has a lease, whose units were charged in advance: leave out lease to settle at {real}"
                )
        if interrupts():  # a generator that was dropped: this thread may hold a lock that this needs
            KEEPER.call_soon(partial(self._settle_charges, decision, charges))
            return decision.after_settlement({charge.hit.key: charge.units for charge in charges})
        return self._settle_charges(decision, charges)

    def _settle_charges(self, decision: Decision, charges: Sequence[Charge]) -> Decision:
        before, after = self._settled.add(decision.check_id, {charge.hit.key: charge.units for charge in charges})
        charges = [charge for charge in charges if charge.hit.key not in before]
        if changed := [charge for charge in charges if charge.units != charge.hit.cost]:
            self._storage.settle(decision.id, changed)
            if slots := {charge.hit.key for charge in changed if charge.hit.rule.holds_slots}:
                KEEPER.forget(decision, slots)
        return decision.after_settlement(after)

    def refund(self, decision: Decision, hits: Iterable[Hit] | None = None) -> Decision:
        """:meth:`settle` at 0: give back all that the check has charged, its slots included."""
        return self.settle(decision, 0, hits)

    def slot(self, hits: Iterable[Hit]) -> AbstractContextManager[Decision]:
        """:meth:`check` and :meth:`hold` at the beginning of a block, and :meth:`release` at its end.

        The block runs in any case: check whether the decision is ``allowed``. Call this for each block: entering a
        block twice raises :class:`ConfigurationError`.
        """
        block = _Block()  # its __init__ would be a call more
        block.limiter, block.hits = self, hits
        return block

    def hold(self, decision: Decision) -> None:
        """Renew the slots that ``decision`` has taken by :class:`.Concurrent` rules, in the background, until
        :meth:`release`. Otherwise they expire after their ``timeout``. Raises :class:`ConfigurationError` if the
        storage keeps no slots."""
        if self._keeps_slots is None:  # once, because this takes longer than all the rest
            self._keeps_slots = require_slots(self._storage)
        try:
            KEEPER.hold(self._keeps_slots, decision)
        except (AttributeError, TypeError, ValueError):
            require_decision(decision)  # only after an error, because slots are held all the time
            raise

    def release(self, decision: Decision) -> None:
        """Give back the slots that ``decision`` has taken by :class:`.Concurrent` rules, in at most one round trip.
        Charges of other rules stay. Slots that cannot be given back now are tried again in the background, and expire
        after their ``timeout``."""
        try:
            held = KEEPER.release(decision)
        except AttributeError:
            require_decision(decision)
            raise
        if not held and slots_of(decision):
            self.hold(decision)
            KEEPER.release(decision)

    def reset(self, hits: Iterable[Hit | str]) -> None:
        """Reset the quotas of ``hits``, or of keys in the storage, for everyone who shares them; while overrides are in
        force, also those that count in place of ``hits``. The deny caches of other processes do not notice."""
        check_iterable("hits", hits, "what hits_for(...) returns, a list of Hit, or keys")
        given = tuple(hits)
        own = self._with_stand_ins(tuple(each for each in given if isinstance(each, Hit)), hits)
        named = (each if isinstance(each, str) else checked_hits((each,))[0].key for each in (*given, *own))
        keys = list(dict.fromkeys(named))
        for first in range(0, len(keys), RESET_TOGETHER):
            self._storage.reset(keys[first : first + RESET_TOGETHER])

    def close(self) -> None:
        """Give back units of leases, charge the storage for what was admitted while it was down, if it is back, and
        close the connections that were opened here, but not those of a client object. Slots that are still held
        expire."""
        self._storage.close()
        KEEPER.forget_all(self._keeps_slots)


class _Block:
    """The block of :meth:`Limiter.slot`. A generator would take three times as long."""

    __slots__ = ("_decision", "hits", "limiter")

    limiter: Limiter
    hits: Iterable[Hit]

    def __enter__(self) -> Decision:
        limiter = self.limiter
        try:
            hits = self.hits
            del self.hits  # of threads that enter together, one succeeds
        except AttributeError:
            raise ConfigurationError("limiter.slot(hits) is for one block: call slot() again for the next") from None
        self._decision = decision = limiter.check(hits)
        limiter.hold(decision)
        return decision

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        KEEPER.release(self._decision)  # only what this process holds: after a fork, that is for the parent


def decide_unlimited(hits: tuple[Hit, ...]) -> Decision:
    """Allow ``hits``, whatever they cost, because nothing is limited. No quota is touched."""
    if not hits:
        return Decision(PEEK_ID, (), head(0), "memory")
    decision = MemoryStorage().peek(hits)
    return decision.replaced(reply=as_allowed(decision.reply))


def _pauses() -> Iterator[float]:
    """Seconds between two attempts to get a slot, increasing, and random so that waiting requests do not ask at the
    same time."""
    pause = SHORTEST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1)
        pause = min(pause * 2, LONGEST_PAUSE)


class _Settlements:
    """The settlements of the latest checks, so that no charge is settled twice. Thread-safe, fork-safe."""

    def __init__(self) -> None:
        self._units: OrderedDict[bytes, Mapping[str, int]] = OrderedDict()
        self._lock = LateLock()

    def add(self, check_id: bytes, units: Mapping[str, int]) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Record ``units``, by key, for keys that are not settled yet. Return what was recorded for this check before,
        and after."""
        with self._lock():
            before = self._units.get(check_id, NOT_SETTLED)
            after = {**units, **before}
            if after:
                self._units[check_id] = after
            if len(self._units) > MOST_SETTLEMENTS:
                self._units.popitem(last=False)
            return before, after

    def forget(self, check_id: bytes) -> None:
        with self._lock():
            self._units.pop(check_id, None)
