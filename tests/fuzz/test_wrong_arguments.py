"""Every argument of the public names: a wrong value is an error that shows it."""

import inspect
import itertools
import math
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from datetime import timezone
from functools import partial, wraps
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
import redis
from flask import Flask
from prometheus_client import CollectorRegistry

from flask_multilimit import (
    IP,
    Ban,
    Concurrent,
    ConfigurationError,
    Decision,
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


class Thing:
    def __repr__(self) -> str:
        return "<Thing>"


NONSENSE: dict[str, Any] = {"a thing": Thing(), "nan": math.nan, "bytes": b"x", "numbers": {5: 5}, "complex": 1j}
"""Wrong for every argument."""


class World(NamedTuple):
    """The objects that arguments are made of."""

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
    """Makes a MultiLimit, and runs all checks of the start."""
    app = Flask("shop")
    multilimit = MultiLimit(app, **options)
    app.add_url_rule("/", "index", lambda: "ok")
    multilimit.validate(app)


def entered(block: Callable[..., Any]) -> Callable[..., None]:
    @wraps(block)
    def enter(**arguments: Any) -> None:
        with block(**arguments):
            pass

    return enter


def plan() -> Hits:
    return hits_for("5/minute", scope="mail")


def decision() -> Decision:
    return Limiter().check(plan())


def everywhere(multilimit: MultiLimit, subject: str) -> None:
    multilimit.reset(subject=subject, reach="everywhere")


def exempt_from(level: Any) -> object:
    return exempt("default", level)


SUBJECT: dict[str, Any] = {"endpoint": "index", "method": "GET", "subject": "ip:203.0.113.7"}
LISTED: dict[str, Any] = {
    "who": "203.0.113.7",
    "for_": 60,
    "lasting": False,
    "reason": "",
    "author": "",
    "force": False,
}
DENY = {"kind": "deny", "who": "::1"}
LIMITS = ("limits", "application_limits", "default_limits", "unmatched_limits")

CALLS: dict[str, Callable[[World], Callable[..., Any]]] = {
    # Declarations
    "Rule": lambda _: Rule,
    "Rule.parse": lambda _: Rule.parse,
    "Concurrent": lambda _: partial(Concurrent, count=5),
    "Ban": lambda _: Ban,
    "rate_limiter": lambda _: partial(
        declared,
        **{name: each.default for name, each in inspect.signature(rate_limiter).parameters.items() if name != "first"},
    ),
    "exempt": lambda _: exempt_from,
    "MultiLimit": lambda _: partial(
        started, **dict.fromkeys((*LIMITS, "storage", "user_loader", "on_rejected")), allow=(), deny=()
    ),
    "MultiLimit.observers": lambda _: lambda observers: MultiLimit(observers=observers),
    "MultiLimit.init_app": lambda _: lambda app: MultiLimit().init_app(app),
    "user_loader": lambda world: world.multilimit.user_loader,
    # In an app
    "check": lambda world: partial(world.multilimit.check, rules="5/minute", scope="mail"),
    "limit": lambda world: partial(
        entered(world.multilimit.limit), rules="5/minute", scope="mail", wait=0, ban=None, hash_tag="scope"
    ),
    "check_hits": lambda world: partial(world.multilimit.check_hits, hits=plan(), scope="mail", subject="plan:ann"),
    "add_listing": lambda world: world.multilimit.add_listing,
    "peek": lambda world: partial(world.multilimit.peek, **SUBJECT),
    "reset": lambda world: partial(world.multilimit.reset, **SUBJECT),
    "reset everywhere": lambda world: lambda subject: everywhere(world.multilimit, subject),
    "settle": lambda world: partial(world.multilimit.settle, decision=decision(), units=1),
    "refund": lambda world: partial(world.multilimit.refund, decision=decision()),
    "release": lambda world: world.multilimit.release,
    "validate": lambda world: world.multilimit.validate,
    "problem": lambda _: problem,
    # While it runs
    "override": lambda world: partial(
        world.multilimit.control.override, endpoint="index", rule="ip-60s", rules="9/minute", for_=60
    ),
    "allow": lambda world: partial(world.multilimit.control.allow, **LISTED),
    "deny": lambda world: partial(world.multilimit.control.deny, **LISTED),
    "ban": lambda world: partial(world.multilimit.control.ban, **LISTED),
    "undo": lambda world: partial(
        world.multilimit.control.undo, id=world.multilimit.control.deny("203.0.113.8", for_=60).id
    ),
    "entry": lambda world: world.multilimit.control.entry,
    "history": lambda world: world.multilimit.control.history,
    "note": lambda world: partial(
        world.multilimit.control.note, **dict.fromkeys(("what", "entry", "reason", "author"), "")
    ),
    "preview": lambda world: partial(world.multilimit.control.preview, given=DENY, for_=60),
    "preview_undo": lambda world: world.multilimit.control.preview_undo,
    "put": lambda world: partial(world.multilimit.control.put, change=world.multilimit.control.preview(DENY, for_=60)),
    # The engine
    "Hit": lambda _: partial(Hit, key="a", rule=Rule()),
    "Hits": lambda _: partial(Hits, hits=plan()),
    "hits_for": lambda _: partial(hits_for, rules="5/minute", scope="mail"),
    "Limiter": lambda _: Limiter,
    "Limiter.check": lambda _: partial(Limiter().check, hits=plan()),
    "Limiter.peek": lambda _: Limiter().peek,
    "Limiter.check_many": lambda _: Limiter().check_many,
    "Limiter.acquire": lambda _: partial(Limiter().acquire, hits=plan(), timeout=0),
    "Limiter.wait": lambda _: partial(Limiter().wait, decision=decision(), timeout=0),
    "Limiter.settle": lambda _: partial(Limiter().settle, decision=decision(), units=1),
    "Limiter.refund": lambda _: partial(Limiter().refund, decision=decision()),
    "Limiter.slot": lambda _: partial(entered(Limiter().slot), hits=plan()),
    "Limiter.hold": lambda _: Limiter().hold,
    "Limiter.release": lambda _: Limiter().release,
    "Limiter.reset": lambda _: Limiter().reset,
    "follow_control": lambda _: partial(follow_control, limiter=Limiter("redis://localhost:1")),
    # Storages
    "storage_from_uri": lambda _: partial(storage_from_uri, uri="memory://"),
    "Layers": lambda _: Layers,
    "MemoryStorage": lambda _: MemoryStorage,
    "RedisStorage": lambda _: partial(RedisStorage, client=redis.Redis()),
    "RedisStorage.from_url": lambda _: partial(RedisStorage.from_url, url="redis://localhost:1", timeout=1),
    "ClusterStorage.from_uri": lambda _: partial(ClusterStorage.from_uri, uri="redis+cluster://a:1", timeout=1),
    "ClusterStorage.from_client": lambda _: lambda client: ClusterStorage.from_client(client),  # noqa: PLW0108 - no clock
    "DenyCache": lambda _: partial(DenyCache, storage=MemoryStorage()),
    "GuardedStorage": lambda _: partial(GuardedStorage, storage=MemoryStorage()),
    "LeasingStorage": lambda _: partial(LeasingStorage, wrapped=MemoryStorage()),
    # For tests
    "Clock": lambda _: testing.Clock,
    "Clock.advance": lambda _: testing.Clock().advance,
    "freeze": lambda world: partial(entered(testing.freeze), app=world.app),
    "exhaust": lambda world: partial(testing.exhaust, target=world.app, **SUBJECT),
    "testing.reset": lambda world: partial(testing.reset, target=world.app, **SUBJECT),
    "enabled": lambda world: partial(entered(testing.enabled), app=world.app, value=True),
    # For people
    "Dashboard": lambda world: partial(Dashboard, multilimit=world.multilimit),
    "Recorder": lambda world: partial(Recorder, app=world.app, folder=world.log.with_name("recorded")),
    "PrometheusMetrics": lambda _: partial(PrometheusMetrics, registry=CollectorRegistry()),
    "OpenTelemetryObserver": lambda _: OpenTelemetryObserver,
    "simulate": lambda world: partial(simulate, app=world.app, requests=read_logs(world.log)),
    "suggest": lambda world: partial(
        suggest, app=world.app, requests=read_logs(world.log), type="ip", windows=[60], refuse_at_most=0.1
    ),
    "assert_admits": lambda world: partial(assert_admits, report=simulate(world.app, read_logs(world.log))),
    "read_logs": lambda world: partial(
        lambda path, **options: read_logs(path, **options),  # noqa: PLW0108 - it takes several
        path=world.log,
        format=None,
        zone=timezone.utc,
        fields=(),
    ),
}
NOT_TRIED = {
    "rate_limiter": {"message"},  # every value can be shown as a message
    "put": {"seen"},
    "Hit": {"unit", "origin", "watches"},  # set by our own code alone, as are those below
    "Hits": {"scope"},
    "RedisStorage": {"deadline"},
    "RedisStorage.from_url": {"given"},
    "Recorder": {"key"},  # any bytes are one
}
NOT_SHOWN = {"limits", "key"}
"""Arguments whose error shows another part of the value, or none because it may be a secret."""


def arguments_of(call: Callable[..., Any]) -> set[str]:
    """The names of its parameters, and of those that it is given already."""
    taken = inspect.signature(call).parameters.values()
    return {each.name for each in taken if each.kind is not each.VAR_KEYWORD} | {*getattr(call, "keywords", ())}


@pytest.mark.parametrize("nonsense", list(NONSENSE.values()), ids=list(NONSENSE))
@pytest.mark.parametrize("name", list(CALLS))
def test_wrong_argument_is_an_error_that_shows_it(world: World, name: str, nonsense: Any) -> None:
    with world.app.app_context():
        call = CALLS[name](world)
    for argument in arguments_of(call) - NOT_TRIED.get(name, set()):
        with ExitStack() as stack:
            stack.enter_context(nullcontext() if name in {"freeze", "enabled", "exhaust"} else world.app.app_context())
            raised = stack.enter_context(pytest.raises(ConfigurationError))
            call(**{argument: nonsense})
        told = str(raised.value)
        shown = repr(nonsense) in told or type(nonsense).__name__ in told or (type(nonsense) is dict and "5" in told)
        assert shown or argument in NOT_SHOWN, (argument, told)


@pytest.mark.parametrize("given", [5, "mail", b"", {}, [5], [plan()]], ids=repr)
def test_value_that_is_not_hits_is_an_error(given: Any) -> None:
    limiter = Limiter()
    decision = limiter.check(plan())

    calls = (limiter.check, limiter.peek, limiter.reset, Hits, lambda hits: limiter.refund(decision, hits))
    for call in calls:
        with pytest.raises(ConfigurationError, match=r"hits=.*: give what hits_for|no hits"):
            call(given)


def test_exhausted_generator_of_hits_is_an_error() -> None:
    limiter, hits = Limiter(), (hit for hit in plan())
    limiter.check(hits)
    with pytest.raises(ConfigurationError, match="no hits: a check of nothing would let everything pass"):
        limiter.check(hits)


def test_error_inside_a_generator_of_hits_is_raised_unchanged() -> None:
    nothing: Any = None
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'ours'"):
        Limiter().check(hit.ours for hit in [nothing])


@pytest.mark.parametrize("share", [math.nan, 5, -0.1, "5", True])
def test_assert_admits_refuses_an_invalid_share(world: World, share: Any) -> None:
    report = simulate(world.app, read_logs(world.log))
    with pytest.raises(ConfigurationError, match="give a share"):
        assert_admits(report, refuse_at_most=share)


def test_simulate_refuses_requests_that_are_not_from_logs(world: World) -> None:
    requests: Any = [next(iter(read_logs(world.log))), "GET /"]
    assert isinstance(requests[0], LoggedRequest)
    with pytest.raises(ConfigurationError, match="requests: 'GET /': give what read_logs"):
        simulate(world.app, requests)


class Unshowable:
    """As a lazy translation outside of a request."""

    def __repr__(self) -> str:
        raise RuntimeError("no request")


class Unequal(Unshowable):
    """Cannot be compared with text, as an array of numpy."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")


@pytest.mark.parametrize(
    ("name", "argument", "nonsense"),
    [
        ("Rule", "algorithm", Unshowable()),
        ("Rule", "burst", Unequal()),
        ("rate_limiter", "scope", Unequal()),
        ("rate_limiter", "hash_tag", Unequal()),
        ("hits_for", "hash_tag", Unequal()),
        ("check", "scope", Unequal()),
        ("PrometheusMetrics", "namespace", Unshowable()),
        ("PrometheusMetrics", "buckets", [Unshowable()]),
        ("DenyCache", "seconds", Unshowable()),
        ("Hit", "rule", Mock()),
        ("MultiLimit", "storage", Mock()),
        ("rate_limiter", "type", "x" * 10_000),
        ("MultiLimit", "storage", "x" * 10_000),
        ("peek", "endpoint", "x" * 10_000),
        ("peek", "method", "x" * 10_000),
    ],
    ids=itertools.count(),
)
def test_error_about_an_argument_needs_neither_its_text_nor_much_room(
    world: World, name: str, argument: str, nonsense: Any
) -> None:
    call = CALLS[name](world)
    with world.app.app_context(), pytest.raises(ConfigurationError) as raised:
        call(**{argument: nonsense})
    assert len(str(raised.value)) < 700


def test_buckets_may_be_a_generator() -> None:
    PrometheusMetrics(registry=CollectorRegistry(), buckets=(each / 10 for each in range(1, 4)))
