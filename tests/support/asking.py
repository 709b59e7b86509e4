"""Short ways to ask an app, and to read what it answers."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import http_sf
import redis
from blinker import NamedSignal
from flask import Flask, Response
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from flask_multilimit import rate_limiter
from flask_multilimit.serve.gate import gate_of
from support.waiting import PATIENCE


def view() -> Callable[[], str]:
    """A new function at each call, because a limiter is attached to its function."""
    return lambda: "ok"


def limit(app: Flask, path: str = "/", **options: Any) -> FlaskClient:
    """Let ``app`` serve ``path``, at which a client may make one request a minute unless the options say otherwise."""
    limited = rate_limiter(**{"rules": "1/minute", **options})(view())
    app.add_url_rule(path, path.strip("/") or "view", limited)
    return app.test_client()


def ask(app: Flask, path: str = "/", *, method: str = "GET", **options: Any) -> TestResponse:
    """One request by a client without history."""
    return app.test_client().open(path, method=method, **options)


def statuses(app: Flask, *paths: str, method: str = "GET", **options: Any) -> list[int]:
    """The status of one request to each path, in this order."""
    return [ask(app, path, method=method, **options).status_code for path in paths]


def pass_a_second(app: Flask) -> None:
    """Run now what runs once a second. A turn that has begun ends first: it may have taken counts, and sent none."""
    background = gate_of(app).audience.background
    assert background.beat.close(wait=PATIENCE)
    background.once()


def made_public(response: Response) -> Response:
    """A function for ``after_request``, as of an app behind a cache: every client may get the response of another."""
    response.headers["Cache-Control"] = "public, max-age=60"
    return response


def policy(response: TestResponse) -> list[str]:
    """The names of the rules in the field ``RateLimit-Policy``."""
    field = response.headers.get("RateLimit-Policy", "")
    return [item.split('"')[1] for item in field.split(", ") if item]


def read_list(field: str) -> list[tuple[str, dict[str, Any]]]:
    """The members of a list of strings in a structured field (RFC 9651), with their parameters, as the library http-sf
    reads them. Raises an error for what a recipient would ignore."""
    found: Any = http_sf.parse(field.encode(), tltype="list")
    assert all(type(name) is str for name, _ in found)
    return [(name, dict(parameters)) for name, parameters in found]


@contextmanager
def heard(app: Flask, *signals: NamedSignal) -> Iterator[list[tuple[str, Any]]]:
    """The signals of ``app`` that are sent in the block, in order: the name of each, and its arguments by name."""
    found: list[tuple[str, Any]] = []

    def receiver_of(signal: NamedSignal) -> Callable[..., None]:
        return lambda _, **arguments: found.append((signal.name, arguments))

    with ExitStack() as connected:
        for signal in signals:
            connected.enter_context(signal.connected_to(receiver_of(signal), app))
        yield found


@contextmanager
def commands(client: redis.Redis, within_scripts: list[str] | None = None) -> Iterator[list[str]]:
    """The names of all commands that other clients send to the server in the block, without those of background
    threads, which read changes and send counts. Commands of scripts are added to ``within_scripts``."""
    with client.monitor() as monitor:  # type: ignore[no-untyped-call]
        client.ping()  # opens the connection, which sends commands of its own
        seen: list[str] = []
        yield seen
        client.ping()
        pings = 0
        for command in monitor.listen():
            name = command["command"].split(" ", 1)[0].upper()
            pings += name == "PING"
            if pings == 2:
                break
            if not pings or name in {"PING", "CLIENT", "HELLO", "SELECT"}:
                continue
            if any(of_background in command["command"] for of_background in ("{control}", "{*traffic}")):
                continue
            if command["client_type"] != "lua":
                seen.append(name)
            elif within_scripts is not None:
                within_scripts.append(name)
