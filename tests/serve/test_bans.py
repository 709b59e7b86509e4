"""`ban=Ban(...)`: a client that is refused repeatedly is refused for a time."""

import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask, Response, request
from werkzeug.test import TestResponse

from flask_multilimit import (
    Ban,
    ConfigurationError,
    LimitType,
    MultiLimit,
    Rule,
    current_decision,
    rate_limiter,
)
from flask_multilimit.signals import limit_event, subject_banned
from support.asking import ask, heard, policy, statuses, view
from support.clock import Clock

BAN = Ban(after=3, within=600, time=3600, factor=2, most=86_400)


def limited(app: Flask, storage: Any, path: str = "/", **options: Any) -> Flask:
    if "multilimit" not in app.extensions:
        MultiLimit(app, storage=storage)
    given = {"type": LimitType.IP, "rules": "2/minute", "ban": BAN, **options}
    app.add_url_rule(path, path.strip("/") or "view", rate_limiter(**given)(view()))
    return app


def banned(app: Flask, path: str = "/", **options: Any) -> TestResponse:
    """The refusal that starts the ban: two requests pass, and the third refusal is the last strike."""
    assert statuses(app, *[path] * 4, **options) == [200, 200, 429, 429]
    return ask(app, path, **options)


# Who is refused


def test_ban_refuses_at_every_endpoint_of_its_scope(app: Flask, any_storage: Any) -> None:
    limited(app, any_storage, "/a", scope="login")
    limited(app, any_storage, "/b", scope="login", rules="100/minute")
    limited(app, any_storage, "/c")
    banned(app, "/a")

    assert statuses(app, "/b", "/c") == [429, 200]


def test_charge_when_bans_only_clients_with_failed_logins(app: Flask, any_storage: Any) -> None:
    def login() -> Any:
        return Response(status=int(request.args["status"]))

    MultiLimit(app, storage=any_storage)

    def failed(response: Response) -> bool:
        return response.status_code == 401

    limiter = rate_limiter(type=LimitType.IP, rules="2/minute", ban=BAN, charge_when=failed)
    app.add_url_rule("/login", "login", limiter(login))

    honest = [ask(app, "/login?status=200") for _ in range(20)]
    guesses = [ask(app, "/login?status=401") for _ in range(6)]

    assert {response.status_code for response in honest} == {200}
    assert [response.status_code for response in guesses] == [401, 401, 429, 429, 429, 429]
    assert [response.headers.get("Retry-After") for response in guesses[2:]] == ["60", "60", "3600", "3600"]


# Responses


def test_header_fields_show_a_ban_only_while_it_holds(app: Flask, any_storage: Any) -> None:
    limited(app, any_storage)

    before, _, refused, _, completing = (ask(app) for _ in range(5))

    assert policy(before) == policy(refused) == ["ip-60s"]
    assert completing.headers["RateLimit-Policy"] == '"ip-60s";q=2;w=60, "ip-ban";q=0'
    assert completing.headers["RateLimit"] == '"ip-60s";r=0;t=60, "ip-ban";r=0;t=3600'


def test_limit_with_a_ban_shows_its_own_reset(app: Flask, any_storage: Any, clock: Clock) -> None:
    limited(app, any_storage, rules=Rule(60, 9, algorithm="fixed_window"))
    ask(app)
    clock.advance(10)
    assert ask(app).headers["RateLimit"] == '"ip-60s";r=7;t=50'


@pytest.mark.parametrize(
    ("dialect", "told"),
    [
        ("draft-06", {"RateLimit-Limit": "0", "RateLimit-Remaining": "0", "RateLimit-Reset": "3600"}),
        ("legacy", {"X-RateLimit-Limit": "0", "X-RateLimit-Remaining": "0"}),
    ],
    ids=["draft-06", "legacy"],
)
def test_other_header_dialects_show_the_ban_as_the_tightest_limit(
    app: Flask, any_storage: Any, dialect: str, told: dict[str, str]
) -> None:
    app.config["MULTILIMIT_HEADERS"] = dialect
    limited(app, any_storage)

    response = banned(app)

    assert {name: response.headers[name] for name in told} == told
    if dialect == "legacy":
        assert 3590 <= int(response.headers["X-RateLimit-Reset"]) - time.time() <= 3602


