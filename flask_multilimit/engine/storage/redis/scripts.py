"""Joins the Lua files into one script for each set of algorithms: prelude, hits, algorithms, driver."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable
from functools import cache
from hashlib import sha1
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

from ... import algorithms
from ...algorithms import ALGORITHMS, BAN, CALENDAR, SHIPPED, algorithm_of
from ...errors import ConfigurationError
from ...hits import Hit, OpenHit

SOURCES = (
    *("prelude", "hits", "bans", "calendars", "open", "check", "strike", "finish"),
    *("settle", "renew", "tally", "tallies"),
)
"""The drivers and their parts: the Lua files beside this module."""

_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)
_SPANS_LINES = re.compile(r"\[=*\[|\\\n")
"""The beginning of a comment or string that may span several lines."""


class Script(NamedTuple):
    """A Lua script and its digest."""

    text: str
    sha: str
    """Its name for EVALSHA."""
    frame: list[int] | None = None
    """What its reply leaves out (:func:`.completed`); ``None``: nothing."""


@cache
def script(driver: str, names: frozenset[str], *, opens: bool = False) -> Script:
    """``driver`` ("check", "settle" or "renew") for hits of the algorithms ``names``, whatever their quotas. ``opens``:
    whether any of them is an :class:`.OpenHit`."""
    drivers = ("check", *strikes(names), "finish") if driver == "check" else (driver,)
    parts = {"bans": BAN in names, "calendars": CALENDAR in names, "open": opens}
    special = [part for part, is_needed in parts.items() if is_needed]
    # The algorithms come first, as in a compiled script: they can use only the locals of the prelude.
    return script_of([source("prelude"), *library(names), *map(source, ("hits", *special, *drivers))])


def strikes(names: Iterable[str]) -> tuple[str, ...]:
    """The part between the halves of a check, if there are bans among its hits."""
    return ("strike",) if BAN in names else ()


@cache
def lone_script(name: str) -> Script:
    """A script that needs no algorithm ("tally" or "tallies")."""
    return script_of([source(name)])


def script_of(parts: Iterable[str], frame: list[int] | None = None) -> Script:
    text = "".join(parts)
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest(), frame)


def library(names: Iterable[str]) -> list[str]:
    """The Lua of the algorithms ``names``, each in its own block, so that no two share a local. The files that they
    include come first."""
    names = sorted(set(names))
    includes = dict.fromkeys(include for name in names for include in algorithm_of(name).INCLUDES)
    return [
        *(_read(algorithms, name) for name in includes),
        *(f"do\n{source_of_algorithm(name)}end\n" for name in names),
    ]


def script_for(driver: str, hits: Iterable[Hit]) -> Script:
    opens = any(isinstance(hit, OpenHit) for hit in hits)
    return script(driver, frozenset([hit.rule.algorithm for hit in hits]), opens=opens)


def read_all() -> None:
    """Read every file that scripts are made of. Later, another version of the package may be in their place, or the
    process may have as many files open as it may."""
    library(name for name in (*ALGORITHMS, BAN, CALENDAR) if algorithm_of(name) in SHIPPED)
    for name in SOURCES:
        source(name)


def source(name: str) -> str:
    """The text of a driver, or of a part of one."""
    return _read(sys.modules[__name__], name)


def source_of_algorithm(name: str) -> str:
    """The Lua file beside the algorithm's Python module."""
    return _read(cast("ModuleType", algorithm_of(name)), name)


@cache
def _read(module: ModuleType, name: str) -> str:
    """The Lua file beside ``module``, which may be in an archive, without comments. A module that Python runs as a
    program has no spec. Raises :class:`ConfigurationError` if it is missing, or the module is no file, as in a REPL."""
    try:
        file = str(Path(inspect.getfile(module)).with_name(f"{name}.lua"))
        loader: Any = SourceFileLoader(name, file) if module.__spec__ is None else module.__spec__.loader
        text = loader.get_data(file).decode().replace("\r\n", "\n") + "\n"
    except (OSError, TypeError, UnicodeError) as error:
        raise ConfigurationError(f"the Lua of an algorithm: {error}; put {name}.lua beside its module") from error
    return text if _SPANS_LINES.search(text) else _COMMENT.sub("", text).removesuffix("\n")
