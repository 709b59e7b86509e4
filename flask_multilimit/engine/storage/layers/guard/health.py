"""How a storage stands, as far as this process knows."""

from __future__ import annotations

import time
from typing import Literal, NamedTuple

from ....errors import ConfigurationError, StorageError, brief
from .workers import Workers

_STARTED = time.time()


class Health(NamedTuple):
    """How a storage stands, as far as this process knows."""

    state: Literal["working", "failed"]
    """``failed`` until the storage is back and has been charged for what was admitted during the outage."""
    since: float
    """POSIX time; for display only."""
    error: StorageError | None
    """The latest error; it stays when the storage works again."""
    breaker: Literal["closed", "open", "half-open"]
    """``open``: no check asks the storage. ``half-open``: checks ask it again, while it is charged for what
    was admitted during the outage."""
    fallback_keys: int
    """Keys that this process is counting by itself."""
    pending: int
    """Admitted checks that are still to be charged to the storage."""
    given_up: int
    """Admitted checks of this or the last outage that could not be charged."""
    workers: Workers
    """Processes that share a limit while the storage is away."""

    @classmethod
    def of_this_process(cls) -> Health:
        """The health of a storage in this process, which cannot fail."""
        return cls("working", _STARTED, None, "closed", 0, 0, 0, Workers(1, "memory of this process"))


def check_on_change(on_change: object) -> None:
    """Raise :class:`ConfigurationError` unless ``on_change`` can be told of a :class:`Health`, or is ``None``."""
    if on_change is not None and not callable(on_change):
        raise ConfigurationError(f"on_change={brief(on_change)}: give a callable with the Health")
