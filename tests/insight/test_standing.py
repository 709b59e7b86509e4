"""Why a client is refused, and how to let it pass: commands, page and /api/ give the same answer."""

import json
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest
import redis
from flask import Flask, request

from flask_multilimit import IP, USER, Ban, ConfigurationError, MultiLimit, Rule, rate_limiter
from flask_multilimit.dashboard import Dashboard
from flask_multilimit.declare.decorators import RateLimiter
from flask_multilimit.declare.subjects import Subject
from flask_multilimit.engine import Decision, Hit, MemoryStorage, StorageError, hits_for
from flask_multilimit.engine.text import quoted
from flask_multilimit.insight.bans import bans, reset, unban
from flask_multilimit.insight.changes import entries
from flask_multilimit.insight.clients import client_from
from flask_multilimit.insight.doctor import examine
from flask_multilimit.insight.keys import all_keys
from flask_multilimit.insight.past import Past, instant_of, standing_at
from flask_multilimit.insight.standing import BANNED, DISABLED, UNKNOWN, Standing, standing
from flask_multilimit.insight.text import local_time
from flask_multilimit.insight.traffic import looking, now
from flask_multilimit.observe.traffic import Counts, Refused, reader_of
from flask_multilimit.observe.traffic.counts import TrafficKeys, bucket_at, tallies_of
from flask_multilimit.serve.gate import gate_of
from support.asking import ask, pass_a_second, statuses, view
from support.changes import control_of
from support.clock import Clock
from support.cluster import Cluster
from support.doubles import raising
from support.servers import Binary, Server
from support.waiting import until

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


def counted(app: Flask, *paths: str, **options: Any) -> list[int]:
    """The status of one request of the client to each path. Afterwards, the storage has the traffic."""
    found = statuses(app, *paths, **{"environ_base": CLIENT, **options})
    pass_a_second(app)
    return found


@pytest.fixture
def app() -> Flask:
    return app_on()


@pytest.mark.parametrize("path", ["/login", "/nowhere"], ids=["an endpoint", "no route"])
def test_why_names_a_ban_by_a_limiter_and_unban_lifts_it(app: Flask, path: str) -> None:
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


@pytest.mark.parametrize(("rules", "longer"), [("1/minute", ""), ("1/day", ", and refused by ip-86400s for 24 h")])
def test_why_names_limits_that_refuse_a_banned_client_longer_than_the_ban(app: Flask, rules: str, longer: str) -> None:
    app.add_url_rule("/sale", "sale", rate_limiter(type=IP, rules=rules, ban=BAN)(view()))
    assert statuses(app, *["/sale"] * 3, environ_base=CLIENT) == [200, 429, 429]

    verdict = why(app, "203.0.113.7").verdict

    assert re.fullmatch(rf".* until ([-\d]{{10}} )?[\d:]{{8}} [^ ,;]+{longer}", verdict)


@pytest.mark.parametrize("command", ["CONFIG SET maxmemory 1mb", "ACL SETUSER default -zadd", "REPLICAOF 127.0.0.1 1"])
def test_why_says_that_workers_decide_alone_while_the_server_answers_and_cannot_be_charged(
    command: str, server_binaries: dict[str, Binary]
) -> None:
    with Server(next(iter(server_binaries.values()))) as server:
        worker, other = (app_on(server.url) for _ in range(2))  # `why` is a process that makes no checks
        assert statuses(worker, "/quote", environ_base=CLIENT) == [200]
        client: Any = server.client()
        client.execute_command(*command.split())
        statuses(worker, "/quote", environ_base=CLIENT)

        found = [why(app, "203.0.113.7") for app in (worker, other)]

        gate_of(worker).limiter.close()
        assert [(each.state, str(each.verdict), each.requests) for each in found] == [("unknown", UNKNOWN, ())] * 2
        assert all("rate limit storage" in each.problem for each in found)
        with pytest.raises(StorageError, match="rate limit storage"):
            why(other, "203.0.113.7", endpoint="quote")
        storage = now(gate_of(other)).storage
        assert (storage.state, storage.since, storage.error) == ("failed", None, found[1].problem)
        top = other.test_cli_runner().invoke(args=["multilimit", "top", "--once"])
        assert (top.exit_code, top.output) == (1, f"Error: {storage.error}\n")


def test_why_says_so_everywhere_while_one_kind_of_limit_or_one_shard_cannot_be_charged(
    cluster: Cluster, server: Server
) -> None:
    def add_monthly(app: Flask) -> Flask:  # its kind of limit, on a shard of its own, can be charged
        monthly = Rule(time=60, count=9, algorithm="fixed_window")
        app.add_url_rule("/monthly", "monthly", rate_limiter(type=IP, rules=monthly)(view()))
        return app

    shard = cluster.owner("rate_limit:{search}:")
    assert shard != cluster.owner("rate_limit:{monthly}:")
    for uri, client in ((server.url, server.client()), (cluster.uri, cluster.client_of(shard))):
        worker, other = (add_monthly(app_on(uri)) for _ in range(2))
        with lacking(client, "zadd"):
            assert why(other, "203.0.113.7").state == "unknown"
            with pytest.raises(StorageError, match="zadd"):
                why(other, "203.0.113.7", endpoint="monthly")
            assert now(gate_of(other)).storage.state == "failed"
            script = next(each for each in examine(gate_of(other)) if each.name == "script")
            assert (script.level, script.remedy) == ("wrong", "The server's user needs the right +zadd.")
            assert statuses(worker, "/search", "/monthly", environ_base=CLIENT) == [200, 200]
            assert gate_of(worker).limiter.health().state == "failed"
        gate_of(worker).limiter.close()
        assert why(other, "203.0.113.7").state == "passes"


@pytest.mark.parametrize("limited", ["by subject", "by another extension", "in a function", "on one shard at least"])
def test_now_says_that_a_shard_which_any_limit_may_need_cannot_be_charged(limited: str, cluster: Cluster) -> None:
    app = Flask("shop")
    app.config["MULTILIMIT_STORAGE_TIMEOUT"] = 10
    limits = MultiLimit(app, storage=cluster.uri)
    if limited == "by another extension":
        limits.add_listing(lambda *_: {})
    if limited != "in a function":
        tag: Any = "subject" if limited == "by subject" else "scope"
        app.add_url_rule("/", "index", rate_limiter(type=IP, rules="9/minute", hash_tag=tag)(view()))

    for shard in cluster.primaries:
        with lacking(cluster.client_of(shard), "zadd"):
            assert now(gate_of(app)).storage.state == "failed"
    assert now(gate_of(app)).storage.state == "working"


