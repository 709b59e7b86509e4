"""flask multilimit check and reset: where a subject stands, and how to let it go."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest
from flask import Flask

from flask_multilimit import MultiLimit, rate_limiter
from flask_multilimit.engine import Limiter, hits_for
from flask_multilimit.operate.cli.base import user_name
from operate.cli.conftest import Command

if TYPE_CHECKING:
    from pathlib import Path

    import redis
    from flask.testing import FlaskClient

FREE = """
from flask import Flask
from flask_multilimit import IP, MultiLimit, rate_limiter

app = Flask("free")
app.config.from_prefixed_env()
MultiLimit(app)
app.get("/", endpoint="view")(rate_limiter(type=IP, rules=lambda: None)(lambda: "ok"))
"""
REPORTS = """
from flask import Flask
from flask_multilimit import IP, MultiLimit, rate_limiter

app = Flask("reports")
app.config.from_prefixed_env()
MultiLimit(app)
app.get("/", endpoint="report")(rate_limiter(type=IP, rules=["2/minute", "2 at once"])(lambda: iter("abc")))
"""
ADDRESS = {"REMOTE_ADDR": "203.0.113.7"}


def call(shop: FlaskClient, path: str, times: int = 1) -> list[int]:
    return [shop.get(path, environ_base=ADDRESS).status_code for _ in range(times)]


def passes_within_seconds(shop: FlaskClient, path: str) -> None:
    deadline = time.monotonic() + 10
    while call(shop, path) != [200]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_check_tells_what_is_left_and_that_a_request_would_pass(on_server: Command, shop: FlaskClient) -> None:
    call(shop, "/update", 2)

    run = on_server("check", "update", "--ip", "203.0.113.7")

    assert run.code == 0
    assert run.out.startswith("update GET  a request would pass\n")
    assert "ip-20s           203.0.113.7  3 per 20 s       1 " in run.out
    assert "default-86400s   everyone     1000 per day     998 " in run.out


def test_check_tells_that_it_is_not_known_when_a_slot_is_free(on_server: Command, tmp_path: Path) -> None:
    file = tmp_path / "reports.py"
    file.write_text(REPORTS)
    uri = on_server.environment["FLASK_MULTILIMIT_STORAGE_URI"]
    check, limiter = Command(file, uri), Limiter(uri)
    for _ in range(2):
        limiter.check(hits_for("2 at once", scope="report", type="ip", subject="203.0.113.7"))

    run = check("check", "report", "--ip", "203.0.113.7", columns=100)
    answer = check("check", "report", "--ip", "203.0.113.7", "--json").json

    assert run.out.startswith("report GET  a request would be refused, until a slot is free\n")
    assert "Nobody knows when: a slot is free as soon as a request that holds one ends." in run.out
    assert "ip-at-once  203.0.113.7  2 at once     0     not known " in run.out
    rules = [(rule["name"], rule["waits_for_slot"], rule["retry_after"]) for rule in answer["requests"][0]["rules"]]
    assert rules == [("ip-60s", False, 0), ("ip-at-once", True, None)]
    for told in (answer, answer["requests"][0]):
        assert (told["allowed"], told["retry_after"], told["waits_for_slot"]) == (False, None, True)

    for _ in range(2):
        limiter.check(hits_for("2/minute", scope="report", type="ip", subject="203.0.113.7"))
    run = check("check", "report", "--ip", "203.0.113.7", columns=100)

    assert re.match(
        r"report GET  a request would be refused, for at least [\d.]+ s, and until a slot is free\n", run.out
    )
    limiter.close()


@pytest.mark.parametrize(
    ("listing", "verdict", "said"),
    [
        (["deny", "203.0.113.0/24", "--lasting"], "be refused with 403, and waiting does not help", "denied (deny "),
        (
            ["deny", "203.0.113.0/24", "--for", "2h", "--status", "429"],
            "be refused with 429, for 2 h",
            "denied (deny ",
        ),
        (["ban", "203.0.113.7", "--for", "2h"], "be refused with 429, for 2 h", "banned (ban "),
        (["allow", "203.0.113.7", "--lasting"], "pass\n", "allowed (allow "),
    ],
)
def test_check_asks_the_lists_first(
    on_server: Command, shop: FlaskClient, listing: list[str], verdict: str, said: str
) -> None:
    call(shop, "/update", 4)
    assert on_server(*listing, "--yes").code == 0

    run = on_server("check", "update", "--ip", "203.0.113.7", columns=200)
    answer = on_server("check", "update", "--ip", "203.0.113.7", "--json").json

    assert run.out.startswith(f"update GET  a request would {verdict}")
    assert said in run.out
    assert "Without this entry, the limits below would decide." in run.out
    assert "ip-20s           203.0.113.7  3 per 20 s" in run.out
    allowed = listing[0] == "allow"
    assert answer["allowed"] is answer["requests"][0]["allowed"] is allowed
    assert answer["listed"]["action"] == listing[0]
    assert answer["listed"]["who"] == listing[1]
    assert answer["retry_after"] == (0 if allowed else answer["listed"]["ends_in"])


def test_check_asks_the_lists_about_each_subject_that_is_given(on_server: Command) -> None:
    on_server("ban", "user:42", "--for", "2h", "--yes")

    told = {
        user: on_server("check", "update", "--ip", "203.0.113.7", "--user", user, "--json").json["listed"]
        for user in ("42", "43")
    }

    assert told["42"]["action"] == "ban"
    assert told["43"] is None


def ask_for_secrets(shop: FlaskClient, times: int) -> list[int]:
    return [shop.post("/secret", environ_base=ADDRESS).status_code for _ in range(times)]


def test_check_tells_how_many_strikes_are_left(on_server: Command, shop: FlaskClient) -> None:
    assert ask_for_secrets(shop, 2) == [200, 429]

    run = on_server("check", "secret", "--ip", "203.0.113.7", columns=120)
    (asked,) = on_server("check", "secret", "--ip", "203.0.113.7", "--json").json["requests"]

    assert "ip-ban           203.0.113.7  60 min, x 2 up to 24 h after 2 refusals in 10 min  1 refusal  -" in run.out
    (ban,) = asked["bans"]
    assert 0 < ban.pop("reset_after") <= 600
    assert ban == {
        "name": "ip-ban",
        "type": "ip",
        "subject": "203.0.113.7",
        "shadow": False,
        "holds": False,
        "level": 0,
        "strikes_left": 1,
        "retry_after": 0,
        "key": "rate_limit:{secret}:ip:203.0.113.7:ban:600000",
    }


def test_check_tells_of_a_ban_and_reset_ends_it(on_server: Command, shop: FlaskClient) -> None:
    assert ask_for_secrets(shop, 3) == [200, 429, 429]

    check = on_server("check", "secret", "--ip", "203.0.113.7", columns=120)
    told = on_server("check", "secret", "--ip", "203.0.113.7", "--json").json
    reset = on_server("reset", "secret", "--ip", "203.0.113.7", "--yes")

    assert "a request would be refused, for " in check.out
    assert 3000 < told["retry_after"] <= 3600
    assert told["requests"][0]["bans"][0]["holds"]
    assert [rule["name"] for rule in told["requests"][0]["rules"]] == ["application-60s", "ip-60s"]
    assert reset.out == "Reset: ip-60s, ip-ban.\n"
    shop.application.extensions["multilimit.gate"].limiter.outermost.forget([told["requests"][0]["bans"][0]["key"]])
    assert ask_for_secrets(shop, 1) == [200]


def test_check_tells_who_refuses_and_for_how_long(on_server: Command, shop: FlaskClient) -> None:
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
        "name": "ip-20s",
        "type": "ip",
        "subject": "203.0.113.7",
        "count": 3,
        "time": 20,
        "algorithm": "sliding_window",
        "burst": None,
        "max_delay": None,
        "lease": None,
        "cost": 1,
        "shadow": False,
        "by_request": False,
        "allowed": False,
        "remaining": 0,
        "retry_after": answer["retry_after"],
        "waits_for_slot": False,
        "reset_after": refusing["reset_after"],
        "key": "rate_limit:{update}:ip:203.0.113.7:sliding_window:20000",
    }


def test_check_charges_nothing(on_server: Command, shop: FlaskClient) -> None:
    for _ in range(2):
        (answer,) = on_server("check", "update", "--ip", "203.0.113.7", "--json").json["requests"]
        assert [rule["remaining"] for rule in answer["rules"]] == [5000, 3, 10, 1000]
    assert call(shop, "/update", 3) == [200, 200, 200]


@pytest.mark.parametrize("address", ["203.0.113.7:50001", "[::ffff:203.0.113.7]:50001", "::ffff:203.0.113.7"])
def test_an_address_may_have_its_port_as_proxies_write_it(on_server: Command, shop: FlaskClient, address: str) -> None:
    assert call(shop, "/update", 3) == [200, 200, 200]

    (answer,) = on_server("check", "update", "--ip", address, "--json").json["requests"]

    assert [rule["remaining"] for rule in answer["rules"]][1] == 0


@pytest.mark.parametrize("address", ["2001:db8::1", "2001:db8::/64"])
def test_an_ipv6_client_may_be_given_as_it_is_shown(on_server: Command, shop: FlaskClient, address: str) -> None:
    client = {"REMOTE_ADDR": "2001:db8::2"}
    assert [shop.get("/update", environ_base=client).status_code for _ in range(3)] == [200, 200, 200]

    (answer,) = on_server("check", "update", "--ip", address, "--json").json["requests"]

    assert [rule["remaining"] for rule in answer["rules"]][1] == 0
    assert on_server("reset", "update", "--ip", address, "--yes").code == 0
    assert shop.get("/update", environ_base=client).status_code == 200


def test_check_names_the_limits_whose_subject_is_not_given(on_server: Command) -> None:
    run = on_server("check", "api.search", "--ip", "203.0.113.7")

    assert "would pass, as far as checked" in run.out
    assert "user (--user), user+ip (--user and\n--ip), api_key (--subject api_key=...)." in run.out


def test_check_knows_types_of_ones_own_and_several_together(on_server: Command, shop: FlaskClient) -> None:
    shop.get("/api/search/x", environ_base=ADDRESS, headers={"X-User": "ann", "X-Api-Key": "abc"})

    arguments = ("--user", "ann", "--ip", "203.0.113.7", "--subject", "api_key=abc")
    (answer,) = on_server("check", "api.search", *arguments, "--json").json["requests"]
    run = on_server("check", "api.search", *arguments, columns=100)

    left = {rule["name"]: rule["remaining"] for rule in answer["rules"]}
    assert left == {
        "application-60s": 4999,
        "user-3600s": 9,
        "ip-60s": 99,
        "user-ip-3600s": 4,
        "api_key-3600s": 4,
    }
    assert answer["not_asked"] == []
    assert "ann + 203.0.113.7" in run.out


def test_check_knows_who_is_not_logged_in(on_server: Command, shop: FlaskClient) -> None:
    call(shop, "/api/items")

    answer = on_server("check", "api.items", "--subject", "anonymous=203.0.113.7", "--json").json["requests"][0]

    assert {rule["name"]: rule["remaining"] for rule in answer["rules"]}["user-3600s"] == 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "updaet"), 'no endpoint is called "updaet"; did you mean "update"?'),
        (("check", "nonsense"), 'no endpoint is called "nonsense"; `flask routes` lists the endpoints'),
        (("check", "update", "--ip", "localhost"), "'localhost' is not an IP address"),
        (("check", "update", "--ip", "2001:db8::/48"), "IPv6 addresses of one /64 count as one client"),
        (("reset", "--all", "--ip", "2001:db8::1/64", "--yes"), "'2001:db8::1/64' is not an IP address"),
        (("check", "update", "--ip", "203.0.113.7/32"), "'203.0.113.7/32' is not an IP address"),
        (("check", "update", "--subject", "api_key"), "'api_key': write TYPE=VALUE"),
        (("reset", "update", "--yes"), "Say whose quotas: --ip, --user, --subject or --everyone."),
        (
            ("reset", "update", "--user", "ann", "--yes"),
            'no limit at "update" counts user; it is limited by default (--everyone), ip (--ip)',
        ),
    ],
)
def test_what_makes_no_sense_is_told_in_a_line(on_memory: Command, arguments: tuple[str, ...], message: str) -> None:
    run = on_memory(*arguments)

    assert run.code != 0
    assert message in run.err
    assert run.out == ""


def test_a_view_without_limits_says_so(on_server: Command) -> None:
    assert on_server("check", "health").out == "health GET  has no limits\n"


def test_a_view_that_takes_no_get_is_asked_by_its_own_method(on_server: Command) -> None:
    (asked,) = on_server("check", "send", "--ip", "203.0.113.7", "--json").json["requests"]

    assert asked["methods"] == ["POST"]


class TestMethods:
    """A view that takes GET and POST, with a limit of POST only."""

    def test_check_asks_for_each(self, on_server: Command, shop: FlaskClient) -> None:
        assert [shop.post("/login", environ_base=ADDRESS).status_code for _ in range(3)] == [200, 200, 429]

        told = on_server("check", "login", "--ip", "203.0.113.7").out
        answer = on_server("check", "login", "--ip", "203.0.113.7", "--json").json

        assert "login GET  a request would pass\n" in told
        assert "login POST  a request would be refused, for " in told
        assert answer["allowed"] is False
        assert [(each["methods"], each["allowed"]) for each in answer["requests"]] == [
            (["GET"], True),
            (["POST"], False),
        ]

    def test_one_that_is_named_is_asked_alone(self, on_server: Command, shop: FlaskClient) -> None:
        for _ in range(3):
            shop.post("/login", environ_base=ADDRESS)

        get, post = (
            on_server("check", "login", "--ip", "203.0.113.7", "--method", each).out for each in ("get", "post")
        )

        assert get.startswith("login GET  a request would pass\n")
        assert "GET" not in post

    def test_reset_reaches_them_all(self, on_server: Command, shop: FlaskClient) -> None:
        for _ in range(3):
            shop.post("/login", environ_base=ADDRESS)

        run = on_server("reset", "login", "--ip", "203.0.113.7", "--yes")

        assert run.out == "Reset: ip-60s.\n"
        assert on_server("check", "login", "--ip", "203.0.113.7", "--json").json["allowed"] is True

    def test_one_that_the_view_does_not_take_is_an_error(self, on_server: Command) -> None:
        run = on_server("check", "login", "--method", "PUT")

        assert run.code == 1
        assert '"login" does not take PUT; its routes take GET, HEAD, OPTIONS, POST' in run.err


def test_check_says_when_rules_depend_on_the_request(on_server: Command) -> None:
    arguments = ("check", "api.search", "--user", "ann", "--subject", "api_key=abc")

    told = on_server(*arguments).out
    (asked,) = on_server(*arguments, "--json").json["requests"]

    assert "a request would pass, as far as checked" in told
    assert "The rules of api_key depend on the request." in told
    assert {rule["name"]: rule["by_request"] for rule in asked["rules"]}["api_key-3600s"] is True


def test_reset_asks_and_then_the_next_request_passes(on_server: Command, shop: FlaskClient) -> None:
    assert call(shop, "/update", 4)[-1] == 429

    run = on_server("reset", "update", "--ip", "203.0.113.7", answer="y\n")

    assert run.code == 0
    assert "Reset 2 quotas? [y/N]" in run.err
    assert run.out == "Reset: ip-20s, ip-3600s.\n"
    passes_within_seconds(shop, "/update")  # a process believes its last refusal for one


class TestResetInTheHistory:
    def history(self, on_server: Command) -> list[tuple[str, str, str, str]]:
        changes = on_server("history", "--json").json["changes"]
        return [(each["what"], each["entry"], each["author"], each["reason"]) for each in changes]

    def test_says_who_reset_what_where_and_why(self, on_server: Command, shop: FlaskClient) -> None:
        told = ("--yes", "--author", "ann", "--reason", "a mistake")
        for what in (
            ("login", "--ip", "203.0.113.7", "--method", "post"),
            ("update", "--everyone"),
            ("--all", "--ip", "203.0.113.7"),
            ("--everything",),
        ):
            call(shop, "/update")
            assert shop.post("/login", environ_base={"REMOTE_ADDR": "203.0.113.7"}).status_code == 200
            assert on_server("reset", *what, *told).code == 0

        assert self.history(on_server) == [
            ("reset", "all quotas of all subjects", "ann", "a mistake"),
            ("reset", "203.0.113.7 everywhere", "ann", "a mistake"),
            ("reset", "everyone at update", "ann", "a mistake"),
            ("reset", "203.0.113.7 at login (POST)", "ann", "a mistake"),
        ]

    def test_names_the_user_of_the_machine_if_nobody_else(self, on_server: Command, shop: FlaskClient) -> None:
        shop.get("/api/items", headers={"X-User": "ann"})

        on_server("reset", "api.items", "--user", "ann", "--yes")

        assert self.history(on_server) == [("reset", "user:ann at api.items", user_name(), "")]

    @pytest.mark.parametrize("arguments", [("--dry-run",), ("--yes",)], ids=["dry run", "nothing used"])
    def test_says_nothing_where_nothing_was_reset(
        self, on_server: Command, shop: FlaskClient, arguments: tuple[str, ...]
    ) -> None:
        if "--dry-run" in arguments:
            call(shop, "/update")

        assert on_server("reset", "update", "--ip", "203.0.113.7", *arguments).code == 0
        assert on_server("reset", "--all", "--ip", "203.0.113.7", *arguments).code == 0

        assert self.history(on_server) == []

    def test_that_cannot_be_written_hides_no_reset(
        self, on_server: Command, shop: FlaskClient, redis_client: redis.Redis
    ) -> None:
        redis_client.hset("rate_limit:{control}:document", mapping={"stamp": "9-x", "document": "{"})
        call(shop, "/update")

        run = on_server("reset", "update", "--ip", "203.0.113.7", "--yes")

        assert (run.code, run.out) == (0, "Reset: ip-20s, ip-3600s.\n")
        assert "Reset, but the history does not show it: the control document is not JSON" in run.err

    def test_is_not_written_where_changes_are_switched_off(self, on_server: Command, shop: FlaskClient) -> None:
        call(shop, "/update")
        on_server.environment["FLASK_MULTILIMIT_CONTROL"] = "false"

        run = on_server("reset", "update", "--ip", "203.0.113.7", "--yes")

        assert (run.code, run.err) == (0, "")
        del on_server.environment["FLASK_MULTILIMIT_CONTROL"]
        assert self.history(on_server) == []


def test_reset_says_when_rules_depend_on_the_request(on_server: Command, shop: FlaskClient) -> None:
    shop.get("/api/search/x?plan=gold", headers={"X-Api-Key": "abc"})

    told = " ".join(on_server("reset", "api.search", "--subject", "api_key=abc", "--yes").out.split())

    assert told.startswith("Reset: api_key-3600s. The rules of api_key depend on the request.")
    assert "With --all in place of the endpoint" in told


def test_rules_by_request_that_are_none_without_one(on_server: Command, tmp_path: Path) -> None:
    app = tmp_path / "free.py"
    app.write_text(FREE)
    on_free = Command(app, on_server.environment["FLASK_MULTILIMIT_STORAGE_URI"])

    check = on_free("check", "view", "--ip", "203.0.113.7")
    reset = on_free("reset", "view", "--ip", "203.0.113.7", "--yes")

    assert check.out.startswith("view GET  no limit now, as far as checked\n")
    assert reset.code == 1
    assert 'the rules of ip at "view" depend on the request, and without one there are none' in reset.err


def test_reset_does_nothing_without_a_yes(on_server: Command, shop: FlaskClient) -> None:
    assert call(shop, "/update", 4)[-1] == 429

    run = on_server("reset", "update", "--ip", "203.0.113.7", answer="n\n")

    assert run.code == 1
    assert call(shop, "/update") == [429]


def test_reset_takes_what_everyone_shares_only_when_told(on_server: Command, shop: FlaskClient) -> None:
    call(shop, "/update", 3)
    on_server("reset", "update", "--ip", "203.0.113.7", "--yes")
    (before,) = on_server("check", "update", "--json").json["requests"]

    reset = on_server("reset", "update", "--everyone", "--yes", "--json").json
    (after,) = on_server("check", "update", "--json").json["requests"]

    assert [rule["remaining"] for rule in before["rules"]] == [4997, 997]
    assert [rule["name"] for rule in reset["reset"]] == ["application-60s", "default-86400s"]
    assert [rule["remaining"] for rule in after["rules"]] == [5000, 1000]


def test_reset_finds_a_subject_everywhere_and_nobody_else(on_server: Command, shop: FlaskClient) -> None:
    for path in ("/update", "/api/items", "/nowhere"):
        call(shop, path)
        shop.get(path, environ_base={"REMOTE_ADDR": "203.0.113.70"})
    before = on_server("keys", "--json").json["keys"]

    shown = on_server("reset", "--ip", "203.0.113.7", "--all", "--dry-run", "--json").json
    assert on_server("keys", "--json").json["keys"]
    assert shown["changed"] is False
    run = on_server("reset", "--ip", "203.0.113.7", "--all", answer="y\n")

    left = {each["key"] for each in on_server("keys", "--json").json["keys"]}
    gone = {each["key"] for each in before} - left
    assert gone == set(shown["keys"]) == {key for key in gone if ":ip:203.0.113.7:" in key}
    assert {key.partition("{")[2].partition("}")[0] for key in gone} == {"update", "api.items", "unmatched"}
    assert any(":ip:203.0.113.70:" in key for key in left)
    assert f"Reset: {len(gone)} quotas." in run.out


def test_reset_of_everything_asks_and_leaves_what_is_changed(on_server: Command, shop: FlaskClient) -> None:
    call(shop, "/update")
    on_server("deny", "192.0.2.1", "--lasting", "--yes")

    assert on_server("reset", "--everything", answer="n\n").code == 1
    assert on_server("keys", "--json").json["keys"]
    assert on_server("reset", "--everything", "--yes").out.startswith("Reset: ")

    assert on_server("keys", "--json").json["keys"] == []
    assert len(on_server("entries", "--json").json["entries"]) == 1
    assert on_server("reset", "--everything", "--yes").out == "Nothing to reset: nothing is used.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ip", "203.0.113.7"], "Say where"),
        (["update", "--all", "--ip", "203.0.113.7"], "Say where"),
        (["--all"], "Say whose quotas"),
        (["--everything", "--ip", "203.0.113.7"], "resets all subjects"),
        (["--all", "--ip", "203.0.113.7", "--method", "GET"], "--method is for an ENDPOINT"),
    ],
)
def test_reset_wants_to_be_told_where_and_whose(on_server: Command, arguments: list[str], message: str) -> None:
    run = on_server("reset", *arguments, "--yes")

    assert run.code == 2
    assert message in run.err


@pytest.mark.parametrize("command", [("check",), ("reset", "--yes")])
def test_memory_of_other_processes_is_an_error_and_no_guess(on_memory: Command, command: tuple[str, ...]) -> None:
    run = on_memory(*command, "update", "--ip", "203.0.113.7")

    assert run.code == 1
    assert run.out == ""
    assert "MULTILIMIT_STORAGE_URI=memory:// keeps quotas in the memory of each worker process" in run.err


def test_memory_of_this_process_is_looked_at() -> None:
    app = Flask("shop")
    MultiLimit(app)
    app.get("/", endpoint="view")(rate_limiter(rules="1/hour")(lambda: "ok"))
    assert app.test_client().get("/").status_code == 200

    result = app.test_cli_runner().invoke(args=["multilimit", "check", "view"])

    assert result.output.startswith("view GET  a request would be refused, for ")
