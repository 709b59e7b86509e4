"""Allowed clients have no limits; denied clients are refused before any limit is checked."""

import gc
import json
from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest
from flask import Flask, Response, g, request, request_finished
from werkzeug.exceptions import HTTPException
from werkzeug.test import create_environ

from flask_multilimit import (
    IP,
    USER,
    AccessDenied,
    ConfigurationError,
    Decision,
    MultiLimit,
    current_decision,
    rate_limiter,
)
from flask_multilimit.engine import hits_for
from flask_multilimit.serve.slots import current_context
from flask_multilimit.signals import request_denied
from support.asking import ask, made_public, view
from support.changes import control_of
from support.doubles import RecordingStorage


def status_for(app: Flask, address: str | None, path: str = "/", **options: Any) -> int:
    return ask(app, path, environ_base={"REMOTE_ADDR": address}, **options).status_code


def serve(app: Flask, **options: Any) -> MultiLimit:
    """Serve a page without limits of its own at /."""
    app.add_url_rule("/", "show", view())
    return MultiLimit(app, **options)


@pytest.mark.parametrize("place", ["settings", "constructor"])
def test_lists_are_read_from_settings_and_constructor(app: Flask, storage: RecordingStorage, place: str) -> None:
    lists: dict[str, Any] = {"allow": ["10.0.0.0/8"], "deny": ["203.0.113.0/24"]}
    if place == "settings":
        app.config.update(MULTILIMIT_ALLOW=lists["allow"], MULTILIMIT_DENY=lists["deny"])
        lists = {}
    serve(app, storage=storage, default_limits="1/minute", **lists)

    assert [status_for(app, "10.1.2.3") for _ in range(3)] == [200, 200, 200]
    assert [status_for(app, "203.0.113.9"), status_for(app, "::ffff:203.0.113.9")] == [403, 403]
    assert storage.checks == []
    assert [status_for(app, "198.51.100.1") for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("decorated", [True, False])
class TestListedUsers:
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

        # Like an app that logs users in: before the limits of the view, but after the hook of the extension.
        app.before_request_funcs.setdefault(None, []).insert(0, load)
        app.add_url_rule("/", "show", rate_limiter(type=USER, rules="1/minute")(view()) if decorated else view())
        return app

    def test_allowed_user_has_no_limit_and_denied_user_is_refused(self, app: Flask) -> None:
        asked = {
            user: [status_for(app, "::1", headers={"X-User": user}) for _ in range(2)]
            for user in ("boss", "mallory", "you")
        }

        assert asked == {"boss": [200, 200], "mallory": [403, 403], "you": [200, 429]}

    def test_allowed_user_passes_from_a_denied_address(self, app: Flask) -> None:
        asked = [status_for(app, "203.0.113.9", headers={"X-User": user}) for user in ("boss", "you")]
        assert asked == [200, 403]


@pytest.mark.parametrize(("user", "status"), [("boss", 200), ("mallory", 403), ("ann", 200)])
def test_user_is_loaded_once_to_look_for_it_in_both_lists(app: Flask, user: str, status: int) -> None:
    loaded: list[str] = []

    def load() -> str:
        loaded.append(user)
        return user

    serve(app, user_loader=load, allow=["user:boss"], deny=["user:mallory"])

    assert (ask(app).status_code, loaded) == (status, [user])


@pytest.mark.parametrize("early", ["a check", "a function"])
def test_lists_apply_to_a_user_loaded_after_another_check(app: Flask, storage: RecordingStorage, early: str) -> None:
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
def test_lists_apply_to_users_when_the_user_loader_is_limited_itself(
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


@pytest.mark.parametrize("lists", [{}, {"deny": ["203.0.113.9"]}], ids=["first entry", "second entry"])
def test_ban_made_during_a_request_refuses_its_next_check(app: Flask, lists: dict[str, Any]) -> None:
    multilimit = MultiLimit(app, user_loader=lambda: request.headers.get("X-User"), **lists)

    def work() -> str:
        for _ in range(3):
            multilimit.check("9/minute", scope="steps", type=USER)
        multilimit.control.ban("user:mallory", for_=60)
        multilimit.check("9/minute", scope="steps", type=USER)
        return "not refused"

    app.add_url_rule("/", "work", rate_limiter(type=IP, rules="9/minute")(work))

    assert ask(app, headers={"X-User": "mallory"}).status_code == 429


def tenant_of_request() -> str:
    return request.headers["X-Tenant"]


@pytest.mark.parametrize("type_", [tenant_of_request, (tenant_of_request, IP)], ids=["alone", "of several"])
def test_lists_match_subjects_of_a_custom_type_by_its_name(app: Flask, type_: Any) -> None:
    MultiLimit(app, deny=["tenant:acme"], allow=["tenant:ours"])
    by_tenant = rate_limiter(type=type_, name="tenant", rules="1/minute")
    app.add_url_rule("/", "show", by_tenant(view()))

    tenants = ("acme", "ours", "x")
    asked = {tenant: [status_for(app, "::1", headers={"X-Tenant": tenant}) for _ in range(2)] for tenant in tenants}

    assert asked == {"acme": [403, 403], "ours": [200, 200], "x": [200, 429]}


@pytest.mark.parametrize("path", ["/", "/missing"])
def test_list_of_a_type_that_fails_elsewhere_leaves_other_endpoints_alone(app: Flask, path: str) -> None:
    MultiLimit(app, deny=["page:secret"])
    by_page = rate_limiter(type=lambda: request.view_args["name"], name="page", rules="9/minute")  # type: ignore[index]
    app.add_url_rule("/pages/<name>", "page", by_page(view()))
    app.add_url_rule("/", "show", view())

    assert status_for(app, "::1", path) == (404 if path == "/missing" else 200)
    assert status_for(app, "::1", "/pages/secret") == 403


def test_failing_type_with_a_list_fails_where_a_limiter_counts_it(app: Flask) -> None:
    MultiLimit(app, deny=["page:secret"])
    by_page = rate_limiter(type=lambda: request.headers["X-Page"], name="page", rules="9/minute")
    app.add_url_rule("/", "show", by_page(view()))

    with pytest.raises(KeyError):
        status_for(app, "::1")


def test_failing_type_with_a_list_means_nobody_where_only_a_trial_counts_it(app: Flask) -> None:
    MultiLimit(app, deny=["page:secret"])
    by_page = rate_limiter(type=lambda: request.headers["X-Page"], name="page", rules="9/minute", shadow=True)
    app.add_url_rule("/", "show", by_page(view()))

    assert status_for(app, "::1") == 200
    assert status_for(app, "::1", headers={"X-Page": "secret"}) == 403


def test_lists_ask_the_type_of_the_limiter_that_counts_it_at_the_endpoint(app: Flask) -> None:
    MultiLimit(app, deny=["page:secret"])
    for field in ("first", "second"):
        by_page = rate_limiter(type=lambda field=field: request.args.get(field), name="page", rules="9/minute")
        app.add_url_rule(f"/{field}", field, by_page(view()))

    assert [status_for(app, "::1", f"/{field}?{field}=secret") for field in ("first", "second")] == [403, 403]
    assert status_for(app, "::1", "/first?second=secret") == 200


def test_allowed_client_is_counted_once_in_a_request_with_several_checks(app: Flask) -> None:
    outcomes: list[str] = []
    multilimit = MultiLimit(app, allow=["::1"], observers=[lambda event: outcomes.append(event.outcome)])

    @app.before_request
    def check() -> None:
        assert multilimit.check("1/minute", scope="early").allowed

    app.add_url_rule("/", "show", rate_limiter(rules="1/minute")(view()))
    assert status_for(app, "::1") == 200
    assert outcomes == ["allow_listed"]


def test_entry_that_several_parts_of_a_subject_could_mean_is_an_error(app: Flask) -> None:
    MultiLimit(app, allow=["tenant:ours"])
    parts = (lambda: request.headers["X-Tenant"], lambda: request.args["chosen"])
    app.add_url_rule("/", "show", rate_limiter(type=parts, name="tenant", rules="1/minute")(view()))

    with pytest.raises(ConfigurationError, match=r"several parts of a subject are called 'tenant'; give all of them"):
        app.test_client().get("/")


def test_entry_may_name_a_subject_by_all_its_parts(app: Flask) -> None:
    MultiLimit(app, deny=['tenant:[["tenant", "ours"], ["tenant", "a"]]'])
    parts = (lambda: request.headers["X-Tenant"], lambda: request.args["chosen"])
    app.add_url_rule("/", "show", rate_limiter(type=parts, name="tenant", rules="9/minute")(view()))
    headers = {"X-Tenant": "ours"}
    assert [status_for(app, "::1", f"/?chosen={each}", headers=headers) for each in "ab"] == [403, 200]


def test_part_that_looks_like_the_whole_of_another_subject_is_not_listed_with_that(app: Flask) -> None:
    ours = '[["ip", "203.0.113.99"], ["tenant", "ours"]]'
    MultiLimit(app, allow=[f"tenant:{ours}"])
    type_ = (IP, lambda: request.headers["X-Tenant"])
    app.add_url_rule("/", "show", rate_limiter(type=type_, name="tenant", rules="1/minute")(view()))

    assert [status_for(app, "203.0.113.99", headers={"X-Tenant": "ours"}) for _ in range(2)] == [200, 200]
    assert [status_for(app, "198.51.100.7", headers={"X-Tenant": ours}) for _ in range(2)] == [200, 429]


def limit_tenants(app: Flask) -> None:
    by_tenant = rate_limiter(type=lambda: request.headers.get("X-Tenant"), name="tenant", rules="9/minute")
    app.add_url_rule("/", "show", by_tenant(view()))


def test_client_without_a_subject_of_a_listed_type_is_not_denied(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage, deny=["tenant:acme"])
    limit_tenants(app)
    assert [status_for(app, "::1"), status_for(app, "::1", headers={"X-Tenant": "acme"})] == [200, 403]


def test_subject_is_denied_although_a_check_came_before_the_first_request(app: Flask) -> None:
    multilimit = MultiLimit(app, deny=["tenant:acme"])
    app.add_url_rule("/free", "free", view())
    limit_tenants(app)

    with app.test_request_context("/free"):
        multilimit.check("9/minute", scope="mail")
    with app.test_request_context("/free", headers={"X-Tenant": "acme"}), pytest.raises(AccessDenied):
        multilimit.check("9/minute", scope="mail")
    assert status_for(app, "::1", headers={"X-Tenant": "acme"}) == 403


def test_subject_is_denied_at_an_endpoint_added_after_a_check(app: Flask) -> None:
    multilimit = MultiLimit(app, deny=["tenant:acme"])
    with app.test_request_context("/"):
        assert multilimit.check("9/minute", scope="mail").allowed
    limit_tenants(app)

    assert status_for(app, "::1", headers={"X-Tenant": "acme"}) == 403


def test_user_is_denied_although_a_check_came_before_the_user_loader(app: Flask) -> None:
    multilimit = serve(app, deny=["user:mallory"])
    with app.test_request_context("/"):
        multilimit.check("9/minute", scope="mail")

    multilimit.user_loader(lambda: "mallory")

    assert status_for(app, "::1") == 403


def test_subject_is_denied_although_all_limits_that_count_its_type_are_off(app: Flask) -> None:
    MultiLimit(app, deny=["tenant:acme"])
    limit_tenants(app)
    control_of(app).override("*", off=True, lasting=True, force=True)

    assert status_for(app, "::1", headers={"X-Tenant": "acme"}) == 403


@pytest.mark.parametrize("lists", [{"allow": ["user:203.0.113.9"]}, {"deny": ["user:203.0.113.9"]}], ids=str)
def test_listed_user_called_like_an_address_is_no_client_at_that_address(app: Flask, lists: dict[str, Any]) -> None:
    serve(app, user_loader=lambda: None, default_limits={"type": "user", "rules": "1/minute"}, **lists)
    assert [status_for(app, "203.0.113.9") for _ in range(2)] == [200, 429]


def test_denial_of_an_address_comes_before_that_of_a_user(app: Flask) -> None:
    MultiLimit(app, user_loader=lambda: "mallory", allow=["user:boss"], deny=["user:mallory", "203.0.113.7"])
    app.register_error_handler(AccessDenied, lambda error: (str(error.listed.who), 403))
    app.add_url_rule("/", "show", view())

    assert [ask(app, environ_base={"REMOTE_ADDR": ip}).text for ip in ("203.0.113.7", "::1")] == [
        "203.0.113.7",
        "user:mallory",
    ]


@pytest.mark.parametrize("path", ["/", "/nowhere", "/static/nothing.css"])
def test_denied_address_is_refused_on_every_path(app: Flask, path: str) -> None:
    serve(app, deny=["203.0.113.7"], unmatched_limits="1/hour")
    assert status_for(app, "203.0.113.7", path) == 403


def test_denied_address_is_refused_before_functions_of_the_app_run(app: Flask) -> None:
    serve(app, deny=["203.0.113.7"])
    loaded: list[str] = []
    app.before_request(lambda: loaded.append(str(request.remote_addr)))

    assert [status_for(app, "203.0.113.7"), status_for(app, "203.0.113.8")] == [403, 200]
    assert loaded == ["203.0.113.8"]


@pytest.mark.parametrize(
    ("hook", "register"),
    [
        ("an error handler", lambda app, use: app.register_error_handler(HTTPException, use)),
        ("an after_request function", Flask.after_request),
        ("a receiver of request_finished", lambda app, use: request_finished.connect(use, app, weak=False)),
        ("a teardown function", Flask.teardown_request),
        ("a teardown function", Flask.teardown_appcontext),
    ],
)
def test_denied_address_is_refused_although_the_app_needs_functions_that_did_not_run(
    app: Flask, caplog: pytest.LogCaptureFixture, hook: str, register: Callable[[Flask, Callable[..., Any]], object]
) -> None:
    serve(app, deny=["203.0.113.7"])
    app.before_request(lambda: setattr(g, "request_id", "17"))
    register(app, lambda given, **_: given if g.request_id else None)

    denied = [ask(app, environ_base={"REMOTE_ADDR": "203.0.113.7"}) for _ in range(2)]

    assert [each.status_code for each in denied] == [403, 403]
    assert "Access denied." in denied[0].text
    assert denied[0].headers["Cache-Control"] == "no-store"
    assert [each.message.partition(" failed")[0] for each in caplog.records] == [f"Rate limits: {hook}"]
    assert status_for(app, "203.0.113.8") == 200


def test_denied_request_leaves_nothing_to_the_garbage_collector(app: Flask) -> None:
    serve(app, deny=["203.0.113.7"])
    kept: list[ref[Any]] = []
    request_denied.connect(lambda *_, **__: kept.append(ref(current_context())), app, weak=False)

    gc.disable()
    try:
        ask(app, environ_base={"REMOTE_ADDR": "203.0.113.7"})
        assert kept[0]() is None
    finally:
        gc.enable()


def test_denied_address_passes_when_limits_are_disabled(app: Flask) -> None:
    app.config["MULTILIMIT_ENABLED"] = False
    serve(app, deny=["203.0.113.7"])
    assert status_for(app, "203.0.113.7") == 200


@pytest.mark.parametrize("address", ["203.0.113.7:50001", "[203.0.113.7]:1", "[2001:db8::1]:443", "[2001:db8::1]"])
def test_lists_ignore_the_port_of_an_address(app: Flask, address: str) -> None:
    serve(app, deny=["203.0.113.0/24", "2001:db8::/32"])
    assert status_for(app, address) == 403


@pytest.mark.parametrize("address", [None, "", "unix:", "\0", "1.2.3", "[]:1", "[[::1]]", "203.0.113.7:"])
def test_client_without_a_valid_address_is_not_denied(app: Flask, address: str | None) -> None:
    serve(app, deny=["0.0.0.0/0", "::/0"])
    assert status_for(app, address) == 200


def test_check_in_a_view_charges_nothing_for_an_allowed_client(app: Flask, storage: RecordingStorage) -> None:
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
        hits_for("1/minute", scope="mail", subject="ip:x"), scope="mail", subject="ip:x"
    ),
}


