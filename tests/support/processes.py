"""Finds programs of this machine. Runs one that serves HTTP, sends requests, and ends it even if the tests crash."""

import contextlib
import http.client
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPMessage
from pathlib import Path
from typing import NamedTuple

import pytest
from typing_extensions import Self

from support.folders import EXAMPLES, ROOT
from support.servers import Monitored
from support.waiting import PATIENCE

ADDRESS = re.compile(
    r"(?:(?:Listening at:|Running on|Serving on) http://|uwsgi socket \d+ bound to TCP address |"
    r'"Listening on".* address=)127\.0\.0\.1:(\d+)'
)
POLL_SECONDS = 0.01
CLIENTS = 16
"""The number of concurrent requests."""
SYSTEM = os.pathsep.join(["/usr/sbin", "/sbin"])
"""Debian installs servers in this folder, which may be missing in the PATH of a user."""


def program(*names: str) -> str:
    """The path of the first of ``names`` that is installed. Without any, the test is skipped, but in CI it fails:
    `.ci/run` installs all of them."""
    path = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{SYSTEM}"
    for name in names:
        if found := shutil.which(name, path=path):
            return found
    if "CI" in os.environ:
        pytest.fail(f"{names[0]} is missing: add it to PROGRAMS in .ci/run", pytrace=False)
    pytest.skip(f"{names[0]} is not installed")


class Reply(NamedTuple):
    status: int
    headers: HTTPMessage
    text: str


class Program(Monitored):
    """``python -m`` something that serves HTTP, from the root of the project, or uWSGI, or Prometheus.

    It can import what the tests can. It is told to listen on port 0 and says in its output which port that has become,
    so no two programs can meet on one. Leaving the ``with`` block ends it and its children.
    """

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._command = [*_begin_of_command(arguments[0]), *arguments[1:]]
        foreign = {name: value for name, value in os.environ.items() if not name.startswith(("FLASK_", "GUNICORN_"))}
        same_modules = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._environment = {**foreign, **same_modules, "PYTHONUNBUFFERED": "1", **(environment or {})}

    def __enter__(self) -> Self:
        self._begin()
        process = self._run(self._command, cwd=ROOT, env=self._environment)
        try:
            self._port = self._find_port(process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._clean_up()

    @property
    def port(self) -> int:
        return self._port

    def get(self, path: str = "/", headers: Mapping[str, str] | None = None) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=dict(headers or {}))
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read().decode())

    def get_all(self, paths: Iterable[str]) -> list[Reply]:
        """The replies to requests of all these paths, many at once."""
        with ThreadPoolExecutor(CLIENTS) as clients:
            return list(clients.map(self.get, paths))

    def _find_port(self, process: subprocess.Popen[bytes]) -> int:
        deadline = time.monotonic() + PATIENCE
        while (found := ADDRESS.search(self.log)) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{' '.join(self._command)} does not serve:\n{self.log}")
            time.sleep(POLL_SECONDS)
        return int(found[1])


def _begin_of_command(name: str) -> list[str]:
    if name == "uwsgi":
        found = Path(sys.executable).with_name(name)
        if not found.exists() and sys.version_info >= (3, 15):
            pytest.skip("pyuwsgi has no release for this Python")
        return [str(found)]
    return [program(name)] if name == "prometheus" else [sys.executable, "-m", name]


def gunicorn(app: str, *, workers: int, threads: int, environment: Mapping[str, str] | None = None) -> Program:
    """An example behind gunicorn; for each request its log has a line ``served STATUS by <PID>``."""
    return Program(
        "gunicorn",
        *("--chdir", str(EXAMPLES), "--bind", "127.0.0.1:0"),
        *("--workers", str(workers), "--worker-class", "gthread", "--threads", str(threads)),
        *("--access-logfile", "-", "--access-logformat", "served %(s)s by %(p)s"),
        app,
        environment=environment,
    )


def flask_run(app: str, *, environment: Mapping[str, str] | None = None) -> Program:
    return Program("flask", "--app", str(EXAMPLES / app), "run", "--port", "0", environment=environment)
