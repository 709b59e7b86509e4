"""From declarations to hits: which limiters apply to an endpoint, and which keys they count in for a request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .declaration import Declaration, Message, Stack, declared_on, reject_shared_keys, unreachable
from .engine import ConfigurationError, Hit, Rule
from .engine.keys import escape_scope, escape_subject
from .subjects import LimitType, Subject, Subjects

HITS_REMEMBERED = 1024
"""Subjects of one limiter whose hits are kept ready."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedLimiter:
    """A declaration in its place: scope and prefix known, rules named."""

    declaration: Declaration
    stem: str
    rules: tuple[tuple[str, Rule], ...]
    """Each with its name."""

    def hits(self, kind: str, escaped_subject: str, cost: int) -> tuple[Hit, ...]:
        return _hits(self, kind, escaped_subject, cost)


@lru_cache(maxsize=HITS_REMEMBERED)
def _hits(limiter: PlannedLimiter, kind: str, subject: str, cost: int) -> tuple[Hit, ...]:
    return tuple(
        Hit(f"{limiter.stem}{kind}:{subject}:{rule.algorithm}:{rule.window_ms}", rule, cost, name)
        for name, rule in limiter.rules
    )


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """All limiters of an endpoint or a service function."""

    scope: str
    stack: Stack | None
    """The decorators whose outermost one has this plan checked; ``None``: checked before the request."""
    limiters: tuple[PlannedLimiter, ...]

    @classmethod
    def of(cls, scope: str, stack: Stack | None, *, prefix: str, others: Iterable[Declaration] = ()) -> Plan:
        """The plan of what ``stack`` declares and of ``others``, which stand elsewhere."""
        declarations = (*(stack.declarations if stack else ()), *others)
        reject_shared_keys(scope, declarations)
        taken: set[str] = set()
        return cls(scope, stack, tuple(_planned(each, scope, prefix, taken) for each in declarations))

    def hits(self, subjects: Subjects) -> tuple[tuple[Hit, ...], dict[str, str]]:
        """The hits of this request, and its subjects by type; each type is resolved once."""
        resolved: dict[Any, Subject | None] = {}
        hits: list[Hit] = []
        for limiter in self.limiters:
            declared = limiter.declaration
            if declared.exempt_when is not None and declared.exempt_when():
                continue
            if declared.type not in resolved:
                resolved[declared.type] = subjects.resolve(declared.type, declared.name)
            subject = resolved[declared.type]
            if subject is not None:
                cost = declared.cost() if callable(declared.cost) else declared.cost
                hits += limiter.hits(subject.kind, escape_subject(subject.value), cost)
        return tuple(hits), {subject.kind: subject.value for subject in resolved.values() if subject is not None}

    def message_for(self, rule_name: str) -> Message | None:
        """The message of the limiter that has the rule of this name."""
        return next(
            limiter.declaration.message
            for limiter in self.limiters
            if any(name == rule_name for name, _ in limiter.rules)
        )

    @property
    def wait(self) -> float:
        """Seconds a request may be kept asleep until its turn."""
        return max(limiter.declaration.wait for limiter in self.limiters)

    @property
    def needs_users(self) -> bool:
        return any(limiter.declaration.type is LimitType.USER for limiter in self.limiters)


def view_stack(view: Any, method: str) -> Stack | None:
    """What is declared on a view, or on the method of a class-based one that serves ``method``."""
    view_class = getattr(view, "view_class", None)
    if view_class is None:
        return declared_on(view)
    name = method.lower()
    handler = getattr(view_class, name, None) or (getattr(view_class, "get", None) if name == "head" else None)
    return declared_on(view) or declared_on(handler or view_class.dispatch_request)


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


def _planned(declaration: Declaration, scope: str, prefix: str, taken: set[str]) -> PlannedLimiter:
    stem = f"{declaration.key or prefix}{{{escape_scope(declaration.scope or scope)}}}:"
    return PlannedLimiter(
        declaration, stem, tuple((_unique(declaration, rule, taken), rule) for rule in declaration.rules)
    )


def _unique(declaration: Declaration, rule: Rule, taken: set[str]) -> str:
    """The rule's own name, or one made of type and window; numbered when it is taken."""
    wanted = rule.name or f"{declaration.name or declaration.kind}-{rule.window}"
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}-{number}", number + 1
    taken.add(name)
    return name
