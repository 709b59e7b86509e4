"""``rate_limiter`` and ``exempt``, and what they leave on blueprints."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from types import MethodType
from typing import Any, Literal, TypeVar, cast, get_args, overload

from flask import Blueprint, Flask

from ..engine import Ban, ConfigurationError
from ..engine.errors import brief
from ..engine.hits import OnStorageError
from ..engine.keys import HashTag
from ..engine.rules import Rules
from .advice import Stack, advise, declared_on
from .checks import reject_shared_keys, warn_of_idle_rules
from .limiter import Cost, Declaration, GiveRules, Message, Reaction, Reserve, Settle
from .subjects import LimitType, SubjectType
from .unwrap import full_name_of, functions_below, mark_below

Level = Literal["application", "blueprint", "configuration", "default"]
"""Where limits of an endpoint can come from, besides its own decorators."""
LEVELS: frozenset[Level] = frozenset(get_args(Level))

_EXEMPT = "__multilimit_exempt__"
_LIMITS = "__multilimit_limits__"
_DECORATORS_ABOVE = {
    "click": "@app.cli.command",
    "celery": "@celery.task",
    "huey": "@huey.task",
    "dramatiq": "@dramatiq.actor",
}
"""Decorators that return an object which calls the function itself, by the package of its class."""

T = TypeVar("T", bound=Callable[..., Any] | Blueprint)


class RateLimiter:
    """A limiter that is not applied yet. It decorates functions and blueprints, and can be put into lists of limits."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._on_methods: dict[str, Declaration] = {}

    def __call__(self, target: T) -> T:
        """Put the limiter on a function, or on a blueprint, where it applies to each of its endpoints."""
        if isinstance(target, Blueprint):
            where = f'blueprint "{target.name}"'
            declaration = self.at(where)
            warn_of_idle_rules(where, [declaration], (), stacklevel=2)
            limits_of_blueprint(target).append(declaration)
            return target
        if any(isinstance(below, MethodType) for below in functions_below(target)):
            return self.on_method(target)
        where = _name_of(target)
        return _attach(target, where, self.at(where))

    def on_method(self, target: T) -> T:
        """Put the limiter on a method. Flask-RESTful decorates methods again at each request: all of these decorations
        are one limiter."""
        where = _name_of(target)
        return _attach(target, where, self._on_methods.setdefault(where, self.at(where)))

    def at(self, where: str) -> Declaration:
        """The declaration of the limiter; errors say it is at ``where``."""
        return Declaration.of(where, self._options)


def rate_limiter(
    *first: Rules,
    type: SubjectType | str | Sequence[SubjectType | str] = LimitType.DEFAULT,  # noqa: A002 - the field's word
    rules: Rules | GiveRules | None = None,
    fallback: Rules | None = None,
    key: str | None = None,
    scope: str | None = None,
    hash_tag: HashTag = "scope",
    methods: Iterable[str] | None = None,
    cost: Cost = 1,
    exempt_when: Callable[[], bool] | None = None,
    charge_when: Callable[[Any], bool] | int | str | Iterable[int | str] | None = None,
    settle: Settle | str | None = None,
    settle_header: Literal["remove", "keep"] = "remove",
    unit: str | None = None,
    shadow: bool = False,
    on_storage_error: OnStorageError | None = None,
    wait: float = 0,
    ban: Ban | None = None,
    reserve: Reserve | None = None,
    message: Message | None = None,
    on_rejected: Reaction | None = None,
    with_defaults: bool = False,
    name: str | None = None,
) -> RateLimiter:
    """Declare a limiter on a view, a method, any function, or a blueprint: ``@rate_limiter("5/minute", type="ip")``.
    Stack as many as you like: they are checked together, in one step.

    Put it below ``@app.route``. A refused call raises :exc:`RateLimitExceeded` (HTTP 429, or 503 if only limits refuse
    that all clients share and that have a ``reserve``), and leaves every quota as it was.

    :param first: the ``rules``, by position. A callable must be given as ``rules=``.
    :param type: who shares the quota: a :class:`LimitType`, or its name as text; a callable of your own (``name`` is
        then required) that returns the subject of this request, or ``None`` if the limiter does not apply to it; text
        such as ``"header:X-Tenant"`` or ``"module:function"``; or a tuple of these, which together are one subject.
    :param rules: a :class:`Rule`, text such as ``"100/minute; 10/second"``, or several of these; or a callable
        that returns them for the current request, or for the subject, if it takes one. It may return ``None``, ``""``
        or ``[]`` for no limit now, and 0 to let nothing pass. Default: one ``Rule()``, which is 100 in 60 seconds.
    :param fallback: the rules if the callable fails and this process does not know the last good rules of the subject,
        or if several clients may share the subject (an address). Without either, the request fails.
    :param key: the prefix of its keys; default ``MULTILIMIT_KEY_PREFIX``, which is ``rate_limit:``.
    :param scope: a name for what is limited; limiters with the same scope share their quotas. Default: the
        endpoint, or outside of views the function's own name.
    :param hash_tag: what determines the slot of a key in a Redis Cluster: the ``"scope"``, so that all limits of an
        endpoint are one command; or the ``"subject"``, for endpoints whose limits all have one type, so that their
        subjects are spread over all servers.
    :param methods: the request methods it applies to; default: all, except ``OPTIONS`` that Flask answers without
        calling the view. ``GET`` includes ``HEAD``.
    :param cost: units a call takes, 0 or more, or a callable that returns them; 0 charges nothing.
    :param exempt_when: a callable; if it returns true, this limiter does not apply.
    :param charge_when: which responses count: statuses such as ``[401, 403]`` or ``"4xx"``, or a callable that is
        called with the response and returns true or false. Each request is charged before the view runs; if its
        response does not count, it is refunded. If the callable fails, the charge stands.
    :param settle: what the request really cost, in place of the estimate, ``cost``: a callable of the response that
        returns units, or ``None`` if the estimate stands; ``"header:X-Tokens"`` for a field of the response; or
        ``True`` if the view says it with :func:`settle`. A stream is settled at its end.
    :param settle_header: ``"keep"`` lets clients see that field.
    :param unit: for header fields, what the rules count, if not requests: ``"content-bytes"``, ``"tokens"``.
    :param shadow: whether it only counts and signals, and never refuses: to try a limit in production.
    :param on_storage_error: what to do when the storage does not answer: ``local``, ``allow``, ``deny`` or
        ``raise``; default ``MULTILIMIT_ON_STORAGE_ERROR``.
    :param wait: seconds, at most 3600, that a request may sleep in its worker until it can pass, or until its turn in
        a ``leaky_bucket`` queue.
    :param ban: a :class:`Ban`: a subject that is refused repeatedly is refused for a time, whatever the rules say.
    :param reserve: a :class:`Reserve`: a part of each count is kept for requests with a priority.
    :param message: the message to a refused client, or a callable of the :class:`Decision` that returns it.
    :param on_rejected: called with the :class:`Decision` of a refusal; its return value, if any, is the response. If
        that gives no status, it is 429 or 503.
    :param with_defaults: whether the default limits apply, too.
    :param name: the name of its rules in header fields, and for a type of your own also in keys.
    :returns: a decorator, which can also stand in lists of limits.
    :raises ConfigurationError: for a mistake, when the limiter is applied; at once, if its parentheses are missing.
    """
    options = dict(locals())
    options.pop("first")
    if first:
        options["rules"] = _rules_first(first, rules)
    return RateLimiter(options)


