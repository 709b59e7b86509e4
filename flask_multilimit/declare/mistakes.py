"""What is wrong with limits that are written as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..engine import ConfigurationError


class Mistake(NamedTuple):
    """What is wrong with one field of the data."""

    place: str
    """The path of the field: ``limit.rules``. Empty: the mistake is about the whole."""
    value: str
    """What was given, shortened. Empty: nothing was given, or it must not be shown."""
    remedy: str
    """What is wrong with it, and what to give."""

    def __str__(self) -> str:
        shown = f"{self.place}={self.value}" if self.value else self.place
        return f"{shown}: {self.remedy}" if shown else self.remedy


class InvalidData(ConfigurationError):  # noqa: N818 - the name says enough
    """A :class:`ConfigurationError` about data. Its mistakes can be shown beside the fields of a form."""

    def __init__(self, where: str, mistakes: Sequence[Mistake]) -> None:
        super().__init__("; ".join(f"{where}: {each}" if where else str(each) for each in mistakes))
        self.mistakes: tuple[Mistake, ...] = tuple(mistakes)
        """All that is wrong."""
