"""A text of 100,000 characters is refused or ignored everywhere, before it is matched or stored."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, request
from flask.testing import FlaskClient
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.test import encode_multipart

from flask_multilimit import USER, Ban, ConfigurationError, MultiLimit, rate_limiter
from flask_multilimit.compat.flask_limiter import Limiter
from flask_multilimit.dashboard import Dashboard
from flask_multilimit.declare.data import read_limits
from flask_multilimit.engine import MemoryStorage, hits_for
from flask_multilimit.operate.command_line import COMMANDS

LONG = "a1 " * 33_334
SHORT = 20_000
"""The most characters of an answer, a log line or an error: none repeats the text."""

TAKING_TEXT: dict[str, Callable[[MultiLimit], object]] = {
    "rules": lambda _: rate_limiter(rules=LONG).at("here"),
    "rules of hits": lambda _: hits_for(LONG, scope="mail"),
    "rules of a check": lambda multilimit: multilimit.check(LONG, scope="mail"),
    "a duration": lambda multilimit: multilimit.control.ban("::1", for_=LONG),
    "a reason": lambda multilimit: multilimit.control.ban("::1", for_=60, reason=LONG),
    "an author": lambda multilimit: multilimit.control.ban("::1", for_=60, author=LONG),
    "a network": lambda multilimit: multilimit.control.ban(LONG, for_=60),
    "an address": lambda multilimit: multilimit.control.ban(f"ip:{LONG}", for_=60),
    "a user": lambda multilimit: multilimit.control.ban(f"user:{LONG}", for_=60),
    "an endpoint": lambda multilimit: multilimit.control.override(LONG, off=True, for_=60),
    "the name of a rule": lambda multilimit: multilimit.control.override("index", rule=LONG, rules="1/day", for_=60),
    "the name of a limiter": lambda multilimit: multilimit.control.override("index", limiter=LONG, off=True, for_=60),
    "new rules": lambda multilimit: multilimit.control.override("index", rule="ip-60s", rules=LONG, for_=60),
    "settings: limits": lambda _: MultiLimit(Flask("x"), limits={"index": LONG}).init_app,
    "settings: deny": lambda _: MultiLimit(Flask("x"), deny=[f"user:{LONG}"]),
    "settings: allow": lambda _: MultiLimit(Flask("x"), allow=[LONG]),
    "bridge: a limit": lambda _: Limiter(lambda: "", app=Flask("x")).limit(LONG),
    "bridge: a default limit": lambda _: Limiter(lambda: "", app=Flask("x"), default_limits=[LONG]),
}


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def app(storage: MemoryStorage) -> Flask:
    app = Flask("shop")
    app.config.update(SECRET_KEY="key", MULTILIMIT_UNKNOWN_NAMES="warn")
    multilimit = MultiLimit(app, storage=storage, user_loader=lambda: request.headers.get("X-User"))
    app.register_blueprint(Dashboard(multilimit, authorize=lambda: "ann"))
    app.wsgi_app = ProxyFix(app.wsgi_app)  # type: ignore[method-assign]

    @app.get("/")
    @rate_limiter("5/minute", type="ip")
    @rate_limiter("5/minute", type="user")
    @rate_limiter("5/minute", type="header:X-Key", name="key")
    def index() -> str:
        return "ok"

    return app


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


@pytest.mark.parametrize("take", TAKING_TEXT.values(), ids=TAKING_TEXT)
def test_a_long_text_in_code_is_an_error_that_does_not_repeat_it(
    app: Flask, take: Callable[[MultiLimit], object]
) -> None:
    with app.app_context(), pytest.raises(ConfigurationError) as error:
        take(app.extensions["multilimit"])
    assert len(str(error.value)) < SHORT


IN_FILES: dict[str, dict[str, Any]] = {
    "limits": {"limits": {"index": LONG}},
    "exempt": {"exempt": [LONG]},
    "deny": {"deny": [f"user:{LONG}"]},
    "allow": {"allow": [LONG]},
    "an unknown key": {LONG: 1},
    "message": {"default_limits": {"rules": "5/minute", "message": LONG}},
    "scope": {"default_limits": {"rules": "5/minute", "scope": LONG}},
    "type": {"default_limits": {"rules": "5/minute", "type": LONG}},
    "name": {"default_limits": {"rules": "5/minute", "name": LONG}},
    "methods": {"default_limits": {"rules": "5/minute", "methods": [LONG]}},
    "exempt networks": {"default_limits": {"rules": "5/minute", "exempt": [LONG]}},
}


@pytest.mark.parametrize("given", IN_FILES.values(), ids=IN_FILES)
def test_a_long_text_in_a_file_is_an_error_that_does_not_repeat_it(tmp_path: Path, given: dict[str, Any]) -> None:
    file = tmp_path / "limits.json"
    file.write_text(json.dumps(given))

    with pytest.raises(ConfigurationError) as error:
        read_limits(file)

    assert len(str(error.value)) < SHORT


@pytest.mark.parametrize("name", COMMANDS)
def test_a_long_argument_of_a_command_is_refused(app: Flask, name: str) -> None:
    for arguments in ([LONG], ["--endpoint", LONG], ["--ip", LONG], ["--subject", f"user:{LONG}"]):
        answer = app.test_cli_runner().invoke(args=["multilimit", name, *arguments])
        assert answer.exit_code == 2
        assert len(answer.output) < SHORT


PAGES = ("", "limits", "change", "subject", "lists", "history", "what-if", "api/now", "api/limits", "api/subject")
FIELDS = ("q", "endpoint", "who", "lang", "sort", "minutes", "page", "done", "undone", "rules", "for", "type", "value")


@pytest.mark.parametrize("page", PAGES)
def test_a_long_query_of_a_page_is_refused(client: FlaskClient, page: str) -> None:
    answers = [client.get(f"/multilimit/{page}", query_string={name: LONG}) for name in FIELDS]
    assert {answer.status_code for answer in answers} == {414}
    assert max(len(answer.data) for answer in answers) < SHORT


@pytest.mark.parametrize("page", PAGES)
def test_long_header_fields_and_cookies_of_a_page_are_ignored(client: FlaskClient, page: str) -> None:
    names = ("multilimit_language", "multilimit_form", "multilimit_browser")
    cookies = "; ".join(f"{name}={LONG.replace(' ', '')}" for name in names)
    fields = dict.fromkeys(("Accept", "Accept-Language", "X-Forwarded-For", "User-Agent", "X-User", "Referer"), LONG)

    answer = client.get(f"/multilimit/{page}", headers={**fields, "Cookie": cookies})

    assert answer.status_code < 500
    assert len(answer.data) + sum(len(value) for _, value in answer.headers) < 5 * SHORT


@pytest.mark.parametrize("page", ["change", "undo", "reset", "unban", "what-if"])
def test_a_long_field_of_a_form_is_refused(client: FlaskClient, page: str) -> None:
    for name in ("token", "id", "who", "endpoint", "reason", "rules", "for", "window", "count"):
        boundary, body = encode_multipart({name: LONG, "log": (io.BytesIO(LONG.encode()), "access.log")})
        answer = client.post(f"/multilimit/{page}", data=body, content_type=f"multipart/form-data; boundary={boundary}")

        assert 400 <= answer.status_code < 500
        assert len(answer.data) < SHORT


def test_a_long_name_in_an_uploaded_log_makes_no_long_page(client: FlaskClient) -> None:
    token = client.get("/multilimit/what-if").text.partition('name="token" value="')[2].partition('"')[0]
    lines = f'{LONG[:60_000].replace(" ", ":")} - - [30/Nov/2026:00:00:00 +0000] "GET / HTTP/1.1" 200 5\n' * 2

    answer = client.post(
        "/multilimit/what-if", data={"token": token, "log": (io.BytesIO(lines.encode()), "access.log")}
    )

    assert 'class="peaks"' in answer.text
    assert len(answer.data) < SHORT


@pytest.mark.parametrize("name", ["X-Forwarded-For", "X-User", "X-Key", "Accept", "Accept-Language", "Cookie", "Range"])
def test_a_long_header_field_of_a_request_makes_no_long_key(
    client: FlaskClient, storage: MemoryStorage, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    answers = [client.get("/", headers={name: LONG.strip()}).status_code for _ in range(6)]
    assert answers == [200] * 5 + [429]
    assert max(len(stored.key) for stored in storage.keys("rate_limit:", None)) <= 200
    assert all(len(record.getMessage()) < SHORT for record in caplog.records)


def test_a_long_subject_makes_no_long_log_line(caplog: pytest.LogCaptureFixture) -> None:
    app = Flask("shop")
    app.config["MULTILIMIT_LOG"] = "subjects"
    multilimit = MultiLimit(app, user_loader=lambda: request.headers["X-User"])
    banning = rate_limiter(type=USER, rules="1/minute", ban=Ban(after=1, within=60, time=60))
    app.add_url_rule("/", "index", banning(lambda: "ok"))
    caplog.set_level("INFO")

    for _ in range(3):
        app.test_client().get("/", headers={"X-User": LONG})
    multilimit.close()

    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "a1 a1" in line]) == 2, "the ban, and who was refused most"
    assert max(map(len, lines)) < 500
