"""Nothing that is said about a storage URI shows its password, even if the URI or the server is wrong."""

import logging
import re
import socket
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from flask import Flask

from flask_multilimit import MultiLimit, MultiLimitError, rate_limiter
from flask_multilimit.engine import GuardedStorage, Limiter, storage_from_uri
from flask_multilimit.serve.gate import gate_of
from operate.cli.conftest import SHOP, Command
from support.bench import hits
from support.sentinel import SERVICE, SentinelServer
from support.servers import Binary, Server

PASSWORD = "hunter2@hunter3/hunter4?hunter5#hunter6:hunter7"
QUOTED = quote(PASSWORD, safe="")
TOLD = re.compile(r"hunter\d")

URIS = {
    "nobody there": "redis://me:{secret}@127.0.0.1:{nobody}/0",
    "no answer": "redis://me:{secret}@127.0.0.1:{silent}/0",
    "wrong password": "redis://:{secret}@127.0.0.1:{strict}/0",
    "in the options": "redis://127.0.0.1:{strict}/0?password={secret}",
    "in options and before": "redis://me:{secret}@127.0.0.1:{nobody}/0?ssl_password={secret}@",
    "no TLS there": "rediss://me:{secret}@127.0.0.1:{strict}/0",
    "no TLS answer": "rediss://me:{secret}@127.0.0.1:{silent}/0?ssl_cert_reqs=none",
    "no file of CAs": "rediss://me:{secret}@127.0.0.1:{strict}/0?ssl_ca_certs=/nowhere&ssl_password={secret}",
    "no file of a key": "rediss://me:{secret}@127.0.0.1:{strict}/0?ssl_certfile=/nowhere&ssl_password={secret}",
    "no socket": "unix://me:{secret}@/nowhere/redis.sock",
    "no sentinel": "redis+sentinel://me:{secret}@127.0.0.1:{nobody},127.0.0.1:{silent}/x?sentinel_password={secret}",
    "wrong service": "redis+sentinel://:{secret}@127.0.0.1:{sentinel}/other",
    "wrong password behind a sentinel": "redis+sentinel://:{secret}@127.0.0.1:{sentinel}/" + SERVICE,
    "wrong password of a sentinel": f"redis+sentinel://127.0.0.1:{{locked}}/{SERVICE}?sentinel_password={{secret}}",
    "no TLS at the sentinel": f"rediss+sentinel://:{{secret}}@127.0.0.1:{{sentinel}}/{SERVICE}",
}


@pytest.fixture(scope="module")
def ports(binary: Binary) -> Iterator[dict[str, int]]:
    with (
        Server(binary, tcp=True, options=["--requirepass", "right"]) as strict,
        SentinelServer(binary, strict.port, quorum=2) as sentinel,
        SentinelServer(binary, strict.port, quorum=2, options=["requirepass right"]) as locked,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            nobody = taken.getsockname()[1]
        yield {
            "strict": strict.port,
            "sentinel": sentinel.port,
            "locked": locked.port,
            "silent": silent.getsockname()[1],
            "nobody": nobody,
        }


def everything_said(uri: str, caplog: pytest.LogCaptureFixture) -> str:
    """All text of the engine, the app and the logs."""
    said = [*_of_engine(uri), *_of_app(uri)]
    return "\n".join([*said, caplog.text, *(str(record.exc_text) for record in caplog.records)])


def _of_engine(uri: str) -> Iterator[str]:
    try:
        storage = storage_from_uri(uri, timeout=0.1)
    except MultiLimitError as error:
        yield from _all_of(error)
        return
    guard = GuardedStorage(storage, workers=1)
    limiter, bare = Limiter(guard), Limiter(storage)
    for use in (limiter.check, bare.check, bare.peek, bare.reset):
        yield from _of_use(use)
    yield from (repr(each) for each in (storage, guard, limiter, limiter.health()))
    limiter.close()


def _of_use(use: Callable[[Any], object]) -> Iterator[str]:
    try:
        yield repr(use(hits()))
    except MultiLimitError as error:
        yield from _all_of(error)


def _of_app(uri: str) -> Iterator[str]:
    app = Flask(__name__)
    app.config.update(MULTILIMIT_STORAGE_URI=uri, MULTILIMIT_ON_STORAGE_ERROR="raise")
    try:
        multilimit = MultiLimit(app)
    except MultiLimitError as error:
        yield from _all_of(error)
        return
    app.add_url_rule("/", "index", rate_limiter(rules="5/minute")(lambda: "ok"))
    answer = app.test_client().get("/")
    assert answer.status_code == 500
    yield f"{answer.headers}{answer.text}{multilimit!r}{app.extensions!r}"
    gate_of(app).limiter.close()


def _all_of(error: BaseException) -> Iterator[str]:
    yield f"{error} {error!r} {getattr(error, 'remedy', '')}"
    yield "".join(traceback.format_exception(error))


@pytest.mark.parametrize("secret", [QUOTED, PASSWORD], ids=["percent-encoded", "not encoded"])
@pytest.mark.parametrize("uri", URIS.values(), ids=list(URIS))
def test_errors_logs_and_reprs_show_no_password(
    ports: dict[str, int], uri: str, secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        said = everything_said(uri.format(secret=secret, **ports), caplog)
    assert "storage" in said
    assert TOLD.search(said) is None


@pytest.mark.parametrize("name", ["wrong password", "no sentinel"])
def test_command_shows_no_password(ports: dict[str, int], name: str) -> None:
    command = Command(SHOP, URIS[name].format(secret=QUOTED, **ports))
    command.environment["FLASK_MULTILIMIT_STORAGE_TIMEOUT"] = "1"

    for arguments in (("doctor",), ("keys",)):
        run = command(*arguments)
        assert TOLD.search(run.out + run.err) is None


def test_command_with_a_malformed_uri_shows_no_password() -> None:
    run = Command(SHOP, f"redis://me:{QUOTED}@127.0.0.1:port/0").alone("doctor")
    assert "storage URI" in run.err
    assert TOLD.search(run.out + run.err) is None
