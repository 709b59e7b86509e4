"""What is measured: one admitted decision under several rules, by us and by what a user would pick instead."""

# ruff: noqa: PLC0415 - what is not installed is left out

from __future__ import annotations

import itertools
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import redis
from flask import Flask

from flask_multilimit import LimitType, MultiLimit, Rule, rate_limiter
from flask_multilimit.engine import Limiter, hits_for
from flask_multilimit.engine.storage.scripts import script_for

Call = Callable[[], object]

NUMBERS = (1, 3, 10)
"""Of rules."""
COUNT = 10**6
"""High enough that nothing is refused."""


def rules(number: int, algorithm: str = "sliding_window") -> list[Rule]:
    return [Rule(600 + i, COUNT + i, algorithm=algorithm) for i in range(number)]


# On a server


def yardsticks(url: str) -> dict[str, Call]:
    """A PING through redis-py, as its users send it, and the least that the system allows."""
    address = url.removeprefix("redis://").split(":")
    bare = socket.create_connection((address[0], int(address[1])))
    bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ping() -> None:
        bare.sendall(b"*1\r\n$4\r\nPING\r\n")
        bare.recv(64)

    return {"redis-py PING": redis.Redis.from_url(url).ping, "PING on a bare socket": ping}


def ours(url: str) -> dict[str, Call]:
    """The engine, and its script on a bare socket: what the engine adds to that is its own."""
    limiter = Limiter(url)
    found: dict[str, Call] = {}
    for number in NUMBERS:
        found[f"flask_multilimit|{number}"] = _check(limiter, rules(number), f"ours-{number}")
    for algorithm in ("fixed_window", "sliding_window_counter", "gcra"):
        found[f"flask_multilimit {algorithm}|3"] = _check(limiter, rules(3, algorithm), algorithm)
    subjects = itertools.cycle([hits_for(rules(3), scope="many", subject=str(i)) for i in range(1000)])
    found["flask_multilimit, 1000 subjects in turn|3"] = lambda: limiter.check(next(subjects))
    return found


def script_by_redis_py(url: str) -> dict[str, Call]:
    """Our script as most would call it: ``register_script``."""
    client = redis.Redis.from_url(url)
    found: dict[str, Call] = {}
    for number in NUMBERS:
        hits = hits_for(rules(number), scope=f"registered-{number}")
        registered = client.register_script(script_for("check", {"sliding_window"}).text)
        keys, packed = [hit.key for hit in hits], b"".join(hit.packed for hit in hits)

        def call(registered: Any = registered, keys: Any = keys, packed: bytes = packed) -> None:
            registered(keys=keys, args=[b"check", b"", packed, uuid.uuid4().bytes])

        found[f"our script by register_script|{number}"] = call
    return found


def four_calls(url: str) -> dict[str, Call]:
    """The plain version that this project began with: four commands a rule, no atomicity."""
    client = redis.Redis.from_url(url)

    def call(number: int) -> None:
        for rule in rules_of[number]:
            key, now = f"plain:{number}:{rule.time}", time.time()
            client.zremrangebyscore(key, 0, now - rule.time)
            if client.zcard(key) < rule.count:
                client.zadd(key, {str(uuid.uuid4()): now})
                client.expire(key, int(rule.time))

    rules_of = {number: rules(number) for number in NUMBERS}
    return {f"four redis-py calls a rule|{n}": lambda n=n: call(n) for n in NUMBERS}  # type: ignore[misc]


def limits_library(url: str) -> dict[str, Call]:
    """The engine of Flask-Limiter and slowapi."""
    from limits.storage import RedisStorage
    from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

    storage = RedisStorage(url)
    found: dict[str, Call] = {}
    for name, strategy in (
        ("limits moving window", MovingWindowRateLimiter(storage)),
        ("limits fixed window", FixedWindowRateLimiter(storage)),
    ):
        for number in NUMBERS:
            found[f"{name}|{number}"] = _limits_call(strategy, number)
    return found