@pytest.mark.parametrize("kind", ["one server", "cluster"])
def test_charges_are_tried_per_server_and_kind_of_limit_and_not_per_endpoint(
    kind: str, cluster: Cluster, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_on(cluster.uri if kind == "cluster" else server.url)
    for number in range(36):
        app.add_url_rule(f"/{number}", f"page{number}", rate_limiter("5/minute")(view()))
    storage = gate_of(app).limiter.storage
    check = Mock(side_effect=storage.check)
    monkeypatch.setattr(storage, "check", check)

    assert now(gate_of(app)).storage.state == "working"
    tried = [hit for call in check.call_args_list for hit in call.args[0]]
    assert 0 < len(tried) <= 2 * (3 if kind == "cluster" else 1)  # two kinds of limits


@contextmanager
def lacking(client: Any, right: str) -> Iterator[None]:
    client.execute_command("ACL", "SETUSER", "default", f"-{right}")
    try:
        yield
    finally:
        client.execute_command("ACL", "SETUSER", "default", "+@all")


def test_why_needs_no_limits_and_writes_nothing_into_the_memory_of_this_process(
    server: Server,
) -> None:
    free, limited = Flask("free"), Flask("limited")
    free.config["MULTILIMIT_STORAGE_TIMEOUT"] = 10
    MultiLimit(free, storage=server.url)
    MultiLimit(limited)
    posting = rate_limiter(type=IP, rules="3/minute", methods=["POST"])(view())
    limited.add_url_rule("/", "orders", posting, methods=["GET", "POST"])

    assert why(free, "203.0.113.7").state == "unlimited"
    found = why(limited, "203.0.113.7")
    storage = now(gate_of(limited)).storage

    assert [(each.methods, each.allowed) for each in found.requests] == [(("POST",), True)]
    assert (storage.state, all_keys(gate_of(limited))) == ("working", [])


def test_why_and_check_say_that_nothing_is_limited_while_limits_are_switched_off(server: Server) -> None:
    storage = server.url
    app = app_on(storage)
    assert statuses(app, *["/login"] * 5, environ_base=CLIENT) == [200, 200, 429, 429, 429]
    control_of(app).deny("203.0.113.7", lasting=True)
    off = Flask("shop")
    off.config.update(MULTILIMIT_ENABLED=False, MULTILIMIT_DENY=["203.0.113.7"])
    MultiLimit(off, storage=storage)
    off.add_url_rule("/login", "login", rate_limiter(type=IP, rules="2/minute", ban=BAN)(view()))
    assert statuses(off, "/login", environ_base=CLIENT) == [200]

    found, there = why(off, "203.0.113.7"), why(off, "203.0.113.7", "login")

    for each in (found, there):
        assert (each.state, each.verdict, each.allowed, each.lift) == ("unlimited", DISABLED, None, ())
        assert (each.listed, each.requests, each.elsewhere) == (None, (), ())
    assert command(off, "check", "login", "--ip", "203.0.113.7") == f"{DISABLED}\n"
    with pytest.raises(ConfigurationError, match="no endpoint is called"):
        why(off, "203.0.113.7", "logout")


class TakesProbes(MemoryStorage):
    """A storage that decides nothing, but answers."""

    shared = True

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        if any("probe" not in hit.key for hit in hits):
            raise StorageError("no charges")
        return super().check(hits, check_id)

    def check_many(self, *_: Any) -> list[Decision]:
        raise StorageError("no charges")


def test_standing_says_nothing_else_than_the_health_of_its_worker() -> None:
    app = app_on(TakesProbes())
    gate = gate_of(app)
    assert why(app, "203.0.113.7").state == "passes"
    assert statuses(app, "/quote", environ_base=CLIENT) == [200]
    assert gate.limiter.health().state == "failed"

    found = why(app, "203.0.113.7")

    gate.limiter.close()
    assert (found.state, found.problem) == ("unknown", "no charges")


def test_why_about_a_network_shows_refusals_of_clients_that_are_not_logged_in() -> None:
    app = Flask("shop")
    MultiLimit(app, user_loader=lambda: None)
    app.add_url_rule("/", "inbox", rate_limiter(type=USER, rules="1/minute")(view()))
    counted(app, "/", "/")

    assert {each.shown for each in why(app, "203.0.113.0/24").refusals} == {"203.0.113.7"}
    assert why(app, "192.0.2.0/24").refusals == ()


def app_with_a_service(ban: Ban | None, storage: Any = "memory://", *, name: str | None = None) -> Flask:
    """A view calls a limited function, and makes a check of its own."""
    app = app_on(storage)

    @rate_limiter(type=IP, rules="1/minute", ban=ban, name=name)
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


def test_why_gives_the_reason_of_an_outage_although_a_function_has_begun_a_ban() -> None:
    storage: Any = MemoryStorage()
    app = app_with_a_service(BAN, storage)
    counted(app, *["/mail"] * 4)
    assert why(app, "203.0.113.7").elsewhere
    storage.peek = raising(StorageError("away"))

    found = why(app, "203.0.113.7")

    assert (found.state, found.problem, found.elsewhere) == ("unknown", "away", ())


def test_why_names_a_limit_that_everyone_shares_where_it_refuses(app: Flask) -> None:
    app.add_url_rule("/sale", "sale", rate_limiter(rules="2/minute")(view()))
    assert why(app, "203.0.113.7", "sale").state == "unlimited"
    assert "sale" not in {each.endpoint for each in why(app, "203.0.113.7").requests}
    assert statuses(app, *["/sale"] * 3, environ_base={"REMOTE_ADDR": "192.0.2.1"}) == [200, 200, 429]

    found = why(app, "203.0.113.7")

    assert (found.state, found.allowed) == ("refused", False)
    assert found.verdict.startswith("refused at sale by default-60s, for ")
    assert found.lift == ("flask multilimit reset sale --everyone",)
    command(app, *found.lift[0].split()[2:], "--yes")
    assert why(app, "203.0.113.7").state == "passes"


def test_standing_of_an_address_within_an_ipv6_client_knows_its_ban_and_its_refusals(app: Flask) -> None:
    limits, address = app.extensions["multilimit"], "2001:db8::7"
    assert counted(app, *["/login"] * 4, environ_base={"REMOTE_ADDR": address}) == [200, 200, 429, 429]

    with app.app_context():
        of_both = limits.standing(ip=address, subject="api_key:key-0")
        gate_of(app).applier.control.ban(address, for_=600)
        gate_of(app).applier.look()
        banned = limits.standing(ip=address)

    assert (of_both.type, of_both.value) == ("api_key", "key-0")
    assert sum(each.refused for each in of_both.refusals) == 2
    assert banned.verdict.startswith("refused everywhere with 429: banned by ban ")
    assert (banned.who, banned.value) == (address, "2001:db8::/64")


def test_standing_of_a_request_without_a_user_has_the_quotas_of_anonymous_users(app: Flask) -> None:
    app.extensions["multilimit"].user_loader(lambda: None)
    app.add_url_rule("/mine", "mine", rate_limiter(type=USER, rules="1/minute")(view()))
    assert statuses(app, *["/mine"] * 2, environ_base=CLIENT) == [200, 429]

    with app.app_context():
        found = app.extensions["multilimit"].standing(ip="203.0.113.7", subject="api_key:key-0", endpoint="mine")

    assert found.verdict.startswith("refused at mine by user-60s, for ")


def test_bans_of_limited_functions_and_checks_are_listed_and_lifted() -> None:
    app = app_with_a_service(BAN)
    assert counted(app, *["/mail", "/invite"] * 3) == [200, 200, 429, 429, 429, 429]

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
    assert found.verdict.values["where"] in {SEND, "invitations"}  # both bans began nearly at once
    assert {each.endpoint for each in found.elsewhere} == {SEND, "invitations"}
    assert (why(app, "192.0.2.1").elsewhere, why(app, "203.0.113.7", "search").state) == ((), "passes")
    assert command(app, "unban", "203.0.113.7", "--yes") == "Lifted: 2 bans started by limiters.\n"
    with app.app_context():
        assert bans(gate_of(app)) == []
    assert why(app, "203.0.113.7").elsewhere == ()


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ([{"off": True}], False),
        ([{"shadow": True, "limiter": "ip"}], False),
        ([{"off": True, "limiter": "mailing"}], False),
        ([{"shadow": True}, {"shadow": False}], True),
        ([{"off": True, "limiter": "user"}], True),
        ([{"times": 2.0}], True),
    ],
    ids=str,
)
def test_bans_of_functions_are_listed_while_a_change_lets_them_refuse(
    changes: list[dict[str, Any]], refused: bool
) -> None:
    app = app_with_a_service(BAN, name="mailing")
    counted(app, *["/mail"] * 3)
    for each, place in zip(changes, ("*", SEND), strict=False):
        control_of(app).override(place, **each, lasting=True, force=True)

    with app.app_context():
        listed = [(each.endpoint, each.by) for each in bans(gate_of(app))]

    held = [(SEND, "mailing-ban")] if refused else []
    assert listed == [(each.endpoint, each.rule) for each in now(gate_of(app)).bans_in_force] == held
    assert (why(app, "203.0.113.7").state == "banned") == refused
    assert statuses(app, "/mail", environ_base=CLIENT) == [429 if refused else 200]


