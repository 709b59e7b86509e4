"""What the doctor finds about an app, its server and its changes."""

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from flask import Blueprint, Flask, request
from flask.views import MethodView
from werkzeug.exceptions import HTTPException, InternalServerError, TooManyRequests
from werkzeug.middleware.proxy_fix import ProxyFix

from flask_multilimit import IP, USER, MultiLimit, RateLimitExceeded, Rule, exempt, rate_limiter
from flask_multilimit.compat.flask_limiter import Limiter
from flask_multilimit.compat.flask_limiter.util import get_remote_address
from flask_multilimit.engine import RedisStorage
from flask_multilimit.engine.storage.redis.failures import RIGHTS, RIGHTS_OF_OPERATORS, RIGHTS_OF_WORKERS
from flask_multilimit.insight.doctor import PROXY_HINTS, Finding, Level, examine, examine_latency
from flask_multilimit.plan.overrides import fitting
from flask_multilimit.serve.gate import gate_of
from support.asking import statuses, view
from support.cluster import Cluster
from support.doubles import Instance, with_wraps, with_wrapt, without_wraps
from support.sentinel import SERVICE, SentinelServer
from support.servers import Binary, Server

LIMITER = rate_limiter(type=IP, rules="5/minute")
WARN = {"MULTILIMIT_UNKNOWN_NAMES": "warn"}


class Unread(TooManyRequests):
    """Another 429."""


def test_limit_of_a_blueprint_without_routes_applies_to_nothing(app: Flask) -> None:
    around, inside, empty, unlimited = (
        Blueprint(name, __name__) for name in ("around", "inside", "empty", "unlimited")
    )
    inside.add_url_rule("/", "show", view())
    for blueprint in (around, empty):
        LIMITER(blueprint)
    for blueprint in (inside, empty):
        around.register_blueprint(blueprint)
    for blueprint in (around, unlimited):
        app.register_blueprint(blueprint)
    MultiLimit(app)

    texts = [found.text for found in examine(gate_of(app)) if found.name == "names"]

    assert texts == ['A limit applies to nothing. The blueprint "around.empty" has no routes.']


