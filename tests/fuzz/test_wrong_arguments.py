"""Every argument of the public names: what makes no sense there is an error that shows it."""

from __future__ import annotations

import inspect
import math
from contextlib import ExitStack, nullcontext
from datetime import timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import redis
from flask import Flask
from prometheus_client import CollectorRegistry

from flask_multilimit import (
    DEFAULT,
    IP,
    Ban,
    Concurrent,
    ConfigurationError,
    MultiLimit,
    Rule,
    exempt,
    problem,
    rate_limiter,
    testing,
)
from flask_multilimit.control import follow_control
from flask_multilimit.dashboard import Dashboard
from flask_multilimit.engine import (
    ClusterStorage,
    DenyCache,
    GuardedStorage,
    Hit,
    Hits,
    Layers,
    LeasingStorage,
    Limiter,
    MemoryStorage,
    RedisStorage,
    hits_for,
    storage_from_uri,
)
from flask_multilimit.observe.opentelemetry import OpenTelemetryObserver
from flask_multilimit.observe.prometheus import PrometheusMetrics
from flask_multilimit.recording import Recorder
from flask_multilimit.simulation import LoggedRequest, assert_admits, read_logs, simulate, suggest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Thing:
    def __repr__(self) -> str:
        return "<Thing>"


NONSENSE: dict[str, Any] = {"a thing": Thing(), "nan": math.nan, "bytes": b"x", "numbers": {5: 5}, "complex": 1j}
"""There is no argument for which one of them makes sense."""


class World(NamedTuple):
    """What arguments are made of."""

    app: Flask
    multilimit: MultiLimit
    log: Path


@pytest.fixture
def world(tmp_path: Path) -> World:
    app = Flask("shop")
    app.testing, app.secret_key = True, "secret"
    multilimit = MultiLimit(app)
    app.add_url_rule("/", "index", rate_limiter(type=IP, rules="5/minute")(lambda: "ok"))
    log = tmp_path / "access.log"
    log.write_text('203.0.113.7 - - [22/Nov/2026:13:00:00 +0000] "GET / HTTP/1.1" 200 2\n')
    return World(app, multilimit, log)


def declared(**options: Any) -> object:
    return rate_limiter(**options)(lambda: None)


def started(**options: Any) -> None:
    """A MultiLimit, and all that is checked when its app starts."""
    app = Flask("shop")
    multilimit = MultiLimit(app, **options)
    app.add_url_rule("/", "index", lambda: "ok")
    multilimit.validate(app)


def entered(block: Callable[..., Any]) -> Callable[..., None]:
    def enter(**arguments: Any) -> None:
        with block(**arguments):
            pass

    return enter


def plan() -> Hits:
    return hits_for("5/minute", scope="mail")


SUBJECT = {"endpoint": "index", "method": "GET", "subject": "ip:203.0.113.7"}
HERE = {"rules": "5/minute", "scope": "mail", "type": DEFAULT, "subject": "ann", "cost": 1, "shadow": False}
HERE |= {"on_storage_error": "allow", "name": "mail", "key": "mail:"}
WHEN = {"for_": 60, "lasting": False, "reason": "", "author": ""}
LISTED = {"who": "203.0.113.7", **WHEN, "force": False}
OF_LOGS = {"subjects": {}, "script_name": ""}
OPTIONS = inspect.signature(rate_limiter).parameters
NOT_TRIED = {"first", "message"}
LIMITS = ("limits", "application_limits", "default_limits", "unmatched_limits")

