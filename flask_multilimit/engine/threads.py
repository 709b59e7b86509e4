"""Threads under servers that forbid them, or replace what they are made of."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")

_OFF = {"false", "off", "no", "0"}
"""How uWSGI spells that an option is not set."""


def threads_run() -> bool:
    """Whether a thread can run beside requests."""
    uwsgi = sys.modules.get("uwsgi")  # the server provides it; there is no such package
    return uwsgi is None or lets_threads_run({_text(name): _text(value) for name, value in uwsgi.opt.items()})


def lets_threads_run(options: Mapping[str, str]) -> bool:
    """Whether uWSGI with these ``options`` runs threads: only with ``enable-threads`` or ``threads``."""
    return any(options.get(name, "no").lower() not in _OFF for name in ("enable-threads", "threads"))


class MadeLate(Generic[T]):
    """Returns what ``make`` has made at the first call. Thread-safe.

    For locks and conditions that would otherwise be made at the import: with ``--preload``, gunicorn's gevent worker
    patches ``threading`` later than that, and after the fork.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[str, T] = {}

    def __call__(self) -> T:
        made = self._made.get("it")
        return made if made is not None else self._made.setdefault("it", self._make())


def _text(given: object) -> str:
    """Some versions of uWSGI give bytes."""
    return given.decode() if isinstance(given, bytes) else str(given)
