"""``rate_limiter`` and ``exempt``: what they leave on a function or a blueprint, and the advice around a function.

Stacked decorators become one :class:`Stack`. The outermost one has it checked, once and whole, where it stands;
those below find themselves covered and let the call through.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, Literal, Protocol, TypeVar, cast, get_args

from flask import Blueprint, current_app, has_app_context

from .declaration import (
    Cost,
    Declaration,
    Message,
    Reaction,
    reject_shared_keys,
    warn_of_idle_rules,
)
from .engine import ConfigurationError
from .engine.rules import Rules
from .subjects import LimitType, SubjectType

EXTENSION = "multilimit"
"""Where the extension lies in ``app.extensions``."""

Level = Literal["application", "blueprint", "configuration", "default"]
"""Where limits of an endpoint can come from, other than its own decorators."""
LEVELS: frozenset[Level] = frozenset(get_args(Level))

_MARK = "__multilimit__"
_EXEMPT = "__multilimit_exempt__"

T = TypeVar("T", bound=Callable[..., Any] | Blueprint)


@dataclass(frozen=True, eq=False)
class Stack:
    """All limiters declared on one function, outermost first; checked together."""

    where: str
    declarations: tuple[Declaration, ...]


class Gate(Protocol):
    """What the advice asks: the extension's state for the app."""

    def admit(self, stack: Stack) -> frozenset[Declaration]:
        """Return all that was checked if the call may pass; raise if not."""