@pytest.mark.parametrize("kind", CHECKS)
def test_lists_apply_to_checks_before_flask_preprocesses_the_request(
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


class TestDenials:
    @pytest.fixture
    def app(self) -> Flask:
        app = Flask("shop")
        app.config["MULTILIMIT_DENY"] = ["203.0.113.7"]
        app.add_url_rule("/", "show", view())
        return app

    @pytest.mark.parametrize(("status", "name"), [(403, "Forbidden"), (429, "Too Many Requests")])
    def test_denial_has_the_configured_status(self, app: Flask, status: int, name: str) -> None:
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

    @pytest.mark.parametrize(("status", "handled"), [(403, AccessDenied), (429, AccessDenied), (403, 403), (429, 429)])
    def test_denial_reaches_error_handlers(self, app: Flask, status: int, handled: Any) -> None:
        app.config["MULTILIMIT_DENY_STATUS"] = status
        MultiLimit(app)
        app.register_error_handler(handled, lambda error: (f"{error.listed.who} {error.ends_in}", 451))

        answer = ask(app, environ_base={"REMOTE_ADDR": "203.0.113.7"})

        assert (answer.status_code, answer.text) == (451, "203.0.113.7 None")

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [(("blocked", 403), "no-store"), (("blocked", 200, {"Cache-Control": "private"}), "private")],
    )
    def test_denial_is_not_cached_unless_the_error_handler_allows_it(
        self, app: Flask, answer: tuple[Any, ...], expected: str
    ) -> None:
        MultiLimit(app)
        app.register_error_handler(403, lambda _: answer)

        assert "Cache-Control" not in ask(app).headers
        denied = ask(app, environ_base={"REMOTE_ADDR": "203.0.113.7"})
        assert denied.headers.getlist("Cache-Control") == [expected]

    def test_denial_is_signalled(self, app: Flask) -> None:
        MultiLimit(app)
        signals: list[tuple[str, str]] = []
        with request_denied.connected_to(lambda _, listed, endpoint: signals.append((listed.where, endpoint)), app):
            status_for(app, "203.0.113.7")

        assert signals == [("MULTILIMIT_DENY", "show")]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"MULTILIMIT_DENY": ["203.0.113"]}, "MULTILIMIT_DENY: '203.0.113': give a network"),
        ({"MULTILIMIT_ALLOW": "10.0.0.0/8"}, "MULTILIMIT_ALLOW='10.0.0.0/8': give a list"),
        ({"MULTILIMIT_DENY_STATUS": 404}, "MULTILIMIT_DENY_STATUS=404"),
    ],
)
def test_invalid_list_setting_is_an_error_that_names_it(app: Flask, given: dict[str, Any], message: str) -> None:
    app.config.update(given)
    with pytest.raises(ConfigurationError, match=message):
        MultiLimit(app)


