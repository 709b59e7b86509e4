"""What the pages about other extensions say is true."""

# mypy: disable-error-code="import-untyped"
import base64
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import flask_restful
import flask_restx
import pytest
from flask import Flask
from flask_jwt_extended import create_access_token, create_refresh_token, get_jwt_identity, jwt_required
from flask_socketio import SocketIO
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from flask_multilimit import MultiLimit, RateLimitExceeded, rate_limiter
from flask_multilimit.dashboard import Dashboard
from support.asking import ask

Run = Callable[..., dict[str, Any]]


def statuses(app: Flask, path: str, times: int, headers: Mapping[str, str]) -> list[int]:
    return [app.test_client().get(path, headers=headers).status_code for _ in range(times)]


def ban(app: Flask, address: str) -> None:
    with app.app_context():
        app.extensions["multilimit"].control.ban(address, for_=60)


class TestUsersOfExtensions:
    PAGE = "docs/how-to/users-of-extensions.md"

    def expect_a_quota_for_each(
        self, app: Flask, ann: Mapping[str, str], bob: Mapping[str, str], prefix: str = ""
    ) -> None:
        for who in (ann, bob):
            assert statuses(app, f"{prefix}/inbox", 3, who) == [200, 200, 429]
            assert statuses(app, f"{prefix}/profile", 4, who) == [200, 200, 200, 429]

    def test_user_of_flask_jwt_extended_has_own_quota(self, run: Run) -> None:
        app: Flask = run(self.PAGE, "jwt")["app"]
        tokens = {name: app.test_client().post(f"/login/{name}").get_json()["token"] for name in ("ann", "bob")}
        headers = {name: {"Authorization": f"Bearer {token}"} for name, token in tokens.items()}

        self.expect_a_quota_for_each(app, headers["ann"], headers["bob"])
        assert statuses(app, "/profile", 4, {}) == [401, 401, 401, 429], "by address"
        assert statuses(app, "/profile", 1, {"Authorization": "Bearer nonsense"}) == [429], "by address, too"

    def test_refresh_token_of_flask_jwt_extended_identifies_the_user(self, run: Run) -> None:
        app: Flask = run(self.PAGE, "jwt")["app"]
        app.post("/refresh")(jwt_required(refresh=True)(get_jwt_identity))
        with app.app_context():
            headers = {"Authorization": f"Bearer {create_refresh_token('ann')}"}

        answers = [app.test_client().post("/refresh", headers=headers) for _ in range(4)]

        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert answers[0].text == "ann"
        assert statuses(app, "/profile", 1, headers) == [422], "where an access token is needed"

    def test_client_with_expired_token_can_log_in_again(self, run: Run) -> None:
        app: Flask = run(self.PAGE, "jwt")["app"]
        with app.app_context():
            headers = {"Authorization": f"Bearer {create_access_token('ann', expires_delta=timedelta(-1))}"}

        assert app.test_client().post("/login/ann", headers=headers).status_code == 200
        assert statuses(app, "/profile", 4, headers) == [401, 401, 401, 429], "by address"

    def test_user_of_flask_httpauth_has_own_quota(self, run: Run) -> None:
        app: Flask = run(self.PAGE, "httpauth")["app"]

        def basic(name: str, password: str) -> Mapping[str, str]:
            return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}

        self.expect_a_quota_for_each(app, basic("ann", "secret of ann"), basic("bob", "secret of bob"))
        assert statuses(app, "/profile", 4, basic("ann", "guessed")) == [401, 401, 401, 429]

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore")
    def test_user_of_flask_appbuilder_has_own_quota(self, run: Run) -> None:
        namespace = run(self.PAGE, "appbuilder")
        app: Flask = namespace["app"]
        security = namespace["appbuilder"].sm
        headers = {}
        for name in ("ann", "bob"):
            with app.app_context():
                role = security.find_role("Admin")
                security.add_user(name, name, name, f"{name}@example.com", role, "secret")
            answer = app.test_client().post(
                "/api/v1/security/login",
                json={"username": name, "password": "secret", "provider": "db", "refresh": True},
            )
            headers[name] = {"Authorization": f"Bearer {answer.get_json()['access_token']}"}

        self.expect_a_quota_for_each(app, headers["ann"], headers["bob"], "/api/v1/messages")
        refresh = {"Authorization": f"Bearer {answer.get_json()['refresh_token']}"}
        assert app.test_client().post("/api/v1/security/refresh", headers=refresh).status_code == 200
        login = {"username": "ann", "password": "secret", "provider": "db"}
        invalid = {"Authorization": "Bearer nonsense"}
        assert app.test_client().post("/api/v1/security/login", json=login, headers=invalid).status_code == 200


