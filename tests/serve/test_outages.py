"""Storage that fails, storage that several processes do not share, and disabled limits."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from flask_multilimit import (
    LimitType,
    MultiLimit,
    RateLimitExceeded,
    StorageUnavailable,
    current_decision,
    rate_limiter,
)
from flask_multilimit.engine import Health, RedisStorage, StorageError
from flask_multilimit.engine.storage.layers import outage
from flask_multilimit.engine.storage.layers.health import Workers
from flask_multilimit.serve import startup
from flask_multilimit.serve.gate import gate_of
from flask_multilimit.signals import limits_checked, storage_failed, storage_recovered
from support.asking import ask, heard, made_public
from support.doubles import RecordingStorage, limited_service, raising
from support.waiting import PATIENCE

FAILED = "Rate limiting failed on the server. Please try again later."
PROBLEM = (
    '{"type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity", '
    f'"title": "Temporary Reduced Capacity", "status": 503, "detail": "{FAILED}", "violated-policies": []}}\n'
)


@pytest.fixture
def limited_app(app: Flask, storage: RecordingStorage) -> Flask:
    """An app that answers 503 when storage fails."""
    app.config["MULTILIMIT_ON_STORAGE_ERROR"] = "deny"
    MultiLimit(app, storage=storage)
    return app


@pytest.fixture
def limited(limited_app: Flask, client: FlaskClient) -> FlaskClient:
    limited_app.add_url_rule("/", "view", rate_limiter(type=LimitType.IP)(lambda: "ok"))
    limited_app.add_url_rule("/free", "free", lambda: "free")
    return client


@pytest.mark.parametrize("used", [0, 2])
def test_503_after_another_check_of_the_request_is_not_cached_and_has_a_wait_of_its_own(
    limited_app: Flask, storage: RecordingStorage, used: int
) -> None:
    multilimit = limited_app.extensions["multilimit"]

    def preview() -> None:
        with suppress(RateLimitExceeded), multilimit.limit("2/hour", scope="preview"):
            pass

    def show() -> str:
        preview()
        storage.broken = True
        with multilimit.limit("9/minute", scope="show"):
            return "shown"

    limited_app.add_url_rule("/", "show", show)
    limited_app.after_request(made_public)
    with limited_app.app_context():
        for _ in range(used):
            preview()

    answer = ask(limited_app)

    assert answer.status_code == 503
    assert answer.headers.getlist("Cache-Control") == ["no-store"]
    assert int(answer.headers["Retry-After"]) < 60


class TestFailingStorage:
    @pytest.fixture(autouse=True)
    def _broken(self, storage: RecordingStorage) -> None:
        storage.broken = True

    @pytest.mark.parametrize(
        ("accept", "content_type", "body"),
        [
            ("*/*", "application/problem+json", PROBLEM),
            ("application/json", "application/problem+json", PROBLEM),
            ("text/plain", "text/plain; charset=utf-8", f"{FAILED}\n"),
            ("text/html", "text/html; charset=utf-8", f"<h1>Service Unavailable</h1>\n<p>{FAILED}</p>\n"),
        ],
    )
    def test_503_body_is_negotiated(self, limited: FlaskClient, accept: str, content_type: str, body: str) -> None:
        response = limited.get("/", headers={"Accept": accept})

        assert (response.status_code, response.headers["Content-Type"]) == (503, content_type)
        assert response.text.endswith(body)
        assert "broken" not in response.text
        assert "RateLimit" not in response.headers
        assert response.headers["Vary"] == "Accept, Accept-Language"
        assert response.headers["Retry-After"] == "1"

    def test_503_body_is_in_the_language_of_the_client(self, limited: FlaskClient) -> None:
        problem = limited.get("/", headers={"Accept-Language": "zh"}).get_json()
        assert problem["detail"] == "服务器限流异常,请稍候再试"

    @pytest.mark.parametrize("registered", [503, StorageUnavailable, StorageError])
    def test_failure_reaches_error_handlers(
        self, limited_app: Flask, limited: FlaskClient, registered: int | type[Exception]
    ) -> None:
        limited_app.register_error_handler(registered, lambda error: (str(error.__cause__), 503))
        assert "it is broken" in limited.get("/").text

    def test_failure_is_raised_by_a_function_outside_a_request(self, limited_app: Flask) -> None:
        service = limited_service()

        with (
            limited_app.app_context(),
            pytest.raises(StorageError, match="Rate limiting failed on the server") as raised,
        ):
            service()

        assert "it is broken" in str(raised.value.__cause__)

    def test_failure_sends_no_limits_checked_signal(self, limited_app: Flask, limited: FlaskClient) -> None:
        with heard(limited_app, limits_checked) as signals:
            status = limited.get("/").status_code
        assert (status, signals) == (503, [])

    def test_answer_of_an_error_handler_is_not_cached(self, limited_app: Flask, limited: FlaskClient) -> None:
        limited_app.register_error_handler(503, lambda _: ("Please come back later.", 200))
        assert limited.get("/").headers["Cache-Control"] == "no-store"

    def test_503_is_not_cached_although_the_app_makes_every_response_public(
        self, limited_app: Flask, limited: FlaskClient
    ) -> None:
        limited_app.after_request(made_public)
        assert limited.get("/").headers.getlist("Cache-Control") == ["no-store"]
        assert limited.get("/free").headers.getlist("Cache-Control") == ["public, max-age=60"]


class TestDisabledLimits:
    def test_every_request_passes_without_asking_storage(self, app: Flask, storage: RecordingStorage) -> None:
        app.config["MULTILIMIT_ENABLED"] = False
        storage.broken = True
        MultiLimit(app, storage=storage)
        service = limited_service(rules="1/minute")
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute")(lambda: service() + service()))
        client = app.test_client()

        responses = [client.get("/") for _ in range(3)]

        assert [response.text for response in responses] == ["donedone"] * 3
        assert "RateLimit" not in responses[0].headers
        assert (storage.checks, storage.other_calls) == ([], [])


class TestSeveralProcessesWarning:
    def warnings(
        self, app: Flask, caplog: pytest.LogCaptureFixture, *, multiprocess: bool = True, server: str = "gunicorn"
    ) -> list[str]:
        app.add_url_rule("/", "view", rate_limiter()(lambda: "ok"))
        client = app.test_client()
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                client.get("/", environ_overrides={"wsgi.multiprocess": multiprocess, "SERVER_SOFTWARE": server})
        return [record.getMessage() for record in caplog.records]

    def test_processes_without_shared_storage_are_warned_of_once_with_the_remedy(
        self, app: Flask, caplog: pytest.LogCaptureFixture
    ) -> None:
        MultiLimit(app)

        (warning,) = self.warnings(app, caplog)

        assert "MULTILIMIT_STORAGE_URI=memory://" in warning
        assert "each of them counts by itself and admits the full limit" in warning
        assert "redis://localhost:6379/0" in warning

    @pytest.mark.parametrize("count", [1, 2])
    def test_processes_of_granian_which_reports_one_are_counted(
        self, app: Flask, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, count: int
    ) -> None:
        monkeypatch.setattr(startup, "count_workers", lambda: Workers(count, "the test"))
        MultiLimit(app)
        warnings = self.warnings(app, caplog, multiprocess=False, server="Granian")
        assert ["MULTILIMIT_STORAGE_URI=memory://" in each for each in warnings] == [True] * (count - 1)

    @pytest.mark.parametrize("setting", [{}, {"MULTILIMIT_WORKERS": 1}, {"MULTILIMIT_ENABLED": False}])
    def test_single_process_or_disabled_limits_give_no_warning(
        self, app: Flask, caplog: pytest.LogCaptureFixture, setting: dict[str, Any]
    ) -> None:
        """Adapters from ASGI always say that there may be several."""
        app.config.update(setting)
        MultiLimit(app)
        assert self.warnings(app, caplog, multiprocess=bool(setting)) == []

    @pytest.mark.parametrize("certain", [True, False])
    def test_processes_with_shared_storage_are_warned_of_if_their_number_is_unknown(
        self,
        limited_app: Flask,
        caplog: pytest.LogCaptureFixture,
        storage: RecordingStorage,
        monkeypatch: pytest.MonkeyPatch,
        *,
        certain: bool,
    ) -> None:
        workers = Workers(5, "the number of CPUs", certain=certain)
        monkeypatch.setattr(outage, "count_workers", lambda _: workers)
        assert storage.shared
        assert RedisStorage.shared

        warnings = self.warnings(limited_app, caplog)

        assert ["each of them admits 1/5 of every limit" in each for each in warnings] == [True] * (not certain)


@pytest.fixture
def make(storage: RecordingStorage) -> Iterator[Callable[..., Flask]]:
    """An app with two endpoints, the first with `options`, and settings."""
    made: list[Flask] = []

    def make(options: dict[str, Any] | None = None, **settings: object) -> Flask:
        app = Flask("shop")
        app.config.update(
            {"MULTILIMIT_WORKERS": 1}, **{f"MULTILIMIT_{name}": value for name, value in settings.items()}
        )
        MultiLimit(app, storage=storage)
        made.append(app)
        first = rate_limiter(rules="2/minute", **(options or {}))
        app.add_url_rule("/", "view", first(lambda: str(current_decision.decided_by)))
        app.add_url_rule("/other", "other", rate_limiter(rules="2/minute")(lambda: "ok"))
        return app

    yield make
    for app in made:
        gate_of(app).limiter.close()


def test_limits_stay_in_force_in_an_outage_by_default(make: Callable[..., Flask], storage: RecordingStorage) -> None:
    client = make().test_client()
    storage.broken = True

    responses = [client.get("/") for _ in range(3)]

    assert [response.status_code for response in responses] == [200, 200, 429]
    assert [response.text for response in responses[:2]] == ["local", "local"]
    assert responses[0].headers["RateLimit"] == '"default-60s";r=1;t=30'
    assert responses[2].headers["Retry-After"] == "60"


def test_on_storage_error_decides_the_status_in_an_outage(
    make: Callable[..., Flask], storage: RecordingStorage
) -> None:
    storage.broken = True

    def statuses(setting: str) -> list[int]:
        client = make(ON_STORAGE_ERROR=setting).test_client()
        return [client.get("/").status_code for _ in range(4)]

    assert statuses("local") == [200, 200, 429, 429]
    assert statuses("allow") == [200] * 4
    assert statuses("deny") == [503] * 4
    assert statuses("raise") == [500] * 4


@pytest.mark.parametrize("headers", ["draft-11", "draft-10", "both"])
def test_no_field_says_what_is_left_where_an_outage_lets_everything_pass(
    make: Callable[..., Flask], storage: RecordingStorage, headers: str
) -> None:
    client = make(ON_STORAGE_ERROR="allow", HEADERS=headers).test_client()
    before = client.get("/").headers
    storage.broken = True
    during = client.get("/").headers

    assert "RateLimit-Policy" in before
    assert [name for name, _ in during if "ratelimit" in name.lower()] == []


@pytest.mark.parametrize(("setting", "own"), [("local", "allow"), ("allow", "local")])
def test_fields_show_only_limits_that_this_process_enforces_in_an_outage(
    app: Flask, storage: RecordingStorage, setting: str, own: Any
) -> None:
    app.config["MULTILIMIT_ON_STORAGE_ERROR"] = setting
    MultiLimit(app, storage=storage, application_limits="9/hour")
    storage.broken = True
    app.add_url_rule("/", "view", rate_limiter(rules="5/minute", on_storage_error=own, name="own")(lambda: "ok"))

    shown = ask(app).headers["RateLimit-Policy"]

    assert shown == ('"application-3600s";q=9;w=3600' if setting == "local" else '"own-60s";q=5;w=60')


def test_policy_raise_leaves_the_error_to_the_app(make: Callable[..., Flask], storage: RecordingStorage) -> None:
    app = make(ON_STORAGE_ERROR="raise")
    app.register_error_handler(StorageError, lambda error: (f"{type(error).__name__}: {error}", 418))
    client = app.test_client()
    storage.broken = True

    assert [client.get("/").text for _ in range(2)] == [
        "StorageError: the rate limit storage gave no answer: it is broken"
    ] * 2


def test_limiter_can_have_its_own_policy(make: Callable[..., Flask], storage: RecordingStorage) -> None:
    client = make({"on_storage_error": "deny"}).test_client()
    storage.broken = True
    assert [client.get(path).status_code for path in ("/", "/other")] == [503, 200]


def test_outage_is_logged_and_signalled_once(
    make: Callable[..., Flask], storage: RecordingStorage, caplog: pytest.LogCaptureFixture
) -> None:
    app = make()
    storage.broken = True
    with caplog.at_level(logging.INFO), heard(app, storage_failed) as signals:
        for _ in range(4):
            app.test_client().get("/")

    assert [str(told["health"].error) for _, told in signals] == ["the rate limit storage gave no answer: it is broken"]
    assert [record.name for record in caplog.records] == [app.logger.name]
    assert "storage failed (key rate_limit:{view}): " in caplog.text
    assert "it is broken; meanwhile, unless a limiter says otherwise: this process" in caplog.text


def test_end_of_an_outage_is_signalled_and_charges_are_kept(
    make: Callable[..., Flask], storage: RecordingStorage
) -> None:
    client = make().test_client()
    back = threading.Event()

    def receiver(_: Flask, health: Health) -> None:
        assert (health.state, health.pending, health.given_up) == ("working", 0, 0)
        back.set()

    with storage_recovered.connected_to(receiver):
        storage.broken = True
        client.get("/")
        storage.broken = False
        assert back.wait(PATIENCE)

    response = client.get("/")
    assert (response.text, response.headers["RateLimit"]) == ("memory", '"default-60s";r=0;t=60')


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_503_has_the_wait_of_the_app_or_else_one_in_the_form_that_is_set(
    app: Flask, storage: RecordingStorage, form: str
) -> None:
    app.config.update(MULTILIMIT_ON_STORAGE_ERROR="deny", MULTILIMIT_RETRY_AFTER=form)
    MultiLimit(app, storage=storage, default_limits="9/minute")
    app.add_url_rule("/", "view", lambda: "ok")
    answers: list[Any] = [("mine", 503), ("mine", 503, {"Retry-After": "900"})]
    app.register_error_handler(503, lambda error: answers.pop() if answers else error)
    storage.broken = True

    fields = [ask(app).headers.getlist("Retry-After") for _ in range(3)]

    assert [len(each) for each in fields] == [1, 1, 1]
    assert [each.isdigit() for each, *_ in fields[1:]] == [form == "seconds"] * 2
    assert fields[0] == ["900"]


def test_429_after_a_caught_503_of_the_request_has_a_wait_of_its_own(app: Flask, storage: RecordingStorage) -> None:
    app.config.update(MULTILIMIT_ON_STORAGE_ERROR="deny", MULTILIMIT_WORKERS=1)
    MultiLimit(app, storage=storage)
    denied, decided = limited_service(), limited_service(rules="1/hour", on_storage_error="local")

    @app.get("/")
    def show() -> str:
        with suppress(StorageUnavailable):
            denied()
        return decided()

    storage.broken = True

    assert [ask(app).headers.get("Retry-After") for _ in range(2)] == [None, "3600"]


def test_after_request_function_that_fails_after_a_caught_503_raises(app: Flask, storage: RecordingStorage) -> None:
    app.config.update(MULTILIMIT_ON_STORAGE_ERROR="deny")
    MultiLimit(app, storage=storage)
    app.after_request(raising(LookupError))
    denied = limited_service()

    @app.get("/")
    def show() -> str:
        with suppress(StorageUnavailable):
            denied()
        return "unlimited"

    storage.broken = True

    with pytest.raises(LookupError):
        ask(app)
