"""Threads that do the same at once, and what they return; an exception in one of them is raised by the test."""

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

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
