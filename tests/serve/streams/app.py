"""Streams that run until the client disconnects; how many run at once, and what they have cost."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from flask import Flask, Response, request, send_file, stream_with_context

from flask_multilimit import MultiLimit, Rule, rate_limiter, settle

app = Flask(__name__)
app.config["MULTILIMIT_STORAGE_TIMEOUT"] = 10
multilimit = MultiLimit(app, storage=os.environ["STORAGE_URI"])

SECONDS = 20.0
"""A stream ends by itself after this time."""


@app.get("/")
@rate_limiter(rules="2 at once")
def stream() -> Any:
    def parts() -> Iterator[bytes]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            yield b"x" * 1000
            time.sleep(pause)

    seconds = float(request.args.get("seconds", SECONDS))
    pause = float(request.args.get("pause", 0.02))
    return Response(parts(), mimetype="text/plain")


@app.get("/file")
@rate_limiter(rules="2 at once", scope="stream")
def file() -> Any:
    return send_file(os.environ["FILE"])


@app.get("/raises")
@rate_limiter(rules="2 at once", scope="stream")
def raises() -> str:
    raise RuntimeError("broken")


@app.get("/tokens")
@rate_limiter(rules=Rule(3600, 100_000, algorithm="fixed_window"), cost=5_000, settle=True)
def tokens() -> Any:
    def parts() -> Iterator[bytes]:
        for number in range(1, 1_000):
            settle(number)
            yield b"x" * 1000
            time.sleep(0.02)

    return Response(stream_with_context(parts()), mimetype="text/plain")


@app.get("/tokens-used")
def tokens_used() -> str:
    return str(100_000 - multilimit.peek("tokens", "everyone").remaining)


@app.get("/in-use")
def in_use() -> str:
    decision = multilimit.peek("stream", "everyone")
    return str(2 - decision.remaining)


def name_bodies(
    serve: Callable[..., Iterable[bytes]], environ: dict[str, Any], start_response: Callable[..., Any]
) -> Iterable[bytes]:
    """Name the class of the body that the server sends in a header field."""
    answers: list[tuple[str, list[tuple[str, str]]]] = []
    body = serve(environ, lambda status, headers, *_: answers.append((status, headers)))
    ((status, headers),) = answers
    start_response(status, [*headers, ("X-Body", type(body).__name__)])
    return body


app.wsgi_app = partial(name_bodies, app.wsgi_app)  # type: ignore[method-assign]