def test_denial_is_no_store_although_the_app_makes_every_response_public(app: Flask) -> None:
    serve(app, user_loader=lambda: "mallory", deny=["user:mallory", "203.0.113.0/24"], default_limits="9/minute")
    app.after_request(made_public)

    by_user, by_address = ask(app), ask(app, environ_base={"REMOTE_ADDR": "203.0.113.7"})

    assert by_user.status_code == by_address.status_code == 403
    assert by_user.headers.getlist("Cache-Control") == by_address.headers.getlist("Cache-Control") == ["no-store"]


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_answer_of_an_error_handler_of_the_app_has_the_wait_of_the_entry(app: Flask, form: str) -> None:
    app.config["MULTILIMIT_RETRY_AFTER"] = form
    serve(app, default_limits="9/minute")
    app.register_error_handler(429, lambda error: (f"Error {error.code}, {error.retry_after} s", error.code))
    app.register_error_handler(403, lambda error: (f"Error {error.code}", error.code))
    control_of(app).ban("203.0.113.1", for_=3600)
    control_of(app).deny("203.0.113.2", for_=3600)
    control_of(app).deny("203.0.113.3", lasting=True)

    answers = [ask(app, environ_base={"REMOTE_ADDR": f"203.0.113.{n}"}) for n in (1, 2, 3)]

    assert [each.text for each in answers] == ["Error 429, 3600 s", "Error 403", "Error 403"]
    (banned,), (denied,), () = [each.headers.getlist("Retry-After") for each in answers]
    assert {each if each.isdigit() else "date" for each in (banned, denied)} == {"3600" if form == "seconds" else form}


