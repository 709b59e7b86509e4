"""One admitted decision under several rules, by us and by the libraries that a user would choose instead.

Each function returns calls by variant: who decides, and under how many rules.
"""

# ruff: noqa: PLC0415 - libraries that are not installed are left out

from __future__ import annotations

import itertools
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import redis

from flask_multilimit import Rule
from flask_multilimit.engine import GuardedStorage, Limiter, RedisStorage, hits_for, storage_from_uri
from flask_multilimit.engine.storage.redis.scripts import script

from .measure import Call, Variant

Calls = dict[Variant, Call]

NUMBERS = (1, 3, 10)
"""Numbers of rules."""
PATIENCE = 10.0
"""The time-out in seconds. On a busy machine, a shorter one would measure the fast fallback instead."""
PING = Variant("PING through redis-py", "no rule")
OURS = "flask_multilimit"
REGISTERED = "our script by redis-py's register_script"
COUNT = 10**6
"""High enough that nothing is refused."""


def rules(number: int, algorithm: str = "sliding_window") -> list[Rule]:
    return [Rule(600 + i, COUNT + i, algorithm=algorithm) for i in range(number)]


def case_of(number: int) -> str:
    return "1 rule" if number == 1 else f"{number} rules"


# On a server


def yardsticks(url: str) -> Calls:
    """A PING through redis-py, as its users send it, and the fastest that the system allows."""
    ask = _bare_socket(url)
    return {PING: redis.Redis.from_url(url).ping, Variant("PING on a bare socket", "no rule"): lambda: ask(b"PING\r\n")}


def ours(url: str) -> Calls:
    """Guarded, as Flask has it, and the engine alone; by other algorithms; and for many subjects in turn."""
    found = ours_of(guarded(url))
    engine = Limiter(storage_from_uri(url, timeout=PATIENCE))
    found |= {variant._replace(who=f"{OURS}, not guarded"): call for variant, call in ours_of(engine).items()}
    own = Limiter(GuardedStorage(RedisStorage(redis.Redis.from_url(url)), on_error="raise"))
    found[Variant(f"{OURS}, by a client that retries", case_of(1))] = ours_of(own)[Variant(OURS, case_of(1))]
    limiter = guarded(url)
    for algorithm in ("fixed_window", "sliding_window_counter", "gcra"):
        found[Variant(f"{OURS}, {algorithm}", "3 rules")] = _check(limiter, rules(3, algorithm), algorithm)
    subjects = itertools.cycle([hits_for(rules(3), scope="many", subject=f"user:{i}") for i in range(1000)])
    found[Variant(f"{OURS}, 1,000 subjects in turn", "3 rules")] = lambda: limiter.check(next(subjects))
    return found


def guarded(url: str) -> Limiter:
    return Limiter(GuardedStorage(storage_from_uri(url, timeout=PATIENCE), on_error="raise"))


def ours_of(limiter: Limiter) -> Calls:
    return {Variant(OURS, case_of(number)): _check(limiter, rules(number), f"ours-{number}") for number in NUMBERS}


def script_by_redis_py(url: str) -> Calls:
    """Our script as most people would call it."""
    client = redis.Redis.from_url(url)
    found: Calls = {}
    for number in NUMBERS:
        registered = client.register_script(script("check", frozenset({"sliding_window"})).text)
        keys, packed = _script_call(number, "registered")

        def call(registered: Any = registered, keys: Any = keys, packed: bytes = packed) -> None:
            registered(keys=keys, args=[packed, uuid.uuid4().bytes])

        found[Variant(REGISTERED, case_of(number))] = call
    return found


def script_on_a_bare_socket(url: str) -> Calls:
    """Our script by a command that is packed in advance, with a reply that nobody parses: the rest is our Python."""
    ask, ids = _bare_socket(url), itertools.count()
    ours = script("check", frozenset({"sliding_window"}))
    redis.Redis.from_url(url).script_load(ours.text)
    found: Calls = {}
    for number in NUMBERS:
        keys, packed = _script_call(number, "bare")
        words = [b"EVALSHA", ours.sha.encode(), b"%d" % number, *map(str.encode, keys), packed]
        start = b"*%d\r\n" % (len(words) + 1) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)

        def call(start: bytes = start) -> None:
            ask(b"%b$16\r\n%b\r\n" % (start, next(ids).to_bytes(16, "big")))

        found[Variant("our script on a bare socket, packed before", case_of(number))] = call
    return found


def _script_call(number: int, scope: str) -> tuple[list[str], bytes]:
    hits = hits_for(rules(number), scope=f"{scope}-{number}", subject="ip:203.0.113.7")
    return [hit.key for hit in hits], b"".join(hit.packed for hit in hits)


def _bare_socket(url: str) -> Callable[[bytes], bytes]:
    """Asks, and reads a reply that fits into one packet."""
    address = urlsplit(url)
    bare = socket.create_connection((str(address.hostname), address.port))
    bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(command: bytes) -> bytes:
        bare.sendall(command)
        return bare.recv(4096)

    return ask


