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
    """Each rule in words."""
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Preview:
    """A change that is not made yet: :meth:`.Control.put` makes it."""

    entry: Override | Listing
    endpoints: tuple[Difference, ...]
    """Those with other limits afterwards. Lists change no limits."""
    warning: str
    """Why it is only made with ``force=True``; empty: nothing speaks against it."""
    replaces: Override | Listing | None = None
    """The entry about the same limit or client that ends with it. To undo the change does not bring that back."""
