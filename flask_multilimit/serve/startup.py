"""Starts an app before its first request: checks its limits, and begins to follow changes at run time."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any

import click
from flask import Flask, has_request_context, request
from flask.cli import ScriptInfo, run_command

from ..declare.subjects import LimitType
from ..engine import ConfigurationError, ConfigurationWarning
from ..engine.forks import LateLock, OncePerProcess, notice_fork, notify_child
from ..engine.storage.addresses import redacted
from ..engine.storage.layers.health import count_workers
from ..engine.text import SafeLogger
from ..engine.threads import in_master_of_uwsgi, threads_run
from ..plan.checks import reject_unstorable_plans
from .applier import ControlApplier
from .state import AppState, replace_method


class Startup:
    """Starts one app: checks its limits once, and begins to follow changes once in each process."""

    def __init__(self, state: AppState, applier: ControlApplier) -> None:
        self._state = state
        self._applier = applier
        self._settings = state.settings  # those of the app: the test kit may replace those in force
        self.checked: bool = False
        """Whether the limits were checked, so requests are served."""
        self.keep_up: OncePerProcess = OncePerProcess(self._follow, applier.follower.lock)
        """Begins to follow changes, once in each process."""
        self.finished: bool = False
        """Whether nothing is left to do in this process. If a limited function is called before the first request, the
        process follows changes, but that request still has to check the limits."""
        self._failed = False
        self._lock = LateLock()
        notify_child(self)

    def run(self) -> None:
        """Build all plans, so that a mistake shows at the first request and not at the hundredth."""
        notice_fork()
        with self._lock():
            if not self.checked:
                warn_of_several_processes(self._state)
                warn_where_no_threads_run(self._state)
                self._check()
                self.checked = True
        self.keep_up()
        with self._applier.follower.lock():
            follows = not self._applier.enabled or self._applier.follower.keep_following()
            self.finished = follows and not in_master_of_uwsgi()  # its workers would inherit True

    def _check(self) -> None:
        try:
            self.check_declarations()
            problems = self._problems()
        except ConfigurationError as error:
            if not self._failed:
                self._failed = True
                SafeLogger(self._state.app.logger).critical(
                    "Rate limits: no request is served until this is corrected: %s", error
                )
            raise
        for problem in problems:
            SafeLogger(self._state.app.logger).warning("Rate limits: %s", problem)

    def _follow(self) -> None:
        warn_where_quotas_end_with_a_command(self._state)
        self._applier.start()
        self._state.audience.begin()

    def validate(self) -> None:
        """Raise :class:`ConfigurationError` for any mistake in declarations and settings of limits."""
        self.check_declarations()
        for problem in self._problems():
            warnings.warn(problem, ConfigurationWarning, stacklevel=3)

    def check_declarations(self) -> None:
        """Raise :class:`ConfigurationError` for any mistake that keeps the app from serving, except limits and
        exemptions that apply to nothing."""
        state = self._state
        self._settings.require_unchanged(state.app.config)
        state.plans.build()
        reject_unstorable_plans(state.plans.declared.made, state.limiter)
        self._require_listed_types()

    def _require_listed_types(self) -> None:
        """Raise :class:`ConfigurationError` for a listed subject whose type the app does not have: no request would
        match it."""
        state = self._state
        for listed in state.access.declared if state.access is not None else ():
            if listed.who.type_name == LimitType.USER.value:
                state.subjects.require_users(f'{listed.where}: "{listed.who}"')
            elif listed.who.type_name:
                try:
                    state.plans.require_type(listed.who)
                except ConfigurationError as error:
                    raise ConfigurationError(f'{listed.where}: "{listed.who}": {error}') from None

    def _problems(self) -> list[str]:
        """What deserves a warning. Raises :class:`ConfigurationError` for limits and exemptions that apply to nothing,
        unless the settings permit them."""
        state = self._state
        problems = state.plans.sources.idle_by_name()
        if problems and state.settings.unknown_names == "error":
            meanwhile = '(meanwhile, MULTILIMIT_UNKNOWN_NAMES="warn" lets the app and `flask routes` start)'
            raise ConfigurationError(f"{'; '.join(problems)} {meanwhile}")
        return [*problems, *_settings_of_flask_limiter(state.app)]

    def follow_again(self) -> None:
        """Follow changes again from the next check on, because the thread that followed them has ended."""
        with self._applier.follower.lock():  # of a start in another thread, which has just found that thread
            self.keep_up.done = self.finished = False

    def _after_fork_in_child(self) -> None:
        """The thread that follows changes stays behind in the parent."""
        self._failed = self.finished = False


class _ValidatingFlag:
    """A flag that Flask reads as soon as ``flask run`` has loaded the app. Reading it validates the limits."""

    def __init__(self, flag: bool, startup: Startup) -> None:
        self._flag = flag
        self._startup = startup

    def __bool__(self) -> bool:
        self._startup.validate()
        return bool(self._flag)


def validate_when_flask_run_has_loaded(startup: Startup) -> None:
    """If ``flask run`` is loading the app, validate its limits when that is complete. Flask has no hook for this, but
    then it reads a flag, to set ``app.debug``."""
    context = click.get_current_context(silent=True)
    if context is not None and context.command is run_command:
        script = context.ensure_object(ScriptInfo)
        script.set_debug_flag = _ValidatingFlag(script.set_debug_flag, startup)  # type: ignore[assignment]


def validate_when_app_runs(app: Flask, startup: Startup) -> None:
    """Validate the limits of ``app`` before ``app.run()`` starts the server."""
    run = app.run

    def run_app(_: Flask, *arguments: Any, **options: Any) -> None:
        startup.validate()
        run(*arguments, **options)

    replace_method(app, "run", run_app)


def _settings_of_flask_limiter(app: Flask) -> list[str]:
    """A message for a setting of Flask-Limiter that nothing in ``app`` reads."""
    left = [name for name in app.config if name.startswith("RATELIMIT_")]
    is_off = "flask_limiter" in sys.modules and not app.config.get("RATELIMIT_ENABLED", True)  # and so no extension
    if not left or is_off or "limiter" in app.extensions:
        return []
    return [
        f"{left[0]} is a setting of Flask-Limiter, which MultiLimit does not read; settings of MultiLimit begin with "
        "MULTILIMIT_"
    ]


def warn_where_no_threads_run(state: AppState) -> None:
    """Log a warning if traffic is counted, and the server lets no thread flush it."""
    if state.settings.traffic and state.settings.enabled and not threads_run():
        SafeLogger(state.app.logger).warning(
            "Rate limits: uWSGI runs no threads, so traffic is flushed only while requests are served: start it "
            "with enable-threads, or set MULTILIMIT_TRAFFIC=False."
        )


def warn_where_quotas_end_with_a_command(state: AppState) -> None:
    """Log a warning if a command of Flask, a process of its own, counts in a storage that ends with it. Not in tests:
    they call commands in one process, and compare what these write."""
    context = click.get_current_context(silent=True)
    if context is None or context.find_object(ScriptInfo) is None or context.command is run_command:
        return
    if has_request_context() or state.app.testing or not state.settings.enabled:
        return
    storage = state.limiter.storage
    if not storage.shared or not getattr(storage, "in_use", True):
        SafeLogger(state.app.logger).warning(
            'Rate limits: with MULTILIMIT_STORAGE_URI=%s, the quotas of the command "%s" are lost when it ends, so the '
            "next run starts with full ones. Name a server that keeps them, such as redis://localhost:6379/0.",
            redacted(state.settings.storage_uri),
            context.info_name,
        )


def warn_of_several_processes(state: AppState) -> None:
    """Log a warning if the server of the current request may have several worker processes, and they share no storage
    or their number is unknown."""
    settings = state.settings
    if not settings.enabled or settings.workers == 1 or not _may_be_several(request.environ):
        return
    if not state.limiter.storage.shared:
        SafeLogger(state.app.logger).warning(
            "Rate limits: the server may run several worker processes, and with "
            "MULTILIMIT_STORAGE_URI=%s each of them counts by itself and admits the full limit. Set a storage that "
            "they share: local:// on one machine (pip install 'flask-multilimit[local]'), or a server such as "
            "redis://localhost:6379/0. If there is only one process, set MULTILIMIT_WORKERS=1.",
            redacted(settings.storage_uri),
        )
    elif not (workers := state.limiter.health().workers).certain:
        SafeLogger(state.app.logger).warning(
            "Rate limits: the number of worker processes that serve this app is unknown. While the storage is down, "
            "each of them admits 1/%d of every limit (a guess from %s). Set MULTILIMIT_WORKERS.",
            workers.count,
            workers.source,
        )


def _may_be_several(environ: Mapping[str, Any]) -> bool:
    """Whether the server may have several worker processes. Adapters from ASGI always report it, Granian never does."""
    if environ.get("SERVER_SOFTWARE") == "Granian":
        return count_workers().count > 1
    return bool(environ.get("wsgi.multiprocess"))
