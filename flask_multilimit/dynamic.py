"""Rules that are known only at the request: a callable asked each time, and what holds when it fails."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from flask import Flask

from .engine import Rule
from .engine.rules import Rules, rules_from
from .signals import notify, rules_failed

REMEMBERED = 1024
"""Subjects of one limiter whose last good rules are kept."""


class DynamicRules:
    """Asks ``give_rules``. When it raises or returns nonsense, the last good rules stay in force: those of the same
    subject, else the latest of any, else one ``Rule()``. Logged and signalled once, until it works again."""

    def __init__(self, app: Flask, where: str, give_rules: Callable[[], Rules]) -> None:
        self._app = app
        self._where = where
        self._give_rules = give_rules
        self._good: OrderedDict[str, tuple[Rule, ...]] = OrderedDict()
        self._latest: tuple[Rule, ...] = (Rule(),)
        self._failing = False
        self._lock = Lock()

    def __call__(self, subject: str) -> tuple[Rule, ...]:
        try:
            rules = rules_from(self._give_rules())
        except Exception as error:
            self._report(error)
            return self._good.get(subject, self._latest)
        self._keep(subject, rules)
        return rules

    def _keep(self, subject: str, rules: tuple[Rule, ...]) -> None:
        with self._lock:
            self._failing = False
            self._latest = self._good[subject] = rules
            self._good.move_to_end(subject)
            if len(self._good) > REMEMBERED:
                self._good.popitem(last=False)

    def _report(self, error: Exception) -> None:
        with self._lock:
            first, self._failing = not self._failing, True
        if first:
            self._app.logger.error(
                'limiter on "%s": its rules failed, the last good ones stay in force: %r', self._where, error
            )
            notify(rules_failed, self._app, where=self._where, error=error)
