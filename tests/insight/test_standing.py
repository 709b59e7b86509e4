"""Why a client is refused, and what lifts it: commands, page and /api/ give one answer."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from flask import Flask, request

from flask_multilimit import IP, USER, Ban, ConfigurationError, MultiLimit, rate_limiter
from flask_multilimit.dashboard import Dashboard
from flask_multilimit.insight import past as past_room
from flask_multilimit.insight.bans import bans
from flask_multilimit.insight.clients import client_from
from flask_multilimit.insight.keys import all_keys
from flask_multilimit.insight.past import Past, instant_of, standing_at
from flask_multilimit.insight.standing import BANNED, Standing, standing
from flask_multilimit.insight.text import local_time
from flask_multilimit.insight.traffic import looking, now
from flask_multilimit.observe.traffic import reader_of
from flask_multilimit.serve.gate import gate_of
from support.asking import statuses, view
from support.waiting import until

if TYPE_CHECKING:
    import redis

    from support.servers import Server

CLIENT = {"REMOTE_ADDR": "203.0.113.7"}
BAN = Ban(after=2, within=60, time=600)
SEND = f"{__name__}:app_with_a_service.<locals>.send"


def app_on(storage: Any = "memory://", *, types: tuple[str, ...] = ("api_key",), traffic: bool = True) -> Flask:
    app = Flask("shop")
    app.secret_key = "key"
    app.config.update(MULTILIMIT_DENY_CACHE=0, MULTILIMIT_STORAGE_TIMEOUT=10, MULTILIMIT_TRAFFIC=traffic)
    limits = MultiLimit(app, storage=storage, unmatched_limits=rate_limiter(type=IP, rules="2/minute", ban=BAN))
    app.add_url_rule("/login", "login", rate_limiter(type=IP, rules="2/minute", ban=BAN)(view()))
    app.add_url_rule("/search", "search", rate_limiter(type=IP, rules="3/minute")(view()))
    app.add_url_rule("/quote", "quote", rate_limiter(type=IP, rules="9/minute")(view()))
    for name in types:
        keyed = rate_limiter(type=lambda: request.headers.get("X-Key"), name=name, rules="1/minute")
        app.add_url_rule(f"/{name}", name, keyed(view()))
    app.register_blueprint(Dashboard(limits, authorize=lambda: "ada"))
    return app


def why(app: Flask, who: str, endpoint: str | None = None) -> Standing:
    gate = gate_of(app)
    with app.app_context(), looking(gate) as memory:
        return standing(gate, client_from(gate, who), memory, endpoint=endpoint)


def command(app: Flask, *arguments: str) -> Any:
    result = app.test_cli_runner().invoke(args=["multilimit", *arguments])
    assert result.exit_code == 0, result.output
    return json.loads(result.output) if "--json" in arguments else result.output


def flush(app: Flask) -> None:
    gate_of(app).audience.background.once()


@pytest.mark.parametrize("path", ["/login", "/nowhere"], ids=["an endpoint", "no route"])
def test_a_ban_by_a_limiter_is_named_and_lifted(path: str) -> None:
    app = app_on()
    endpoint, passes = ("login", 200) if path == "/login" else ("unmatched", 404)
    assert statuses(app, *[path] * 5, environ_base=CLIENT) == [passes, passes, 429, 429, 429]

    found = why(app, "203.0.113.7")

    assert found.state == "banned"
    assert found.verdict.startswith(f"refused at {endpoint}: banned by ip-ban until ")
    assert found.requests[0].endpoint == endpoint
    assert found.lift[0] == "flask multilimit unban 203.0.113.7"
    assert command(app, "unban", "203.0.113.7", "--yes") == "Lifted: 1 ban started by limiters.\n"
    assert why(app, "203.0.113.7").state == "refused"
    command(app, "reset", endpoint, "--ip", "203.0.113.7", "--yes")
    assert statuses(app, path, environ_base=CLIENT) == [passes]


def app_with_a_service(ban: Ban | None) -> Flask:
    """A view calls a limited function, and makes a check of its own."""
    app = app_on()

    @rate_limiter(type=IP, rules="1/minute", ban=ban)
    def send() -> str:
        return "ok"

    def mail() -> str:
        return send()

    def invite() -> str:
        with app.extensions["multilimit"].limit("1/minute", scope="invitations", type=IP, ban=ban):
            return "ok"

    app.add_url_rule("/mail", "mail", mail)
    app.add_url_rule("/invite", "invite", invite)
    return app


def test_bans_by_limiters_of_functions_and_checks_are_listed_named_and_lifted() -> None:
    app = app_with_a_service(BAN)
    assert statuses(app, *["/mail", "/invite"] * 3, environ_base=CLIENT) == [200, 200, 429, 429, 429, 429]
    flush(app)

    with app.app_context():
        listed = bans(gate_of(app))
    found = why(app, "203.0.113.7")

    assert {(each.who, each.endpoint, each.by) for each in listed} == {
        ("203.0.113.7", SEND, "ip-ban"),
        ("203.0.113.7", "invitations", "ip-ban"),
    }
    assert all(599 < (each.ends_in or 0) <= 600 for each in listed)
    assert (found.state, found.allowed) == ("banned", False)
    assert found.lift == ("flask multilimit unban 203.0.113.7", "flask multilimit reset --ip 203.0.113.7 --all")
    assert found.retry_after == pytest.approx(600, abs=2)
    assert found.verdict.template == BANNED
    assert found.verdict.values["where"] in {SEND, "invitations"}  # they began nearly at once
    assert {each.endpoint for each in found.elsewhere} == {SEND, "invitations"}
    assert (why(app, "192.0.2.1").elsewhere, why(app, "203.0.113.7", "search").state) == ((), "passes")
    assert command(app, "unban", "203.0.113.7", "--yes") == "Lifted: 2 bans started by limiters.\n"
    with app.app_context():
        assert bans(gate_of(app)) == []
    assert why(app, "203.0.113.7").elsewhere == ()


def test_a_ban_that_an_endpoint_shares_with_a_function_is_listed_once() -> None:
    app = app_on()
    shared = rate_limiter(type=IP, rules="1/minute", ban=BAN, scope="mail")
    send = shared(view())

    def send_again() -> Any:
        return send()

    app.add_url_rule("/mail", "mail", shared(view()))
    app.add_url_rule("/again", "again", send_again)
    statuses(app, *["/again"] * 3, environ_base=CLIENT)
    flush(app)

    with app.app_context():
        assert [(each.who, each.endpoint) for each in bans(gate_of(app))] == [("203.0.113.7", "mail")]


@pytest.mark.parametrize("traffic", [True, False])
def test_of_several_bans_the_one_that_holds_is_listed_and_none_of_a_shadow(*, traffic: bool) -> None:
    app = app_on(traffic=traffic)
    limited = rate_limiter(type=IP, rules="1/minute", ban=BAN, name="visitors")(view())
    trial = rate_limiter(type=IP, rules="1/hour", ban=Ban(after=1, within=30, time=600), shadow=True, name="trial")
    members = rate_limiter(type=USER, rules="9/minute", ban=BAN, name="members")
    app.add_url_rule("/", "index", members(trial(limited)))
    app.extensions["multilimit"].user_loader(lambda: "ada")
    statuses(app, "/", "/", environ_base=CLIENT)
    flush(app)
    assert "Nothing to lift" in command(app, "unban", "203.0.113.7", "--yes")
    assert why(app, "203.0.113.7").lift == ("flask multilimit reset index --ip 203.0.113.7",)
    assert command(app, "why", "203.0.113.7").count("(shadow)") == 2
    statuses(app, "/", environ_base=CLIENT)
    flush(app)

    with app.app_context():
        (ban,) = bans(gate_of(app))

    assert (ban.who, ban.endpoint, ban.by) == ("203.0.113.7", "index", "visitors-ban")
    assert command(app, "unban", "203.0.113.7", "--yes") == "Lifted: 1 ban started by limiters.\n"


def test_limits_of_functions_and_checks_are_not_said_to_pass_whom_they_refused() -> None:
    app = app_with_a_service(None)
    statuses(app, *["/mail", "/invite"] * 2, environ_base=CLIENT)
    flush(app)

    found = why(app, "203.0.113.7")

    assert found.verdict == (
        f"passes at every endpoint; invitations, {SEND} refused it in the last hour, and may still do so"
    )
    (reset,) = found.lift
    command(app, *reset.split()[2:], "--yes")
    assert statuses(app, "/mail", "/invite", environ_base=CLIENT) == [200, 200]


def test_a_ban_by_a_person_is_named_and_lifted_and_the_history_says_so() -> None:
    app = app_on()
    with app.app_context():
        app.extensions["multilimit"].control.ban("203.0.113.7", for_="1h", author="bob", reason="scraper")
    assert statuses(app, "/quote", environ_base=CLIENT) == [429]

    found = why(app, "203.0.113.7")

    assert (found.state, found.allowed, [each.reason for each in found.entries]) == ("banned", False, ["scraper"])
    assert found.lift == ("flask multilimit unban 203.0.113.7",)
    assert command(app, "unban", "203.0.113.7", "--yes") == "Lifted: ban 203.0.113.7.\n"
    assert statuses(app, "/quote", environ_base=CLIENT) == [200]
    with app.app_context():
        assert [each["what"] for each in app.extensions["multilimit"].control.history()] == ["undo", "set"]


def test_a_limit_that_refuses_comes_first_and_the_command_that_resets_it_works() -> None:
    app = app_on()
    statuses(app, *["/search"] * 5, "/quote", environ_base=CLIENT)
    flush(app)

    found = why(app, "203.0.113.7")

    assert found.verdict.startswith("refused at search by ip-60s, for ")
    assert [each.endpoint for each in found.requests] == ["search", "quote", "login", "unmatched"]
    assert found.untouched == 2
    assert [(each.endpoint, each.refused) for each in found.refusals] == [("search", 2)]
    (reset,) = found.lift
    assert reset == "flask multilimit reset search --ip 203.0.113.7"
    command(app, *reset.split()[2:], "--yes")
    assert why(app, "203.0.113.7").state == "passes"


def test_a_value_alone_is_understood_where_one_type_fits() -> None:
    app = app_on()

    assert client_from(gate_of(app), "key-0").text == "api_key:key-0"
    assert why(app, "api_key:key-0").who == why(app, "key-0").who


def test_a_value_that_fits_several_types_names_the_choices() -> None:
    app = app_on(types=("api_key", "tenant"))

    with pytest.raises(ConfigurationError, match="api_key:key-0, tenant:key-0"):
        client_from(gate_of(app), "key-0")


def test_of_several_types_the_one_that_was_refused_lately_is_meant() -> None:
    app = app_on(types=("api_key", "tenant"))
    statuses(app, "/tenant", "/tenant", headers={"X-Key": "key-0"})
    flush(app)

    assert client_from(gate_of(app), "key-0").text == "tenant:key-0"


def test_command_page_and_api_give_the_same_answer() -> None:
    app = app_on()
    statuses(app, *["/login"] * 5, *["/search"] * 2, environ_base=CLIENT)
    flush(app)
    browser = app.test_client()

    of_command = command(app, "why", "203.0.113.7", "--json")
    of_api = browser.get("/multilimit/api/subject?who=203.0.113.7").get_json()["found"]
    page = browser.get("/multilimit/subject?who=203.0.113.7").text

    assert of_command.pop("schema") == 2
    for found in (of_command, of_api):
        assert (found["state"], found["untouched"], found["lift"]) == (
            "banned",
            2,
            ["flask multilimit unban 203.0.113.7", "flask multilimit reset login --ip 203.0.113.7"],
        )
    assert of_command.keys() == of_api.keys()
    refusals = [{**each, "until": 0} for each in of_command["refusals"]]  # by the time of the look, within a slice
    assert refusals == [{**each, "until": 0} for each in of_api["refusals"]]
    assert "refused at login: banned by ip-ban" in page
    assert page.index("Lift") < page.index("Limits that refuse it, ") < page.index("Refused in the last hour")


def test_the_verdict_of_the_page_is_in_one_language() -> None:
    app = app_on()
    statuses(app, *["/login", "/nowhere"] * 5, environ_base=CLIENT)
    flush(app)
    with app.app_context():
        app.extensions["multilimit"].control.deny("192.0.2.1", lasting=True)

    def verdict(who: str) -> str:
        page = app.test_client().get(f"/multilimit/subject?who={who}&lang=zh").text
        (found,) = re.findall("<strong>(.*)</strong></p>", page)
        return str(found)

    banned, denied = verdict("203.0.113.7"), verdict("192.0.2.1")

    assert {"refusals", "more", "and"}.isdisjoint(re.findall(r"[a-z]+", banned))
    assert "拒绝 6 次" in banned
    assert denied.endswith("永久")


def test_check_knows_the_requests_without_a_route() -> None:
    app = app_on()
    statuses(app, "/nowhere", environ_base=CLIENT)

    (asked,) = command(app, "check", "unmatched", "--ip", "203.0.113.7", "--json")["requests"]

    assert (asked["endpoint"], [each["remaining"] for each in asked["rules"]]) == ("unmatched", [1])


def test_why_prints_what_it_found() -> None:
    app = app_on()
    statuses(app, *["/login"] * 5, environ_base=CLIENT)
    flush(app)

    told = command(app, "why", "203.0.113.7")

    assert told.startswith("203.0.113.7  (counted by: ip)\nrefused at login: banned by ip-ban until ")
    assert "3 other endpoints: nothing is used." in told
    assert "To let it pass:\n  flask multilimit unban 203.0.113.7\n" in told


@pytest.fixture(params=["memory", "server", "cluster"])
def shared(request: pytest.FixtureRequest) -> str:
    """Where quotas are: somewhere empty."""
    if request.param == "memory":
        return "memory://"
    if request.param == "cluster":
        uri: str = request.getfixturevalue("cluster").uri
        return uri
    request.getfixturevalue("redis_client")
    server: Server = request.getfixturevalue("server")
    return server.url


@pytest.mark.parametrize("traffic", [True, False], ids=["by traffic", "by keys"])
def test_every_ban_in_force_is_listed_with_who_and_by_whom(shared: str, traffic: bool) -> None:
    app = app_on(shared, traffic=traffic)
    statuses(app, *["/login"] * 5, environ_base=CLIENT)
    statuses(app, *["/nowhere"] * 5, environ_base={"REMOTE_ADDR": "2001:db8::7"})
    flush(app)
    until(lambda: len(bans(gate_of(app))) == 2)
    with app.app_context():
        app.extensions["multilimit"].control.ban("api_key:eve", for_="1h", author="bob", reason="spam")

    found = bans(gate_of(app))
    statuses(app, *["/login"] * 2, environ_base={"REMOTE_ADDR": "192.0.2.1"})

    assert sorted((each.who, each.by, each.endpoint) for each in found) == [
        ("2001:db8::/64", "ip-ban", "unmatched"),
        ("203.0.113.7", "ip-ban", "login"),
        ("api_key:eve", "bob", "*"),
    ]
    assert all(0 <= time.time() - each.since < 60 for each in found)
    assert len(bans(gate_of(app))) == 3, "a client that was never refused has no ban"
    gate_of(app).limiter.close()


def test_a_lifted_ban_leaves_the_list_and_a_new_one_counts_once(shared: str) -> None:
    app = app_on(shared)
    gate = gate_of(app)
    for lifted in (lambda: command(app, "unban", "203.0.113.7", "--yes"), lambda: gate.reset(all_keys(gate))):
        statuses(app, *["/login"] * 5, environ_base=CLIENT)
        flush(app)
        assert [each.who for each in until(lambda: bans(gate))] == ["203.0.113.7"]
        assert [each.amount for each in now(gate, patient=True).bans_in_force] == [1]

        with app.app_context():
            lifted()

        assert bans(gate) == []
        assert reader_of(gate.limiter.storage, "rate_limit:").bans().in_force() == {}
        gate.reset(all_keys(gate))
    gate.limiter.close()


def test_bans_are_found_without_a_look_at_all_keys(server: Server, redis_client: redis.Redis) -> None:
    app = app_on(server.url)
    statuses(app, *["/login"] * 5, environ_base=CLIENT)
    flush(app)
    assert until(lambda: bans(gate_of(app)))
    redis_client.config_resetstat()

    assert [each.who for each in bans(gate_of(app))] == ["203.0.113.7"]

    assert "cmdstat_scan" not in redis_client.info("commandstats")
    gate_of(app).limiter.close()


def test_a_client_that_calls_itself_like_another_is_taken_for_nobody_else() -> None:
    """Subjects of several types are kept as such text; of a type of one, a client may have chosen it."""
    app, key = app_on(), '[["user", "bob"]]'
    statuses(app, *["/api_key"] * 3, headers={"X-Key": key})
    flush(app)

    found = why(app, f"api_key:{key}")
    with app.app_context():
        shown = [each.shown for each in now(gate_of(app)).subjects]

    assert found.shown == key
    assert shown == [key]
    assert found.lift == (f"flask multilimit reset api_key --subject 'api_key={key}'",)


PAIR = 'user+ip:[["user", "ada"], ["ip", "203.0.113.7"]]'


def app_of_pairs(storage: Any, *, rules: str = "1/minute") -> Flask:
    """Which counts users together with their addresses."""
    app = Flask("shop")
    app.config.update(MULTILIMIT_DENY_CACHE=0, MULTILIMIT_STORAGE_TIMEOUT=10)
    MultiLimit(app, storage=storage, user_loader=lambda: request.headers.get("X-User"))
    app.add_url_rule("/", "show", rate_limiter(type=(USER, IP), rules=rules, ban=BAN)(view()))
    statuses(app, *["/"] * 4, headers={"X-User": "ada"}, environ_base=CLIENT)
    flush(app)
    return app


class TestSeveralTypes:
    """A user and an address that are counted together."""

    @pytest.mark.parametrize(
        ("who", "verdict"),
        [
            ("user:ada", "not known: user+ip limits count it only together with another subject"),
            (  # while nobody is logged in there
                "203.0.113.7",
                "passes the limits that count it alone; user+ip limits count it together with another subject",
            ),
        ],
    )
    def test_one_of_them_shows_what_was_refused_and_that_the_other_was_not_asked_for(
        self, who: str, verdict: str
    ) -> None:
        found = why(app_of_pairs("memory://"), who)

        assert found.verdict == verdict
        assert {each.shown for each in found.refusals} == {"ada + 203.0.113.7"}

    def test_others_were_not_refused(self) -> None:
        assert why(app_of_pairs("memory://"), "user:eve").refusals == ()

    @pytest.mark.parametrize("who", [PAIR, PAIR.replace(" ", "")])
    def test_both_stand_where_their_requests_do(self, who: str) -> None:
        found = why(app_of_pairs("memory://"), who)

        assert (found.state, found.shown) == ("banned", "ada + 203.0.113.7")
        assert found.lift[0] == f"flask multilimit unban '{PAIR}'"

    def test_a_ban_is_lifted_by_what_the_list_of_bans_says(self, shared: str) -> None:
        app = app_of_pairs(shared)
        (ban,) = until(lambda: bans(gate_of(app)))

        assert (ban.who, ban.shown) == (PAIR, "ada + 203.0.113.7")
        assert "Lifted: 1 ban started by limiters." in command(app, "unban", ban.who, "--yes")
        assert bans(gate_of(app)) == []
        gate_of(app).limiter.close()


class TestDigests:
    """A key has a digest in place of a subject that would make it too long."""

    KEY = "k" * 100
    """Longer than what traffic keeps of a subject."""

    def app(self) -> Flask:
        app = app_on()
        keyed = rate_limiter(type=lambda: request.headers.get("X-Key"), name="tenant", rules="1/minute", ban=BAN)
        app.add_url_rule("/tenant", "tenant", keyed(view()))
        statuses(app, *["/tenant"] * 4, headers={"X-Key": self.KEY})
        flush(app)
        return app

    def test_a_ban_is_lifted_by_the_digest_that_the_list_of_bans_says(self) -> None:
        app = self.app()
        (ban,) = bans(gate_of(app))

        assert re.fullmatch(r"tenant:\*[0-9a-f]{40}", ban.who)
        assert "Lifted: 1 ban started by limiters." in command(app, "unban", ban.who, "--yes")
        assert bans(gate_of(app)) == []

    @pytest.mark.parametrize("endpoint", [None, "tenant"])
    def test_nothing_else_is_said_of_a_digest(self, endpoint: str | None) -> None:
        app = self.app()
        (ban,) = bans(gate_of(app))

        found = why(app, ban.who, endpoint)

        assert (found.state, found.requests) == ("unknown", ())
        assert "digest" in found.verdict

    def test_the_subject_itself_is_known(self) -> None:
        assert why(self.app(), f"tenant:{self.KEY}").state == "banned"


def amid_the_ban(app: Flask) -> float:
    (ban,) = reader_of(gate_of(app).limiter.storage, "rate_limit:").bans().begun
    return min((ban.began + ban.until) / 2, ban.began + 1)


def past(app: Flask, who: str, at: float, endpoint: str | None = None) -> Past:
    gate = gate_of(app)
    with app.app_context(), looking(gate, patient=True) as memory:
        return standing_at(gate, client_from(gate, who), memory, at, endpoint=endpoint)


def test_a_banned_client_is_told_apart_before_during_and_after_its_ban(shared: str) -> None:
    """Of its refusals, the seconds are known; the ban counts as the refusal by which it began."""
    app = app_on(shared)
    before = time.time()
    statuses(app, *["/login"] * 9, environ_base=CLIENT)
    flush(app)
    assert until(lambda: bans(gate_of(app)))
    command(app, "unban", "203.0.113.7", "--yes")
    lifted, at = time.time(), amid_the_ban(app)

    during = past(app, "203.0.113.7", at)

    assert during.state == "banned"
    assert before - 1 < during.bans[0].began < during.bans[0].ended < lifted + 1
    assert [(each.rule, each.refused) for each in during.refusals] == [("ip-ban", 6), ("ip-60s", 1)]
    assert during.verdict.startswith(f"at {local_time(at)} it was refused at login: banned by ip-ban from ")
    assert re.search(r"; refusals from .* until .*: 7$", during.verdict)
    assert past(app, "203.0.113.7", before - 600).verdict == f"at {local_time(before - 600)} nothing refused it"
    assert past(app, "203.0.113.7", at, endpoint="search").state == "passes"
    assert past(app, "192.0.2.1", at).state == "passes"
    gate_of(app).limiter.close()


def test_the_verdict_says_until_when_how_often_and_since_when() -> None:
    app = app_on()
    statuses(app, *["/login"] * 9, environ_base=CLIENT)
    flush(app)
    (ban,) = until(lambda: bans(gate_of(app)))

    text = why(app, "203.0.113.7").verdict

    assert (
        re.fullmatch(
            r"refused at login: banned by ip-ban until \d\d:\d\d:\d\d \w+; refusals since \d\d:\d\d:\d\d \w+: 7", text
        )
        or ban.since // 86_400 != (ban.since + 600) // 86_400
    ), text


@pytest.mark.parametrize(
    ("text", "ago"), [("5m", 300), ("90s", 90), (" 1h ", 3600)], ids=["minutes", "seconds", "an hour"]
)
def test_a_time_is_written_as_how_long_ago(text: str, ago: float) -> None:
    assert instant_of(text) == pytest.approx(time.time() - ago, abs=5)


def test_a_time_is_written_in_iso_8601_with_or_without_a_zone_or_a_date() -> None:
    now = datetime.now().replace(second=0, microsecond=0)

    assert instant_of(f"{now:%H:%M}") == now.timestamp()
    assert instant_of(f"{now:%Y-%m-%d}T03:12:00") == now.replace(hour=3, minute=12).timestamp()
    assert instant_of("2026-07-01T03:12:00+02:00") == instant_of("2026-07-01T01:12:00Z") == 1_782_868_320


@pytest.mark.parametrize(("hour", "day"), [("00:10", 27), ("00:12", 26), ("23:50", 26)])
def test_a_time_without_a_date_is_the_latest(monkeypatch: pytest.MonkeyPatch, hour: str, day: int) -> None:
    class AfterMidnight(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> AfterMidnight:  # noqa: ARG003
            return cls(2026, 11, 27, 0, 10, 5)

    monkeypatch.setattr(past_room, "datetime", AfterMidnight)

    assert datetime.fromtimestamp(instant_of(hour)) == datetime.fromisoformat(f"2026-11-{day}T{hour}")


@pytest.mark.parametrize("text", ["", "yesterday", "25:00", "5", "9" * 100, "1:\x1b[2J", "99999999999d"])
def test_what_is_no_time_is_an_error_with_examples(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a time: write 5m"):
        instant_of(text)


def test_before_the_last_hour_nothing_is_known() -> None:
    app = app_on()
    statuses(app, "/quote")
    flush(app)

    with pytest.raises(ConfigurationError, match="traffic is known from "):
        past(app, "203.0.113.7", time.time() - 3700)


def test_command_and_api_give_the_same_answer_about_the_past() -> None:
    app = app_on()
    statuses(app, *["/login"] * 5, environ_base=CLIENT)
    flush(app)
    assert until(lambda: bans(gate_of(app)))
    at = datetime.fromtimestamp(amid_the_ban(app)).astimezone().isoformat()

    told = command(app, "why", "203.0.113.7", "--at", at, "--json")
    with app.test_client() as browser:
        shown = browser.get("/multilimit/api/subject", query_string={"who": "203.0.113.7", "at": at}).get_json()["past"]
        page = browser.get("/multilimit/subject", query_string={"who": "203.0.113.7", "at": at}).text

    del told["schema"]
    assert told == shown
    sentence = told["verdict"]["text"].partition(";")[0]
    assert sentence in page
    assert sentence in " ".join(command(app, "why", "203.0.113.7", "--at", at).split())