def four_calls(url: str) -> Calls:
    """The plain version with which this project began: four commands per rule, not atomic."""
    client = redis.Redis.from_url(url)

    def call(number: int) -> None:
        for rule in rules_of[number]:
            key, now = f"plain:{number}:{rule.time}", time.time()
            client.zremrangebyscore(key, 0, now - rule.time)
            if client.zcard(key) < rule.count:
                client.zadd(key, {str(uuid.uuid4()): now})
                client.expire(key, int(rule.time))

    rules_of = {number: rules(number) for number in NUMBERS}
    who = "four redis-py calls a rule, not atomic"
    return {Variant(who, case_of(number)): partial(call, number) for number in NUMBERS}


def limits_library(url: str) -> Calls:
    """The engine of Flask-Limiter and slowapi."""
    from limits.storage import RedisStorage
    from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

    storage = RedisStorage(url)
    found: Calls = {}
    for name, strategy in (
        ("limits moving window", MovingWindowRateLimiter(storage)),
        ("limits fixed window", FixedWindowRateLimiter(storage)),
    ):
        for number in NUMBERS:
            found[Variant(name, case_of(number))] = _limits_call(strategy, number)
    return found


def limits_refusing(url: str) -> Calls:
    """As Flask-Limiter asks: up to the first limit that refuses, which is the very first here."""
    from limits import RateLimitItemPerSecond
    from limits.storage import RedisStorage
    from limits.strategies import MovingWindowRateLimiter

    strategy = MovingWindowRateLimiter(RedisStorage(url))
    found: Calls = {}
    for number in NUMBERS:
        items = [RateLimitItemPerSecond(1 + i, 600 + i) for i in range(number)]

        def call(items: list[RateLimitItemPerSecond] = items) -> bool:
            return all(strategy.hit(item, "203.0.113.7", f"refused-{len(items)}") for item in items)

        call()
        found[Variant("limits moving window", case_of(number))] = call
    return found


def throttled(url: str) -> Calls:
    from throttled import Throttled, rate_limiter, store

    shared = store.RedisStore(server=url)
    found: Calls = {}
    for algorithm in ("sliding_window", "gcra"):
        for number in NUMBERS:
            quotas = [rate_limiter.per_duration(timedelta(seconds=600 + i), COUNT) for i in range(number)]
            throttles = [
                Throttled(using=algorithm, quota=quota, store=shared, key=f"{algorithm}:{number}:{i}")
                for i, quota in enumerate(quotas)
            ]

            def call(throttles: list[Any] = throttles) -> None:
                for throttle in throttles:
                    throttle.limit()

            found[Variant(f"throttled-py {algorithm}", case_of(number))] = call
    return found


def pyrate(url: str, stack: ExitStack) -> Calls:
    """All rates of one key in one call, by the client's clock. Its threads end with ``stack``."""
    from pyrate_limiter import Limiter as PyrateLimiter
    from pyrate_limiter import Rate, RedisBucket

    found: Calls = {}
    for number in NUMBERS:
        rates = [Rate(COUNT + i, 600_000 + i) for i in range(number)]
        bucket = RedisBucket.init(rates, redis.Redis.from_url(url), f"pyrate:{number}")
        limiter = stack.enter_context(PyrateLimiter(bucket))
        call = partial(limiter.try_acquire, "x", blocking=False)
        found[Variant("pyrate-limiter (all rates of one key)", case_of(number))] = call
    return found


@contextmanager
def on_a_server(url: str) -> Iterator[Calls]:
    """All of them."""
    found = yardsticks(url) | ours(url) | script_on_a_bare_socket(url) | script_by_redis_py(url)
    found |= limits_library(url) | throttled(url)
    with ExitStack() as stack:
        found |= pyrate(url, stack) | four_calls(url)
        yield found


# In memory


def in_memory() -> Calls:
    from limits.storage import MemoryStorage
    from limits.strategies import MovingWindowRateLimiter

    found, strategy = ours_of(Limiter("memory://")), MovingWindowRateLimiter(MemoryStorage())
    for number in NUMBERS:
        found[Variant("limits moving window", case_of(number))] = _limits_call(strategy, number)
    return found


def _check(limiter: Limiter, wanted: list[Rule], scope: str) -> Call:
    hits = hits_for(wanted, scope=scope, subject="ip:203.0.113.7")
    return lambda: limiter.check(hits)


def _limits_call(strategy: Any, number: int) -> Call:
    from limits import RateLimitItemPerSecond

    items = [RateLimitItemPerSecond(COUNT, 600 + i) for i in range(number)]
    scope = f"{type(strategy).__name__}-{number}"

    def call() -> None:
        for item in items:
            strategy.hit(item, "203.0.113.7", scope)

    return call
