"""The state of the storage and of the workers, as far as this process knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..engine import ClusterStorage, ConfigurationError, Hit, Rule, StorageError
from ..engine.errors import brief, with_remedy
from ..engine.hits import OnStorageError
from ..engine.keys import stem_of
from ..engine.storage.layers.outage import probes_like
from ..engine.storage.redis.failures import FAILURES
from ..engine.text import Phrase
from ..serve.gate import AppGate
from .text import plural
from .values import Described


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageState(Described):
    """The state of the storage, as far as the process that answers knows."""

    name: str
    """Its kind."""
    address: str
    shared: bool
    """Whether processes share it."""
    guarded: bool
    state: Literal["working", "failed"] = "working"
    since: float | None = None
    """``null`` if it is not known: no check of this process has failed."""
    error: str = ""
    meanwhile: str = ""
    """What clients get whenever it is down."""
    milliseconds: float | None = None
    """The time that its last answer took; ``null`` if it did not answer, or was not asked."""
    remark: str = ""
    breaker: str = ""
    fallback_keys: int = 0
    """Quotas that this process counts while the storage is down."""
    pending: int = 0
    """Checks that will be charged when the storage is back."""
    given_up: int = 0
    workers: int = 0
    workers_source: str = ""
    workers_certain: bool = True

    def after(self, problem: StorageError | None, milliseconds: float) -> StorageState:
        """The state after the storage was asked."""
        if problem is not None and not self.error:
            return replace(self, state="failed", since=None, error=with_remedy(problem))
        return self if self.state == "failed" else replace(self, milliseconds=milliseconds)


def storage_state(gate: AppGate) -> StorageState:
    """The state of the storage, without asking it."""
    storage = gate.limiter.storage
    name, address = type(storage).__name__, getattr(storage, "address", "")
    found = StorageState(name=name, address=address, shared=storage.shared, guarded=False)
    try:
        health = gate.limiter.health()
    except ConfigurationError as error:
        return replace(found, remark=str(error))
    return replace(
        found,
        guarded=True,
        state=health.state,
        since=health.since,
        meanwhile=_meanwhile(gate.settings.on_storage_error, health.workers.count),
        error=with_remedy(health.error) if health.error is not None and health.state == "failed" else "",
        breaker=health.breaker,
        fallback_keys=health.fallback_keys,
        pending=health.pending,
        given_up=health.given_up,
        workers=health.workers.count,
        workers_source=health.workers.source,
        workers_certain=health.workers.certain,
    )


def _meanwhile(policy: OnStorageError, workers: int) -> Phrase:
    sentences = {
        "local": "Meanwhile, unless a limiter says otherwise, each worker admits 1/{workers} of a limit; one "
        "below {workers} admits nobody.",
        "alone": "Meanwhile, unless a limiter says otherwise, the only worker admits each limit in full.",
        "allow": "Meanwhile, unless a limiter says otherwise, no limit refuses anybody.",
        "deny": "Meanwhile, unless a limiter says otherwise, every limited request is refused with 503.",
        "raise": "Meanwhile, unless a limiter says otherwise, every limited request fails with an error.",
    }
    return Phrase(sentences["alone" if policy == "local" and workers == 1 else policy], workers=workers)


_PROBED = (Rule(1, 1), Rule(1, 1, algorithm="fixed_window"))
"""A server may refuse to write logs, and take numbers."""
ON_EACH_SERVER = 256
"""So many scopes lie on every server of a cluster."""


def require_charges(gate: AppGate) -> None:
    """Raise :class:`StorageError` unless the storage decides: it can be charged for all limits. One that cannot be
    charged for some of them may still answer, while workers decide all checks without it; a process that makes no
    checks does not know that."""
    state, storage = storage_state(gate), gate.limiter.storage
    if state.state == "failed":
        raise StorageError(state.error)
    if not (storage.shared and gate.settings.enabled):
        return
    limiters = gate.plans.all_limiters()
    prefixes = {gate.settings.key_prefix, *(each.stem_parts[0] for each in limiters)}
    numbers = range(ON_EACH_SERVER if isinstance(storage, ClusterStorage) else 1)  # functions may have others
    stems = [stem_of(prefix, str(number), "scope") for prefix in prefixes for number in numbers]
    stems += [each.stem for each in limiters if each.declaration.hash_tag == "scope"]
    server_of: Callable[[str], object] = storage.owner_of if isinstance(storage, ClusterStorage) else lambda _: None
    for stem in {(server_of(stem), stem.partition("{")[0]): stem for stem in stems}.values():
        storage.check(probes_like(Hit(stem + rule.key_part, rule) for rule in _PROBED))


def clients_of(storage: Any) -> list[Any]:
    """A client for each server that keeps quotas: one, or the primaries of a cluster. Raises :class:`StorageError`."""
    if isinstance(storage, ClusterStorage):
        return storage.clients
    client = getattr(storage, "client", None)
    return [] if client is None else [client]


Kept = Literal["all", "snapshots", "nothing", "unknown"]
"""What a server has on disk after a restart. Managed servers often do not say."""


def kept_on_disk(client: Any) -> Kept:
    """What the server of ``client`` keeps through a restart."""
    try:
        if client.info("persistence").get("aof_enabled"):
            return "all"
        saves = client.config_get("save")
    except FAILURES:
        return "unknown"
    if "save" not in saves:
        return "unknown"
    return "snapshots" if saves["save"] else "nothing"


def forgets_changes(gate: AppGate) -> bool:
    """Whether changes are known to be lost if the server that keeps them restarts while no worker runs."""
    try:
        return gate.settings.control_copy is None and any(
            kept_on_disk(client) == "nothing" for client in clients_of(gate.limiter.storage)
        )
    except StorageError:
        return False


# Workers


@dataclass(frozen=True, slots=True)
class WorkerInForce(Described):
    """A worker that has served a request and follows changes."""

    name: str
    """Its host and process id."""
    version: int
    """The version of the changes that are in force there."""
    same_limits: bool
    """Whether it declares the same limits as the process that answers."""
    seen: float


@dataclass(frozen=True, slots=True)
class Workers(Described):
    """The workers that have announced themselves in the last seconds."""

    version: int
    """The newest version of the changes."""
    current: int
    """The number of workers that have it in force."""
    same_limits: int
    """The number of workers that declare the same limits as the process that answers."""
    workers: tuple[WorkerInForce, ...]
    unreadable: tuple[str, ...] = ()
    """Announcements that cannot be read."""

    @property
    def agree(self) -> bool:
        return self.current == self.same_limits == len(self.workers) and not self.unreadable

    def __str__(self) -> str:
        total = plural(len(self.workers), "worker")
        same = "yes" if self.same_limits == len(self.workers) else f"only {self.same_limits}"
        text = f"{self.current} of {total} at version {self.version}; limits as in this checkout: {same}"
        if not self.unreadable:
            return text
        return f"{text}; not readable: {', '.join(map(brief, self.unreadable))}"


def workers(gate: AppGate) -> Workers | None:
    """The workers that announce themselves. ``None`` if there are none: nobody shares the storage, it does not answer,
    or no worker has served a request."""
    applier = gate.applier
    store = applier.follower.store
    if not (applier.enabled and store.shared and store.runs):
        return None
    try:
        found = store.workers()
    except StorageError:  # other answers report it
        return None
    own = applier.declared_limits()
    listed = tuple(
        WorkerInForce(each.name, each.version, each.limits == own, each.seen) for each in sorted(found.workers)
    )
    newest = max([applier.follower.version, found.version, *(each.version for each in listed)])
    current = sum(each.version == newest for each in listed)
    same = sum(each.same_limits for each in listed)
    return Workers(newest, current, same, listed, tuple(found.unreadable)) if listed or found.unreadable else None


def known_worker_count(gate: AppGate) -> int | None:
    """How many workers share each limit while the storage is down: those that announce themselves, or else the number
    that this process knows; ``None`` if that is a guess."""
    announced = workers(gate)
    if announced is not None and announced.workers:
        return len(announced.workers)
    state = storage_state(gate)
    return state.workers if state.guarded and state.workers_certain else None
