"""The ways to say limits in the documents of an API, as the page shows them: the documents are valid, and true."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from openapi_spec_validator import validate

from support.asking import ask

if TYPE_CHECKING:
    from flask import Flask

PAGE = "docs/how-to/api-documents.md"
Run = Callable[..., dict[str, Any]]
SAID = "Too many requests: at most 100 per minute for each address."


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("example", "path"),
    [
        ("smorest", "/openapi.json"),
        ("apiflask", "/openapi.json"),
        ("openapi3", "/openapi/openapi.json"),
        ("restx", "/swagger.json"),
    ],
)
def test_the_document_that_is_served_is_valid_and_says_the_limit(run: Run, example: str, path: str) -> None:
    app: Flask = run(PAGE, example)["app"]

    document = json.loads(ask(app, path).text)

    if document.get("components", {}).get("securitySchemes", {}) is None:  # flask-openapi3 writes that itself
        del document["components"]["securitySchemes"]
    validate(document)
    responses = document["paths"]["/items/{item_id}"]["get"]["responses"]
    assert responses["429"]["description"] == SAID
    assert set(responses["429"]["headers"]) == {"Retry-After", "RateLimit-Policy", "RateLimit"}
    assert set(responses["200"]["headers"]) == {"RateLimit-Policy", "RateLimit"}
    assert json.loads(ask(app, path).text)["paths"] == document["paths"], "asked again"
    assert ask(app, "/items/7").headers["RateLimit-Policy"] == '"ip-60s";q=100;w=60'
