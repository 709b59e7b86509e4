"""The control document: all changes made while the app runs. :mod:`.reading` reads it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ..engine import ConfigurationError

if TYPE_CHECKING:
    from .controls import Listing, Override

FORMAT = 1
"""The version of the document's format. A process that finds a newer one changes nothing."""
MOST_ENTRIES = 100_000
"""The most entries of a document."""
MOST_OVERRIDES = 1000
"""The most overrides among them: each one may change every endpoint."""


class Document(NamedTuple):
    """All changes."""

    entries: tuple[Override | Listing, ...] = ()

    def dump(self) -> str:
        entries = [each.model_dump(mode="json", exclude_unset=True) for each in self.entries]
        return json.dumps({"format": FORMAT, "entries": entries}, ensure_ascii=False, separators=(",", ":"))

    def at(self, now: float) -> Document:
        """The document without the entries that have ended by ``now``."""
        if not any(each.until is not None and each.until <= now for each in self.entries):
            return self
        return Document(tuple(each for each in self.entries if each.until is None or now < each.until))

    def having(self, entry: Override | Listing) -> Document:
        """The document with ``entry``, which replaces an entry that has the same target."""
        others = [each for each in self.entries if each.target != entry.target]
        if len(others) >= MOST_ENTRIES:
            raise ConfigurationError(f"the control document has {MOST_ENTRIES} entries: undo some, or deny networks")
        if entry.kind == "override" and sum(each.kind == "override" for each in others) >= MOST_OVERRIDES:
            raise ConfigurationError(
                f"the control document has {MOST_OVERRIDES} overrides: undo some, or give patterns"
            )
        return Document((*others, entry))

    def without(self, ids: Iterable[str]) -> Document:
        ids = set(ids)
        return Document(tuple(each for each in self.entries if each.id not in ids))

    @property
    def overrides(self) -> tuple[Override, ...]:
        return tuple(each for each in self.entries if each.kind == "override")

    @property
    def listings(self) -> tuple[Listing, ...]:
        return tuple(each for each in self.entries if each.kind != "override")

    @property
    def next_end(self) -> float | None:
        """When the first of its entries ends."""
        return min((each.until for each in self.entries if each.until is not None), default=None)
