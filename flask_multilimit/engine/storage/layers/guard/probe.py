"""The thread that asks, off the request path, whether the storage is back."""

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Callable, Iterable
from threading import Event, Lock, Thread

from ....errors import StorageError
from ....forks import tell_child
from ....hits import Hit
from ....keys import beside
from ....rules import Rule
from .fallback import UNLIMITED

PROBE_SECONDS = 0.9
"""The least between two probes. With the time of an answer, it is less than a second."""
FIRST_PROBE = (0.05, 0.15)
"""Seconds after a failure, chosen at random so that not all workers ask at once. A hiccup is over by then."""


class Prober:
    """Calls ``attempt`` in a thread of its own, about once a second, until nothing is left to do.

    ``attempt`` raises :class:`StorageError` if the storage is still away; then ``failed`` is called with it. Both
    ``failed`` and ``is_done`` are called under ``lock``, so that a check that leaves something to do while the last
    attempt ends starts another thread. ``cannot_start`` is called if the system has no thread left. The thread ends
    when the prober is garbage.
    """

    def __init__(
        self,
        attempt: Callable[[], object],
        *,
        is_done: Callable[[], bool],
        failed: Callable[[StorageError], object],
        cannot_start: Callable[[RuntimeError], object],
    ) -> None:
        self._attempt, self._is_done, self._failed, self._cannot_start = attempt, is_done, failed, cannot_start
        self._thread: Thread | None = None
        self._stopped = Event()
        self._last = 0.0
        tell_child(self)

    def ensure(self, lock: Lock) -> None:
        """Start the thread unless it runs."""
        thread = self._thread
        if thread is not None and thread.is_alive():  # after a fork, it is not
            return
        with lock:
            if self._stopped.is_set() or self._thread is not thread:
                return
            arguments = (weakref.ref(self), lock, self._stopped)
            thread = Thread(target=_run, args=arguments, name="multilimit-probe", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no thread left, or the interpreter is ending: the next check tries again
                self._cannot_start(error)
                return
            self._thread = thread

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=PROBE_SECONDS)

    def _after_fork_in_child(self) -> None:
        """The thread belongs to the parent, and may have held the lock of the event."""
        stopped, self._stopped = self._stopped, Event()
        if stopped.is_set():
            self._stopped.set()
        self._thread = None

    def _wait(self, wait: float) -> float:
        return max(wait, self._last + PROBE_SECONDS - time.monotonic())

    def _ask(self, lock: Lock) -> bool:
        """Make one attempt. Return whether nothing is left to do."""
        self._last = time.monotonic()
        try:
            self._attempt()
        except StorageError as error:
            with lock:
                self._failed(error)
            return False
        with lock:
            if not self._is_done():
                return False
            self._thread = None
            return True


def _run(prober: weakref.ref[Prober], lock: Lock, stopped: Event) -> None:
    """Holds no reference to the prober between two attempts, so that it is garbage when its app is."""
    wait = random.uniform(*FIRST_PROBE)
    while (found := prober()) is not None:
        wait = found._wait(wait)
        del found
        if stopped.wait(wait):
            return
        found = prober()
        if found is None or found._stopped is not stopped:  # copied into a child, which has its own
            return
        if found._ask(lock):
            return
        wait = 0.0
        del found


def probes_like(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    """Hits that write wherever ``hits`` would (same prefixes, same slots), and expire in a second."""
    keys = dict.fromkeys(beside(hit.key, "probe::fixed_window:1000") for hit in hits)
    return tuple(Hit(key, Rule(1, UNLIMITED, algorithm="fixed_window")) for key in keys)
