"""Pages are run against the first server, which is empty at the beginning of each test."""

import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import redis
from blinker import NamedSignal

from docs.snippets import FIRST, run_example
from flask_multilimit import signals
from flask_multilimit.engine.algorithms import ALGORITHMS
from flask_multilimit.engine.storage import SCHEMES, Scheme
from flask_multilimit.observe.traffic import flushing
from flask_multilimit.serve.gate import gate_of
from support.folders import ROOT
from support.servers import Server
from support.tls import Certificates

SIGNALS = [each for each in vars(signals).values() if isinstance(each, NamedSignal)]


@pytest.fixture
def run(
    server: Server,
    redis_client: redis.Redis,
    certificates: Certificates,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., dict[str, Any]]]:
    """Run one example of a page, as in ``run("docs/tutorial.md", "handler")``; returns its namespace."""
    url = server.tcp_url
    assert redis_client.dbsize() == 0
    apps, limiters = [], []
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)  # some examples write files
    monkeypatch.setenv("CERTIFICATES", str(certificates.ca.parent))
    modules = set(sys.modules)
    tables: list[tuple[dict[str, Any], dict[str, Any]]] = [(table, dict(table)) for table in (ALGORITHMS, SCHEMES)]
    open_uri = SCHEMES["redis"].open
    SCHEMES["redis"] = Scheme(lambda uri, _: open_uri(uri, 10.0))  # the default is too short for a busy machine
    monkeypatch.setattr(flushing, "SECONDS", 3600.0)  # tests list all keys, and it would send counts meanwhile

    def run(page: str, example: str = FIRST) -> dict[str, Any]:
        namespace = run_example(ROOT / page, example, server_url=url, folder=tmp_path)
        app = namespace.get("app")
        apps.append(app)
        if app is not None and "multilimit" in app.extensions:
            limiters.append(gate_of(app).limiter)
        if hasattr(namespace.get("limiter"), "close"):  # Flask-Limiter's has none
            limiters.append(namespace["limiter"])
        return namespace

    yield run
    for limiter in limiters:
        limiter.close()
    for table, before in tables:
        table.clear()
        table.update(before)
    for signal, app in product(SIGNALS, apps):
        for receiver in list(signal.receivers_for(app)):
            signal.disconnect(receiver)
    for file in tmp_path.glob("*.py"):
        if file.stem not in modules:
            sys.modules.pop(file.stem, None)
