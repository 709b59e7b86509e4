"""Holders keep the decisions whose slots some work holds, release the slots when it ends, and settle what it says."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final

from flask import Request

from ..engine import Decision
from ..engine.slots import KEEPER
from .subjects import request_if_any


class Frame:
    """What some work is charged, and what it says that this really cost: a request, or a call of a service function."""

    __slots__ = ("_said", "settled")

    def __init__(self) -> None:
        self.settled: tuple[tuple[Decision, Sequence[Any]], ...] = ()
        """Charges that depend on the response, or on what the work says, with the limiters that made them."""

    @property
    def said(self) -> dict[str, int]:
        """What the work has said, by the name of the limiter. Most work says nothing."""
        try:
            return self._said
        except AttributeError:
            self._said: dict[str, int] = {}
            return self._said


class Holder:
    """Holds slots until some work ends: a call, a block, or a request."""

    __slots__ = ("at_end", "decisions", "ended", "frame")

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.at_end: list[Callable[[], object]] = []
        """What is called when the work ends, once."""
        self.ended: bool = False
        """Nobody holds the slots that a thread or a task of this work takes after that."""
        self.frame: Frame | None = None
        """For whose limiters this work speaks; ``None``: for those of the request."""

    def takes(self, decision: Decision) -> bool:
        """Hold the slots of ``decision``; false if the work has ended meanwhile, which may have released them."""
        self.decisions.append(decision)
        return not self.ended

    def end(self) -> None:
        """Release the slots, and do what waits for the end."""
        self.ended = True
        decisions, self.decisions = self.decisions, []
        waiting, self.at_end = self.at_end, []
        if decisions:
            KEEPER.release_all(decisions)
        for act in waiting:
            act()


_call: ContextVar[tuple[Holder, Request | None] | None] = ContextVar("multilimit_held", default=None)
"""The holder of the service function or block that is in progress, and the request in which it was called. Requests
that begin before it ends, such as those of a test client, hold their own slots."""


@contextmanager
def holding(holder: Holder) -> Iterator[None]:
    """Let ``holder``, instead of the response, hold the slots that this block takes."""
    if holder.frame is None and (outer := holder_of_call()) is not None:
        holder.frame = outer.frame
    token = _call.set((holder, request_if_any()))
    try:
        yield
    finally:
        _call.reset(token)


def holder_of_call() -> Holder | None:
    """Holds slots until the current service function or block ends; ``None`` outside of one."""
    call = _call.get()
    return call[0] if call is not None and call[1] is request_if_any() else None


def leave_to_response() -> None:
    """The current call is that of a view, whose slots are held until the response is closed."""
    _call.set(None)


class Changes:
    """What changes at run time have brought into this process."""

    __slots__ = ("may_take_slots",)

    def __init__(self) -> None:
        self.may_take_slots: bool = False
        """Whether functions that declare no slots may take some. Once true, it stays, for calls that are in
        progress."""


changes: Final = Changes()


def releasing(function: Any) -> Any:
    """``function``, which releases its slots, and is settled, at the end of each call."""
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
                if (holder.decisions or holder.at_end) and isinstance(result, _GOES_ON):
                    result, holder = _going_on(result, holder), Holder()
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


def _going_on(result: Any, holder: Holder) -> Any:
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
        with holding(holder):
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
        with self._until, holding(self._holder):
            return self._generator.send(value)

    def throw(self, *error: Any) -> Any:
        with self._until, holding(self._holder):
            return self._generator.throw(*error)

    def close(self) -> None:
        try:
            with holding(self._holder):
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
        with self._until, holding(self._holder):
            return await self._generator.asend(value)

    async def athrow(self, *error: Any) -> Any:
        with self._until, holding(self._holder):
            return await self._generator.athrow(*error)

    async def aclose(self) -> None:
        try:
            with holding(self._holder):
                await self._generator.aclose()
        finally:
            self._holder.end()
