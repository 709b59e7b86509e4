"""Which address leads where, and what is done around each request."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify, request

from ...observe.traffic.buckets import BUCKET_SECONDS
from . import now
from .desk import Desk
from .drawing import PLANE, SPARK, Drawing, drawn, grouped
from .numbers import share
from .paging import page_asked
from .shell import harden, render
from .visit import gate


def install(blueprint: Blueprint, desk: Desk) -> None:
    """Put the pages on ``blueprint``."""
    blueprint.before_request(lambda: _receive(desk))
    blueprint.after_request(harden)
    blueprint.add_url_rule("/", "now", _now)
    blueprint.add_url_rule("/api/", "api", lambda: jsonify({"now": True}))
    blueprint.add_url_rule("/api/now", "api_now", lambda: jsonify(_now_facts()))


def _receive(desk: Desk) -> None:
    """Let the visitor in; files that everybody can download with the package need nobody's consent."""
    if request.endpoint != f"{request.blueprint}.static":
        desk.receive()


def _now_facts() -> dict[str, Any]:
    asked = request.args
    return now.facts(
        gate(),
        endpoint=asked.get("endpoint"),
        q=asked.get("q", ""),
        sort=asked.get("sort", ""),
        page=page_asked(asked),
    )


def _now() -> Response:
    found = _now_facts()
    last = found["series"]["last"]
    totals = found["totals"]
    everything = sum(totals[kind]["hour"] for kind in ("passed", "refused", "other"))
    for each in found["endpoints"]:
        each["drawing"] = _drawing(each["series"], last, slices=6, size=SPARK)
    return render(
        "now.html",
        drawing=_drawing(found["series"], last, slices=3),
        share=share(totals["refused"]["hour"], everything),
        **found,
    )


def _drawing(series: dict[str, Any], last: int, *, slices: int, size: tuple[int, int] = PLANE) -> Drawing:
    nothing = [0] * len(series["passed"])
    passed, refused, other, near = (
        grouped(series.get(kind, nothing), last, slices=slices, seconds=BUCKET_SECONDS)
        for kind in ("passed", "refused", "other", "near")
    )
    return drawn(passed, refused, other, near, size=size)
