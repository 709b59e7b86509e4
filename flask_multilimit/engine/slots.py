"""The slots of ``Concurrent`` rules that this process holds: renewed while their work goes on, then released.

One thread per process renews slots that are held for long, hundreds of each storage in one command. It runs while slots
are held. If the storage supports it, no thread waits for the answer to a release: the next check reads it, or the
background thread a second later. Slots that were not released are released again, those of each storage together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, TypeVar, cast

from .decision import Decision
from .errors import ConfigurationError, StorageError
from .forks import notify_child
from .hits import PEEK_ID, Hit, from_fields, memoized
from .reply import ALLOWED
from .storage import Confirms, KeepsSlots, Slot, Storage, layers_of
from .text import SafeLogger
from .threads import Beat

RENEWALS = 3
"""How often a slot is renewed within its timeout: two renewals may fail."""
RETRY_SECONDS = 1.0
"""Time between two attempts of a release that fails, until the slots expire. The second attempt is made at once."""
CONFIRM_SECONDS = 1.0
"""Time after which the answer to a release is read, if no check has done so."""
SILENT_SECONDS = 10.0
"""Time after a warning of lost releases in which there is no other."""
RENEWED_AT_ONCE = 500
"""The most units that one command renews. No other command waits for more, nor does a renewal reach the timeout of the
storage because there are many."""
LINGER_SECONDS = 10.0
"""How long the idle thread waits for more work."""

_logger = SafeLogger()


class _Held:  # made at every request: an __init__ would be one more call
    """The slots that one check holds. Called with the reason if their release was lost."""

    __slots__ = ("due", "keeper", "slots", "storage", "timeout")

    keeper: Keeper
    storage: KeepsSlots
    slots: tuple[Slot, ...]
    timeout: float
    due: float
    """When the slots are renewed for the first time."""

    def __call__(self, error: StorageError) -> None:
        self.keeper.release_later(self, error)

    @property
    def check_id(self) -> bytes:
        return self.slots[0].check_id


class _Renewed(NamedTuple):
    """What the thread knows about slots that it has tried to renew."""

    due: float
    """When they are renewed again."""
    failing: bool
    """Whether the last renewal has failed."""


@dataclass(slots=True, eq=False, repr=False)
class _Lost:
    """Slots of one check whose release has failed and is tried again."""

    storage: KeepsSlots
    slots: tuple[Slot, ...]
    due: float
    expires: float
    """When they are free in any case."""


class Keeper:
    """Holds the slots of one process. Thread-safe, fork-safe: slots of the parent stay the parent's."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.beat: Beat = Beat(self._work, name="multilimit-slots", clock=clock)
        """Wake it before slots are due."""
        self._begin()
        notify_child(self)

    def _begin(self) -> None:
        self._held: dict[bytes, _Held] = {}
        self._renewed: dict[bytes, _Renewed] = {}
        self._lost: dict[bytes, _Lost] = {}
        self._unconfirmed: dict[int, KeepsSlots] = {}
        self._renewing: int | None = None  # id() of a storage
        self._late: deque[Callable[[], None]] = deque()
        self._silent_until = 0.0
        self._lingers = False

    def _after_fork_in_child(self) -> None:
        self._begin()

    def hold(self, storage: KeepsSlots, decision: Decision) -> None:
        """Renew what ``decision`` has taken until it is released."""
        check_id, hits = decision.check_id, decision.hits
        try:  # as memoized() does, with one call fewer
            only, timeout, pause = hits.cache[_usual]  # type: ignore[attr-defined]
        except (KeyError, AttributeError):
            only, timeout, pause = memoized(hits, _usual)
        slots: tuple[Slot, ...]
        if only is not None and decision.reply[ALLOWED] > 0 and not decision.settled and check_id != PEEK_ID:
            slots = (_slot_of((check_id, only)),)  # as usual, without a call of a function
        elif not (slots := slots_of(decision)):
            return
        due = self._clock() + pause
        self._held[check_id] = held = _Held()
        held.keeper, held.storage, held.slots, held.timeout, held.due = self, storage, slots, timeout, due
        if due < self.beat.wakes_at:  # saves a call in nearly every request
            self.beat.wake(due)

    def holds(self, decision: Decision) -> bool:
        """Whether this process holds what ``decision`` has taken."""
        return decision.check_id in self._held

    def release(self, decision: Decision) -> bool:
        """Give back what ``decision`` has taken; whether this process held it."""
        held = self._held.pop(decision.check_id, None)
        if held is None:
            return False
        storage = held.storage
        try:
            storage.release(held.slots, held)
        except StorageError as error:
            held(error)
        else:
            if id(storage) not in self._unconfirmed:
                self._confirm_soon(storage)
        return True

    def release_all(self, decisions: list[Decision]) -> None:
        """Give back what this process holds by ``decisions``, and empty the list. What was released or refunded before
        is not held any more, nor is what was taken before a fork. If a release raises, the others are made first."""
        try:
            while decisions:
                self.release(decisions.pop())
        finally:
            if decisions:
                self.release_all(decisions)

    def release_unheld(self, storage: Storage, decision: Decision) -> None:
        """Give back what ``decision`` has taken of ``storage``, if anything, although this process does not hold it."""
        if slots_of(decision):
            self.hold(require_slots(storage), decision)
            self.release(decision)

    def let_expire(self, decision: Decision) -> None:
        """Renew its slots no more, and do not release them."""
        self._held.pop(decision.check_id, None)

    def forget(self, decision: Decision, keys: Collection[str]) -> None:
        """Its slots of ``keys`` were refunded. Others are still held."""
        held = self._held.get(decision.check_id)
        if held is None:
            return
        slots, now = held.slots, self._clock()
        if still_held := tuple(slot for slot in slots if slot.hit.key not in keys):
            held.slots = still_held
        else:
            self._held.pop(decision.check_id, None)
        if now >= held.due:  # a renewal may have taken them again since the refund
            self._release_once_more(held, [slot for slot in slots if slot.hit.key in keys], now)
            self.beat.wake(now)

    def forget_all(self, storage: Storage) -> None:
        """``storage`` is no longer used."""
        self._unconfirmed.pop(id(storage), None)
        if self._renewing == id(storage):
            self._renewing = None
        kept: list[dict[bytes, Any]] = [self._held, self._lost]
        for slots in kept:
            for check_id, each in list(slots.items()):
                if each.storage is storage:
                    slots.pop(check_id, None)

    def later(self, release: Callable[[], None]) -> None:
        """Call ``release`` soon, in the thread of the keeper. What it raises is logged."""
        self._late.append(release)
        self.beat.wake(self._clock())

    def __len__(self) -> int:
        """Checks whose slots are held, or could not be released yet."""
        return len(self._held) + len(self._lost)

    def _confirm_soon(self, storage: KeepsSlots) -> None:
        self._unconfirmed[id(storage)] = storage
        self.beat.wake(self._clock() + CONFIRM_SECONDS)

    def release_later(self, held: _Held, error: StorageError) -> None:
        """Try again at once, in the thread, because ``error`` may have kept the slots from being released."""
        now = self._clock()
        self._warn(held, error, now)
        self._release_once_more(held, held.slots, now)
        self.beat.wake(now)

    def _release_once_more(self, held: _Held, slots: Iterable[Slot], now: float) -> None:
        before = self._lost.get(held.check_id)
        together = (*slots, *(before.slots if before is not None else ()))
        self._lost[held.check_id] = _Lost(held.storage, together, now, now + held.timeout)

    def _warn(self, held: _Held, error: StorageError, now: float) -> None:
        """Once for all slots that are lost together, with a connection or with the server."""
        if now < self._silent_until:
            return
        self._silent_until = now + SILENT_SECONDS
        _logger.warning(
            "Rate limits: slots of %s could not be released: %s. Trying again; they expire in at most %d s. "
            "Other slots that cannot be released in the next %d s are not logged.",
            held.slots[0].hit.key,
            error,
            held.timeout,
            SILENT_SECONDS,
        )

    # The thread

    def _work(self) -> float | None:
        """The task of the beat. Without slots, its thread lingers for a while."""
        self.renew_due()
        dues = [self._due_of(held) for held in list(self._held.values())]
        dues += [lost.due for lost in list(self._lost.values())]
        self._lingers = not dues and not self._lingers
        if self._lingers:
            return LINGER_SECONDS
        return max(min(dues) - self._clock(), 0.0) if dues else None

    def _due_of(self, held: _Held) -> float:
        renewed = self._renewed.get(held.check_id)
        return held.due if renewed is None else renewed.due

    def renew_due(self) -> None:
        """Renew the slots that are due, and try again to release what could not be released."""
        while self._late:
            _attempt(self._late.popleft())
        now = self._clock()
        for storage, together in _by_storage([held for held in list(self._held.values()) if self._due_of(held) <= now]):
            self._renew(storage, together, now)
        for check_id in list(self._renewed):
            if check_id not in self._held:
                self._renewed.pop(check_id, None)
        for lost_storage, lost in _by_storage([lost for lost in list(self._lost.values()) if lost.due <= now]):
            self._release_again(lost_storage, lost)
        while self._unconfirmed:  # last, because it waits for a storage that stalls
            _, unconfirmed = self._unconfirmed.popitem()
            _attempt(partial(_confirm, cast("Storage", unconfirmed)))

    def _renew(self, storage: KeepsSlots, together: list[_Held], now: float) -> None:
        failures = list[tuple[list[_Held], Exception]]()
        for each in _batches(together):
            batch = [held for held in each if held.check_id in self._held]
            sent = [(held, held.slots) for held in batch]
            if not sent:
                continue
            self._renewing = id(storage)
            try:
                storage.renew([slot for _, slots in sent for slot in slots])
            except Exception as error:  # whatever it is, other slots are renewed
                failures.append((batch, error))
            else:
                for held in batch:
                    self._renewed[held.check_id] = _Renewed(now + held.timeout / RENEWALS, False)
            self._release_meanwhile(sent)
        if failures:
            self._note_failures(failures, now)

    def _release_meanwhile(self, sent: list[tuple[_Held, tuple[Slot, ...]]]) -> None:
        """Release again what was released or refunded while its renewal was on the way: if the renewal came last, it
        has taken the slots again. A renewal that failed may have been made, too."""
        if self._renewing is None:  # the storage is no longer used
            return
        self._renewing = None
        for held, slots in sent:
            kept = held.slots if held.check_id in self._held else ()
            if kept is not slots and (gone := [slot for slot in slots if slot not in kept]):
                self._release_once_more(held, gone, self._clock())

    def _note_failures(self, failures: list[tuple[list[_Held], Exception]], now: float) -> None:
        """Log all commands of one round that failed in one line, unless they failed before, too."""
        failed = [held for batch, _ in failures for held in batch]
        before = [self._renewed.get(held.check_id) for held in failed]
        if not all(renewed is not None and renewed.failing for renewed in before):
            error = next((error for _, error in failures if _fault(error)), failures[0][1])
            _logger.warning(
                "Rate limits: could not renew slots (%d): %s. Trying again until they expire.",
                len(failed),
                error,
                error=_fault(error),
            )
        for held in failed:
            self._renewed[held.check_id] = _Renewed(now + min(RETRY_SECONDS, held.timeout / RENEWALS), True)

    def _release_again(self, storage: KeepsSlots, together: list[_Lost]) -> None:
        """This waits for the answer: the connection that is used may be lost, too."""
        try:
            storage.release([slot for lost in together for slot in lost.slots])
        except Exception as error:
            if _fault(error):  # other failures were logged the first time
                _logger.warning(
                    "Rate limits: slots could not be released: %s. Trying again until they expire.",
                    error,
                    error=error,
                )
            now = self._clock()
            for lost in together:
                lost.due = now + RETRY_SECONDS
            together = [lost for lost in together if lost.due >= lost.expires]
        for lost in together:
            check_id = lost.slots[0].check_id
            if self._lost.get(check_id) is lost:  # another thread may have added slots
                self._lost.pop(check_id, None)