@pytest.mark.parametrize("limiter", ["mailing", "user"])
def test_ban_by_the_second_limiter_of_a_name_is_not_listed_while_a_change_switches_that_off(limiter: str) -> None:
    app = app_on()
    app.extensions["multilimit"].user_loader(lambda: None)
    by_user = rate_limiter(type=USER, rules="1/minute", ban=BAN, name="mailing")(view())
    send = rate_limiter(type=IP, rules="9/minute", ban=BAN, name="mailing")(by_user)
    app.add_url_rule("/mail", "mail", lambda: send())  # noqa: PLW0108 - it limits the function, not the view
    counted(app, *["/mail"] * 3)
    with app.app_context():
        assert [each.by for each in bans(gate_of(app))] == ["mailing-ban-2"]
        control_of(app).override("*", limiter=limiter, off=True, lasting=True, force=True)
        assert bans(gate_of(app)) == []


def test_lists_of_bans_ask_other_extensions_only_about_endpoints_with_bans() -> None:
    app, asked = app_with_a_service(BAN), list[str]()

    def listing(_: Flask, endpoint: str) -> dict[str, list[RateLimiter]]:
        asked.append(endpoint)
        return {}

    app.extensions["multilimit"].add_listing(listing)
    counted(app, *["/mail"] * 3)

    with app.app_context():
        assert bans(gate_of(app))  # this prepares the list of limits, too
        asked.clear()
        assert bans(gate_of(app))
        assert now(gate_of(app)).bans_in_force

    assert asked == []


@pytest.mark.parametrize("ahead", [-86_400, 86_400])
def test_bans_are_shown_by_the_clock_of_the_server(server: Server, monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    app = app_with_a_service(BAN, server.url)
    statuses(app, *["/login"] * 9, environ_base=CLIENT)
    counted(app, *["/mail"] * 3, environ_base={"REMOTE_ADDR": "192.0.2.1"})
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + ahead)

    found = why(app, "203.0.113.7")
    of_function = ask(app, "/multilimit/api/subject?who=192.0.2.1&at=1s").get_json()

    (held,) = (each for request in found.requests for each in request.bans if each.holds)
    ends: Any = found.verdict.values["until"]
    known = [held.since, *(each.since for each in bans(gate_of(app))), ends.at - 600, entries(gate_of(app)).at]
    assert known == pytest.approx([clock()] * 5, abs=5)
    assert of_function["mistake"] == ""
    assert of_function["found"]["retry_after"] == pytest.approx(600, abs=5)
    gate_of(app).limiter.close()


def test_client_that_only_a_function_counts_is_shown_as_banned_and_one_that_nothing_counts_is_an_error(
    app: Flask,
) -> None:
    app.add_url_rule("/sale", "sale", rate_limiter(rules="99/minute")(view()))
    send = rate_limiter(type=lambda: "acme", name="tenant", rules="1/minute", ban=BAN)(view())

    def mail() -> Any:
        return send()

    app.add_url_rule("/mail", "mail", mail)
    counted(app, *["/mail"] * 4)
    control = gate_of(app).applier.control
    control.override("quote", rule="ip-60s", rules="8/minute", lasting=True)
    gate_of(app).applier.look()

    (ban,) = bans(gate_of(app))

    assert why(app, ban.who).state == "banned"
    with pytest.raises(ConfigurationError, match="has a type called 'tenand'; its types are: api_key, default, ip"):
        why(app, "tenand:acme")
    assert command(app, "unban", ban.who, "--yes") == "Lifted: 1 ban started by limiters.\n"


def test_ban_by_a_function_comes_before_a_refusal_at_an_endpoint() -> None:
    app = app_with_a_service(BAN)
    counted(app, *["/mail", "/search"] * 4)

    found = why(app, "203.0.113.7")

    assert (found.state, found.verdict.values["where"]) == ("banned", SEND)
    assert [each.endpoint for each in found.requests if each.allowed is False] == ["search"]


def test_ban_shared_by_endpoint_and_function_is_listed_once(app: Flask) -> None:
    shared = rate_limiter(type=IP, rules="1/minute", ban=BAN, scope="mail")
    send = shared(view())

    def send_again() -> Any:
        return send()

    app.add_url_rule("/mail", "mail", shared(view()))
    app.add_url_rule("/again", "again", send_again)
    counted(app, *["/again"] * 3)

    with app.app_context():
        assert [(each.who, each.endpoint) for each in bans(gate_of(app))] == [("203.0.113.7", "mail")]


def test_why_names_no_shadow_among_the_rules_that_refuse(app: Flask) -> None:
    trial = rate_limiter(type=IP, rules="1/hour", shadow=True)
    app.add_url_rule("/mail", "mail", trial(rate_limiter(type=IP, rules="2/minute")(view())))
    assert counted(app, *["/mail"] * 3) == [200, 200, 429]

    assert why(app, "203.0.113.7").verdict.startswith("refused at mail by ip-60s, for ")


def test_ban_is_listed_when_another_endpoint_shares_it_as_a_shadow(app: Flask) -> None:
    refusing, trial = (
        rate_limiter(type=IP, rules="1/minute", ban=BAN, scope="mail", shadow=shadow) for shadow in (False, True)
    )
    app.add_url_rule("/mail", "mail", refusing(view()))
    app.add_url_rule("/mails", "mails", trial(view()))
    assert counted(app, *["/mail"] * 3) == [200, 429, 429]

    with app.app_context():
        assert [(each.who, each.endpoint) for each in bans(gate_of(app))] == [("203.0.113.7", "mail")]


def test_unban_lifts_no_strikes_of_a_limited_function() -> None:
    app = app_with_a_service(BAN)
    assert statuses(app, *["/mail"] * 2, environ_base=CLIENT) == [200, 429]

    assert "Nothing to lift" in command(app, "unban", "203.0.113.7", "--yes")
    assert statuses(app, "/mail", environ_base=CLIENT) == [429]
    assert command(app, "unban", "203.0.113.7", "--yes") == "Lifted: 1 ban started by limiters.\n"


@pytest.mark.parametrize("traffic", [True, False])
def test_only_bans_in_force_are_listed_and_no_shadow_ban(*, traffic: bool) -> None:
    app = app_on(traffic=traffic)
    limited = rate_limiter(type=IP, rules="1/minute", ban=BAN, name="visitors")(view())
    trial = rate_limiter(type=IP, rules="1/hour", ban=Ban(after=1, within=30, time=600), shadow=True, name="trial")
    members = rate_limiter(type=USER, rules="9/minute", ban=BAN, name="members")
    app.add_url_rule("/", "index", members(trial(limited)))
    app.extensions["multilimit"].user_loader(lambda: "ada")
    counted(app, "/", "/")
    assert "Nothing to lift" in command(app, "unban", "203.0.113.7", "--yes")
    assert why(app, "203.0.113.7").lift == ("flask multilimit reset index --ip 203.0.113.7",)
    assert command(app, "why", "203.0.113.7").count("(shadow)") == 2
    counted(app, "/")

    with app.app_context():
        (ban,) = bans(gate_of(app))

    assert (ban.who, ban.endpoint, ban.by) == ("203.0.113.7", "index", "visitors-ban")
    assert command(app, "unban", "203.0.113.7", "--yes") == "Lifted: 1 ban started by limiters.\n"


