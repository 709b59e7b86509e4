"""Waits for what happens in the background."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
SECONDS = 30.0
"""Less than the minute after which many limits and slots are free without what a test waits for."""
PATIENCE = 120.0
"""How long a test waits, also on a busy machine, for what only happens if it works. If it is broken, ten tests can
still fail one after another before CI ends them after 20 minutes, and names none."""
POLL_SECONDS = 0.02


def until(condition: Callable[[], T], seconds: float = SECONDS, *, every: float = POLL_SECONDS) -> T:
    """Wait until ``condition`` returns a true value; returns that value. Fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"it did not happen in time: {found!r}"
        time.sleep(every)
    return found
