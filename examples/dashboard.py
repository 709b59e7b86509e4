"""A shop with a dashboard, and visitors that this program makes up: see its limits work, and change them.

    pip install .
    flask --app examples/dashboard run

and open http://127.0.0.1:5000/multilimit/. Everything stays in the memory of this process.
"""

from __future__ import annotations

import random
import secrets
import tempfile
import threading
import time

from flask import Flask, request

from flask_multilimit import IP, USER, MultiLimit, rate_limiter
from flask_multilimit.dashboard import Dashboard
from flask_multilimit.recording import Recorder

app = Flask("shop")
app.secret_key = secrets.token_hex()
multilimit = MultiLimit(app, user_loader=lambda: request.headers.get("X-User"))
Recorder(app, tempfile.mkdtemp(prefix="shop-requests-"))  # for the page What if

# FOR THIS DEMO ONLY: everyone is let in, and may change everything. A real app asks its session who is logged in.
app.register_blueprint(Dashboard(multilimit, authorize=lambda: "you"))


@app.get("/")
def index() -> str:
    return 'Nothing to buy here. See <a href="/multilimit/">what its limits do</a>.'


@app.get("/search")
@rate_limiter(type=IP, rules="20/minute")
def search() -> str:
    return "found"


@app.get("/item/<int:number>")
@rate_limiter(type=IP, rules="5 per 10 seconds; 100/hour")
def item(number: int) -> str:
    return f"item {number}"


@app.post("/login")
@rate_limiter(type=IP, rules="5/minute")
def login() -> tuple[str, int]:
    return "wrong password", 401


@app.get("/api/orders")
@rate_limiter(type=USER, rules="2/second; 60/minute")
def orders() -> list[str]:
    return []


# The visitors. They come by app.test_client(), so nothing leaves this process, each from an address of its own.


def ask(address: str, path: str, *, method: str = "GET", user: str | None = None) -> None:
    headers = {} if user is None else {"X-User": user}
    app.test_client().open(path, method=method, headers=headers, environ_base={"REMOTE_ADDR": address})


def shopper() -> None:
    address = f"198.51.100.{min(int(random.paretovariate(0.7)), 250)}"  # a few come often, many seldom
    ask(address, random.choice(["/", "/search", "/search", f"/item/{random.randrange(500)}"]))


def scraper() -> None:
    for number in range(random.randrange(8)):
        ask("203.0.113.66", f"/item/{number}")


def guesser() -> None:
    ask(f"2001:db8:bad::{random.randrange(1, 9)}", "/login", method="POST")


def partner() -> None:
    ask("192.0.2.10", "/api/orders", user=f"partner-{random.randrange(1, 4)}")


VISITORS = [*(12 * [shopper]), scraper, guesser, *(3 * [partner])]


def keep_visiting() -> None:
    while True:
        random.choice(VISITORS)()
        time.sleep(random.expovariate(15))


_begin = threading.Lock()


@app.before_request
def begin() -> None:
    """They come as soon as somebody looks."""
    if _begin.acquire(blocking=False):
        threading.Thread(target=keep_visiting, name="visitors", daemon=True).start()
