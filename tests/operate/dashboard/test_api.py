"""The JSON of the dashboard and its OpenAPI document agree."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from flask_multilimit import IP, Ban, rate_limiter
from flask_multilimit.operate.dashboard.api import OPERATIONS
from flask_multilimit.recording import Recorder
from support.asking import view
from support.changes import control_of
from support.servers import Binary, Server

from .conftest import ROOT, browser_of, made

API = ROOT + "api/"
ASKED: dict[str, list[str]] = {
    **{each.name: [""] for each in OPERATIONS},
    "now": ["", "?endpoint=show", "?q=mine&sort=name&page=2"],
    "limits": ["", "?q=mine", "?show=changed", "?show=unlimited"],
    "subject": [
        "",
        *(f"?who={each}" for each in ("127.0.0.1", "203.0.113.9", "198.51.100.1", "10.0.0.0/8", "user:ann", "x:")),
        "?type=user&value=ann",
    ],
    "change": [
        "",
        "?endpoint=show&part=rule:ip-60s&what=rules&rules=9/minute&for=1h&reason=r",
        "?endpoint=show&part=more&more=1/second&type=ip&as_shadow=1&lasting=1&reason=r",
        "?kind=deny&who=10.0.0.0/9&status=429&for=1h&reason=r",
        "?kind=ban&who=x&for=1h",
        "?endpoint=show&what=rules&rules=x&for=1h&reason=r",
    ],
    "lists": ["", "?kind=ban", "?q=nothing"],
    "history": ["", "?q=ann"],
    "what-if": ["", "?endpoint=show&count=1"],
}


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[FlaskClient]:
    """A browser on an app with traffic, bans and changes of every kind."""
    app = made(MULTILIMIT_DENY=["198.51.100.0/24"])
    app.add_url_rule("/bad", "bad", rate_limiter(type=IP, rules="1/hour", ban=Ban(after=1, within=60, time=60))(view()))
    recorder = Recorder(app, tmp_path)
    client = browser_of("ada", app)
    for _ in range(4):
        for path in ("/", "/mine", "/bad", "/open"):
            client.get(path, headers={"X-User": "ann"})
    recorder.flush()
    control = control_of(app)
    control.override("show", rule="ip-60s", rules="9/minute", for_="2h", reason="r", author="ann")
    control.override("api.mine", who="user:ann", times=2, lasting=True, reason="r", author="ann")
    control.override("show", limiter="ip", shadow=True, for_="2h", reason="r", author="ann")
    control.override("open", limit={"type": "ip", "rules": "5/second"}, for_="1h", reason="r", author="ann")
    control.ban("203.0.113.9", for_="15m", reason="r", author="ann")
    control.allow("user:eve", lasting=True, reason="r", author="ann")
    control.deny("10.0.0.0/8", status=429, for_="1h", reason="r", author="ann")
    yield client
    recorder.close()


@pytest.fixture
def document(busy: FlaskClient) -> dict[str, Any]:
    found: dict[str, Any] = busy.get(API + "openapi.json").get_json()
    return found


def test_api_document_is_valid_openapi(document: dict[str, Any]) -> None:
    validate(document)
    assert document["openapi"] == "3.1.0"
    assert document["servers"] == [{"url": "/multilimit/api"}]
    assert set(document["paths"]) == {f"/{name}" for name in ASKED}


def test_api_index_links_every_operation(busy: FlaskClient) -> None:
    addresses = busy.get(API).get_json()
    assert len(addresses) == len(ASKED) + 1
    assert {busy.get(address).status_code for address in addresses.values()} == {200}


@pytest.mark.parametrize("name", [each.name for each in OPERATIONS])
def test_answers_fit_the_schemas_of_the_document(busy: FlaskClient, document: dict[str, Any], name: str) -> None:
    """A property that the document does not name is an error, too."""
    responses = document["paths"][f"/{name}"]["get"]["responses"]
    schema = responses["200"]["content"]["application/json"]["schema"]
    components = json.loads(json.dumps(document["components"]))
    for each in components["schemas"].values():
        each["additionalProperties"] = False

    for query in ASKED[name]:
        answer = busy.get(API + name + query)

        assert (answer.status_code, answer.mimetype) == (200, "application/json")
        found = Draft202012Validator({**schema, "components": components}).iter_errors(answer.get_json())
        assert [f"{query}: {each.json_path}: {each.message}" for each in found] == []


def test_document_lists_every_query_parameter(document: dict[str, Any]) -> None:
    for name, queries in ASKED.items():
        known = {each["name"] for each in document["paths"][f"/{name}"]["get"]["parameters"]}
        asked = {pair.partition("=")[0] for query in queries for pair in query.lstrip("?").split("&") if pair}
        assert asked <= known, name


def test_parameters_have_types_and_choices(document: dict[str, Any]) -> None:
    parameters = {each["name"]: each["schema"] for each in document["paths"]["/limits"]["get"]["parameters"]}

    assert parameters == {
        "q": {"type": "string"},
        "show": {"type": "string", "enum": ["all", "changed", "shadow", "unlimited"]},
        "page": {"type": "integer", "minimum": 1},
    }


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
def test_api_refuses_methods_that_change(busy: FlaskClient, method: str) -> None:
    assert {name: getattr(busy, method)(API + name).status_code for name in ASKED} == dict.fromkeys(ASKED, 405)


def test_unauthorized_api_requests_get_the_documented_error(busy: FlaskClient, document: dict[str, Any]) -> None:
    stranger = busy.application.test_client()

    for name in ASKED:
        answer = stranger.get(API + name)
        assert answer.status_code == 403
        problem = document["paths"][f"/{name}"]["get"]["responses"]["403"]["content"]["application/json"]["schema"]
        Draft202012Validator({**problem, "components": document["components"]}).validate(answer.get_json())


def test_api_answers_json_while_storage_is_down(server_binaries: dict[str, Binary]) -> None:
    with Server(next(iter(server_binaries.values()))) as server:
        app = made(server.url)
        ada = browser_of("ada", app)
        ada.get(ROOT)

    answers = {name: ada.get(API + name) for name in ASKED}

    assert {name: each.status_code for name, each in answers.items()} == {**dict.fromkeys(ASKED, 200), "bans": 503}
    assert "start the server" in answers["bans"].get_json()["error"]
