"""The addresses of the pages, and what is done around each request."""

from __future__ import annotations

from flask import Blueprint, request
from werkzeug.exceptions import (
    BadRequest,
    Forbidden,
    LengthRequired,
    RequestEntityTooLarge,
    RequestURITooLarge,
    TooManyRequests,
)

from ...engine.bounds import LONGEST_QUERY
from . import api, pages, whatif
from .forms import MOST_OF_A_FORM, require_small_body
from .shell import harden, is_file, refused
from .visit import Authenticator


def install(blueprint: Blueprint, authenticator: Authenticator) -> None:
    """Put the pages on ``blueprint``."""
    blueprint.before_request(lambda: _begin(authenticator))
    blueprint.after_request(harden)
    for error in (BadRequest, Forbidden, LengthRequired, RequestEntityTooLarge, RequestURITooLarge, TooManyRequests):
        blueprint.register_error_handler(error, refused)
    blueprint.add_url_rule("/", "now", pages.now_page)
    blueprint.add_url_rule("/limits", "limits", pages.limits_page)
    blueprint.add_url_rule("/change", "change", pages.change_page)
    blueprint.add_url_rule("/change", "make_change", pages.make_change, methods=["POST"])
    blueprint.add_url_rule("/undo", "undo", pages.undo, methods=["POST"])
    blueprint.add_url_rule("/subject", "subject", pages.subject_page)
    blueprint.add_url_rule("/reset", "reset", pages.reset, methods=["POST"])
    blueprint.add_url_rule("/unban", "unban", pages.unban, methods=["POST"])
    blueprint.add_url_rule("/lists", "lists", pages.lists_page)
    blueprint.add_url_rule("/history", "history", pages.history_page)
    blueprint.add_url_rule("/what-if", "what_if", whatif.what_if_page, methods=["GET", "POST"])
    blueprint.add_url_rule("/api/", "api", api.index)
    blueprint.add_url_rule("/api/openapi.json", "api_document", api.api_document)
    for operation in api.OPERATIONS:
        blueprint.add_url_rule(f"/api/{operation.name}", operation.endpoint, operation.view)


def _begin(authenticator: Authenticator) -> None:
    """Let the visitor in. Files that everybody can download with the package are served to all."""
    if is_file():
        return
    if len(request.query_string) > LONGEST_QUERY:
        raise RequestURITooLarge
    authenticator.begin_visit()
    if request.method == "POST":
        uploads = request.endpoint == f"{request.blueprint}.what_if"
        if uploads:
            require_small_body(MOST_OF_A_FORM + whatif.MOST_UPLOADED, whatif.TOO_LARGE)
        else:
            require_small_body(MOST_OF_A_FORM, "This form is too large.")