@pytest.mark.parametrize("change", ["off", "shadow"])
def test_no_ban_is_in_force_while_its_limiter_is_off_or_a_shadow(app: Flask, change: str) -> None:
    gate = gate_of(app)
    control = gate.applier.control
    counted(app, *["/login", "/nowhere"] * 5)
    assert (len(bans(gate)), [each.amount for each in now(gate, patient=True).bans_in_force]) == (2, [1, 1])

    changed = {"kind": "override", "endpoint": "login", change: True}
    control.put(control.preview(changed, for_="1h", reason="it bans customers", author="ada"), force=True)
    gate.applier.look()

    assert statuses(app, "/login", environ_base=CLIENT) == [200]
    assert [each.endpoint for each in bans(gate)] == ["unmatched"]
    assert [each.endpoint for each in now(gate, patient=True).bans_in_force] == ["unmatched"]


def test_why_names_functions_and_checks_that_refused_the_client() -> None:
    app = app_with_a_service(None)
    counted(app, *["/mail", "/invite"] * 2)

    found = why(app, "203.0.113.7")

    assert found.verdict == (
        f"passes at every endpoint; invitations, {SEND} refused it in the last hour, and may still do so"
    )
    (reset,) = found.lift
    command(app, *reset.split()[2:], "--yes")
    assert statuses(app, "/mail", "/invite", environ_base=CLIENT) == [200, 200]


def test_why_knows_the_refusals_of_hits_whose_subject_looks_like_a_digest() -> None:
    app, who = app_on(), f"api_key:*{'0a' * 20}"
    with app.app_context():
        for _ in range(2):
            app.extensions["multilimit"].check_hits(
                hits_for("1/minute", scope="send", subject=who), scope="send", subject=who
            )
    pass_a_second(app)

    assert [each.endpoint for each in why(app, who.replace(":", ":text:")).refusals] == ["send"]


def test_why_knows_an_endpoint_whose_name_traffic_cuts_off(app: Flask) -> None:
    name = "endpoint" * 40
    app.add_url_rule("/", name, rate_limiter(type=IP, rules="1/minute")(view()))
    counted(app, "/", "/")
    command(app, "reset", name, "--ip", "203.0.113.7", "--yes")

    found = why(app, "203.0.113.7")

    assert found.refusals
    assert found.verdict == "passes: nothing refuses it now"


@pytest.mark.parametrize("inner", ["203.0.113.7", "203.0.113.0/25"])
def test_why_names_bans_by_people_and_how_to_lift_every_entry_around_an_address(app: Flask, inner: str) -> None:
    control = control_of(app)
    control.ban(inner, for_="1h", author="bob", reason="scraper")
    denied = control.deny("203.0.113.0/24", for_="1h")
    assert statuses(app, "/quote", environ_base=CLIENT) == [429]

    found = why(app, "203.0.113.7")

    assert (found.state, found.allowed, [each.reason for each in found.entries]) == ("banned", False, ["scraper", ""])
    assert found.lift == (f"flask multilimit unban {inner}", f"flask multilimit unset {denied.id}")
    assert command(app, "unban", inner, "--yes") == f"Lifted: ban {inner}.\nStill in force: deny 203.0.113.0/24.\n"
    assert command(app, "unban", inner, "--yes").endswith("is in force.\nStill in force: deny 203.0.113.0/24.\n")
    control.undo(denied.id)
    assert statuses(app, "/quote", environ_base=CLIENT) == [200]
    with app.app_context():
        assert [each["what"] for each in control.history()] == ["undo", "undo", "set", "set"]


def test_unban_names_the_list_of_the_settings_that_still_denies_the_client() -> None:
    app = Flask("shop")
    MultiLimit(app, deny=["203.0.113.0/24", "user:42"], user_loader=lambda: None)
    control_of(app).ban("203.0.113.7", for_="1h")
    assert statuses(app, "/", environ_base=CLIENT) == [429]

    lifted = command(app, "unban", "203.0.113.7", "--yes")

    assert lifted == "Lifted: ban 203.0.113.7.\nStill in force: deny 203.0.113.0/24 (deny).\n"


def test_standing_of_several_subjects_names_how_to_lift_every_entry_about_one_of_them(app: Flask) -> None:
    control = control_of(app)
    control.ban("api_key:key-0", for_="1h")
    denied = control.deny("203.0.113.0/24", for_="1h")

    with app.app_context():
        found = app.extensions["multilimit"].standing(ip="203.0.113.7", subject="api_key:key-0")

    assert [each.kind for each in found.entries] == ["ban", "deny"]
    assert found.lift == (f"flask multilimit unset {denied.id}", "flask multilimit unban api_key:key-0")


@pytest.mark.parametrize("named", [{"ip": "2001:db8::/64", "subject": "api_key:key-0"}, {"ip": "[2001:db8::7]:50001"}])
def test_standing_knows_the_entries_about_a_client_that_they_write_in_another_way(
    app: Flask, named: dict[str, str]
) -> None:
    control_of(app).deny("2001:db8::/64", for_="1h")

    with app.app_context():
        found = app.extensions["multilimit"].standing(**named)

    assert (found.state, len(found.entries)) == ("denied", 1)


@pytest.mark.parametrize("denied", ["user:ada", "203.0.113.0/24", "tenant:bob"])
def test_standing_of_several_parts_knows_the_entries_about_each_of_them(denied: str) -> None:
    app = Flask("shop")
    MultiLimit(app, user_loader=lambda: "ada")
    parts = (USER, IP, lambda: request.headers["X-Key"])
    app.add_url_rule("/", "show", rate_limiter(type=parts, name="tenant", rules="1/minute")(view()))
    entry = control_of(app).deny(denied, for_="1h")
    assert statuses(app, "/", environ_base=CLIENT, headers={"X-Key": "bob"}) == [403]

    found = why(app, 'tenant:[["user", "ada"], ["ip", "203.0.113.7"], ["tenant", "bob"]]')

    assert (found.state, found.lift) == ("denied", (f"flask multilimit unset {entry.id}",))
    assert [each.id for each in found.entries] == [entry.id]


def test_standing_of_a_user_is_that_of_the_id_which_the_app_knows() -> None:
    """Not that of a user who is listed so, and not that of a digest."""
    app, odd = Flask("shop"), f"*{'0a' * 20}"
    MultiLimit(app, user_loader=lambda: request.headers["X-User"])
    app.add_url_rule("/", "show", rate_limiter(type=USER, rules="1/minute")(view()))
    assert statuses(app, "/", headers={"X-User": odd}) == [200]

    with app.app_context():
        found = [app.extensions["multilimit"].standing(user=user) for user in (odd, f"text:{odd}")]

    assert [each.state for each in found] == ["refused", "passes"]


def test_standing_of_a_client_that_is_not_logged_in_knows_the_entries_about_its_address() -> None:
    app = Flask("shop")
    MultiLimit(app, user_loader=lambda: None)
    app.add_url_rule("/", "show", rate_limiter(type=USER, rules="1/minute")(view()))
    entry = control_of(app).ban("203.0.113.0/24", for_="1h")

    found = why(app, "anonymous:203.0.113.7")

    assert (found.state, [each.id for each in found.entries]) == ("banned", [entry.id])
    assert found.lift == ("flask multilimit unban 203.0.113.0/24",)


