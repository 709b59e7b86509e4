"""Releases the slots of a limited function that is not a view: when it returns, or if it returns a coroutine or a
generator, when that has ended."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import AsyncGenerator, Generator
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from ..engine.slots import KEEPER
from .holding import Holder, holding


def releasing(function: Any) -> Any:
    """``function``, which releases its slots at the end of each call."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def released(*args: Any, **kwargs: Any) -> Any:
            holder = Holder()
            try:
                with holding(holder):
                    return await function(*args, **kwargs)
            finally:
                holder.end()

    else:

        @functools.wraps(function)
        def released(*args: Any, **kwargs: Any) -> Any:
            holder = Holder()
            try:
                with holding(holder):
                    result = function(*args, **kwargs)
                if holder.decisions and isinstance(result, _GOES_ON):
                    result, holder = _with_slots(result, holder), Holder()
                return result
            finally:
                holder.end()

    return released


_GOES_ON = (CoroutineType, GeneratorType, AsyncGeneratorType)


class _Until:
    """A block that ends ``holder`` if an exception is raised in it."""

    def __init__(self, holder: Holder) -> None:
        self._holder = holder

    def __enter__(self) -> None:
        """Do nothing: the holder goes on."""

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self._holder.end()


def _with_slots(result: Any, holder: Holder) -> Any:
    """``result``, which ends ``holder`` when it ends, or when it is garbage before it has ended or even begun."""
    going_on: Any
    if isinstance(result, CoroutineType):
        going_on = _awaited(result, holder)
    else:
        going_on = _Drawn(result, holder) if isinstance(result, GeneratorType) else _DrawnAsync(result, holder)
    weakref.finalize(going_on, _end_later, holder).atexit = False
    return going_on


def _end_later(holder: Holder) -> None:
    """End ``holder`` in another thread, because garbage may be collected at any point of any code."""
    if not holder.ended:
        KEEPER.later(holder.end)


async def _awaited(coroutine: CoroutineType[Any, Any, Any], holder: Holder) -> Any:
    try:
        return await coroutine
    finally:
        holder.end()


class _Drawn(Generator[Any, Any, Any]):
    """A generator that holds slots until it ends, which it always does by an exception."""

    def __init__(self, generator: GeneratorType[Any, Any, Any], holder: Holder) -> None:
        self._generator = generator
        self._holder = holder
        self._until = _Until(holder)

    def send(self, value: Any) -> Any:
        with self._until:
            return self._generator.send(value)

    def throw(self, *error: Any) -> Any:
        with self._until:
            return self._generator.throw(*error)

    def close(self) -> None:
        try:
            self._generator.close()
        finally:
            self._holder.end()


class _DrawnAsync(AsyncGenerator[Any, Any]):
    """The same for an async generator."""

    def __init__(self, generator: AsyncGeneratorType[Any, Any], holder: Holder) -> None:
        self._generator = generator
        self._holder = holder
        self._until = _Until(holder)

    async def asend(self, value: Any) -> Any:
        with self._until:
            return await self._generator.asend(value)

    async def athrow(self, *error: Any) -> Any:
        with self._until:
            return await self._generator.athrow(*error)

    async def aclose(self) -> None:
        try:
            await self._generator.aclose()
        finally:
            self._holder.end()