CALLS: dict[str, Callable[[World], tuple[Callable[..., Any], dict[str, Any]]]] = {
    # Declarations
    "Rule": lambda _: (Rule, {"time": 60, "count": 5, "algorithm": "gcra", "burst": 1, "max_delay": 1, "name": "a"}),
    "Rule.parse": lambda _: (Rule.parse, {"text": "5/minute"}),
    "Concurrent": lambda _: (Concurrent, {"count": 5, "timeout": 60, "name": "a"}),
    "Ban": lambda _: (Ban, {"after": 3, "within": 60, "time": 60, "factor": 2, "most": 600}),
    "rate_limiter": lambda _: (
        declared,
        {name: option.default for name, option in OPTIONS.items() if name not in {"first", "message"}},
    ),
    "exempt": lambda _: (lambda level: exempt("default", level), {"level": "application"}),
    "MultiLimit": lambda _: (
        started,
        dict.fromkeys((*LIMITS, "storage", "user_loader", "on_rejected")) | dict.fromkeys(("allow", "deny"), ()),
    ),
    "MultiLimit.observers": lambda _: (MultiLimit, {"observers": ()}),
    "MultiLimit.init_app": lambda _: (MultiLimit().init_app, {"app": None}),
    "user_loader": lambda world: (world.multilimit.user_loader, {"function": lambda: None}),
    # In an app
    "check": lambda world: (world.multilimit.check, HERE),
    "limit": lambda world: (entered(world.multilimit.limit), {**HERE, "wait": 0, "ban": None, "hash_tag": "scope"}),
    "check_hits": lambda world: (world.multilimit.check_hits, {"hits": plan(), "scope": "mail", "subjects": {}}),
    "add_listing": lambda world: (world.multilimit.add_listing, {"listing": lambda app, endpoint: {}}),  # noqa: ARG005
    "peek": lambda world: (world.multilimit.peek, SUBJECT),
    "reset": lambda world: (world.multilimit.reset, {**SUBJECT, "reach": "endpoint"}),
    "reset everywhere": lambda world: (
        lambda subject: world.multilimit.reset(subject=subject, reach="everywhere"),
        {"subject": "user:ann"},
    ),
    "settle": lambda world: (world.multilimit.settle, {"decision": Limiter().check(plan()), "units": 1, "hits": ()}),
    "refund": lambda world: (world.multilimit.refund, {"decision": Limiter().check(plan()), "hits": ()}),
    "release": lambda world: (world.multilimit.release, {"decision": None}),
    "validate": lambda world: (world.multilimit.validate, {"app": world.app}),
    "problem": lambda _: (problem, {"error": None}),
    # While it runs
    "override": lambda world: (
        world.multilimit.control.override,
        {"endpoint": "index", "rule": "ip-60s", "limiter": None, "who": None, "rules": "9/minute", "times": None}
        | {"shadow": None, "off": False, "limit": None, **WHEN, "force": False},
    ),
    "allow": lambda world: (world.multilimit.control.allow, LISTED),
    "deny": lambda world: (world.multilimit.control.deny, {**LISTED, "status": 403}),
    "ban": lambda world: (world.multilimit.control.ban, LISTED),
    "undo": lambda world: (
        world.multilimit.control.undo,
        {"id": world.multilimit.control.deny("203.0.113.8", for_=60).id, "reason": "", "author": ""},
    ),
    "entry": lambda world: (world.multilimit.control.entry, {"id": ""}),
    "history": lambda world: (world.multilimit.control.history, {"most": 1}),
    "note": lambda world: (world.multilimit.control.note, dict.fromkeys(("what", "entry", "reason", "author"), "")),
    "preview": lambda world: (world.multilimit.control.preview, {"given": {"kind": "deny", "who": "::1"}, **WHEN}),
    "preview_undo": lambda world: (world.multilimit.control.preview_undo, {"id": ""}),
    "put": lambda world: (
        world.multilimit.control.put,
        {
            "change": world.multilimit.control.preview({"kind": "deny", "who": "::1"}, for_=60),
            "force": False,
        },
    ),
    # The engine
    "Hit": lambda _: (
        Hit,
        {"key": "a", "rule": Rule(), "cost": 1, "name": "a", "shadow": False, "on_storage_error": None},
    ),
    "Hits": lambda _: (Hits, {"hits": plan()}),
    "hits_for": lambda _: (
        hits_for,
        {"rules": "5/minute", "scope": "mail", "subject": "", "type": "user", "cost": 1, "shadow": False}
        | {"prefix": "a:", "on_storage_error": None, "hash_tag": "scope", "ban": None},
    ),
    "Limiter": lambda _: (Limiter, {"storage": "memory://", "layers": None, "sleep": print, "monotonic": print}),
    "Limiter.check": lambda _: (Limiter().check, {"hits": plan(), "check_id": None}),
    "Limiter.peek": lambda _: (Limiter().peek, {"hits": plan()}),
    "Limiter.check_many": lambda _: (Limiter().check_many, {"many": ()}),
    "Limiter.acquire": lambda _: (Limiter().acquire, {"hits": plan(), "timeout": 0}),
    "Limiter.wait": lambda _: (Limiter().wait, {"decision": Limiter().check(plan()), "timeout": 0}),
    "Limiter.settle": lambda _: (Limiter().settle, {"decision": Limiter().check(plan()), "units": 1, "hits": ()}),
    "Limiter.refund": lambda _: (Limiter().refund, {"decision": Limiter().check(plan()), "hits": ()}),
    "Limiter.slot": lambda _: (entered(Limiter().slot), {"hits": plan()}),
    "Limiter.hold": lambda _: (Limiter().hold, {"decision": None}),
    "Limiter.release": lambda _: (Limiter().release, {"decision": None}),
    "Limiter.reset": lambda _: (Limiter().reset, {"hits": ()}),
    "follow_control": lambda _: (
        follow_control,
        {"limiter": Limiter("redis://localhost:1"), "key_prefix": "a:", "logger": None},
    ),
    # Storages
    "storage_from_uri": lambda _: (storage_from_uri, {"uri": "memory://", "timeout": 1}),
    "Layers": lambda _: (
        Layers,
        {"on_storage_error": "allow", "workers": 1, "memory_keys": 1000, "deny_cache": 0, "logger": None}
        | {"on_change": None},
    ),
    "MemoryStorage": lambda _: (MemoryStorage, {"clock": None}),
    "RedisStorage": lambda _: (RedisStorage, {"client": redis.Redis(), "clock": None}),
    "RedisStorage.from_url": lambda _: (RedisStorage.from_url, {"url": "redis://localhost:1", "timeout": 1}),
    "ClusterStorage.from_uri": lambda _: (ClusterStorage.from_uri, {"uri": "redis+cluster://a:1", "timeout": 1}),
    "ClusterStorage.from_client": lambda _: (ClusterStorage.from_client, {"client": None}),
    "DenyCache": lambda _: (DenyCache, {"storage": MemoryStorage(), "seconds": 1, "clock": print}),
    "GuardedStorage": lambda _: (
        GuardedStorage,
        {"storage": MemoryStorage(), "on_error": "allow", "workers": 1, "logger": None, "on_change": None}
        | {"memory_keys": 1000, "clock": print},
    ),
    "LeasingStorage": lambda _: (LeasingStorage, {"wrapped": MemoryStorage(), "clock": print}),
    # For tests
    "Clock": lambda _: (testing.Clock, {"now": 0}),
    "Clock.advance": lambda _: (testing.Clock().advance, {"seconds": 0}),
    "freeze": lambda world: (entered(testing.freeze), {"app": world.app}),
    "exhaust": lambda world: (testing.exhaust, {"target": world.app, **SUBJECT}),
    "testing.reset": lambda world: (testing.reset, {"target": world.app, **SUBJECT}),
    "enabled": lambda world: (entered(testing.enabled), {"app": world.app, "value": True}),
    # For people
    "Dashboard": lambda world: (
        Dashboard,
        {"multilimit": world.multilimit, "url_prefix": "/", "authorize": None, "may_change": None, "name": "a"},
    ),
    "Recorder": lambda world: (
        Recorder,
        {"app": world.app, "folder": world.log.with_name("recorded"), "max_bytes": 100_000},
    ),
    "PrometheusMetrics": lambda _: (
        PrometheusMetrics,
        {"registry": CollectorRegistry(), "namespace": "a", "buckets": [1]},
    ),
    "OpenTelemetryObserver": lambda _: (
        OpenTelemetryObserver,
        {"meter_provider": None, "tracer_provider": None, "spans": False},
    ),
    "simulate": lambda world: (
        simulate,
        {
            "app": world.app,
            "requests": read_logs(world.log),
            "costs": {},
            "rules": {},
            "priorities": {},
            "on_decision": None,
        }
        | OF_LOGS,
    ),
    "suggest": lambda world: (
        suggest,
        {"app": world.app, "requests": read_logs(world.log), "type": "ip", "windows": [60], "refuse_at_most": 0.1}
        | {"endpoint": None, **OF_LOGS},
    ),
    "assert_admits": lambda world: (
        assert_admits,
        {"report": simulate(world.app, read_logs(world.log)), "refuse_at_most": 0.0, "clients": ()},
    ),
    "read_logs": lambda world: (
        lambda path, **options: read_logs(path, **options),  # noqa: PLW0108 - it takes several
        {"path": world.log, "format": None, "zone": timezone.utc, "fields": ()},
    ),
}
NOT_SHOWN = {"limits", "key"}
"""Arguments whose error shows another part of the value, or none because it may be a secret."""


