"""`exhaust`, `reset` and `enabled` of the test kit."""

from collections.abc import Callable

import pytest
from flask import Flask
from flask.testing import FlaskClient

from flask_multilimit import Ban, ConfigurationError, LimitType, rate_limiter
from flask_multilimit.declare.subjects import Named
from flask_multilimit.testing import enabled, exhaust, reset
from testing.conftest import make_app


def test_exhaust_refuses_the_next_request_without_calling_the_view(app: Flask, client: FlaskClient) -> None:
    refusal = exhaust(client, "by_ip")

    assert client.get("/ip").status_code == 429
    assert app.extensions["calls"] == []
    assert not refusal.allowed
    assert [status.name for status in refusal.violated] == ["ip-60s"]
    assert [status.remaining for status in refusal.statuses] == [0, 2]
    assert 0 < refusal.retry_after <= 60


def test_exhaust_of_a_limiter_with_a_ban_begins_no_ban(app: Flask) -> None:
    app.add_url_rule(
        "/ban", "banning", rate_limiter(type=LimitType.IP, rules="3/minute", ban=Ban(after=1))(lambda: "ok")
    )

    refusal = exhaust(app, "banning", "ip:127.0.0.1")

    assert not refusal.allowed
    assert refusal.retry_after <= 60
    response = app.test_client().get("/ban")
    assert (response.status_code, response.headers["Retry-After"]) == (429, "3600")
    reset(app, "banning", "ip:127.0.0.1")
    assert app.test_client().get("/ban").status_code == 200


@pytest.mark.parametrize(
    ("shadow", "refused_by"), [(None, "ip-at-once"), (False, "soon-60s"), (True, "ip-at-once")], ids=str
)
def test_exhaust_uses_up_slots_only_where_nothing_else_refuses(
    app: Flask, shadow: bool | None, refused_by: str
) -> None:
    limited = rate_limiter(type=LimitType.IP, rules="2 at once")(lambda: "ok")
    if shadow is not None:
        limited = rate_limiter(type=LimitType.IP, rules="5/minute", name="soon", shadow=shadow)(limited)
    app.add_url_rule("/slow", "slow", limited)

    refusal = exhaust(app, "slow", "ip:127.0.0.1")

    assert [status.name for status in refusal.violated] == [refused_by]
    assert app.test_client().get("/slow").status_code == 429


def test_exhaust_leaves_other_addresses_alone(app: Flask, client: FlaskClient) -> None:
    exhaust(app, "by_ip", "ip:203.0.113.7")
    assert client.get("/ip").status_code == 200
    assert client.get("/ip", environ_base={"REMOTE_ADDR": "203.0.113.7"}).status_code == 429


def test_exhaust_uses_the_address_of_the_test_client(app: Flask) -> None:
    client = app.test_client()
    client.environ_base["REMOTE_ADDR"] = "2001:db8::7"

    exhaust(client, "by_ip")

    assert client.get("/ip").status_code == 429
    assert app.test_client().get("/ip").status_code == 200


@pytest.mark.parametrize(
    ("endpoint", "subject", "refused", "passes"),
    [
        ("/user", "user:ann", {"X-User": "ann"}, {"X-User": "bob"}),
        ("/user", "everyone", {"X-User": "ann"}, None),
        ("/key", "api_key:abc", {"X-Key": "abc"}, {"X-Key": "xyz"}),
        ("/pair", ["user:ann", "ip:127.0.0.1"], {"X-User": "ann"}, {"X-User": "bob"}),
    ],
    ids=["user", "everyone", "custom type", "combined types"],
)
def test_exhaust_uses_up_only_the_quota_of_the_given_subject(
    client: FlaskClient, endpoint: str, subject: Named, refused: dict[str, str], passes: dict[str, str] | None
) -> None:
    exhaust(client, {"/user": "by_user", "/key": "by_key", "/pair": "pair"}[endpoint], subject)
    method = "POST" if endpoint == "/user" else "GET"
    assert client.open(endpoint, method=method, headers=refused).status_code == 429
    assert passes is None or client.open(endpoint, method=method, headers=passes).status_code == 200


def test_exhaust_without_a_subject_includes_the_anonymous_user(client: FlaskClient) -> None:
    refusal = exhaust(client, "by_user")
    assert [status.name for status in refusal.violated] == ["user-86400s"]
    assert client.post("/user").status_code == 429
    assert client.post("/user", headers={"X-User": "ann"}).status_code == 200