def slots_of(decision: Decision) -> tuple[Slot, ...]:
    """The slots that ``decision`` has taken."""
    check_id = decision.check_id
    if decision.reply[ALLOWED] <= 0 or check_id == PEEK_ID:
        return ()
    holding = memoized(decision.hits, _holding)
    if not decision.settled and not holding.has_shadows:  # nearly always, and charges take longer
        return tuple([_slot_of((check_id, hit)) for hit in holding.hits])
    return tuple([Slot(check_id, charge.hit) for charge in decision.charges if charge.hit.rule.holds_slots])


_slot_of: Callable[[tuple[bytes, Hit]], Slot] = from_fields(Slot)
"""Makes a slot from the tuple of its fields, cheaply: every request that takes one makes one."""


class _Holding(NamedTuple):
    """The hits of a check that take slots."""

    hits: tuple[Hit, ...]
    has_shadows: bool


def _holding(hits: tuple[Hit, ...]) -> _Holding:
    found = tuple(hit for hit in hits if hit.cost and hit.rule.holds_slots)
    return _Holding(found, any(hit.shadow for hit in found))


def _usual(hits: tuple[Hit, ...]) -> tuple[Hit | None, float, float]:
    """The hit that takes a slot, if it is the only one and no shadow; the shortest timeout; the time between two
    renewals."""
    found, has_shadows = memoized(hits, _holding)
    only = found[0] if len(found) == 1 and not has_shadows else None
    timeout = min([hit.rule.time for hit in found], default=0)
    return only, timeout, timeout / RENEWALS  # a plain tuple is unpacked in a third of the time


