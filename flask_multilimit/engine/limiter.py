"""Limiter: the engine's face. Check, peek, refund, reset, without Flask."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from .decision import Decision, Hit
from .errors import ConfigurationError
from .storage import storage_from


class Limiter:
    """Asks a storage whether hits may pass, all or nothing.

    ``storage`` is a URI (``memory://``, ``redis://localhost``), a client object of ``redis``, or a
    :class:`Storage`. Thread-safe.

    .. code-block:: python

        limiter = Limiter("redis://localhost")
        decision = limiter.check(hits_for("5/second; 100/minute", scope="send-mail", subject=user_id))
        if not decision.allowed:
            raise TryLater(decision.retry_after)
    """

    def __init__(self, storage: Any = "memory://") -> None:
        self.storage = storage_from(storage)

    def check(self, hits: Iterable[Hit], *, check_id: UUID | None = None) -> Decision:
        """Charge every hit if all of them allow, else none; one round trip.

        Repeating a check with the ``check_id`` it had (``decision.id``, or one of your own) charges once, as
        long as one of its rules is a ``sliding_window``, which remembers ids for the length of its window.
        Raises :class:`StorageError`, and :class:`ConfigurationError` for no hits or two with one key.
        """
        return self.storage.check(_checked(hits), check_id)

    def peek(self, hits: Iterable[Hit]) -> Decision:
        """What :meth:`check` would answer now, without charging anything."""
        return self.storage.peek(_checked(hits))

    def refund(self, decision: Decision) -> None:
        """Take back what the check behind ``decision`` has charged; nothing if it was refused.

        Exact for ``sliding_window`` and, within the windows they count, ``fixed_window`` and
        ``sliding_window_counter``. The other algorithms do not know whose units they are: they take back what of
        the charge has not come back by itself since, which is exact when nobody came in between and else less.
        A decision is refunded once; again, or when its units have come back, nothing happens.
        """
        if decision.allowed and not decision.refunded:
            object.__setattr__(decision, "refunded", True)
            self.storage.refund(decision)

    def reset(self, hits: Iterable[Hit]) -> None:
        """Make the quotas of ``hits`` whole again, at once and for everyone who shares them."""
        self.storage.reset([hit.key for hit in hits])

    def close(self) -> None:
        """Give back the connections the storage has opened itself."""
        self.storage.close()


def _checked(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    checked = tuple(hits)
    if not checked:
        raise ConfigurationError("no hits: a check of nothing would let everything pass")
    if len({hit.key for hit in checked}) != len(checked):
        keys = [hit.key for hit in checked]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ConfigurationError(f"two hits have the key {twice!r}: give one rule, or different scopes or types")
    return checked
