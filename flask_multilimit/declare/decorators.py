"""``rate_limiter`` and ``exempt``: what they leave on a function or a blueprint, and the advice around a function.

Stacked decorators become one :class:`Stack`. The outermost one checks the whole stack once; those below it find that
they are covered, and let the call through. Those directly below it are skipped.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import CoroutineType, MethodType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, cast, get_args, overload

from flask import Blueprint, Flask, current_app

from ..engine import ConfigurationError, Decision
from ..engine.errors import brief
from ..engine.hits import OnStorageError
from ..engine.keys import HashTag
from ..engine.records import record
from ..engine.rules import Rules
from .checks import reject_shared_keys, warn_of_idle_rules
from .limiter import (
    Cost,
    Declaration,
    Message,
    Reaction,
    RulesNow,
)
from .reserve import Priority
from .subjects import LimitType, SubjectType
from .unwrap import attributes_of, full_name_of, functions_below, held_inside

if TYPE_CHECKING:
    from ..engine import Ban

EXTENSION = "multilimit"
"""Where the extension lies in ``app.extensions``."""
GATE = "multilimit.gate"
"""Where its gate for that app lies: one extension may serve several apps."""

Level = Literal["application", "blueprint", "configuration", "default"]
"""Where limits of an endpoint can come from, besides its own decorators."""
LEVELS: frozenset[Level] = frozenset(get_args(Level))

_MARK = "__multilimit__"
_ADVICE = "__multilimit_advice__"
_EXEMPT = "__multilimit_exempt__"

T = TypeVar("T", bound=Callable[..., Any] | Blueprint)


@record()
class Stack:
    """All limiters declared on one function, outermost first; checked together."""

    where: str
    declarations: tuple[Declaration, ...]

    @functools.cached_property
    def may_hold_slots(self) -> bool:
        """Whether a call may have to release slots when it ends."""
        return any(callable(each.rules) or any(rule.holds_slots for rule in each.rules) for each in self.declarations)

    @functools.cached_property
    def covered(self) -> frozenset[Declaration]:
        """All that need not be checked again after this stack: also those that do not serve the method."""
        return frozenset(self.declarations)


class Gate(Protocol):
    """What the decorated functions of an app ask before they run."""

    def admit(self, stack: Stack) -> frozenset[Declaration]:
        """Check the stack. Return all declarations that are covered if the call may pass; raise if not.

        Decisions that hold slots of a service function are put into :data:`held_by_this_call`.
        """

    def release(self, decisions: Iterable[Decision]) -> None:
        """Give back the slots that ``decisions`` hold."""


class RateLimiter:
    """A limiter that is not applied yet: decorates functions and blueprints, and can be put into lists of limits."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._on_methods: dict[str, Declaration] = {}

    def __call__(self, target: T) -> T:
        """Put the limiter on a function, or on a blueprint, where it applies to each of its endpoints."""
        if isinstance(target, Blueprint):
            limits_of_blueprint(target).append(self.at(f'blueprint "{target.name}"'))
            return target
        if any(isinstance(below, MethodType) for below in functions_below(target)):
            return self.on_method(target)
        where = _name_of(target)
        return cast("T", _advise(target, _stack(where, self.at(where), declared_on(target))))

    def on_method(self, target: T) -> T:
        """Put the limiter on a method that is decorated again at each request, as flask-restful does. It remains one
        limiter."""
        where = _name_of(target)
        declaration = self._on_methods.setdefault(where, self.at(where))
        return cast("T", _advise(target, _stack(where, declaration, declared_on(target))))

    def at(self, where: str) -> Declaration:
        """The limiter, declared at ``where``."""
        return Declaration.of(where, self._options)


