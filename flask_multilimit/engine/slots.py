"""The slots of ``Concurrent`` rules that this process holds: renewed while their work goes on, then released.

While slots are held, one thread per process renews those that are held for long, up to 500 units of a storage in one
command. If the storage supports it, nobody waits for the answer to a release: the next check reads it, or a second
later the thread. If a release fails, the thread repeats it, those of one storage together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TypeVar, cast

from .decision import Decision
from .errors import ConfigurationError, StorageError, with_remedy
from .forks import notify_child
from .hits import PEEK_ID, Hit, memoized
from .keys import without_subject
from .reply import ALLOWED
from .storage import Confirms, KeepsSlots, Slot, Storage, layers_of
from .text import SafeLogger
from .threads import Beat, interrupts

RENEWALS = 3
"""How often a slot is renewed within its timeout: two renewals may fail."""
RETRY_SECONDS = 1.0
"""Time between two attempts of a release that fails, until the slots expire. The second attempt is made at once."""
CONFIRM_SECONDS = 1.0
"""Time after which the thread reads the answer to a release, if no check has read it."""
SILENT_SECONDS = 10.0
"""Time after a warning of failed releases in which there is no other warning."""
RENEWED_AT_ONCE = 500
"""The most units that one command renews: it must neither delay other commands nor reach the storage's timeout."""
LINGER_SECONDS = 10.0
"""How long the idle thread waits for more work."""

_logger = SafeLogger()


class _Held:  # made at every request: an __init__ would be one more call
    """The slots that one check holds. The storage calls it, as :data:`.Lost`, if their release failed."""

    __slots__ = ("due", "failing", "keeper", "slots", "storage", "timeout")

    keeper: Keeper
    storage: KeepsSlots
    slots: tuple[Slot, ...]
    timeout: float
    due: float
    """When the slots are renewed next."""
    failing: bool | None
    """Whether the last renewal has failed; ``None`` before the first one."""

    def __call__(self, error: StorageError) -> None:
        self.keeper.retry_release(self, error)

    @property
    def check_id(self) -> bytes:
        return self.slots[0].check_id


@dataclass(slots=True, eq=False)
class _Unreleased:
    """Slots of one release that are to be released again."""

    storage: KeepsSlots
    slots: tuple[Slot, ...]
    due: float
    expires: float
    """When they are free even if no release succeeds."""


