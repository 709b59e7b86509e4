"""Runs work in a forked child, and returns its result."""

import multiprocessing
from collections.abc import Callable
from typing import TypeVar

from support.waiting import PATIENCE

T = TypeVar("T")

FORKS = multiprocessing.get_context("fork")


def forked(work: Callable[[], T]) -> Callable[[], T]:
    """Fork a child that does ``work``. The returned function waits for the result; it raises EOFError if ``work``
    raised or hangs."""
    reader, writer = FORKS.Pipe(duplex=False)
    child = FORKS.Process(target=lambda: writer.send(work()), daemon=True)
    child.start()
    writer.close()

    def found() -> T:
        with reader:
            if not reader.poll(PATIENCE):
                child.kill()
            answer: T = reader.recv()
        child.join()
        return answer

    return found
