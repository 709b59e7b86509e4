"""Pages for everybody."""

from __future__ import annotations

from flask import Blueprint, request

blueprint = Blueprint("shop", __name__)


@blueprint.get("/items")
def items() -> list[str]:
    return ["apple", "pear"]


@blueprint.get("/search")
def search() -> list[str]:
    return [item for item in items() if request.args["q"] in item]
