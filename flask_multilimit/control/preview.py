"""What a change would do, before it is made."""

from __future__ import annotations

from dataclasses import dataclass

from .controls import Listing, Override


@dataclass(frozen=True, slots=True)
class Difference:
    """An endpoint whose limits change, for some or all of its methods."""

    endpoint: str
    methods: tuple[str, ...]
    before: tuple[str, ...]
    """One text for each rule."""
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Preview:
    """A change that has not been made yet: :meth:`.Control.put` makes it."""

    entry: Override | Listing
    endpoints: tuple[Difference, ...]
    """The endpoints whose limits differ afterwards. Entries of lists change no limits."""
    warning: str
    """Why the change needs ``force=True``; empty if it does not."""
    replaces: Override | Listing | None = None
    """The entry about the same limit or client that the change replaces. Undoing the change does not restore it."""
