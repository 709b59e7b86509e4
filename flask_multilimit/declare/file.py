"""The content of a file of limits. :mod:`.reading` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

OFF = "off"
"""Written in place of limits, it means none."""


class FileLimits(NamedTuple):
    """The limits of a file. The fields are those of :class:`.LimitsFile`, which documents them."""

    application_limits: Any = ()
    default_limits: Any = ()
    unmatched_limits: Any = ()
    limits: Mapping[str, Any] = MappingProxyType({})
    exempt: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


NO_FILE = FileLimits()