def _fault(error: Exception) -> Exception | None:
    """``error`` if it is a bug in a storage, to be logged with its traceback."""
    return None if isinstance(error, StorageError) else error


def _attempt(release: Callable[[], None]) -> None:
    """Call ``release`` in the thread of the keeper, which lives on if it raises."""
    try:
        release()
    except Exception:  # a bug in a storage: a storage that does not answer is asked again
        _logger.exception("Rate limits: slots could not be released. They expire after their timeout.")


def _confirm(storage: Storage) -> None:
    for layer in layers_of(storage):
        if isinstance(layer, Confirms):
            layer.confirm()


_Of = TypeVar("_Of", _Held, _Lost)


def _by_storage(each_of: Iterable[_Of]) -> list[tuple[KeepsSlots, list[_Of]]]:
    found: dict[int, tuple[KeepsSlots, list[_Of]]] = {}
    for each in each_of:
        found.setdefault(id(each.storage), (each.storage, []))[1].append(each)
    return list(found.values())


def _batches(together: Iterable[_Held]) -> Iterator[list[_Held]]:
    """Parts of :data:`RENEWED_AT_ONCE` units at most, or of one check that has taken more."""
    batch, units = list[_Held](), 0
    for held in together:
        cost = sum([slot.hit.cost for slot in held.slots])
        if batch and units + cost > RENEWED_AT_ONCE:
            yield batch
            batch, units = [], 0
        batch.append(held)
        units += cost
    if batch:
        yield batch


def require_slots(storage: Storage) -> KeepsSlots:
    """``storage`` itself. Raises :class:`ConfigurationError` if a layer of it keeps no slots."""
    layer = next((layer for layer in layers_of(storage) if not isinstance(layer, KeepsSlots)), None)
    if layer is None:
        return cast("KeepsSlots", storage)
    raise ConfigurationError(
        f"a {type(layer).__name__} keeps no slots, so Concurrent rules cannot be asked of it: it has no release(slots) "
        "and renew(slots)"
    )


KEEPER = Keeper()
"""The keeper of this process."""
