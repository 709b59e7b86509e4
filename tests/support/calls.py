"""Records the Python functions of the package that a piece of code calls, and counts the lines that it runs."""

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

import flask_multilimit

PACKAGE = Path(flask_multilimit.__file__).parent


def calls_during(action: Callable[[], object]) -> list[str]:
    """The called functions of the package, in order, by file and name, and ``perf_counter`` where the package calls it.
    The garbage collector is off during the action."""
    called: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(PACKAGE):
            called.append(f"{file.relative_to(PACKAGE).as_posix()}:{frame.f_code.co_name}")
        elif event == "c_call" and argument is perf_counter and file.is_relative_to(PACKAGE):
            called.append("perf_counter")

    earlier = sys.getprofile()
    gc.disable()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(earlier)
        gc.enable()
    return called


def lines_during(action: Callable[[], object]) -> int:
    """How many lines of Python the action runs."""
    lines = 0

    def count(_: FrameType, event: str, __: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    earlier = sys.gettrace()
    gc.disable()
    sys.settrace(count)
    try:
        action()
    finally:
        sys.settrace(earlier)
        gc.enable()
    return lines
