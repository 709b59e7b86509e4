"""A guestbook: five entries an hour for each user, and three log-ins a minute for each address."""

from __future__ import annotations

from typing import Any

from flask import Flask, request

from flask_multilimit import IP, USER, MultiLimit, rate_limiter

multilimit = MultiLimit()


@multilimit.user_loader
def current_user() -> str | None:
    return request.headers.get("X-User")  # for this example only: it believes the client


def create_app(settings: dict[str, Any] | None = None) -> Flask:
    app = Flask(__name__)
    app.config.from_mapping(settings or {})
    multilimit.init_app(app)

    @app.get("/")
    def index() -> str:
        return "entries"

    @app.post("/entries")
    @rate_limiter(type=USER, rules="5/hour")
    @rate_limiter(rules="100/hour")
    def write() -> tuple[str, int]:
        return "written", 201

    @app.post("/login")
    @rate_limiter(type=IP, rules="3/minute; 20/day")
    def login() -> str:
        return "welcome"

    return app