def test_problem_details_describe_the_ban_while_it_holds(app: Flask, any_storage: Any, clock: Clock) -> None:
    limited(app, any_storage)
    answers: list[Any] = [ask(app).get_json(silent=True) for _ in range(5)]
    _, _, before, _, refused = answers
    clock.advance(600)

    assert before["detail"] == "Too many requests. Please try again later."
    assert ask(app).get_json()["violated-policies"] == ["ip-ban"]
    assert refused == {
        "type": "https://iana.org/assignments/http-problem-types#abnormal-usage-detected",
        "title": "Abnormal Usage Detected",
        "status": 429,
        "detail": "You are temporarily banned.",
        "violated-policies": ["ip-60s", "ip-ban"],
        "violations": [
            {"policy": "ip-60s", "limit": 2, "window": 60, "retry-after": 60},
            {"policy": "ip-ban", "banned": True, "retry-after": 3600},
        ],
    }


@pytest.mark.parametrize(
    ("language", "text", "wait"),
    [("en", "You are temporarily banned.", "in 60 minutes."), ("zh-CN", "您已被暂时封禁", "在 60 分钟后")],
)
def test_html_page_of_a_ban_is_in_the_language_of_the_client(
    app: Flask, any_storage: Any, language: str, text: str, wait: str
) -> None:
    app.config["MULTILIMIT_LOCALE"] = "auto"
    limited(app, any_storage)

    response = banned(app, headers={"Accept": "text/html", "Accept-Language": language})

    assert text in response.get_data(as_text=True)
    assert wait in response.get_data(as_text=True)


def test_ban_that_does_not_hold_leaves_current_decision_unchanged(app: Flask, any_storage: Any) -> None:
    MultiLimit(app, storage=any_storage)
    app.add_url_rule(
        "/",
        "view",
        rate_limiter(type=LimitType.IP, rules="5/minute", ban=BAN)(
            lambda: {"left": current_decision.remaining, "resets": current_decision.reset_after}
        ),
    )

    assert ask(app).get_json() == {"left": 4, "resets": 60}


# Signals, events, log


@pytest.fixture
def signalled(app: Flask) -> Iterator[list[tuple[str, Any]]]:
    with heard(app, subject_banned) as signalled:
        yield signalled


def test_ban_is_signalled_once_when_it_begins(app: Flask, any_storage: Any, signalled: list[tuple[str, Any]]) -> None:
    limited(app, any_storage, name="login")
    banned(app)
    for _ in range(5):
        ask(app)

    [(_, told)] = signalled

    decision = told.pop("decision")
    assert 3590 <= told.pop("until") - time.time() <= 3600
    assert told == {"endpoint": "view", "limiter": "login", "subject": "127.0.0.1", "level": 0}
    assert decision.ban.begun


def test_repeated_ban_signals_its_level_and_lasts_longer(
    app: Flask, any_storage: Any, signalled: list[tuple[str, Any]], clock: Clock
) -> None:
    limited(app, any_storage)
    banned(app)
    clock.advance(3600)
    response = banned(app)

    assert [told["level"] for _, told in signalled] == [0, 1]
    assert response.headers["Retry-After"] == "7200"


def test_events_distinguish_refused_from_banned(app: Flask, any_storage: Any) -> None:
    limited(app, any_storage)
    with heard(app, limit_event) as signals:
        banned(app)
        ask(app)

    events = [told["event"] for _, told in signals]
    assert [event.outcome for event in events] == ["allowed", "allowed", "refused", "refused", "banned", "banned"]
    assert events[-1].rules == ("ip-60s", "ip-ban")
    assert events[-1].refusals[-1][:] == ("ip-ban", "ip", "127.0.0.1")


@pytest.mark.parametrize(
    ("setting", "lines"),
    [
        (
            "summary",
            [
                "Rate limits: banned ip for 3600 s at view by ip-ban",
                "Rate limits: banned ip for 7200 s at view by ip-ban, repetition 1",
            ],
        ),
        ("subjects", ["Rate limits: banned ip 127.0.0.1 for 3600 s at view by ip-ban"]),
        ("off", []),
    ],
    ids=["summary", "subjects", "off"],
)
def test_each_ban_is_one_log_line(
    app: Flask, any_storage: Any, clock: Clock, caplog: pytest.LogCaptureFixture, setting: str, lines: list[str]
) -> None:
    app.config["MULTILIMIT_LOG"] = setting
    limited(app, any_storage)
    with caplog.at_level(logging.INFO):
        for _ in lines or [""]:
            banned(app)
            ask(app)
            clock.advance(3600)

    assert [record.getMessage() for record in caplog.records if " banned ip" in record.getMessage()] == lines