def throttled(url: str) -> dict[str, Call]:
    from throttled import Throttled, rate_limiter, store

    shared = store.RedisStore(server=url)
    found: dict[str, Call] = {}
    for algorithm in ("sliding_window", "gcra"):
        for number in NUMBERS:
            quotas = [rate_limiter.per_duration(_delta(600 + i), COUNT) for i in range(number)]
            throttles = [
                Throttled(using=algorithm, quota=quota, store=shared, key=f"{algorithm}:{number}:{i}")
                for i, quota in enumerate(quotas)
            ]
            found[f"throttled-py {algorithm}|{number}"] = lambda throttles=throttles: [t.limit() for t in throttles]  # type: ignore[misc]
    return found


def pyrate(url: str) -> dict[str, Call]:
    """All rates of one key in one call, by the client's clock."""
    from pyrate_limiter import Limiter as PyrateLimiter
    from pyrate_limiter import Rate, RedisBucket

    found: dict[str, Call] = {}
    for number in NUMBERS:
        rates = [Rate(COUNT + i, 600_000 + i) for i in range(number)]
        bucket = RedisBucket.init(rates, redis.Redis.from_url(url), f"pyrate:{number}")
        limiter = PyrateLimiter(bucket)
        found[f"pyrate-limiter (one key)|{number}"] = lambda limiter=limiter: limiter.try_acquire("x", blocking=False)  # type: ignore[misc]
    return found


ON_A_SERVER = (ours, script_by_redis_py, four_calls, limits_library, throttled, pyrate)


# In memory


def in_memory() -> dict[str, Call]:
    from limits.storage import MemoryStorage
    from limits.strategies import MovingWindowRateLimiter

    limiter, strategy = Limiter("memory://"), MovingWindowRateLimiter(MemoryStorage())
    found: dict[str, Call] = {}
    for number in NUMBERS:
        found[f"flask_multilimit|{number}"] = _check(limiter, rules(number), f"memory-{number}")
        found[f"limits moving window|{number}"] = _limits_call(strategy, number)
    return found


# In Flask


def in_flask(url: str) -> dict[str, Call]:
    """One request to an app without limits, and with three."""
    from flask_limiter import Limiter as FlaskLimiter
    from flask_limiter.util import get_remote_address

    bare, by_us, by_them = Flask("bare"), Flask("ours"), Flask("theirs")
    bare.get("/", endpoint="view")(_view)
    by_us.config["MULTILIMIT_STORAGE_URI"] = url
    MultiLimit(by_us)
    each = rate_limiter(type=LimitType.IP, rules=rules(2))
    everyone = rate_limiter(rules=rules(1))
    by_us.get("/", endpoint="view")(each(everyone(_view)))
    limiter = FlaskLimiter(
        get_remote_address, app=by_them, storage_uri=url, strategy="moving-window", headers_enabled=True
    )
    view = limiter.limit(f"{COUNT}/600seconds;{COUNT}/601seconds")(
        limiter.limit(f"{COUNT}/602seconds", key_func=lambda: "everyone")(_view)
    )
    by_them.get("/", endpoint="view")(view)
    apps: Mapping[str, Flask] = {"bare view": bare, "flask_multilimit": by_us, "Flask-Limiter": by_them}
    return {name: _request(app) for name, app in apps.items()}


def _view() -> str:
    return "ok"


def _request(app: Flask) -> Call:
    from werkzeug.test import EnvironBuilder

    environ = EnvironBuilder(path="/", environ_base={"REMOTE_ADDR": "203.0.113.7"}).get_environ()

    def call() -> None:
        status = []
        for _ in app.wsgi_app(dict(environ), lambda code, *_: status.append(code)):
            pass
        assert status == ["200 OK"], status

    return call


def _check(limiter: Limiter, wanted: list[Rule], scope: str) -> Call:
    hits = hits_for(wanted, scope=scope, subject="203.0.113.7", type="ip")
    return lambda: limiter.check(hits)


def _limits_call(strategy: Any, number: int) -> Call:
    from limits import RateLimitItemPerSecond

    items = [RateLimitItemPerSecond(COUNT, 600 + i) for i in range(number)]

    def call() -> None:
        for item in items:
            strategy.hit(item, "203.0.113.7", f"{type(strategy).__name__}-{number}")

    return call


def _delta(seconds: int) -> Any:
    from datetime import timedelta

    return timedelta(seconds=seconds)
