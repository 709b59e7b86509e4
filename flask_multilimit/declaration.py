"""``rate_limiter``: what a decorator leaves on a function, and the advice around it.

Stacked decorators become one :class:`Stack`. The outermost one has it checked, once and whole, where it stands;
those below find themselves covered and let the call through.
"""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, Protocol, TypeVar, cast

from flask import current_app, has_app_context

from .config import check_prefix
from .engine import ConfigurationError, ConfigurationWarning, Decision, Rule
from .engine.decision import check_cost
from .engine.keys import TYPE_PATTERN
from .engine.rules import Rules, rules_from
from .subjects import RESERVED_NAMES, LimitType, SubjectType

EXTENSION = "multilimit"
"""Where the extension lies in ``app.extensions``."""

LONGEST_WAIT = 3600
"""Seconds a declaration may keep a request asleep."""

_MARK = "__multilimit__"

F = TypeVar("F", bound=Callable[..., Any])
Message = str | Callable[[Decision], str]
Cost = int | Callable[[], int]


@dataclass(frozen=True, slots=True, eq=False)
class Declaration:
    """One limiter, as one ``@rate_limiter(...)`` declares it; validated."""

    where: str
    """The function it stands on, for errors."""
    type: SubjectType
    rules: tuple[Rule, ...]
    key: str | None
    scope: str | None
    cost: Cost
    exempt_when: Callable[[], bool] | None
    message: Message | None
    wait: float
    name: str | None

    @property
    def kind(self) -> str:
        """What a key and the names of its rules call the type."""
        return self.type.value if isinstance(self.type, LimitType) else cast("str", self.name)

    @property
    def always_applies(self) -> bool:
        """Whether every call is charged, and charged the same."""
        return isinstance(self.type, LimitType) and not callable(self.cost) and self.exempt_when is None

    def __str__(self) -> str:
        return f"{self.name or self.kind} limiter ({'; '.join(map(str, self.rules))})"


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """All limiters declared on one function, outermost first; checked together."""

    where: str
    declarations: tuple[Declaration, ...]
    covered: frozenset[Declaration]
    """Those under the outermost: checked by it, not by themselves."""


class Gate(Protocol):
    """What the advice asks: the extension's state for the app."""

    def admit(self, stack: Stack) -> None:
        """Return if the call may pass; raise if not."""


def rate_limiter(
    *,
    type: SubjectType = LimitType.DEFAULT,  # noqa: A002 - the field's word
    rules: Rules | None = None,
    key: str | None = None,
    scope: str | None = None,
    cost: Cost = 1,
    exempt_when: Callable[[], bool] | None = None,
    message: Message | None = None,
    wait: float = 0,
    name: str | None = None,
) -> Callable[[F], F]:
    """Declare a limiter on a view, a method or any function. Stack as many as you like: they are one check.

    :param type: who shares the quota: a :class:`LimitType`, or a callable of your own (``name`` is then required)
        that returns the subject of this request, or ``None`` when the limiter does not apply to it.
    :param rules: a :class:`Rule`, text such as ``"100/minute; 10/second"``, or several of these;
        left out, one ``Rule()``: 100 in 60 seconds.
    :param key: what its keys begin with; default ``MULTILIMIT_KEY_PREFIX``, which is ``rate_limit:``.
    :param scope: a name for what is limited; functions with the same scope share their quotas. Default: the
        endpoint, or outside of views the function's own name.
    :param cost: units a call takes, 0 or more, or a callable that returns them; 0 charges nothing.
    :param exempt_when: a callable; when it returns true this limiter does not apply.
    :param message: what a refused client is told, or a callable of the :class:`Decision` that returns it.
    :param wait: seconds that a request may spend asleep in its worker until its turn comes, when a
        ``leaky_bucket`` with ``max_delay`` admits it with a delay; the worker serves nobody else meanwhile. A
        longer delay, and by default (0) any, is left to the view: ``current_decision.delay``.
    :param name: what its rules are called in header fields, and for a type of your own also in keys.

    A refused call raises :exc:`RateLimitExceeded` (HTTP 429) and leaves every quota as it was. Put it below
    ``@app.route``, like every decorator of a view. Raises :class:`ConfigurationError` for whatever is wrong in
    the declaration.
    """

    def declare(function: F) -> F:
        where = _name_of(function)
        try:
            declaration = _validated(
                Declaration(
                    where=where,
                    type=type,
                    rules=(Rule(),) if rules is None else rules_from(rules),
                    key=key,
                    scope=scope,
                    cost=cost,
                    exempt_when=exempt_when,
                    message=message,
                    wait=wait,
                    name=name,
                )
            )
        except ConfigurationError as error:
            raise ConfigurationError(f'limiter on "{where}": {error}') from error.__cause__
        return _advise(function, _stack(where, declaration, declared_on(function)))

    return declare


def declared_on(function: object) -> Stack | None:
    """The stack that a call of ``function`` comes upon first, also below decorators that are not ours.

    Such a decorator keeps what it wraps in ``__wrapped__`` (``functools.wraps``), in a closure or in an attribute.
    When two stacks lie below side by side, neither is that of ``function``: each is checked where it stands.
    """
    found = {id(stack): stack for stack in _stacks_below(function, seen=set())}
    return next(iter(found.values())) if len(found) == 1 else None


def unreachable(function: object) -> str | None:
    """Where a limiter stands whose decorator was applied to ``function`` only after it had been registered."""
    wrapper = _wrappers.get(function) if isinstance(function, FunctionType) else None
    advised = wrapper() if wrapper else None
    return getattr(advised, _MARK).where if advised is not None else None


