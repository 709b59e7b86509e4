"""Reads the control document. Another version may have written it, or a person may have broken it."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import Field, field_validator

from ..declare.data import Written
from ..declare.validation import NO_IMPORTS, validated
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
    """The document in ``text``. Raises :class:`ConfigurationError` if it cannot be read, or has a newer format."""
    try:
        read = _WrittenDocument.model_validate_json(text, context=NO_IMPORTS)
    except ValueError:  # a ValidationError is one
        read = _explained(text)
    return Document(read.entries)


def _explained(text: str | bytes) -> _WrittenDocument:
    """Read it again, to raise an error that says what is wrong with it."""
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
