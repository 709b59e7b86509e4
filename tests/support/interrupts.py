"""Exceptions at any point of our code, as signal handlers, thread killers and greenlet timeouts raise them."""

import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from types import FrameType
from typing import Any


class Interrupt(BaseException):
    """Raised by no code of ours."""


def interrupted(act: Callable[[], object], *, of: str = "flask_multilimit") -> Iterator[str]:
    """Call ``act`` again and again, and raise :class:`Interrupt` in it at another point each time. Yield the point
    after the call; end when a call meets no more points.

    CPython raises what a signal handler raises when a function begins, and when a call of a function in C returns. Only
    the package ``of`` this name is interrupted, and what it calls of ``threading``. No ``with`` is interrupted between
    the return of ``__enter__`` and its block: CPython 3.14 does that, and leaves every lock locked.
    """
    for number in count():
        point = _call_and_interrupt(act, number, of)
        if point is None:
            return
        yield point


def _is_in(package: str, frame: FrameType) -> bool:
    return f"/{package}/" in frame.f_code.co_filename or frame.f_code.co_filename == threading.__file__


def _call_and_interrupt(act: Callable[[], object], number: int, package: str) -> str | None:
    met, points = count(), list[str]()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_lasti >= 0 and sys.version_info < (3, 11):
            return  # a generator goes on: an exception of a profiler ends it without its finally there, no handler does
        if event == "c_return" and getattr(argument, "__name__", None) == "__enter__":
            return
        if event in {"call", "c_return"} and not points and _is_in(package, frame) and next(met) == number:
            points.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {event} {argument}")
            raise Interrupt(*points)

    before = sys.getprofile()
    try:
        sys.setprofile(profile)
        act()
    except Interrupt:
        pass
    finally:
        sys.setprofile(before)
    return points[0] if points else None
