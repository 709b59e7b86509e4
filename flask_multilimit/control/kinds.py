"""The kinds of entries of the control document."""

from __future__ import annotations

from typing import Literal, get_args

ListingKind = Literal["ban", "deny", "allow"]
Kind = Literal["override", ListingKind]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""All kinds, in the order in which they are shown."""
