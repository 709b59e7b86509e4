"""Rules that a callable gives for each request, and what applies when it fails."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import count
from math import inf
from time import monotonic
from typing import Any, TypeVar, cast

from flask import Flask

from ..engine import ConfigurationError, Rule
from ..engine.forks import LateLock
from ..engine.keys import escape_subject
from ..engine.rules import REFUSE_ALL, Rules, rules_from
from ..engine.text import SafeLogger
from ..signals import log_once_a_minute, notify, rules_failed
from .limiter import Declaration, takes_subject
from .subjects import ANONYMOUS, EVERYONE, LimitType, Subject, ask_callable, known_id, parts_in

T = TypeVar("T")

REMEMBERED = 1024
"""The most subjects whose last good rules are kept, for each limiter."""
MOST_REPORTS, MINUTE = 10, 60.0


_SHARED_TYPES = frozenset({LimitType.DEFAULT.value, LimitType.IP.value, ANONYMOUS})
"""Types of which several clients may be one subject, and the callable may give these clients different rules."""


class NoRules(Exception):  # noqa: N818 - not an error of this package: its cause is one of the app
    """The callable failed, and no other rules apply in place of its own. The cause is what it raised."""


class DynamicRules:
    """Calls the callable for rules of one limiter of one endpoint.

    If it raises, or returns nonsense or rules that do not go with the limiter, the last good rules of the same subject
    apply, else the ``fallback`` of the limiter; without one, the request fails with that error. Where several clients
    may be one subject, its last good rules may be those of another client: the ``fallback`` goes before them, and "no
    limit" is not remembered. A failure is logged and signalled once, until the callable works again; if it fails only
    for some subjects, once for each of them, but at most :data:`MOST_REPORTS` times a minute: clients invent subjects.
    """

    def __init__(self, app: Flask, declaration: Declaration) -> None:
        self._app = app
        self.declaration = declaration
        self._give_rules = cast("Callable[..., Any]", declaration.rules)
        self._takes_subject = takes_subject(self._give_rules)
        self._calls = count()
        self._good: OrderedDict[str, tuple[int, tuple[Rule, ...]]] = OrderedDict()
        self._failing = False
        self._failing_for: OrderedDict[str, None] = OrderedDict()
        self._reports = deque([-inf] * MOST_REPORTS, MOST_REPORTS)
        self._lock = LateLock()

    def for_request(
        self, subject: Subject, *, keep: bool = True, ask: Callable[..., object] = ask_callable
    ) -> tuple[Rule, ...]:
        """The rules for ``subject``, which makes the current request. With ``keep``, they become its last good ones.
        ``ask`` calls the callable. Raises :class:`NoRules`."""
        call, name = next(self._calls), _name_of(subject)
        try:
            rules = self._call(subject, ask)
        except Exception as error:
            self._report(name, error)
            rules_instead = self.without_call(subject)
            if rules_instead is None:
                raise NoRules from error
            return rules_instead
        if keep:
            self._keep(subject, name, call, rules)
        return rules

    def peek(self, subject: Subject, ask: Callable[..., object] = ask_callable) -> tuple[Rule, ...]:
        """As :meth:`for_request`, without a check. These rules are not kept: the request may be one to another
        endpoint, for which the callable returns other rules."""
        return self.for_request(subject, keep=False, ask=ask)

    def without_request(self, subject: Subject) -> tuple[Rule, ...] | None:
        """The rules for a ``subject`` that makes no request: what the callable returns if it takes the subject, else
        the last good ones in this process; ``None`` if there are none."""
        name = _name_of(subject)
        if self._takes_subject or subject == EVERYONE:
            try:
                return self._call(subject)
            except Exception as error:
                self._report(name, error)
                return self.without_call(subject)
        return self._last_good(name)

    def without_call(self, subject: Subject) -> tuple[Rule, ...] | None:
        """The rules of ``subject`` if the callable fails; ``None`` if there are none."""
        fallback = self.declaration.fallback
        if fallback is not None and self._may_be_shared(subject):
            return fallback
        rules = self._last_good(_name_of(subject))
        return fallback if rules is None else rules

    def _call(self, subject: Subject, ask: Callable[..., object] = ask_callable) -> tuple[Rule, ...]:
        given = ask(self._give_rules, *self._arguments(subject))
        try:
            rules = _rules_from(given)
            self.declaration.check_rules(rules)
        except ConfigurationError as error:
            raise ConfigurationError(
                f'limiter on "{self.declaration.where}": what its callable returned: {error}'
            ) from error
        return rules

    def _arguments(self, subject: Subject) -> tuple[Any, ...]:
        if not self._takes_subject:
            return ()
        if not isinstance(self.declaration.type, tuple):
            return (_id_of(subject),)
        return (tuple(map(_id_of, parts_in(subject.value))),)

    def _last_good(self, name: str) -> tuple[Rule, ...] | None:
        return self._good.get(name, (0, None))[1]

    def _may_be_shared(self, subject: Subject) -> bool:
        """Whether several clients may be ``subject``: an address, everyone, or all that have no id."""
        parts = parts_in(subject.value) if isinstance(self.declaration.type, tuple) else (subject,)
        return all(part.type in _SHARED_TYPES or not part.value for part in parts)

    def _keep(self, subject: Subject, name: str, call: int, rules: tuple[Rule, ...]) -> None:
        with self._lock():
            self._failing = False
            self._failing_for.pop(name, None)
            latest, _ = self._good.get(name, (-1, ()))
            # An earlier call may return later. Where several clients are one subject, as behind one address, "no limit"
            # for one of them must not free the others.
            if call > latest and (rules or not self._may_be_shared(subject)):
                _remember(self._good, name, (call, rules))

    def log_ignored(self, override: object, error: Exception) -> None:
        """Log that ``override`` cannot change what the callable has returned."""
        text = 'what the callable of the limiter on "%s" returned stays, as %s does not fit it'
        log_once_a_minute(self._app, error, text, self.declaration.where, override)

    def _report(self, name: str, error: Exception) -> None:
        with self._lock():
            now, first = monotonic(), not self._failing and name not in self._failing_for
            if first and now < self._reports[0] + MINUTE:
                return
            if first:
                self._reports.append(now)
            self._failing = True
            _remember(self._failing_for, name, None)
        if first:
            where, fallback = self.declaration.where, self.declaration.fallback
            SafeLogger(self._app.logger).error(
                'Rate limits: the rules of the limiter "%s" on "%s" failed; the last good ones of each subject apply, '
                "or for a subject without any, %s: %r",
                self.declaration.shown_name,
                where,
                "this error ends the request, unless the limiter is on trial"
                if fallback is None
                else f"and for one that several clients may share, its fallback ({'; '.join(map(str, fallback))})",
                error,
            )
            notify(rules_failed, self._app, where=where, error=error)


def _name_of(subject: Subject) -> str:
    """Short, however long the text that a client sends."""
    return f"{subject.type}:{escape_subject(subject.value)}"


def _id_of(subject: Subject) -> str | None:
    return None if subject.type == ANONYMOUS else known_id(subject)


def _rules_from(given: object) -> tuple[Rule, ...]:
    if type(given) is int and given == 0:
        return (REFUSE_ALL,)
    if given is None or (isinstance(given, Collection) and not isinstance(given, (bytes, Mapping)) and not len(given)):
        return ()
    if isinstance(given, Iterator):
        given = tuple(given)
        if not given:  # an earlier request may have used up a generator of the app: that must not free anybody
            raise ConfigurationError("an exhausted iterator; return a list, or None for no limit")
    return rules_from(cast("Rules", given))


def _remember(known: OrderedDict[str, T], subject: str, value: T) -> None:
    known[subject] = value
    known.move_to_end(subject)
    if len(known) > REMEMBERED:
        known.popitem(last=False)
