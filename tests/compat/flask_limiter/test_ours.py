"""What the rest of this package does for apps on the bridge."""

import json
import re
import time
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
import redis
from flask import Flask, Response, abort, request
from flask.views import MethodView
from flask_limiter import commands as theirs
from werkzeug.test import EnvironBuilder

from flask_multilimit import Decision, MultiLimit, current_decision, rate_limiter, testing
from flask_multilimit.compat.flask_limiter import (
    ExemptionScope,
    Limiter,
    MetaLimit,
    RateLimitExceeded,
    get_remote_address,
)
from flask_multilimit.compat.flask_limiter.places import Places
from flask_multilimit.control import NeedsForce
from flask_multilimit.dashboard import Dashboard
from flask_multilimit.insight.bans import unban
from flask_multilimit.insight.clients import client_from
from flask_multilimit.serve.gate import gate_of
from flask_multilimit.signals import Event, limit_event, limits_checked, request_rejected, subject_banned
from flask_multilimit.usage import Usage
from support.asking import commands, pass_a_second
from support.changes import control_of
from support.servers import Server


@pytest.fixture
def limiter(app: Flask) -> Limiter:
    return Limiter(get_remote_address, app=app)


def named(name: str) -> Callable[[], str]:
    """A view with a name of its own: Flask-Limiter finds limits by the names of functions."""

    def view() -> str:
        return "ok"

    view.__name__ = view.__qualname__ = name
    return view


def codes(app: Flask, number: int, path: str = "/", address: str = "127.0.0.1") -> list[int]:
    client = app.test_client()
    return [client.get(path, environ_base={"REMOTE_ADDR": address}).status_code for _ in range(number)]


def shown_limits(app: Flask, endpoint: str) -> str:
    return app.test_cli_runner().invoke(args=["multilimit", "limits", "--endpoint", endpoint]).output


def test_allow_and_deny_lists_apply_to_limits_of_the_bridge(app: Flask) -> None:
    app.config.update(MULTILIMIT_ALLOW=["10.0.0.0/8"], MULTILIMIT_DENY=["203.0.113.0/24"])
    limiter = Limiter(get_remote_address, app=app, default_limits=["1/minute"])
    app.get("/")(named("v1"))
    app.get("/own", endpoint="own")(limiter.limit("1/minute")(named("v2")))

    assert codes(app, 3, address="10.1.2.3") == codes(app, 3, "/own", address="10.1.2.3") == [200, 200, 200]
    assert codes(app, 1, address="203.0.113.9") == codes(app, 1, "/own", address="203.0.113.9") == [403]
    assert codes(app, 2, address="192.0.2.1") == [200, 429]


def test_default_limit_counts_when_view_calls_a_function_with_our_limiter(app: Flask) -> None:
    Limiter(get_remote_address, app=app, default_limits=["2/minute"])
    send = rate_limiter("9/minute", type="ip")(named("send"))
    app.get("/", endpoint="index")(lambda: send() if "send" in request.args else "ok")

    assert codes(app, 1, "/?send", address="192.0.2.1") == [200]
    assert codes(app, 3) == [200, 200, 429]


def test_dashboard_and_usage_are_limited_only_where_a_limiter_is_on_them(app: Flask) -> None:
    app.secret_key = "for this test only"
    limiter = Limiter(get_remote_address, app=app, default_limits=["1/hour"], application_limits=["3/hour"])
    multilimit = app.extensions["multilimit"]
    usage = Usage(multilimit)
    limiter.limit("2/hour")(usage)
    app.register_blueprint(Dashboard(multilimit, authorize=lambda: "ann"))
    app.register_blueprint(Usage(multilimit, url_prefix="/free", name="free"))
    app.register_blueprint(usage)
    app.get("/")(named("index"))

    assert codes(app, 4, "/multilimit/") == codes(app, 4, "/free") == [200] * 4
    assert codes(app, 3, "/rate_limit") == [200, 200, 429]
    assert codes(app, 2) == [200, 429]


def test_signals_and_current_decision_report_limits_of_the_bridge(app: Flask) -> None:
    limiter, told = Limiter(get_remote_address, app=app), list[tuple[str, str, dict[str, str]]]()
    app.add_url_rule("/", "index", limiter.limit("1/minute")(lambda: f"{current_decision.remaining}"))

    def note(name: str) -> Any:
        def receive(_: Flask, decision: Decision, endpoint: str, subjects: dict[str, str]) -> None:
            told.append((f"{name} {decision.allowed}", endpoint, subjects))

        return receive

    checked, rejected = note("checked"), note("rejected")
    with limits_checked.connected_to(checked, app), request_rejected.connected_to(rejected, app):
        client = app.test_client()
        texts = [client.get("/").text, client.get("/").status]

    subjects = {"limit-1": "127.0.0.1"}
    assert texts == ["0", "429 TOO MANY REQUESTS"]
    assert told == [
        ("checked True", "index", subjects),
        ("checked False", "index", subjects),
        ("rejected False", "index", subjects),
    ]


def test_limits_of_both_kinds_apply_to_one_view(limiter: Limiter, app: Flask) -> None:
    app.get("/theirs", endpoint="theirs")(limiter.limit("1/minute")(named("v3")))
    app.get("/ours", endpoint="ours")(rate_limiter(rules="2/minute")(named("v4")))
    app.get("/both", endpoint="both")(limiter.limit("2/minute")(rate_limiter(rules="1/minute")(named("v5"))))

    assert codes(app, 2, "/theirs") == [200, 429]
    assert codes(app, 3, "/ours") == [200, 200, 429]
    assert codes(app, 2, "/both") == [200, 429]


def test_bridge_limits_can_be_switched_off_in_tests(limiter: Limiter, app: Flask) -> None:
    app.get("/")(limiter.limit("1/hour")(named("v7")))
    with testing.enabled(app, False):
        assert codes(app, 3) == [200, 200, 200]


