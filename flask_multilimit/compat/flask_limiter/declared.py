"""Limits as an app declares them: ``Limit`` and its kinds, and the single limits that their text stands for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, overload

from flask import Blueprint, Response, request

from flask_multilimit.engine.text import SafeLogger

from .given import check_callable, check_cost, check_several, check_texts
from .items import RateLimitItem, parse_many

if TYPE_CHECKING:
    from logging import Logger

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

LimitText = str | Callable[[], str]
"""The text of one or more limits, or a callable that returns it for the current request; empty text for no limit."""
Scope = str | Callable[[str], str]
"""A name, or a callable that returns one for the endpoint of the current request."""
Cost = int | Callable[[], int]
Reaction = Callable[[Any], Response | None]
"""Called with the :class:`RequestLimit` that refuses; a response that it returns is sent."""

UNTIL_IT_WORKS = "100/minute"
"""The limit that applies while a callable has never returned a valid one."""
TEXTS_REMEMBERED = 64


class Binding(Protocol):
    """The Limiter that a limit belongs to, as far as the limit needs it."""

    key_func: Callable[[], str]
    logger: Logger

    @property
    def limiter(self) -> Any:
        """Checks limits by hand."""

    def decorate(self, limit: RouteLimit, target: Any) -> Any:
        """Put ``limit`` on a function or a blueprint."""

    def enter(self, limit: RouteLimit, location: str, owner: str) -> None:
        """Check ``limit`` here and now, for the ``with`` statement at ``location`` in the function ``owner``."""


@dataclass(frozen=True, eq=False, slots=True)
class RuntimeLimit:
    """One limit of a declaration, ready to be checked."""

    limit: RateLimitItem
    key_func: Callable[[], str]
    scope: Scope | None
    per_method: bool = False
    methods: tuple[str, ...] | None = None
    error_message: str | Callable[[], str] | None = None
    exempt_when: Callable[[], bool] | None = None
    override_defaults: bool | None = False
    deduct_when: Callable[[Response], bool] | None = None
    on_breach: Reaction | None = None
    cost: Cost = 1
    shared: bool = False
    meta_limits: tuple[MetaLimit, ...] = ()
    type_name: str = "limit"
    """Distinguishes its quotas in storage from those of other limits with the same scope, window and key."""

    @property
    def depends_on_request(self) -> bool:
        """Whether more than its key depends on the request."""
        return self.exempt_when is not None or callable(self.cost) or callable(self.scope)

    @property
    def is_exempt(self) -> bool:
        return bool(self.exempt_when is not None and self.exempt_when())

    @property
    def deduction_amount(self) -> int:
        return self.units()

    @property
    def method_exempt(self) -> bool:
        return self.methods is not None and request.method.lower() not in self.methods

    def units(self) -> int:
        """The units that this request takes."""
        return self.cost() if callable(self.cost) else self.cost

    def scope_for(self, endpoint: str, method: str | None) -> str:
        """The scope: the endpoint, or the name of a shared limit, and with ``per_method`` also the method."""
        own = self.scope(request.endpoint or "") if callable(self.scope) else self.scope
        scope = endpoint if not own else str(own) if self.shared else f"{endpoint}:{own}"
        return f"{scope}:{method.upper()}" if self.per_method and method else scope

    def message(self) -> str:
        """The message to a refused client."""
        given = self.error_message
        return str((given() if callable(given) else given) or self.limit)


@dataclass(eq=True, unsafe_hash=True)
class Limit:
    """A default limit with options of its own: ``Limiter(default_limits=[Limit("10/second", key_function=...)])``.

    The parameters are those of :meth:`Limiter.limit`; ``limit_provider`` is text or a callable that returns text.
    Raises :class:`ConfigurationError` for text that is not a limit.
    """

    limit_provider: LimitText
    key_function: Callable[[], str] | None = None
    scope: Scope | None = None
    cost: Cost | None = None
    shared: bool = False
    methods: Iterable[str] | None = None
    per_method: bool = False
    error_message: str | Callable[[], str] | None = None
    meta_limits: Iterable[LimitText | MetaLimit] | None = None
    exempt_when: Callable[[], bool] | None = None
    deduct_when: Callable[[Response], bool] | None = None
    on_breach: Reaction | None = None
    role: ClassVar[str] = "defaults"
    """Keeps quotas of different kinds of limits apart: a request that two limits count is counted in each."""
    override_defaults: bool | None = field(default=False, init=False)
    limiter: Binding = field(init=False, repr=False, compare=False)
    finalized: bool = field(default=True, compare=False)
    _made: dict[str, tuple[RuntimeLimit, ...]] = field(init=False, repr=False, compare=False, default_factory=dict)
    _good: tuple[RuntimeLimit, ...] | None = field(init=False, repr=False, compare=False, default=None)
    _failing: bool = field(init=False, repr=False, compare=False, default=False)

    def __post_init__(self) -> None:
        for name in ("key_function", "exempt_when", "deduct_when", "on_breach"):
            check_callable(name, getattr(self, name))
        if not callable(self.error_message):
            check_texts(error_message=self.error_message)
        check_cost(self.cost)
        if self.methods is not None:
            check_several("methods", self.methods)
            self.methods = tuple(self.methods)
            for method in self.methods:
                check_texts(methods=method)
            self.methods = tuple(method.lower() for method in self.methods)
        if self.meta_limits is not None:
            check_several("meta_limits", self.meta_limits)
            # Meta limits that are given as text use the key of this limit.
            self.meta_limits = tuple(
                each if isinstance(each, MetaLimit) else MetaLimit(each, key_function=self.key_function)
                for each in self.meta_limits
            )
        if not callable(self.limit_provider):
            self._items(self.limit_provider)

    def bind(self: T, limiter: Binding) -> T:
        """Make it a limit of ``limiter``."""
        self.limiter = limiter  # type: ignore[attr-defined]
        for each in self.meta_limits or ():  # type: ignore[attr-defined]
            if isinstance(each, MetaLimit):
                each.bind(limiter)
        return self

    @property
    def limit_by(self) -> Callable[[], str]:
        return self.key_function or self.limiter.key_func

    @property
    def is_dynamic(self) -> bool:
        """Whether the limits themselves depend on the request."""
        return callable(self.limit_provider)

    def __iter__(self) -> Iterator[RuntimeLimit]:
        return iter(self.limits())

    def limits(self) -> tuple[RuntimeLimit, ...]:
        """The limits that apply now. If a callable raises or returns nonsense, those that it returned last."""
        if not callable(self.limit_provider):
            return self._of(self.limit_provider)
        try:
            found = self._of(self.limit_provider())
        except Exception as error:  # whatever it is, limits must stay in force
            return self._good_ones(error)
        self._good, self._failing = found, False
        return found

    def _good_ones(self, error: Exception) -> tuple[RuntimeLimit, ...]:
        if self._good is None:
            self._good = self._until_it_works()
        good = self._good
        if not self._failing:
            self._failing = True
            SafeLogger(self.limiter.logger).error(
                "failed to load ratelimit from %s: %s; %s applies until it works again",
                name_of(self.limit_provider),
                error,
                ", ".join(str(each.limit) for each in good) or "no limit",
            )
        return good

    def _until_it_works(self) -> tuple[RuntimeLimit, ...]:
        """The limit for that time. The default limits apply as well, because they may be stricter."""
        return tuple(replace(each, override_defaults=False) for each in self._of(UNTIL_IT_WORKS))

    def _of(self, text: str) -> tuple[RuntimeLimit, ...]:
        if not text:
            return ()
        found = self._made.get(text)
        if found is None:
            found = tuple(self._runtime(item) for item in self._items(text))
            if len(self._made) >= TEXTS_REMEMBERED:
                self._made.clear()
            self._made[text] = found
        return found

    def _items(self, text: str) -> tuple[RateLimitItem, ...]:
        """Raises :class:`ConfigurationError` unless ``text`` is a limit, or empty."""
        items = parse_many(text) if text != "" else ()
        for item in items:
            self._check(item)
        return items

    def _check(self, item: RateLimitItem) -> None:
        """Raises :class:`ConfigurationError` for an item that this kind of limit cannot have."""
        item.rule("fixed_window")

    def _runtime(self, item: RateLimitItem) -> RuntimeLimit:
        return RuntimeLimit(
            limit=item,
            key_func=self.limit_by,
            scope=self.scope,
            per_method=self.per_method,
            methods=tuple(self.methods) if self.methods else None,
            error_message=self.error_message,
            exempt_when=self.exempt_when,
            override_defaults=self.override_defaults,
            deduct_when=self.deduct_when,
            on_breach=self.on_breach,
            cost=self.cost or 1,
            shared=self.shared,
            meta_limits=tuple(each for each in self.meta_limits or () if isinstance(each, MetaLimit)),
            type_name=self._type_name(item),
        )

    def _type_name(self, item: RateLimitItem) -> str:
        key = None if self.limit_by is self.limiter.key_func else self.limit_by
        if self.shared:  # its name is enough: each place that uses it says which requests count
            return type_name_of("shared", item.amount, key)
        cost = None if self.cost == 1 else self.cost
        return type_name_of(self.role, item.amount, key, cost, self.methods, self.exempt_when, self.deduct_when)


@dataclass(kw_only=True, unsafe_hash=True)
class RouteLimit(Limit):
    """A limit for a view, any function, a blueprint, or the body of a ``with`` statement:
    ``@RouteLimit("2/second", limiter=limiter)``. :meth:`Limiter.limit` returns one."""

    role: ClassVar[str] = "limit"
    override_defaults: bool | None = False
    limiter: Binding = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bind(self.limiter)

    @overload
    def __call__(self, target: Blueprint) -> None: ...
    @overload
    def __call__(self, target: F) -> F: ...
    def __call__(self, target: Any) -> Any:
        return self.limiter.decorate(self, target)

    def __enter__(self) -> None:
        caller = sys._getframe(1)
        name = caller.f_code.co_name
        self.limiter.enter(self, f"{caller.f_code.co_filename}:{name}:{caller.f_lineno}", name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Do nothing: charges stay, whatever the body raises."""


