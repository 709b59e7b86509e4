"""Background threads, also under servers that forbid threads or replace what threads are made of."""

from __future__ import annotations

import atexit
import gc
import logging
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import dropwhile
from math import inf
from traceback import walk_stack
from typing import Any, Protocol

from .forks import Lazy, listed, notify_child
from .text import SafeLogger

NEVER = inf
"""An instant that does not come."""
RETRY_SECONDS = 1.0
"""A task that raises runs again after this time."""
ENDING_SECONDS = 2.0
"""The longest time that the end of a process waits for a running task, which may be sending something."""


class Beat:
    """Runs ``task`` off the request path, repeatedly, in a daemon thread that lives while there is something to do.

    ``task`` returns the seconds after which it runs again, or ``None`` if nothing is left to do: then the thread ends,
    and the next :meth:`wake` starts another. If it raises, that is logged, and it runs again after a second. If the
    thread runs when the process ends, ``last`` is called then (:meth:`finish`). The thread does not keep the beat
    alive: it ends when the beat is garbage. A forked child starts without a thread. Each task that waits for a server
    has a beat of its own, so that none waits for the server of another. ``clock`` returns seconds.
    """

    def __init__(
        self,
        task: Callable[[], float | None],
        *,
        name: str,
        logger: logging.Logger | None = None,
        last: Callable[[], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.wakes_at: float = NEVER
        """When the task runs next; :data:`NEVER` while it runs and while there is no thread. A caller may skip a
        :meth:`wake` that is not sooner."""
        self._task = task
        self._name = name
        self._logger = SafeLogger(logger)
        self._last = last
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._turn: object | None = None
        """Identifies the thread that may run. Any other thread ends."""
        self._condition = _new_condition()
        notify_child(self)
        if last is not None:
            _with_last.add(self)

    @property
    def running(self) -> bool:
        """Whether there is a thread."""
        return self._turn is not None

    def wake(self, at: float = 0.0) -> None:
        """Run the task at the instant ``at`` of the clock or sooner; by default at once."""
        if at >= self.wakes_at:
            return
        lock, condition = self._condition()
        with lock:
            if at >= self.wakes_at:
                return
            if self._turn is None:
                self._start(at)
            else:
                condition.notify_all()
                self.wakes_at = at  # last, because a signal handler may raise before it

    def close(self, *, wait: float = 0.0) -> bool:
        """Let the thread end, and wait for that at most ``wait`` seconds; return whether it has ended. A later
        :meth:`wake` starts another."""
        lock, condition = self._condition()
        with lock:
            thread, self._turn, self.wakes_at = self._thread, None, NEVER
            condition.notify_all()
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join(wait)
        return thread is None or not thread.is_alive()

    def finish(self, *, wait: float) -> None:
        """:meth:`close`, then call ``last``; but not if the task runs for longer than ``wait``, because ``last`` might
        hang as it does."""
        if self.close(wait=wait) and self._last is not None:
            self._last()

    def _start(self, at: float) -> None:
        """Start a thread that runs the task at the instant ``at``. The caller holds the lock of the condition."""
        turn = object()
        arguments = weakref.ref(self), self._condition()[1], turn
        thread = threading.Thread(target=_run, args=arguments, name=self._name, daemon=True)
        try:
            if sys.is_finalizing():  # until Python 3.12, start() would wait for ever
                raise RuntimeError("the interpreter is ending")
            self._turn, self.wakes_at = turn, at
            thread.start()
        except BaseException as error:  # the next wake tries again; a thread that did start ends
            self._turn, self.wakes_at = None, NEVER
            if not isinstance(error, RuntimeError):  # as of a signal handler
                raise
            # No thread is left, or the interpreter is ending.
            self._logger.warning("Rate limits: could not start the background thread %s: %s", self._name, error)
        else:
            self._thread = thread

    def _run_once(self, turn: object) -> None:
        try:
            pause = self._task()
        except Exception:
            self._logger.exception("Rate limits: %r raised in the background", self._task)
            pause = RETRY_SECONDS
        if pause is not None:
            with self._condition()[0]:
                if self._turn is turn:
                    self.wakes_at = min(self.wakes_at, self._clock() + pause)

    def _seconds_until_due(self, turn: object) -> float | None:
        """Seconds until the task is due; ``None`` if the thread of ``turn`` must end. The caller holds the lock."""
        if self._turn is not turn:
            return None
        if self.wakes_at == NEVER:
            self._turn = None
            return None
        left = self.wakes_at - self._clock()
        if left <= 0:
            self.wakes_at = NEVER  # a concurrent wake() waits for the lock, and then sets it
        return left

    def _end(self, turn: object) -> None:
        with self._condition()[0]:
            if self._turn is turn:
                self._turn, self.wakes_at = None, NEVER

    def _after_fork_in_child(self) -> None:
        self._condition = _new_condition()
        self._thread = self._turn = None
        self.wakes_at = NEVER


def _new_condition() -> Lazy[tuple[Any, threading.Condition]]:
    """Makes a condition, late because the classes may be patched until then, and its lock: ``with condition`` is a
    method in Python, which a signal handler may interrupt after it has taken the lock."""

    def make() -> tuple[Any, threading.Condition]:
        lock = threading.RLock()
        return lock, threading.Condition(lock)

    return Lazy(make)


def _run(beating: weakref.ref[Beat], condition: threading.Condition, turn: object) -> None:
    """Run in the thread."""
    try:
        while _wait(beating, condition, turn):
            beat = beating()
            if beat is None:
                return
            beat._run_once(turn)
            del beat
    finally:
        if (beat := beating()) is not None:
            beat._end(turn)  # gevent may have killed the thread: the next wake starts another


def _wait(beating: weakref.ref[Beat], condition: threading.Condition, turn: object) -> bool:
    """Wait until the task is due; ``False`` if the thread must end."""
    with condition:
        while (beat := beating()) is not None and (left := beat._seconds_until_due(turn)) is not None:
            del beat
            if left <= 0:
                return True
            condition.wait(left)
        return False


class Ending(Protocol):
    """An object with work to do when the process ends."""

    def _at_end(self) -> None:
        """Do that work."""


_with_last: weakref.WeakSet[Beat] = weakref.WeakSet()
_ending: weakref.WeakSet[Ending] = weakref.WeakSet()


def notify_at_end(one: Ending) -> None:
    """Notify ``one`` when the process ends, after the last runs of all beats."""
    _ending.add(one)


@atexit.register
def _end() -> None:
    with ExitStack() as tasks:  # runs all of them, even if one raises; those added last first
        for one in listed(_ending):
            tasks.callback(one._at_end)
        for beat in listed(_with_last) * 3:  # a settlement may leave an outage work, and its end what counts events
            tasks.callback(_finish, beat)


def _finish(beat: Beat) -> None:
    if beat.running:
        beat.finish(wait=ENDING_SECONDS)


class _Children:
    """Registers :func:`_end` in children of ``multiprocessing``. They end without ``atexit``, but with finalizers, and
    begin by forgetting the finalizers of their parent."""

    def __init__(self) -> None:
        self._is_registered = False
        self._after_fork_in_child()
        notify_child(self)
        process = sys.modules.get("multiprocessing.process")
        if process is not None and process.parent_process() is not None:  # the child itself imports this, as Granian's
            _register_finalizer()

    def _after_fork_in_child(self) -> None:
        util = sys.modules.get("multiprocessing.util")  # other processes need not load it
        if util is not None and not self._is_registered:
            self._is_registered = True
            util.register_after_fork(self, lambda _: _register_finalizer())


def _register_finalizer() -> None:
    sys.modules["multiprocessing.util"].Finalize(None, _end, exitpriority=0)


_children = _Children()


# Dropped objects

ENDS_ANYWHERE = sys.implementation.name != "cpython" or "free-threading" in sys.version
"""Whether a dropped object may end at any point of any code: without the GIL, another thread may drop it."""
_identify = getattr(threading, "get_native_id", threading.get_ident)  # gevent replaces the latter by one in Python
_phases: dict[str, int] = defaultdict(_identify, start=0, stop=0)
"""Its last key is ``"start"`` while a thread, whose id is there, collects garbage; ``"stop"`` afterwards."""


def interrupts() -> bool:
    """Whether the caller may be the end of a dropped object that interrupts other code of this thread, perhaps inside
    of a lock that it needs: this thread collects garbage, or it interrupts code of this package."""
    if not ENDS_ANYWHERE:
        return next(reversed(_phases), "") == "start" and _phases.get("start") == _identify()
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in walk_stack(sys._getframe())]
    below = dropwhile(lambda module: module.startswith("flask_multilimit."), modules)
    return any(module.startswith(_WITH_LOCKS) for module in below)


_WITH_LOCKS = ("flask_multilimit.engine.", "flask_multilimit.observe.")

# Not functions in Python: these let other threads run amid an allocation, and then CPython 3.11 crashes if two threads
# are the first that need the __dict__ of one object. So format() reads the phase that was removed, which adds it again
# with the id of the thread. PyPy has no callbacks.
getattr(gc, "callbacks", []).extend([_phases.pop, partial("{0[start]}{0[stop]}".format, _phases)])


# uWSGI


def threads_run() -> bool:
    """Whether background threads can run. uWSGI knows it, a module that the server provides."""
    return bool(getattr(sys.modules.get("uwsgi"), "has_threads", True))


def in_master_of_uwsgi() -> bool:
    """Whether this process is the master of uWSGI, which forks its workers."""
    uwsgi = sys.modules.get("uwsgi")
    return uwsgi is not None and not uwsgi.worker_id()
