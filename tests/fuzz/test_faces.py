"""Random limits, clients and changes at run time: support, customers and the next request learn the same.

Before each request, ``standing`` says whether it will pass, or when again. Afterwards, the page for customers and
``standing`` show what is left as the header fields do.
"""

import math
from random import Random
from typing import Any, NamedTuple

import pytest
from flask import Flask, request

from flask_multilimit import DEFAULT, IP, USER, Ban, Calendar, ConfigurationError, MultiLimit, Rule, rate_limiter
from flask_multilimit.testing import freeze
from flask_multilimit.usage import Usage
from support.asking import read_list
from support.effort import EXAMPLES

ENDPOINTS, METHODS = ("one", "two"), ("GET", "POST")
PACED = ("token_bucket", "leaky_bucket", "gcra")
COUNTED = ("sliding_window", "fixed_window", "sliding_window_counter")
OPTIONS: tuple[dict[str, Any], ...] = (
    *({}, {"cost": 2}, {"shadow": True}, {"methods": ["POST"]}, {"charge_when": [401]}, {"settle": lambda _: 2}),
    {"ban": Ban(after=2, within=60, time=5)},
)


class Client(NamedTuple):
    ip: str
    user: str = ""

    @property
    def named(self) -> dict[str, Any]:
        """How support names it."""
        return {"ip": self.ip, **({"user": self.user} if self.user else {"subject": f"anonymous:{self.ip}"})}


CLIENTS = (Client("203.0.113.7", "ada"), Client("203.0.113.7"), Client("198.51.100.9", "ada"))


def random_rule(draw: Random, seconds: int) -> Rule:
    count = draw.choice((2, 3, 5))
    kind = draw.choice((*COUNTED, *PACED, "calendar"))
    if kind == "calendar":
        return Calendar(count, draw.choice(("hour", "day", "month")), timezone=draw.choice(("UTC", "Asia/Tokyo")))
    return Rule(seconds, count, algorithm=kind, burst=draw.choice((2, 7)) if kind in PACED else None)


def random_limiter(draw: Random, name: str) -> Any:
    rules = [random_rule(draw, seconds) for seconds in draw.sample((1, 2, 10, 60), 2)]
    options = {**draw.choice(OPTIONS), "name": name, "scope": name}  # no two share a quota, or a name in header fields
    types = (IP, USER, (USER, IP)) if "ban" in options else (IP, USER, (USER, IP), DEFAULT)
    return rate_limiter(type=draw.choice(types), rules=rules, **options)


def random_app(draw: Random) -> tuple[Flask, MultiLimit]:
    app = Flask("shop")
    multilimit = MultiLimit(app, user_loader=lambda: request.headers.get("X-User"))
    for endpoint in ENDPOINTS:
        view: Any = lambda: ("ok", int(request.headers["X-Status"]))  # noqa: E731
        for number in range(draw.choice((1, 2))):
            view = random_limiter(draw, f"{endpoint}{number}")(view)
        app.add_url_rule(f"/{endpoint}", endpoint, view, methods=METHODS)
    app.register_blueprint(Usage(multilimit))
    return app, multilimit


def change(draw: Random, multilimit: MultiLimit) -> None:
    """A change by an operator; nothing if it does not fit these limits."""
    control, made = multilimit.control, multilimit.control.entries()
    about: dict[str, Any] = draw.choice(
        ({"limiter": f"{draw.choice(ENDPOINTS)}0"}, {"limiter": "ip"}, {"who": "user:ada"})
    )
    how: dict[str, Any] = draw.choice(({"times": 2}, {"rules": "4 per 10 seconds"}, {"off": True}, {"shadow": True}))
    try:
        if made and draw.random() < 0.3:
            control.undo(draw.choice(made).id)
        elif draw.random() < 0.3:
            put = draw.choice((control.allow, control.deny, control.ban))
            put(draw.choice(("user:ada", "203.0.113.7", "203.0.113.0/24")), for_="1m")
        else:
            control.override(draw.choice((*ENDPOINTS, "*")), **about, **how, lasting=True, force=True)
    except ConfigurationError:
        return


@pytest.mark.filterwarnings("ignore:limiter on:flask_multilimit.ConfigurationWarning")
@pytest.mark.parametrize("seed", range(2 * EXAMPLES))
def test_support_customers_and_the_next_request_learn_the_same(seed: int) -> None:
    draw = Random(seed)
    app, multilimit = random_app(draw)
    browser = app.test_client()
    with freeze(app) as clock, app.app_context():
        for _ in range(15):
            clock.advance(draw.choice((0, 0, 0, 0.5, 3, 60)))
            if draw.random() < 0.2:
                change(draw, multilimit)
            client, endpoint, method = draw.choice(CLIENTS), draw.choice(ENDPOINTS), draw.choice(METHODS)
            asked: dict[str, Any] = {"environ_base": {"REMOTE_ADDR": client.ip}}
            asked["headers"] = {"X-User": client.user, "X-Status": draw.choice(("200", "401"))}
            place = {**client.named, "endpoint": endpoint, "method": method}
            everywhere, told = multilimit.standing(**client.named), multilimit.standing(**place)

            response = browser.open(f"/{endpoint}", method=method, **asked)

            passed = response.status_code in {200, 401}
            assert told.allowed in {passed, None}
            assert passed or everywhere.allowed is False
            if not passed and told.retry_after and "-ban" not in response.text:
                later = told.listed is not None  # an entry ends by a clock that goes on
                assert 0 <= math.ceil(told.retry_after) - int(response.headers["Retry-After"]) <= later
            page: Any = browser.get("/rate_limit", **asked).json  # a refusal, for a client that is denied
            on_page = {each["policy"]: each["remaining"] for each in page.get("resources", {}).values()}
            in_fields = {name: values["r"] for name, values in read_list(response.headers.get("RateLimit", ""))}
            standing = multilimit.standing(**place).requests
            to_support = {rule.name: rule.remaining for each in standing for rule in each.rules if not rule.shadow}
            left = {**to_support, **in_fields, **on_page}
            assert left == {**left, **in_fields} == {**left, **to_support}
