"""Splits long lists into pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from werkzeug.datastructures import MultiDict

T = TypeVar("T")

ROWS = 25
"""The rows of a page."""
MOST_PAGES = 1_000_000


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """One page of a list."""

    rows: Sequence[T]
    number: int
    """The number of the page, from 1 on."""
    pages: int
    total: int
    """The number of rows of all pages."""

    def as_json(self) -> dict[str, Any]:
        return {"page": self.number, "pages": self.pages, "total": self.total}


def part_of(rows: Sequence[T], number: int, size: int = ROWS) -> Part[T]:
    """The page ``number`` of ``rows``, or the one nearest to it."""
    pages = max(-(-len(rows) // size), 1)
    number = min(max(number, 1), pages)
    return Part(rows[(number - 1) * size : number * size], number, pages, len(rows))


def page_asked(arguments: MultiDict[str, str]) -> int:
    """The number in a query; 1 if there is none."""
    text = arguments.get("page", "1")
    return min(int(text), MOST_PAGES) if text.isascii() and text.isdigit() and len(text) < 10 else 1