class RateLimiter:
    """A limiter that stands nowhere yet: decorates functions and blueprints, and goes into lists of limits."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def __call__(self, target: T) -> T:
        """Put the limiter on a function, or on a blueprint: then it applies to each of its endpoints."""
        if isinstance(target, Blueprint):
            limits_of_blueprint(target).append(self.at(f'blueprint "{target.name}"'))
            return target
        where = _name_of(target)
        return cast("T", _advise(target, _stack(where, self.at(where), declared_on(target))))

    def at(self, where: str) -> Declaration:
        """The limiter as declared ``where``."""
        return Declaration.of(where, self._options)


def rate_limiter(
    *,
    type: SubjectType = LimitType.DEFAULT,  # noqa: A002 - the field's word
    rules: Rules | Callable[[], Rules] | None = None,
    key: str | None = None,
    scope: str | None = None,
    methods: Iterable[str] | None = None,
    cost: Cost = 1,
    exempt_when: Callable[[], bool] | None = None,
    charge_when: Callable[[Any], bool] | None = None,
    shadow: bool = False,
    wait: float = 0,
    message: Message | None = None,
    on_rejected: Reaction | None = None,
    with_defaults: bool = False,
    name: str | None = None,
) -> RateLimiter:
    """Declare a limiter on a view, a method, any function, or a blueprint. Stack as many as you like: one check.

    :param type: who shares the quota: a :class:`LimitType`; a callable of your own (``name`` is then required)
        that returns the subject of this request, or ``None`` when the limiter does not apply to it; or a tuple of
        these, which together are one subject.
    :param rules: a :class:`Rule`, text such as ``"100/minute; 10/second"``, or several of these; or a callable
        that returns them for the current request. Left out, one ``Rule()``: 100 in 60 seconds. When the callable
        raises or returns nonsense, the last good rules of that subject stay in force.
    :param key: what its keys begin with; default ``MULTILIMIT_KEY_PREFIX``, which is ``rate_limit:``.
    :param scope: a name for what is limited; limiters with the same scope share their quotas. Default: the
        endpoint, or outside of views the function's own name.
    :param methods: the request methods it applies to; default all but ``OPTIONS``. ``GET`` includes ``HEAD``.
    :param cost: units a call takes, 0 or more, or a callable that returns them; 0 charges nothing.
    :param exempt_when: a callable; when it returns true this limiter does not apply.
    :param charge_when: a callable of the response; when it returns false, what was charged before the view ran is
        given back, exactly. So no more than ``count`` can be under way, and only what you name is counted.
    :param shadow: evaluate, count and signal, but never refuse: to try a limit in production.
    :param wait: seconds that a request may spend asleep in its worker until it can pass, instead of being
        refused, or until its turn in a ``leaky_bucket`` queue; the worker serves nobody else meanwhile.
    :param message: what a refused client is told, or a callable of the :class:`Decision` that returns it.
    :param on_rejected: called with the :class:`Decision` of a refusal; what it returns is the response.
    :param with_defaults: let the default limits apply beside it.
    :param name: what its rules are called in header fields, and for a type of your own also in keys.

    A refused call raises :exc:`RateLimitExceeded` (HTTP 429) and leaves every quota as it was. Put it below
    ``@app.route``, like every decorator of a view. Raises :class:`ConfigurationError`, where it is put, for
    whatever is wrong in it.
    """
    options = dict(locals())
    return RateLimiter(options)


def exempt(*levels: Any) -> Any:
    """Exempt a view or a blueprint from limits declared elsewhere; its own ``rate_limiter`` stay in force.

    ``@exempt`` from all of them; ``@exempt("default", "blueprint")`` from these ``levels``: ``application``,
    ``blueprint``, ``configuration``, ``default``.
    """
    if len(levels) == 1 and not isinstance(levels[0], str):
        return _exempted(levels[0], LEVELS)
    for level in levels:
        if level not in LEVELS:
            raise ConfigurationError(f"exempt({level!r}): the levels are {', '.join(sorted(LEVELS))}")
    return functools.partial(_exempted, levels=frozenset(levels) or LEVELS)


def _exempted(target: T, levels: frozenset[Level]) -> T:
    before: frozenset[Level] = getattr(target, _EXEMPT, frozenset())
    setattr(target, _EXEMPT, before | levels)
    return target


def exempt_levels(target: object) -> frozenset[Level]:
    """The levels that a view or a blueprint is exempt from."""
    found = _marks_below(target, _EXEMPT, seen=set())
    return frozenset().union(*found)


def limits_of_blueprint(blueprint: Blueprint) -> list[Declaration]:
    """The limiters put on ``blueprint``, in order."""
    return _blueprint_limits.setdefault(blueprint, [])


def declared_on(function: object) -> Stack | None:
    """The stack that a call of ``function`` comes upon first, also below decorators that are not ours.

    Such a decorator keeps what it wraps in ``__wrapped__`` (``functools.wraps``), in a closure or in an attribute.
    When two stacks lie below side by side, neither is that of ``function``: each is checked where it stands.
    """
    found = {id(stack): stack for stack in _marks_below(function, _MARK, seen=set())}
    return cast("Stack", next(iter(found.values()))) if len(found) == 1 else None


def unreachable(function: object) -> str | None:
    """Where a limiter stands whose decorator was applied to ``function`` only after it had been registered."""
    wrapper = _wrappers.get(function) if isinstance(function, FunctionType) else None
    advised = wrapper() if wrapper else None
    return getattr(advised, _MARK).where if advised is not None else None


_covered: ContextVar[frozenset[Declaration]] = ContextVar("multilimit_covered", default=frozenset())
_wrappers: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()
_blueprint_limits: weakref.WeakKeyDictionary[Blueprint, list[Declaration]] = weakref.WeakKeyDictionary()


def _stack(where: str, outermost: Declaration, below: Stack | None) -> Stack:
    declarations = (outermost, *(below.declarations if below else ()))
    reject_shared_keys(where, declarations)
    warn_of_idle_rules(where, declarations, stacklevel=3)
    return Stack(where, declarations)


def _advise(function: Any, stack: Stack) -> Any:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def advised(*args: Any, **kwargs: Any) -> Any:
            with _entered(stack):
                return await function(*args, **kwargs)

    else:

        @functools.wraps(function)
        def advised(*args: Any, **kwargs: Any) -> Any:
            with _entered(stack):
                return function(*args, **kwargs)

    setattr(advised, _MARK, stack)
    if isinstance(function, FunctionType):
        _wrappers[function] = weakref.ref(advised)
    return advised


@contextmanager
def _entered(stack: Stack) -> Iterator[None]:
    covered = _covered.get()
    outermost = stack.declarations[0]
    if outermost in covered:
        yield
        return
    checked = _gate(stack).admit(stack)
    token = _covered.set(covered | checked - {outermost})
    try:
        yield
    finally:
        _covered.reset(token)


def _gate(stack: Stack) -> Gate:
    if not has_app_context():
        raise RuntimeError(
            f'"{stack.where}" is rate limited and needs an app: call it in a request or with app.app_context(), '
            "or use the engine's Limiter, which needs none"
        )
    gate: Gate | None = current_app.extensions.get(EXTENSION)
    if gate is None:
        raise ConfigurationError(
            f'"{stack.where}" is rate limited, but the app {current_app.name!r} has no MultiLimit: '
            "call MultiLimit(app) or MultiLimit().init_app(app)"
        )
    return gate


def _marks_below(target: object, mark: str, seen: set[int]) -> Iterator[Any]:
    if id(target) in seen:
        return
    seen.add(id(target))
    found = getattr(target, mark, None)
    if found is not None:
        yield found
        return
    for below in _functions_below(target):
        yield from _marks_below(below, mark, seen)


def _functions_below(function: object) -> Iterator[object]:
    if isinstance(function, MethodType):
        yield function.__func__
    elif isinstance(function, functools.partial):
        yield function.func
    elif isinstance(function, FunctionType):
        yield from filter(_is_function, vars(function).values())
        yield from filter(_is_function, (cell.cell_contents for cell in function.__closure__ or () if _filled(cell)))
    elif callable(function) and not isinstance(function, type):
        yield from filter(_is_function, getattr(function, "__dict__", {}).values())


def _is_function(value: object) -> bool:
    return isinstance(value, (FunctionType, MethodType, functools.partial)) or hasattr(value, _MARK)


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell has no other sign
    except ValueError:
        return False
    return True


def _name_of(function: object) -> str:
    if isinstance(function, type) or not callable(function):
        raise ConfigurationError(
            f"@rate_limiter on {function!r}: decorate a function or a blueprint; of a class, its methods; "
            "of a staticmethod or classmethod, the function below it"
        )
    module = getattr(function, "__module__", None) or type(function).__module__
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{module}:{name}"
