"""The wrapper around a limited function: it asks the app's gate before the function runs. When the function ends, it
releases the slots that the call holds, and settles what the call really cost.

Stacked decorators become one :class:`Stack`. The outermost one checks the whole stack once. Those directly below it are
skipped; those further below find that they are covered, and let the call through.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import takewhile
from types import AsyncGeneratorType, CoroutineType, GeneratorType, MethodType
from typing import Any, ClassVar, NamedTuple, Protocol, cast

from flask import Flask, Request, current_app

from ..engine import ConfigurationError, Decision
from ..engine.errors import brief
from ..engine.slots import KEEPER
from ..engine.threads import interrupts
from .limiter import Declaration, may_hold_slots
from .subjects import request_if_any
from .unwrap import attributes_of, functions_below, held_inside, mark_below, wrapped_in

EXTENSION = "multilimit"
"""The key of the extension in ``app.extensions``."""
GATE = "multilimit.gate"
"""The key of the app's gate in ``app.extensions``: one extension may serve several apps."""

_MARK = "__multilimit__"
_ADVICE = "__multilimit_advice__"

app_in_force: Callable[[], Flask] = current_app._get_current_object  # type: ignore[attr-defined]
"""The app itself: each access to an attribute of the proxy would look it up again."""
_covered: ContextVar[frozenset[Declaration]] = ContextVar("multilimit_covered", default=frozenset())
_limited: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_below_registered: weakref.WeakSet[Any] = weakref.WeakSet()


class Stack:
    """All limiters declared on one function, outermost first; checked together."""

    overrides_may_take_slots: ClassVar[bool] = False
    """Whether functions that declare no slots may take some in this process. Once true, it stays true, for calls in
    progress."""

    def __init__(self, where: str, declarations: tuple[Declaration, ...]) -> None:
        self.where = where
        self.declarations = declarations
        self.acts_at_end: bool = any(may_hold_slots(each.rules) or each.settle is True for each in declarations)
        """Whether something may be left to do when a call ends: release slots, or settle by what the function says.
        See also :attr:`overrides_may_take_slots`."""
        self.covered: frozenset[Declaration] = frozenset(declarations)
        """The limiters that need not be checked again after this stack, including those for other methods."""


class Gate(Protocol):
    """Decides for the decorated functions of an app, which ask it before they run."""

    def admit(self, stack: Stack) -> frozenset[Declaration]:
        """Check the stack. If the call may pass, return all declarations that are now covered; if not, raise.

        :func:`.holder_of_call` holds the slots of a service function.
        """


class _Advice(NamedTuple):
    """Attached to each wrapper. Decorators of ours that directly follow each other are one wrapper."""

    advised: weakref.ref[Any]
    """The wrapper it is attached to, because other decorators copy all attributes of a function."""
    target: Any
    """What the wrapper calls: the function below all stacks that it skips."""
    outermost: frozenset[Declaration]
    """The outermost limiter of its stack, and of each stack that it skips. If all are covered, it checks nothing."""


def advise(function: Any, stack: Stack) -> Any:
    """Wrap ``function`` so that it runs only if the gate of the app in force admits ``stack``."""
    below: _Advice | None = attributes_of(function).get(_ADVICE)
    target, outermost = function, frozenset(stack.declarations[:1])
    if below is not None and below.advised() is function:
        target, outermost = below.target, outermost | below.outermost

    wrap = functools.partial(_with_check, function, target, stack, outermost)
    twin = functools.cache(lambda: releasing(wrap(None)))
    advised = wrap(twin)
    setattr(advised, _MARK, stack)
    setattr(advised, _ADVICE, _Advice(weakref.ref(advised), target, outermost))
    for limited in functions_below(function):
        with suppress(TypeError):  # it cannot be hashed or weakly referenced
            _limited[limited] = stack.where
    return advised