@dataclass(kw_only=True, unsafe_hash=True)
class ApplicationLimit(Limit):
    """A limit that all routes share."""

    scope: Scope | None = "global"
    shared: bool = field(init=False, default=True)


@dataclass(kw_only=True, unsafe_hash=True)
class MetaLimit(Limit):
    """How often a client may be refused. After that, all its requests are refused for the window.

    It counts by the key of the Limiter, unless ``key_function`` is given.
    """

    scope: Scope | None = "meta"
    meta_limits: Iterable[LimitText | MetaLimit] | None = field(init=False, default=None)
    shared: bool = field(init=False, default=True)
    deduct_when: Callable[[Response], bool] | None = field(init=False, default=None)
    key_function: Callable[[], str] | None = None

    def _type_name(self, item: RateLimitItem) -> str:
        """Strikes against one meta limit do not count for another."""
        return f"meta-{item.amount}"

    def _check(self, item: RateLimitItem) -> None:
        item.ban(1)


def type_name_of(role: str, amount: int, *parts: object) -> str:
    """The type in keys. Two limits of one scope, window and key share a quota if they have the same ``role`` and count
    the same requests, as ``parts`` (functions, methods, units) say. The count is not part of it.

    There is one exception: if functions have no name by which a restarted app would know them (lambdas, closures),
    limits with different counts are different, as in Flask-Limiter.
    """
    names = [name_of(part) for part in parts]
    if not any(names):
        return role
    if any("<" in name for name in names):
        names.append(str(amount))
    return f"{role}-{blake2b(repr(names).encode(), digest_size=4).hexdigest()}"


def name_of(part: object) -> str:
    """A name that stays the same when the app restarts. The name of a function contains ``<`` if others may share
    it."""
    if part is None or isinstance(part, (int, str, tuple)):
        return str(part or "")
    name = getattr(part, "__qualname__", None)
    return f"{getattr(part, '__module__', '')}.{name}" if name else f"<{type(part).__qualname__}>"
