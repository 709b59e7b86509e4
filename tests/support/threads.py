"""Threads that do the same at once, and what they return; an exception in one of them is raised by the test."""

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from types import ModuleType
from typing import Any, TypeVar

from support.waiting import PATIENCE

T = TypeVar("T")


def in_threads(many: int, act: Callable[[], T]) -> list[T]:
    """What ``act`` returns in each of ``many`` threads."""
    with ThreadPoolExecutor(many) as pool:
        calls = [pool.submit(act) for _ in range(many)]
    return [call.result() for call in calls]


@contextmanager
def under_load(act: Callable[[], object], *, threads: int = 4) -> Iterator[None]:
    """Meanwhile ``threads`` threads call ``act`` again and again."""
    over = threading.Event()

    def keep_acting() -> None:
        while not over.is_set():
            act()

    with ThreadPoolExecutor(threads) as pool:
        calls = [pool.submit(keep_acting) for _ in range(threads)]
        try:
            yield
        finally:
            over.set()
    for call in calls:
        call.result()


def interleaved(
    prepare: Callable[[], T], first: Callable[[T], object], second: Callable[[T], object], *, of: ModuleType
) -> Iterator[T]:
    """What ``prepare`` returns, again and again, after ``first`` was called with it, and another thread has called
    ``second`` before one line of the module ``of``: before another line each time, until ``first`` runs no more."""
    for number in count():
        world = prepare()
        if not _stopped(partial(first, world), partial(second, world), number, of):
            return
        yield world


def _stopped(first: Callable[[], object], second: Callable[[], object], number: int, of: ModuleType) -> bool:
    """Whether ``first`` ran so many lines of the module; before that line, another thread has called ``second``."""
    before, lines, is_stopped = sys.gettrace(), count(), False

    def at_each_line(_: Any, event: str, __: Any) -> Any:
        nonlocal is_stopped
        if event == "line" and next(lines) == number:
            is_stopped = True
            in_threads(1, second)
        return at_each_line

    sys.settrace(lambda frame, *_: at_each_line if frame.f_code.co_filename == of.__file__ else None)
    try:
        first()
    finally:
        sys.settrace(before)
    return is_stopped


class _Garbage:
    """Garbage in a cycle. Its end lets other threads run."""

    def __init__(self, ends: threading.Event, may_end: threading.Event) -> None:
        self._cycle, self._ends, self._may_end = self, ends, may_end

    def __del__(self) -> None:
        self._ends.set()
        self._may_end.wait(PATIENCE)


@contextmanager
def another_collects_garbage() -> Iterator[None]:
    """Meanwhile another thread is amid a garbage collection."""
    ends, may_end = threading.Event(), threading.Event()

    def collect() -> None:
        _Garbage(ends, may_end)
        gc.collect()

    collecting = threading.Thread(target=collect)
    gc.disable()  # no other thread may end it
    try:
        collecting.start()
        assert ends.wait(PATIENCE)
        yield
    finally:
        may_end.set()
        collecting.join()
        gc.enable()
