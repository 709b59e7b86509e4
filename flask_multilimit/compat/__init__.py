"""Bridges from other limiters. Nothing else here imports them; they stand on the public names of this package."""

from __future__ import annotations

import sys
from importlib import import_module

from flask_multilimit import ConfigurationError

_THEIRS = "flask_limiter"
_MODULES = ("", ".commands", ".constants", ".contrib", ".contrib.util", ".errors", ".util")
"""Of Flask-Limiter: what apps and frameworks import."""


def install() -> None:
    """Let ``import flask_limiter`` find :mod:`flask_multilimit.compat.flask_limiter`, in this process from now on.

    For frameworks that import Flask-Limiter themselves: call it before you import them. Raises
    :class:`ConfigurationError` when Flask-Limiter itself is imported already.
    """
    ours = f"{__name__}.{_THEIRS}"
    found = sys.modules.get(_THEIRS)
    if found is not None and found.__name__ != ours:
        raise ConfigurationError(
            "compat.install(): flask_limiter is imported already; call install() before anything imports it"
        )
    for module in _MODULES:
        sys.modules[f"{_THEIRS}{module}"] = import_module(f"{ours}{module}")
