"""What a refused request costs everyone else: one greedy client, a quota for all, and a quota for each.

    pip install '.[test]' 'throttled-py[flask]' slowapi fastapi httpx django django-smart-ratelimit
    python benchmarks/all_or_nothing.py                     # on a server of the test extra
    python benchmarks/all_or_nothing.py redis://HOST/0      # on an EMPTY database of your own

All clients together may call 100 times, each client 3 times. One client calls 50 times: 3 calls pass, 47 are refused.
Then the script counts how many calls of other clients still pass (97 if the refused ones took nothing), and how many
commands the server received for one admitted request. Each library is tested with its two limits in both orders, and
with their windows in both orders.
"""

# ruff: noqa: PLC0415 - libraries that are not installed are left out

from __future__ import annotations

import importlib.metadata
import itertools
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import redis
from flask import Flask, request

EVERYONE, EACH, CALLS = 100, 3, 50
EXPECTED = EVERYONE - EACH

Call = Callable[[str], int]
"""Calls the app from this address; returns the status."""


class Limits(NamedTuple):
    """The two limits in the order of their decorators, outermost first."""

    everyone: str
    each: str
    everyone_first: bool

    def stacked(self, everyone: Any, each: Any, view: Any) -> Any:
        """``view`` under both decorators."""
        inner, outer = (each, everyone) if self.everyone_first else (everyone, each)
        return outer(inner(view))


def view() -> str:
    return "ok"


def flask_client(app: Flask) -> Call:
    client = app.test_client()
    return lambda address: client.get("/", environ_base={"REMOTE_ADDR": address}).status_code


def address() -> str:
    return str(request.remote_addr)


def multilimit(url: str, limits: Limits) -> Call:
    from flask_multilimit import IP, MultiLimit, rate_limiter

    app = Flask(__name__)
    MultiLimit(app, storage=url)
    everyone = rate_limiter(rules=f"{EVERYONE}/{limits.everyone}")
    each = rate_limiter(type=IP, rules=f"{EACH}/{limits.each}")
    app.get("/")(limits.stacked(everyone, each, view))
    return flask_client(app)


def flask_limiter(url: str, limits: Limits, **options: Any) -> Call:
    from flask_limiter import Limiter

    app = Flask(__name__)
    limiter = Limiter(address, app=app, storage_uri=url, strategy="moving-window")
    everyone = limiter.limit(f"{EVERYONE}/{limits.everyone}", key_func=lambda: "everyone", **options)
    each = limiter.limit(f"{EACH}/{limits.each}", **options)
    app.get("/")(limits.stacked(everyone, each, view))
    return flask_client(app)


def flask_limiter_deducting(url: str, limits: Limits) -> Call:
    """Charged after the view, unless it was refused: in order of arrival nothing is lost, but requests that run at once
    pass the limit together."""
    return flask_limiter(url, limits, deduct_when=lambda response: response.status_code != 429)


def slowapi(url: str, limits: Limits) -> Call:
    from fastapi import FastAPI, Request
    from fastapi.testclient import TestClient
    from slowapi import Limiter, _rate_limit_exceeded_handler
    from slowapi.errors import RateLimitExceeded

    def client_of(request: Any) -> str:
        return str(request.headers["x-client"])

    def view(request: Request) -> str:  # noqa: ARG001 - slowapi goes by the name
        return "ok"

    view.__annotations__["request"] = Request
    app = FastAPI()
    app.state.limiter = limiter = Limiter(client_of, storage_uri=url, strategy="moving-window")
    app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)
    everyone = limiter.limit(f"{EVERYONE}/{limits.everyone}", key_func=lambda: "everyone")
    each = limiter.limit(f"{EACH}/{limits.each}")
    app.get("/")(limits.stacked(everyone, each, view))
    client = TestClient(app)
    return lambda address: int(client.get("/", headers={"x-client": address}).status_code)


def throttled_py(url: str, limits: Limits) -> Call:
    from throttled.contrib.flask import Limiter
    from throttled.store import RedisStore

    app = Flask(__name__)
    limiter = Limiter("1/s", app=app, store=RedisStore(server=url), using="gcra")
    everyone = limiter.limit(f"{EVERYONE}/{limits.everyone} burst {EVERYONE}", key_func=lambda: "everyone")
    each = limiter.limit(f"{EACH}/{limits.each} burst {EACH}", key_func=address)
    app.get("/")(limits.stacked(everyone, each, view))
    return flask_client(app)