def test_why_names_the_changes_of_limits_that_refuse_the_client(app: Flask) -> None:
    control = control_of(app)
    terms: Any = {"for_": "1h", "author": "joe", "reason": "too lax"}
    control.override("search", rule="ip-60s", rules="1/minute", **terms)
    control.override("quote", rule="ip-60s", rules="1/minute", **terms)
    control.override("search", rule="ip-3600s", off=True, force=True, **terms)
    control.override("log*", limiter="ip", rules="1/minute", **terms)
    counted(app, *["/search"] * 2, "/quote", *["/login"] * 4)
    control.override("login", rule="ip-60s", rules="9/minute", **terms)  # that of the ban

    found = why(app, "203.0.113.7")

    refuse = ["rule ip-60s at search: 1/minute", "rule ip-60s at quote: 1/minute", "limiter ip at log*: 1/minute"]
    refuse.append("rule ip-60s at login: 9/minute")
    assert [(each.text, each.author, each.reason) for each in found.entries] == [(e, "joe", "too lax") for e in refuse]
    assert why(app, "192.0.2.1").entries == ()


def test_refusing_limit_comes_first_with_a_reset_command_that_works(app: Flask) -> None:
    counted(app, *["/search"] * 5, "/quote")

    found = why(app, "203.0.113.7")

    assert found.verdict.startswith("refused at search by ip-60s, for ")
    assert [each.endpoint for each in found.requests] == ["search", "quote", "login", "unmatched"]
    assert found.untouched == 2
    assert [(each.endpoint, each.refused) for each in found.refusals] == [("search", 2)]
    (reset,) = found.lift
    assert reset == "flask multilimit reset search --ip 203.0.113.7"
    command(app, *reset.split()[2:], "--yes")
    assert why(app, "203.0.113.7").state == "passes"


@pytest.mark.parametrize(
    "peer", ["10.0.0.0/8", "2001:db8::/32", "10.0.0.0/255.0.0.0", " 10.0.0.7", "10.0.0.300", "user:42", "ip:10.0.0.0/8"]
)
def test_no_name_of_a_client_whose_address_is_text_that_it_chose_stands_for_others(app: Flask, peer: str) -> None:
    counted(app, *["/login"] * 4, environ_base={"REMOTE_ADDR": peer})
    gate = gate_of(app)
    with app.app_context():
        names = [each.who for each in bans(gate)] + [each.shown for each in now(gate).subjects]

    assert "change?kind=ban" not in app.test_client().get("/multilimit/").text  # no list can name it
    assert len(names) == 2
    for name in names:
        client, value = client_from(gate, name), gate.subjects.counted(Subject("ip", peer)).value
        assert (client.who, client.given["ip"]) == (None, value), name


@pytest.mark.parametrize("peer", ["", "localhost", "unix:", "fe80::1%eth0"])
def test_client_without_a_usual_address_is_let_pass_by_the_commands_that_name_it(app: Flask, peer: str) -> None:
    client = {"REMOTE_ADDR": peer}
    assert counted(app, *["/login"] * 4, *["/search"] * 4, environ_base=client)[3::4] == [429, 429]
    (ban,) = bans(gate_of(app))

    lifts = [line for who in (ban.who, f"ip:{peer}") for line in why(app, who).lift]
    assert len(lifts) == 6
    for line in lifts:
        command(app, *shlex.split(line)[2:], "--yes")

    assert statuses(app, "/login", "/search", environ_base=client) == [200, 200]


def test_value_without_type_is_understood_when_one_type_fits(app: Flask) -> None:
    assert client_from(gate_of(app), "key-0").text == "api_key:key-0"
    assert why(app, "api_key:key-0").who == why(app, "key-0").who


def test_quoted_value_that_looks_quoted_itself_names_no_other_client(app: Flask) -> None:
    value = '"api_key:bob\\n"'
    with pytest.raises(ConfigurationError):
        client_from(gate_of(app), quoted(value))
    assert client_from(gate_of(app), quoted("api_key:bob\n")).text == "api_key:bob\n"


def test_value_that_fits_several_types_is_an_error_with_choices() -> None:
    app = app_on(types=("api_key", "tenant"))
    with pytest.raises(ConfigurationError, match="api_key:key-0, tenant:key-0"):
        client_from(gate_of(app), "key-0")


def test_value_without_type_means_the_type_refused_lately() -> None:
    app = app_on(types=("api_key", "tenant"))
    counted(app, "/tenant", "/tenant", headers={"X-Key": "key-0"})
    assert client_from(gate_of(app), "key-0").text == "tenant:key-0"


def test_value_without_type_means_a_client_without_an_address_that_was_refused_lately(app: Flask) -> None:
    counted(app, *["/login"] * 3, environ_base={"REMOTE_ADDR": "localhost"})
    assert client_from(gate_of(app), "localhost").given["ip"] == "localhost"


def test_value_that_was_refused_under_several_types_is_an_error_however_many_limits_refused_one_of_them(
    app: Flask,
) -> None:
    counted(app, *["/login"] * 4, *["/search"] * 5, environ_base={"REMOTE_ADDR": "localhost"})
    counted(app, "/api_key", "/api_key", headers={"X-Key": "localhost"})
    with pytest.raises(ConfigurationError, match="api_key:localhost, ip:localhost"):
        client_from(gate_of(app), "localhost")


def test_why_page_and_api_give_the_same_answer(app: Flask) -> None:
    counted(app, *["/login"] * 5, *["/search"] * 2)
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
    refusals = [{**each, "until": 0} for each in of_command["refusals"]]  # depends on the time of the look
    assert refusals == [{**each, "until": 0} for each in of_api["refusals"]]
    assert "refused at login: banned by ip-ban" in page
    assert page.index("Lift") < page.index("Limits that refuse it, ") < page.index("Refused in the last hour")


def test_verdict_of_the_page_is_in_one_language(app: Flask) -> None:
    counted(app, *["/login", "/nowhere"] * 5)
    control_of(app).deny("192.0.2.1", lasting=True)

    def verdict(who: str) -> str:
        page = app.test_client().get(f"/multilimit/subject?who={who}&lang=zh").text
        (found,) = re.findall("<strong>(.*)</strong></p>", page)
        return str(found)

    banned, denied = verdict("203.0.113.7"), verdict("192.0.2.1")

    assert {"refusals", "more", "and"}.isdisjoint(re.findall(r"[a-z]+", banned))
    assert "拒绝 6 次" in banned
    assert denied.endswith("永久")


def test_check_finds_quotas_of_unmatched_requests(app: Flask) -> None:
    statuses(app, "/nowhere", environ_base=CLIENT)
    (asked,) = command(app, "check", "unmatched", "--ip", "203.0.113.7", "--json")["requests"]
    assert (asked["endpoint"], [each["remaining"] for each in asked["rules"]]) == ("unmatched", [1])


def test_why_prints_verdict_and_remedy(app: Flask) -> None:
    counted(app, *["/login"] * 5)

    told = command(app, "why", "203.0.113.7")

    assert told.startswith("203.0.113.7  (counted by: ip)\nrefused at login: banned by ip-ban until ")
    assert "ENTRY" not in told
    assert "3 other endpoints: nothing is used." in told
    assert "Used at" not in told
    assert "To let it pass:\n  flask multilimit unban 203.0.113.7\n" in told


def test_why_offers_no_remedy_to_a_client_that_passes_because_it_is_allowed(app: Flask) -> None:
    counted(app, *["/login"] * 5)
    control_of(app).allow("203.0.113.7", lasting=True)

    told = command(app, "why", "203.0.113.7")

    assert "passes everywhere: allowed by allow " in told
    assert "login GET  a request would pass\n" in told
    assert "To let it pass" not in told


