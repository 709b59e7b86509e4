"""Forks: copy a process while no thread is in the middle of a change, and leave no lock locked in the child.

A lock that another thread holds during the fork would never be released in the child, which does not have that thread,
and what the thread was changing would stay half changed. So a fork takes all locks first, one fork at a time. A server
that forks in C, such as uWSGI, informs Python only afterwards; then the child gets new locks.
"""

from __future__ import annotations

import os
import weakref
from contextlib import ExitStack
from threading import Lock
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Copied(Protocol):
    """An object that is informed in a forked child."""

    def _after_fork_in_child(self) -> None:
        """Give up what belongs to the parent, and make new locks."""


class Locked(Copied, Protocol):
    """An object that must not be copied while another thread is changing it."""

    @property
    def _lock(self) -> Any: ...


_one_at_a_time = Lock()
_outer: weakref.WeakSet[Locked] = weakref.WeakSet()
_inner: weakref.WeakSet[Locked] = weakref.WeakSet()
_notified: weakref.WeakSet[Copied] = weakref.WeakSet()
_held: list[Any] = []


def lock_for_forks(one: Locked, *, inner: bool = False) -> None:
    """Fork only while no thread holds the lock of ``one``, as long as it exists. ``inner``: a thread that takes its
    lock may already hold an outer one."""
    (_inner if inner else _outer).add(one)


def notify_child(one: Copied) -> None:
    """Notify ``one`` in a forked child, without its lock: any state of it is sound, or the child starts over."""
    _notified.add(one)


def _locked() -> list[Locked]:
    return _listed(_outer) + _listed(_inner)


def _listed(some: weakref.WeakSet[T]) -> list[T]:
    try:
        return list(some)
    except RuntimeError:  # another thread has added one meanwhile
        return _listed(some)


def _before() -> None:
    _one_at_a_time.acquire()
    for one in _locked():
        lock = one._lock
        lock.acquire()
        _held.append(lock)


def _after_in_parent() -> None:
    while _held:
        _held.pop().release()
    _one_at_a_time.release()


def _after_in_child() -> None:
    global _one_at_a_time  # noqa: PLW0603 - the old one is locked
    _one_at_a_time = Lock()
    _held.clear()
    with ExitStack() as each:  # all of them, even if one raises
        for one in _locked() + _listed(_notified):
            each.callback(one._after_fork_in_child)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