class Kept:
    """Has a method that is the view and calls the kept function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def show(self) -> Any:
        return self.function()


def hidden(app: Flask) -> list[Finding]:
    MultiLimit(app)
    return [found for found in examine(gate_of(app)) if found.name == "hidden"]


@pytest.mark.parametrize(
    "decorate",
    [
        without_wraps,
        Instance,
        lambda limited: Kept(limited).show,
        lambda limited: without_wraps(with_wraps(without_wraps(limited))),
        lambda limited: functools.partial(without_wraps(limited)),
        lambda limited: LIMITER(without_wraps(limited)),
    ],
    ids=["function", "object", "bound method", "several", "partial", "below a limiter"],
)
def test_limiter_below_a_decorator_without_wraps_is_a_hint(
    app: Flask, decorate: Callable[[Any], Callable[..., Any]]
) -> None:
    app.add_url_rule("/", "shown", decorate(LIMITER(view())))

    (found,) = hidden(app)

    assert found.level == "hint"
    assert found.text.startswith("Views that contain a limited function: shown (support.asking:view.")
    assert "functools.wraps" in str(found.remedy)


def test_hidden_limiter_on_a_method_of_a_view_class_is_found(app: Flask) -> None:
    class Items(MethodView):
        get = without_wraps(LIMITER(lambda _: "items"))

    app.add_url_rule("/", view_func=Items.as_view("items"))

    assert "items (" in hidden(app)[0].text


@pytest.mark.parametrize("decorate", [with_wraps, with_wrapt, functools.cache, functools.partial, LIMITER])
def test_decorators_with_wraps_hide_no_limiter(app: Flask, decorate: Callable[[Any], Any]) -> None:
    app.add_url_rule("/", "shown", decorate(rate_limiter(rules="9/hour")(view())))
    app.add_url_rule("/bare", "bare", without_wraps(view()))
    assert hidden(app) == []


HANDLED = [  # by the blueprint, by the app; whether a refusal in the blueprint gets past the handlers for Exception
    ((), (Exception,), False),
    ((Exception,), (), False),
    ((Exception,), (HTTPException,), False),
    ((Exception,), (RateLimitExceeded, Unread), True),
    ((Exception, 429), (), True),
    ((Exception, HTTPException), (HTTPException, Exception), True),
    ((), (Exception, TooManyRequests), True),
    ((), (Exception, Unread), False),
    ((), (InternalServerError, 500), True),
]


@pytest.mark.parametrize(("inside", "around", "passes"), HANDLED, ids=str)
def test_handler_for_all_exceptions_that_would_get_refusals_is_a_hint(
    app: Flask, inside: tuple[Any, ...], around: tuple[Any, ...], passes: bool
) -> None:
    blueprint = Blueprint("shop", __name__)
    blueprint.add_url_rule("/", "shown", rate_limiter(rules="1/minute")(view()))
    for place, kinds in ((app, around), (blueprint, inside)):
        for kind in kinds:
            place.register_error_handler(kind, internal_error if kind is Exception else lambda _: ("busy", 429))
    app.register_blueprint(blueprint)
    MultiLimit(app)

    assert statuses(app, "/", "/") == [200, 429 if passes else 500]
    found = [each for each in examine(gate_of(app)) if each.name == "handlers"]

    assert [each.level for each in found] == ([] if passes else ["hint"])
    assert all("test_doctor:internal_error for Exception gets refusals, too" in each.text for each in found)


def internal_error(_: Exception) -> tuple[str, int]:
    return "oops", 500


def declared(app: Flask, **limits: Any) -> Finding:
    MultiLimit(app, **limits)
    (found,) = [found for found in examine(gate_of(app)) if found.name == "declarations"]
    return found


def test_endpoints_without_limits_are_a_hint_unless_exempt(app: Flask) -> None:
    off = Blueprint("off", __name__)
    off.add_url_rule("/off", "shown", view())
    app.register_blueprint(exempt(off))
    app.add_url_rule("/exempt", "asked", exempt(view()))
    app.add_url_rule("/partly", "partly", exempt("application")(view()))
    app.add_url_rule("/limited", "limited", LIMITER(view()))
    app.config["MULTILIMIT_EXEMPT"] = ["static"]

    found = declared(app)

    assert found.level == "hint"
    assert found.text == "1 endpoint limited, 3 exempt, 1 without any limit: partly."


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({}, {"MULTILIMIT_DEFAULT_LIMITS": "5/minute"}, "MULTILIMIT_DEFAULT_LIMITS changed in app.config after"),
        ({"MULTILIMIT_DENY": ["api_key:x"]}, {}, 'MULTILIMIT_DENY: "api_key:x": no limiter of this app has a type'),
    ],
)
def test_setting_that_prevents_every_request_is_reported_as_wrong(
    app: Flask, before: dict[str, Any], after: dict[str, Any], text: str
) -> None:
    app.config.update(before)
    MultiLimit(app)
    app.config.update(after)

    found = next(examine(gate_of(app)))

    assert (found.name, found.level) == ("declarations", "wrong")
    assert found.text.startswith(text)


def test_mistake_in_a_declaration_is_all_that_doctor_reports(app: Flask, server: Server) -> None:
    MultiLimit(app, storage=server.url)
    app.add_url_rule("/", "inbox", rate_limiter(type=USER, rules="9/hour")(view()))

    assert [(each.name, each.level) for each in examine(gate_of(app))] == [("declarations", "wrong")]


def test_limits_of_the_bridge_are_counted(app: Flask) -> None:
    app.get("/limited", endpoint="limited")(view())
    Limiter(get_remote_address, app=app, storage_uri="memory://", default_limits=["5/minute"])

    found = {each.name: each.text for each in examine(gate_of(app))}

    assert found["declarations"] == "1 endpoint limited, 1 without any limit: static."
    assert found["addresses"].startswith("There are limits by get_remote_address, but no ProxyFix.")


def test_doctor_says_that_limits_of_flask_limiter_are_not_counted(app: Flask) -> None:
    app.extensions["limiter"] = {object()}

    found = declared(app)

    assert str(found.remedy).startswith(
        "This does not count limits of Flask-Limiter: `flask limiter limits` lists them."
    )


def test_exemption_of_all_endpoints_is_a_warning(app: Flask) -> None:
    app.add_url_rule("/", "shown", view())
    app.config["MULTILIMIT_EXEMPT"] = ["*"]
    found = declared(app, default_limits="5/minute")
    assert (found.level, found.text) == ("warning", "Every endpoint is exempt from limits.")


def test_declarations_are_ok_when_each_endpoint_has_a_limit(app: Flask) -> None:
    found = declared(app, default_limits="5/minute")
    assert (found.level, found.text) == ("ok", "1 endpoint limited, none without limits.")


@pytest.mark.parametrize(
    ("connecting", "slowest", "level", "remedy"),
    [
        (0.04, 0.002, "ok", ""),
        (0.06, 0.002, "warning", "Allow more time to connect: raise it."),
        (0.06, 0.07, "warning", "Every limited request takes one round trip: move the server closer to the app."),
    ],
)
def test_latency_of_the_connecting_round_trip_is_judged_separately(
    connecting: float, slowest: float, level: Level, remedy: str
) -> None:
    found = examine_latency([connecting, *[0.001] * 6, slowest], 0.1)
    assert (found.level, found.remedy) == (level, remedy or None)
    assert found.text.startswith(f"1.00 ms a round trip; the slowest of 7: {slowest * 1000:.2f} ms.")


class Shop:
    """An app with a limit by address and one by user."""

    def __init__(self, uri: str = "memory://", **settings: Any) -> None:
        self.app = Flask("shop", static_folder=None)
        self.app.config.update(MULTILIMIT_STORAGE_URI=uri, MULTILIMIT_STORAGE_TIMEOUT=10, **settings)
        MultiLimit(self.app, user_loader=lambda: request.headers.get("X-User"))
        self.app.add_url_rule("/send", "send", LIMITER(view()))
        self.app.add_url_rule("/items", "items", rate_limiter(type=USER, rules="10/hour")(view()))

    @property
    def control(self) -> Any:
        return gate_of(self.app).applier.control

    def findings(self, name: str) -> list[Finding]:
        with self.app.app_context():
            gate_of(self.app).applier.look()
            return [each for each in examine(gate_of(self.app)) if each.name == name]

    def finding(self, name: str) -> Finding:
        (found,) = self.findings(name)
        return found


@pytest.fixture
def shop() -> Iterator[Callable[..., Shop]]:
    """Makes shops, whose storages are closed at the end."""
    made: list[Shop] = []

    def shop(uri: str = "memory://", **settings: Any) -> Shop:
        made.append(Shop(uri, **settings))
        return made[-1]

    yield shop
    for each in made:
        gate_of(each.app).limiter.close()


@pytest.fixture
def on_server(server: Server, shop: Callable[..., Shop]) -> Shop:
    return shop(server.url)


@pytest.mark.parametrize(
    ("environment", "settings", "name", "level", "text"),
    [
        ({}, {}, "traffic", "ok", "Counted in each process"),
        ({}, {"MULTILIMIT_TRAFFIC": False}, "traffic", "hint", "MULTILIMIT_TRAFFIC is False"),
        ({"UWSGI_PROCESSES": "4"}, {}, "traffic", "ok", "Counted"),
        ({}, {}, "storage", "hint", "memory://: each process counts by itself"),
        ({"WEB_CONCURRENCY": "4"}, {}, "storage", "warning", "each of them admits the full limit"),
        ({}, {}, "addresses", "hint", "There are IP limits, but no ProxyFix"),
        ({"DYNO": "web.1"}, {}, "addresses", "warning", "DYNO (Heroku) is set"),
        ({}, {"MULTILIMIT_ENABLED": False}, "enabled", "warning", "nothing is limited"),
        ({}, {"MULTILIMIT_LIMITS": {"none": "5/minute"}, **WARN}, "names", "warning", "A limit applies to nothing"),
        ({}, {}, "users", "ok", "Clients without a login count by address"),
        ({}, {"MULTILIMIT_ANONYMOUS_USER": "shared"}, "users", "ok", "count together, in one quota"),
    ],
)
def test_settings_and_environment_are_examined(
    shop: Callable[..., Shop],
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    settings: dict[str, Any],
    name: str,
    level: Level,
    text: str,
) -> None:
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    found = shop(**settings).finding(name)
    assert (found.level, text in found.text) == (level, True), found


@pytest.mark.parametrize(
    ("settings", "level", "text"),
    [
        (
            {"MULTILIMIT_ALLOW": ["0.0.0.0/0"]},
            "warning",
            "Half of all IPv4 addresses, or more, are exempt from all limits: 0.0.0.0/0 (MULTILIMIT_ALLOW).",
        ),
        (
            {"MULTILIMIT_ALLOW": ["::/1", "8000::/1"]},
            "warning",
            "exempt from all limits: ::/1 (MULTILIMIT_ALLOW), 8000",
        ),
        ({"MULTILIMIT_ALLOW": ["0.0.0.0/2", "128.0.0.0/2"]}, "warning", "Half of all IPv4 addresses"),
        ({"MULTILIMIT_DENY": ["0.0.0.0/0"], "MULTILIMIT_ALLOW": ["10.0.0.0/8"]}, "hint", "are refused: 0.0.0.0/0"),
    ],
    ids=["all", "both halves", "half", "deny all but some"],
)
def test_lists_of_half_of_all_addresses_are_named(
    shop: Callable[..., Shop], settings: dict[str, Any], level: Level, text: str
) -> None:
    found = shop(**settings).finding("lists")
    assert (found.level, text in found.text) == (level, True), found


def test_lists_of_a_few_networks_are_no_finding(shop: Callable[..., Shop]) -> None:
    assert shop(MULTILIMIT_ALLOW=["10.0.0.0/8", "user:1"], MULTILIMIT_DENY=["192.0.2.0/24"]).findings("lists") == []


def test_remedy_for_a_change_without_an_endpoint_minds_other_releases(on_server: Shop) -> None:
    entry = on_server.control.override("next.release", times=2, lasting=True, force=True)

    (found,) = (each for each in on_server.findings("control") if each.level == "warning" and entry.id in each.text)
    assert "or a function or a check inside a view has it" in found.text
    assert found.remedy == f"Unless workers of another release need it: flask multilimit unset {entry.id}"


def put_a_change_that_does_not_fit(redis_client: redis.Redis) -> None:
    scattered = {"type": "ip", "hash_tag": "subject"}
    clash = {"kind": "override", "id": "1" * 8, "since": 1, "endpoint": "send", "limit": scattered}
    document = json.dumps({"format": 1, "entries": [clash]})
    redis_client.hset("rate_limit:{control}:document", mapping={"stamp": "9-x", "document": document})


def test_change_that_the_process_knows_not_to_fit_is_not_tried_again(
    on_server: Shop, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many changes, finding out may take seconds."""
    put_a_change_that_does_not_fit(redis_client)
    tried = Mock(wraps=fitting)
    monkeypatch.setattr("flask_multilimit.plan.changes.fitting", tried)

    assert any(each.level == "wrong" for each in on_server.findings("control"))
    assert [call.args[0] for call in tried.call_args_list if call.args[0]] == []