def test_application_limits_count_requests_refused_inside_the_view(app: Flask) -> None:
    limiter = Limiter(get_remote_address, app=app, application_limits=["3/hour"])
    inner = limiter.limit("1/hour")(named("v10"))

    app.get("/", endpoint="index")(lambda: f"{inner()}")
    app.get("/other", endpoint="other")(lambda: abort(404))

    assert codes(app, 4) == [200, 429, 429, 429]
    assert codes(app, 1, "/other") == [429]


def test_rate_limit_exceeded_carries_the_decision(app: Flask) -> None:
    limiter, caught = Limiter(get_remote_address, app=app, meta_limits=["2/day"]), list[RateLimitExceeded]()
    app.get("/")(limiter.limit("1/minute; 5/hour")(named("v11")))

    @app.errorhandler(RateLimitExceeded)
    def refused(error: RateLimitExceeded) -> tuple[str, int]:
        caught.append(error)
        return "no", 429

    codes(app, 4)

    by_limit, _, by_meta = [error.decision for error in caught]
    assert by_limit is not None
    assert [(status.name, status.remaining) for status in by_limit.statuses] == [("1/minute", 0), ("5/hour", 4)]
    assert by_meta is not None
    assert [ban.name for ban in by_meta.bans if ban.holds] == ["meta-2-ban"]


def test_with_statement_keeps_its_limit_during_another_request(app: Flask) -> None:
    def identify() -> str:
        if request.args["limit"] == "1/hour":
            codes(app, 1, "/?limit=99/hour", address="10.0.0.9")
        return "index"

    limiter = Limiter(get_remote_address, app=app, request_identifier=identify)

    @app.get("/")
    def index() -> str:
        with limiter.limit(request.args["limit"]):
            return "ok"

    assert codes(app, 3, "/?limit=1/hour") == [200, 429, 429]


def test_with_statement_remembers_only_its_latest_limit(limiter: Limiter, app: Flask) -> None:
    @app.get("/<int:count>")
    def index(count: int) -> str:
        with limiter.limit(f"{count}/minute"):
            return "ok"

    assert [codes(app, 1, f"/{count}") for count in range(1, 9)] == [[200]] * 8
    assert [len(limits) for limits in limiter.registry.decorated.values()] == [1]