def rate_limiter(
    *,
    type: SubjectType = LimitType.DEFAULT,  # noqa: A002 - the field's word
    rules: Rules | Callable[[], RulesNow] | None = None,
    key: str | None = None,
    scope: str | None = None,
    hash_tag: HashTag = "scope",
    methods: Iterable[str] | None = None,
    cost: Cost = 1,
    exempt_when: Callable[[], bool] | None = None,
    charge_when: Callable[[Any], bool] | None = None,
    shadow: bool = False,
    on_storage_error: OnStorageError | None = None,
    wait: float = 0,
    ban: Ban | None = None,
    reserve: Mapping[str, float] | None = None,
    priority: Priority | None = None,
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
        that returns them for the current request: ``None``, ``""`` or ``[]`` for no limit now, 0 so that nothing
        passes. Left out, one ``Rule()``: 100 in 60 seconds. When the callable raises or returns nonsense, the last
        good rules of that limiter and subject stay in force.
    :param key: what its keys begin with; default ``MULTILIMIT_KEY_PREFIX``, which is ``rate_limit:``.
    :param scope: a name for what is limited; limiters with the same scope share their quotas. Default: the
        endpoint, or outside of views the function's own name.
    :param hash_tag: what determines the slot of a key in a Redis Cluster: the ``"scope"``, so that all limits of an
        endpoint are one command; or the ``"subject"``, for endpoints whose limits all have one type, so that their
        subjects are spread over all servers.
    :param methods: the request methods it applies to; default all but ``OPTIONS``. ``GET`` includes ``HEAD``.
    :param cost: units a call takes, 0 or more, or a callable that returns them; 0 charges nothing.
    :param exempt_when: a callable; when it returns true this limiter does not apply.
    :param charge_when: a callable of the response; when it returns false, what was charged before the view ran is
        refunded exactly. So no more than ``count`` requests can be in progress, and only those that you choose count.
    :param shadow: evaluate, count and signal, but never refuse: to try a limit in production.
    :param on_storage_error: what to do when the storage does not answer: ``local``, ``allow``, ``deny`` or
        ``raise``; default ``MULTILIMIT_ON_STORAGE_ERROR``.
    :param wait: seconds that a request may sleep in its worker until it can pass, instead of being refused,
        or until its turn in a ``leaky_bucket`` queue; the worker serves no other request meanwhile.
    :param ban: a :class:`Ban`: a subject that is refused repeatedly is refused for a time, whatever the rules say.
    :param reserve: the part of each count that is kept for requests of a priority, the most important first:
        ``{"critical": 0.2}`` keeps the last fifth for the critical. Further ones share what the first leave.
    :param priority: a callable that returns the priority of the current request; used with ``reserve``.
    :param message: the message to a refused client, or a callable of the :class:`Decision` that returns it.
    :param on_rejected: called with the :class:`Decision` of a refusal; what it returns is the response.
    :param with_defaults: let the default limits apply, too.
    :param name: the name of its rules in header fields, and for a type of your own also in keys.

    A refused call raises :exc:`RateLimitExceeded` (HTTP 429) and leaves every quota as it was. Put it below
    ``@app.route``, like every decorator of a view. Whatever is wrong in it raises :class:`ConfigurationError` where it
    is applied.
    """
    options = dict(locals())
    return RateLimiter(options)


@overload
def exempt(target: T, /) -> T: ...
@overload
def exempt(*levels: Level) -> Callable[[T], T]: ...
def exempt(*levels: Any) -> Any:
    """Exempt a view (a function, a class or one of its methods) or a blueprint from limits declared elsewhere; its
    own ``rate_limiter`` stay in force.

    ``@exempt`` from all of them; ``@exempt("default", "blueprint")`` from these ``levels``: ``application``,
    ``blueprint``, ``configuration``, ``default``.
    """
    if len(levels) == 1 and not isinstance(levels[0], str):
        return _exempted(levels[0], LEVELS)
    for level in levels:
        if not isinstance(level, str) or level not in LEVELS:
            raise ConfigurationError(f"exempt({brief(level)}): the levels are {', '.join(sorted(LEVELS))}")
    return functools.partial(_exempted, levels=frozenset(levels) or LEVELS)


def _exempted(target: T, levels: frozenset[Level]) -> T:
    bound = (MethodType, staticmethod, classmethod)
    if isinstance(target, (*bound, Flask)) or not (callable(target) or isinstance(target, Blueprint)):
        raise ConfigurationError(f"exempt({target!r}): put it on a function, a view class or a blueprint")
    before: frozenset[Level] = getattr(target, _EXEMPT, frozenset())
    try:
        setattr(target, _EXEMPT, before | levels)
    except (AttributeError, TypeError):
        raise ConfigurationError(
            f"exempt({target!r}): it takes no attributes; wrap it in a function of your own"
        ) from None
    return target


def exempt_levels(target: object) -> frozenset[Level]:
    """The levels that a view or a blueprint is exempt from."""
    if isinstance(target, type):
        return cast("frozenset[Level]", getattr(target, _EXEMPT, frozenset()))
    return cast("frozenset[Level]", _mark_below(target, _EXEMPT) or frozenset())


def limits_of_blueprint(blueprint: Blueprint) -> list[Declaration]:
    """The limiters on ``blueprint``, in order."""
    return _blueprint_limits.setdefault(blueprint, [])


def declared_on(function: object) -> Stack | None:
    """The outermost stack of ``function``, also below other decorators that tell what they wrap."""
    return cast("Stack | None", _mark_below(function, _MARK))


def limited_inside(function: object) -> list[str]:
    """Where limiters are declared that the stack of ``function`` does not have, and that stand on functions which it
    holds: perhaps below a decorator that does not tell what it wraps."""
    own = declared_on(function)
    covered = own.covered if own is not None else frozenset()
    stacks = (declared_on(held) for held in held_inside(function))
    return list(dict.fromkeys(stack.where for stack in stacks if stack is not None and not stack.covered <= covered))


def limiter_above(function: object) -> str | None:
    """Where a limiter was declared that wraps ``function``. A call of ``function`` itself bypasses it."""
    with suppress(TypeError):
        return _limited.get(function)
    return None


def note_routed(view: object) -> None:
    """Note that ``view`` is the view of some app, so what is limited in it is limited there as declared."""
    if declared_on(view) is None:
        return
    _, *below = functions_below(view)
    for function in below:
        with suppress(TypeError):  # it cannot be hashed or weakly referenced
            _below_views.add(function)


def is_routed_limited(function: object) -> bool:
    """Whether a limited view stands above ``function``, in any app of this process."""
    return function in _below_views


app_in_force: Callable[[], Flask] = current_app._get_current_object  # type: ignore[attr-defined]
"""The app itself: each access to an attribute of the proxy would look it up again."""
_covered: ContextVar[frozenset[Declaration]] = ContextVar("multilimit_covered", default=frozenset())
_limited: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_below_views: weakref.WeakSet[Any] = weakref.WeakSet()
_blueprint_limits: weakref.WeakKeyDictionary[Blueprint, list[Declaration]] = weakref.WeakKeyDictionary()


def _stack(where: str, outermost: Declaration, below: Stack | None) -> Stack:
    declarations = (outermost, *(below.declarations if below else ()))
    reject_shared_keys(where, declarations)
    warn_of_idle_rules(where, declarations, stacklevel=3)
    return Stack(where, declarations)


class _Advice(NamedTuple):
    """Attached to each function that we return. Our decorators that are directly stacked share one such function."""

    advised: weakref.ref[Any]
    """The function it is attached to. (Other decorators copy all attributes of a function.)"""
    behind: Any
    doors: frozenset[Declaration]
    """The outermost limiters of the stacks below that it skips, and its own."""


def _advise(function: Any, stack: Stack) -> Any:
    below: _Advice | None = attributes_of(function).get(_ADVICE)
    behind, doors = function, frozenset(stack.declarations[:1])
    if below is not None and below.advised() is function:
        behind, doors = below.behind, doors | below.doors

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def advised(*args: Any, **kwargs: Any) -> Any:
            with _covering(_enter(stack, doors)):
                return await behind(*args, **kwargs)

    else:

        @functools.wraps(function)
        def advised(*args: Any, **kwargs: Any) -> Any:
            covered = _enter(stack, doors)
            token = _covered.set(covered)  # inlined: a context manager would take some microseconds
            try:
                result = behind(*args, **kwargs)
            finally:
                _covered.reset(token)
            return _carried(result, covered) if covered and isinstance(result, CoroutineType) else result

    if stack.may_hold_slots:
        from .releasing import releasing  # noqa: PLC0415 - few limits hold slots

        advised = releasing(advised, lambda: _gate(stack).release)
    setattr(advised, _MARK, stack)
    setattr(advised, _ADVICE, _Advice(weakref.ref(advised), behind, doors))
    for limited in functions_below(function):
        with suppress(TypeError):  # it cannot be hashed or weakly referenced
            _limited[limited] = stack.where
    return advised


def _enter(stack: Stack, doors: frozenset[Declaration]) -> frozenset[Declaration]:
    """Check ``stack`` unless it is covered. Return what is covered from here on."""
    covered = _covered.get()
    # It is covered once, on the way in: if the function calls itself again, that is another call.
    if not doors <= covered:
        covered |= _gate(stack).admit(stack)
    return covered - doors


@contextmanager
def _covering(covered: frozenset[Declaration]) -> Iterator[None]:
    token = _covered.set(covered)
    try:
        yield
    finally:
        _covered.reset(token)


async def _carried(coroutine: CoroutineType[Any, Any, Any], covered: frozenset[Declaration]) -> Any:
    """For a decorator that is not async and has called an async function: keep what is covered while it runs."""
    with _covering(_covered.get() | covered):
        return await coroutine


def gate_of_app(app: Flask, *, needed_by: str = "") -> Gate:
    """The gate of ``app``. Raises :class:`ConfigurationError` when it has no MultiLimit."""
    if not isinstance(app, Flask):
        raise ConfigurationError(f"app={brief(app)}: give the Flask app")
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


def _mark_below(target: object, mark: str) -> Any:
    """The outermost ``mark`` of ``target``."""
    marked = (attributes_of(function) for function in functions_below(target))
    return next((attributes[mark] for attributes in marked if mark in attributes), None)


def _name_of(function: object) -> str:
    if isinstance(function, Flask):
        raise ConfigurationError(
            f"@rate_limiter on the app {function.name!r}: give it to MultiLimit(app, application_limits=...), for all "
            "endpoints together, or default_limits=..., for each by itself"
        )
    if isinstance(function, (type, staticmethod, classmethod)) or not callable(function):
        raise ConfigurationError(
            f"@rate_limiter on {function!r}: decorate a function or a blueprint; of a class, its methods; "
            "of a staticmethod or classmethod, the function below it"
        )
    return full_name_of(function)
