"""Rules that a callable gives for each request, and what applies when it fails."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import TypeVar, cast

from flask import Flask

from ..engine import Rule
from ..engine.rules import NOTHING, Rules, rules_from
from ..engine.text import SafeLogger
from ..signals import notify, rules_failed
from .limiter import RulesNow

T = TypeVar("T")

REMEMBERED = 1024
"""The most subjects whose last good rules are kept, for each limiter."""


class DynamicRules:
    """Calls ``give_rules`` for one limiter of one endpoint.

    If it raises, or returns nonsense or what ``check`` raises an error for, the last good rules stay in force: those of
    the same subject, or the latest of any subject, or one ``Rule()``. A failure is logged and signalled once, until the
    callable works again; if it fails only for some subjects, once for each of them.
    """

    def __init__(
        self, app: Flask, where: str, give_rules: Callable[[], RulesNow], check: Callable[[Iterable[Rule]], None]
    ) -> None:
        self._app = app
        self._where = where
        self._give_rules = give_rules
        self._check = check
        self._good: OrderedDict[str, tuple[Rule, ...]] = OrderedDict()
        self._latest: tuple[Rule, ...] = (Rule(),)
        self._failing = False
        self._failing_for: OrderedDict[str, None] = OrderedDict()
        self._lock = Lock()

    def __call__(self, subject: str) -> tuple[Rule, ...]:
        """The rules for ``subject``, which makes the current request."""
        rules = self._ask(subject)
        if rules is None:
            return self._good.get(subject, self._latest)
        self._keep(subject, rules)
        return rules

    def of(self, subject: str) -> tuple[Rule, ...]:
        """The rules for any ``subject``: the last ones in this process, or what the callable returns now."""
        rules = self._good.get(subject)
        if rules is None:
            rules = self._ask(subject)
        return self._latest if rules is None else rules

    def _ask(self, subject: str) -> tuple[Rule, ...] | None:
        try:
            rules = _rules_from(self._give_rules())
            self._check(rules)
        except Exception as error:
            self._report(subject, error)
            return None
        return rules

    def _keep(self, subject: str, rules: tuple[Rule, ...]) -> None:
        with self._lock:
            self._failing = False
            self._failing_for.pop(subject, None)
            self._latest = rules
            _remember(self._good, subject, rules)

    def _report(self, subject: str, error: Exception) -> None:
        with self._lock:
            first = not self._failing and subject not in self._failing_for
            self._failing = True
            _remember(self._failing_for, subject, None)
        if first:
            SafeLogger(self._app.logger).error(
                'Rate limits: the rules of the limiter on "%s" failed; the last good ones stay in force: %r',
                self._where,
                error,
            )
            notify(rules_failed, self._app, where=self._where, error=error)


def _rules_from(given: object) -> tuple[Rule, ...]:
    if type(given) is int and given == 0:
        return (NOTHING,)
    if isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping, Rule)):
        given = tuple(given)
    return () if given in (None, "", ()) else rules_from(cast("Rules", given))


def _remember(known: OrderedDict[str, T], subject: str, value: T) -> None:
    known[subject] = value
    known.move_to_end(subject)
    if len(known) > REMEMBERED:
        known.popitem(last=False)
