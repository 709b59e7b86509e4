"""The control document, which has all changes made while the app runs."""

from __future__ import annotations

import json
from collections import Counter
from operator import attrgetter
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple

from ..engine import ConfigurationError
from ..engine.text import Phrase
from .store import FORMAT, MOST_ENTRIES, MOST_OVERRIDES

if TYPE_CHECKING:
    from .entries import Listing, Override

MOST_NAMED = 10
"""The most entries that an error names."""


class Document(NamedTuple):
    """All changes in force."""

    entries: tuple[Override | Listing, ...] = ()

    def dump(self) -> str:
        entries = [each.model_dump(mode="json", exclude_unset=True) for each in self.entries]
        return json.dumps({"format": FORMAT, "entries": entries}, ensure_ascii=False, separators=(",", ":"))

    def at(self, now: float) -> Document:
        """The document without the entries that have ended by ``now``."""
        if not any(each.until is not None and each.until <= now for each in self.entries):
            return self
        return Document(tuple(each for each in self.entries if each.until is None or now < each.until))

    def with_entry(self, entry: Override | Listing) -> Document:
        """The document with ``entry``, which replaces an entry with the same target."""
        return self.updated_by(Document((entry,)))

    def updated_by(self, newer: Document) -> Document:
        """Both documents; for entries with the same target, those of ``newer``. Raises :class:`ConfigurationError` if
        these are too many."""
        targets = {each.target for each in newer.entries}
        both = Document((*(each for each in self.entries if each.target not in targets), *newer.entries))
        if len(both.entries) > MOST_ENTRIES:
            raise ConfigurationError(
                Phrase("the control document has {n} entries: undo some, or deny networks", n=len(self.entries))
            )
        if newer.overrides and len(both.overrides) > MOST_OVERRIDES:
            raise ConfigurationError(
                Phrase("the control document has {n} overrides: undo some, or give patterns", n=len(self.overrides))
            )
        return both

    def check_unique(self) -> None:
        """Raise :class:`ConfigurationError` if several entries concern the same limit or client, or have the same
        id."""
        for name, value_of in (("id", attrgetter("id")), ("limit or client", attrgetter("target"))):
            amounts = Counter(map(value_of, self.entries))
            same = [f"{each} ({each.id})" for each in self.entries if amounts[value_of(each)] > 1]
            if same:
                raise ConfigurationError(f"entries with the same {name}: {', '.join(same[:MOST_NAMED])}; keep one")

    def with_distinct_ids(self, other: Document) -> Document:
        """The document with new ids for entries whose ids ``other`` has for other targets: an id means one entry."""
        targets, both = {each.id: each.target for each in other.entries}, Document((*self.entries, *other.entries))
        return Document(
            tuple(
                each.model_copy(update={"id": both.new_id()})
                if targets.get(each.id, each.target) != each.target
                else each
                for each in self.entries
            )
        )

    def new_id(self) -> str:
        """An id that no entry has: among 100,000 random ones, two are likely to be the same."""
        taken = {each.id for each in self.entries}
        while (new := token_hex(4)) in taken:
            pass
        return new

    def without(self, entry: Override | Listing) -> Document:
        return Document(tuple(each for each in self.entries if each.id != entry.id))

    @property
    def overrides(self) -> tuple[Override, ...]:
        return tuple(each for each in self.entries if each.kind == "override")

    @property
    def listings(self) -> tuple[Listing, ...]:
        return tuple(each for each in self.entries if each.kind != "override")

    @property
    def next_end(self) -> float | None:
        """The POSIX time at which the first of its entries ends; ``None`` if none ends."""
        return min((each.until for each in self.entries if each.until is not None), default=None)


def document_from(text: str | bytes) -> Document:
    """The document in ``text``. Raises :class:`ConfigurationError` if it cannot be read, because a person has broken
    it, or if a newer version of this package has written it in a newer format."""
    from .entries import entries_from  # noqa: PLC0415 - most processes never have a document to read

    return Document(entries_from(text))
