"""Pages for a few users. This limit is in the code because it belongs there: the report is expensive."""

from __future__ import annotations

from flask import Blueprint

from flask_multilimit import rate_limiter

blueprint = Blueprint("admin", __name__)


@blueprint.get("/users")
def users() -> list[str]:
    return ["ann", "bob"]


@blueprint.post("/report")
@rate_limiter(rules="1 per 5 minutes")
def report() -> str:
    return "made\n"