def test_request_passes_while_another_calls_a_limited_function_for_the_first_time(
    limiter: Limiter, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, registry = limiter.limit("9/minute")(named("send")), limiter.registry
    app.get("/", endpoint="index")(lambda: f"{send()}")
    limits_of = registry.limits_of

    def meanwhile(name: str) -> Any:
        registry.learn("index", f"another-{registry.version}")
        return limits_of(name)

    assert codes(app, 1) == [200]
    monkeypatch.setattr(registry, "limits_of", meanwhile)
    assert codes(app, 3) == [200, 200, 200]


def test_limit_of_a_function_replaces_default_ones_although_two_requests_called_it_first_at_once(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = Limiter(get_remote_address, app=app, default_limits=["2/minute"])
    send = limiter.limit("9/minute")(named("send"))
    app.get("/", endpoint="index")(lambda: f"{send()}")
    make, others = Places._place, [lambda: codes(app, 1)]

    def meanwhile(places: Places, *arguments: Any, **more: Any) -> Any:
        while others:
            others.pop()()
        return make(places, *arguments, **more)

    monkeypatch.setattr(Places, "_place", meanwhile)

    assert codes(app, 5) == [200] * 5


def test_names_of_places_that_clients_invent_are_not_all_remembered(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_multilimit.compat.flask_limiter.places.MOST_REMEMBERED", 3)
    limiter = Limiter(get_remote_address, app=app, request_identifier=lambda: request.path)

    @app.get("/<int:invented>")
    def index(invented: int) -> str:
        with limiter.limit("2/minute"):
            return f"{invented}"

    assert [codes(app, 3, f"/{number}") for number in range(9)] == [[200, 200, 429]] * 9
    assert len(limiter.registry.hints) == 3


def test_key_of_a_thousand_characters_is_limited(app: Flask) -> None:
    limiter = Limiter(lambda: "x" * 1000, app=app)
    app.get("/")(limiter.limit("1/hour")(named("v13")))
    assert codes(app, 2) == [200, 429]


def test_without_auto_check_limits_apply_once_where_check_is_called(
    app: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = Limiter(get_remote_address, app=app, default_limits=["1/minute"], auto_check=False)
    app.get("/free", endpoint="free")(limiter.limit("1/minute")(named("v14")))

    @app.get("/")
    def index() -> str:
        limiter.check()
        return "ok"

    @app.get("/limited")
    @limiter.limit("2/minute")
    def limited() -> str:
        limiter.check()
        return "ok"

    assert codes(app, 2, "/free") == [200, 200]
    assert codes(app, 2) == [200, 429]
    assert codes(app, 3, "/limited") == [200, 200, 429]
    assert "It may see differences in" in caplog.text


def test_limiter_uses_the_existing_multilimit_of_its_app(app: Flask) -> None:
    multilimit = MultiLimit(app)
    limiter = Limiter(get_remote_address, app=app, headers_enabled=True)
    app.get("/")(limiter.limit("1/minute")(named("v15")))

    response = app.test_client().get("/")

    assert app.extensions["multilimit"] is multilimit
    assert response.headers["RateLimit"] == '"1/minute";r=0;t=60'
    assert response.headers["X-RateLimit-Remaining"] == "0"


def test_view_named_like_a_limited_function_has_default_limits(app: Flask) -> None:
    limiter = Limiter(get_remote_address, app=app, default_limits=["3/hour"])
    app.get("/limited", endpoint="limited")(limiter.limit("1/hour")(named("same")))
    app.get("/other", endpoint="other")(named("same"))

    assert codes(app, 2, "/limited") == [200, 429]
    assert codes(app, 4, "/other") == [200, 200, 200, 429]


@pytest.mark.parametrize("costs", [(1, 3), (3, 1)])
def test_limits_of_the_same_text_take_the_larger_cost(limiter: Limiter, app: Flask, costs: tuple[int, int]) -> None:
    first, second = (limiter.limit("4/minute", cost=cost) for cost in costs)
    app.get("/")(first(second(named("v37"))))
    assert codes(app, 2) == [200, 429]


@pytest.mark.parametrize("given", ["soon", "9" * 12])
def test_retry_after_of_a_view_that_makes_no_sense_is_replaced(app: Flask, given: str) -> None:
    Limiter(get_remote_address, app=app, default_limits=["1/minute"], headers_enabled=True)
    app.add_url_rule("/", "index", lambda: ("ok", {"Retry-After": given}))
    assert app.test_client().get("/").headers["Retry-After"] in {"60", "61"}


def test_same_environ_run_twice_is_two_requests(app: Flask) -> None:
    limiter = Limiter(get_remote_address, app=app, application_limits=["1/hour"])
    app.get("/")(limiter.limit("9/hour")(named("twice")))
    environ = EnvironBuilder(path="/").get_environ()

    statuses = [Response.from_app(app, environ).status_code for _ in range(2)]

    assert statuses == [200, 429]


def test_application_deduct_when_refunds_a_refused_request_once(app: Flask) -> None:
    limiter = Limiter(
        get_remote_address,
        app=app,
        application_limits=["3/hour"],
        application_limits_deduct_when=lambda response: response.status_code == 200,
    )
    app.get("/")(limiter.limit("1/hour")(named("first")))
    app.get("/other", endpoint="other")(named("second"))

    assert codes(app, 3) == [200, 429, 429]
    assert codes(app, 3, "/other") == [200, 200, 429]


# What is changed while the app runs


@pytest.mark.parametrize(
    ("override", "shown", "seen"),
    [
        ({"times": 2.0}, ["4", "3 2 1 0 0"], [200, 200, 200, 200, 429]),
        ({"rule": "2/minute", "off": True}, ["2", "2 2 2 2 2"], [200, 200, 200, 200, 200]),
        ({"limiter": "limit-2", "off": True}, ["2", "2 2 2 2 2"], [200, 200, 200, 200, 200]),
        ({"limiter": "limit-2", "shadow": True}, ["2", "1 0 0 0 0"], [200, 200, 200, 200, 200]),
        ({"limiter": "limit-2", "rules": "3/hour"}, ["3", "2 1 0 0 0"], [200, 200, 200, 429, 429]),
        ({"limiter": "limit-2", "rules": "1/second; 4/minute"}, ["1", "0 0 0 0 0"], [200, 429, 429, 429, 429]),
    ],
)
def test_overrides_change_limits_of_the_bridge(
    app: Flask, override: dict[str, Any], shown: list[str], seen: list[int]
) -> None:
    limiter = Limiter(get_remote_address, app=app, headers_enabled=True)
    app.get("/", endpoint="index")(limiter.limit("2/minute; 9/hour")(named("v16")))
    with app.app_context(), testing.freeze(app):
        multilimit: MultiLimit = app.extensions["multilimit"]
        multilimit.control.override("index", **override, lasting=True, force=True)
        client = app.test_client()
        responses = [client.get("/") for _ in range(5)]

    told = [[response.headers[f"X-RateLimit-{name}"] for response in responses] for name in ("Limit", "Remaining")]
    assert [response.status_code for response in responses] == seen
    assert [told[0][0], " ".join(told[1])] == shown


def test_change_of_a_limit_of_the_bridge_says_why_it_needs_force(limiter: Limiter, app: Flask) -> None:
    app.get("/", endpoint="index")(limiter.limit("2/minute")(named("v34")))
    told = "rule 2/minute at index: 5/minute: would change only limits of another extension, which no preview shows"
    with pytest.raises(NeedsForce, match=told):
        control_of(app).override("index", rule="2/minute", rules="5/minute", lasting=True)
    with pytest.raises(NeedsForce, match="no endpoint has such a limit"):
        control_of(app).override("index", rule="3/minute", rules="5/minute", lasting=True)


@pytest.mark.parametrize("at", ["index", "index:GET", "index:part", "mail"])
@pytest.mark.parametrize("scope", ["index:GET", "index:part", "mail"])
def test_limit_with_a_scope_of_its_own_is_overridden_at_its_endpoint_and_at_its_scope(
    limiter: Limiter, app: Flask, scope: str, at: str
) -> None:
    kinds = {
        "index:GET": limiter.limit("9/minute", per_method=True),
        "index:part": limiter.limit("9/minute", scope="part"),
        "mail": limiter.shared_limit("9/minute", "mail"),
    }
    app.get("/", endpoint="index")(kinds[scope](named("v33")))
    control_of(app).override(at, limiter="limit-9", rules="1/hour", lasting=True, force=True)

    changed = at in {"index", scope}
    assert codes(app, 2) == [200, 429 if changed else 200]
    assert ("CHANGED" in shown_limits(app, "index")) is changed
    standing = app.test_cli_runner().invoke(app.cli.commands["limiter"], ["limits", "--key", "127.0.0.1"]).output
    assert ("Fail (0 out of" if changed else "Pass (7 out of") in standing


def test_override_of_a_shared_limit_at_an_endpoint_applies_there_alone(limiter: Limiter, app: Flask) -> None:
    mail = limiter.shared_limit("2/minute", "mail")
    for endpoint in ("invite", "remind"):
        app.get(f"/{endpoint}", endpoint=endpoint)(mail(named(endpoint)))
    control_of(app).override("invite", times=2, lasting=True, force=True)

    assert codes(app, 3, "/invite") + codes(app, 1, "/remind") + codes(app, 2, "/invite") == [200] * 3 + [429, 200, 429]
    assert ["CHANGED" in shown_limits(app, endpoint) for endpoint in ("invite", "remind")] == [True, False]


def test_override_of_a_rule_changes_each_limit_of_this_name_in_requests_and_in_lists(app: Flask) -> None:
    limiter = Limiter(get_remote_address, app=app, application_limits=["9/day"])
    view = limiter.limit("9/day", scope="part")(limiter.limit("9/day")(named("v36")))
    app.get("/", endpoint="index")(view)
    seen: list[tuple[str, int]] = []

    def note(_: Flask, *, decision: Decision, **__: Any) -> None:
        seen.extend((hit.name, hit.rule.count) for hit in decision.hits)

    control_of(app).override("index", rule="9/day", rules="2/day", lasting=True, force=True)
    with limits_checked.connected_to(note, app):
        assert codes(app, 1) == [200]

    assert seen == [("9/day", 2), ("9/day", 2), ("9/day-2", 2)]
    assert shown_limits(app, "index").count("2 per day") == 3


def test_limits_of_one_name_that_an_override_gives_the_same_rules_count_as_one(limiter: Limiter, app: Flask) -> None:
    app.get("/", endpoint="index")(limiter.limit("9/minute; 5/hour; 9/day")(named("v34")))
    control_of(app).override("index", limiter="limit-9", rules="2/day", lasting=True, force=True)

    assert codes(app, 3) == [200, 200, 429]


def test_override_of_one_limit_keeps_the_cost_of_another(limiter: Limiter, app: Flask) -> None:
    view = limiter.limit("9/hour", cost=3)(limiter.limit("9/minute")(named("v35")))
    app.get("/", endpoint="index")(view)
    control_of(app).override("index", rule="9/minute", off=True, lasting=True, force=True)

    assert codes(app, 4) == [200, 200, 200, 429]


def test_limit_that_is_overridden_at_its_endpoint_can_be_asked_and_reset_by_hand_in_a_request(
    limiter: Limiter, app: Flask
) -> None:
    @app.get("/", endpoint="index")
    @limiter.shared_limit("9/minute", "mail")
    def index() -> str:
        limit = limiter.current_limit
        assert limit is not None
        left = limit.limiter.get_window_stats(limit.limit, *limit.request_args).remaining
        limiter.storage.clear(limit.key)
        return str(left)

    control_of(app).override("index", limiter="limit-9", rules="1/hour", lasting=True, force=True)

    client = app.test_client()
    assert [client.get("/").text for _ in range(3)] == ["0"] * 3


def test_limit_that_is_checked_by_hand_is_overridden_at_its_endpoint_while_the_limiter_is_disabled(
    limiter: Limiter, app: Flask
) -> None:
    (mail,) = limiter.shared_limit("9/minute", "mail")
    app.get("/", endpoint="index")(lambda: str(limiter.limiter.hit(mail.limit, "ann", "mail")))
    control_of(app).override("index", limiter="limit-9", rules="1/hour", lasting=True, force=True)
    limiter.enabled = False

    client = app.test_client()
    assert [client.get("/").text for _ in range(2)] == ["True", "False"]


@pytest.mark.parametrize("scope", [{}, {"scope": "failures"}], ids=["limit", "shared_limit"])
@pytest.mark.parametrize(
    "override", [{"rule": "2/minute", "rules": "3/hour"}, {"times": 1.5}, {"limiter": "limit-2", "times": 1.5}], ids=str
)
def test_overridden_limit_charges_only_responses_that_deduct_when_accepts(
    limiter: Limiter, app: Flask, override: dict[str, Any], scope: dict[str, Any]
) -> None:
    make: Any = limiter.shared_limit if scope else limiter.limit
    failures = make("2/minute", **scope, deduct_when=lambda response: response.status_code == 401)
    app.get("/<int:status>", endpoint="login")(failures(lambda status: ("", status)))
    control_of(app).override("login", **override, lasting=True, force=True)

    assert codes(app, 5, "/200") == [200] * 5
    assert codes(app, 4, "/401") == [401, 401, 401, 429]


def test_refusal_by_a_rule_that_an_override_put_in_place_of_a_limit_names_that_limit(app: Flask) -> None:
    limiter, breached = Limiter(get_remote_address, app=app), list[str]()
    told = limiter.limit("2/minute; 9/hour", on_breach=lambda limit: breached.append(limit.limit.GRANULARITY.name))
    app.get("/", endpoint="index")(told(named("v32")))
    control_of(app).override("index", limiter="limit-9", rules="1/day", lasting=True, force=True)

    assert codes(app, 2) == [200, 429]
    assert breached == ["hour"]


def test_flask_limiter_shows_what_is_left_when_an_override_puts_two_rules_in_place_of_a_limit(
    limiter: Limiter, app: Flask
) -> None:
    app.get("/", endpoint="index")(limiter.limit("2/minute")(named("v31")))
    control_of(app).override("index", limiter="limit-2", rules="1/hour; 9/day", lasting=True, force=True)

    assert codes(app, 2) == [200, 429]
    shown = app.test_cli_runner().invoke(app.cli.commands["limiter"], ["limits", "--key", "127.0.0.1"]).output
    assert "2 per 1 minute: Fail (0 out of 1 remaining; changed to 1 per hour; 9 per day)  [route]" in shown


def test_flask_limiter_clear_names_the_limits_that_it_cannot_clear(limiter: Limiter, app: Flask) -> None:
    app.get("/", endpoint="index")(limiter.limit(lambda: request.args["limit"])(named("v99")))
    codes(app, 1)

    run = app.test_cli_runner().invoke(app.cli.commands["limiter"], ["clear", "--key", "127.0.0.1", "-y"])

    assert "<lambda>: depends on the request; not cleared\n" in run.output


@pytest.mark.parametrize("command", [["limits", "--key", "127.0.0.1"], ["clear", "--key", "127.0.0.1", "-y"]])
def test_flask_limiter_does_not_answer_for_the_memory_of_other_processes(
    limiter: Limiter, app: Flask, command: list[str]
) -> None:
    app.get("/", endpoint="index")(limiter.limit("1/minute")(named("v96")))

    run = app.test_cli_runner().invoke(app.cli.commands["limiter"], command)

    assert run.exit_code == 1
    assert "this command can neither see nor change them" in run.output


@pytest.mark.parametrize(
    ("text", "told"),
    [(lambda: dict[str, str]()["no such plan"], "KeyError: 'no such plan'"), (lambda: "9 per fortnight", "fortnight")],
)
def test_flask_limiter_says_why_a_callable_failed_unless_the_request_lacks_something(
    limiter: Limiter, app: Flask, text: Callable[[], str], told: str
) -> None:
    app.get("/", endpoint="index")(limiter.limit(text)(named("v98")))
    app.config["PROPAGATE_EXCEPTIONS"] = False
    codes(app, 1)
    for command in (["limits"], ["clear", "--key", "127.0.0.1", "-y"]):
        output = app.test_cli_runner().invoke(app.cli.commands["limiter"], command).output
        assert re.search(f"<lambda>: failed, .*{told}", output)
        assert "depends on the request" not in output


def test_current_limits_show_what_is_left_of_each_limit_that_an_override_has_replaced(
    limiter: Limiter, app: Flask
) -> None:
    @app.get("/", endpoint="index")
    @limiter.shared_limit("8/hour", "mail")
    @limiter.limit("3/hour; 3/minute; 7/second")
    def index() -> dict[str, int]:
        return {str(each.limit): each.remaining for each in limiter.current_limits}

    with app.app_context():
        override = app.extensions["multilimit"].control.override
        for rule, change in (
            ("3/hour", {"rules": "9/day"}),
            ("8/hour", {"rules": "2/day"}),
            ("7/second", {"off": True}),
        ):
            override("index", rule=rule, **change, lasting=True, force=True)

    shown = app.test_client().get("/").json

    assert shown == {"9 per 1 hour": 8, "2 per 1 hour": 1, "3 per 1 minute": 2, "7 per 1 second": 7}
    assert codes(app, 2) == [200, 429]


def test_header_fields_show_what_an_override_puts_in_place_of_a_limit_of_zero(app: Flask) -> None:
    limiter = Limiter(get_remote_address, app=app, headers_enabled=True)
    app.get("/", endpoint="index")(limiter.limit("0/minute")(named("v37")))
    control_of(app).override("index", rule="0/minute", rules="3/minute", lasting=True, force=True)

    headers = app.test_client().get("/").headers

    assert (headers["X-RateLimit-Limit"], headers["X-RateLimit-Remaining"]) == ("3", "2")


def test_retry_after_is_never_negative_when_the_window_ends_during_the_view(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = Limiter(get_remote_address, app=app, headers_enabled=True)

    @app.get("/")
    @limiter.limit("9/second")
    def index() -> str:
        later = time.time() + 5
        monkeypatch.setattr(time, "time", lambda: later)
        return "ok"

    assert app.test_client().get("/").headers["Retry-After"] == "0"


def test_response_that_a_view_returns_again_has_only_the_fields_of_this_request(app: Flask) -> None:
    limiter = Limiter(lambda: request.args["user"], app=app, headers_enabled=True)
    kept = Response("ok", headers={"Retry-After": "900"})

    @app.get("/")
    @limiter.limit("5/minute", exempt_when=lambda: request.args["user"] == "root")
    def index() -> Response:
        if "wait" in request.args:
            kept.headers["Retry-After"] = request.args["wait"]
        return kept

    client = app.test_client()
    client.get("/?user=ann")
    client.get("/?user=ann")

    of_bob, of_root, _, own = (client.get(f"/?user={user}").headers for user in ("bob", "root", "eve", "root&wait=30"))

    assert [of_bob.getlist(f"X-RateLimit-{name}") for name in ("Limit", "Remaining")] == [["5"], ["4"]]
    assert int(of_bob["Retry-After"]) >= 800
    assert not any(name.startswith("X-RateLimit") for name, _ in of_root)
    assert (of_root.getlist("Retry-After"), own.getlist("Retry-After")) == (["900"], ["30"])


def test_response_that_two_threads_send_at_once_has_only_the_fields_of_each_request(app: Flask) -> None:
    seen = dict[str, list[str]]()

    @app.after_request
    def ask_as_bob_meanwhile(response: Response) -> Response:
        if request.args["user"] == "ann":
            bob = Thread(target=ask, args=["bob"])
            bob.start()
            bob.join()
        return response

    def ask(user: str) -> None:
        seen[user] = app.test_client().get(f"/?user={user}").headers.getlist("X-RateLimit-Limit")

    limiter = Limiter(lambda: request.args["user"], app=app, headers_enabled=True)
    kept = Response("ok")
    app.get("/")(limiter.limit(lambda: "5/minute" if request.args["user"] == "ann" else "9/minute")(lambda: kept))
    ask("ann")

    assert seen == {"ann": ["5"], "bob": ["9"]}


@pytest.mark.parametrize("given", ["", None])
def test_log_explains_an_empty_key_once(app: Flask, caplog: pytest.LogCaptureFixture, given: Any) -> None:
    keys = iter(["ann", given, given])
    limiter = Limiter(lambda: next(keys), app=app)
    app.get("/", endpoint="index")(limiter.limit("5/minute")(named("v28")))

    codes(app, 3)

    line = (
        f"limits at index: key_func returned {given!r}, so all such requests share one quota; "
        "to let them pass, use exempt_when"
    )
    assert [each for each in caplog.messages if "key_func returned" in each] == [line]


@pytest.mark.parametrize("swallow_errors", [False, True])
def test_keys_of_bytes_that_are_no_text_are_limited_each_by_itself(app: Flask, swallow_errors: bool) -> None:
    key: Any = lambda: bytes.fromhex(request.args["key"])  # noqa: E731
    limiter = Limiter(key, app=app, swallow_errors=swallow_errors)
    app.get("/")(limiter.limit("1/minute")(named("v80")))
    assert [codes(app, 2, f"/?key={key}") for key in ("ff", "fe")] == [[200, 429]] * 2


@pytest.mark.parametrize("swallow_errors", [False, True])
def test_cost_above_all_limits_is_refused_however_large(app: Flask, swallow_errors: bool) -> None:
    limiter = Limiter(get_remote_address, app=app, swallow_errors=swallow_errors)
    app.get("/")(limiter.limit("5/minute", cost=lambda: int(request.args["n"]))(named("v79")))
    assert [codes(app, 1, f"/?n={n}") for n in ("6", "1000000001", "9" * 30)] == [[429]] * 3


def unreadable() -> str:
    return "1/min"


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({"default_limits": [unreadable, "2/minute"]}, [200, 200, 429]),
        ({"application_limits": [unreadable, "2/minute"]}, [200, 200, 429]),
        ({"default_limits": ["2/minute"], "meta_limits": [unreadable]}, [200, 200, 429]),
        ({"default_limits": [unreadable]}, [200, 200, 200]),
    ],
)
def test_limit_that_cannot_be_read_leaves_all_others_in_force(
    app: Flask, caplog: pytest.LogCaptureFixture, declared: dict[str, Any], expected: list[int]
) -> None:
    Limiter(get_remote_address, app=app, swallow_errors=True, **declared)
    app.get("/")(named("v81"))

    assert codes(app, 3) == expected
    assert caplog.messages.count("Failed to read a rate limit. Leaving it out") == 3


def test_view_whose_limit_cannot_be_read_gets_the_default_limits(app: Flask) -> None:
    limiter = Limiter(get_remote_address, app=app, swallow_errors=True, default_limits=["2/minute"])
    app.get("/")(limiter.limit(unreadable)(named("v82")))
    assert codes(app, 3) == [200, 200, 429]


def test_fallback_whose_limit_cannot_be_read_enforces_the_others(app: Flask) -> None:
    fallback: Any = [unreadable, "2/minute"]
    limits = {"default_limits": ["9/minute"], "in_memory_fallback": fallback}
    Limiter(get_remote_address, app=app, storage_uri="redis://127.0.0.1:1", swallow_errors=True, **limits)
    app.get("/")(named("v83"))
    assert codes(app, 3) == [200, 200, 429]


# Lists of limits


def listed(app: Flask, endpoint: str) -> list[tuple[str, str, str]]:
    """The name, origin and options of each limit that ``flask multilimit limits`` lists for an endpoint."""
    answer = app.test_cli_runner().invoke(args=["multilimit", "limits", "--endpoint", endpoint, "--json"])
    (found,) = json.loads(answer.output)["endpoints"]
    rows = [(each["name"], each["from"].partition(", by")[0], "; ".join(each["options"])) for each in found["limits"]]
    return sorted(rows)


def test_limits_command_lists_bridge_limits_beside_ours(app: Flask) -> None:
    limiter = Limiter(get_remote_address, app=app, default_limits=["9/hour"], application_limits=["99/day"])
    app.get("/", endpoint="both")(limiter.limit("2/minute")(rate_limiter(rules="1/minute")(named("v20"))))
    app.get("/other", endpoint="other")(named("v21"))

    assert listed(app, "both") == [
        ("2/minute", "Flask-Limiter: route limit", ""),
        ("99/day", "Flask-Limiter: application limit", "scope global"),
        ("default-60s", f"{__name__}:v20", ""),
    ]
    assert listed(app, "other") == [
        ("9/hour", "Flask-Limiter: default limit", ""),
        ("99/day", "Flask-Limiter: application limit", "scope global"),
    ]


def test_check_why_and_reset_say_that_they_do_not_know_limits_of_the_bridge(app: Flask, server: Server) -> None:
    limiter = Limiter(get_remote_address, app=app, storage_uri=server.tcp_url)
    app.get("/", endpoint="bridge")(limiter.limit("1/minute")(named("v28")))
    app.get("/both", endpoint="both")(limiter.limit("2/minute")(rate_limiter("5/minute", type="ip")(named("v29"))))
    app.get("/own", endpoint="own")(rate_limiter("5/minute", type="ip")(named("v30")))
    assert codes(app, 2) == [200, 429]

    def said(*arguments: str) -> str:
        answer = app.test_cli_runner().invoke(args=["multilimit", *arguments], env={"COLUMNS": "300"})
        return answer.output.partition("\n\nNAME")[0]

    unknown, hint = (
        "not known: another extension checks limits at",
        "`flask limiter limits` shows those of Flask-Limiter; "
        "ask about a client with the type that `top` or `bans` lists",
    )
    assert said("check", "bridge", "--ip", "127.0.0.1") == f"bridge GET  no limit checked\n\n{unknown} bridge; {hint}\n"
    assert said("check", "both", "--ip", "127.0.0.1") == "both GET  a request would pass, as far as checked"
    assert said("check", "own", "--ip", "127.0.0.1") == "own GET  a request would pass"
    assert said("check", "unmatched", "--ip", "127.0.0.1").endswith("no limit applies\n")
    assert "`flask limiter clear` resets those of Flask-Limiter" in said(
        "reset", "bridge", "--ip", "127.0.0.1", "--yes"
    )
    assert f"{unknown} both (and 1 more); {hint}\n" in said("why", "127.0.0.1")
    assert "passes: nothing refuses it now" in said("why", "127.0.0.1", "--endpoint", "own")


@pytest.mark.parametrize("command", [["config"], ["limits"], ["clear", "--key", "k"]], ids=str)
def test_command_of_flask_limiter_says_what_to_use_instead(limiter: Limiter, app: Flask, command: list[str]) -> None:
    app.get("/")(limiter.limit("5/minute")(named("v31")))
    error = app.test_cli_runner().invoke(theirs.cli, command).exception
    assert isinstance(error, AttributeError)
    assert "uninstall Flask-Limiter, or use `flask multilimit`" in str(error)


def test_limits_command_shows_options_of_bridge_limits(limiter: Limiter, app: Flask) -> None:
    options: dict[str, Any] = {"methods": ["post"], "cost": 2, "exempt_when": lambda: False}
    limited = limiter.limit("5/minute", deduct_when=lambda _: True, **options)(named("v22"))
    app.route("/", methods=["GET", "POST"], endpoint="index")(limiter.shared_limit("0/day", "mail")(limited))

    assert listed(app, "index") == [
        ("0/day", "Flask-Limiter: route limit", "scope mail; cost by request"),
        ("5/minute", "Flask-Limiter: route limit", "only POST; scope index; cost 2; exempt_when, charge_when"),
    ]


def test_limits_command_lists_bridge_limits_of_view_classes(app: Flask) -> None:
    limiter = Limiter(get_remote_address, app=app, default_limits=["9/hour"])
    shared = limiter.shared_limit("7/minute", "mail")

    class Pages(MethodView):
        get = limiter.limit("2/minute")(named("v25"))
        post, put = shared(named("v26")), shared(named("v27"))

        def patch(self) -> str:
            return "ok"

    app.add_url_rule("/", view_func=Pages.as_view("pages"))

    assert listed(app, "pages") == [
        ("2/minute", "Flask-Limiter: route limit", "only GET; scope pages"),
        ("7/minute", "Flask-Limiter: route limit", "only POST, PUT; scope mail"),
        ("9/hour", "Flask-Limiter: default limit", ""),
    ]


def test_limits_command_lists_routes_without_a_view(app: Flask) -> None:
    Limiter(get_remote_address, app=app, default_limits=["9/hour"])
    app.add_url_rule("/elsewhere", endpoint="elsewhere", build_only=True)
    assert listed(app, "elsewhere") == [("9/hour", "Flask-Limiter: default limit", "")]


def test_limits_command_lists_limits_that_depend_on_the_request(limiter: Limiter, app: Flask) -> None:
    app.get("/", endpoint="index")(limiter.limit(lambda: request.args["plan"])(named("v23")))
    ((name, where, _),) = listed(app, "index")
    assert (name, where.startswith("Flask-Limiter: ")) == ("limit", True)


# Limiters that are switched off


def test_disabled_limiter_does_not_affect_another_limiter(app: Flask) -> None:
    Limiter(get_remote_address, app=app, enabled=False, storage_uri="tape://")
    app.config["RATELIMIT_ENABLED"] = True
    Limiter(get_remote_address, app=app, default_limits=["1/minute"])
    app.get("/", endpoint="index")(named("v26"))

    assert codes(app, 2) == [200, 429]
    assert [name for name, *_ in listed(app, "index")] == ["1/minute"]


# Meta limits, which are bans


@pytest.fixture
def meta_limited(app: Flask) -> Flask:
    limiter = Limiter(get_remote_address, app=app, meta_limits=["2/hour"])
    app.get("/", endpoint="index")(limiter.limit("1/minute")(named("v17")))
    app.get("/free", endpoint="free")(named("v18"))
    return app


@pytest.mark.parametrize(
    ("override", "seen"),
    [
        ({"endpoint": "*", "limiter": "meta-2", "off": True}, [200, 429, 429, 200]),
        ({"endpoint": "*", "limiter": "meta-2", "shadow": True}, [200, 429, 429, 200]),
        ({"endpoint": "*", "limiter": "meta-2", "times": 2.0}, [200, 429, 429, 200]),
        ({"endpoint": "*", "limiter": "meta-2", "times": 0.5}, [200, 429, 429, 429]),
        ({"endpoint": "free", "off": True}, [200, 429, 429, 200]),
        ({"endpoint": "free", "shadow": True}, [200, 429, 429, 200]),
        ({"endpoint": "index", "times": 2.0}, [200, 200, 429, 200]),
        ({"endpoint": "*", "times": 9.0}, [200, 200, 200, 200]),
        ({"endpoint": "*", "limiter": "meta-3", "off": True}, [200, 429, 429, 429]),
    ],
    ids=str,
)
def test_overrides_change_meta_limits(meta_limited: Flask, override: dict[str, Any], seen: list[int]) -> None:
    control_of(meta_limited).override(**override, lasting=True, force=True)
    assert codes(meta_limited, 3) + codes(meta_limited, 1, "/free") == seen


def test_view_that_is_exempt_from_meta_limits_stays_so_when_an_override_ends_all_trials(meta_limited: Flask) -> None:
    (limiter,) = meta_limited.extensions["limiter"]
    limiter.exempt(meta_limited.view_functions["free"], flags=ExemptionScope.META)
    control_of(meta_limited).override("*", shadow=False, lasting=True, force=True)

    assert codes(meta_limited, 3) + codes(meta_limited, 1, "/free") == [200, 429, 429, 200]


def test_override_that_gives_rules_to_a_meta_limit_is_logged_and_ignored(
    meta_limited: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    control_of(meta_limited).override("*", limiter="meta-2", rules="9/hour", lasting=True, force=True)

    assert codes(meta_limited, 3) + codes(meta_limited, 1, "/free") == [200, 429, 429, 429]
    assert "meta-2 is a ban without rules; give times, shadow or off" in caplog.text


def test_commands_show_meta_limits_that_refuse_a_client_and_say_that_clear_keeps_them(meta_limited: Flask) -> None:
    def said(*command: str) -> list[str]:
        output = meta_limited.test_cli_runner().invoke(meta_limited.cli.commands["limiter"], command).output
        return [line.strip() for line in output.splitlines() if "2 per 1 hour" in line]

    limits_of_client = ("limits", "--key", "127.0.0.1")
    assert codes(meta_limited, 1, "/free") == [200]
    assert said(*limits_of_client) == ["2 per 1 hour: Pass (2 out of 2 remaining)  [meta]"] * 2
    assert codes(meta_limited, 4) == [200, 429, 429, 429]

    assert said("clear", "--key", "127.0.0.1", "-y") == ["2 per 1 hour (meta limit); not cleared"] * 2
    assert said(*limits_of_client) == ["2 per 1 hour: Fail (0 out of 2 remaining)  [meta]"] * 2
    control_of(meta_limited).override("*", limiter="meta-2", times=2.0, lasting=True, force=True)
    assert said(*limits_of_client) == ["2 per 1 hour: Fail (0 out of 4 remaining)  [meta]"] * 2
    assert [name for name, *_ in listed(meta_limited, "index")] == ["1/minute"]
    (limiter,) = meta_limited.extensions["limiter"]
    limiter.exempt(meta_limited.view_functions["free"], flags=ExemptionScope.META)
    assert said("limits") == ["2 per 1 hour  [meta]"]  # at the index alone


def test_callable_of_a_meta_limit_is_a_note_of_flask_limiter_limits_and_no_limiter(app: Flask) -> None:
    metas = [lambda: request.headers["X-Plan"]]
    limiter = Limiter(get_remote_address, app=app, meta_limits=metas, default_limits=["5/minute"])
    view = limiter.limit("1/minute")(named("v27"))
    app.add_url_rule("/", "index", view, methods=["GET", "POST"])

    shown = app.test_cli_runner().invoke(app.cli.commands["limiter"], ["limits"]).output
    assert shown.count("for lack of a request: KeyError: 'HTTP_X_PLAN'") == 1
    assert [name for name, *_ in listed(app, "index")] == ["1/minute"]


def test_state_of_a_meta_limit_can_be_asked_by_hand(meta_limited: Flask) -> None:
    (limiter,) = meta_limited.extensions["limiter"]
    (meta,) = MetaLimit("2/hour", key_function=get_remote_address)

    def left() -> tuple[int, int]:
        stats = limiter.limiter.get_window_stats(meta.limit, "127.0.0.1", "meta")
        return stats.remaining, round((stats.reset_time - time.time()) / 3600)

    seen = [left()]
    for _ in range(3):
        codes(meta_limited, 1)
        seen.append(left())
    assert [remaining for remaining, _ in seen] == [2, 2, 1, 0]
    assert seen[-1][1] == 1


def test_dashboard_is_open_to_an_address_that_a_meta_limit_bans_and_counts_no_traffic(meta_limited: Flask) -> None:
    meta_limited.register_blueprint(Dashboard(meta_limited.extensions["multilimit"], authorize=lambda: "ann"))
    assert codes(meta_limited, 4) == [200, 429, 429, 429]
    events: list[Event] = []

    with limit_event.connected_to(lambda _, event: events.append(event), meta_limited):
        assert codes(meta_limited, 1, "/multilimit/") == [200]

    assert events == []


def test_bans_by_meta_limits_are_listed_and_lifted(meta_limited: Flask) -> None:
    meta_limited.register_blueprint(Dashboard(meta_limited.extensions["multilimit"], authorize=lambda: "ann"))
    assert codes(meta_limited, 4) == [200, 429, 429, 429]
    pass_a_second(meta_limited)

    def of_api(name: str) -> Any:
        return meta_limited.test_client().get(f"/multilimit/api/{name}").json

    assert [(each["who"], each["by"], each["endpoint"]) for each in of_api("bans")] == [
        ("meta-2:127.0.0.1", "meta-2-ban", "index")
    ]
    assert of_api("now")["bans_in_force"] == [{"endpoint": "index", "rule": "meta-2-ban", "amount": 1}]
    found = of_api("subject?who=meta-2:127.0.0.1")["found"]
    assert (found["state"], found["lift"][0]) == ("banned", "flask multilimit unban meta-2:127.0.0.1")
    gate = gate_of(meta_limited)
    with meta_limited.app_context():
        unban(gate, client_from(gate, found["who"]))
    assert (of_api("bans"), codes(meta_limited, 1, "/free")) == ([], [200])


def test_meta_limit_sends_the_ban_signal_when_it_begins(meta_limited: Flask) -> None:
    told: list[tuple[str, str, str]] = []

    def note(_: Flask, *, endpoint: str, limiter: str, subject: str, **__: Any) -> None:
        told.append((endpoint, limiter, subject))

    with subject_banned.connected_to(note, meta_limited):
        seen = codes(meta_limited, 4, address="203.0.113.7")

    assert seen == [200, 429, 429, 429]
    assert told == [("index", "meta-2", "203.0.113.7")]


def test_observers_count_refusals_by_meta_limits_as_banned(app: Flask, meta_limited: Flask) -> None:
    told: list[str] = []

    def note(_: Flask, event: Event) -> None:
        told.append(f"{event.endpoint} {event.outcome}")

    codes(meta_limited, 3)
    with limit_event.connected_to(note, app):
        seen = [*codes(meta_limited, 1), *codes(meta_limited, 1, "/free"), *codes(meta_limited, 1, "/nowhere")]

    assert seen == [429, 429, 429]
    assert told == ["index banned", "free banned", " banned"]


def test_key_of_a_meta_limit_expires_when_it_ends(app: Flask, server: Server, redis_client: redis.Redis) -> None:
    limiter = Limiter(get_remote_address, app=app, storage_uri=server.url, meta_limits=["2/hour"])
    app.get("/", endpoint="index")(limiter.limit("1/minute")(named("v17")))

    assert codes(app, 4) == [200, 429, 429, 429]

    (key,) = redis_client.scan_iter("*:ban:*")
    assert 3500 < redis_client.ttl(key) <= 3600


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.1"])
def test_meta_limit_needs_no_extra_storage_command(
    app: Flask, server: Server, redis_client: redis.Redis, address: str
) -> None:
    limiter = Limiter(get_remote_address, app=app, storage_uri=server.tcp_url)
    app.get("/")(limiter.limit("1/minute", meta_limits=["2/hour"])(named("v19")))
    codes(app, 2)

    with commands(redis_client) as seen:
        codes(app, 1, address=address)

    assert seen == ["EVALSHA"]
