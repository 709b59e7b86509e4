"""An app with a recorder; its subjects come in header fields."""

import os

from flask import Flask, request

from flask_multilimit import IP, USER, MultiLimit, Rule, rate_limiter
from flask_multilimit.recording import Recorder


def make_app() -> Flask:
    app = Flask("recorded")
    app.config["MULTILIMIT_APPLICATION_LIMITS"] = {"type": "ip", "rules": "60 per 2 seconds"}
    app.config["MULTILIMIT_UNMATCHED_LIMITS"] = {"type": "ip", "rules": "3 per 2 seconds"}
    app.config["MULTILIMIT_STORAGE_URI"] = os.environ.get("STORAGE", "memory://")
    app.config["MULTILIMIT_STORAGE_TIMEOUT"] = 10
    MultiLimit(app, user_loader=lambda: request.headers.get("X-User"))

    @app.before_request
    def move() -> None:
        request.remote_addr = request.headers.get("X-Address", request.remote_addr)

    @app.get("/items")
    @rate_limiter(type=IP, rules=["20 per 1 seconds", "25 per 3 seconds"])
    @rate_limiter(rules=Rule(1, 60, algorithm="token_bucket", burst=30))
    def items() -> str:
        return "items"

    @app.post("/login")
    @rate_limiter(type=(USER, IP), rules="3 per 2 seconds", charge_when=lambda response: response.status_code == 401)
    def login() -> tuple[str, int]:
        return "", 401 if request.headers.get("X-Wrong") else 200

    @app.get("/key")
    @rate_limiter(type=lambda: request.headers.get("X-Key"), name="api_key", rules="4 per 2 seconds")
    @rate_limiter(type=USER, rules="2 per 1 seconds", shadow=True)
    def key() -> str:
        return "key"

    @app.get("/free")
    def free() -> str:
        raise RuntimeError("a failure is recorded too")

    return app


if "RECORDED" in os.environ:
    app = make_app()
    # Settles the address before the limits of the app: the move above is registered after them.
    app.before_request_funcs[None].reverse()
    Recorder(app, os.environ["RECORDED"], key="k")
