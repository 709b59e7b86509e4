"""Reads the control document. It may be what another version wrote, or what a person broke."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import Field, field_validator

from ..declare.data import NO_IMPORTS, Written, validated
from ..engine import ConfigurationError
from .controls import Listing, Override
from .document import FORMAT, MOST_ENTRIES, MOST_OVERRIDES, Document

Entry = Annotated[Override | Listing, Field(discriminator="kind")]


class _WrittenDocument(Written):
    """The document as it is stored."""

    format: Annotated[int, Field(le=FORMAT)] = FORMAT
    entries: Annotated[tuple[Entry, ...], Field(max_length=MOST_ENTRIES, strict=False)] = ()

    @field_validator("entries")
    @classmethod
    def _check_overrides(cls, value: tuple[Entry, ...]) -> tuple[Entry, ...]:
        if sum(each.kind == "override" for each in value) > MOST_OVERRIDES:
            raise ValueError(f"more than {MOST_OVERRIDES} overrides")
        return value


def document_from(text: str | bytes) -> Document:
    """Raise :class:`ConfigurationError` when it cannot be read, or is of a newer version."""
    try:
        read = _WrittenDocument.model_validate_json(text, context=NO_IMPORTS)
    except ValueError:  # a ValidationError is one
        read = _told(text)
    return Document(read.entries)


def _told(text: str | bytes) -> _WrittenDocument:
    """Raise what is wrong with it, in words."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the control document is not JSON: {error}") from error
    if isinstance(given, dict) and isinstance(given.get("format"), int) and given["format"] > FORMAT:
        raise ConfigurationError(
            f"the control document has format {given['format']}, and this process knows {FORMAT}: it was written "
            "by a newer version of flask-multilimit; update this process"
        )
    return validated(_WrittenDocument, "the control document", given, imports=False)