class TestSocketIO:
    PAGE = "docs/how-to/flask-socketio.md"

    def test_events_are_limited_and_banned_clients_disconnected(self, run: Run) -> None:
        namespace = run(self.PAGE, "events")
        app, socketio = namespace["app"], namespace["socketio"]
        client, other, refused = (socketio.test_client(app) for _ in range(3))
        assert [each.is_connected() for each in (client, other, refused)] == [True, True, False]

        for _ in range(4):
            client.emit("message", "hello")

        received = client.get_received()
        assert [each["name"] for each in received] == ["echo", "echo", "echo", "refused"]
        assert received[3]["args"][0]["status"] == 429

        socketio.server.environ[other.eio_sid]["REMOTE_ADDR"] = "192.0.2.1"  # the client of tests has no address
        ban(app, "192.0.2.1")
        other.emit("message", "hello")

        assert other.is_connected() is False

    def test_handshakes_are_limited_and_banned_clients_refused(self, run: Run) -> None:
        app: Flask = run(self.PAGE, "handshakes")["app"]
        client = app.test_client()

        answers = [client.get("/socket.io/?EIO=4&transport=polling") for _ in range(6)]

        assert [answer.status_code for answer in answers] == [200] * 5 + [429]
        assert answers[-1].headers["Retry-After"] == "60"
        for extra in ("sid=", "xsid=1", "x=sid=1"):
            assert client.get(f"/socket.io/?EIO=4&transport=polling&{extra}").status_code == 429, "a handshake, too"
        assert client.get("/socket.io/?EIO=4&transport=polling&sid=x").status_code == 400, "of engine.io"
        ban(app, "192.0.2.1")
        banned = {"REMOTE_ADDR": "192.0.2.1"}
        assert client.get("/socket.io/?EIO=4&transport=polling", environ_base=banned).status_code == 429

    def test_limits_of_the_app_do_not_count_handshakes(self) -> None:
        app = Flask("chat")
        MultiLimit(app, application_limits="1/minute", unmatched_limits="1/minute")
        SocketIO(app, async_mode="threading")
        assert statuses(app, "/socket.io/?EIO=4&transport=polling", 3, {}) == [200] * 3


BOTH_AT_ONCE = """
from gevent import monkey; monkey.patch_all()
import asyncio, gevent, logging
from flask import Flask
app = Flask("bare")
logging.disable()
@app.get("/")
async def view():
    await asyncio.sleep(0.1)
    return "ok"
asked = [gevent.spawn(lambda: app.test_client().get("/").status_code) for _ in range(2)]
gevent.joinall(asked)
print(sorted(each.value for each in asked))
"""


def test_async_views_of_bare_flask_fail_under_gevent() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BOTH_AT_ONCE], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[200, 500]\n"


API_DOCUMENTS = "docs/how-to/api-documents.md"
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
def test_served_api_document_is_valid_and_describes_refusals(run: Run, example: str, path: str) -> None:
    app: Flask = run(API_DOCUMENTS, example)["app"]

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
    refused = [ask(app, "/items/7") for _ in range(100)][-1]
    said = responses["429"].get("content", {}).get(refused.mimetype, responses["429"])["schema"]
    assert refused.status_code == 429
    Draft202012Validator({**document, **said}).validate(json.loads(refused.text))
    with app.app_context():
        app.extensions["multilimit"].control.override("*item", rule="ip-60s", rules="70/minute", lasting=True)
    changed = json.loads(ask(app, path).text)["paths"] != document["paths"]
    assert changed is (example != "apiflask"), "a change at run time"


def test_api_document_of_apiflask_does_not_fail_with_the_dashboard(run: Run) -> None:
    app: Flask = run(API_DOCUMENTS, "apiflask")["app"]
    app.register_blueprint(Dashboard(app.extensions["multilimit"], authorize=lambda: "ann"))
    document = json.loads(ask(app, "/openapi.json").text)
    assert list(document["paths"]) == ["/items/{item_id}"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_handler_of_flask_restx_for_refusals_works_above_one_for_exceptions(run: Run) -> None:
    example = run(API_DOCUMENTS, "restx")
    app, api = example["app"], example["api"]

    api.errorhandler(Exception)(lambda _: ({}, 500))
    above = statuses(app, "/items/7", 101, {})[-1]
    api.error_handlers.move_to_end(RateLimitExceeded)
    below = statuses(app, "/items/7", 1, {})

    assert (above, below) == (429, [500])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("framework", [flask_restful, flask_restx])
def test_flask_restful_and_flask_restx_ask_no_error_handler_of_flask(framework: Any) -> None:
    app = Flask(__name__)
    MultiLimit(app)
    app.register_error_handler(RateLimitExceeded, lambda _: ("Flask's", 429))

    class Item(framework.Resource):  # type: ignore[misc]
        @rate_limiter(rules="1/minute", message="the limiter's")
        def get(self) -> dict[str, int]:
            return {"id": 7}

    framework.Api(app).add_resource(Item, "/item")

    assert [ask(app, "/item").json for _ in range(2)] == [{"id": 7}, {"message": "the limiter's"}]
