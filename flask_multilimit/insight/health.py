"""How the storage does, and how many workers there are, as far as this process knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from redis.exceptions import RedisError

from ..engine import ConfigurationError, StorageError
from ..engine.errors import with_remedy
from ..engine.hits import OnStorageError
from ..engine.storage.redis.uri import address_of
from ..serve.gate import AppGate
from .values import Described

MEANWHILE: Mapping[OnStorageError, str] = {
    "local": "Meanwhile each of {workers} workers admits 1/{workers} of every limit by itself.",
    "allow": "Meanwhile no limit refuses anybody.",
    "deny": "Meanwhile every limited request is refused with 503.",
    "raise": "Meanwhile every limited request fails with an error.",
}


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
    error: str = ""
    meanwhile: str = ""
    """What clients get whenever it is away; ``{workers}`` stands for their number."""
    milliseconds: float | None = None
    """The time that its last answer took; ``null`` if it did not answer, or was not asked."""
    remark: str = ""
    breaker: str = ""
    fallback_keys: int = 0
    """Quotas that this process counts while the storage is away."""
    pending: int = 0
    """Checks that will be charged when the storage is back."""
    given_up: int = 0
    workers: int = 0
    workers_source: str = ""
    workers_certain: bool = True

    def after(self, problem: StorageError | None, milliseconds: float) -> StorageState:
        """The state after the storage was asked."""
        if problem is not None and not self.error:
            return replace(self, state="failed", error=with_remedy(problem))
        return self if self.state == "failed" else replace(self, milliseconds=milliseconds)


def storage_state(gate: AppGate) -> StorageState:
    """The state of the storage, without asking it."""
    storage = gate.limiter.storage
    name, address = type(storage).__name__, address_of(getattr(storage, "client", None))
    try:
        health = gate.limiter.health()
    except ConfigurationError as error:
        return StorageState(name=name, address=address, shared=storage.shared, guarded=False, remark=str(error))
    return StorageState(
        name=name,
        address=address,
        shared=storage.shared,
        guarded=True,
        state=health.state,
        since=health.since,
        meanwhile=MEANWHILE[gate.settings.on_storage_error],
        error=with_remedy(health.error) if health.error is not None and health.state == "failed" else "",
        breaker=health.breaker,
        fallback_keys=health.fallback_keys,
        pending=health.pending,
        given_up=health.given_up,
        workers=health.workers.count,
        workers_source=health.workers.source,
        workers_certain=health.workers.certain,
    )


Kept = Literal["all", "snapshots", "nothing", "unknown"]
"""What a server has on disk after a restart. Managed servers often do not say."""


def kept_on_disk(client: Any) -> Kept:
    """What the server of ``client`` keeps through a restart."""
    try:
        if client.info("persistence").get("aof_enabled"):
            return "all"
        saves = client.config_get("save")
    except (RedisError, OSError):
        return "unknown"
    if "save" not in saves:
        return "unknown"
    return "snapshots" if saves["save"] else "nothing"


def forgets_changes(gate: AppGate) -> bool:
    """Whether changes are known to be lost with a restart of the server that keeps them."""
    client = getattr(gate.limiter.storage, "client", None)
    return client is not None and kept_on_disk(client) == "nothing"
