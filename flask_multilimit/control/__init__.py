"""Changes while the app runs: overrides, allow and deny lists, bans."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..declare.addresses import Who
    from ..declare.written import InvalidData, Mistake
    from ..following import follow_control
    from .control import Control, ControlConflict, Difference, NeedsForce, Preview, Terms
    from .entries import Listing, Override

__all__ = [
    "Control",
    "ControlConflict",
    "Difference",
    "InvalidData",
    "Listing",
    "Mistake",
    "NeedsForce",
    "Override",
    "Preview",
    "Terms",
    "Who",
    "follow_control",
]

_ROOMS = {
    "InvalidData": "..declare.written",
    "Listing": ".entries",
    "Mistake": "..declare.written",
    "Override": ".entries",
    "Who": "..declare.addresses",
    "follow_control": "..following",
}
"""Where names are that are not in ``control.py``."""


def __getattr__(name: str) -> Any:
    """Import a name on first use: only code that changes limits needs them."""
    if name in __all__:
        return getattr(import_module(_ROOMS.get(name, ".control"), __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
