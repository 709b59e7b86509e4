"""Who visits a page, and what they may do, found out once per request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from flask import g

from .messages import Language


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of one person."""

    author: str
    """``""`` if the visitor was not let in."""
    may_change: bool
    language: Language
    unprotected: bool = False
    """Whether there is no ``authorize``: in debug mode, on this machine."""


def begin(visit: Visit) -> None:
    """Set the visit of the current request."""
    g.multilimit_visit = visit


def visit() -> Visit:
    """The visit of the current request."""
    return cast("Visit", g.multilimit_visit)