def test_remedy_for_a_change_that_does_not_fit_minds_other_releases(on_server: Shop, redis_client: redis.Redis) -> None:
    put_a_change_that_does_not_fit(redis_client)

    (found,) = (each for each in on_server.findings("control") if each.level == "wrong")
    assert "is left out, as it does not fit the limits of this app" in found.text
    assert "in several slots" in found.text
    assert found.remedy == "Unless workers of another release need it: flask multilimit unset 11111111"


@pytest.mark.parametrize(("kind", "effect"), [("allow", "exempt from all limits"), ("deny", "refused")])
def test_forced_entry_about_everybody_is_named(on_server: Shop, kind: str, effect: str) -> None:
    entry = getattr(on_server.control, kind)("0.0.0.0/0", lasting=True, force=True)
    assert f"or more, are {effect}: 0.0.0.0/0 ({kind} {entry.id})" in on_server.finding("lists").text


@pytest.mark.parametrize(
    ("proxies", "level", "text"),
    [(2, "ok", "from 2 proxies"), (0, "warning", "has x_for=0. All clients would share the proxy's quota.")],
)
def test_proxyfix_is_recognised(shop: Callable[..., Shop], proxies: int, level: Level, text: str) -> None:
    behind = shop()
    behind.app.wsgi_app = ProxyFix(behind.app.wsgi_app, x_for=proxies)  # type: ignore[method-assign]
    found = behind.finding("addresses")
    assert (found.level, text in found.text) == (level, True), found


