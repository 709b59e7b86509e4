"""Websockets of flask-sock: with a slot for each connection, and with a rate."""

import os
from typing import Any

from flask import Flask
from flask_sock import Sock  # type: ignore[import-untyped]

from flask_multilimit import MultiLimit, rate_limiter

app = Flask(__name__)
app.config["MULTILIMIT_STORAGE_TIMEOUT"] = 10
multilimit = MultiLimit(app, storage=os.environ["STORAGE_URI"])
sock = Sock(app)


@sock.route("/echo")  # type: ignore[untyped-decorator]
@rate_limiter(rules="1 at once")
def echo(ws: Any) -> None:
    while True:
        ws.send(ws.receive())


@sock.route("/rated")  # type: ignore[untyped-decorator]
@rate_limiter(rules="2/minute")
def rated(ws: Any) -> None:
    ws.send(ws.receive())


@sock.route("/messages")  # type: ignore[untyped-decorator]
def messages(ws: Any) -> None:
    while True:
        text = ws.receive()
        if not multilimit.check("2/minute", scope="messages").allowed:
            ws.close(1013, "too many messages")
            return
        ws.send(text)


@sock.route("/raises")  # type: ignore[untyped-decorator]
@rate_limiter(rules="1 at once", scope="echo")
def raises(ws: Any) -> None:
    ws.send(ws.receive())
    ws.receive()  # otherwise the client may read the message together with the error page of the server
    raise RuntimeError("broken")


@app.get("/in-use")
def in_use() -> str:
    decision = multilimit.peek("echo", "everyone")
    return str(1 - decision.remaining)
