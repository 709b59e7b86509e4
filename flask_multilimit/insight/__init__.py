"""Facts about limits, traffic, clients and changes, as values that all commands, pages and JSON documents show."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import clients, keys, openapi, standing, traffic

__all__ = ["clients", "keys", "openapi", "standing", "traffic"]


def __getattr__(name: str) -> Any:
    """Import a room on first use: a process that only serves requests starts a sixth of a second sooner without."""
    if name in __all__:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