def test_ban_that_begins_while_a_limiter_is_a_shadow_refuses_nobody_after_the_trial(
    app: Flask, any_storage: Any
) -> None:
    multilimit = limited(app, any_storage).extensions["multilimit"]
    banned(app, environ_base={"REMOTE_ADDR": "10.0.0.1"})
    with app.app_context():
        trial = multilimit.control.override("view", limiter="ip", shadow=True, lasting=True)
        assert statuses(app, *["/"] * 6) == [200] * 6
        multilimit.control.undo(trial.id)

        assert ask(app).headers["Retry-After"] == "60", "the limit refuses, and its history goes on"
        assert multilimit.standing(ip="127.0.0.1").verdict.startswith("refused at view by ip-60s")
    assert ask(app, environ_base={"REMOTE_ADDR": "10.0.0.1"}).headers["Retry-After"] == "3600", "banned before"


def test_ban_of_a_shadow_that_begins_with_a_real_one_is_not_signalled(
    app: Flask, any_storage: Any, signalled: list[tuple[str, Any]]
) -> None:
    MultiLimit(app, storage=any_storage)
    shadow = rate_limiter(type=lambda: "x", name="trial", rules="2/minute", ban=BAN, shadow=True)
    real = rate_limiter(type=LimitType.IP, rules="2/minute", ban=BAN)
    app.add_url_rule("/", "view", shadow(real(view())))

    banned(app)

    assert [told["limiter"] for _, told in signalled] == ["ip"]


# Limits of all kinds


def test_default_and_unmatched_limits_can_ban(app: Flask, any_storage: Any) -> None:
    ban = {"after": 2, "time": 1800}
    app.config["MULTILIMIT_UNMATCHED_LIMITS"] = {"type": "ip", "rules": "3/minute", "ban": ban}
    app.config["MULTILIMIT_DEFAULT_LIMITS"] = [rate_limiter(type=LimitType.IP, rules="1/minute", ban=Ban(after=1))]
    MultiLimit(app, storage=any_storage)
    app.add_url_rule("/", "view", view())

    scan = [ask(app, f"/{number}.php") for number in range(6)]

    assert [response.status_code for response in scan] == [404, 404, 404, 429, 429, 429]
    assert [response.headers["Retry-After"] for response in scan[3:]] == ["60", "1800", "1800"]
    assert statuses(app, "/", "/") == [200, 429]
    assert ask(app).headers["Retry-After"] == "3600"


def test_dynamic_rules_can_ban(app: Flask, any_storage: Any) -> None:
    limited(app, any_storage, rules=lambda: Rule(60, 2))
    assert banned(app).headers["Retry-After"] == "3600"


def test_limiters_of_one_view_ban_separately(app: Flask, any_storage: Any) -> None:
    MultiLimit(app, storage=any_storage)
    view_ = rate_limiter(type=LimitType.IP, rules="2/minute", ban=BAN)(view())
    view_ = rate_limiter(type=lambda: "x", name="own", rules="1/minute", ban=Ban(after=1, time=60))(view_)
    app.add_url_rule("/", "view", view_)

    assert statuses(app, "/", "/") == [200, 429]
    assert ask(app).headers["RateLimit-Policy"] == '"own-60s";q=1;w=60, "own-ban";q=0, "ip-60s";q=2;w=60'


def test_equal_bans_of_one_scope_on_one_view_are_one_ban(app: Flask, any_storage: Any) -> None:
    MultiLimit(app, storage=any_storage)
    view_ = rate_limiter(type=LimitType.IP, scope="s", rules="1/minute", ban=BAN)(view())
    view_ = rate_limiter(type=LimitType.IP, scope="s", rules="2/hour", ban=BAN, message="Too much.")(view_)
    app.add_url_rule("/", "view", view_)

    assert statuses(app, *["/"] * 3) == [200, 429, 429]
    response = ask(app)

    assert response.headers["Retry-After"] == "3600"
    assert policy(response) == ["ip-3600s", "ip-ban", "ip-60s"]
    assert response.get_json()["detail"] == "Too much."


def test_different_bans_with_one_key_are_an_error() -> None:
    two = rate_limiter(type=LimitType.IP, rules="2/minute", ban=BAN)(view())
    with pytest.raises(ConfigurationError, match=r"Ban\(ban of 60 min .*\) of the ip limiter .* would share one key"):
        rate_limiter(type=LimitType.IP, rules="9/hour", ban=Ban(time=60))(two)
