"""A shop whose limits are changed while it runs, on memory and on a server."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Event
from typing import Any, TypeVar

import pytest
from flask import Flask, g, request

from flask_multilimit import IP, USER, MultiLimit, Rule, rate_limiter
from flask_multilimit.control.control import Control
from flask_multilimit.control.store import StoredDocument, StoreInMemory, StoreInStorage
from flask_multilimit.control.watch import ControlFollower
from flask_multilimit.engine import Limiter
from flask_multilimit.serve.gate import gate_of
from support.asking import ask, view
from support.servers import Server
from support.waiting import PATIENCE

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shop:
    """One process of the app, with requests by a client of a given address and user."""

    app: Flask
    multilimit: MultiLimit

    @property
    def control(self) -> Control:
        with self.app.app_context():
            return self.multilimit.control

    @property
    def follower(self) -> ControlFollower:
        return gate_of(self.app).applier.follower

    @property
    def limiter(self) -> Limiter:
        return gate_of(self.app).limiter

    def denies(self) -> bool:
        """Whether a view without limits refuses the client."""
        (status,) = self.statuses(1, "/open")
        assert status in {200, 403}
        return status == 403

    def statuses(self, times: int, path: str = "/", *, ip: str = "198.51.100.7", user: str = "") -> list[int]:
        return [self.ask(path, ip=ip, user=user).status_code for _ in range(times)]

    def ask(self, path: str = "/", *, ip: str = "198.51.100.7", user: str = "") -> Any:
        return ask(self.app, path, environ_base={"REMOTE_ADDR": ip}, headers={"X-User": user})


BUCKET = Rule(60, 10, algorithm="token_bucket", burst=3)


def shop_on(uri: str, **settings: Any) -> Shop:
    """A shop whose storage is at ``uri``."""
    app = Flask("shop")
    app.config.update(MULTILIMIT_STORAGE_URI=uri, MULTILIMIT_STORAGE_TIMEOUT=5, MULTILIMIT_DENY_CACHE=0)
    app.config.update(settings)
    multilimit = MultiLimit(app, user_loader=lambda: request.headers.get("X-User") or g.get("user"))
    app.add_url_rule("/", "show", rate_limiter(type=IP, rules="2/minute")(view()))
    app.add_url_rule("/mine", "api.mine", rate_limiter(type=USER, rules="2/minute; 50/hour")(view()))
    app.add_url_rule("/both", "api.both", rate_limiter(type=(USER, IP), rules="2/minute")(view()))
    app.add_url_rule("/tier", "tier", rate_limiter(type=IP, rules=lambda: "2/minute", name="tier")(view()))
    app.add_url_rule("/bucket", "bucket", rate_limiter(type=IP, rules=BUCKET)(view()))
    app.add_url_rule("/open", "open", view())
    return Shop(app, multilimit)


@pytest.fixture(params=["memory", "server"])
def shop(request: pytest.FixtureRequest) -> Shop:
    if request.param == "memory":
        return shop_on("memory://")
    return shop_on(request.getfixturevalue("on_server"))


@pytest.fixture
def on_server(server: Server) -> str:
    """The URI of an empty server."""
    return server.url


def make_last_answer_older(follower: ControlFollower, seconds: float) -> None:
    """As if the store, which is away now, had answered by so many seconds earlier."""
    with follower.lock():  # no answer is under way
        known = follower.known
        follower.known = known._replace(read=known.read - seconds)


class SlowStart:
    """A process that learns the changes in force late."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._asked, self._let_go = Event(), Event()
        read = StoreInStorage.read

        def slow(store: StoreInStorage, known: str) -> StoredDocument:
            self._asked.set()
            assert self._let_go.wait(PATIENCE)
            return read(store, known)

        monkeypatch.setattr(StoreInStorage, "read", slow)

    def two(self, ask: Callable[[], T]) -> list[T]:
        """What two calls return, the second of which begins while the first waits for the changes in force."""
        with ThreadPoolExecutor() as threads:
            first = threads.submit(ask)
            assert self._asked.wait(PATIENCE)
            second = threads.submit(ask)
            wait([second], timeout=0.2)  # for nothing, unless it does not wait for the changes
            self._let_go.set()
            return [first.result(), second.result()]


class SkewedStore(StoreInMemory):
    """A store whose clock is ahead."""

    ahead = 0.0

    def read(self, known: str) -> StoredDocument:
        found = super().read(known)
        return found._replace(now=found.now + self.ahead)
