"""`reset` of a subject at every endpoint, and of all quotas of the app."""

from typing import Any

import pytest
from flask import Flask, request

from flask_multilimit import IP, USER, ConfigurationError, MultiLimit, rate_limiter
from flask_multilimit.engine.keys import escape_subject
from support.asking import ask

LONG = "a user whose name is so long that a key has only a digest of it " * 2


@pytest.fixture
def app(any_uri: str) -> Flask:
    app = Flask("shop")
    app.config["MULTILIMIT_STORAGE_URI"] = any_uri
    app.config.update(MULTILIMIT_DENY_CACHE=0, MULTILIMIT_STORAGE_TIMEOUT=10)
    multilimit = MultiLimit(app, user_loader=_user)

    @app.get("/one")
    @rate_limiter(type=IP, rules="1/minute")
    def one() -> str:
        return mail()

    @app.get("/two")
    @rate_limiter(type=(USER, IP), rules="1/minute")
    @rate_limiter(type=USER, rules="1/minute", hash_tag="scope")
    def two() -> str:
        return "two"

    @rate_limiter(type=IP, rules="5/minute")
    def mail() -> str:
        multilimit.check("9/minute", scope="here", subject=f"ip:{request_address()}")
        return "sent"

    return app


def _user() -> str | None:
    return request.headers.get("X-User")


def request_address() -> str:
    return str(request.remote_addr)


def statuses(app: Flask, user: str = "42", ip: str = "203.0.113.7") -> list[int]:
    address, headers = {"REMOTE_ADDR": ip}, {"X-User": user}
    return [ask(app, path, environ_base=address, headers=headers).status_code for path in ("/one", "/two")]


def multilimit_of(app: Flask) -> MultiLimit:
    found: MultiLimit = app.extensions["multilimit"]
    return found


@pytest.mark.parametrize("user", ["42", "an: odd {user}", LONG])
@pytest.mark.parametrize("ip", ["203.0.113.7", "2001:db8::7"])
def test_reset_everywhere_restores_all_quotas_of_a_subject(app: Flask, user: str, ip: str) -> None:
    with app.app_context():
        multilimit_of(app).reset(reach="everything")
    assert statuses(app, user, ip) == [200, 200]
    assert statuses(app, user, ip) == [429, 429]
    statuses(app, "other", "192.0.2.1")

    with app.app_context():
        assert multilimit_of(app).reset(subject=f"ip:{ip}", reach="everywhere") == 3
        assert statuses(app, user, ip) == [200, 429]
        multilimit_of(app).reset(subject=[f"ip:{ip}", f"user:{user}"], reach="everywhere")

    assert statuses(app, user, ip) == [200, 200]
    assert statuses(app, "other", "192.0.2.1") == [429, 429]


def test_reset_everywhere_of_a_part_that_looks_like_another_subject_leaves_that_alone(app: Flask) -> None:
    parts = (IP, lambda: request.headers["X-User"])
    app.add_url_rule("/login", "login", rate_limiter(type=parts, name="login", rules="1/minute")(lambda: "in"))

    def log_in(user: str, ip: str) -> int:
        return ask(app, "/login", environ_base={"REMOTE_ADDR": ip}, headers={"X-User": user}).status_code

    odd = '[["ip", "203.0.113.7"], ["login", "ada"]]'
    assert [log_in("ada", "203.0.113.7"), log_in(odd, "192.0.2.1")] == [200, 200]

    with app.app_context():
        multilimit_of(app).reset(subject=["ip:192.0.2.1", f"login:{odd}"], reach="everywhere")

    assert [log_in("ada", "203.0.113.7"), log_in(odd, "192.0.2.1")] == [429, 200]


def test_reset_everywhere_of_a_user_who_chose_the_digest_of_another_leaves_that_alone(app: Flask) -> None:
    assert statuses(app, LONG) == [200, 200]
    digest = escape_subject(LONG)

    with app.app_context():
        multilimit_of(app).reset(subject=f"user:{digest}", reach="everywhere")

    assert statuses(app, LONG, "192.0.2.1") == [200, 429]


def test_reset_everything_restores_all_quotas(app: Flask) -> None:
    statuses(app)
    with app.app_context():
        assert multilimit_of(app).reset(reach="everything") >= 5
        assert multilimit_of(app).reset(reach="everything") == 0

    assert statuses(app) == [200, 200]


def test_reset_everywhere_without_a_subject_is_an_error(app: Flask) -> None:
    with app.app_context(), pytest.raises(ConfigurationError, match="say whose quotas"):
        multilimit_of(app).reset(reach="everywhere")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"reach": "world"}, "reach='world': give one of 'endpoint', 'everywhere', 'everything'"),
        ({"reach": "everywhere", "endpoint": "one", "subject": "user:42"}, "leave endpoint and method out"),
        ({"reach": "everything", "method": "GET"}, "leave endpoint and method out"),
        ({"reach": "everything", "subject": "user:42"}, "for one of them, give 'everywhere'"),
    ],
    ids=str,
)
def test_reset_with_contradictory_arguments_is_an_error_and_resets_nothing(
    app: Flask, given: dict[str, Any], message: str
) -> None:
    statuses(app)
    with app.app_context(), pytest.raises(ConfigurationError, match=message):
        multilimit_of(app).reset(**given)
    assert statuses(app) == [429, 429]