class Keeper:
    """Holds the slots of one process. Thread-safe, fork-safe: a child does not hold the slots of its parent."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.beat: Beat = Beat(self._work, name="multilimit-slots", clock=clock)
        """Wake it before slots are due."""
        self._after_fork_in_child()
        notify_child(self)

    def _after_fork_in_child(self) -> None:
        self._held: dict[bytes, _Held] = {}
        self._unreleased: set[_Unreleased] = set()
        self._unconfirmed: dict[int, KeepsSlots] = {}
        self._renewing: int | None = None  # id() of the storage that was renewed last, unless it is closed
        self._soon: deque[Callable[[], object]] = deque()
        self._silent_until = 0.0
        self._lingers = False

    def hold(self, storage: KeepsSlots, decision: Decision) -> None:
        """Renew the slots that ``decision`` has taken until they are released."""
        check_id, hits = decision.check_id, decision.hits
        only, timeout, pause = memoized(hits, _hold_parameters)
        if only is not None and decision.reply[ALLOWED] > 0 and not decision.settled and check_id != PEEK_ID:
            slots: tuple[Slot, ...] = (Slot(check_id, only),)  # the usual case
        elif not (slots := slots_of(decision)):
            return
        due = self._clock() + pause
        held = _Held()
        held.keeper, held.storage, held.slots, held.timeout = self, storage, slots, timeout
        held.due, held.failing = due, None
        self._held[check_id] = held
        if due < self.beat.wakes_at:  # seldom: this saves a call
            try:
                self.beat.wake(due)
            except BaseException:  # of a timeout of gevent, which switches greenlets here: nobody would release these
                self._held.pop(check_id, None)
                raise

    def holds(self, decision: Decision) -> bool:
        """Whether this process holds the slots that ``decision`` has taken."""
        return decision.check_id in self._held

    def release(self, decision: Decision) -> bool:
        """Release the slots that ``decision`` has taken. Return whether this process held them."""
        held = self._held.pop(decision.check_id, None)
        if held is None:
            return False
        if interrupts():  # a generator that was dropped: this thread may hold the lock of the storage
            self._release_later(held, held.slots)
            return True
        storage = held.storage
        try:
            storage.release(held.slots, held)
        except StorageError as error:
            held(error)
        except BaseException:  # such as gevent.Timeout, or of a signal handler: nothing else would release them
            self._release_later(held, held.slots)
            raise
        else:
            if id(storage) not in self._unconfirmed:
                self._unconfirmed[id(storage)] = storage
                self.beat.wake(self._clock() + CONFIRM_SECONDS)
        return True

    def release_all(self, decisions: list[Decision]) -> None:
        """Release the slots of ``decisions`` that this process holds, and empty the list. It does not hold what was
        released or refunded before, or taken before a fork. If a release raises, the others are made nevertheless."""
        try:
            while decisions:
                self.release(decisions[-1])
                decisions.pop()
        finally:
            if decisions:
                self.release_all(decisions)

    def let_expire(self, decision: Decision) -> None:
        """Stop renewing the slots of ``decision``, and do not release them."""
        self._held.pop(decision.check_id, None)

    def forget(self, decision: Decision, keys: Collection[str]) -> None:
        """Stop holding the slots of ``decision`` in ``keys``, which were refunded. Its other slots are still held."""
        held = self._held.get(decision.check_id)
        if held is None:
            return
        slots = held.slots
        if still_held := tuple(slot for slot in slots if slot.hit.key not in keys):
            held.slots = still_held
        else:
            self._held.pop(decision.check_id, None)
        if held.failing is not None or self._clock() >= held.due:  # a renewal may have taken them again since
            self._release_later(held, [slot for slot in slots if slot.hit.key in keys])

    def forget_all(self, storage: object) -> None:
        """Neither renew nor release slots of ``storage`` any more, because it was closed."""
        self._unconfirmed.pop(id(storage), None)
        if self._renewing == id(storage):
            self._renewing = None
        for check_id, held in list(self._held.items()):
            if held.storage is storage:
                self._held.pop(check_id, None)
        self._unreleased.difference_update([each for each in list(self._unreleased) if each.storage is storage])

    def call_soon(self, end: Callable[[], object]) -> None:
        """Call ``end``, which releases slots or settles charges, soon, in the thread. If it raises, that is logged."""
        self._soon.append(end)
        self.beat.wake(self._clock())

    def __len__(self) -> int:
        """The number of checks whose slots are held, and of releases to repeat."""
        return len(self._held) + len(self._unreleased)

    def retry_release(self, held: _Held, error: StorageError) -> None:
        """Release the slots of ``held`` again at once, in the thread: ``error`` may have prevented their release. Warn
        once for all releases that fail together, with a connection or with the server."""
        now = self._clock()
        if now >= self._silent_until:
            self._silent_until = now + SILENT_SECONDS
            _logger.warning(
                "Rate limits: slots of %s could not be released: %s. Trying again; they expire in at most %d s. "
                "Other slots that cannot be released in the next %d s are not logged.",
                without_subject(held.slots[0].hit.key),
                error,
                held.timeout,
                SILENT_SECONDS,
            )
        self._release_later(held, held.slots)

    def _release_later(self, held: _Held, slots: Iterable[Slot]) -> None:
        """Release ``slots`` of ``held`` at once, in the thread."""
        now = self._clock()
        self._unreleased.add(_Unreleased(held.storage, tuple(slots), now, now + held.timeout))
        self.beat.wake(now)

    # The thread

    def _work(self) -> float | None:
        """The task of the beat. Without slots, the thread lingers for a while before it ends."""
        self.renew_due()
        dues = [held.due for held in list(self._held.values())]
        dues += [each.due for each in list(self._unreleased)]
        self._lingers = not dues and not self._lingers
        if self._lingers:
            return LINGER_SECONDS
        return min(dues) - self._clock() if dues else None

    def renew_due(self) -> None:
        """Renew the slots that are due, and try again to release what could not be released."""
        while self._soon:
            _call_and_log(self._soon.popleft())
        now = self._clock()
        due = [held for held in list(self._held.values()) if held.due <= now]
        for storage, some in _by_storage(due):
            self._renew(storage, some, now)
        failed = [each for each in list(self._unreleased) if each.due <= now]
        for storage, releases in _by_storage(failed):
            self._retry_releases(storage, releases)
        for id_ in list(self._unconfirmed):  # last, because this waits for a storage that stalls
            if (unconfirmed := self._unconfirmed.pop(id_, None)) is not None:  # it may be closed meanwhile
                _call_and_log(partial(_confirm, cast("Storage", unconfirmed)))

    def _renew(self, storage: KeepsSlots, due: list[_Held], now: float) -> None:
        failures = list[tuple[list[_Held], Exception]]()
        for each in _batches(due):
            batch = [held for held in each if held.check_id in self._held]
            sent = [(held, held.slots) for held in batch]
            if not sent:
                continue
            self._renewing = id(storage)
            try:
                storage.renew([slot for _, slots in sent for slot in slots])
            except Exception as error:  # the other batches are renewed whatever it is
                failures.append((batch, error))
            else:
                for held in batch:
                    held.due, held.failing = now + held.timeout / RENEWALS, False
            self._undo_late_renewals(sent)
        self._record_failures(failures, now)

    def _undo_late_renewals(self, sent: list[tuple[_Held, tuple[Slot, ...]]]) -> None:
        """Release again the slots that were released or refunded while their renewal was under way: if the renewal
        came last, it has taken them again. Even a renewal that failed may have done so."""
        if self._renewing is None:  # the storage was closed
            return
        for held, slots in sent:
            kept = held.slots if held.check_id in self._held else ()
            if gone := [slot for slot in slots if slot not in kept]:
                self._release_later(held, gone)

    def _record_failures(self, failures: list[tuple[list[_Held], Exception]], now: float) -> None:
        """Log the renewals of one round that failed in one line, unless all of them failed the last time, too. Schedule
        their next attempts."""
        failed = [held for batch, _ in failures for held in batch]
        if not all(held.failing for held in failed):
            error = next((error for _, error in failures if _if_unexpected(error)), failures[0][1])
            _logger.warning(
                "Rate limits: could not renew slots (%d): %s. Trying again until they expire.",
                len(failed),
                with_remedy(error),
                error=_if_unexpected(error),
            )
        for held in failed:
            held.due, held.failing = now + min(RETRY_SECONDS, held.timeout / RENEWALS), True

    def _retry_releases(self, storage: KeepsSlots, releases: list[_Unreleased]) -> None:
        """Release slots again, and wait for the answer: this connection may be lost, too."""
        try:
            storage.release([slot for each in releases for slot in each.slots])
        except Exception as error:
            if _if_unexpected(error):  # other failures were logged the first time
                _logger.warning(
                    "Rate limits: slots could not be released: %s. Trying again until they expire.", error, error=error
                )
            now = self._clock()
            for each in releases:
                each.due = now + RETRY_SECONDS
            releases = [each for each in releases if each.due >= each.expires]
        self._unreleased.difference_update(releases)


def slots_of(decision: Decision) -> tuple[Slot, ...]:
    """The slots that ``decision`` has taken."""
    if not memoized(decision.hits, _slot_hits):  # nearly always, and charges take longer
        return ()
    return tuple([Slot(decision.check_id, each.hit) for each in decision.charges if each.hit.rule.holds_slots])


def _slot_hits(hits: tuple[Hit, ...]) -> tuple[Hit, ...]:
    """The hits of a check that take slots."""
    return tuple(hit for hit in hits if hit.cost and hit.rule.holds_slots)


def _hold_parameters(hits: tuple[Hit, ...]) -> tuple[Hit | None, float, float]:
    """The hit that takes a slot, if it is the only one and no shadow; the shortest timeout; the time between two
    renewals. A plain tuple, because it is unpacked in a third of the time."""
    some = memoized(hits, _slot_hits)
    only = some[0] if len(some) == 1 and not some[0].shadow else None
    timeout = min([hit.rule.time for hit in some], default=0)
    return only, timeout, timeout / RENEWALS


def _if_unexpected(error: Exception) -> Exception | None:
    """``error`` if it is no :class:`StorageError`: a bug, to be logged with its traceback."""
    return None if isinstance(error, StorageError) else error


def _call_and_log(end: Callable[[], object]) -> None:
    try:
        end()
    except Exception:  # a StorageError of a settlement, or a bug in a storage: a release that fails is repeated
        _logger.exception(
            "Rate limits: slots could not be released, or charges not be settled. Slots expire after their timeout; "
            "charges stay as they were, or are settled."
        )


def _confirm(storage: Storage) -> None:
    for layer in layers_of(storage):
        if isinstance(layer, Confirms):
            layer.confirm()


_SlotsOfCheck = TypeVar("_SlotsOfCheck", _Held, _Unreleased)


def _by_storage(some: Iterable[_SlotsOfCheck]) -> list[tuple[KeepsSlots, list[_SlotsOfCheck]]]:
    groups: dict[int, tuple[KeepsSlots, list[_SlotsOfCheck]]] = {}
    for each in some:
        groups.setdefault(id(each.storage), (each.storage, []))[1].append(each)
    return list(groups.values())


def _batches(due: Iterable[_Held]) -> Iterator[list[_Held]]:
    """Batches of at most :data:`RENEWED_AT_ONCE` units, or of one check that has taken more; one may be empty."""
    batch, units = list[_Held](), 0
    for held in due:
        cost = sum([slot.hit.cost for slot in held.slots])
        if units + cost > RENEWED_AT_ONCE:
            yield batch
            batch, units = [], 0
        batch.append(held)
        units += cost
    yield batch


def require_slots(storage: Storage) -> KeepsSlots:
    """Return ``storage``. Raise :class:`ConfigurationError` if one of its layers keeps no slots."""
    layer = next((layer for layer in layers_of(storage) if not isinstance(layer, KeepsSlots)), None)
    if layer is None:
        return cast("KeepsSlots", storage)
    raise ConfigurationError(
        f"a {type(layer).__name__} keeps no slots, so Concurrent rules cannot be asked of it: it has no release(slots) "
        "and renew(slots)"
    )


KEEPER = Keeper()
"""The keeper of this process."""
