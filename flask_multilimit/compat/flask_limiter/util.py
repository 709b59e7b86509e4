"""Functions that apps written for Flask-Limiter use as ``key_func``."""

from __future__ import annotations

from typing import Any

from flask import request


def get_remote_address() -> str:
    """The address of the client; ``127.0.0.1`` if it is not known. Each IPv6 address is one client."""
    return request.remote_addr or "127.0.0.1"


def get_qualified_name(function: Any) -> str:
    """The name of a decorated function: functions with one name share their limits."""
    name = getattr(function, "__name__", type(function).__name__)
    qualified = getattr(function, "__qualname__", name)
    return f"{function.__module__}:{qualified}" + ("" if qualified.rpartition(".")[2] == name else f" ({name})")
