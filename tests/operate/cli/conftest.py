"""Runs the commands of `flask`."""

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.cli import ScriptInfo
from flask.testing import FlaskClient

from flask_multilimit.serve.gate import gate_of
from support.servers import Server

SHOP = Path(__file__).with_name("shop.py")
ADDRESS = {"REMOTE_ADDR": "203.0.113.7"}


@dataclass(frozen=True, slots=True)
class Run:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def out_on_one_line(self) -> str:
        return " ".join(self.out.split())

    @property
    def err_on_one_line(self) -> str:
        return " ".join(self.err.split())


def call(shop: FlaskClient, path: str, times: int = 1, *, method: str = "GET") -> list[int]:
    """The statuses of this number of requests from one address."""
    return [shop.open(path, method=method, environ_base=ADDRESS).status_code for _ in range(times)]


class Command:
    """`flask --app APP multilimit ...`, on a screen of 80 columns."""

    def __init__(self, app: Path, uri: str) -> None:
        self._app = app
        self.environment = {
            "FLASK_MULTILIMIT_STORAGE_URI": uri,
            "FLASK_MULTILIMIT_STORAGE_TIMEOUT": "10",  # the machine may be busy
            "FLASK_MULTILIMIT_WORKERS": "1",  # processes of pytest would be counted, too
        }

    def __call__(self, *arguments: str, answer: str = "", columns: int = 80, out: StringIO | None = None) -> Run:
        """In this process, on a new app."""
        out, err = StringIO() if out is None else out, StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "stdin", StringIO(answer))
            for name, value in {**self.environment, "COLUMNS": str(columns)}.items():
                patch.setenv(name, value)
            app = app_of(self._app)
            with pytest.raises(SystemExit) as ended:
                app.cli.main(["multilimit", *arguments], "flask", obj=ScriptInfo(create_app=lambda: app))
            gate_of(app).limiter.close()
        run = Run(int(ended.value.code or 0), out.getvalue(), err.getvalue())
        if "--json" not in arguments:
            lines = re.sub(r"(rate_limit:|unix:|/tmp/)\S+", "", run.out).splitlines()
            assert max(map(len, lines), default=0) <= columns
        return run

    def alone(self, *arguments: str) -> Run:
        """In a process of its own, which shows resources that were left open when it ends."""
        with self.started(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            out, err = process.communicate()
        return Run(process.returncode, out, err)

    def started(self, *arguments: str, **streams: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "error", "-m", "flask", "--app", str(self._app), "multilimit", *arguments]
        environment = {**os.environ, **self.environment, "COLUMNS": "120", "LINES": "30"}
        return subprocess.Popen(command, env=environment, text=True, **streams)  # type: ignore[call-overload,no-any-return]


def app_of(file: Path) -> Flask:
    """A new app, as the file makes it when it is imported."""
    app: Flask = runpy.run_path(str(file), run_name=file.stem)["app"]
    return app


@pytest.fixture
def on_memory() -> Command:
    return Command(SHOP, "memory://")


@pytest.fixture
def on_server(server: Server) -> Command:
    return Command(SHOP, server.url)


@pytest.fixture
def shop(on_server: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlaskClient]:
    """A client of the app in this process, on the same server."""
    for name, value in on_server.environment.items():
        monkeypatch.setenv(name, value)
    app = app_of(SHOP)
    yield app.test_client()
    gate_of(app).limiter.close()
