"""flask multilimit check: what is left to a subject, and whether a request would pass."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, request
from flask.testing import FlaskClient

from flask_multilimit import DEFAULT, IP, USER, LimitType, MultiLimit, rate_limiter
from flask_multilimit.engine import Limiter, hits_for, storage_from_uri
from flask_multilimit.engine.text import quoted
from operate.cli.conftest import ADDRESS, Command, call
from support.asking import view

REPORTS = """
from flask import Flask
from flask_multilimit import IP, MultiLimit, rate_limiter

app = Flask("reports")
app.config.from_prefixed_env()
MultiLimit(app)
app.get("/", endpoint="report")(rate_limiter(type=IP, rules=["2/minute", "2 at once"])(lambda: iter("abc")))
"""


def test_check_shows_remaining_units_and_that_a_request_would_pass(on_server: Command, shop: FlaskClient) -> None:
    call(shop, "/update", 2)

    run = on_server("check", "update", "--ip", "203.0.113.7")

    assert run.code == 0
    assert run.out.startswith("update GET  a request would pass\n")
    assert re.search(r"^ip-20s           203\.0\.113\.7  3 per 20 s       1 +-  ", run.out, re.MULTILINE)
    assert "default-86400s   everyone     1000 per day     998 " in run.out


def test_check_and_why_show_a_debt_as_units_over(on_server: Command) -> None:
    limiter = Limiter(storage_from_uri(on_server.environment["FLASK_MULTILIMIT_STORAGE_URI"], timeout=10))
    wanted = hits_for("3 per 20 seconds", scope="update", subject="ip:203.0.113.7")
    limiter.settle(limiter.check(wanted), 1343)

    for command in (("check", "update", "--ip", "203.0.113.7"), ("why", "203.0.113.7")):
        assert re.search(r"ip-20s +203\.0\.113\.7 +3 per 20 s +1,340 over +[\d.]+ s ", on_server(*command).out)
        (rule,) = [
            rule
            for each in on_server(*command, "--json").json["requests"]
            for rule in each["rules"]
            if rule["name"] == "ip-20s" and not rule["allowed"]
        ]
        assert (rule["used"], rule["remaining"], rule["debt"]) == (1343, 0, 1340)


def test_check_says_that_wait_for_a_slot_is_not_known(on_server: Command, tmp_path: Path) -> None:
    file = tmp_path / "reports.py"
    file.write_text(REPORTS)
    uri = on_server.environment["FLASK_MULTILIMIT_STORAGE_URI"]
    check, limiter = Command(file, uri), Limiter(storage_from_uri(uri, timeout=10))
    for _ in range(2):
        limiter.check(hits_for("2 at once", scope="report", subject="ip:203.0.113.7"))

    run = check("check", "report", "--ip", "203.0.113.7", columns=100)
    answer = check("check", "report", "--ip", "203.0.113.7", "--json").json

    assert run.out.startswith("report GET  a request would be refused, until a slot is free\n")
    assert "Nobody knows when: a slot becomes free when a request that holds one ends." in run.out
    assert "ip-at-once  203.0.113.7  2 at once     0     not known " in run.out
    rules = [(rule["name"], rule["waits_for_slot"], rule["retry_after"]) for rule in answer["requests"][0]["rules"]]
    assert rules == [("ip-60s", False, 0), ("ip-at-once", True, None)]
    for told in (answer, answer["requests"][0]):
        assert (told["allowed"], told["retry_after"], told["waits_for_slot"]) == (False, None, True)

    for _ in range(2):
        limiter.check(hits_for("2/minute", scope="report", subject="ip:203.0.113.7"))
    run = check("check", "report", "--ip", "203.0.113.7", columns=100)

    assert re.match(
        r"report GET  a request would be refused, for at least [\d.]+ s, and until a slot is free\n", run.out
    )
    limiter.close()


@pytest.mark.parametrize(
    ("listing", "verdict", "said"),
    [
        ("deny 203.0.113.0/24 --lasting", "be refused with 403, and waiting does not help", "denied (deny "),
        ("deny 203.0.113.0/24 --for 2h --status 429", "be refused with 429, for 2 h", "denied (deny "),
        ("ban 203.0.113.7 --for 2h", "be refused with 429, for 2 h", "banned (ban "),
        ("allow 203.0.113.7 --lasting", "pass\n", "allowed (allow "),
    ],
)
def test_check_reports_list_entry_before_limits(
    on_server: Command, shop: FlaskClient, listing: str, verdict: str, said: str
) -> None:
    action, who, *_ = listing.split()
    call(shop, "/update", 4)
    assert on_server(*listing.split(), "--yes").code == 0

    run = on_server("check", "update", "--ip", "203.0.113.7", columns=200)
    answer = on_server("check", "update", "--ip", "203.0.113.7", "--json").json

    assert run.out.startswith(f"update GET  a request would {verdict}")
    assert said in run.out
    assert "Without this entry, the limits below would decide." in run.out
    assert "ip-20s           203.0.113.7  3 per 20 s" in run.out
    assert answer["allowed"] is (action == "allow")
    assert (answer["listed"]["action"], answer["listed"]["who"]) == (action, who)
    assert answer["retry_after"] == (0 if answer["allowed"] else answer["listed"]["ends_in"])


def test_entry_is_not_compared_with_limits_where_there_are_none(on_server: Command) -> None:
    on_server("deny", "203.0.113.7", "--lasting", "--yes")
    told = on_server("check", "health", "--ip", "203.0.113.7").out_on_one_line
    assert told.startswith("health GET a request would be refused with 403, and waiting does not help")
    assert "Without this entry" not in told


def test_why_lists_the_changes_that_concern_a_client(on_server: Command) -> None:
    made = ("--lasting", "--yes", "--author", "ann", "--reason", "sale")
    assert on_server("set", "update", "--who", "203.0.113.7", "--rules", "9/minute", *made).code == 0

    told = on_server("why", "203.0.113.7", columns=120).out

    assert re.search(
        r"^ENTRY +CHANGE +BY +REASON\n\S+ +203\.0\.113\.7 at update: 9/minute +ann +sale$", told, re.MULTILINE
    )


SEEN_ALIKE = ["user:bob\\nx", "user:bob\nx", "user:a\u202eb", "user:a\\u202eb", "user:bob ", 'user:"bob"']


@pytest.mark.parametrize("who", SEEN_ALIKE)
def test_names_and_commands_that_are_shown_are_those_of_this_client_when_they_are_copied(
    on_server: Command, who: str
) -> None:
    for each in SEEN_ALIKE:
        on_server("ban", each, "--for", "2h", "--yes")

    told = on_server("why", who, columns=120).out
    (lift,) = re.findall("  flask multilimit (unban .*)", told)
    rows = on_server("bans", columns=120).out.splitlines()[1:]
    shown = {re.split("  +", row)[0] for row in rows}

    assert len(shown) == len(SEEN_ALIKE)
    assert shlex.split(lift)[1] in shown
    assert told.startswith(f"{quoted(who)}  (counted by")
    for listed in ("entries", "history"):
        assert re.search(rf" ban {re.escape(quoted(who))}(?:  |\n)", on_server(listed, columns=120).out)
    assert on_server("why", who, "--json").json["lift"] == [f"flask multilimit unban {shlex.quote(who)}"]
    assert on_server(*shlex.split(lift), "--yes").out == f"Lifted: ban {quoted(who)}.\n"
    assert [each["who"] for each in on_server("bans", "--json").json["bans"]] == [
        each for each in SEEN_ALIKE if each != who
    ]


def test_check_looks_up_each_given_subject_in_lists(on_server: Command) -> None:
    on_server("ban", "user:42", "--for", "2h", "--yes")

    told = {
        user: on_server("check", "update", "--ip", "203.0.113.7", "--user", user, "--json").json["listed"]
        for user in ("42", "43")
    }

    assert told["42"]["action"] == "ban"
    assert told["43"] is None


@pytest.mark.parametrize("who", SEEN_ALIKE)
def test_check_understands_names_as_why_writes_them(on_server: Command, who: str) -> None:
    on_server("ban", who, "--for", "2h", "--yes")

    given = [("--subject", quoted(who)), ("--user", quoted(who.removeprefix("user:")))]
    told = [on_server("check", "update", "--ip", "203.0.113.7", *each, "--json").json["listed"] for each in given]

    assert [each["who"] for each in told] == [who, who]


def test_check_shows_strikes_left_before_a_ban(on_server: Command, shop: FlaskClient) -> None:
    assert call(shop, "/secret", 2, method="POST") == [200, 429]

    run = on_server("check", "secret", "--ip", "203.0.113.7", columns=120)
    (asked,) = on_server("check", "secret", "--ip", "203.0.113.7", "--json").json["requests"]

    assert "ip-ban           203.0.113.7  60 min, x 2 up to 24 h after 2 refusals in 10 min  1 refusal  -" in run.out
    (ban,) = asked["bans"]
    assert 0 < ban.pop("reset_after") <= 600
    assert ban == {
        "name": "ip-ban",
        "type": "ip",
        "subject": "203.0.113.7",
        "shown": "203.0.113.7",
        "text": "60 min, x 2 up to 24 h after 2 refusals in 10 min",
        "shadow": False,
        "holds": False,
        "level": 0,
        "since": None,
        "strikes_left": 1,
        "retry_after": 0,
        "key": "rate_limit:{secret}:ip:203.0.113.7:ban:600000",
    }


def test_check_shows_a_ban_and_reset_ends_it(on_server: Command, shop: FlaskClient) -> None:
    assert call(shop, "/secret", 3, method="POST") == [200, 429, 429]

    check = on_server("check", "secret", "--ip", "203.0.113.7", columns=120)
    told = on_server("check", "secret", "--ip", "203.0.113.7", "--json").json
    reset = on_server("reset", "secret", "--ip", "203.0.113.7", "--yes")

    assert "a request would be refused, for " in check.out
    assert 3000 < told["retry_after"] <= 3600
    assert told["requests"][0]["bans"][0]["holds"]
    assert [rule["name"] for rule in told["requests"][0]["rules"]] == ["application-60s", "ip-60s"]
    assert reset.out == "Reset: ip-60s, ip-ban.\n"
    shop.application.extensions["multilimit.gate"].limiter.outermost.forget([told["requests"][0]["bans"][0]["key"]])
    assert call(shop, "/secret", 1, method="POST") == [200]


def test_check_shows_the_refusing_rule_and_its_wait(on_server: Command, shop: FlaskClient) -> None:
    assert call(shop, "/update", 4) == [200, 200, 200, 429]

    run = on_server("check", "update", "--ip", "203.0.113.7")
    answer = on_server("check", "update", "--ip", "203.0.113.7", "--json").json

    assert "update GET  a request would be refused, for " in run.out
    (asked,) = answer["requests"]
    assert answer["allowed"] is asked["allowed"] is False
    assert asked["methods"] == ["GET"]
    assert 0 < answer["retry_after"] <= 20
    (refusing,) = (rule for rule in asked["rules"] if not rule["allowed"])
    assert refusing == {
        **dict.fromkeys(("burst", "max_delay", "lease", "per", "timezone", "anchor")),
        **dict.fromkeys(("shadow", "by_request", "allowed", "waits_for_slot"), False),
        **dict.fromkeys(("quota", "used", "count"), 3),
        "name": "ip-20s",
        "type": "ip",
        "subject": "203.0.113.7",
        "shown": "203.0.113.7",
        "text": "3 per 20 s",
        "time": 20,
        "algorithm": "sliding_window",
        "cost": 1,
        "remaining": 0,
        "debt": 0,
        "retry_after": answer["retry_after"],
        "reset_after": refusing["reset_after"],
        "key": "rate_limit:{update}:ip:203.0.113.7:sliding_window:20000",
    }


def test_check_names_limits_whose_subject_is_not_given(on_server: Command) -> None:
    run = on_server("check", "api.search", "--ip", "203.0.113.7")
    assert "would pass, as far as checked" in run.out
    assert "user (--user), user+ip (--user and\n--ip), api_key (--subject api_key:...)." in run.out


def test_check_finds_quotas_of_combined_types_and_names_rules_that_depend_on_the_request(
    on_server: Command, shop: FlaskClient
) -> None:
    shop.get("/api/search/x", environ_base=ADDRESS, headers={"X-User": "ann", "X-Api-Key": "abc"})

    arguments = ("--user", "ann", "--ip", "203.0.113.7", "--subject", "api_key:abc")
    (answer,) = on_server("check", "api.search", *arguments, "--json").json["requests"]
    run = on_server("check", "api.search", *arguments, columns=100)

    left = {rule["name"]: rule["remaining"] for rule in answer["rules"]}
    assert left == {
        "application-60s": 4999,
        "user-3600s": 9,
        "ip-60s": 99,
        "user-ip-3600s": 4,
    }
    assert (answer["not_asked"], answer["by_request"]) == ({}, ["api_key"])
    assert "ann + 203.0.113.7" in run.out
    assert "a request would pass, as far as checked" in run.out
    assert "Not checked, because they depend on the request: the rules of api_key." in run.out


def test_check_says_when_a_view_has_no_limits(on_server: Command) -> None:
    assert on_server("check", "health").out == "health GET  no limit applies\n"


class TestLimitOfOneMethod:
    """A view that takes GET and POST, with a limit of POST only."""

    def test_check_shows_each_method_separately(self, on_server: Command, shop: FlaskClient) -> None:
        assert call(shop, "/login", 3, method="POST") == [200, 200, 429]

        told = on_server("check", "login", "--ip", "203.0.113.7").out
        answer = on_server("check", "login", "--ip", "203.0.113.7", "--json").json

        assert "login GET  a request would pass\n" in told
        assert "login POST  a request would be refused, for " in told
        assert answer["allowed"] is False
        assert [(each["methods"], each["allowed"]) for each in answer["requests"]] == [
            (["GET"], True),
            (["POST"], False),
        ]

    def test_check_with_a_method_shows_only_that_method(self, on_server: Command, shop: FlaskClient) -> None:
        call(shop, "/login", 3, method="POST")

        get, post = (
            on_server("check", "login", "--ip", "203.0.113.7", "--method", each).out for each in ("get", "post")
        )

        assert get.startswith("login GET  a request would pass\n")
        assert "GET" not in post

    def test_reset_covers_all_methods(self, on_server: Command, shop: FlaskClient) -> None:
        call(shop, "/login", 3, method="POST")
        run = on_server("reset", "login", "--ip", "203.0.113.7", "--yes")
        assert run.out == "Reset: ip-60s.\n"
        assert on_server("check", "login", "--ip", "203.0.113.7", "--json").json["allowed"] is True

    def test_method_that_the_view_does_not_take_is_an_error(self, on_server: Command) -> None:
        run = on_server("check", "login", "--method", "PUT")
        assert run.code == 1
        assert '"login" does not take PUT; its routes take GET, HEAD, OPTIONS, POST' in run.err


VERDICTS: dict[str, tuple[dict[LimitType, Any], str, str, str]] = {
    "no subject": ({IP: "1/hour", USER: "1/hour"}, "", "unknown", "not known: no subject is given for user, ip limits"),
    "no subject and a shared limit": (
        *({IP: "1/hour", DEFAULT: "9/hour"}, "", "passes"),
        "passes the limits that everyone shares: no subject is given for ip limits",
    ),
    "shared limit": ({DEFAULT: "9/hour"}, "", "passes", "passes: nothing refuses it now"),
    "no limits": ({}, "", "unlimited", "passes: no limit counts it"),
    "other type": ({IP: "1/hour"}, "--user ann", "unlimited", "passes: no limit counts it"),
    "rules of subject": (
        {IP: lambda subject: f"{len(subject)}/hour"},
        "--ip ::1",
        "passes",
        "passes: nothing refuses it now",
    ),
    "rules of request": (
        *({IP: lambda: request.args["rules"]}, "--ip ::1", "unknown"),
        "not known: the rules of ip depend on the request",
    ),
}


@pytest.mark.parametrize(("declared", "arguments", "state", "verdict"), VERDICTS.values(), ids=VERDICTS)
def test_check_verdict_names_unchecked_limits(
    app: Flask, declared: dict[LimitType, Any], arguments: str, state: str, verdict: str
) -> None:
    MultiLimit(app, user_loader=lambda: None)
    shown = view()
    for type_, rules in declared.items():
        shown = rate_limiter(type=type_, rules=rules)(shown)
    app.add_url_rule("/", "shown", shown)
    assert app.test_client().get("/?rules=1/hour").status_code == 200

    result = app.test_cli_runner().invoke(args=["multilimit", "check", "shown", *arguments.split(), "--json"])

    answer = json.loads(result.output)
    assert (answer["state"], answer["verdict"]["text"]) == (state, verdict)


def test_check_names_a_mistake_that_keeps_the_app_from_serving(tmp_path: Path, on_server: Command) -> None:
    """It said that the endpoint has no limits."""
    shop = tmp_path / "reports.py"
    shop.write_text(f"{REPORTS}\nrate_limiter('5/minute')(app.get('/all')(lambda: 'ok'))\n")
    run = Command(shop, on_server.environment["FLASK_MULTILIMIT_STORAGE_URI"])("check", "report", "--ip", "::1")

    assert run.code == 1
    assert "stands above @app.route" in run.err_on_one_line
