"""Joins the Lua files into one script for each set of algorithms: prelude, algorithms, driver."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

from .. import algorithms

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
    parts = [
        _read(__package__, "prelude"),
        *map(_read_algorithm, sorted(names)),
        _read(__package__, driver),
    ]
    text = "".join(parts)
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def script_for(driver: str, names: Iterable[str]) -> Script:
    return script(driver, frozenset(names))


def _read_algorithm(name: str) -> str:
    """Each in a block of its own, so that no two share a local."""
    return f"do\n{_read(algorithms.__name__, name)}end\n"


def _read(package: str, name: str) -> str:
    return _COMMENT.sub("", files(package).joinpath(f"{name}.lua").read_text(encoding="utf-8"))
