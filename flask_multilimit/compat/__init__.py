"""Bridges from other limiters, which use only public names of this package. No other part of it imports them."""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import walk_packages
from types import FunctionType, ModuleType

from flask_multilimit import ConfigurationError

_THEIRS = "flask_limiter"


def install() -> None:
    """Let ``import flask_limiter`` find :mod:`flask_multilimit.compat.flask_limiter`, in this process from now on.

    For frameworks that import Flask-Limiter themselves: call it before you import them. Raises
    :class:`ConfigurationError` if a module has imported Flask-Limiter already. The ``flask`` command also loads
    Flask-Limiter, as a plugin; that does no harm.
    """
    ours = f"{__name__}.{_THEIRS}"
    found = sys.modules.get(_THEIRS)
    if found is not None and found.__name__ != ours:
        _require_unused()
        for name in [name for name in sys.modules if _is_theirs(name)]:
            del sys.modules[name]
    package = sys.modules[_THEIRS] = import_module(ours)
    for _, name, _ in walk_packages(package.__path__, f"{ours}."):
        # All of them: Python would load a module that is missing here once more, and its classes would differ.
        sys.modules[f"{_THEIRS}{name.removeprefix(ours)}"] = import_module(name)


def _require_unused() -> None:
    for name, module in list(sys.modules.items()):
        held = list(vars(module).values()) if issubclass(type(module), ModuleType) else []  # it may also be None
        if not _is_theirs(name) and any(_is_theirs(_origin_of(value)) for value in held):
            raise ConfigurationError(
                f"compat.install(): {name} has imported flask_limiter already; call install() before it does. "
                "The flask command loads the plugins of all packages before your app: start it from a script "
                'that calls install() first, see "Migrate from Flask-Limiter" in the documentation'
            )


def _origin_of(value: object) -> str:
    """The module of a class, function or instance; of a module, its own name. A proxy is not asked for its object."""
    kind = type(value)
    if issubclass(kind, ModuleType):
        return str(vars(value).get("__name__"))
    named = value if issubclass(kind, (type, FunctionType)) else kind
    return str(named.__module__)


def _is_theirs(module: str) -> bool:
    return module.partition(".")[0] == _THEIRS
