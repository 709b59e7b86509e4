"""``flask multilimit migrate``: what it prints runs, and answers as before."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from flask import Blueprint, Flask, request

from flask_multilimit import IP, Ban, Rule, rate_limiter
from flask_multilimit.compat.flask_limiter import ApplicationLimit, ExemptionScope, Limit, Limiter, get_remote_address
from flask_multilimit.compat.flask_limiter.contrib.util import get_remote_address_cloudflare


def printed(app: Flask) -> str:
    result = app.test_cli_runner().invoke(args=["multilimit", "migrate"])
    assert result.exit_code == 0, result.output
    return result.output


def by_plan() -> str:
    return request.headers.get("X-Plan", "")


def is_internal() -> bool:
    return False


def failed(response: Any) -> bool:
    return bool(response.status_code == 401)


def tell(told: Any) -> None:
    assert told is not None


def units() -> int:
    return 2


def search() -> str:
    return "found"


def limited(limit: Any, methods: tuple[str, ...] = ("GET",), **options: Any) -> Flask:
    app = Flask("shop")
    limiter = Limiter(get_remote_address, app=app, strategy="moving-window", **options)
    app.route("/", endpoint="search", methods=methods)(limit(limiter)(search))
    return app


@pytest.mark.parametrize(
    ("limit", "declaration"),
    [
        (lambda it: it.limit("3/minute"), 'type=IP, rules="3/minute"'),
        (lambda it: it.limit("3 per minute,20/2hours | 90/day"), 'type=IP, rules="3 per minute; 20/2hours; 90/day"'),
        (lambda it: it.limit("100/year"), "type=IP, rules=[Rule(31104000, 100)]"),
        (lambda it: it.shared_limit("3/minute", "mail"), 'type=IP, rules="3/minute", scope="mail"'),
        (lambda it: it.limit("3/minute", scope="part"), 'type=IP, rules="3/minute", scope="search:part"'),
        (lambda it: it.limit("3/minute", methods=["GET"]), 'type=IP, rules="3/minute", methods=["GET"]'),
        (lambda it: it.limit("4/minute", cost=2), 'type=IP, rules="4/minute", cost=2'),
        (lambda it: it.limit("4/minute", cost=units), 'type=IP, rules="4/minute", cost=units'),
        (
            lambda it: it.limit("3/minute", exempt_when=is_internal),
            'type=IP, rules="3/minute", exempt_when=is_internal',
        ),
        (lambda it: it.limit("3/minute", deduct_when=failed), 'type=IP, rules="3/minute", charge_when=failed'),
        (lambda it: it.limit("3/minute", error_message="wait"), 'type=IP, rules="3/minute", message="wait"'),
        (
            lambda it: it.limit("3/minute", meta_limits=["5/hour"]),
            'type=IP, rules="3/minute", ban=Ban(after=5, within=3600, time=3600, factor=1)',
        ),
        (
            lambda it: it.limit("3/minute", meta_limits=["5/month"]),
            'type=IP, rules="3/minute", ban=Ban(after=5, within=2592000, time=2592000, factor=1, most=2592000)',
        ),
        (lambda it: it.limit("3/minute", on_breach=tell), 'type=IP, rules="3/minute", on_rejected=tell'),
        (lambda it: it.limit("3/minute", override_defaults=False), 'type=IP, rules="3/minute", with_defaults=True'),
        (lambda it: it.limit("3/minute", key_func=by_plan), 'type=by_plan, name="by_plan", rules="3/minute"'),
        (
            lambda it: it.limit("3/minute", key_func=get_remote_address_cloudflare),
            'type=get_remote_address_cloudflare, name="client", rules="3/minute"',
        ),
    ],
)
def test_a_declaration_that_runs(limit: Any, declaration: str) -> None:
    text = printed(limited(limit))

    assert f"    + @rate_limiter({declaration})\n" in text
    limiter: Any = eval(f"rate_limiter({declaration})", {**globals(), "Rule": Rule, "IP": IP, "Ban": Ban})
    assert callable(limiter(search))
    assert rate_limiter is not None


def test_one_limiter_a_method() -> None:
    text = printed(limited(lambda it: it.limit("3/minute", per_method=True, methods=["GET", "POST"]), ("GET", "POST")))

    for method in ("GET", "POST"):
        written = f'@rate_limiter(type=IP, rules="3/minute", methods=["{method}"], scope="search:{method}")'
        assert written in text


def test_all_that_is_not_on_a_view() -> None:
    app = Flask("shop")
    limiter = Limiter(
        get_remote_address,
        app=app,
        default_limits=[Limit("50/hour", cost=2), "9/second"],
        application_limits=[ApplicationLimit("1000/day")],
        meta_limits=["5/day"],
    )
    limiter.request_filter(is_internal)
    blueprint = Blueprint("api", __name__)
    limiter.limit("7/minute")(blueprint)
    limiter.exempt(search, flags=ExemptionScope.DEFAULT)

    text = printed(app)

    for line in (
        'blueprint "api"\n    - @limiter.limit("7/minute")\n    + @rate_limiter(type=IP, rules="7/minute")\n',
        'MultiLimit(app, default_limits=[...])\n    - Limit("50/hour")\n',
        '    + rate_limiter(type=IP, rules="50/hour", cost=2)\n',
        '    + rate_limiter(type=IP, rules="1000/day")\n',
        "    - @limiter.exempt\n    + @exempt\n",
        "exempt_when=is_internal of each limiter",
        "fixed-window admits up to twice the count",
    ):
        assert line in text, text
    assert re.search(r'meta_limits\n    - "5/day"\n    \+ ban=Ban\(after=5, within=86400, time=86400, factor=1\)', text)


def test_meta_limits_that_are_no_single_ban_are_told() -> None:
    text = printed(limited(lambda it: it.limit("3/minute", meta_limits=["5/hour", lambda: "9/day"])))

    assert "meta limits become a ban: one for each limiter, not from a callable" in text


def test_an_app_without_limiter() -> None:
    app = limited(lambda it: it.limit("3/minute"))
    app.extensions["limiter"].clear()

    result = app.test_cli_runner().invoke(args=["multilimit", "migrate"])

    assert result.exit_code == 1
    assert "this app has no Limiter of flask_multilimit.compat.flask_limiter" in result.output


def test_the_example_of_the_guide() -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "migrate-from-flask-limiter.md"
    text = page.read_text(encoding="utf-8").partition("% example: before\n```python\n")[2].partition("```")[0]
    namespace: dict[str, Any] = {"__name__": "shop"}
    exec(compile(text.replace("flask_limiter", "flask_multilimit.compat.flask_limiter"), "before", "exec"), namespace)

    printed_now = printed(namespace["app"])

    assert '+ @rate_limiter(type=IP, rules="3/minute; 20/hour")' in printed_now
    assert '+ @rate_limiter(type=IP, rules="2/hour", scope="mail")' in printed_now