@pytest.mark.parametrize("traffic", [True, False], ids=["by traffic", "by keys"])
def test_every_ban_in_force_is_listed_with_client_and_origin(any_uri: str, traffic: bool) -> None:
    begin, app = time.time(), app_on(any_uri, traffic=traffic)
    statuses(app, *["/login"] * 5, environ_base=CLIENT)
    counted(app, *["/nowhere"] * 5, environ_base={"REMOTE_ADDR": "2001:db8::7"})
    until(lambda: len(bans(gate_of(app))) == 2)
    control_of(app).ban("api_key:eve", for_="1h", author="bob", reason="spam")

    found = bans(gate_of(app))
    statuses(app, *["/login"] * 2, environ_base={"REMOTE_ADDR": "192.0.2.1"})

    assert sorted((each.who, each.by, each.endpoint) for each in found) == [
        ("2001:db8::/64", "ip-ban", "unmatched"),
        ("203.0.113.7", "ip-ban", "login"),
        ("api_key:eve", "bob", "*"),
    ]
    assert all(begin - 1 < each.since < time.time() + 1 for each in found)
    assert len(bans(gate_of(app))) == 3, "a client that was never refused has no ban"
    gate_of(app).limiter.close()


@pytest.mark.parametrize("id_", [":1", ":", "1:2:3:4:5:6:7"])
def test_ban_of_a_client_whose_name_could_be_an_ipv6_address_is_lifted_by_this_name(id_: str) -> None:
    app = app_on(types=())
    feeds = rate_limiter(type=lambda: request.headers["X-Feed"], name="feed", rules="2/minute", ban=BAN)
    app.add_url_rule("/feed", "feed", feeds(view()))
    counted(app, *["/feed"] * 5, headers={"X-Feed": id_})
    until(lambda: len(bans(gate_of(app))) == 1)
    (ban,) = bans(gate_of(app))

    client = client_from(gate_of(app), ban.who)

    assert (client.given, client.text) == ({"feed": id_}, ""), "lists would take it for the address"
    assert len(unban(gate_of(app), client).keys) == 1
    assert client_from(gate_of(app), f"ip:{ban.who}").text == ban.who


@pytest.mark.parametrize("traffic", [True, False], ids=["by traffic", "by keys"])
def test_ban_whose_key_cannot_be_read_hides_no_other(
    server: Server, redis_client: redis.Redis, *, traffic: bool
) -> None:
    app, clients = app_on(server.url, traffic=traffic), ["203.0.113.7", "203.0.113.8", "203.0.113.9"]
    for each in clients:
        counted(app, *["/login"] * 5, environ_base={"REMOTE_ADDR": each})
    until(lambda: len(bans(gate_of(app))) == 3)
    spoilt: list[Any] = redis_client.keys("*203.0.113.[89]:ban:*")
    redis_client.delete(*spoilt)
    redis_client.lpush(spoilt[0], "not ours")
    redis_client.set(spoilt[1], "not ours")

    assert [each.who for each in bans(gate_of(app))] == ["203.0.113.7"]
    known = {key["key"].encode(): key["used"] for key in command(app, "keys", "--json")["keys"]}
    assert [known[each] for each in spoilt] == [None, None]
    redis_client.set(redis_client.keys("*203.0.113.7:ban:*")[0], "not ours")
    with pytest.raises(StorageError, match="refused a command"):  # none can be read
        bans(gate_of(app))
    gate_of(app).limiter.close()


def test_ban_began_when_the_clock_of_the_server_says_also_without_control(any_storage: Any, clock: Clock) -> None:
    app = Flask("shop")
    app.config.update(MULTILIMIT_CONTROL=False, MULTILIMIT_TRAFFIC=False)
    MultiLimit(app, storage=any_storage)
    app.add_url_rule("/login", "login", rate_limiter(type=IP, rules="2/minute", ban=BAN)(view()))
    statuses(app, *["/login"] * 5, environ_base=CLIENT)

    with app.app_context():
        (ban,) = bans(gate_of(app))

    assert ban.since == clock() / 1_000_000 == why(app, "203.0.113.7").requests[0].bans[0].since


def test_lifted_ban_leaves_the_list_and_a_new_one_counts_once(any_uri: str) -> None:
    app = app_on(any_uri)
    gate = gate_of(app)
    for lifted in (lambda: command(app, "unban", "203.0.113.7", "--yes"), lambda: gate.reset(all_keys(gate))):
        counted(app, *["/login"] * 5)
        assert [each.who for each in until(lambda: bans(gate))] == ["203.0.113.7"]
        assert [each.amount for each in now(gate, patient=True).bans_in_force] == [1]

        with app.app_context():
            lifted()

        assert bans(gate) == []
        assert reader_of(gate.limiter.storage, "rate_limit:").bans().in_force() == {}
        gate.reset(all_keys(gate))
    gate.limiter.close()


def test_bans_are_found_without_a_scan_of_keys(server: Server, redis_client: redis.Redis) -> None:
    app = app_on(server.url)
    counted(app, *["/login"] * 5)
    assert until(lambda: bans(gate_of(app)))
    redis_client.config_resetstat()

    assert [each.who for each in bans(gate_of(app))] == ["203.0.113.7"]

    assert "cmdstat_scan" not in redis_client.info("commandstats")
    gate_of(app).limiter.close()


def test_subject_that_looks_like_another_client_is_kept_apart() -> None:
    """Subjects of combined types are kept as such text, which a client may choose as its own key."""
    app, key = app_on(), '[["user", "bob"]]'
    counted(app, *["/api_key"] * 3, headers={"X-Key": key})

    found = why(app, f"api_key:{key}")
    with app.app_context():
        shown = [each.shown for each in now(gate_of(app)).subjects]

    assert found.shown == key
    assert shown == [key]
    assert found.lift == (f"flask multilimit reset api_key --subject 'api_key:{key}'",)


def test_part_that_looks_like_another_subject_is_named_as_it_is() -> None:
    app, key = app_on(), '[["ip", "198.51.100.7"]]'
    parts = (IP, lambda: request.headers["X-Key"])
    app.add_url_rule("/pair", "pair", rate_limiter(type=parts, name="tenant", rules="1/minute")(view()))
    assert counted(app, *["/pair"] * 2, headers={"X-Key": key}) == [200, 429]

    with app.app_context():
        found = app.extensions["multilimit"].standing(ip="203.0.113.7", subject=f"tenant:{key}", endpoint="pair")

    assert found.lift == (f"flask multilimit reset pair --ip 203.0.113.7 --subject 'tenant:{key}'",)


@pytest.mark.parametrize("named", ["user:{}", "user:text:{}"])
def test_ban_of_a_user_with_an_odd_id_is_named_and_lifted_by_either_spelling(named: str) -> None:
    app, odd = Flask("shop"), '[["user", "ada"], ["ip", "203.0.113.7"]]'
    MultiLimit(app, user_loader=lambda: odd)
    ban, who = control_of(app).ban(f"user:{odd}", for_="1h"), named.format(odd)
    assert statuses(app, "/") == [429]

    found = why(app, who)
    assert (found.state, [each.id for each in found.entries]) == ("banned", [ban.id])
    assert "Lifted: ban" in command(app, "unban", who, "--yes")
    assert statuses(app, "/") == [404]


PAIR = 'user+ip:[["user", "ada"], ["ip", "203.0.113.7"]]'


def app_of_pairs(storage: Any, *, rules: str = "1/minute") -> Flask:
    """An app that counts users together with their addresses."""
    app = Flask("shop")
    app.config.update(MULTILIMIT_DENY_CACHE=0, MULTILIMIT_STORAGE_TIMEOUT=10)
    MultiLimit(app, storage=storage, user_loader=lambda: request.headers.get("X-User"))
    app.add_url_rule("/", "show", rate_limiter(type=(USER, IP), rules=rules, ban=BAN)(view()))
    counted(app, *["/"] * 4, headers={"X-User": "ada"})
    return app


