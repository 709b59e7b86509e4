"""What the limits of a view add to a request in Flask, in calls of Python functions: of ours, and of Flask's by us.

Not those of the standard library, which are other ones in each version of Python."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flask import Flask
from werkzeug.test import create_environ, run_wsgi_app

import flask_multilimit
from flask_multilimit import LimitType, MemoryStorage, MultiLimit, Rule, rate_limiter
from flask_multilimit.engine import DenyCache

if TYPE_CHECKING:
    from types import FrameType

OURS = str(Path(flask_multilimit.__file__).parent)
STANDARD = sysconfig.get_path("stdlib")
MANY = 10**6


class Calls(NamedTuple):
    """Of one request."""

    ours: int
    others: int


def test_a_request_that_is_admitted() -> None:
    added = added_by_limits(count=MANY, status="200 OK")

    assert added.ours <= 41
    assert added.others <= 31


def test_a_request_that_is_refused_without_asking() -> None:
    added = added_by_limits(count=1, status="429 TOO MANY REQUESTS")

    assert added.ours <= 53
    assert added.others <= 83


def added_by_limits(*, count: int, status: str) -> Calls:
    """By three rules, two of the address and one of everyone, to the second request of a client."""
    bare, limited = Flask("bare"), Flask("limited")
    bare.get("/", endpoint="view")(view)
    MultiLimit(limited, storage=DenyCache(MemoryStorage(), seconds=60))
    each = rate_limiter(type=LimitType.IP, rules=[Rule(600, count), Rule(6_000, 2 * count)])
    everyone = rate_limiter(rules=Rule(60_000, 3 * count))
    limited.get("/", endpoint="view")(each(everyone(view)))
    without, with_limits = calls_of(bare, "200 OK"), calls_of(limited, status)
    return Calls(with_limits.ours, with_limits.others - without.others)


def view() -> str:
    return "ok"


def calls_of(app: Flask, status: str) -> Calls:
    """Of what comes after the first two requests, which have to find out more."""
    environ = create_environ(environ_base={"REMOTE_ADDR": "203.0.113.7"})
    for _ in range(2):
        run_wsgi_app(app, environ, buffered=True)
    files: list[str] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            files.append(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        answer = run_wsgi_app(app, environ, buffered=True)
    finally:
        sys.setprofile(before)
    assert answer[1] == status
    ours = sum(file.startswith(OURS) for file in files)
    standard = sum(file.startswith(STANDARD) and "site-packages" not in file for file in files)
    return Calls(ours, len(files) - ours - standard)
