"""One declared limiter: the options of ``rate_limiter``, validated."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import takewhile
from types import NoneType
from typing import Any, Literal

from ..engine import Ban, ConfigurationError, Decision, Rule
from ..engine.algorithms import ALGORITHMS
from ..engine.errors import brief, check_bool, is_number
from ..engine.forks import cached_property
from ..engine.hits import OnStorageError, check_ban, check_cost, check_hash_tag, check_hit_cost, check_policy
from ..engine.keys import NAME_PATTERN, RESERVED_TYPES, HashTag, checked_prefix
from ..engine.rules import Rules, changed, rules_from
from ..engine.text import plain_text
from .subjects import LimitType, SubjectType, type_name_of, types_in
from .unwrap import name_of
from .written import ChargeWhenStatus, SettleByHeader, nearest, settle_from, type_from

if sys.version_info >= (3, 14):  # evaluating annotations may fail: some are names that only type checkers know
    from annotationlib import Format

    _signature_of = partial(inspect.signature, annotation_format=Format.STRING)
else:
    _signature_of = inspect.signature

Message = str | Callable[[Decision], Any]
"""Text (also a lazy translation), or a callable of the decision that returns it."""
RulesNow = Rules | Literal[0] | None
"""What a callable returns for the current request: rules; ``None``, ``""`` or ``[]`` for no limit now; 0 to let nothing
pass."""
GiveRules = Callable[[], RulesNow] | Callable[[Any], RulesNow]
"""Returns the rules for the current request, or for the subject if it takes one: see :func:`takes_subject`."""
Cost = int | Callable[[], int]
Settle = Callable[[Any], int | None] | Literal[True]
"""What a request really cost, by its response; or true if the view says it."""
Reaction = Callable[[Decision], Any]
"""Called with the decision of a refusal; may return a response to send instead of the 429 page."""

LONGEST_WAIT = 3600
"""The most seconds for which a declaration may let a request sleep."""


@dataclass(eq=False, repr=False, kw_only=True)
class Declaration:
    """One limiter, as :func:`rate_limiter` describes its options; validated."""

    where: str
    """Where it was declared, for errors and listings."""
    type: SubjectType = LimitType.DEFAULT
    rules: tuple[Rule, ...] | GiveRules = (Rule(),)
    fallback: tuple[Rule, ...] | None = None
    key: str | None = None
    scope: str | None = None
    hash_tag: HashTag = "scope"
    methods: frozenset[str] | None = None
    cost: Cost = 1
    exempt_when: Callable[[], bool] | None = None
    charge_when: Callable[[Any], bool] | None = None
    settle: Settle | None = None
    settle_header: Literal["remove", "keep"] = "remove"
    unit: str | None = None
    shadow: bool = False
    on_storage_error: OnStorageError | None = None
    wait: float = 0
    ban: Ban | None = None
    reserve: Reserve | None = None
    message: Message | None = None
    on_rejected: Reaction | None = None
    with_defaults: bool = False
    name: str | None = None
    scope_is_given: bool = False
    """Whether the declaration names its scope, to share quotas with others."""

    @classmethod
    def of(cls, where: str, options: Mapping[str, Any]) -> Declaration:
        """Raises :class:`ConfigurationError`, which names ``where``, for any mistake in ``options``."""
        try:
            given = dict(_given(options))
            if "rules" in given and (not callable(given["rules"]) or isinstance(given["rules"], type)):
                given["rules"] = rules_from(given["rules"])
            if "type" in given:
                given["type"], name = type_from(given["type"])
                given.setdefault("name", name)
            if "fallback" in given:
                given["fallback"] = rules_from(given["fallback"])
            if "charge_when" in given and not callable(given["charge_when"]):
                given["charge_when"] = ChargeWhenStatus(given["charge_when"])
            if "settle" in given:
                given["settle"] = settle_from(given["settle"])
            if "methods" in given:
                given["methods"] = _methods(given["methods"])
            for name in ("key", "scope", "name", "unit"):
                if isinstance(given.get(name), str):
                    given[name] = plain_text(given[name])
            declaration = cls(where=where, scope_is_given="scope" in given, **given)
            _validate(declaration)
        except ConfigurationError as error:
            raise ConfigurationError(f'limiter on "{where}": {error}') from error.__cause__
        return declaration

    @property
    def methods_in_key(self) -> str:
        """Its methods, as its keys name them, so that limiters of different methods share a quota only if they declare
        a scope."""
        return "" if self.methods is None or self.scope_is_given else "+".join(sorted(self.methods))

    def shared_as(self, scope: str) -> Declaration:
        """A copy that is named after ``scope``, and uses it as its scope unless it has one."""
        return replace(self, scope=self.scope or scope, scope_is_given=self.scope_is_given, name=self.name or scope)

    @cached_property
    def type_name(self) -> str:
        """The name of its type in keys and in the names of its rules."""
        return type_name_of(self.type, self.name)

    @property
    def shown_name(self) -> str:
        """The name by which people and :func:`settle` know it: its own, or that of its type."""
        return self.name or self.type_name

    def name_of(self, rule: Rule) -> str:
        """The name of ``rule`` in header fields, unless a rule of an earlier limiter has it."""
        return rule.name or f"{self.name or self.type_name.replace('+', '-')}-{rule.window}"

    @property
    def fixed_rules(self) -> tuple[Rule, ...]:
        """The rules, if they do not depend on the request."""
        return () if callable(self.rules) else self.rules

    def check_rules(self, rules: Iterable[Rule]) -> None:
        """Raise :class:`ConfigurationError` for rules that do not go with the other options."""
        for rule in rules:
            if self.charge_when is not None and rule.holds_slots:
                raise ConfigurationError(
                    "charge_when has no effect on a Concurrent rule, whose slots are always released; give the rule a "
                    "limiter of its own"
                )
            if self.settle is not None and rule.lease is not None:
                raise ConfigurationError(
                    f"settle: {rule} has a lease, whose units are charged in advance, before it is known what they are "
                    "for; leave out lease"
                )
            if self.reserve is not None:
                reject_buckets(rule)
            if self.cost != 1 and not callable(self.cost) and not (self.settle is not None and rule.holds_slots):
                check_hit_cost(self.cost, rule)

    @property
    def counted_rules(self) -> tuple[Rule, ...]:
        """The rules that do not depend on the request, including that of its ban."""
        return self.fixed_rules if self.ban is None else (*self.fixed_rules, self.ban.rule)

    @property
    def stem(self) -> tuple[object, ...]:
        """What its keys begin with, as far as it is declared."""
        return self.key, self.scope, self.hash_tag, self.methods_in_key

    @property
    def settles_charges(self) -> bool:
        """Whether what it charges depends on the response."""
        return self.charge_when is not None or self.settle is not None

    @property
    def always_applies(self) -> bool:
        """Whether every call is charged, and by the same amount."""
        conditions = (self.exempt_when, self.charge_when, self.settle, self.methods, self.reserve)
        is_fixed = not callable(self.cost) and all(each is None for each in conditions)  # a callable may be false
        return isinstance(self.type, LimitType) and is_fixed and not self.shadow

    @property
    def sheds_load(self) -> bool:
        """Whether it refuses because the service is short, not because of what one client did."""
        return self.reserve is not None and _counts_everyone(self.type)

    def serves(self, method: str, *, by_flask: bool = False) -> bool:
        """Whether it applies to requests of this method. An OPTIONS request that is answered ``by_flask``, without the
        view, is free unless ``methods`` names it."""
        if self.methods is None:
            return not by_flask
        return method in self.methods or (method == "HEAD" and "GET" in self.methods)

    def __str__(self) -> str:
        rules = "rules by request" if callable(self.rules) else "; ".join(map(str, self.rules))
        return f"{self.shown_name} limiter ({rules})"


OPTIONS = tuple(each.name for each in fields(Declaration) if each.name not in {"where", "scope_is_given"})
_DEFAULTS = {each.name: each.default for each in fields(Declaration)}


def takes_subject(give_rules: Callable[..., Any]) -> bool:
    """Whether a callable for rules takes the subject: its one parameter without a default, or one called ``subject``.

    The subject is the id as text, or ``None`` for a client that is not logged in; if the type is a tuple, a tuple of
    these.
    """
    try:
        signature = _signature_of(give_rules)
    except (TypeError, ValueError):
        return False  # some built-in callables have no signature
    named = signature.parameters.get("subject")
    if named is not None and named.kind is named.POSITIONAL_OR_KEYWORD:
        return True
    try:
        signature.bind()
    except TypeError:
        return True
    return False


def may_hold_slots(rules: Iterable[Rule] | GiveRules) -> bool:
    """Whether ``rules`` hold slots, or depend on the request and may hold some."""
    return callable(rules) or any(rule.holds_slots for rule in rules)


def reject_unknown_options(where: str, options: Iterable[object]) -> None:
    """Raise :class:`ConfigurationError` for an option that no limiter has."""
    for option in options:
        if option not in OPTIONS:
            raise ConfigurationError(
                f"{where}: {brief(option)} is not an option of a limiter; {_remedy_for(str(option))}"
            )


def _remedy_for(option: str) -> str:
    if option in Rule.__match_args__:
        return f"it is one of a rule: rules=Rule(..., {option}=...)"
    if option in Ban.__match_args__:
        return f"it is one of a ban: ban=Ban({option}=...)"
    return nearest(option, OPTIONS).removeprefix("; ") or f"give one of {', '.join(OPTIONS)}"


def _given(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The options that are given. ``None`` means "not given" only for options without another default."""
    for name, value in options.items():
        if value is not None:
            yield name, value
        elif name != "rules" and _DEFAULTS.get(name) is not None:
            raise ConfigurationError(f"{name}=None: leave it out for {brief(_DEFAULTS[name])}, or give a value")


