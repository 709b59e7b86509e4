"""The functions below a decorated function, as far as they are certain.

A function in a closure or an attribute is not certain: it may be called here, elsewhere, or never.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType
from typing import Any, TypeGuard, cast

_MADE_BY_AS_VIEW = "View.as_view.<locals>.view"
_FUNCTIONS = (FunctionType, MethodType)
_KEPT_OUTSIDE_OF_DICT = (property, GetSetDescriptorType, MemberDescriptorType)


def functions_below(function: object) -> Iterator[object]:
    """``function`` and the functions that it wraps, outermost first.

    These are certain: a bound method, ``functools.partial``, ``__wrapped__`` (which ``functools.wraps``,
    ``functools.cache`` and wrapt set), and the ``__call__`` of an object's class.
    """
    below = function
    for below in wrapped_in(function):
        yield below
    called = _of_class(below, "__call__")
    if not isinstance(below, (type, FunctionType)) and isinstance(called, FunctionType):
        yield from wrapped_in(called)


def name_of(function: object) -> str:
    """``module:function``; for a callable object, the names of its class.

    What Flask makes of a class-based view is ``module:View.as_view('name')``.
    """
    module = getattr(function, "__module__", None) or type(function).__module__
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    if name == _MADE_BY_AS_VIEW and isinstance(function, FunctionType):
        name = f"View.as_view({function.__name__!r})"
    return f"{module}:{name}"


def full_name_of(function: object) -> str:
    """The name of the function that ``function`` wraps.

    All functions that a decorator without ``functools.wraps`` returns have the same name. What each holds tells them
    apart: ``module:decorator.<locals>.wrapper(module:function)``.
    """
    return _full_name_of(_innermost(function), frozenset())


def mark_below(target: object, mark: str) -> Any:
    """The attribute ``mark`` of the outermost of ``target`` and the functions below it that have one; or ``None``."""
    marked = (attributes_of(function) for function in functions_below(target))
    return next((attributes[mark] for attributes in marked if mark in attributes), None)


def held_inside(function: object) -> Iterator[object]:
    """The functions that ``function``, and those below it, hold in closures and attributes, and what these hold.

    Whether any of them is called is not certain, so this is for advice to people, and no limit may depend on it.
    """
    seen: set[int] = set()
    ahead: list[object] = list(functions_below(function))
    while ahead:
        found = ahead.pop()
        if id(found) not in seen:
            seen.add(id(found))
            held = _functions_in(found.__self__ if isinstance(found, MethodType) else found)
            yield from held
            ahead += [below for each in held for below in functions_below(each)]


def attributes_of(target: object) -> dict[str, Any]:
    """The attributes of ``target`` itself, without asking it: a proxy would look up its object."""
    try:
        attributes = object.__getattribute__(target, "__dict__")
    except AttributeError:
        return {}
    return attributes if isinstance(attributes, dict) else {}


def is_function(value: object) -> TypeGuard[FunctionType | MethodType]:
    """Whether it is a function or a method, or what wrapt makes of one. Other proxies are not asked: they would look up
    their object, which may not exist yet."""
    if isinstance(_of_class(value, "__wrapped__"), _KEPT_OUTSIDE_OF_DICT):
        return isinstance(value, _FUNCTIONS)
    return issubclass(type(value), _FUNCTIONS)


def wrapped_in(function: object) -> Iterator[object]:
    """``function`` and what it says to wrap, without the ``__call__`` of a class, which all its objects share."""
    seen: set[int] = set()
    below: object | None = function
    while below is not None and id(below) not in seen:
        seen.add(id(below))
        yield below
        below = _wrapped_by(below)


def _wrapped_by(function: object) -> object | None:
    if isinstance(function, MethodType):
        return function.__func__
    if isinstance(function, functools.partial):
        return function.func
    attributes = attributes_of(function)
    if "__wrapped__" in attributes:
        return cast("object", attributes["__wrapped__"])
    if isinstance(_of_class(function, "__wrapped__"), _KEPT_OUTSIDE_OF_DICT):
        return cast("object", getattr(function, "__wrapped__", None))
    return None


def _of_class(target: object, name: str) -> object | None:
    """An attribute of the class of ``target``, without asking ``target``."""
    return next((vars(each)[name] for each in type(target).__mro__ if name in vars(each)), None)


def _innermost(function: object) -> object:
    *_, found = wrapped_in(function)
    return found


def _full_name_of(function: object, seen: frozenset[int]) -> str:
    seen |= {id(function)}
    held = [each for each in map(_innermost, _held_by(function)) if id(each) not in seen]
    name = name_of(function)
    return f"{name}({', '.join(_full_name_of(each, seen) for each in held)})" if held else name


def _held_by(function: object) -> list[FunctionType | MethodType]:
    """The functions among the attributes of an object, or in a closure if they were defined elsewhere."""
    held = _functions_in(function)
    if isinstance(function, FunctionType):
        return [each for each in held if not _defined_beside(each, function)]
    return held


def _functions_in(function: object) -> list[FunctionType | MethodType]:
    if isinstance(function, FunctionType):
        values = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
    else:
        values = list(attributes_of(function).values())
    return [value for value in values if is_function(value)]


def _defined_beside(value: object, function: FunctionType) -> bool:
    if not isinstance(value, FunctionType) or value.__module__ != function.__module__:
        return False
    place, _, name = value.__qualname__.rpartition(".")
    other_place, _, other_name = function.__qualname__.rpartition(".")
    return place == other_place and name != other_name  # the same name: a decorator that is applied twice


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - the only sign of an empty cell
    except ValueError:
        return False
    return True
