"""Joins the Lua files into one script for each set of algorithms: prelude, algorithms, driver."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from ... import algorithms
from ...algorithms import ALGORITHMS

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable  # from Python 3.11 on

_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One script and its digest."""

    text: str
    sha: str
    """What EVALSHA calls it by."""


@cache
def script(driver: str, names: frozenset[str]) -> Script:
    """``driver`` ("check" or "refund") with the algorithms ``names`` and no others."""
    includes = dict.fromkeys(include for name in sorted(names) for include in ALGORITHMS[name].INCLUDES)
    parts = [
        _read(__package__, "prelude"),
        *(_read(algorithms.__name__, include) for include in includes),
        *map(_read_algorithm, sorted(names)),
        _read(__package__, driver),
    ]
    return _script("".join(parts))


@cache
def lone_script(name: str) -> Script:
    """One that needs no algorithm ("tally" or "tallies")."""
    return _script(_read(__package__, name))


def _script(text: str) -> Script:
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def script_for(driver: str, names: Iterable[str]) -> Script:
    return script(driver, frozenset(names))


def _read_algorithm(name: str) -> str:
    """Beside its Python twin; each in a block of its own, so that no two share a local."""
    twin = inspect.getfile(cast("ModuleType", ALGORITHMS[name]))
    return f"do\n{_without_comments(Path(twin).with_name(f'{name}.lua'))}end\n"


def _read(package: str, name: str) -> str:
    return _without_comments(files(package).joinpath(f"{name}.lua"))


def _without_comments(file: Traversable) -> str:
    return _COMMENT.sub("", file.read_text(encoding="utf-8"))
