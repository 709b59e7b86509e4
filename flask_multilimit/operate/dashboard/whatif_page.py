"""The page "What if": a slider over recorded traffic, or over an uploaded log."""

from __future__ import annotations

from contextlib import closing

from flask import Response, request
from markupsafe import Markup
from werkzeug.exceptions import BadRequest

from ...engine import ConfigurationError
from ...insight.limits import places_of
from ...serve.gate import gate_in_force
from ..simulate.page.document import part
from ..simulate.page.peaks import slider_element
from . import whatif
from .forms import require_own_form
from .shell import render


def what_if_page() -> Response:
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
        endpoints=[
            each.name for each in places_of(gate_in_force()) if not each.name.startswith(f"{request.blueprint}.")
        ],
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


def what_if_asked() -> whatif.Answer | None:
    try:
        return whatif.of_recorded(whatif.Question.of(request.args))
    except ConfigurationError as error:
        raise BadRequest(str(error)) from error


def slider_file(name: str, mimetype: str) -> Response:
    return Response(part(name), mimetype=mimetype)