def _methods(methods: object) -> frozenset[str]:
    if isinstance(methods, (str, bytes)) or not isinstance(methods, Iterable):
        raise ConfigurationError(f'methods={brief(methods)}: give several, such as methods=["POST", "PUT"]')
    given = list(methods)
    for method in given:
        if not isinstance(method, str):
            raise ConfigurationError(f'methods: {brief(method)} is not a method; give text such as "POST"')
    found = frozenset(method.upper() for method in given)
    if not found:
        raise ConfigurationError("methods: none given, so nothing would be limited; leave it out for all")
    return found


def _validate(declaration: Declaration) -> None:
    _check_type(declaration.type, declaration.name)
    if declaration.key is not None:
        checked_prefix(declaration.key)
    _check_scope(declaration.scope)
    check_hash_tag(declaration.hash_tag)
    _check_cost(declaration)
    _check_wait(declaration.wait)
    _check_rules(declaration)
    called = {"exempt_when": (), "charge_when": ("the response",), "on_rejected": ("the Decision",)}
    for name, arguments in called.items():
        if (given := getattr(declaration, name)) is not None:
            check_callable(name, given, *arguments)
    _check_settle(declaration)
    if declaration.unit is not None:
        _check_name("unit", declaration.unit)
    _check_reserve(declaration)
    if declaration.ban is not None:
        _check_ban(declaration)
    if declaration.on_storage_error is not None:
        check_policy(declaration.on_storage_error)
    for name in ("shadow", "with_defaults"):
        check_bool(name, getattr(declaration, name))
    check_message("message", declaration.message)


