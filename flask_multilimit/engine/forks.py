"""Forks: a process is copied while no thread is in the middle of anything, and no lock stays locked in the child.

A lock that another thread holds at that instant would never be released in the child, because the thread is not there,
and what it was writing would stay half written. So a fork takes all locks first, one fork at a time. A server that
forks by itself, as uWSGI does, tells Python only afterwards; then the child gets new locks.
"""

from __future__ import annotations

import os
import weakref
from contextlib import ExitStack
from threading import Lock
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Copied(Protocol):
    """What is told when it is the copy in a child."""

    def _after_fork_in_child(self) -> None:
        """Leave to the parent what is its, and make new locks."""


class Locked(Copied, Protocol):
    """What is not to be copied while another thread is in the middle of it."""

    _lock: Any


_one_at_a_time = Lock()
_outer: weakref.WeakSet[Locked] = weakref.WeakSet()
_inner: weakref.WeakSet[Locked] = weakref.WeakSet()
_told: weakref.WeakSet[Copied] = weakref.WeakSet()
_held: list[Any] = []


def mind_forks(one: Locked, *, inner: bool = False) -> None:
    """Copy it in one piece, from now on until it is collected. ``inner``: who takes its lock may hold an outer one
    already."""
    (_inner if inner else _outer).add(one)


def tell_child(one: Copied) -> None:
    """That it is a copy, and no more: where each step leaves it sound, or the child begins anew."""
    _told.add(one)


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
    with ExitStack() as each:  # also those that come after one that fails
        for one in _locked() + _listed(_told):
            each.callback(one._after_fork_in_child)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
