"""From declarations to hits: the limiters of an endpoint in their places, and what they ask for a request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from flask import Flask

from .declaration import Declaration, reject_shared_keys
from .decorators import Stack, declared_on, unreachable
from .dynamic import DynamicRules
from .engine import ConfigurationError, Hit, Rule
from .engine.keys import escape_scope, escape_subject
from .subjects import LimitType, Resolve, Subject

HITS_REMEMBERED = 1024
"""Subjects whose hits are kept ready, of all limiters together."""


@dataclass(frozen=True, eq=False)
class PlannedLimiter:
    """A declaration in its place: scope and prefix known, rules named."""

    declaration: Declaration
    stem: str
    rules: tuple[tuple[str, Rule], ...]
    """Each with its name; empty when they depend on the request."""
    dynamic: DynamicRules | None

    def hits(self, subject: Subject, cost: int) -> tuple[Hit, ...]:
        """The hits of ``subject``."""
        escaped = escape_subject(subject.value)
        if self.dynamic is None:
            return _remembered_hits(self, subject.kind, escaped, cost)
        rules = self.dynamic(escaped)
        return self.make_hits(
            tuple((_name(self.declaration, rule), rule) for rule in rules), subject.kind, escaped, cost
        )

    def make_hits(self, rules: Iterable[tuple[str, Rule]], kind: str, subject: str, cost: int) -> tuple[Hit, ...]:
        return tuple(
            Hit(
                f"{self.stem}{kind}:{subject}:{rule.algorithm}:{rule.window_ms}",
                rule,
                cost,
                name,
                self.declaration.shadow,
            )
            for name, rule in rules
        )


@lru_cache(maxsize=HITS_REMEMBERED)
def _remembered_hits(limiter: PlannedLimiter, kind: str, subject: str, cost: int) -> tuple[Hit, ...]:
    return limiter.make_hits(limiter.rules, kind, subject, cost)


@dataclass(frozen=True, slots=True)
class Applied:
    """A limiter that applies to this request, with what it asks."""

    declaration: Declaration
    subject: Subject
    hits: tuple[Hit, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """All limiters of an endpoint or a service function."""

    scope: str
    stack: Stack | None
    """The decorators whose outermost one has this plan checked; ``None``: checked before the request."""
    limiters: tuple[PlannedLimiter, ...]

    @classmethod
    def of(
        cls, app: Flask, scope: str, declarations: Iterable[Declaration], *, prefix: str, stack: Stack | None
    ) -> Plan:
        """The plan of ``declarations``. Raises :class:`ConfigurationError` when two of them share a key."""
        declarations = tuple(declarations)
        reject_shared_keys(scope, declarations)
        taken: set[str] = set()
        return cls(scope, stack, tuple(_planned(app, each, scope, prefix, taken) for each in declarations))

    @property
    def declarations(self) -> frozenset[Declaration]:
        return frozenset(limiter.declaration for limiter in self.limiters)

    @property
    def needs_users(self) -> bool:
        return any(_mentions(limiter.declaration.type, LimitType.USER) for limiter in self.limiters)

    def apply(self, resolve: Resolve, *, conditions: bool = True) -> list[Applied]:
        """The limiters that apply to the current request; each type is resolved once.

        Without ``conditions``, also those that are exempt now, and a cost that depends on the request is 1.
        """
        resolved: dict[Any, Subject | None] = {}
        applied = []
        for limiter in self.limiters:
            declared = limiter.declaration
            if conditions and declared.exempt_when is not None and declared.exempt_when():
                continue
            place = (declared.type, declared.name)
            if place not in resolved:
                resolved[place] = resolve(declared.type, declared.name)
            subject = resolved[place]
            if subject is not None:
                cost = declared.cost if not callable(declared.cost) else declared.cost() if conditions else 1
                applied.append(Applied(declared, subject, limiter.hits(subject, cost)))
        return applied


def hits_of(applied: Iterable[Applied]) -> tuple[Hit, ...]:
    """All hits, one a key: where rules that depend on the request meet another in one key, the strictest holds."""
    hits: dict[str, Hit] = {}
    for each in applied:
        for hit in each.hits:
            other = hits.get(hit.key)
            if other is None or (hit.shadow, hit.rule.quota.burst) < (other.shadow, other.rule.quota.burst):
                hits[hit.key] = hit
    return tuple(hits.values())


def view_stack(view: Any, method: str) -> Stack | None:
    """What is declared on a view and on the method of a class-based one that serves ``method``, together."""
    on_view = declared_on(view)
    view_class = getattr(view, "view_class", None)
    if view_class is None:
        return on_view
    name = method.lower()
    handler = getattr(view_class, name, None) or (getattr(view_class, "get", None) if name == "head" else None)
    on_method = declared_on(handler or getattr(view_class, "dispatch_request", None))
    if on_view is None or on_method is None:
        return on_view or on_method
    return Stack(on_view.where, (*on_view.declarations, *on_method.declarations))


def reject_misplaced(endpoint: str, view: Any, registered: Iterable[Any]) -> None:
    """Raise :class:`ConfigurationError` when a limiter stands above the decorator that registered ``view``."""
    where = unreachable(view)
    if where is not None and not any(declared_on(other) and _wraps(other, view) for other in registered):
        raise ConfigurationError(
            f'limiter on "{endpoint}": @rate_limiter stands above @app.route on "{where}", so the endpoint would not '
            "be limited; put @app.route on top"
        )


def _wraps(function: Any, view: Any) -> bool:
    while function is not None:
        if function is view:
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def _planned(app: Flask, declaration: Declaration, scope: str, prefix: str, taken: set[str]) -> PlannedLimiter:
    stem = f"{declaration.key or prefix}{{{escape_scope(declaration.scope or scope)}}}:"
    if callable(declaration.rules):
        return PlannedLimiter(declaration, stem, (), DynamicRules(app, declaration.where, declaration.rules))
    rules = tuple((_unique(_name(declaration, rule), taken), rule) for rule in declaration.rules)
    return PlannedLimiter(declaration, stem, rules, None)


def _name(declaration: Declaration, rule: Rule) -> str:
    return rule.name or f"{declaration.name or declaration.kind.replace('+', '-')}-{rule.window}"


def _unique(wanted: str, taken: set[str]) -> str:
    """``wanted``, numbered when it is taken."""
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}-{number}", number + 1
    taken.add(name)
    return name


def _mentions(type_: Any, kind: LimitType) -> bool:
    return kind in type_ if isinstance(type_, tuple) else type_ is kind