def _check_rules(declaration: Declaration) -> None:
    if callable(declaration.rules):
        by_subject = takes_subject(declaration.rules)
        check_callable("rules", declaration.rules, *(["the subject"] if by_subject else []))
        if by_subject and _counts_everyone(declaration.type):
            raise ConfigurationError(
                f"rules={name_of(declaration.rules)}: a limiter of type DEFAULT counts everyone as one subject, so its "
                "callable takes no argument; or give it a type, such as type=LimitType.USER"
            )
    elif declaration.fallback is not None:
        raise ConfigurationError("fallback: these rules apply if a callable for rules fails, and there is no callable")
    declaration.check_rules(declaration.fixed_rules)
    try:
        declaration.check_rules(declaration.fallback or ())
    except ConfigurationError as error:
        raise ConfigurationError(f"fallback: {error}") from error


def _check_settle(declaration: Declaration) -> None:
    settle = declaration.settle
    if declaration.settle_header not in ("remove", "keep"):
        raise ConfigurationError(f"settle_header={brief(declaration.settle_header)}: give 'remove' or 'keep'")
    if declaration.settle_header == "keep" and not isinstance(settle, SettleByHeader):
        raise ConfigurationError('settle_header: no field says what a request cost; give settle="header:X-Tokens"')
    if settle is None:
        return
    if settle is not True:
        check_callable("settle", settle, "the response")
    if declaration.charge_when is not None:
        raise ConfigurationError("settle and charge_when: give settle alone; let it return 0 where nothing is charged")


