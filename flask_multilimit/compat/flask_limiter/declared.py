"""Limits as an app declares them: ``Limit`` and its kinds, and the single limits that their text stands for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, TypedDict, TypeVar, overload

from flask import Blueprint, Response, request
from typing_extensions import Self

from flask_multilimit import ConfigurationError

from .items import RateLimitItem, parse_many

F = TypeVar("F", bound=Callable[..., Any])

LimitText = str | Callable[[], str]
"""The text of one or more limits, or a callable that returns it for the current request; empty text for no limit."""
Scope = str | Callable[[str], str]
"""A name, or a callable that returns one for the endpoint of the current request."""
Cost = int | Callable[[], int]
KeyFunction = Callable[[], str]
Reaction = Callable[[Any], Response | None]
"""Called with the :class:`RequestLimit` that refuses; a response that it returns is sent."""

TEXTS_REMEMBERED = 64
MOST_UNITS = 10**9
"""The largest amount of a limit."""


class LimitOptions(TypedDict, total=False):
    """The options of :meth:`Limiter.limit` and :meth:`Limiter.shared_limit`."""

    key_func: KeyFunction | None
    per_method: bool
    methods: Iterable[str] | None
    error_message: str | Callable[[], str] | None
    exempt_when: Callable[[], bool] | None
    override_defaults: bool | None
    deduct_when: Callable[[Response], bool] | None
    on_breach: Reaction | None
    cost: Cost | None
    meta_limits: Iterable[LimitText | MetaLimit] | None


@dataclass(frozen=True, eq=False, slots=True)
class RuntimeLimit:
    """One limit of a declaration, ready to be checked. It also has the attributes of its declaration."""

    limit: RateLimitItem
    key_func: KeyFunction
    declared: Limit

    def __getattr__(self, name: str) -> Any:
        return getattr(self.declared, name)

    @property
    def is_exempt(self) -> bool:
        exempt_when = self.declared.exempt_when
        return bool(exempt_when is not None and exempt_when())

    @property
    def deduction_amount(self) -> int:
        """The units that this request takes: a client may choose more than any limit admits."""
        cost = self.declared.cost
        units = cost() if callable(cost) else cost or 1
        return MOST_UNITS + 1 if type(units) is int and units > MOST_UNITS else units

    @property
    def method_exempt(self) -> bool:
        return not self.serves(request.method)

    def serves(self, method: str) -> bool:
        methods = self.declared.methods
        return methods is None or method.lower() in methods

    def scope_for(self, endpoint: str, method: str | None) -> str:
        """The scope: the endpoint, or the name of a shared limit, and with ``per_method`` also the method."""
        given = self.declared.scope
        own = given(request.endpoint or "") if callable(given) else given
        scope = endpoint
        if own:
            scope = str(own) if self.declared.shared else f"{endpoint}:{own}"
        return f"{scope}:{method.upper()}" if self.declared.per_method and method else scope


@dataclass(eq=True, unsafe_hash=True)
class Limit:
    """A default limit with options of its own: ``Limiter(default_limits=[Limit("10/second", key_function=...)])``.

    The parameters are those of :meth:`Limiter.limit`; ``limit_provider`` is text or a callable that returns text.
    Raises :class:`ConfigurationError` for text that is not a limit.
    """

    limit_provider: LimitText
    key_function: KeyFunction | None = None
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
    is_meta: ClassVar[bool] = False
    override_defaults: bool | None = field(default=False, init=False)
    limiter: Any = field(init=False, repr=False, compare=False)
    _limits_in: Callable[[str], tuple[RuntimeLimit, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("key_function", "exempt_when", "deduct_when", "on_breach"):
            check(name, getattr(self, name), callable, "a callable")
        check("error_message", self.error_message, lambda given: callable(given) or isinstance(given, str), "text")
        check("cost", self.cost, _is_cost, "a whole number of 0 or more, or a callable that returns one")
        check("methods", self.methods, is_list, "a list")
        check("meta_limits", self.meta_limits, is_list, "a list")
        methods = tuple(self.methods or ())
        for method in methods:
            check("methods", method, str, "text")
        self.methods = tuple(method.lower() for method in methods) or None
        self.cost = self.cost or 1
        # Meta limits that are given as text use the key of this limit.
        self.meta_limits = tuple(
            each if isinstance(each, MetaLimit) else MetaLimit(each, key_function=self.key_function)
            for each in self.meta_limits or ()
        )
        self._limits_in = lru_cache(TEXTS_REMEMBERED)(self._make_limits)
        if not callable(self.limit_provider):
            self._items(self.limit_provider)

    def bind(self, limiter: Any) -> Self:
        """Make it a limit of ``limiter``. Raises :class:`ConfigurationError` if neither of them has a key."""
        self.limiter = limiter
        if not callable(self.limit_by):
            raise ConfigurationError(f"limit {self!r:.80}: give it a key_func, or one to the Limiter")
        for each in self.meta_limits or ():
            each.bind(limiter)  # type: ignore[union-attr]  # no text, after __post_init__
        return self

    @property
    def limit_by(self) -> KeyFunction:
        return self.key_function or self.limiter.key_func

    @property
    def is_dynamic(self) -> bool:
        """Whether the limits themselves depend on the request."""
        return callable(self.limit_provider)

    def __iter__(self) -> Iterator[RuntimeLimit]:
        """The limits that apply now. Raises what a callable of the app raises, and :class:`ConfigurationError` for text
        that is no limit."""
        text = self.limit_provider() if callable(self.limit_provider) else self.limit_provider
        return iter(self._limits_in(text) if text else ())

    def _make_limits(self, text: str) -> tuple[RuntimeLimit, ...]:
        return tuple(RuntimeLimit(item, self.limit_by, self) for item in self._items(text))

    def _items(self, text: str) -> tuple[RateLimitItem, ...]:
        """Raises :class:`ConfigurationError` unless ``text`` is a limit that this kind can have, or empty."""
        items = parse_many(text, is_meta=self.is_meta) if text != "" else ()
        for item in items:
            item.ban(1) if self.is_meta else item.rule("fixed_window")
        return items


@dataclass(kw_only=True, unsafe_hash=True)
class RouteLimit(Limit):
    """A limit for a view, any function, a blueprint, or the body of a ``with`` statement:
    ``@RouteLimit("2/second", limiter=limiter)``. :meth:`Limiter.limit` returns one."""

    override_defaults: bool | None = False
    limiter: Any = field(repr=False, compare=False)

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
        self.limiter.check_at(f"{caller.f_code.co_filename}:{caller.f_code.co_name}:{caller.f_lineno}", self)

    def __exit__(self, *error: object) -> None:
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

    is_meta: ClassVar[bool] = True
    scope: Scope | None = "meta"
    meta_limits: Iterable[LimitText | MetaLimit] | None = field(init=False, default=None)
    shared: bool = field(init=False, default=True)
    deduct_when: Callable[[Response], bool] | None = field(init=False, default=None)
    key_function: KeyFunction | None = None


def check(name: str, given: object, valid: type | Callable[[Any], bool], remedy: str) -> None:
    """Raises :class:`ConfigurationError` unless ``given`` is of the type ``valid``, or this returns true for it, or it
    is ``None``. Flask-Limiter would fail later."""
    is_valid = isinstance(given, valid) if isinstance(valid, type) else valid(given)
    if given is not None and not is_valid:
        raise ConfigurationError(f"{name}={given!r:.80}: give {remedy}")


def is_list(given: object) -> bool:
    """Whether it is a list, and not text, whose characters would be items."""
    return isinstance(given, Iterable) and not isinstance(given, (str, bytes, dict))


def _is_cost(given: object) -> bool:
    return callable(given) or (type(given) is int and given >= 0)


def name_of(function: object) -> str:
    """The module and the name of a function, for people."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '')}.{name}"