@pytest.mark.parametrize("endpoint", ["bucket", "cost"])
def test_exhaust_works_with_token_bucket_and_cost(client: FlaskClient, endpoint: str) -> None:
    exhaust(client, endpoint)
    assert client.get(f"/{endpoint}").status_code == 429


def test_exhaust_of_a_shadow_refuses_no_request(client: FlaskClient) -> None:
    refusal = exhaust(client, "shadow")
    assert not refusal.allowed
    assert client.get("/shadow").status_code == 200


def test_reset_of_an_app_restores_all_quotas(app: Flask, client: FlaskClient) -> None:
    exhaust(client, "by_ip")
    exhaust(client, "bucket")

    reset(app)

    assert client.get("/ip").status_code == 200
    assert client.get("/bucket").status_code == 200


def test_reset_of_a_subject_leaves_other_subjects(client: FlaskClient) -> None:
    exhaust(client, "by_user", "user:ann")
    exhaust(client, "by_user", "user:bob")

    reset(client, "by_user", "user:ann")

    assert client.post("/user", headers={"X-User": "ann"}).status_code == 200
    assert client.post("/user", headers={"X-User": "bob"}).status_code == 429


def test_reset_during_an_override_clears_the_declared_quota(app: Flask, client: FlaskClient) -> None:
    exhaust(client, "by_ip")
    with app.app_context():
        control = app.extensions["multilimit"].control
        entry = control.override("by_ip", off=True, for_="1h")

        reset(client, "by_ip")

        control.undo(entry.id)
    assert client.get("/ip").status_code == 200


def test_enabled_switches_limits_on_and_off_in_a_block() -> None:
    app = make_app(MULTILIMIT_ENABLED=False)
    client = app.test_client()

    assert {client.get("/ip").status_code for _ in range(10)} == {200}
    with enabled(app):
        assert {client.get("/ip").status_code for _ in range(10)} == {200, 429}
        with enabled(app, False):
            assert client.get("/ip").status_code == 200
    assert client.get("/ip").status_code == 200


@pytest.mark.parametrize(
    ("endpoint", "subject", "message"),
    [
        ("by_pi", None, 'no endpoint is called "by_pi"; did you mean "by_ip"?'),
        ("without_limits", None, 'exhaust: no limit applies to "without_limits"'),
        (
            "by_user",
            "ip:203.0.113.7",
            'no limit at "by_user" counts ip; it is limited by user ("user:..."), default ("everyone")',
        ),
        ("by_key", None, 'it is limited by api_key ("api_key:...")'),
        ("huge", None, 'more than 1000000 units are left at "huge"'),
    ],
)
def test_exhaust_of_an_unsuitable_endpoint_is_an_error(endpoint: str, subject: str | None, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        exhaust(make_app(), endpoint, subject)
    assert message in str(caught.value)


@pytest.mark.parametrize("act", [exhaust, reset])
def test_error_about_a_method_without_limits_names_the_method(act: Callable[..., object]) -> None:
    app = make_app()
    limited = rate_limiter(rules="5/minute", methods=["POST"])(lambda: "ok")
    app.add_url_rule("/form", "form", limited, methods=["GET", "POST"])
    with pytest.raises(ConfigurationError, match=rf'^{act.__name__}: no limit applies to "form" \(GET\); '):
        act(app, "form", method="get")


@pytest.mark.parametrize(("entry", "subject"), [("127.0.0.0/8", None), ("user:ann", "user:ann")])
def test_exhaust_is_an_error_for_a_client_that_is_allowed(entry: str, subject: str | None) -> None:
    app = make_app(MULTILIMIT_ALLOW=[entry])
    with pytest.raises(ConfigurationError, match=f"exhaust: MULTILIMIT_ALLOW allows {entry}, so the next request"):
        exhaust(app, "by_user", subject)
    exhaust(app, "by_user", "user:bob")


def test_exhaust_is_an_error_when_limits_are_disabled() -> None:
    with pytest.raises(ConfigurationError, match=r"limits are switched off \(MULTILIMIT_ENABLED=False\)"):
        exhaust(make_app(MULTILIMIT_ENABLED=False), "by_ip")


def test_reset_of_a_subject_without_an_endpoint_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="name the endpoint too"):
        reset(make_app(), subject="ip:203.0.113.7")
