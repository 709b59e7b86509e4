"""What OpenAPI documents say about limits is valid, and describes the answers that clients get."""

import contextlib
import copy
import functools
import operator
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from flask import Flask, request
from openapi_spec_validator import validate

from flask_multilimit import IP, USER, Ban, Calendar, Concurrent, ConfigurationError, MultiLimit, rate_limiter
from flask_multilimit.serve.headers import DIALECTS, FIELDS
from support.asking import ask, view


def made(**settings: Any) -> tuple[Flask, MultiLimit]:
    app = Flask("shop", static_folder=None)
    app.config.update(settings)
    multilimit = MultiLimit(app, user_loader=lambda: request.headers.get("X-User"))
    posted = rate_limiter(type=USER, rules="9/minute", methods=["POST"])(lambda **_: "ok")
    app.add_url_rule("/items/<int:item_id>", "item", posted, methods=["GET", "POST"])
    one = rate_limiter(type=IP, rules=["1/minute", Concurrent(1), Calendar(1, "month")], ban=Ban(after=2, time=60))
    app.add_url_rule("/one", "one", one(view()))
    app.add_url_rule("/open", "open", view())
    return app, multilimit


def additions(**settings: Any) -> dict[str, Any]:
    app, multilimit = made(**settings)
    with app.app_context():
        return multilimit.openapi()


def document(version: str = "3.1.0") -> dict[str, Any]:
    parameter = {"name": "item_id", "in": "path", "required": True}
    typed = {"type": "integer"} if version == "2.0" else {"schema": {"type": "integer"}}
    operation = {"parameters": [{**parameter, **typed}], "responses": {"200": {"description": "The item."}}}
    return {
        ("swagger" if version == "2.0" else "openapi"): version,
        "info": {"title": "Shop", "version": "1"},
        "paths": {
            "/items/{item_id}": {"get": operation, "post": operation},
            "/open": {"get": {"responses": {"200": {"description": "ok"}}}},
        },
    }


def merged(given: dict[str, Any], **settings: Any) -> dict[str, Any]:
    app, multilimit = made(**settings)
    with app.app_context():
        return multilimit.openapi(given)


