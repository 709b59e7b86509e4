"""The Python functions that something calls."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import flask_multilimit

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGE = str(Path(flask_multilimit.__file__).parent)


def calls_during(action: Callable[[], object]) -> list[str]:
    """The functions of ours that were called, in order. Garbage of earlier work is not collected meanwhile."""
    called: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            called.append(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}")

    earlier = sys.getprofile()
    gc.disable()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(earlier)
        gc.enable()
    return called
