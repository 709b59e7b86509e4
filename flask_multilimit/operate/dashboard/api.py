"""The same as JSON: what each page shows, under ``/api/``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Response, jsonify

from . import pages
from .shell import url

FACTS: dict[str, Callable[[], dict[str, Any]]] = {
    "now": pages.now_facts,
    "limits": pages.limits_facts,
    "subject": pages.subject_facts,
    "change": pages.proposed_facts,
    "lists": pages.lists_facts,
    "history": pages.history_facts,
}
"""By the name of the page."""


def index() -> Response:
    """Where what is."""
    return jsonify({name: url(f"api_{name}") for name in (*FACTS, "what_if")})


def view_of(facts: Callable[[], dict[str, Any]]) -> Callable[[], Response]:
    return lambda: jsonify(facts())
