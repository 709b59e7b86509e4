"""Calendar quotas in an app: on views, in data, in changes at run time, and in commands, pages and simulations."""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from flask import Flask, request

from flask_multilimit import IP, USER, Calendar, ConfigurationError, MultiLimit, Rule, rate_limiter
from flask_multilimit.declare.data import WrittenRule
from flask_multilimit.insight.doctor import examine
from flask_multilimit.insight.limits import endpoint_limits, places_of
from flask_multilimit.insight.values import as_json
from flask_multilimit.plan.overrides import change_rules, merged
from flask_multilimit.serve.gate import gate_of
from flask_multilimit.testing import freeze
from plan.written import override
from support.asking import view

BERLIN = Calendar(2, "month", timezone="Europe/Berlin", anchor=15)


def app_with(rules: Any, **settings: Any) -> Flask:
    app = Flask("shop")
    app.config.update(TESTING=True, **settings)
    MultiLimit(app, user_loader=lambda: request.headers.get("X-User"))
    app.add_url_rule("/", "show", rate_limiter(type=USER, rules=rules)(view()))

    return app


def asked(app: Flask, user: str = "ada", **headers: str) -> Any:
    return app.test_client().get("/", headers={"X-User": user, **headers})


def until_the_next(day: int, now: float) -> float:
    zone = ZoneInfo("Europe/Berlin")
    today = datetime.fromtimestamp(now, zone)
    month = today.month + (today.day >= day)
    begin = datetime(today.year + (month > 12), month - 12 * (month > 12), day, tzinfo=zone)
    return begin.timestamp() - now


def test_refused_client_is_admitted_when_the_next_period_begins() -> None:
    app = app_with([BERLIN, Rule(1, 100)])
    with freeze(app) as clock:
        first, second = asked(app), asked(app)
        assert first.headers["RateLimit-Policy"] == '"user-month";q=2, "user-1s";q=100;w=1'
        wait = until_the_next(15, clock.now)
        refused = asked(app, Accept="application/problem+json")

        assert (second.status_code, refused.status_code) == (200, 429)
        assert int(refused.headers["Retry-After"]) == pytest.approx(wait, abs=1)
        (violation,) = refused.json["violations"]
        assert (violation["policy"], violation["limit"], violation["period"]) == ("user-month", 2, "month")
        assert "window" not in violation

        clock.advance(wait - 0.001)
        assert asked(app).status_code == 429
        clock.advance(0.001)
        assert asked(app).status_code == 200


def test_dynamic_rules_give_each_user_a_calendar_of_its_own() -> None:
    plans = {"ada": BERLIN, "bo": Calendar(1, "month", timezone="Asia/Tokyo", anchor=31)}
    app = app_with(lambda user: plans[user])

    assert [asked(app, "ada").status_code for _ in range(3)] == [200, 200, 429]
    assert [asked(app, "bo").status_code for _ in range(2)] == [200, 429]

    plans["ada"] = Calendar(3, "month", timezone="Europe/Berlin", anchor=15)
    assert [asked(app, "ada").status_code for _ in range(2)] == [200, 429], "an upgrade keeps what was used"


# Data


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        ({"count": 5, "per": "month"}, Calendar(5, "month")),
        (
            {"count": 5, "per": "week", "timezone": "Asia/Tokyo", "anchor": 7, "name": "w"},
            Calendar(5, "week", timezone="Asia/Tokyo", anchor=7, name="w"),
        ),
        ({"count": 5, "per": "year", "anchor": "04-06"}, Calendar(5, "year", anchor="04-06")),
        ({"count": 5, "per": "day", "timezone": None, "anchor": None}, Calendar(5, "day")),
    ],
    ids=str,
)
def test_calendar_is_read_from_data(written: Mapping[str, Any], rule: Calendar) -> None:
    assert WrittenRule.model_validate(written).rule == rule
    assert WrittenRule.model_validate_json(json.dumps(written)).rule == rule


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"count": 5, "per": "month", "time": 60}, "a calendar has no time"),
        ({"count": 5, "per": "month", "algorithm": "gcra"}, "a calendar has no algorithm"),
        ({"count": 5, "per": "month", "lease": 5}, "a calendar has no lease"),
        ({"count": 5, "timezone": "UTC"}, "give per, too"),
        ({"count": 5, "per": "fortnight"}, "per"),
        ({"count": 5, "per": "month", "timezone": "Europe/Berln"}, "not a time zone"),
        ({"count": 5, "per": "month", "anchor": 32}, "1 to 31"),
    ],
)
def test_invalid_calendar_in_data_is_an_error(app: Flask, written: dict[str, Any], message: str) -> None:
    app.config["MULTILIMIT_DEFAULT_LIMITS"] = {"type": "ip", "rules": written}
    with pytest.raises(ConfigurationError, match=message):
        MultiLimit(app)