def test_why_shows_refusals_of_this_client_or_network_there_and_of_nobody_else() -> None:
    app = Flask("shop")
    MultiLimit(app, user_loader=lambda: request.headers.get("X-User"))
    for name, type_ in (("mine", IP), ("other", IP), ("account", USER)):
        app.add_url_rule(f"/{name}", name, rate_limiter(type=type_, rules="1/minute")(view()))
    for path, address in (("/mine", "2001:db8:1:2::7"), ("/other", "2001:db8:1:2::7"), ("/mine", "203.0.113.9")):
        statuses(app, path, path, environ_base={"REMOTE_ADDR": address})
    counted(app, "/account", "/account", headers={"X-User": "203.0.113.5"})

    def refused(*asked: str) -> list[tuple[str, str]]:
        return sorted((each.endpoint, each.subject) for each in why(app, *asked).refusals)

    both = [("mine", "2001:db8:1:2::/64"), ("other", "2001:db8:1:2::/64")]
    assert refused("2001:db8:1:2::9") == refused("2001:db8:1::/48") == both
    assert refused("2001:db8:1:2::9", "mine") == refused("2001:db8:1::/48", "mine") == both[:1]
    assert refused("203.0.113.0/24") == refused("203.0.113.9") == [("mine", "203.0.113.9")]
    assert refused("user:203.0.113.5") == [("account", "203.0.113.5")]
    assert refused("203.0.113.5") == refused("2001:db8:1:3::7") == refused("2001:db8:2::/48") == []


class TestCombinedTypes:
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
    def test_one_subject_of_a_pair_shows_refusals_of_the_pair_and_another_user_none(
        self, who: str, verdict: str
    ) -> None:
        app = app_of_pairs("memory://")
        found = why(app, who)
        assert why(app, "user:eve").refusals == ()
        assert found.verdict == verdict
        assert {each.shown for each in found.refusals} == {"ada + 203.0.113.7"}

    @pytest.mark.parametrize("who", [PAIR, PAIR.replace(" ", "")])
    def test_pair_of_subjects_is_shown_as_banned(self, who: str) -> None:
        found = why(app_of_pairs("memory://"), who)
        assert (found.state, found.shown) == ("banned", "ada + 203.0.113.7")
        assert found.lift[0] == f"flask multilimit unban '{PAIR}'"

    def test_ban_of_a_pair_that_only_a_function_counts_is_lifted_by_its_listed_name(self, app: Flask) -> None:
        app.extensions["multilimit"].user_loader(lambda: "ada")
        send = rate_limiter(type=(USER, IP), rules="1/minute", ban=BAN)(view())

        def mail() -> Any:
            return send()

        app.add_url_rule("/mail", "mail", mail)
        counted(app, *["/mail"] * 4)
        (ban,) = bans(gate_of(app))

        assert (ban.who, ban.shown) == (PAIR, "ada + 203.0.113.7")
        assert why(app, ban.who).state == "banned"
        assert "Lifted: 1 ban started by limiters." in command(app, "unban", ban.who, "--yes")
        assert bans(gate_of(app)) == []

    def test_ban_of_a_pair_is_lifted_by_its_listed_name(self, any_uri: str) -> None:
        app = app_of_pairs(any_uri)
        (ban,) = until(lambda: bans(gate_of(app)))

        assert (ban.who, ban.shown) == (PAIR, "ada + 203.0.113.7")
        assert "Lifted: 1 ban started by limiters." in command(app, "unban", ban.who, "--yes")
        assert bans(gate_of(app)) == []
        gate_of(app).limiter.close()


class TestSharedQuotaOfAnonymousClients:
    """With ``MULTILIMIT_ANONYMOUS_USER = "shared"``, all clients that are not logged in are one subject."""

    @pytest.fixture
    def app(self) -> Flask:
        """It has banned them at one endpoint; at the other, addresses count, too."""
        app = Flask("shop")
        app.config.update(MULTILIMIT_DENY_CACHE=0, MULTILIMIT_ANONYMOUS_USER="shared")
        MultiLimit(app, user_loader=lambda: request.headers.get("X-User"))
        limited = rate_limiter(type=USER, rules="1/minute", ban=BAN)
        app.add_url_rule("/inbox", "inbox", limited(view()))
        app.add_url_rule("/post", "post", rate_limiter(type=IP, rules="9/minute")(limited(view())))
        assert counted(app, *["/inbox"] * 4, *["/post"] * 4) == [200, 429, 429, 429] * 2
        return app

    @pytest.mark.parametrize("who", ["anonymous:", "192.0.2.1"], ids=["all", "one"])
    def test_why_says_that_they_are_banned_and_how_to_lift_it(self, app: Flask, who: str) -> None:
        found = why(app, who)

        assert (found.state, [each.endpoint for each in found.requests]) == ("banned", ["inbox", "post"])
        assert found.lift[0] == "flask multilimit unban anonymous:"
        assert {each.who for each in bans(gate_of(app))} == {"anonymous:"}
        assert command(app, "unban", "anonymous:", "--yes") == "Lifted: 2 bans started by limiters.\n"
        assert why(app, who).state == "refused"

    def test_reset_and_unban_of_one_address_leave_it_alone(self, app: Flask) -> None:
        gate = gate_of(app)
        client = client_from(gate, "203.0.113.7")
        assert (unban(gate, client).keys, reset(gate, client), reset(gate, client, "post")) == ((), 1, 0)
        assert statuses(app, "/inbox", "/post", environ_base={"REMOTE_ADDR": "192.0.2.1"}) == [429, 429]


def test_nothing_of_a_queue_is_used_or_reset_before_the_first_request(app: Flask) -> None:
    queue = rate_limiter(type=IP, rules=Rule(60, 60, algorithm="leaky_bucket", max_delay=2))
    app.add_url_rule("/queue", "queue", queue(view()))

    ((rule,),) = (each.rules for each in why(app, "203.0.113.7", "queue").requests)

    assert (rule.used, rule.quota) == (0, 3)
    assert reset(gate_of(app), client_from(gate_of(app), "203.0.113.7"), "queue") == 0


def test_ban_of_a_subject_with_a_lone_surrogate_is_lifted_by_its_listed_name(any_uri: str) -> None:
    app = app_on(any_uri)
    named = rate_limiter(type=lambda: request.get_json()["name"], name="login", rules="1/minute", ban=BAN)
    app.add_url_rule("/sign-in", "sign_in", named(view()), methods=["POST"])
    given = {"data": r'{"name": "a\ud800b"}', "content_type": "application/json"}
    assert counted(app, *["/sign-in"] * 4, method="POST", **given) == [200, 429, 429, 429]
    (ban,) = until(lambda: bans(gate_of(app)))

    assert (ban.who, ban.shown) == (r"login:a\ud800b", r"login:a\ud800b")
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
        counted(app, *["/tenant"] * 4, headers={"X-Key": self.KEY})
        return app

    def test_ban_is_lifted_by_the_listed_digest_and_that_of_a_client_that_chose_it_by_itself(self) -> None:
        app = self.app()
        (ban,) = bans(gate_of(app))
        digest = ban.who.removeprefix("tenant:")
        assert re.fullmatch(r"\*[0-9a-f]{40}", digest)
        counted(app, *["/tenant"] * 4, headers={"X-Key": digest})

        (other,) = {each.who for each in bans(gate_of(app))} - {ban.who}
        command(app, "unban", other, "--yes")
        assert [each.who for each in bans(gate_of(app))] == [ban.who]
        assert "Lifted: 1 ban started by limiters." in command(app, "unban", ban.who, "--yes")
        assert bans(gate_of(app)) == []

    @pytest.mark.parametrize("endpoint", [None, "tenant"])
    def test_verdict_about_a_digest_is_unknown(self, endpoint: str | None) -> None:
        app = self.app()
        (ban,) = bans(gate_of(app))

        found = why(app, ban.who, endpoint)

        assert (found.state, found.requests) == ("unknown", ())
        assert "digest" in found.verdict

    def test_subject_behind_a_digest_is_shown_as_banned(self) -> None:
        assert why(self.app(), f"tenant:{self.KEY}").state == "banned"