def _with_check(
    function: Any, target: Any, stack: Stack, outermost: frozenset[Declaration], twin: Callable[[], Any] | None
) -> Any:
    """Wrap ``function``: check ``stack``, then call ``target``. If something may be left to do when a call ends, the
    wrapper that ``twin`` makes runs instead."""
    acts_at_end = stack.acts_at_end
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def advised(*args: Any, **kwargs: Any) -> Any:
            covered = _covered.get()
            if (acts_at_end or Stack.overrides_may_take_slots) and twin is not None and not outermost <= covered:
                return await twin()(*args, **kwargs)
            with _covering(_check_unless_covered(stack, outermost, covered)):
                return await target(*args, **kwargs)

    else:

        @functools.wraps(function)
        def advised(*args: Any, **kwargs: Any) -> Any:
            covered = _covered.get()
            if (acts_at_end or Stack.overrides_may_take_slots) and twin is not None and not outermost <= covered:
                return twin()(*args, **kwargs)
            inside = _check_unless_covered(stack, outermost, covered)
            if not inside and not covered:  # usually; setting a variable of the context takes longer than all the rest
                return target(*args, **kwargs)
            token = _covered.set(inside)  # inlined: a context manager would take microseconds
            try:
                result = target(*args, **kwargs)
            finally:
                _covered.reset(token)
            return _await_covered(result, inside) if inside and isinstance(result, CoroutineType) else result

    return advised


def _check_unless_covered(
    stack: Stack, outermost: frozenset[Declaration], covered: frozenset[Declaration]
) -> frozenset[Declaration]:
    """Check ``stack`` unless it is ``covered``. Return what is covered inside the call."""
    if not outermost <= covered:
        covered |= _gate(stack).admit(stack)
    return covered - outermost  # if the function calls itself, that is another call


@contextmanager
def _covering(covered: frozenset[Declaration]) -> Iterator[None]:
    token = _covered.set(covered)
    try:
        yield
    finally:
        _covered.reset(token)


async def _await_covered(coroutine: CoroutineType[Any, Any, Any], covered: frozenset[Declaration]) -> Any:
    """Keep ``covered`` while the coroutine runs: a plain decorator may have called an async function."""
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
    """Where limiters are declared on functions that ``function`` holds, except those of its own stack. It may be the
    wrapper of a decorator that does not say what it wraps."""
    own = declared_on(function)
    covered = own.covered if own is not None else frozenset()
    stacks = (declared_on(held) for held in held_inside(function))
    return list(dict.fromkeys(stack.where for stack in stacks if stack is not None and not stack.covered <= covered))


def limiter_above(function: object) -> str | None:
    """Where a limiter is declared that a call of ``function`` bypasses: it wraps ``function``, or one that this says it
    wraps. ``None`` if ``function`` has limiters of its own, or the limited function is registered somewhere, too."""
    for below in wrapped_in(function):
        with suppress(TypeError):  # it cannot be hashed or weakly referenced
            if below in _limited and below not in _below_registered:
                return _limited[below]
        if isinstance(below, (functools.partial, MethodType)):
            break  # other objects may share what they call
    return None


def mark_registered(function: object) -> None:
    """Remember that some app of this process calls ``function``, so that no limit of the functions below it is
    bypassed."""
    if declared_on(function) is None:
        return
    _, *below = functions_below(function)
    for each in below:
        with suppress(TypeError):  # as above
            _below_registered.add(each)


# What a call holds until it ends


class Bill:
    """What a request, or a call of a service function, is charged, and what it really cost."""

    def __init__(self) -> None:
        self.open_charges: list[tuple[Decision, Sequence[Any]]] = []
        """Charges to settle, by the response or the real costs, each with the limiters that settle it."""
        self.real_costs: dict[str, int] = {}
        """What the work really cost, as it says itself, by the name of the limiter."""


class CallBill(Bill):
    """The bill of a call of a service function, and of the calls that it makes."""

    def __init__(self, declared: tuple[Declaration, ...], at_end: list[Callable[[], object]]) -> None:
        super().__init__()
        self.declared: tuple[Declaration, ...] = declared
        """The limiters of the function, also those that do not apply to this call."""
        self.at_end: list[Callable[[], object]] = at_end
        """That of the holder of the function's call."""


