"""What a decorated function is wrapped around, as far as the decorators let us see."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any


def functions_below(function: object, *, stop: Callable[[object], bool] = lambda _: False) -> Iterator[object]:
    """``function``, and whatever it is wrapped around, down to where ``stop`` says so.

    Decorators keep it in ``__wrapped__`` (``functools.wraps``), in a closure or in an attribute.
    """
    seen: set[int] = set()
    waiting = [function]
    while waiting:
        found = waiting.pop()
        if id(found) not in seen:
            seen.add(id(found))
            yield found
            if not stop(found):
                waiting += _wrapped_by(found)


def innermost(function: object) -> object:
    """The function itself, which has a name of its own, while all that one decorator makes may be called alike."""
    seen: set[int] = set()
    while id(function) not in seen and len(below := _wrapped_by(function)) == 1:
        seen.add(id(function))
        (function,) = below
    return function


def name_of(function: object) -> str:
    """``module:function``; of an object that is called like one, those of its class."""
    module = getattr(function, "__module__", None) or type(function).__module__
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{module}:{name}"


def attributes_of(target: object) -> dict[str, Any]:
    """Those of its own, without asking ``target``: a proxy would go and look for its object."""
    try:
        attributes = object.__getattribute__(target, "__dict__")
    except AttributeError:
        return {}
    return attributes if isinstance(attributes, dict) else {}


def _wrapped_by(function: object) -> list[object]:
    if isinstance(function, MethodType):
        return [function.__func__]
    if isinstance(function, functools.partial):
        return [function.func]
    if not _may_be_wrapped(function):
        return []
    attributes = attributes_of(function)
    if "__wrapped__" in attributes:
        return [attributes["__wrapped__"]]
    if isinstance(function, FunctionType):
        return _enclosed(function)
    return [value for value in attributes.values() if _may_be_wrapped(value)]


def _enclosed(function: FunctionType) -> list[object]:
    """What the inner function of a decorator closes over, but not what a function merely calls.

    The former takes whatever arguments come, and was not defined beside what it wraps.
    """
    if not function.__code__.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return []
    contents = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
    return [value for value in contents if _may_be_wrapped(value) and not _defined_beside(value, function)]


def _defined_beside(value: object, function: FunctionType) -> bool:
    if not isinstance(value, FunctionType) or value.__module__ != function.__module__:
        return False
    place, _, name = value.__qualname__.rpartition(".")
    other_place, _, other_name = function.__qualname__.rpartition(".")
    return place == other_place and name != other_name  # one name: a decorator applied twice


def _may_be_wrapped(value: object) -> bool:
    if isinstance(value, (FunctionType, MethodType, functools.partial)):
        return True
    return not isinstance(value, type) and isinstance(
        inspect.getattr_static(type(value), "__call__", None), FunctionType
    )


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell has no other sign
    except ValueError:
        return False
    return True
