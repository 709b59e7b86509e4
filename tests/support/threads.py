"""Threads that do the same at once, and what they return; an exception in one of them is raised by the test."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

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
