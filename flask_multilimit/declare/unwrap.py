"""The functions that a decorated function certainly calls.

A function in a closure or an attribute is not certain: it may be called here, elsewhere, or never.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import suppress
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType
from typing import Any, TypeGuard, cast

_MADE_BY_AS_VIEW = "View.as_view.<locals>.view"
_FUNCTIONS = (FunctionType, MethodType)
_DESCRIPTORS = (property, GetSetDescriptorType, MemberDescriptorType)


def functions_below(function: object) -> Iterator[object]:
    """``function`` and the functions that it wraps, outermost first.

    These are certain: a bound method, ``functools.partial``, ``__wrapped__`` (which ``functools.wraps``,
    ``functools.cache`` and wrapt set), and the ``__call__`` of an object's class.
    """
    innermost = function
    for innermost in wrapped_in(function):
        yield innermost
    if not isinstance(innermost, (type, FunctionType)):
        called = _class_attribute(innermost, "__call__")
        if isinstance(called, FunctionType):
            yield from wrapped_in(called)


def name_of(function: object) -> str:
    """``module:function``; for a callable object, the module and name of its class; for a class-based view,
    ``module:View.as_view('name')``."""
    module = getattr(function, "__module__", None) or type(function).__module__
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    if name == _MADE_BY_AS_VIEW and isinstance(function, FunctionType):
        name = f"View.as_view({function.__name__!r})"
    return f"{module}:{name}"


def full_name_of(function: object) -> str:
    """The name of the function that ``function`` wraps.

    All functions that a decorator without ``functools.wraps`` returns have the same name. The functions they hold
    tell them apart: ``module:decorator.<locals>.wrapper(module:function)``.
    """
    return _full_name_of(_innermost(function), frozenset())


def mark_below(target: object, mark: str) -> Any:
    """The attribute ``mark`` of the outermost of ``target`` and the functions below it that have one; or ``None``."""
    for function in functions_below(target):
        attributes = attributes_of(function)
        if mark in attributes:
            return attributes[mark]
    return None


def held_inside(function: object) -> Iterator[object]:
    """All functions held in closures and attributes by ``function``, by those below it, and by the held ones.

    Perhaps none of them is ever called, so this is for advice to people: no limit may depend on it.
    """
    seen: set[int] = set()
    pending: list[object] = list(functions_below(function))
    while pending:
        holder = pending.pop()
        if id(holder) not in seen:
            seen.add(id(holder))
            held = _functions_in(holder.__self__ if isinstance(holder, MethodType) else holder)
            yield from held
            pending += [below for each in held for below in functions_below(each)]


def attributes_of(target: object) -> dict[str, Any]:
    """The attributes of ``target`` itself, read without its ``__getattr__``: a proxy would look up its object."""
    try:
        attributes = object.__getattribute__(target, "__dict__")
    except AttributeError:
        return {}
    return attributes if isinstance(attributes, dict) else {}


def slots_of(target: object) -> Iterator[object]:
    """The values in the ``__slots__`` of the class of ``target``."""
    for each in type(target).__mro__:
        for slot in each.__dict__.values() if "__slots__" in each.__dict__ else ():
            if isinstance(slot, MemberDescriptorType):
                with suppress(AttributeError):  # it has no value
                    yield slot.__get__(target)


def is_function(value: object) -> TypeGuard[FunctionType | MethodType]:
    """Whether ``value`` is a function or a method, or wrapt's proxy of one. Other proxies count as none: asking them
    would look up their object, which may not exist yet."""
    return isinstance(value, _FUNCTIONS) if _is_proxy(value) else issubclass(type(value), _FUNCTIONS)


def wrapped_in(function: object) -> Iterator[object]:
    """``function`` and what it says it wraps, without the ``__call__`` of a class, which all its objects share."""
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
    return cast("object", getattr(function, "__wrapped__", None)) if _is_proxy(function) else None


def _is_proxy(value: object) -> bool:
    """Whether ``value`` is a proxy of wrapt. Where that has no C extension, the object is an attribute of the proxy
    itself, which its ``__dict__``, that of the object, does not show. Proxies of others, as of Celery, have no such
    attribute."""
    wrapped = _class_attribute(value, "__wrapped__")
    if wrapped is None and isinstance(_class_attribute(value, "__dict__"), property):
        with suppress(AttributeError):
            object.__getattribute__(value, "__wrapped__")
            return True
    return isinstance(wrapped, _DESCRIPTORS)


def _class_attribute(target: object, name: str) -> object | None:
    """An attribute of the class of ``target``, read without ``target``'s own ``__getattr__``."""
    for each in type(target).__mro__:
        if name in each.__dict__:
            return cast("object", each.__dict__[name])
    return None


def closed_over(function: FunctionType) -> list[object]:
    """What the closure of ``function`` holds."""
    return [cell.cell_contents for cell in function.__closure__ or () if _has_value(cell)]


def _innermost(function: object) -> object:
    *_, innermost = wrapped_in(function)
    return innermost


def _full_name_of(function: object, seen: frozenset[int]) -> str:
    seen |= {id(function)}
    held = [each for each in map(_innermost, _held_by(function)) if id(each) not in seen]
    name = name_of(function)
    return f"{name}({', '.join(_full_name_of(each, seen) for each in held)})" if held else name


def _held_by(function: object) -> list[FunctionType | MethodType]:
    """The functions in the attributes of an object; in the closure of a function, those that are defined elsewhere."""
    held = _functions_in(function)
    if isinstance(function, FunctionType):
        return [each for each in held if not _is_sibling(each, function)]
    return held


def _functions_in(function: object) -> list[FunctionType | MethodType]:
    values = closed_over(function) if isinstance(function, FunctionType) else attributes_of(function).values()
    return [value for value in values if is_function(value)]


def _is_sibling(value: object, function: FunctionType) -> bool:
    """Whether one function defines both, as a decorator defines its wrapper and the helpers of that."""
    if not isinstance(value, FunctionType) or value.__module__ != function.__module__:
        return False
    place, _, name = value.__qualname__.rpartition(".")
    other_place, _, other_name = function.__qualname__.rpartition(".")
    return place == other_place and name != other_name  # the same name: a decorator that is applied twice


def _has_value(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - the only sign of an empty cell
    except ValueError:
        return False
    return True