@pytest.mark.parametrize("nonsense", list(NONSENSE.values()), ids=list(NONSENSE))
@pytest.mark.parametrize("name", list(CALLS))
def test_nonsense_is_an_error_that_shows_it(world: World, name: str, nonsense: Any) -> None:
    with world.app.app_context():
        call, good = CALLS[name](world)
    for argument in good:
        with ExitStack() as stack:
            stack.enter_context(nullcontext() if name in {"freeze", "enabled", "exhaust"} else world.app.app_context())
            raised = stack.enter_context(pytest.raises(ConfigurationError))
            call(**{**good, argument: nonsense})
        told = str(raised.value)
        shown = repr(nonsense) in told or type(nonsense).__name__ in told or (type(nonsense) is dict and "5" in told)
        assert shown or argument in NOT_SHOWN, (argument, told)


@pytest.mark.parametrize("given", [5, "mail", b"", {}, [5], [plan()]], ids=repr)
def test_objects_that_are_no_hits_are_an_error_wherever_hits_are_taken(given: Any) -> None:
    limiter = Limiter()
    decision = limiter.check(plan())

    calls = (limiter.check, limiter.peek, limiter.reset, Hits, lambda hits: limiter.refund(decision, hits))
    for call in calls:
        with pytest.raises(ConfigurationError, match=r"hits=.*: give what hits_for|no hits"):
            call(given)


def test_a_generator_of_hits_that_was_used_up_is_an_error() -> None:
    limiter, hits = Limiter(), (hit for hit in plan())
    limiter.check(hits)

    with pytest.raises(ConfigurationError, match="no hits: a check of nothing would let everything pass"):
        limiter.check(hits)


def test_an_error_in_a_generator_of_hits_is_not_replaced() -> None:
    nothing: Any = None

    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'ours'"):
        Limiter().check(hit.ours for hit in [nothing])


@pytest.mark.parametrize("share", [math.nan, 5, -0.1, "5", True])
def test_a_share_that_no_report_could_exceed_is_an_error(world: World, share: Any) -> None:
    report = simulate(world.app, read_logs(world.log))

    with pytest.raises(ConfigurationError, match="give a share"):
        assert_admits(report, refuse_at_most=share)


def test_requests_that_are_not_from_logs_are_an_error(world: World) -> None:
    requests: Any = [next(iter(read_logs(world.log))), "GET /"]

    assert isinstance(requests[0], LoggedRequest)
    with pytest.raises(ConfigurationError, match="requests: 'GET /': give what read_logs"):
        simulate(world.app, requests)
