"""A limited function that is no view holds its slots until it returns; if it returns a coroutine or a generator, until
that has ended."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from ..engine import Decision
from ..engine.slots import KEEPER
from .holding import holding

Release = Callable[[Iterable[Decision]], None]


def releasing(function: Any, release_of: Callable[[], Release]) -> Any:
    """``function``, which releases its slots at the end of each call. ``release_of`` finds the release of the app in
    force."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def released(*args: Any, **kwargs: Any) -> Any:
            with _until_the_end(release_of):
                return await function(*args, **kwargs)

    else:

        @functools.wraps(function)
        def released(*args: Any, **kwargs: Any) -> Any:
            with _until_the_end(release_of) as held:
                result = function(*args, **kwargs)
                if not held or not isinstance(result, _GOES_ON):
                    return result
                still_held, held[:] = held.copy(), []
            return _held_by(result, _Slots(still_held, release_of()))

    return released


@contextmanager
def _until_the_end(release_of: Callable[[], Release]) -> Iterator[list[Decision]]:
    held: list[Decision] = []
    try:
        with holding(held):
            yield held
    finally:
        if held:
            release_of()(held)


_GOES_ON = (CoroutineType, GeneratorType, AsyncGeneratorType)


class _Slots:
    """Slots that are released once. A block of them releases them if an exception leaves it."""

    def __init__(self, held: list[Decision], release: Release) -> None:
        self._held = held
        self._release = release

    def __enter__(self) -> None:
        """Release nothing yet."""

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self.release()

    def release(self) -> None:
        held, self._held = self._held, []
        if held:
            self._release(held)

    def release_with(self, holder: object) -> None:
        """Release them if ``holder`` is garbage before it has ended or even begun. It may be collected at any point of
        any code, so another thread releases."""
        weakref.finalize(holder, self._release_later).atexit = False

    def _release_later(self) -> None:
        if self._held:
            KEEPER.later(self.release)


def _held_by(result: Any, slots: _Slots) -> Any:
    holder: Any
    if isinstance(result, CoroutineType):
        holder = _awaited(result, slots)
    else:
        holder = _Drawn(result, slots) if isinstance(result, GeneratorType) else _DrawnAsync(result, slots)
    slots.release_with(holder)
    return holder


async def _awaited(coroutine: CoroutineType[Any, Any, Any], slots: _Slots) -> Any:
    try:
        return await coroutine
    finally:
        slots.release()


class _Drawn(Generator[Any, Any, Any]):
    """A generator that holds slots. Whatever leaves it by an exception has ended it."""

    def __init__(self, generator: GeneratorType[Any, Any, Any], slots: _Slots) -> None:
        self._generator = generator
        self._slots = slots

    def send(self, value: Any) -> Any:
        with self._slots:
            return self._generator.send(value)

    def throw(self, *error: Any) -> Any:
        with self._slots:
            return self._generator.throw(*error)

    def close(self) -> None:
        try:
            self._generator.close()
        finally:
            self._slots.release()


class _DrawnAsync(AsyncGenerator[Any, Any]):
    """The same for an async generator."""

    def __init__(self, generator: AsyncGeneratorType[Any, Any], slots: _Slots) -> None:
        self._generator = generator
        self._slots = slots

    async def asend(self, value: Any) -> Any:
        with self._slots:
            return await self._generator.asend(value)

    async def athrow(self, *error: Any) -> Any:
        with self._slots:
            return await self._generator.athrow(*error)

    async def aclose(self) -> None:
        try:
            await self._generator.aclose()
        finally:
            self._slots.release()