def test_client_is_denied_by_an_entry_that_ends_after_all_dates(app: Flask) -> None:
    """Somebody may have imported an end in milliseconds."""
    app.config["MULTILIMIT_RETRY_AFTER"] = "date"
    serve(app, default_limits="9/minute")
    entry = {"id": "0" * 8, "kind": "deny", "who": "127.0.0.1", "since": 1e9, "until": 1e12}
    control_of(app).import_entries(json.dumps({"format": 1, "entries": [entry]}))

    denied = ask(app)

    assert (denied.status_code, "9999 " in denied.headers["Retry-After"]) == (403, True)


def test_wait_that_an_error_handler_gives_to_a_banned_client_stays(app: Flask) -> None:
    serve(app, default_limits="9/minute")
    app.register_error_handler(429, lambda error: ("", error.code, {"Retry-After": "5"}))
    control_of(app).ban("127.0.0.1", for_=3600)

    assert ask(app).headers.getlist("Retry-After") == ["5"]


def test_code_that_runs_after_a_denial_finds_no_limits_in_the_current_decision(app: Flask) -> None:
    serve(app, deny=["203.0.113.0/24"], default_limits="9/minute")

    @app.after_request
    def note(response: Response) -> Response:
        response.headers["X-Limits"] = str(len(current_decision.statuses))
        return response

    denied, served = ask(app, environ_base={"REMOTE_ADDR": "203.0.113.7"}), ask(app)

    assert (denied.status_code, denied.headers["X-Limits"]) == (403, "0")
    assert (served.status_code, served.headers["X-Limits"]) == (200, "1")


def test_response_that_answered_a_denial_is_cached_as_before_for_other_clients(app: Flask) -> None:
    MultiLimit(app, deny=["203.0.113.0/24"])
    page = Response("closed for maintenance")
    app.add_url_rule("/", "show", lambda: page)
    app.register_error_handler(403, lambda _: page)

    denied, shown = ask(app, environ_base={"REMOTE_ADDR": "203.0.113.7"}), ask(app)

    assert (denied.headers["Cache-Control"], "Cache-Control" in shown.headers) == ("no-store", False)