def _check_reserve(declaration: Declaration) -> None:
    if not isinstance(declaration.reserve, (Reserve, NoneType)):
        raise ConfigurationError(f'reserve={brief(declaration.reserve)}: give Reserve({{"critical": 0.2}}, priority)')
    if declaration.reserve is not None:
        declaration.reserve.check_rules(declaration.fallback or declaration.fixed_rules)


def _check_ban(declaration: Declaration) -> None:
    check_ban(declaration.ban)
    if _counts_everyone(declaration.type):
        raise ConfigurationError(
            "ban: a limiter of type DEFAULT counts everyone as one subject, so a few refusals would shut everyone out; "
            "give it a type, such as type=LimitType.IP"
        )
    if declaration.wait:
        raise ConfigurationError(
            "ban and wait: a request waits because it was refused, so waiting would count as a strike; leave one out"
        )


def _counts_everyone(type_: SubjectType) -> bool:
    return all(part is LimitType.DEFAULT for part in types_in(type_))


def _check_scope(scope: object) -> None:
    if scope is not None and not (isinstance(scope, str) and scope):
        raise ConfigurationError(f"scope={brief(scope)}: give a name, or leave it out for the endpoint")


def _check_cost(declaration: Declaration) -> None:
    if callable(declaration.cost):
        check_callable("cost", declaration.cost)
        return
    known = declaration.fallback or declaration.fixed_rules
    if declaration.settle is not None:  # a request takes one slot, whatever its estimate
        known = tuple(rule for rule in known if not rule.holds_slots)
    for rule in known or (Rule(),):
        check_cost(declaration.cost, rule)
        most = rule.quota.burst
        if known and declaration.cost > most:
            raise ConfigurationError(f"cost={declaration.cost}: {rule} could never admit it: at most {most} at once")


def _check_wait(wait: object) -> None:
    if not is_number(wait) or not 0 <= wait <= LONGEST_WAIT:
        raise ConfigurationError(f"wait={brief(wait)}: give seconds from 0 to {LONGEST_WAIT}")


def check_callable(name: str, value: object, *arguments: str) -> None:
    """Raise :class:`ConfigurationError` unless ``value`` can be called with ``arguments`` and is not async."""
    expected = f"with {' and '.join(arguments)}" if arguments else "without arguments"
    if not callable(value):
        raise ConfigurationError(f"{name}={brief(value)}: give a callable {expected}")
    shown = f"{name}={name_of(value)}"
    of_its_class = inspect.getattr_static(type(value), "__call__", None)
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(of_its_class):
        raise ConfigurationError(f"{shown}: must not be async")
    try:
        _signature_of(value).bind(*arguments)
    except TypeError:
        raise ConfigurationError(f"{shown}: is called {expected}, which it does not take") from None
    except ValueError:
        return  # some built-in callables have no signature


def check_message(name: str, message: object) -> None:
    """Raise :class:`ConfigurationError` unless ``message`` is text, ``None`` or a callable of the decision."""
    if isinstance(message, (bytes, int, float, list, tuple, dict, set)):
        raise ConfigurationError(f"{name}={brief(message)}: give text, or a callable of the Decision")
    if callable(message):
        check_callable(name, message, "the Decision")


def _check_name(option: str, name: object) -> None:
    if not (isinstance(name, str) and re.fullmatch(NAME_PATTERN, name)):
        rule = "1 to 20 characters, a letter and then letters, digits, - and _"
        raise ConfigurationError(f"{option}={brief(name)}: {rule}")


def _check_type(type_: object, name: object) -> None:
    if name is not None:
        _check_name("name", name)
    parts = type_ if isinstance(type_, tuple) else (type_,)
    if not parts:
        raise ConfigurationError("type=(): give at least one type")
    if len(parts) > 1 and (LimitType.DEFAULT in parts or len(set(map(id, parts))) < len(parts)):
        raise ConfigurationError(
            "type: several parts together are one subject, so give each of them once, and leave out DEFAULT, which "
            "means everyone"
        )
    own = [part for part in parts if not isinstance(part, LimitType)]
    for part in own:
        if not callable(part):
            raise ConfigurationError(
                f'type={brief(part)}: give a LimitType such as LimitType.IP, text such as "ip", a callable that '
                "returns the subject, or a tuple of these"
            )
    if not own:
        return
    if name is None:
        called = getattr(own[0], "__qualname__", repr(own[0]))
        raise ConfigurationError(f'type={called}: a type of your own needs a name, such as name="api_key"')
    if str(name).lower() in RESERVED_TYPES:
        raise ConfigurationError(f"name={brief(name)}: taken by a LimitType; call your own type something else")
    for part in own:
        check_callable("type", part)


