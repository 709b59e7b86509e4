"""Runs the real `flask` command, each in a process of its own, which the nursery forks."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flask_multilimit.serve.gate import gate_of
from operate.cli import nursery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flask.testing import FlaskClient

    from support.servers import Server

SHOP = Path(__file__).with_name("shop.py")
ADDRESS = {"REMOTE_ADDR": "203.0.113.7"}


@dataclass(frozen=True, slots=True)
class Run:
    """What a command has written."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def call(shop: FlaskClient, path: str, times: int = 1) -> list[int]:
    return [shop.get(path, environ_base=ADDRESS).status_code for _ in range(times)]


class Command:
    """`flask --app APP multilimit ...`, on a screen of 80 columns."""

    def __init__(self, app: Path, uri: str) -> None:
        self._app = app
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("FLASK_")},
            "FLASK_MULTILIMIT_STORAGE_URI": uri,
            "FLASK_MULTILIMIT_STORAGE_TIMEOUT": "10",  # the machine may be busy
        }

    def __call__(self, *arguments: str, answer: str = "", columns: int = 80, crash: bool = False) -> Run:
        environment = {**self.environment, "COLUMNS": str(columns)}
        run = Run(*nursery.run(["--app", str(self._app), "multilimit", *arguments], environment, answer))
        if not crash:
            assert "Traceback" not in run.err, run.err
        if "--json" not in arguments:
            lines = re.sub(r"(rate_limit:|unix:|/tmp/)\S+", "", run.out).splitlines()
            assert max(map(len, lines), default=0) <= columns
        return run


@pytest.fixture
def on_memory() -> Command:
    return Command(SHOP, "memory://")


@pytest.fixture
def on_server(server: Server) -> Command:
    """The server is empty."""
    with server.client() as client:
        client.flushall()
    return Command(SHOP, server.url)


@pytest.fixture
def shop(on_server: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlaskClient]:
    """A client of the app in this process, on the same server."""
    import runpy

    for name in ("FLASK_MULTILIMIT_STORAGE_URI", "FLASK_MULTILIMIT_STORAGE_TIMEOUT"):
        monkeypatch.setenv(name, on_server.environment[name])
    app = runpy.run_path(str(SHOP))["app"]
    yield app.test_client()
    gate_of(app).limiter.close()