_covered: ContextVar[frozenset[Declaration]] = ContextVar("multilimit_covered", default=frozenset())
_wrappers: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()


def _advise(function: F, stack: Stack) -> F:
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
    return cast("F", advised)


@contextmanager
def _entered(stack: Stack) -> Iterator[None]:
    covered = _covered.get()
    if stack.declarations[0] in covered:
        yield
        return
    _gate(stack).admit(stack)
    token = _covered.set(covered | stack.covered)
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


def _validated(declaration: Declaration) -> Declaration:
    _check_type(declaration.type, declaration.name)
    if declaration.key is not None:
        check_prefix(declaration.key)
    _check_scope(declaration.scope)
    if not callable(declaration.cost):
        for rule in declaration.rules:
            check_cost(declaration.cost, rule)
            if declaration.cost > rule.quota.burst:
                raise ConfigurationError(f"cost={declaration.cost}: {rule} could never admit it")
    if declaration.exempt_when is not None and not callable(declaration.exempt_when):
        raise ConfigurationError(f"exempt_when={declaration.exempt_when!r}: give a callable without arguments")
    _check_wait(declaration.wait)
    if declaration.message is not None and not (isinstance(declaration.message, str) or callable(declaration.message)):
        raise ConfigurationError(f"message={declaration.message!r}: give text, or a callable of the Decision")
    return declaration


def _check_scope(scope: object) -> None:
    if scope == "" or not (scope is None or isinstance(scope, str)):
        raise ConfigurationError(f"scope={scope!r}: give a name, or leave it out for the endpoint")


def _check_wait(wait: object) -> None:
    if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not 0 <= wait <= LONGEST_WAIT:
        raise ConfigurationError(f"wait={wait!r}: give seconds from 0 to {LONGEST_WAIT}")


def _check_type(type_: object, name: object) -> None:
    if name is not None and not (isinstance(name, str) and TYPE_PATTERN.fullmatch(name)):
        raise ConfigurationError(f"name={name!r}: 1 to 20 characters, a letter and then letters, digits, - and _")
    if isinstance(type_, LimitType):
        return
    if not callable(type_):
        raise ConfigurationError(f"type={type_!r}: give a LimitType, or a callable that returns the subject")
    if name is None:
        raise ConfigurationError(f'type={_name_of(type_)}: a type of your own needs a name, such as name="api_key"')
    if name in RESERVED_NAMES:
        raise ConfigurationError(f"name={name!r}: taken by a LimitType; call your own type something else")


def _stack(where: str, outermost: Declaration, below: Stack | None) -> Stack:
    inner = below.declarations if below else ()
    declarations = (outermost, *inner)
    reject_shared_keys(where, declarations)
    warn_of_idle_rules(where, declarations)
    return Stack(where, declarations, frozenset(inner))


def reject_shared_keys(where: str, declarations: tuple[Declaration, ...]) -> None:
    """Raise :class:`ConfigurationError` when two rules would count in one key, and so charge it twice."""
    owners: dict[tuple[object, ...], Declaration] = {}
    for declaration in declarations:
        for rule in declaration.rules:
            place = (declaration.key, declaration.scope, declaration.kind, rule.algorithm, rule.window_ms)
            other = owners.setdefault(place, declaration)
            if other is not declaration or declaration.rules.index(rule) != _last_index(declaration, rule):
                raise ConfigurationError(
                    f'limiter on "{where}": Rule({rule}) of the {declaration} and a rule of the {other} would share '
                    "one key, as type and window are the same; keep the stricter, or give one of them a scope"
                )


def _last_index(declaration: Declaration, rule: Rule) -> int:
    """Index of the last rule that has the key of ``rule``."""
    same = (rule.algorithm, rule.window_ms)
    return max(index for index, other in enumerate(declaration.rules) if (other.algorithm, other.window_ms) == same)


def warn_of_idle_rules(where: str, declarations: tuple[Declaration, ...]) -> None:
    """Warn of each rule that can never refuse, because another refuses first whatever comes."""
    for declaration in declarations:
        for rule in declaration.rules:
            for other in declarations:
                tighter = next((each for each in other.rules if _always_tighter(other, each, declaration, rule)), None)
                if tighter is not None:
                    warnings.warn(
                        f'limiter on "{where}": Rule({rule}) of the {declaration} can never refuse, because '
                        f"Rule({tighter}) of the {other} always refuses before; leave it out or make it stricter",
                        ConfigurationWarning,
                        stacklevel=4,
                    )


def _always_tighter(tight: Declaration, tight_rule: Rule, loose: Declaration, loose_rule: Rule) -> bool:
    if tight_rule is loose_rule or not (tight.always_applies and loose.always_applies):
        return False
    same_subjects = tight.type is loose.type or tight.type is LimitType.DEFAULT
    if not same_subjects or (tight.scope, tight.cost) != (loose.scope, loose.cost):
        return False
    if tight_rule.algorithm != "sliding_window" or loose_rule.algorithm != "sliding_window":
        return False
    windows = -(-loose_rule.window_ms // tight_rule.window_ms)
    return windows * tight_rule.count <= loose_rule.count


def _stacks_below(function: object, seen: set[int]) -> Iterator[Stack]:
    if id(function) in seen:
        return
    seen.add(id(function))
    stack = getattr(function, _MARK, None)
    if isinstance(stack, Stack):
        yield stack
        return
    for below in _functions_below(function):
        yield from _stacks_below(below, seen)


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
            f"@rate_limiter on {function!r}: decorate a function; of a class, its methods; "
            "of a staticmethod or classmethod, the function below it"
        )
    module = getattr(function, "__module__", None) or type(function).__module__
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{module}:{name}"