class Holder:
    """Holds slots until some work ends: a call, a block, or a request."""

    __slots__ = ("at_end", "bill", "decisions", "ended")

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.at_end: list[Callable[[], object]] = []
        """Called once, when the work ends."""
        self.ended: bool = False
        """If a thread or a task of this work takes slots after that, nobody holds them."""
        self.bill: CallBill | None = None
        """The bill that this work settles; ``None``: that of the request."""

    def hold(self, decision: Decision) -> bool:
        """Hold the slots of ``decision``. Return false if the work has ended, which may have released them already."""
        if self.decisions:  # forget what was released by hand: a websocket may take slots for days
            for latest in list(takewhile(lambda each: not KEEPER.holds(each), reversed(self.decisions))):
                with suppress(ValueError):  # another thread has removed it
                    self.decisions.remove(latest)
        self.decisions.append(decision)
        return not self.ended

    def release(self) -> None:
        """Release the slots."""
        if self.decisions:
            decisions, self.decisions = self.decisions, []
            try:
                KEEPER.release_all(decisions)
            finally:
                self.decisions += decisions  # none, unless an exception came from outside, as of a signal handler

    def end(self) -> None:
        """Release the slots, and call :attr:`at_end`: in another thread if a dropped generator or coroutine ends."""
        self.ended = True
        if interrupts():
            KEEPER.call_soon(self._end)
        else:
            self._end()

    def _end(self) -> None:
        self.release()
        at_end, self.at_end = self.at_end, []
        for act in at_end:
            act()

    def __del__(self) -> None:
        # Whatever ends this was interrupted, or dropped before its end, or even its beginning. In another thread:
        # garbage is collected at any point of any code, perhaps inside of a lock.
        if self.decisions or self.at_end:
            KEEPER.call_soon(self.end)


_call: ContextVar[tuple[Holder, Request | None] | None] = ContextVar("multilimit_held", default=None)
"""The holder of the service function or block in progress, and the request that it belongs to. A request that begins
inside of it, such as one of a test client, holds its own slots."""


@contextmanager
def holding(holder: Holder) -> Iterator[None]:
    """Let ``holder``, instead of the response, hold the slots that this block takes."""
    if holder.bill is None and (outer := holder_of_call()) is not None:
        holder.bill = outer.bill
    token = _call.set((holder, request_if_any()))
    try:
        yield
    finally:
        _call.reset(token)


def holder_of_call() -> Holder | None:
    """What holds slots until the current service function or block ends; ``None`` outside of one."""
    call = _call.get()
    return call[0] if call is not None and call[1] is request_if_any() else None


def leave_to_response() -> None:
    """Let the response hold the slots of the current call until it is closed, because this is the call of a view."""
    _call.set(None)


def releasing(function: Any) -> Any:
    """Wrap ``function`` so that each call releases its slots, and is settled, when it ends."""
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
                acts = holder.decisions or holder.at_end or holder.bill is not None
                if acts and isinstance(result, _LAZY_RESULTS):
                    result, holder = _end_with(result, holder), Holder()
                return result
            finally:
                holder.end()

    return released


_LAZY_RESULTS = (CoroutineType, GeneratorType, AsyncGeneratorType)


@contextmanager
def _holding_until_raised(holder: Holder) -> Iterator[None]:
    """Let ``holder`` hold the slots that this block takes, and end it if the block raises."""
    try:
        with holding(holder):
            yield
    except BaseException:
        holder.end()
        raise


def _end_with(result: Any, holder: Holder) -> Any:
    """Wrap a lazy ``result`` so that ``holder`` ends when it ends, or when it is dropped before its end or even its
    beginning."""
    wrapped: Any
    if isinstance(result, CoroutineType):
        wrapped = _await_and_end(result, holder)
    else:
        wrapper = _HoldingGenerator if isinstance(result, GeneratorType) else _HoldingAsyncGenerator
        wrapped = wrapper(result, holder)
    weakref.finalize(wrapped, holder.__del__).atexit = False  # a task that it began may keep the holder in its context
    return wrapped


async def _await_and_end(coroutine: CoroutineType[Any, Any, Any], holder: Holder) -> Any:
    try:
        with holding(holder):
            return await coroutine
    finally:
        holder.end()


class _Holding:
    """A generator that holds slots until it ends: that is always an exception, ``StopIteration`` included."""

    def __init__(self, generator: Any, holder: Holder) -> None:
        self._generator = generator
        self._holder = holder


class _HoldingGenerator(_Holding, Generator[Any, Any, Any]):
    def send(self, value: Any) -> Any:
        with _holding_until_raised(self._holder):
            return self._generator.send(value)

    def throw(self, *error: Any) -> Any:
        with _holding_until_raised(self._holder):
            return self._generator.throw(*error)


class _HoldingAsyncGenerator(_Holding, AsyncGenerator[Any, Any]):
    async def asend(self, value: Any) -> Any:
        with _holding_until_raised(self._holder):
            return await self._generator.asend(value)

    async def athrow(self, *error: Any) -> Any:
        with _holding_until_raised(self._holder):
            return await self._generator.athrow(*error)

    async def aclose(self) -> None:  # the inherited one would raise if the generator has ended
        try:
            with holding(self._holder):
                await self._generator.aclose()
        finally:
            self._holder.end()
