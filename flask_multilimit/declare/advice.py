"""The advice around a limited function: it asks the gate of the app before the function runs, and at its end releases
the slots that it has taken, and settles what it says.

Stacked decorators become one :class:`Stack`. The outermost one checks the whole stack once; those below it find that
they are covered, and let the call through. Those directly below it are skipped.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import takewhile
from types import AsyncGeneratorType, CoroutineType, GeneratorType, MethodType
from typing import Any, Final, NamedTuple, Protocol, cast

from flask import Flask, Request, current_app

from ..engine import ConfigurationError, Decision
from ..engine.errors import brief
from ..engine.slots import KEEPER
from .limiter import Declaration, may_hold_slots
from .subjects import request_if_any
from .unwrap import attributes_of, functions_below, held_inside, mark_below, wrapped_in

EXTENSION = "multilimit"
"""The key of the extension in ``app.extensions``."""
GATE = "multilimit.gate"
"""The key of its gate for that app: one extension may serve several apps."""

_MARK = "__multilimit__"
_ADVICE = "__multilimit_advice__"

app_in_force: Callable[[], Flask] = current_app._get_current_object  # type: ignore[attr-defined]
"""The app itself: each access to an attribute of the proxy would look it up again."""
_covered: ContextVar[frozenset[Declaration]] = ContextVar("multilimit_covered", default=frozenset())
_limited: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_below_registered: weakref.WeakSet[Any] = weakref.WeakSet()


@dataclass(frozen=True, eq=False, repr=False)
class Stack:
    """All limiters declared on one function, outermost first; checked together."""

    where: str
    declarations: tuple[Declaration, ...]

    @functools.cached_property
    def acts_at_end(self) -> bool:
        """Whether a call may have to release slots when it ends, or is settled by what it says, as declared: see also
        :attr:`.Changes.may_take_slots`."""
        return any(may_hold_slots(each.rules) or each.settle is True for each in self.declarations)

    @functools.cached_property
    def covered(self) -> frozenset[Declaration]:
        """The limiters that need not be checked again after this stack, including those for other methods."""
        return frozenset(self.declarations)


class Gate(Protocol):
    """Decides for the decorated functions of an app, which ask it before they run."""

    def admit(self, stack: Stack) -> frozenset[Declaration]:
        """Check the stack. Return all declarations that are covered if the call may pass; raise if not.

        The slots of a service function are held by :func:`.holder_of_call`.
        """


class _Advice(NamedTuple):
    """Attached to each function that we return. Our decorators that are directly stacked share one such function."""

    advised: weakref.ref[Any]
    """The function it is attached to. (Other decorators copy all attributes of a function.)"""
    behind: Any
    entries: frozenset[Declaration]
    """The outermost limiters of the stacks below that it skips, and its own."""


def advise(function: Any, stack: Stack) -> Any:
    """``function``, which runs only if the gate of the app in force admits ``stack``."""
    below: _Advice | None = attributes_of(function).get(_ADVICE)
    behind, entries = function, frozenset(stack.declarations[:1])
    if below is not None and below.advised() is function:
        behind, entries = below.behind, entries | below.entries

    checking = functools.partial(_checking, function, behind, stack, entries)
    released = functools.cache(lambda: releasing(checking(None)))
    advised = checking(released)
    setattr(advised, _MARK, stack)
    setattr(advised, _ADVICE, _Advice(weakref.ref(advised), behind, entries))
    for limited in functions_below(function):
        with suppress(TypeError):  # it cannot be hashed or weakly referenced
            _limited[limited] = stack.where
    return advised


def _checking(
    function: Any, behind: Any, stack: Stack, entries: frozenset[Declaration], released: Callable[[], Any] | None
) -> Any:
    """``function``, which checks ``stack`` and then calls ``behind``, or, if something may be to do at its end, calls
    what ``released`` returns."""
    acts_at_end = stack.acts_at_end
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def advised(*args: Any, **kwargs: Any) -> Any:
            if (acts_at_end or changes.may_take_slots) and released is not None and not entries <= _covered.get():
                return await released()(*args, **kwargs)
            with _covering(_enter(stack, entries)):
                return await behind(*args, **kwargs)

    else:

        @functools.wraps(function)
        def advised(*args: Any, **kwargs: Any) -> Any:
            if (acts_at_end or changes.may_take_slots) and released is not None and not entries <= _covered.get():
                return released()(*args, **kwargs)
            covered = _enter(stack, entries)
            token = _covered.set(covered)  # inlined: a context manager would take microseconds
            try:
                result = behind(*args, **kwargs)
            finally:
                _covered.reset(token)
            return _carried(result, covered) if covered and isinstance(result, CoroutineType) else result

    return advised


def _enter(stack: Stack, entries: frozenset[Declaration]) -> frozenset[Declaration]:
    """Check ``stack`` unless it is covered. Return what is covered from here on."""
    covered = _covered.get()
    # It is covered once, on the way in: if the function calls itself again, that is another call.
    if not entries <= covered:
        covered |= _gate(stack).admit(stack)
    return covered - entries


@contextmanager
def _covering(covered: frozenset[Declaration]) -> Iterator[None]:
    token = _covered.set(covered)
    try:
        yield
    finally:
        _covered.reset(token)


async def _carried(coroutine: CoroutineType[Any, Any, Any], covered: frozenset[Declaration]) -> Any:
    """For an async function that a plain decorator has called: keep what is covered while the coroutine runs."""
    with _covering(_covered.get() | covered):
        return await coroutine


def gate_of_app(app: Flask, *, needed_by: str = "") -> Gate:
    """The gate of ``app``. Raises :class:`ConfigurationError` when it has no MultiLimit."""
    if not isinstance(app, Flask):
        raise ConfigurationError(f"app={brief(app)}: give the Flask app itself")
    gate: Gate | None = app.extensions.get(GATE)
    if gate is None:
        raise ConfigurationError(
            f"{needed_by}the app {app.name!r} has no MultiLimit: call MultiLimit(app) or MultiLimit().init_app(app)"
        )
    return gate


def _gate(stack: Stack) -> Gate:
    try:
        app = app_in_force()
    except RuntimeError:
        raise RuntimeError(
            f'"{stack.where}" is rate limited and needs an app: call it in a request or with app.app_context(), '
            "or use the engine's Limiter, which needs none"
        ) from None
    # Looked up here first, because formatting the message takes longer.
    return app.extensions.get(GATE) or gate_of_app(app, needed_by=f'"{stack.where}" is rate limited, but ')


def declared_on(function: object) -> Stack | None:
    """The outermost stack of ``function``, also below other decorators that say what they wrap."""
    return cast("Stack | None", mark_below(function, _MARK))


def limited_inside(function: object) -> list[str]:
    """Where further limiters are declared: on functions that ``function`` holds, perhaps because it is a decorator that
    does not say what it wraps. Limiters of its own stack are left out."""
    own = declared_on(function)
    covered = own.covered if own is not None else frozenset()
    stacks = (declared_on(held) for held in held_inside(function))
    return list(dict.fromkeys(stack.where for stack in stacks if stack is not None and not stack.covered <= covered))


def limiter_above(function: object) -> str | None:
    """Where a limiter was declared that wraps ``function``, or a function that it says to wrap, while no limiter of its
    own does. A call of ``function`` bypasses it. ``None`` also if the limited function is registered somewhere, too."""
    for below in wrapped_in(function):
        with suppress(TypeError):  # it cannot be hashed or weakly referenced
            if below in _limited and below not in _below_registered:
                return None if below is not function and declared_on(function) else _limited[below]
        if isinstance(below, (functools.partial, MethodType)):
            break  # other objects may share what they call
    return None


def note_registered(function: object) -> None:
    """Note that something calls ``function``, in any app of this process, so the limits of the functions below it
    apply there."""
    if declared_on(function) is None:
        return
    _, *below = functions_below(function)
    for each in below:
        with suppress(TypeError):  # as above
            _below_registered.add(each)


# What a call holds until it ends


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
        if self.decisions:  # what was released by hand is held no more: a websocket may take slots for days
            for latest in list(takewhile(lambda each: not KEEPER.holds(each), reversed(self.decisions))):
                with suppress(ValueError):  # another thread has removed it
                    self.decisions.remove(latest)
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


@contextmanager
def _drawing(holder: Holder) -> Iterator[None]:
    """Let ``holder`` hold the slots that this block takes, and end if the block raises an exception."""
    try:
        with holding(holder):
            yield
    except BaseException:
        holder.end()
        raise


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

    def send(self, value: Any) -> Any:
        with _drawing(self._holder):
            return self._generator.send(value)

    def throw(self, *error: Any) -> Any:
        with _drawing(self._holder):
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

    async def asend(self, value: Any) -> Any:
        with _drawing(self._holder):
            return await self._generator.asend(value)

    async def athrow(self, *error: Any) -> Any:
        with _drawing(self._holder):
            return await self._generator.athrow(*error)

    async def aclose(self) -> None:
        try:
            with holding(self._holder):
                await self._generator.aclose()
        finally:
            self._holder.end()
