"""The content of each page as JSON under ``/api/``, which is read-only; and the OpenAPI document about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from flask import Response
from pydantic import TypeAdapter
from werkzeug.exceptions import ServiceUnavailable

from ...control.store import KINDS
from ...engine import ConfigurationError, StorageError
from ...engine.errors import with_remedy
from ...insight.bans import BanInForce, bans
from ...insight.changes import Entries, History
from ...insight.keys import SlotsNow, slots_now
from ...insight.limits import SHOWS, Limits
from ...insight.traffic import SORTS, Now
from ...insight.values import Described, as_json
from ...serve.gate import gate_in_force
from ..blueprints import json_response
from . import changes, pages, whatif
from .shell import url


@dataclass(frozen=True, slots=True)
class Problem(Described):
    """Why there is no answer."""

    error: str


@dataclass(frozen=True)
class Parameter:
    """A parameter of a query."""

    name: str
    text: str
    one_of: tuple[str, ...] = ()
    is_number: bool = False

    def document(self) -> dict[str, Any]:
        kind: dict[str, Any] = {"type": "integer", "minimum": 1} if self.is_number else {"type": "string"}
        if self.one_of:
            kind["enum"] = list(self.one_of)
        return {"name": self.name, "in": "query", "description": self.text, "schema": kind}


@dataclass(frozen=True)
class Operation:
    """One question."""

    name: str
    text: str
    answer: Any
    """The type of its JSON."""
    ask: Callable[[], Any]
    parameters: tuple[Parameter, ...] = ()

    def view(self) -> Response:
        try:
            return json_response(as_json(self.ask()))
        except (StorageError, ConfigurationError) as error:  # other answers have a field for a problem
            raise ServiceUnavailable(with_remedy(error)) from error

    @property
    def endpoint(self) -> str:
        return f"api_{self.name.replace('-', '_')}"


PAGE = Parameter("page", "The page of the list, from 1 on.", is_number=True)
Q = Parameter("q", "Text that rows must contain.")
ENDPOINT = Parameter("endpoint", "Only this endpoint.")

OPERATIONS = (
    Operation(
        "now",
        "What happens now, and what happened in the last hour",
        Now,
        pages.query_now,
        (
            Parameter("minutes", "The time to look back, 1 to 60.", is_number=True),
            ENDPOINT,
            Q,
            Parameter("sort", "The order of endpoints.", SORTS),
            PAGE,
        ),
    ),
    Operation(
        "limits",
        "Which limits apply where, and what changed them",
        Limits,
        pages.query_limits,
        (Q, Parameter("show", "Which endpoints.", SHOWS), PAGE),
    ),
    Operation(
        "subject",
        "The quotas of one subject at every endpoint",
        pages.Subject,
        pages.query_subject,
        (
            Parameter("who", "An address, a network, or a subject with its type: user:42"),
            Parameter("type", "The type of a subject, instead of who."),
            Parameter("value", "The subject of this type."),
            ENDPOINT,
            Parameter("at", "An earlier time of the last hour: 5m (ago), or ISO 8601."),
            PAGE,
        ),
    ),
    Operation(
        "change",
        "What a change would do; the form on the page makes the change",
        changes.Change,
        pages.query_change,
        tuple(Parameter(name, "A field of the form.") for name in changes.FIELDS),
    ),
    Operation(
        "lists",
        "Changes while the app runs",
        Entries,
        pages.query_lists,
        (Parameter("kind", "Only entries of this kind.", KINDS), Q, PAGE),
    ),
    Operation("slots", "The slots of Concurrent rules that are in use", SlotsNow, lambda: slots_now(gate_in_force())),
    Operation("bans", "Every ban in force", list[BanInForce], lambda: bans(gate_in_force())),
    Operation("history", "What was changed, by whom, when and why", History, pages.query_history, (Q, PAGE)),
    Operation(
        "what-if",
        "What counts would have refused of the recorded traffic; null if nothing is recorded",
        whatif.WhatIf | None,
        whatif.query_what_if,
        (
            ENDPOINT,
            Parameter("type", "How requests are counted.", whatif.TYPES),
            Parameter("window", "Seconds."),
            Parameter("count", "A count to try."),
            Parameter("refuse_at_most", "The share of requests, and of clients, that may be refused: 0.1%"),
        ),
    ),
)
"""All operations. Routes, document and index are made from this table."""

_REFUSALS = {
    "400": "The query is wrong.",
    "403": "authorize does not let this visitor in, or another site asks for What if.",
    "429": "Too many attempts from this address were rejected, or What if is reading another log.",
    "503": "The storage fails.",
}
_JSON = "application/json"


def index() -> Response:
    """The addresses of all operations."""
    return json_response(
        {"openapi": url("api_document"), **{each.name.replace("-", "_"): url(each.endpoint) for each in OPERATIONS}}
    )


def api_document() -> Response:
    """The OpenAPI document."""
    schemas, components = _schemas()
    problem = {_JSON: {"schema": schemas["problem"]}}
    return json_response(
        {
            "openapi": "3.1.0",
            "info": {"title": "Limits", "summary": "What the dashboard of flask-multilimit shows", "version": "2"},
            "servers": [{"url": url("api").rstrip("/")}],
            "paths": {
                f"/{each.name}": {
                    "get": {
                        "operationId": each.endpoint.removeprefix("api_"),
                        "summary": each.text,
                        "parameters": [parameter.document() for parameter in each.parameters],
                        "responses": {
                            "200": {
                                "description": "The answer.",
                                "content": {_JSON: {"schema": schemas[each.name]}},
                            },
                            **{code: {"description": why, "content": problem} for code, why in _REFUSALS.items()},
                        },
                    }
                }
                for each in OPERATIONS
            },
            "components": {"schemas": components},
        }
    )


@cache  # it takes a fifth of a second
def _schemas() -> tuple[dict[str, Any], dict[str, Any]]:
    """The schemas of all answers by the name of the operation, and the components that they refer to."""
    answered: list[tuple[str, Any]] = [(each.name, each.answer) for each in OPERATIONS]
    adapters: list[tuple[str, Any, TypeAdapter[Any]]] = [
        (name, "serialization", TypeAdapter(type_)) for name, type_ in [*answered, ("problem", Problem)]
    ]
    schemas, models = TypeAdapter.json_schemas(adapters, ref_template="#/components/schemas/{model}")
    return {name: schema for (name, _), schema in schemas.items()}, models["$defs"]
