"""Lets limits of tasks and scripts be changed while these run, like the limits of views."""

from __future__ import annotations

import logging

from .control.document import Document
from .control.store import Store, store_for
from .control.watch import ControlFollower
from .engine import ConfigurationError, Hits, Limiter
from .engine.errors import brief, check_logger
from .engine.forks import OncePerProcess
from .engine.keys import DEFAULT_PREFIX, checked_prefix
from .plan.endpoint import revised
from .plan.overrides import Overrides


def follow_control(limiter: Limiter, *, key_prefix: str = DEFAULT_PREFIX, logger: logging.Logger | None = None) -> None:
    """Apply overrides to the checks of ``limiter`` whose hits come from :func:`hits_for`, in a process without an app.

    Overrides of a scope are set by ``multilimit.control`` or ``flask multilimit set SCOPE ...``, and apply within a
    second. The first check in a process reads them once; from then on a thread reads them. ``key_prefix`` is the
    ``MULTILIMIT_KEY_PREFIX`` of the app. Raises :class:`ConfigurationError` if the storage is in this process, where
    nobody else can change anything. The limiter of an app follows already.
    """
    if not isinstance(limiter, Limiter):
        raise ConfigurationError(f"limiter={brief(limiter)}: give the engine's Limiter")
    key_prefix = checked_prefix(key_prefix)
    check_logger(logger)
    if limiter.follows:
        raise ConfigurationError("this limiter follows already")
    store = store_for(limiter.storage, prefix=key_prefix)
    if not store.shared:
        raise ConfigurationError("memory:// is in this process, so nobody else can change its limits: share a storage")
    limiter.follow(_Following(store, logger).apply_overrides)


class _Following:
    """Fork-safe: a child reads the overrides again, with a thread of its own."""

    def __init__(self, store: Store, logger: logging.Logger | None) -> None:
        self._overrides = Overrides()
        self._follower = ControlFollower(store, take=self._take, report=lambda _: None, logger=logger)
        self._keep_up = OncePerProcess(self._follower.start, self._follower.lock)

    def apply_overrides(self, hits: Hits) -> Hits | None:
        self._keep_up()
        return revised(hits, self._overrides) if self._overrides else hits

    def _take(self, document: Document) -> None:
        if document.overrides != self._overrides.entries:  # these know what they have found and logged
            self._overrides = Overrides(document.overrides)