def _rules_first(first: tuple[Any, ...], rules: object) -> Any:
    if callable(first[0]):
        raise ConfigurationError(
            f"@rate_limiter on {full_name_of(first[0])}: write @rate_limiter() or @rate_limiter('5/minute'), with "
            "parentheses; a callable for rules is given by name: rules=..."
        )
    for each in first:
        if isinstance(each, LimitType):
            raise ConfigurationError(f"rate_limiter({each!s}): give the type by name: type={each!s}")
    if rules is not None:
        raise ConfigurationError(f"rate_limiter({brief(first[0])}, rules={brief(rules)}): give the rules once")
    return first[0] if len(first) == 1 else first


@overload
def exempt(target: T, /) -> T: ...
@overload
def exempt(*levels: Level) -> Callable[[T], T]: ...
def exempt(*levels: Any) -> Any:
    """Exempt a view (a function, a class or one of its methods) or a blueprint from limits declared elsewhere; its
    own ``rate_limiter`` decorators stay in force.

    ``@exempt`` exempts it from all of them, ``@exempt("default", "blueprint")`` only from these ``levels``. The levels
    are ``application``, ``blueprint``, ``configuration`` and ``default``.
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
        raise ConfigurationError(f"exempt({brief(target)}): put it on a function, a view class or a blueprint")
    before: frozenset[Level] = getattr(target, _EXEMPT, frozenset())
    try:
        setattr(target, _EXEMPT, before | levels)
    except (AttributeError, TypeError):
        raise ConfigurationError(
            f"exempt({brief(target)}): it takes no attributes; wrap it in a function of your own"
        ) from None
    return target


def exempt_levels(target: object) -> frozenset[Level]:
    """The levels that a view or a blueprint is exempt from."""
    if isinstance(target, (type, Blueprint)):
        return cast("frozenset[Level]", getattr(target, _EXEMPT, frozenset()))
    return cast("frozenset[Level]", mark_below(target, _EXEMPT) or frozenset())


def limits_of_blueprint(blueprint: Blueprint) -> list[Declaration]:
    """The limiters on ``blueprint``, in order."""
    return cast("list[Declaration]", vars(blueprint).setdefault(_LIMITS, []))


def _attach(function: T, where: str, outermost: Declaration) -> T:
    below = declared_on(function)
    inner = below.declarations if below else ()
    declarations = (outermost, *inner)
    reject_shared_keys(where, ((each, each.stem) for each in declarations))
    warn_of_idle_rules(where, [outermost], inner, stacklevel=3)
    return cast("T", advise(function, Stack(where, declarations)))


def _name_of(function: object) -> str:
    if isinstance(function, Flask):
        raise ConfigurationError(
            f"@rate_limiter on the app {function.name!r}: give it to MultiLimit(app, application_limits=...), for all "
            "endpoints together, or default_limits=..., for each by itself"
        )
    packages = {each.__module__.partition(".")[0] for each in type(function).__mro__}
    if called_by := next((_DECORATORS_ABOVE[each] for each in packages if each in _DECORATORS_ABOVE), ""):
        raise ConfigurationError(
            f"@rate_limiter on {brief(function)}: it stands above {called_by}, which calls the function without it, so "
            f"nothing would be limited; put {called_by} on top"
        )
    if isinstance(function, (type, staticmethod, classmethod)) or not callable(function):
        raise ConfigurationError(
            f"@rate_limiter on {brief(function)}: decorate a function or a blueprint; of a class, its methods; "
            "of a staticmethod or classmethod, the function below it"
        )
    return full_name_of(function)
