"""What all values have in common: they are frozen dataclasses, and their JSON and its schema are made from them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import ConfigDict, Field, InstanceOf, PlainSerializer, TypeAdapter

from ..engine.forks import LateLock
from ..engine.text import Phrase

T = TypeVar("T")

ROWS = 25
"""The rows of a page."""

From = Annotated[str, Field(alias="from")]
"""Where something was declared: ``from`` in JSON."""


class Described:
    """Texts below fields become descriptions in the schema. Instants are seconds since 1970, durations seconds."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class Sentence(Described):
    """A sentence in English, with the parts by which the pages translate it."""

    text: str
    template: str
    values: Mapping[str, str | Sentence]
    """A part may be a sentence, too."""

    @classmethod
    def of(cls, phrase: Phrase) -> Sentence:
        values = {name: cls.of(each) if isinstance(each, Phrase) else each for name, each in phrase.values.items()}
        return cls(phrase, phrase.template, values)


Verdict = Annotated[InstanceOf[Phrase], PlainSerializer(Sentence.of)]
"""A text, which is a :class:`Sentence` in JSON."""


@dataclass(frozen=True, slots=True)
class Paging(Described):
    """The part of a list that is shown."""

    page: int
    """From 1 on."""
    pages: int
    total: int
    """The rows of all pages."""


def paged(rows: Sequence[T], page: int, size: int = ROWS) -> tuple[Sequence[T], Paging]:
    """The rows of this ``page``, or of the one nearest to it."""
    pages = max(-(-len(rows) // size), 1)
    page = min(max(page, 1), pages)
    return rows[(page - 1) * size : page * size], Paging(page, pages, len(rows))


def as_json(value: Any) -> Any:
    """A value as dicts, lists, text and numbers."""
    with _adapter_lock():
        adapter = _make_adapter(cast("Hashable", type(value)))
    return adapter.dump_python(value, mode="json", by_alias=True)


_adapter_lock = LateLock()
"""To make an adapter is to parse source code, which fails in several threads at once in some releases of Python
(https://github.com/python/cpython/issues/106905)."""
_make_adapter = cache(TypeAdapter)


def finite(seconds: float) -> float | None:
    """``None`` for a time that nobody knows, and for one that never comes."""
    return seconds if math.isfinite(seconds) else None


Seconds = Annotated[float, PlainSerializer(finite)]
"""A duration: ``null`` in JSON for one that never ends."""