@pytest.mark.parametrize(
    ("settings", "limited", "text"),
    [
        ({}, USER, "There are user limits, which count clients without a login by address, but no ProxyFix."),
        ({"MULTILIMIT_ALLOW": ["10.0.0.0/8"]}, None, "There are lists of addresses, but no ProxyFix."),
        ({"MULTILIMIT_DENY": ["192.0.2.1"]}, IP, "There are IP limits and lists of addresses, but no ProxyFix."),
        ({"MULTILIMIT_ANONYMOUS_USER": "shared", "MULTILIMIT_ALLOW": ["user:1"]}, USER, ""),
    ],
    ids=["user limits", "allowed network", "both", "no address"],
)
def test_limits_and_lists_by_address_need_a_proxyfix(
    app: Flask, settings: dict[str, Any], limited: Any, text: str
) -> None:
    app.config.update(settings)
    MultiLimit(app, user_loader=lambda: None)
    app.add_url_rule("/", "items", rate_limiter(type=limited, rules="1/minute")(view()) if limited else view())

    found = [each.text for each in examine(gate_of(app)) if each.name == "addresses"]

    assert [each.startswith(text) for each in found] == [True] * bool(text)


def test_lists_of_addresses_behind_a_proxy_without_a_proxyfix_are_a_warning(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(next(iter(PROXY_HINTS)), "1")
    app.config["MULTILIMIT_ALLOW"] = ["10.0.0.0/8"]
    MultiLimit(app)

    (found,) = (each for each in examine(gate_of(app)) if each.name == "addresses")

    assert found.level == "warning"
    assert found.text.endswith("All clients would be listed as the proxy is.")


@pytest.mark.parametrize(("user", "level"), [(None, "warning"), ("ann", "ok")])
def test_user_limits_that_never_saw_a_user_are_a_warning(on_server: Shop, user: str | None, level: Level) -> None:
    statuses(on_server.app, "/items")
    statuses(on_server.app, "/items", headers={"X-User": user} if user else {})

    found = on_server.finding("users")

    assert found.level == level
    assert found.text.startswith("Of the keys looked at in storage") == (user is None)  # those of users may have ended
    assert (found.remedy or "").startswith("If users were logged in") == (user is None)


def test_user_whose_id_is_the_text_of_none_is_a_warning(on_server: Shop) -> None:
    for user in ("ann", "None"):
        statuses(on_server.app, "/items", headers={"X-User": user})
    found = on_server.finding("users")
    assert (found.level, "share one quota" in found.text) == ("warning", True)


def test_limits_without_a_share_in_an_outage_are_named(on_server: Shop, shop: Callable[..., Shop]) -> None:
    uri = on_server.app.config["MULTILIMIT_STORAGE_URI"]
    found = shop(uri, MULTILIMIT_WORKERS=30).finding("shares")
    assert (found.level, "ip-60s at send (5 per minute)" in found.text) == ("hint", True)
    assert shop(uri, MULTILIMIT_WORKERS=1).findings("shares") == []


# Servers


PASSWORD = "hunter2"


@pytest.fixture(scope="module")
def strict_server(server_binaries: dict[str, Binary]) -> Iterator[Server]:
    """A server with a password."""
    with Server(next(iter(server_binaries.values())), tcp=True, options=["--requirepass", PASSWORD]) as server:
        yield server


@pytest.fixture
def as_user(strict_server: Server, shop: Callable[..., Shop]) -> Callable[[str], Shop]:
    """Makes a shop whose user of the server has these rights."""

    def as_user(rights: str) -> Shop:
        with strict_server.client(password=PASSWORD) as client:
            client.execute_command("ACL", "SETUSER", "limiter", "reset", "on", ">pw", *rights.split())
        return shop(strict_server.tcp_url.replace("redis://", "redis://limiter:pw@"))

    return as_user


OURS = "~rate_limit:*"
WORKER = f"{OURS} {RIGHTS} {RIGHTS_OF_WORKERS}"
OPERATOR = f"{WORKER} {RIGHTS_OF_OPERATORS}"


@pytest.mark.parametrize(
    ("rights", "name", "level", "text", "remedy"),
    [
        ("~* +@all -@scripting", "script", "wrong", "", "The server's user needs the right +eval"),
        ("~other:* +@all", "script", "wrong", "", "The server's user needs a right to the keys that begin with"),
        (f"{OURS} {RIGHTS}", "script", "ok", "", ""),
        (f"{OURS} {RIGHTS}", "storage", "hint", "does not let this user inspect it", "+ping +info +config|get"),
        (f"{OURS} {RIGHTS} +ping +info +config|get", "storage", "ok", "", ""),
        (f"{OPERATOR} -time", "script", "wrong", "", "The server's user needs the right +time"),
        (f"{OPERATOR} -time", "storage", "hint", "does not let this user inspect it", ""),
        (f"{OURS} {RIGHTS}", "control", "hint", "may not read changes", RIGHTS_OF_WORKERS),
        (f"{WORKER} -eval", "control", "wrong", "cannot be read", "The server's user needs the right +eval"),
        (WORKER, "control", "ok", "", ""),
        *((f"{OPERATOR} -{each}", "rights", "hint", f"lacks +{each}: to ", "")
          for each in ("hget", "hset", "xadd", "xrevrange", "scan", "pttl", "info")),
    ],
)  # fmt: skip
def test_missing_right_is_named_with_its_purpose(
    as_user: Callable[[str], Shop], rights: str, name: str, level: Level, text: str, remedy: str
) -> None:
    found = as_user(rights).finding(name)
    assert (found.level, text in found.text, remedy in (found.remedy or "")) == (level, True, True), found


def test_server_that_keeps_nothing_of_what_scripts_write_is_reported(
    server: Server, shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RedisStorage, "check", lambda storage, hits, _=None: storage.peek(hits))
    found = shop(server.url).finding("script")
    assert (found.level, "missing afterwards" in found.text) == ("wrong", True)


def test_user_with_all_rights_has_no_finding(as_user: Callable[[str], Shop]) -> None:
    assert as_user(OPERATOR).findings("rights") == []


@pytest.mark.parametrize(
    ("policy", "level", "text"),
    [
        ("allkeys-lru", "warning", "every key may be evicted"),
        ("volatile-ttl", "warning", "every key with a TTL, which all of ours have, may be evicted"),
        ("noeviction", "ok", "refuses writes, and forgets nothing"),
    ],
)
def test_eviction_policy_of_the_server_is_reported(
    strict_server: Server, as_user: Callable[[str], Shop], policy: str, level: Level, text: str
) -> None:
    with strict_server.client(password=PASSWORD) as client:
        client.config_set("maxmemory", "50mb")
        client.config_set("maxmemory-policy", policy)

    found = as_user("~* +@all").finding("eviction")

    assert (found.level, text in found.text) == (level, True)


@pytest.mark.parametrize(
    ("info", "shown"),
    [
        ({"redis_version": "8.0.6"}, "Redis 8.0.6"),
        ({"redict_version": "7.3.6", "redis_version": "7.2.4"}, "Redict 7.3.6"),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.1.2"}, "Valkey 9.1.2"),
        ({}, "Redis of unknown version"),
    ],
)
def test_server_is_called_by_its_own_name(
    on_server: Shop, monkeypatch: pytest.MonkeyPatch, info: dict[str, str], shown: str
) -> None:
    monkeypatch.setattr(redis.Redis, "info", lambda *_: info)

    assert on_server.finding("storage").text.startswith(f"{shown} at ")


def test_replica_is_reported_as_wrong(
    server_binaries: dict[str, Binary], server: Server, shop: Callable[..., Shop]
) -> None:
    host, port = server.tcp_url.removeprefix("redis://").split(":")
    with Server(next(iter(server_binaries.values())), options=["--replicaof", host, port]) as replica:
        found = shop(replica.url).finding("role")
    assert (found.level, "primary" in str(found.remedy)) == ("wrong", True)


def test_primary_is_shown_under_its_sentinel_name(server: Server, shop: Callable[..., Shop]) -> None:
    with SentinelServer(server.binary, server.port, quorum=2) as sentinel:
        text = shop(f"redis+sentinel://127.0.0.1:{sentinel.port}/{SERVICE}").finding("storage").text
    assert f"at the primary of '{SERVICE}'" in text
    assert f"127.0.0.1:{sentinel.port}" in text


# Changes


def test_changes_are_counted_with_a_warning_when_nothing_is_on_disk(on_server: Shop) -> None:
    forgets = "The server keeps nothing on disk: if it and all workers stop, the changes in force are lost."
    assert [each.text for each in on_server.findings("control")] == ["No changes: all limits are as declared."]

    on_server.control.deny("203.0.113.9", lasting=True)

    told = [(each.level, each.text) for each in on_server.findings("control")]
    assert told == [("warning", forgets), ("ok", "1 change in force.")]


def test_changes_have_no_warning_when_workers_keep_a_copy_on_disk(
    server: Server, shop: Callable[..., Shop], tmp_path: Path
) -> None:
    copying = shop(server.url, MULTILIMIT_CONTROL_COPY=str(tmp_path / "changes"))
    copying.control.deny("203.0.113.9", lasting=True)
    assert [(each.level, each.text) for each in copying.findings("control")] == [("ok", "1 change in force.")]


def test_cluster_that_keeps_nothing_on_disk_is_reported(cluster: Cluster, shop: Callable[..., Shop]) -> None:
    forgetful = shop(cluster.uri)
    with forgetful.app.app_context():
        forgetful.control.deny("203.0.113.9", lasting=True)
    assert any("keeps nothing on disk" in each.text for each in forgetful.findings("control"))


ENDED = [{"kind": "deny", "id": f"{n:08x}", "since": 1, "until": 2, "who": f"203.0.113.{n}"} for n in range(200)]


@pytest.mark.parametrize(
    ("document", "level", "text"),
    [
        ("{", "wrong", "is not JSON"),
        ('{"format": 2, "entries": [], "new": 1}', "wrong", "written by a newer version"),
        (json.dumps({"format": 1, "entries": ENDED}), "hint", "200 entries have ended"),
    ],
    ids=["no json", "newer", "ended"],
)
def test_changes_that_cannot_be_in_force_are_reported(
    on_server: Shop, redis_client: redis.Redis, document: str, level: Level, text: str
) -> None:
    redis_client.hset("rate_limit:{control}:document", mapping={"stamp": "9-x", "document": document})
    assert (level, True) in [(each.level, text in each.text) for each in on_server.findings("control")]


def test_setting_is_not_known_if_the_connection_breaks_while_it_is_asked_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Flask("shop")
    app.config["MULTILIMIT_STORAGE_TIMEOUT"] = 10
    MultiLimit(app, storage=server.url, application_limits=Rule(time=60, count=20_000))
    monkeypatch.setattr(redis.Redis, "config_get", Mock(side_effect=ConnectionResetError))
    with app.app_context():
        found = {each.name: each.text for each in examine(gate_of(app))}

    assert "lazyfree-lazy-expire is not known" in found["lazy freeing"]
    assert found["persistence"].startswith("Unknown")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--lazyfree-lazy-expire", "yes"], {"lazy freeing": "ok", "persistence": "hint"}),
        (["--lazyfree-lazy-expire", "no", "--save", "60 1"], {"lazy freeing": "hint", "persistence": "ok"}),
    ],
)
def test_settings_of_the_server_are_judged(server: Server, options: list[str], found: dict[str, Level]) -> None:
    app = Flask("shop")
    with Server(server.binary, options=options) as other:
        MultiLimit(app, storage=other.url, application_limits=Rule(time=60, count=20_000))
        with app.app_context():
            levels = {each.name: each.level for each in examine(gate_of(app))}

    assert {name: levels[name] for name in found} == found
