"""Makes named tuples of all their fields, for the few that every request makes."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, TypeVar, cast

T = TypeVar("T")


def from_fields(made: type[T]) -> Callable[[Any], T]:
    """A function that makes a named tuple of the tuple of its fields, in half the time that ``made(...)`` takes.

    Annotate what it is assigned to, such as ``Callable[[tuple[bytes, Hit]], Slot]``, so that the fields are checked.
    """
    return cast("Callable[[Any], T]", MethodType(tuple.__new__, made))