@dataclass(frozen=True, slots=True)
class Reserve:
    """The part of each count that is kept for requests of a priority.

    All requests use the same key. For those without priority, the rule has a smaller count, so one command decides as
    usual. (Stripe, "Scaling your API with rate limiters", 2017: the fleet usage load shedder.)

    ``Reserve({"critical": 0.2}, priority)`` keeps the last fifth for critical requests. Requests without priority share
    the rest.

    :param parts: by priority, the most important first: numbers above 0, together less than 1.
    :param priority: returns the priority of the current request: a name in ``parts``; any other text or ``None`` for
        the rest.
    :raises ConfigurationError: for anything else; and at start-up, if nothing of a rule is left for the rest.
    """

    parts: Mapping[str, float]
    priority: Callable[[], str | None]

    def __post_init__(self) -> None:
        _check_parts(self.parts)
        check_callable("reserve: priority", self.priority)

    def check_rules(self, rules: Iterable[Rule]) -> None:
        """Raise :class:`ConfigurationError` unless a part of each of ``rules`` is left for all requests."""
        for rule in rules:
            if not _units_left(rule.count, self._reserved_above(None)):
                left = f"leaves nothing of Rule({rule}) for others; reserve less, or raise its count"
                raise ConfigurationError(f"reserve={brief(self.parts)} {left}")

    def rule_for(self, priority: object, rule: Rule) -> Rule:
        """``rule`` without the part that is kept for the priorities before ``priority``. Raises
        :class:`ConfigurationError` for a priority that is not text, and for a rule that cannot reserve anything."""
        if priority is not None and not isinstance(priority, str):
            raise ConfigurationError(f"priority returned {brief(priority)}: return text, or None")
        return _without_reserve(rule, self._reserved_above(priority))

    def _reserved_above(self, priority: str | None) -> Fraction:
        """The sum of the parts of all priorities before ``priority``."""
        before = takewhile(lambda name: name != priority, self.parts)
        return sum((_exactly(self.parts[name]) for name in before), Fraction(0))


def _check_parts(parts: object) -> None:
    shown = f"reserve={brief(parts)}"
    if not isinstance(parts, Mapping) or not parts:
        raise ConfigurationError(f'{shown}: give parts by priority, such as Reserve({{"critical": 0.2}}, priority)')
    for name, part in parts.items():
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"{shown}: a priority is text, not {brief(name)}")
        if not is_number(part) or not 0 < part < 1:
            raise ConfigurationError(f"{shown}: a part is above 0 and below 1, not {brief(part)}")
    if sum(map(_exactly, parts.values())) >= 1:
        raise ConfigurationError(f"{shown}: give less than 1 in all, or nothing is left for others")


@lru_cache(maxsize=1024)
def _without_reserve(rule: Rule, kept: Fraction) -> Rule:
    reject_buckets(rule)
    count = max(_units_left(rule.count, kept), 1)
    lease = None if rule.lease is None or count < 2 else min(rule.lease, count)
    return changed(rule, count=count, lease=lease)


def reject_buckets(rule: Rule) -> None:
    """Raise :class:`ConfigurationError` for a rule that cannot reserve anything."""
    if "burst" in rule.implementation.PARAMETERS:
        # Their state is an instant. To a smaller bucket, the state of a larger one looks like that of a wrong clock.
        reservable = [name for name, algorithm in ALGORITHMS.items() if "burst" not in algorithm.PARAMETERS]
        raise ConfigurationError(f"reserve works with {', '.join(reservable)}, not with {rule.algorithm}; leave it out")


def _units_left(units: int, kept: Fraction) -> int:
    return math.floor(units * (1 - kept))


def _exactly(part: float) -> Fraction:
    """``part`` as it was written: 0.2 is exactly a fifth, not the nearest binary number."""
    return Fraction(str(part))