def instant_among_refusals(app: Flask) -> float:
    """An instant after some of seven refusals of a banned client and before the others, however long they take: traffic
    knows the times of the first and the last to ten seconds."""
    counted(app, *["/login"] * 6)
    assert until(lambda: bans(gate_of(app)))
    at = reader_of(gate_of(app).limiter.storage, "rate_limit:").bans().at
    counted(app, *["/login"] * 3)
    return at


def past(app: Flask, who: str, at: float, endpoint: str | None = None) -> Past:
    gate = gate_of(app)
    with app.app_context(), looking(gate, patient=True) as memory:
        return standing_at(gate, client_from(gate, who), memory, at, endpoint=endpoint)


def test_past_standing_is_banned_only_during_the_ban(any_uri: str) -> None:
    """Refusals are known to the second; the one that starts the ban counts for the ban."""
    app = app_on(any_uri)
    before = time.time()
    at = instant_among_refusals(app)
    command(app, "unban", "203.0.113.7", "--yes")
    lifted = time.time()

    during = past(app, "203.0.113.7", at)

    assert during.state == "banned"
    assert before - 1 < during.bans[0].began < during.bans[0].ended < lifted + 1
    assert [(each.rule, each.refused) for each in during.refusals] == [("ip-ban", 6), ("ip-60s", 1)]
    assert during.verdict.startswith(f"at {local_time(at)} it was refused at login: banned by ip-ban from ")
    assert re.search(r"; refusals from .* until .*: 7$", during.verdict)
    assert past(app, "203.0.113.7", at, endpoint="quote").verdict == f"at {local_time(at)} nothing refused it"
    assert past(app, "203.0.113.7", at, endpoint="search").state == "passes"
    assert past(app, "192.0.2.1", at).state == "passes"
    gate_of(app).limiter.close()


def test_why_says_how_many_of_the_refusals_came_since_the_instant_beside_them() -> None:
    storage, earlier = MemoryStorage(), Counts()
    earlier.refused[Refused("search", "ip-60s", "ip", "203.0.113.7")] = 5
    storage.tally(
        tallies_of(TrafficKeys("rate_limit:"), bucket_at(time.time() - 300), earlier), source="test", number=1
    )
    app = app_on(storage)
    counted(app, *["/search"] * 5)

    (refusal,) = why(app, "203.0.113.7").refusals

    assert (refusal.latest, refusal.refused) == (2, 7)
    assert re.search(r"REFUSED +ENDPOINT +RULE +SINCE +LAST\n2 of 7 +search ", command(app, "why", "203.0.113.7"))
    assert ">2 of 7<" in app.test_client().get("/multilimit/subject?who=203.0.113.7").text


@pytest.mark.parametrize("checks", [0, 1])
def test_past_before_the_first_check_is_not_known_as_a_server_that_restarts_empty_has_lost_it(
    app: Flask, checks: int
) -> None:
    earlier = time.time() - 600
    counted(app, *["/quote"] * checks)

    then = past(app, "203.0.113.7", earlier)

    with app.app_context():
        assert (now(gate_of(app), minutes=5, patient=True).seconds < 60) == bool(checks)
    assert then.state == "unknown"
    assert then.verdict.startswith(
        f"at {local_time(earlier)} it may have been refused, as no request is counted before "
    )


def test_verdict_shows_end_of_ban_and_number_of_refusals(app: Flask) -> None:
    counted(app, *["/login"] * 9)
    until(lambda: bans(gate_of(app)))

    expected = r"refused at login: banned by ip-ban until ([-\d]{10} )?[\d:]{8} \S+; refusals since [\d:]{8} \S+: 7"
    assert re.fullmatch(expected, why(app, "203.0.113.7").verdict)


AFTER_MIDNIGHT = datetime(2026, 11, 27, 0, 10, 5)
TIMES = {
    **{"5m": AFTER_MIDNIGHT - timedelta(minutes=5), "90s": AFTER_MIDNIGHT - timedelta(seconds=90)},
    **{" 1h ": datetime(2026, 11, 26, 23, 10, 5), "2026-11-20T03:12:00": datetime(2026, 11, 20, 3, 12)},
    **{"00:10": datetime(2026, 11, 27, 0, 10), "00:12": datetime(2026, 11, 26, 0, 12)},
    **{"23:50": datetime(2026, 11, 26, 23, 50), "2026-07-01T03:12:00+02:00": datetime.fromtimestamp(1_782_868_320)},
    "2026-07-01T01:12:00Z": datetime.fromtimestamp(1_782_868_320),
}


@pytest.mark.parametrize(("text", "at"), TIMES.items(), ids=TIMES)
def test_time_is_how_long_ago_or_iso_8601_which_needs_no_zone_and_without_a_date_is_the_latest(
    text: str, at: datetime
) -> None:
    assert datetime.fromtimestamp(instant_of(text, AFTER_MIDNIGHT.timestamp())) == at


@pytest.mark.parametrize("text", ["", "yesterday", "25:00", "5", "9" * 100, "1:\x1b[2J", "99999999999d"])
def test_invalid_time_is_an_error_with_examples(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a time: write 5m"):
        instant_of(text, time.time())


def test_time_before_the_last_hour_is_an_error(app: Flask) -> None:
    counted(app, "/quote")
    with pytest.raises(ConfigurationError, match="traffic is known from "):
        past(app, "203.0.113.7", time.time() - 3700)


def test_past_standing_shows_what_a_limit_refused_that_everyone_shares(app: Flask) -> None:
    app.add_url_rule("/sale", "sale", rate_limiter(rules="1/minute")(view()))
    counted(app, *["/sale"] * 3)

    then = past(app, "192.0.2.1", time.time())

    assert (then.state, [(each.shown, each.refused) for each in then.refusals]) == ("refused", [("everyone", 2)])
    assert " it was refused at sale by default-60s; refusals from " in then.verdict
    assert past(app, "192.0.2.1", time.time(), endpoint="login").state == "passes"


def test_why_page_and_api_agree_about_the_past(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    app = app_on(storage)
    at = datetime.fromtimestamp(instant_among_refusals(app)).astimezone().isoformat()
    now, ask_now = time.time(), storage.tallies  # the last ten seconds of refusals are not over: their end is now
    monkeypatch.setattr(storage, "tallies", lambda keys: ask_now(keys)._replace(at=now))

    told = command(app, "why", "203.0.113.7", "--at", at, "--json")
    with app.test_client() as browser:
        shown = browser.get("/multilimit/api/subject", query_string={"who": "203.0.113.7", "at": at}).get_json()["past"]
        page = browser.get("/multilimit/subject", query_string={"who": "203.0.113.7", "at": at}).text

    elsewhere = {"who": "203.0.113.7", "at": at, "endpoint": "search"}
    of_other = command(app, "why", "203.0.113.7", "--at", at, "--endpoint", "search", "--json")
    page_of_other = app.test_client().get("/multilimit/api/subject", query_string=elsewhere).get_json()["past"]
    assert (told["state"], of_other["state"], page_of_other["state"]) == ("banned", "passes", "passes")
    del told["schema"]
    assert told == shown
    sentence = told["verdict"]["text"].partition(";")[0]
    between_times = re.split(r"(?:[0-9-]{10} )?[0-9:]{8} \S+", sentence)
    assert re.search("<time [^>]+>[^<]+</time>".join(map(re.escape, between_times)), page)
    assert sentence in " ".join(command(app, "why", "203.0.113.7", "--at", at).split())