@pytest.mark.parametrize("version", ["2.0", "3.0.3", "3.1.0"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_document_stays_valid_and_only_limited_operations_change(version: str, dialect: str) -> None:
    before = document(version)

    found = merged(before, MULTILIMIT_HEADERS=dialect)

    validate(found)
    assert before == document(version), "the given one is a copy"
    operations = found["paths"]["/items/{item_id}"]
    assert "429" not in operations["get"]["responses"]
    assert operations["post"]["responses"]["429"]["description"].endswith("9 per minute for each user.")
    assert found["paths"]["/open"] == before["paths"]["/open"]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("retry_after", ["seconds", "date"])
def test_described_header_fields_are_those_of_a_refusal(dialect: str, retry_after: str) -> None:
    settings = {"MULTILIMIT_HEADERS": dialect, "MULTILIMIT_RETRY_AFTER": retry_after}
    app, _ = made(**settings)
    ask(app, "/one")

    described = additions(**settings)["components"]["headers"]

    refusal = ask(app, "/one")
    assert refusal.status_code == 429
    known = {"Retry-After"} | {name for fields in FIELDS.values() for name, _, _ in fields}
    assert known.intersection(refusal.headers.keys()) == set(described)
    for name, field in described.items():
        assert refusal.headers[name].isdecimal() == (field["schema"]["type"] == "integer")


def test_described_schema_fits_bodies_of_refusals() -> None:
    app, _ = made()
    ask(app, "/one")
    bodies = [ask(app, "/one").get_json(force=True) for _ in range(2)]
    schemas = additions()["components"]["schemas"]

    assert [any("banned" in each for each in body["violations"]) for body in bodies] == [False, True]
    assert {"window", "period"} <= {name for each in bodies[0]["violations"] for name in each}
    root = {"components": {"schemas": schemas}, "$ref": "#/components/schemas/RateLimitProblem"}
    described = {name for each in schemas.values() for name in each["properties"]}
    for body in bodies:
        jsonschema.validate(body, root)
        assert {*body, *(name for each in body["violations"] for name in each)} <= described


def test_description_names_subjects_and_no_shadow_limits() -> None:
    app = Flask("shop", static_folder=None)
    multilimit = MultiLimit(app, application_limits="1000/minute", user_loader=lambda: None)
    app.add_url_rule("/plan", "plan", rate_limiter(type=USER, rules=lambda: "5/minute")(view()))
    app.add_url_rule("/shadow", "shadow", rate_limiter(rules="5/minute", shadow=True)(view()))
    with app.app_context():
        paths = multilimit.openapi()["paths"]

    assert paths["/plan"]["get"]["responses"]["429"]["description"] == (
        "Too many requests: at most 1000 per minute for all clients together; "
        "what the plan of the client says for each user."
    )
    assert "5 per" not in paths["/shadow"]["get"]["responses"]["429"]["description"]


def test_description_says_what_is_counted_if_not_requests() -> None:
    app = Flask("shop", static_folder=None)
    multilimit = MultiLimit(app)
    app.add_url_rule("/chat", "chat", rate_limiter(type="ip", rules="1000/day", unit="tokens")(view()))
    with app.app_context():
        responses = multilimit.openapi()["paths"]["/chat"]["get"]["responses"]

    assert responses["429"]["description"] == "Too many requests: at most 1000 per day (in tokens) for each address."


def test_existing_parts_of_a_document_are_kept_also_under_a_status_that_is_a_number_as_in_yaml() -> None:
    given = document()
    slow = {"description": "Slow down."}
    given["paths"]["/items/{item_id}"]["post"]["responses"] = {200: {"description": "ok"}, 429: slow}
    given["components"] = {"schemas": {"RateLimitProblem": {"type": "object"}}}

    found = merged(given)

    responses = found["paths"]["/items/{item_id}"]["post"]["responses"]
    assert (sorted(responses), responses["429"]) == (["200", "429"], slow)
    assert found["components"]["schemas"]["RateLimitProblem"] == {"type": "object"}
    assert "RateLimit" in found["components"]["headers"]


def paths_in(part: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where each part of a document is."""
    for name, inner in part.items() if isinstance(part, dict) else ():
        yield (*path, name)
        yield from paths_in(inner, (*path, name))


@pytest.mark.parametrize("value", [None, "text", ["a list"]])
def test_part_that_is_no_table_counts_as_empty_if_it_is_null_and_is_named_otherwise(value: Any) -> None:
    whole = {**document(), "components": {"schemas": {}}, "servers": [{"url": "/v1"}]}
    app, multilimit = made()
    for *path, name in set(paths_in(whole)) - {("openapi",)}:
        given = copy.deepcopy(whole)
        functools.reduce(operator.getitem, path, given)[name] = value
        with app.app_context(), contextlib.suppress(ConfigurationError) if value else contextlib.nullcontext():
            multilimit.openapi(given)
    with app.app_context(), pytest.raises(ConfigurationError, match="openapi: document: 'responses': give a table"):
        multilimit.openapi({"openapi": "3.1.0", "paths": {"/items/{item_id}": {"post": {"responses": [1]}}}})


@pytest.mark.parametrize(
    ("version", "prefix"),
    [("3.1.0", {"servers": [{"url": "https://example.com/api/"}]}), ("2.0", {"basePath": "/api"})],
)
def test_paths_below_a_prefix_are_found(app: Flask, version: str, prefix: dict[str, Any]) -> None:
    multilimit = MultiLimit(app)
    app.add_url_rule("/api/open", "open", rate_limiter(rules="1/minute")(view()))

    with app.app_context():
        found = multilimit.openapi({**document(version), **prefix})

    assert "429" in found["paths"]["/open"]["get"]["responses"]


def test_headers_on_refusals_setting_applies_to_the_document() -> None:
    found = merged(document(), MULTILIMIT_HEADERS_ON="refusals")
    responses = found["paths"]["/items/{item_id}"]["post"]["responses"]
    assert "headers" not in responses["200"]
    assert "RateLimit" in responses["429"]["headers"]


def test_description_shows_overridden_limits() -> None:
    app, multilimit = made()
    with app.app_context():
        multilimit.control.override("item", rule="user-60s", rules="3/minute", for_=60)
        said = multilimit.openapi()["paths"]["/items/{item_id}"]["post"]["responses"]["429"]["description"]

    assert "3 per minute for each user" in said


@pytest.mark.parametrize("given", [{}, {"openapi": "2"}, {"swagger": "3"}, [], "openapi"], ids=str)
def test_value_that_is_not_a_document_is_an_error(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="openapi: document="):
        merged(given)
