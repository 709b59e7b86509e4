"""Forks: copy a process while no thread is in the middle of a change, and leave no lock locked in the child.

A lock that another thread holds during a fork would never be released in the child, which does not have that thread,
and what the thread was changing would stay half changed. So a fork first takes all locks, one fork at a time. A server
that forks in C informs Python only afterwards, or not at all, like uWSGI in its default configuration: then the child
notices the fork by itself (:func:`notice_fork`), and gets new locks.

The subprocess module of gevent forks in Python to run another program. That child changes nothing, so such a fork takes
no locks: a greenlet that holds one may be waiting for that program.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from operator import methodcaller
from threading import Lock, RLock
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class Copied(Protocol):
    """An object that is informed in a forked child."""

    def _after_fork_in_child(self) -> None:
        """Give up what belongs to the parent, and make new locks."""


class Locked(Copied, Protocol):
    """An object that must not be copied while another thread is changing it."""

    @property
    def _lock(self) -> Any: ...


class cached_property(functools.cached_property[T]):  # noqa: N801 - as in functools
    """Without its lock of before Python 3.12, which a child of a fork may find locked. Two threads may compute it."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        super().__init__(compute)
        self.lock: Any = nullcontext()


class Lazy(Generic[T]):
    """Calls ``make`` at the first call, and returns its result at every call. Thread-safe.

    For locks and conditions that would otherwise be made at import: with ``--preload``, gunicorn's gevent worker
    patches ``threading`` only later, after the fork.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[str, T] = {}

    def __call__(self) -> T:
        made = self._made.get("it")
        return made if made is not None else self._made.setdefault("it", self._make())


class LateLock(Lazy[Any]):
    """A lock that is made when it is first used, for code that waits for I/O while it holds the lock: one that gevent
    did not replace would stop all greenlets of a worker. A forked child makes its own. ``again``: a thread that holds
    it may take it again.

    Call it to get the lock itself for a ``with`` statement, which only then releases it whatever a signal handler
    raises: methods in Python could be interrupted between the lock and the block.
    """

    def __init__(self, *, again: bool = False) -> None:
        # By name, because gevent may replace the classes until then.
        super().__init__(lambda: threading.RLock() if again else threading.Lock())
        notify_child(self)

    def _after_fork_in_child(self) -> None:
        self._made = {}


class OncePerProcess:
    """Runs ``task`` at the first call in a process, while other threads wait. A call from within the task does nothing.
    If the task raises, the next call runs it again. ``lock``, which a thread may take again, is held meanwhile: that of
    what the task begins, so that a thread that has begun it by itself cannot wait for one that waits for it."""

    def __init__(self, task: Callable[[], None], lock: LateLock) -> None:
        self._task = task
        self._lock = lock
        self.done: bool = False
        self._runs = False
        notify_child(self)

    def __call__(self) -> None:
        if not self.done:
            notice_fork()
            with self._lock():
                self._run()

    def _run(self) -> None:
        if not self.done and not self._runs:
            self._runs = True
            try:
                self._task()
                self.done = self._runs  # False in a child of a fork within the task
            finally:
                self._runs = False

    def _after_fork_in_child(self) -> None:
        self.done = self._runs = False


_outer: weakref.WeakSet[Locked] = weakref.WeakSet()
_inner: weakref.WeakSet[Locked] = weakref.WeakSet()
_notified: weakref.WeakSet[Copied] = weakref.WeakSet()


class _Process:
    def __init__(self) -> None:
        self.id = os.getpid()
        """The process that is ready for work: it differs from this one in a child that has not noticed its fork."""
        self.noticing = RLock()  # a signal handler may notice it, too
        self.forking = Lock()
        """Held during a fork: one at a time."""


_process = _Process()


def lock_for_forks(one: Locked, *, inner: bool = False) -> None:
    """Let no fork happen while a thread holds the lock of ``one``, as long as ``one`` exists. ``inner``: a thread that
    takes this lock may already hold one that is not inner."""
    (_inner if inner else _outer).add(one)


def notify_child(one: Copied) -> None:
    """Notify ``one`` in a forked child. The fork takes no lock of it: every state of it is sound in the child, or the
    child replaces it."""
    _notified.add(one)


def notice_fork() -> None:
    """In a child of a fork of which Python was not informed, do now what is done after a fork. Call this before a
    process does its first work."""
    if os.getpid() == _process.id:  # without the lock, which a fork could copy while it is held
        return
    with _process.noticing:
        if os.getpid() != _process.id:
            _after_in_child()


def _locked() -> list[Locked]:
    return listed(_outer) + listed(_inner)


def listed(some: weakref.WeakSet[T]) -> list[T]:
    """The members of ``some``, also while other threads add more."""
    while True:
        with suppress(RuntimeError):  # another thread has just added one
            return list(some)


class _ForkOfThread(threading.local):
    runs_program = False
    """Whether a fork of this thread is followed by another program."""

    def __init__(self) -> None:
        self.held: list[Any] = []
        """The locks that its fork has taken."""


_this_thread = _ForkOfThread()


@contextmanager
def forking_for_programs() -> Iterator[None]:
    """Within the block, this thread forks only to run other programs."""
    _this_thread.runs_program = True
    try:
        yield
    finally:
        _this_thread.runs_program = False


# A signal handler may raise in these, which CPython ignores: the fork goes on. So each lock is taken and recorded, or
# forgotten and released, in one step of an iterator, which nothing interrupts.
_acquire, _release = methodcaller("acquire"), methodcaller("release")


def _before() -> None:
    if _this_thread.runs_program:
        return
    held = _this_thread.held
    held.extend(filter(_acquire, [_process.forking]))
    locks = [one._lock for one in _locked()]
    held.extend(filter(_acquire, [lock() if isinstance(lock, LateLock) else lock for lock in locks]))


def _after_in_parent() -> None:
    with suppress(IndexError):  # of the last step
        deque(map(_release, iter(_this_thread.held.pop, None)), maxlen=0)


def _after_in_child() -> None:
    if _this_thread.runs_program:
        return
    _process.forking = Lock()
    _this_thread.held.clear()
    try:
        with ExitStack() as callbacks:  # calls all of them, even if one raises
            for one in _locked() + listed(_notified):
                callbacks.callback(one._after_fork_in_child)
    finally:
        _process.id = os.getpid()  # last: until then, other threads wait in notice_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
    os.register_at_fork(after_in_parent=_after_in_parent)  # what the first one leaves, if it is interrupted at once


# Servers that fork


def worker_of_gunicorn() -> Any:
    """The object of gunicorn for this process, if this is one of its workers; otherwise ``None``, or its master."""
    if "gunicorn.workers.base" not in sys.modules:  # so never on Windows, which lacks the signal
        return None
    signals = sys.modules["signal"]  # gunicorn has imported it; nothing else at a start needs its enumerations
    return getattr(signals.getsignal(signals.SIGUSR1), "__self__", None)  # every kind of worker handles this signal


def master_of_this_process() -> int | None:
    """The process that starts another one when this one ends, if that is known."""
    uwsgi = sys.modules.get("uwsgi")  # the server provides it; there is no such package
    if uwsgi is not None:
        return uwsgi.masterpid() or None
    return getattr(worker_of_gunicorn(), "ppid", None)
