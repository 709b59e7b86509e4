"""Who is allowed is not limited; who is denied is refused before any limit is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from flask import Flask, g, request
from werkzeug.test import create_environ

from flask_multilimit import (
    IP,
    USER,
    AccessDenied,
    ConfigurationError,
    Decision,
    MultiLimit,
    rate_limiter,
)
from flask_multilimit.engine import hits_for
from flask_multilimit.signals import request_denied
from support.asking import ask, view

if TYPE_CHECKING:
    from support.doubles import RecordingStorage


def by(app: Flask, address: str | None, path: str = "/", **options: Any) -> int:
    return ask(app, path, environ_base={"REMOTE_ADDR": address}, **options).status_code


@pytest.mark.parametrize("place", ["settings", "constructor"])
def test_lists_may_stand_in_two_places(app: Flask, storage: RecordingStorage, place: str) -> None:
    lists: dict[str, Any] = {"allow": ["10.0.0.0/8"], "deny": ["203.0.113.0/24"]}
    if place == "settings":
        app.config.update(MULTILIMIT_ALLOW=lists["allow"], MULTILIMIT_DENY=lists["deny"])
        lists = {}
    MultiLimit(app, storage=storage, default_limits="1/minute", **lists)
    app.add_url_rule("/", "show", view())

    assert [by(app, "10.1.2.3") for _ in range(3)] == [200, 200, 200]
    assert [by(app, "203.0.113.9"), by(app, "::ffff:203.0.113.9")] == [403, 403]
    assert storage.checks == []
    assert [by(app, "198.51.100.1") for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("decorated", [True, False])
class TestUsers:
    @pytest.fixture
    def app(self, storage: RecordingStorage, decorated: bool) -> Flask:
        app = Flask("shop")
        limited = {"rules": "1/minute", "type": USER}
        MultiLimit(
            app,
            storage=storage,
            user_loader=lambda: g.get("user"),
            default_limits=None if decorated else [limited],
            allow=["user:boss"],
            deny=["user:mallory", "203.0.113.0/24"],
        )

        def load() -> None:
            g.user = request.headers.get("X-User")

        # As apps do that log people in: before the limits of a view, but behind our own hook when that is needed.
        app.before_request_funcs.setdefault(None, []).insert(0, load)
        app.add_url_rule("/", "show", rate_limiter(type=USER, rules="1/minute")(view()) if decorated else view())
        return app

    def test_are_allowed_and_denied(self, app: Flask) -> None:
        asked = {
            user: [by(app, "::1", headers={"X-User": user}) for _ in range(2)] for user in ("boss", "mallory", "you")
        }

        assert asked == {"boss": [200, 200], "mallory": [403, 403], "you": [200, 429]}

    def test_an_allowed_user_passes_from_a_denied_address(self, app: Flask) -> None:
        asked = [by(app, "203.0.113.9", headers={"X-User": user}) for user in ("boss", "you")]

        assert asked == [200, 403]


@pytest.mark.parametrize("early", ["a check", "a function"])
def test_lists_find_a_user_who_is_known_only_after_another_limit_was_checked(
    app: Flask, storage: RecordingStorage, early: str
) -> None:
    multilimit = MultiLimit(
        app, storage=storage, user_loader=lambda: g.get("user"), allow=["user:boss"], deny=["user:mallory"]
    )
    limited = rate_limiter(type=IP, rules="9/minute")(view())

    def load() -> None:
        if early == "a check":
            multilimit.check("9/minute", scope="early", type=IP)
        else:
            limited()
        g.user = request.headers.get("X-User")

    app.before_request(load)
    app.add_url_rule("/", "show", rate_limiter(type=USER, rules="1/minute")(view()))

    assert ask(app, headers={"X-User": "mallory"}).status_code == 403
    assert [ask(app, headers={"X-User": "boss"}).status_code for _ in range(3)] == [200, 200, 200]


@pytest.mark.parametrize("inner", ["a check", "a function"])
@pytest.mark.parametrize("limited", [True, False], ids=["limited view", "free view"])
def test_lists_find_a_user_by_what_is_limited_itself(
    app: Flask, storage: RecordingStorage, inner: str, limited: bool
) -> None:
    lookup = rate_limiter(type=IP, rules="20/minute", scope="lookup")(view())
    calls = []

    def load() -> str | None:
        calls.append(inner)
        if inner == "a check":
            multilimit.check("20/minute", scope="lookup", type=IP)
        else:
            lookup()
        return request.headers.get("X-User")

    multilimit = MultiLimit(app, storage=storage, user_loader=load, allow=["user:boss"], deny=["user:mallory"])
    app.add_url_rule("/", "show", rate_limiter(type=USER, rules="1/minute")(view()) if limited else view())

    assert ask(app, headers={"X-User": "ann"}).status_code == 200
    assert ask(app, headers={"X-User": "mallory"}).status_code == 403
    assert [ask(app, headers={"X-User": "boss"}).status_code for _ in range(2)] == [200, 200]
    assert len(calls) < 20


@pytest.mark.parametrize("lists", [{}, {"deny": ["203.0.113.9"]}], ids=["the first entry", "another entry"])
def test_a_ban_ends_a_websocket_that_checks_its_messages(app: Flask, lists: dict[str, Any]) -> None:
    multilimit = MultiLimit(app, user_loader=lambda: request.headers.get("X-User"), **lists)

    def chat() -> str:
        for _ in range(3):
            multilimit.check("9/minute", scope="messages", type=USER)
        multilimit.control.ban("user:mallory", for_=60)
        multilimit.check("9/minute", scope="messages", type=USER)
        return "chatted on"

    app.add_url_rule("/", "chat", rate_limiter(type=IP, rules="9/minute")(chat))

    assert ask(app, headers={"X-User": "mallory"}).status_code == 429


def test_a_type_of_ones_own_is_listed_by_its_name(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage, deny=["tenant:acme"], allow=["tenant:ours"])
    by_tenant = rate_limiter(type=lambda: request.headers["X-Tenant"], name="tenant", rules="1/minute")
    app.add_url_rule("/", "show", by_tenant(view()))

    tenants = ("acme", "ours", "x")
    asked = {tenant: [by(app, "::1", headers={"X-Tenant": tenant}) for _ in range(2)] for tenant in tenants}

    assert asked == {"acme": [403, 403], "ours": [200, 200], "x": [200, 429]}


@pytest.mark.parametrize("path", ["/", "/nowhere", "/static/nothing.css"])
def test_denied_is_everything(app: Flask, path: str) -> None:
    MultiLimit(app, deny=["203.0.113.7"], unmatched_limits="1/hour")
    app.add_url_rule("/", "show", view())

    assert by(app, "203.0.113.7", path) == 403


def test_a_denied_address_is_refused_before_the_app_does_anything(app: Flask) -> None:
    MultiLimit(app, deny=["203.0.113.7"])
    app.add_url_rule("/", "show", view())
    loaded: list[str] = []
    app.before_request(lambda: loaded.append(str(request.remote_addr)))

    assert [by(app, "203.0.113.7"), by(app, "203.0.113.8")] == [403, 200]
    assert loaded == ["203.0.113.8"]


def test_disabled_nothing_is_denied(app: Flask) -> None:
    app.config["MULTILIMIT_ENABLED"] = False
    MultiLimit(app, deny=["203.0.113.7"])
    app.add_url_rule("/", "show", view())

    assert by(app, "203.0.113.7") == 200


@pytest.mark.parametrize("address", ["203.0.113.7:50001", "[203.0.113.7]:1", "[2001:db8::1]:443", "[2001:db8::1]"])
def test_a_port_is_no_part_of_an_address(app: Flask, address: str) -> None:
    MultiLimit(app, deny=["203.0.113.0/24", "2001:db8::/32"])
    app.add_url_rule("/", "show", view())

    assert by(app, address) == 403


@pytest.mark.parametrize("address", [None, "", "unix:", "\0", "1.2.3", "[]:1", "[[::1]]", "203.0.113.7:"])
def test_a_client_without_an_address_is_on_no_list(app: Flask, address: str | None) -> None:
    MultiLimit(app, deny=["0.0.0.0/0", "::/0"])
    app.add_url_rule("/", "show", view())

    assert by(app, address) == 200


def test_a_check_in_the_view_of_who_is_allowed_charges_nothing(app: Flask, storage: RecordingStorage) -> None:
    multilimit = MultiLimit(app, storage=storage, allow=["10.0.0.1"])

    def send() -> str:
        decision = multilimit.check("1/minute", scope="mail", cost=lambda: 2)
        return str(decision.allowed)

    app.add_url_rule("/", "send", send)

    answers = [ask(app, environ_base={"REMOTE_ADDR": "10.0.0.1"}).text for _ in range(3)]

    assert (answers, storage.checks) == (["True"] * 3, [])


CHECKS: dict[str, Callable[[MultiLimit], Decision]] = {
    "check": lambda multilimit: multilimit.check("1/minute", scope="mail", type=IP),
    "check_hits": lambda multilimit: multilimit.check_hits(
        hits_for("1/minute", scope="mail", type="ip", subject="x"), scope="mail", subjects={}
    ),
}


@pytest.mark.parametrize("kind", CHECKS)
def test_lists_are_asked_in_a_request_that_flask_has_not_preprocessed(
    app: Flask, storage: RecordingStorage, kind: str
) -> None:
    multilimit = MultiLimit(app, storage=storage, allow=["10.0.0.1"], deny=["203.0.113.7"])

    def decision_for(address: str) -> Decision:
        with app.request_context({**create_environ(), "REMOTE_ADDR": address}):
            return CHECKS[kind](multilimit)

    with pytest.raises(AccessDenied):
        decision_for("203.0.113.7")
    assert [decision_for("10.0.0.1").allowed for _ in range(3)] == [True] * 3
    assert storage.checks == []


class TestRefusals:
    @pytest.fixture
    def app(self) -> Flask:
        app = Flask("shop")
        app.config["MULTILIMIT_DENY"] = ["203.0.113.7"]
        app.add_url_rule("/", "show", view())
        return app

    @pytest.mark.parametrize(("status", "name"), [(403, "Forbidden"), (429, "Too Many Requests")])
    def test_are_403_or_429_if_asked_for(self, app: Flask, status: int, name: str) -> None:
        app.config["MULTILIMIT_DENY_STATUS"] = status
        MultiLimit(app)

        answer = ask(app, environ_base={"REMOTE_ADDR": "203.0.113.7"})

        assert answer.status_code == status
        assert answer.content_type == "application/problem+json"
        assert answer.get_json(force=True) == {
            "type": "about:blank",
            "title": name,
            "status": status,
            "detail": "Access denied.",
        }

    @pytest.mark.parametrize(
        ("accept", "start"), [("text/html", "<!doctype html>"), ("text/plain", "Access denied."), ("*/*", "{")]
    )
    def test_are_negotiated(self, app: Flask, accept: str, start: str) -> None:
        MultiLimit(app)

        answer = ask(app, environ_base={"REMOTE_ADDR": "203.0.113.7"}, headers={"Accept": accept})

        assert answer.text.startswith(start)

    @pytest.mark.parametrize(("status", "handled"), [(403, AccessDenied), (429, AccessDenied), (403, 403), (429, 429)])
    def test_reach_error_handlers(self, app: Flask, status: int, handled: Any) -> None:
        app.config["MULTILIMIT_DENY_STATUS"] = status
        MultiLimit(app)
        app.register_error_handler(handled, lambda error: (str(error.listed.who), 451))

        answer = ask(app, environ_base={"REMOTE_ADDR": "203.0.113.7"})

        assert (answer.status_code, answer.text) == (451, "203.0.113.7")

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [(("blocked", 403), "no-store"), (("blocked", 200, {"Cache-Control": "private"}), "private")],
    )
    def test_are_kept_by_no_cache_for_others_unless_an_error_handler_says_so(
        self, app: Flask, answer: tuple[Any, ...], expected: str
    ) -> None:
        MultiLimit(app)
        app.register_error_handler(403, lambda _: answer)

        assert "Cache-Control" not in ask(app).headers
        denied = ask(app, environ_base={"REMOTE_ADDR": "203.0.113.7"})
        assert denied.headers.getlist("Cache-Control") == [expected]

    def test_are_signalled(self, app: Flask) -> None:
        MultiLimit(app)
        told: list[tuple[str, str]] = []
        with request_denied.connected_to(lambda _, listed, endpoint: told.append((listed.where, endpoint)), app):
            by(app, "203.0.113.7")

        assert told == [("MULTILIMIT_DENY", "show")]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"MULTILIMIT_DENY": ["203.0.113"]}, "MULTILIMIT_DENY: '203.0.113': give a network"),
        ({"MULTILIMIT_ALLOW": "10.0.0.0/8"}, "MULTILIMIT_ALLOW='10.0.0.0/8': give a list"),
        ({"MULTILIMIT_DENY_STATUS": 404}, "MULTILIMIT_DENY_STATUS=404"),
    ],
)
def test_a_wrong_list_is_an_error_that_names_it(app: Flask, given: dict[str, Any], message: str) -> None:
    app.config.update(given)

    with pytest.raises(ConfigurationError, match=message):
        MultiLimit(app)