# Changes at run time


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        ("9 per calendar month", Calendar(9, "month", timezone="Europe/Berlin", anchor=15)),
        ("9 per calendar week", Calendar(9, "week", timezone="Europe/Berlin")),
        ("9 per calendar month in UTC", Calendar(9, "month", anchor=15)),
        ("9 per calendar month from 1", Calendar(9, "month", timezone="Europe/Berlin")),
        ("9/minute", Rule(60, 9)),
        ({"count": 9}, Calendar(9, "month", timezone="Europe/Berlin", anchor=15)),
        ({"per": "day"}, Calendar(2, "day", timezone="Europe/Berlin")),
        ({"count": 9, "per": "month", "anchor": 1}, Calendar(9, "month", timezone="Europe/Berlin")),
        ({"count": 9, "time": 60, "algorithm": "gcra"}, Rule(60, 9, algorithm="gcra")),
    ],
    ids=str,
)
def test_override_keeps_calendar_fields_that_it_does_not_set(written: Any, rule: Rule) -> None:
    given = written if isinstance(written, str) else WrittenRule.model_validate(written)
    assert merged(BERLIN, given) == rule


def test_override_can_turn_a_rate_into_a_calendar() -> None:
    assert merged(Rule(60, 5, algorithm="token_bucket", burst=9, name="r"), "7 per calendar day") == Calendar(
        7, "day", name="r"
    )


def test_override_can_multiply_the_count_of_a_calendar() -> None:
    ((_, rule),) = change_rules([("r", BERLIN)], override("x", rule="r", times=2.5))
    assert rule == Calendar(5, "month", timezone="Europe/Berlin", anchor=15)


# Commands, pages and simulations


def test_limit_in_json_has_the_fields_of_its_calendar() -> None:
    app = app_with(BERLIN)
    gate = gate_of(app)
    (place,) = (each for each in places_of(gate) if each.name == "show")

    (limit,) = as_json(endpoint_limits(gate, place))["limits"]

    assert limit["text"] == "2 per calendar month from 15 in Europe/Berlin"
    assert [limit[name] for name in ("count", "time", "algorithm")] == [2, None, "calendar"]
    assert [limit[name] for name in ("per", "timezone", "anchor")] == ["month", "Europe/Berlin", 15]


@pytest.mark.parametrize(
    "arguments",
    [
        ("limits",),
        ("limits", "--json"),
        ("check", "show", "--user", "ada"),
        ("check", "show", "--user", "ada", "--json"),
        ("why", "user:ada"),
    ],
    ids=" ".join,
)
def test_commands_show_the_period(arguments: tuple[str, ...]) -> None:
    app = app_with(BERLIN)
    asked(app)

    ended = app.test_cli_runner().invoke(args=["multilimit", *arguments])

    assert ended.exit_code == 0, ended.output
    assert "month" in ended.output


@pytest.mark.parametrize("rules", [BERLIN, "100/minute", Calendar(5, "hour")], ids=["month", "minute", "hour"])
def test_doctor_warns_about_long_periods_in_process_memory(rules: Any) -> None:
    found = [each for each in examine(gate_of(app_with(rules))) if each.name == "storage"]
    lasting = rules is BERLIN
    assert [each.level for each in found] == ["warning" if lasting else "hint"]
    assert ("2 per calendar month" in found[0].text) == lasting


def test_simulation_begins_periods_in_their_time_zone(app: Flask, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    times = ["20/Nov/2026:22:58:00", "20/Nov/2026:22:59:00", "20/Nov/2026:22:59:59", "20/Nov/2026:23:00:00"]
    line = '203.0.113.7 - {user} [{time} +0000] "GET / HTTP/1.1" 200 5 "-" "-"\n'
    log.write_text("".join(line.format(user="ada", time=time) for time in times))
    MultiLimit(app)
    app.add_url_rule(
        "/", "show", rate_limiter(type=IP, rules=Calendar(2, "day", timezone="Europe/Berlin"))(lambda: "ok")
    )

    ended = app.test_cli_runner().invoke(args=["multilimit", "simulate", str(log), "--json"])

    assert json.loads(ended.output)["reports"][0]["refused"] == 1, ended.output
