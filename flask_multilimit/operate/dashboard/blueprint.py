"""Which address leads where, and what is done around each request."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from typing import Any

from flask import Blueprint, Response, jsonify, request
from markupsafe import Markup

from ...engine import ConfigurationError
from ...observe.traffic.buckets import BUCKET_SECONDS
from ..listing import endpoints_of
from ..simulate.page.document import part
from ..simulate.page.peaks import slider_element
from . import now, whatif
from .bodies import MOST_OF_A_FORM, require_small_body
from .desk import Desk
from .drawing import PLANE, SPARK, Drawing, drawn, grouped
from .numbers import share
from .paging import page_asked
from .security import require_own_form
from .shell import harden, is_file, render
from .visit import gate


def install(blueprint: Blueprint, desk: Desk) -> None:
    """Put the pages on ``blueprint``."""
    blueprint.before_request(lambda: _receive(desk))
    blueprint.after_request(harden)
    blueprint.add_url_rule("/", "now", _now)
    blueprint.add_url_rule("/what-if", "what_if", _what_if, methods=["GET", "POST"])
    blueprint.add_url_rule("/static/slider.css", "slider_css", lambda: _slider("slider.css", "text/css"))
    blueprint.add_url_rule("/static/slider.js", "slider_js", lambda: _slider("slider.js", "text/javascript"))
    blueprint.add_url_rule("/api/", "api", lambda: jsonify({"now": True}))
    blueprint.add_url_rule("/api/now", "api_now", lambda: jsonify(_now_facts()))
    blueprint.add_url_rule("/api/what-if", "api_what_if", _api_what_if)


def _receive(desk: Desk) -> None:
    """Let the visitor in; files that everybody can download with the package need nobody's consent."""
    if is_file():
        return
    desk.receive()
    if request.method == "POST":
        uploads = request.endpoint == f"{request.blueprint}.what_if"
        if uploads:
            require_small_body(MOST_OF_A_FORM + whatif.MOST_UPLOADED, whatif.TOO_LARGE)
        else:
            require_small_body(MOST_OF_A_FORM, "This form is too large.")


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


def _what_if() -> Response:
    answer, problem, status = None, "", 200
    question = whatif.Question.of(request.values)
    try:
        answer = _answer_of_upload(question) if request.method == "POST" else whatif.of_recorded(question)
    except ConfigurationError as error:
        problem, status = str(error), 400
    return render(
        "whatif.html",
        status=status,
        answer=answer,
        endpoints=[each.name for each in endpoints_of(gate()) if each.name != f"{request.blueprint}.static"],
        most_bytes=whatif.MOST_UPLOADED,
        problem=problem,
        question=question,
        recorded=whatif.records(),
        remarks=whatif.REMARKS,
        slider=None if answer is None else Markup(slider_element(answer.slider())),
        too_large=whatif.TOO_LARGE,
        types=whatif.TYPES,
        uploaded=request.method == "POST",
    )


def _answer_of_upload(question: whatif.Question) -> whatif.Answer:
    require_own_form()
    log = request.files.get("log")
    if log is None or not log.filename:
        raise ConfigurationError("choose a log to upload")
    with closing(log):
        return whatif.of_upload(question, log)


def _api_what_if() -> Response:
    try:
        answer = whatif.of_recorded(whatif.Question.of(request.args))
    except ConfigurationError as error:
        return Response(json.dumps({"problem": str(error)}), 400, mimetype="application/json")
    return jsonify(None if answer is None else asdict(answer))


def _slider(name: str, mimetype: str) -> Response:
    return Response(part(name), mimetype=mimetype)
