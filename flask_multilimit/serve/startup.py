"""Starts an app before its first request: checks its limits, and begins to follow changes."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from threading import Lock

from ..declare.subjects import LimitType
from ..engine import ConfigurationError, ConfigurationWarning
from ..engine.forks import tell_child
from ..engine.text import SafeLogger
from .in_force import InForce
from .workers import warn_of_several_processes, warn_where_no_threads_run


class Startup:
    """Starts one app: checks its limits once, and begins to follow changes once in each process."""

    def __init__(self, in_force: InForce) -> None:
        self._in_force = in_force
        self.follow_changes: Callable[[], None] = _nothing
        """Applies the changes made so far, and from now on those that follow."""
        self.checked: bool = False
        """Whether the limits were checked, so requests are served."""
        self.finished: bool = False
        """Whether nothing is left to do in this process."""
        self._lock = Lock()
        tell_child(self)

    def run(self) -> None:
        """Build all plans, so that a mistake shows at the first request and not at the hundredth."""
        with self._lock:
            if not self.checked:
                on = self._in_force
                warn_of_several_processes(on.app, on.settings, on.limiter)
                warn_where_no_threads_run(on.app, on.settings)
                self._check_declarations()
                self._report_unknown_names()
                self.checked = True
        self.keep_up()

    def keep_up(self) -> None:
        """Begin to follow changes, once in each process."""
        if not self.finished:
            with self._lock:
                if not self.finished:
                    self.finished = True
                    self.follow_changes()
                    self._in_force.audience.begin()

    def validate(self) -> None:
        """Raise :class:`ConfigurationError` for any mistake in declarations and settings of limits."""
        self._check_declarations()
        plans = self._in_force.plans
        if self._in_force.settings.unknown_names == "error":
            plans.require_known_names()
        for problem in plans.sources.unknown_names():
            warnings.warn(problem, ConfigurationWarning, stacklevel=3)

    def _check_declarations(self) -> None:
        on = self._in_force
        on.plans.build()
        self._require_slots()
        if on.access is not None and LimitType.USER.value in on.access.type_names:
            on.subjects.require_users("allow and deny")

    def _require_slots(self) -> None:
        """Raise :class:`ConfigurationError` if there are Concurrent rules, and the storage keeps no slots."""
        on = self._in_force
        for plan in on.plans.planned.values():
            if any(rule.holds_slots for limiter in plan.limiters for _, rule in limiter.rules):
                from ..engine.slots import that_keeps_slots  # noqa: PLC0415 - few limits hold slots

                try:
                    that_keeps_slots(on.limiter.outermost)
                except ConfigurationError as error:
                    raise ConfigurationError(f'limiter on "{plan.scope}": {error}') from None

    def _report_unknown_names(self) -> None:
        """Raise :class:`ConfigurationError` if a developer sees it. In production only log: a limit that applies to
        nothing must not stop all requests."""
        app, plans = self._in_force.app, self._in_force.plans
        strict = self._in_force.settings.unknown_names == "error"
        if strict and (app.testing or app.debug):
            plans.require_known_names()
        for problem in plans.sources.unknown_names():
            SafeLogger(app.logger).log(
                logging.ERROR if strict else logging.WARNING, "Rate limits: a limit applies to nothing. %s", problem
            )

    def _after_fork_in_child(self) -> None:
        """The thread that follows changes stays behind in the parent."""
        self._lock = Lock()
        self.finished = False


def _nothing() -> None:
    """There are no changes to follow without control."""
