"""Whether the server lets threads run in the background."""

from __future__ import annotations

import sys
from collections.abc import Mapping

_OFF = {"false", "off", "no", "0"}
"""How uWSGI spells that an option is not set."""


def threads_run() -> bool:
    """Whether a thread can run beside requests."""
    uwsgi = sys.modules.get("uwsgi")  # the server provides it; there is no such package
    return uwsgi is None or lets_threads_run({_text(name): _text(value) for name, value in uwsgi.opt.items()})


def lets_threads_run(options: Mapping[str, str]) -> bool:
    """Whether uWSGI with these ``options`` runs threads: only with ``enable-threads`` or ``threads``."""
    return any(options.get(name, "no").lower() not in _OFF for name in ("enable-threads", "threads"))


def _text(given: object) -> str:
    """Some versions of uWSGI give bytes."""
    return given.decode() if isinstance(given, bytes) else str(given)
