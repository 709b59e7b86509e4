"""The page "Move from the bridge to rate_limiter": both of its apps get the same requests, and differ as it says."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from flask_multilimit import ConfigurationError, rate_limiter
from support.folders import DOCS

PAGE = DOCS / "how-to" / "flask-limiter-by-hand.md"
OPTIONS = DOCS / "reference" / "flask-limiter.md"

Requests = Callable[["FlaskClient", Flask], str]


def at(address: str) -> dict[str, str]:
    return {"REMOTE_ADDR": address}


def codes(*responses: TestResponse) -> str:
    return " ".join(str(response.status_code) for response in responses)


def times(number: int, ask: Callable[[], TestResponse]) -> str:
    return codes(*(ask() for _ in range(number)))


def two_addresses_of_one_network(client: FlaskClient, _: Flask) -> str:
    addresses = ("2001:db8::1", "2001:db8::2")
    return " ".join(times(3, lambda a=address: client.get("/search", environ_base=at(a))) for address in addresses)  # type: ignore[misc]


def limit_written_wrongly(client: FlaskClient, app: Flask) -> str:
    if "multilimit" in app.extensions:
        with pytest.raises(ConfigurationError, match="unknown unit 'min'"):
            rate_limiter(rules="2/min")(lambda: "ok")
        return "an error at import"
    assert times(3, lambda: client.get("/wrong")) == "200 200 200"
    assert client.get("/wrong").headers["X-RateLimit-Limit"] == "50"
    return "the default of 50 holds instead, with a line in the log"


def header(name: str, address: str) -> Requests:
    return lambda client, _: client.get("/search", environ_base=at(address)).headers.get(name, "none")


RIGHT = {"password": "right"}

REQUESTS: dict[str, Requests] = {
    "`GET /search`, 4 times": lambda c, _: times(4, lambda: c.get("/search")),
    "the same from another address": lambda c, _: codes(c.get("/search", environ_base=at("203.0.113.7"))),
    "the same with `X-Internal: secret`": lambda c, _: codes(c.get("/search", headers={"X-Internal": "secret"})),
    "`GET /offer`, 6 times": lambda c, _: times(6, lambda: c.get("/offer")),
    "the same from another address (2)": lambda c, _: codes(c.get("/offer", environ_base=at("203.0.113.7"))),
    "`POST /invite`, `/remind`, `/invite`": lambda c, _: codes(*map(c.post, ("/invite", "/remind", "/invite"))),
    "`POST /login`, right password, 3 times": lambda c, _: times(3, lambda: c.post("/login", data=RIGHT)),
    "`POST /login`, wrong password, 3 times": lambda c, _: times(3, lambda: c.post("/login")),
    "`GET /export`, 3 times": lambda c, _: times(3, lambda: c.get("/export")),
    "`GET /health`, 60 times": lambda c, _: " ".join(sorted(set(times(60, lambda: c.get("/health")).split()))),
    "`GET /`, 51 times: the last": lambda c, _: times(51, lambda: c.get("/")).split()[-1],
    "`GET /nowhere`": lambda c, _: codes(c.get("/nowhere")),
    "`GET /search` from two addresses of one IPv6 network, 3 times each": two_addresses_of_one_network,
    "body of a 429, to a client that takes anything": lambda c, _: str(c.get("/search").mimetype),
    "`Retry-After` on a 200": header("Retry-After", "203.0.113.21"),
    "`X-RateLimit-Limit` on `GET /search`": header("X-RateLimit-Limit", "203.0.113.22"),
    "`RateLimit-Policy` on `GET /search`": header("RateLimit-Policy", "203.0.113.23"),
    'a limit written `"2/min"`': limit_written_wrongly,
}


def rows_of_the_page() -> list[tuple[str, str, str]]:
    text = PAGE.read_text(encoding="utf-8").partition("% observed\n")[2].partition("\n\n")[0]
    rows = [re.split(r" \| ", line.strip("| ")) for line in text.splitlines()[2:]]
    return [(requests, before, after) for requests, before, after in rows]


def run_example(name: str) -> dict[str, Any]:
    text = PAGE.read_text(encoding="utf-8").partition(f"% example: {name}\n```python\n")[2].partition("```")[0]
    namespace: dict[str, Any] = {"__name__": "shop"}
    exec(compile(text, f"{PAGE.name}: {name}", "exec"), namespace)
    return namespace


@pytest.fixture(scope="module")
def before() -> Flask:
    namespace = run_example("before")
    app: Flask = namespace["app"]
    limited = namespace["limiter"].limit("2/min")
    app.get("/wrong")(limited(lambda: "ok"))
    return app


@pytest.fixture(scope="module")
def after() -> Flask:
    app: Flask = run_example("after")["app"]
    return app


def test_apps_before_and_after_answer_as_the_page_says(before: Flask, after: Flask) -> None:
    rows = rows_of_the_page()
    observed = [[ask(app.test_client(), app) for ask in REQUESTS.values()] for app in (before, after)]

    assert [row[0] for row in rows] == [name.removesuffix(" (2)") for name in REQUESTS]
    for (requests, said_of_theirs, said_of_ours), theirs, ours in zip(rows, *observed, strict=True):
        bold = "**{}**" if theirs != ours else "{}"
        assert said_of_theirs == bold.format(theirs), requests
        assert said_of_ours == bold.format(ours), requests


def test_reference_lists_every_option_of_flask_limiter() -> None:
    import inspect

    from flask_limiter import Limiter
    from flask_limiter.constants import ConfigVars

    page = OPTIONS.read_text(encoding="utf-8")
    parameters = {
        name
        for function in (Limiter.__init__, Limiter.limit, Limiter.shared_limit, Limiter.exempt)
        for name in inspect.signature(function).parameters
    } - {"self", "limit_value", "obj"}
    settings = {value for name, value in vars(ConfigVars).items() if name.isupper()}
    families = ("RATELIMIT_DEFAULTS_", "RATELIMIT_APPLICATION_", "RATELIMIT_HEADER_", "RATELIMIT_IN_MEMORY_FALLBACK")
    parts = ("default_limits_", "application_limits_")

    missing = {name for name in parameters if not re.search(rf"\b{name}\b", page) and not name.startswith(parts)}
    missing |= {name for name in settings if f"`{name}`" not in page and not name.startswith(families)}

    assert not missing
