"""Which workers follow changes, and whether all have the same limits in force."""

from __future__ import annotations

from dataclasses import dataclass

from ..control.store import StoreInStorage
from ..engine import StorageError
from ..serve.applier import applier_of
from ..serve.gate import AppGate
from .health import storage_state
from .text import plural
from .values import Described


@dataclass(frozen=True, slots=True)
class WorkerInForce(Described):
    """A worker that has served a request and follows changes."""

    name: str
    """Its host and process id."""
    version: int
    """Of the changes that are in force there."""
    same_limits: bool
    """Whether it declares the limits that the process declares that answers."""
    seen: float


@dataclass(frozen=True, slots=True)
class Workers(Described):
    """The workers that have announced themselves in the last seconds."""

    version: int
    """The newest version of the changes."""
    current: int
    """The number of workers that have it in force."""
    same_limits: int
    """The number of workers that declare the limits that the process declares that answers."""
    workers: tuple[WorkerInForce, ...]

    @property
    def agree(self) -> bool:
        return self.current == self.same_limits == len(self.workers)

    def __str__(self) -> str:
        total = plural(len(self.workers), "worker")
        same = "yes" if self.same_limits == len(self.workers) else f"only {self.same_limits}"
        return f"{self.current} of {total} at version {self.version}; limits as in this checkout: {same}"


def workers(gate: AppGate) -> Workers | None:
    """``None`` if nobody announces itself: nobody shares the storage, it does not answer, or no worker has served."""
    applier = applier_of(gate.app)
    store = applier.follower.store
    if not (applier.enabled and isinstance(store, StoreInStorage) and store.in_use):
        return None
    try:
        found = store.workers()
    except StorageError:  # who asks for anything else is told
        return None
    here = applier.declared_limits()
    listed = tuple(WorkerInForce(each.name, each.version, each.limits == here, each.seen) for each in sorted(found))
    newest = max([applier.follower.version, *(each.version for each in listed)])
    current = sum(each.version == newest for each in listed)
    return Workers(newest, current, sum(each.same_limits for each in listed), listed) if listed else None


def known_number(gate: AppGate) -> int | None:
    """How many workers share each limit while the storage is away: those that announce themselves, or as many as are
    known otherwise; ``None`` if that would be a guess."""
    if (announced := workers(gate)) is not None:
        return len(announced.workers)
    state = storage_state(gate)
    return state.workers if state.guarded and state.workers_certain else None