def django_smart_ratelimit(url: str, limits: Limits) -> Call:
    """Its call for several limits, without a view: it is for Django."""
    import django
    from django.conf import settings

    at = urlsplit(url)
    server = {"host": at.hostname, "port": at.port, "db": 0}
    if settings.configured:
        settings.RATELIMIT_REDIS = server
    else:
        settings.configure(INSTALLED_APPS=["django.contrib.contenttypes"], RATELIMIT_REDIS=server)
        django.setup()
    from django_smart_ratelimit.backends.redis_backend import RedisBackend

    backend, seconds = RedisBackend(), {"hour": 3600, "day": 86400}

    def call(address: str) -> int:
        everyone = {"key": "everyone", "limit": EVERYONE, "period": seconds[limits.everyone]}
        each = {"key": address, "limit": EACH, "period": seconds[limits.each]}
        checks = [everyone, each] if limits.everyone_first else [each, everyone]
        return 200 if all(allowed for allowed, _ in backend.check_batch(checks)) else 429

    return call


LIBRARIES = {
    "flask-multilimit": multilimit,
    "Flask-Limiter": flask_limiter,
    "Flask-Limiter, deduct_when": flask_limiter_deducting,
    "slowapi": slowapi,
    "throttled-py": throttled_py,
    "django-smart-ratelimit": django_smart_ratelimit,
}
MODULES = {
    "flask-multilimit": "flask_multilimit",
    "Flask-Limiter": "flask_limiter",
    "Flask-Limiter, deduct_when": "flask_limiter",
    "slowapi": "slowapi",
    "throttled-py": "throttled",
    "django-smart-ratelimit": "django_smart_ratelimit",
}
CASES = [
    Limits(everyone, each, everyone_first)
    for everyone, each in itertools.permutations(["hour", "day"])
    for everyone_first in (True, False)
]


def left_for_others(call: Call) -> int:
    """Calls of other clients that pass after one client has called ``CALLS`` times."""
    passed = sum(call("203.0.113.1") == 200 for _ in range(CALLS))
    if passed != EACH:
        raise SystemExit(f"the greedy client passed {passed} times, not {EACH}: the comparison is not a fair one")
    return sum(call(f"198.51.100.{number}") == 200 for number in range(EVERYONE))


def commands(url: str, call: Call) -> int:
    """Commands that the server receives for one admitted request, without those inside a script."""
    call("192.0.2.1")
    seen: list[str] = []
    with redis.Redis.from_url(url) as client, redis.Redis.from_url(url) as other, client.monitor() as monitor:
        other.ping()
        listening = threading.Thread(target=lambda: seen.extend(_until_marker(monitor)))
        listening.start()
        other.echo("begin")
        call("192.0.2.1")
        other.echo("end")
        listening.join()
    return len(seen[seen.index("ECHO begin") + 1 :])


def _until_marker(monitor: Any) -> Any:
    for command in monitor.listen():
        if command["command"] == "ECHO end":
            return
        if command["client_type"] != "lua":
            yield command["command"]


def main(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        if client.dbsize():
            raise SystemExit(f"{url} is not empty: name an empty database, for it is flushed")
        print(f"Calls of other clients that still pass, {EXPECTED} at best; and commands for one admitted call.\n")
        print(" " * 34, *(f"all: {EVERYONE}/{limits.everyone}".rjust(13) for limits in CASES))
        print(" " * 34, *(f"each: {EACH}/{limits.each}".rjust(13) for limits in CASES))
        print(
            " " * 34, *(f"top: {'all' if limits.everyone_first else 'each'}".rjust(13) for limits in CASES), " commands"
        )
        for library, app_for in LIBRARIES.items():
            if find_spec(MODULES[library]) is None:
                print(f"{library:34} not installed")
                continue
            row = []
            for limits in CASES:
                client.flushall()
                row.append(left_for_others(app_for(url, limits)))
            client.flushall()
            sent = commands(url, app_for(url, CASES[0]))
            name = f"{library} {importlib.metadata.version(library.partition(',')[0])}"
            print(f"{name:34}", *(str(left).rjust(13) for left in row), str(sent).rjust(9))
        client.flushall()


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)
    with ExitStack() as stack:
        if len(sys.argv) > 1:
            main(sys.argv[1])
        else:
            sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
            from support.servers import Server, find_binaries

            binary = next(iter(find_binaries().values()))
            main(stack.enter_context(Server(binary, tcp=True)).tcp_url)
