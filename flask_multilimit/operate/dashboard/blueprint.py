"""Which address leads where, and what is done around each request."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify, request

from . import now
from .desk import Desk
from .shell import harden, render


def install(blueprint: Blueprint, desk: Desk) -> None:
    """Put the pages on ``blueprint``."""
    blueprint.before_request(lambda: _receive(desk))
    blueprint.after_request(harden)
    blueprint.add_url_rule("/", "now", _now)
    blueprint.add_url_rule("/api/", "api", lambda: jsonify({"now": True}))
    blueprint.add_url_rule("/api/now", "api_now", lambda: jsonify(now.facts()))


def _receive(desk: Desk) -> None:
    """Let the visitor in; files that everybody can download with the package need nobody's consent."""
    if request.endpoint != f"{request.blueprint}.static":
        desk.receive()


def _now() -> Response:
    return render("now.html", **now.facts())
