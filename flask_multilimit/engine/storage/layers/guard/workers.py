"""How many processes serve this app. While the storage is away, each may admit the limit divided by this number."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ....errors import ConfigurationError, brief

PROC = Path("/proc")


class Workers(NamedTuple):
    """A number of processes."""

    count: int  # type: ignore[assignment]  # not the method of tuples
    source: str
    """Where the number comes from."""
    certain: bool = True
    """Whether it was found; otherwise it is a guess."""


def check_workers(given: object) -> None:
    """Raise :class:`ConfigurationError` unless ``given`` is a number of processes, or ``None``, to find it."""
    if given is not None and (type(given) is not int or given < 1):
        raise ConfigurationError(
            f"workers={brief(given)}: give a whole number, 1 or more, or leave it out to have them counted"
        )


def count_workers(
    given: int | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] | None = None,
    proc: Path = PROC,
) -> Workers:
    """The number that was ``given``, or that uWSGI reports: both are exact. Otherwise the largest of what gunicorn's
    arguments, the environment and the processes beside this one suggest: too large a number makes the fallback stricter
    than necessary, too small a number admits too much."""
    if given is not None:
        return Workers(given, "MULTILIMIT_WORKERS")
    uwsgi = sys.modules.get("uwsgi")  # the server provides it; there is no such package
    if uwsgi is not None:
        return Workers(int(uwsgi.numproc), "uwsgi.numproc")
    environment = os.environ if environment is None else environment
    found = [
        *_of_gunicorn(sys.argv if arguments is None else arguments, "the arguments of gunicorn"),
        *_alike(proc),
    ]
    if (asked := workers_asked_for(environment)) is not None:
        found.append(asked)
    if found:
        return max(found, key=lambda workers: workers.count)
    return Workers(2 * (os.cpu_count() or 1) + 1, "the number of CPUs", certain=False)


def workers_asked_for(environment: Mapping[str, str]) -> Workers | None:
    """The largest number for which the environment asks a server, whether or not this process is one of its workers."""
    arguments = environment.get("GUNICORN_CMD_ARGS")
    found = _of_environment(environment)
    if arguments:
        import shlex  # noqa: PLC0415 - gunicorn has loaded it, and other processes start without it

        found += _of_gunicorn(["gunicorn", *shlex.split(arguments)], "GUNICORN_CMD_ARGS")
    return max(found, key=lambda workers: workers.count, default=None)


def _of_gunicorn(arguments: Sequence[str], source: str) -> list[Workers]:
    if not arguments or "gunicorn" not in Path(arguments[0]).as_posix():
        return []
    import argparse  # noqa: PLC0415 - gunicorn has loaded it, and other processes start without it

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-w", "--workers", type=int)
    try:
        workers: int | None = parser.parse_known_args(arguments[1:])[0].workers
    except argparse.ArgumentError:  # gunicorn would not have started with them
        return []
    return [] if workers is None else [Workers(workers, source)]


def _of_environment(environment: Mapping[str, str]) -> list[Workers]:
    names = ("WEB_CONCURRENCY", "UWSGI_PROCESSES", "UWSGI_WORKERS")
    given = ((name, environment.get(name, "")) for name in names)
    return [Workers(int(number), name) for name, number in given if number.isdecimal() and int(number) > 0]


def _alike(proc: Path) -> list[Workers]:
    """Children of our parent with the same command line: forked workers. Empty if the system does not say."""
    try:
        us, parent = (proc / "self/cmdline").read_bytes(), os.getppid()
    except OSError:
        return []
    count = sum(_parent_of(folder) == parent and _command_of(folder) == us for folder in proc.glob("[0-9]*"))
    return [Workers(count, "the other processes of the same server")] if count else []


def _parent_of(folder: Path) -> int | None:
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # gone meanwhile
        return None


def _command_of(folder: Path) -> bytes | None:
    try:
        return (folder / "cmdline").read_bytes()
    except OSError:  # gone meanwhile
        return None
