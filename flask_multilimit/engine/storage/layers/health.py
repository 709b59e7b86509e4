"""What a guard reports: the health of the storage, how many processes share it, and for each change, not for each
request, one log line and one call."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from ...errors import StorageError, require, with_remedy
from ...forks import worker_of_gunicorn
from ...hits import Hit, OnStorageError
from ...keys import without_subject
from ...text import SafeLogger

LOG_SECONDS = 60.0
"""The least time between two log lines about single checks that fail."""

PROC = Path("/proc")
_STARTED = time.time()


class Workers(NamedTuple):
    """A number of processes."""

    count: int  # type: ignore[assignment]  # not the method of tuples
    source: str
    """Where the number comes from."""
    certain: bool = True
    """Whether the number was found. Otherwise, it is a guess by the number of CPUs."""


class Health(NamedTuple):
    """The state of a storage, as far as this process knows."""

    state: Literal["working", "failed"]
    """``failed`` until the storage is back and has been charged for what was admitted during the outage."""
    since: float
    """When the state began: POSIX time, for display only."""
    error: StorageError | None
    """The latest error; it stays when the storage works again."""
    breaker: Literal["closed", "open", "half-open"]
    """``open``: no check asks the storage. ``half-open``: checks ask it again, while it is charged for what was
    admitted during the outage."""
    fallback_keys: int
    """Keys that this process is counting by itself."""
    pending: int
    """Admitted checks that are still to be charged to the storage."""
    given_up: int
    """Admitted checks of this or the last outage that could not be charged."""
    workers: Workers
    """Processes that share a limit while the storage is down."""

    @classmethod
    def of_this_process(cls) -> Health:
        """The health of a storage in this process, which cannot fail."""
        return cls("working", _STARTED, None, "closed", 0, 0, 0, Workers(1, "memory of this process"))


def check_workers(given: object) -> None:
    """Raise :class:`ConfigurationError` unless ``given`` is a number of processes, or ``None`` to count them."""
    holds = given is None or (type(given) is int and given >= 1)
    require(holds, "workers", given, "a whole number, 1 or more, or leave it out to have them counted")


def check_on_change(on_change: object) -> None:
    """Raise :class:`ConfigurationError` unless ``on_change`` is callable or ``None``."""
    require(on_change is None or callable(on_change), "on_change", on_change, "a callable with the Health")


class Report:
    """Writes to ``logger``, by default the one called ``flask_multilimit``, and calls ``on_change``.

    ``on_error`` is the policy for hits without an ``on_storage_error``.
    """

    def __init__(
        self, logger: logging.Logger | None, on_change: Callable[[Health], object] | None, on_error: OnStorageError
    ) -> None:
        self._logger = SafeLogger(logger)
        self._on_change = on_change
        self._on_error: OnStorageError = on_error
        self._next_single = 0.0

    def failed(self, hits: tuple[Hit, ...], error: StorageError, health: Health) -> None:
        self._logger.error(
            "Rate limits: storage failed (key %s): %s; meanwhile, unless a limiter says otherwise: %s",
            without_subject(hits[0].key),
            with_remedy(error),
            _meanwhile(self._on_error, health.workers),
        )
        self._notify(health)

    def is_back(self, seconds: float, charged: int, unsettled: int, health: Health) -> None:
        self._logger.warning(
            "Rate limits: the storage is back after %.1f s. Checks admitted meanwhile: %d charged to it, %d not.%s",
            seconds,
            charged,
            health.given_up,
            f" Settlements not made, because there were too many: {unsettled}." if unsettled else "",
        )
        self._notify(health)

    def _notify(self, health: Health) -> None:
        if self._on_change is None:
            return
        try:
            self._on_change(health)
        except Exception as error:
            self._logger.error("Rate limits: the on_change callback raised", error=error)

    def take_turn(self) -> bool:
        """Take the turn to write a line about a single check: there is one a minute. Not thread-safe."""
        now = time.monotonic()
        if now < self._next_single:
            return False
        self._next_single = now + LOG_SECONDS
        return True

    def single(self, hits: tuple[Hit, ...], error: StorageError) -> None:
        """Log a check that failed although the storage answers others."""
        self._logger.error("Rate limits: a check of %s failed: %s", hits[0].key, with_remedy(error))


def _meanwhile(policy: OnStorageError, workers: Workers) -> str:
    share = "each limit in full"
    if workers.count > 1:
        share = f"1/{workers.count} of each limit, and nothing of limits below {workers.count}"
    return {
        "local": f"this process admits {share} (number of workers: {workers.count}, from {workers.source}).",
        "allow": "every request is admitted.",
        "deny": "every limited request is refused.",
        "raise": "every check raises an error.",
    }[policy]


def count_workers(
    given: int | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] | None = None,
    proc: Path = PROC,
) -> Workers:
    """The number that was ``given``, or that uWSGI reports: both are exact. Otherwise the largest number that gunicorn,
    the environment or sibling processes suggest: too large a number makes the fallback stricter than necessary, too
    small a number admits too much."""
    if given is not None:
        return Workers(given, "MULTILIMIT_WORKERS")
    uwsgi = sys.modules.get("uwsgi")  # the server provides it; there is no such package
    if uwsgi is not None:
        return Workers(int(uwsgi.numproc), "uwsgi.numproc")
    environment = os.environ if environment is None else environment
    candidates = [
        *_of_gunicorn(sys.argv if arguments is None else arguments, "the settings of gunicorn"),
        *_of_gunicorns_worker(),
        *_of_siblings(proc),
    ]
    if (requested := workers_asked_for(environment)) is not None:
        candidates.append(requested)
    if candidates:
        return max(candidates, key=lambda workers: workers.count)
    return Workers(2 * (os.cpu_count() or 1) + 1, "the number of CPUs", certain=False)


def workers_asked_for(environment: Mapping[str, str]) -> Workers | None:
    """The largest number that the environment asks a server for, whether or not this process is one of its workers."""
    arguments = environment.get("GUNICORN_CMD_ARGS")
    candidates = _of_environment(environment)
    if arguments:
        import shlex  # noqa: PLC0415 - gunicorn has loaded it, and other processes start without it

        with suppress(ValueError):  # no closing quotation: gunicorn would not have started with them
            candidates += _of_gunicorn(["gunicorn", *shlex.split(arguments)], "GUNICORN_CMD_ARGS")
    return max(candidates, key=lambda workers: workers.count, default=None)


def _of_gunicorn(arguments: Sequence[str], source: str) -> list[Workers]:
    if not arguments or "gunicorn" not in Path(arguments[0]).as_posix():
        return []
    import argparse  # noqa: PLC0415 - gunicorn has loaded it, and other processes start without it

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-w", "--workers", type=int)
    try:
        workers: object = parser.parse_known_args(arguments[1:])[0].workers
    except argparse.ArgumentError:  # gunicorn would not have started with them
        return []
    return [Workers(workers, source)] if isinstance(workers, int) and workers > 0 else []  # --workers=-- is a list


def _of_gunicorns_worker() -> list[Workers]:
    """The setting of gunicorn, wherever it was made, if this process is one of its workers. The first of them may serve
    requests before the others exist and can be counted."""
    workers = getattr(getattr(worker_of_gunicorn(), "cfg", None), "workers", None)
    return [Workers(workers, "the settings of gunicorn")] if isinstance(workers, int) and workers > 0 else []


def _of_environment(environment: Mapping[str, str]) -> list[Workers]:
    names = ("WEB_CONCURRENCY", "UWSGI_PROCESSES", "UWSGI_WORKERS")
    given = ((name, environment.get(name, "")) for name in names)
    return [Workers(int(text), name) for name, text in given if text.isdecimal() and len(text) < 10 and int(text) > 0]


def _of_siblings(proc: Path) -> list[Workers]:
    """Children of this process's parent whose command lines differ at most in numbers: forked workers, workers that
    were spawned with a pipe each, servers with a port each. Empty if the system has no ``/proc``."""
    command, parent = _command_of(proc / "self"), os.getppid()
    if command is None:
        return []
    count = sum(_parent_of(folder) == parent and _command_of(folder) == command for folder in proc.glob("[0-9]*"))
    return [Workers(count, "the other processes of the same server")] if count else []


def _parent_of(folder: Path) -> int | None:
    try:
        return int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:  # the process has just ended
        return None


def _command_of(folder: Path) -> bytes | None:
    """The command line without digits."""
    try:
        return (folder / "cmdline").read_bytes().translate(None, b"0123456789")
    except OSError:  # the process has just ended
        return None
