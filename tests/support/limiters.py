"""Flask-Limiter and our bridge behind one interface, under one clock."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from importlib import import_module
from typing import Any

from flask import Flask, request
from werkzeug.test import TestResponse

from flask_multilimit import testing

THEIRS = "flask_limiter"
OURS = "flask_multilimit.compat.flask_limiter"

NOON = 1_700_000_000.5


class Library:
    """Flask-Limiter or the bridge, with its own apps, clock and log."""

    def __init__(self, name: str, patch: Callable[[Any, str, Any], None], world: ExitStack) -> None:
        self.is_ours = name == OURS
        self.name = name
        self.names: Any = import_module(name)
        self.util: Any = import_module(f"{name}.util")
        self.constants: Any = import_module(f"{name}.constants")
        self.log: list[tuple[str, str]] = []
        self._world = world
        self._frozen: dict[Flask, testing.Clock] = {}
        self._now = NOON
        patch(time, "time", lambda: self._now)
        patch(threading.Timer, "run", lambda _: None)  # in which limits forgets charges: sooner on a slow machine
        handler = logging.Handler()
        handler.emit = self._note  # type: ignore[method-assign]
        logger = logging.getLogger("flask-limiter")
        patch(logger, "level", logging.INFO)
        logger.addHandler(handler)
        world.callback(logger.removeHandler, handler)

    def app(self, name: str = "shop", **config: Any) -> Flask:
        app = Flask(name)
        app.config.update(config)
        return app

    def limiter(self, app: Flask, **options: Any) -> Any:
        """A Limiter with quotas in memory; by address, unless ``key_func`` is given."""
        key_func = options.pop("key_func", self.util.get_remote_address)
        if "RATELIMIT_STORAGE_URI" not in app.config:
            options = {"storage_uri": "memory://", **options}
        limiter = self.names.Limiter(key_func, app=app, **options)
        self.freeze(app)
        return limiter

    def shop(self, **options: Any) -> Shop:
        """An app with a Limiter; ``options`` in capitals are settings of the app."""
        app = self.app(**{name: value for name, value in options.items() if name.isupper()})
        given = {name: value for name, value in options.items() if not name.isupper()}
        self.latest = Shop(self, app, self.limiter(app, **given))
        return self.latest

    def freeze(self, app: Flask) -> None:
        """Put the limits of ``app`` under the clock of this library."""
        if self.is_ours and "multilimit" in app.extensions and app not in self._frozen:
            self._frozen[app] = self._world.enter_context(testing.freeze(app))

    def advance(self, seconds: float) -> None:
        self._now += seconds
        for clock in self._frozen.values():
            clock.advance(seconds)

    def logged(self, level: str) -> list[str]:
        return [text for known, text in self.log if known == level]

    def _note(self, record: logging.LogRecord) -> None:
        self.log.append((record.levelname, record.getMessage()))


CLIENTS = {"": "127.0.0.1", "eve": "127.0.0.1", "ann": "10.0.0.1", "bob": "10.0.0.2"}
"""The addresses of the clients. They also send their names in ``X-Key``."""


class Shop:
    """An app on one of the two libraries, with a Limiter."""

    def __init__(self, lib: Library, app: Any, limiter: Any) -> None:
        self.lib = lib
        self.app = app
        self.limiter = limiter

    def view(self, path: str, *decorators: Any, methods: tuple[str, ...] = ("GET",), on: Any = None) -> Any:
        """A view that answers with the status of the query, below ``decorators``, the outermost first."""
        name = f"view_of_{path.strip('/').replace('/', '_').replace('<', '').replace('>', '') or 'index'}"
        function = named(name, lambda **_: ("ok", int(request.args.get("status", 200))))
        for decorator in reversed(decorators):
            function = decorator(function)
        (on or self.app).add_url_rule(path, name, function, methods=methods)
        return function

    def limited(self, path: str, *given: Any, methods: tuple[str, ...] = ("GET",), **options: Any) -> Any:
        return self.view(path, self.limiter.limit(*given, **options), methods=methods)

    def answers(self, asks: str) -> Iterator[tuple[str, list[TestResponse]]]:
        """What a client gets for each of ``asks``: ``POST/login?status=401@ann*3`` is three requests of ann, and
        ``+60`` waits for a minute."""
        client = self.app.test_client()
        for each in asks.split():
            if each.startswith("+"):
                self.lib.advance(float(each))
                continue
            target, _, number = each.partition("*")
            target, _, who = target.partition("@")
            method, slash, path = target.partition("/")
            options: dict[str, Any] = {"environ_base": {"REMOTE_ADDR": CLIENTS[who]}}
            options["headers"] = {"X-Key": who} if who else {}
            opened = range(int(number or 1))
            yield each, [client.open(slash + path, method=method or "GET", **options) for _ in opened]

    def told(self, asks: str, tell: Callable[[Library, TestResponse], str]) -> str:
        """What ``tell`` says of each answer, with a line between one of ``asks`` and the next."""
        return " | ".join(" ".join(tell(self.lib, each) for each in answers) for _, answers in self.answers(asks))

    def codes(self, asks: str) -> str:
        return self.told(asks, code)


def code(lib: Library, response: TestResponse) -> str:  # noqa: ARG001
    return str(response.status_code)


def whole(lib: Library, response: TestResponse) -> str:  # noqa: ARG001
    return f"{response.status_code} {response.text}"


def named(name: str, function: Any) -> Any:
    function.__name__ = function.__qualname__ = name
    return function


def asked(
    asks: str, tell: Callable[[Library, TestResponse], str] = code, **options: Any
) -> Callable[[Callable[[Shop], None]], Callable[[Library], str]]:
    """Make a function that declares limits tell what a shop with these ``options`` answers to ``asks``."""

    def decorator(declare: Callable[[Shop], None]) -> Callable[[Library], str]:
        @wraps(declare)
        def told(lib: Library) -> str:
            shop = lib.shop(**options)
            declare(shop)
            return shop.told(asks, tell)

        return told

    return decorator


@contextmanager
def library(name: str, patch: Callable[[Any, str, Any], None]) -> Iterator[Library]:
    with ExitStack() as world:
        yield Library(name, patch, world)


def by_client() -> str:
    """A ``key_func``: who the request says it is from."""
    return request.headers.get("X-Key", "nobody")
