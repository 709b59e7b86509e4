"""Flask-Limiter and our bridge behind one face, by one clock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flask import Flask, request

from flask_multilimit import testing

if TYPE_CHECKING:
    from flask.testing import FlaskClient
    from werkzeug.test import TestResponse

THEIRS = "flask_limiter"
OURS = "flask_multilimit.compat.flask_limiter"

NOON = 1_700_000_000.5


class Library:
    """One of the two, in a world of its own: apps, a clock, and what was logged."""

    def __init__(self, name: str, patch: Callable[[Any, str, Any], None], world: ExitStack) -> None:
        self.is_ours = name == OURS
        self.name = name
        self.names: Any = import_module(name)
        self.util: Any = import_module(f"{name}.util")
        self.constants: Any = import_module(f"{name}.constants")
        self.log: list[tuple[str, str]] = []
        self._world = world
        self._clocks: list[testing.Clock] = []
        self._now = NOON
        patch(time, "time", lambda: self._now)
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
        """With quotas in memory; by address, unless there is another ``key_func``."""
        key_func = options.pop("key_func", self.util.get_remote_address)
        if "RATELIMIT_STORAGE_URI" not in app.config:
            options = {"storage_uri": "memory://", **options}
        limiter = self.names.Limiter(key_func, app=app, **options)
        self.freeze(app)
        return limiter

    def shop(self, **options: Any) -> tuple[Flask, Any]:
        """An app, and its Limiter."""
        app = self.app()
        return app, self.limiter(app, **options)

    def freeze(self, app: Flask) -> None:
        """Let the limits of ``app`` go by the clock of this world."""
        if self.is_ours and "multilimit" in app.extensions and app not in self._frozen:
            self._frozen.append(app)
            self._clocks.append(self._world.enter_context(testing.freeze(app)))

    @property
    def _frozen(self) -> list[Flask]:
        return self.__dict__.setdefault("frozen", [])  # type: ignore[no-any-return]

    def advance(self, seconds: float) -> None:
        self._now += seconds
        for clock in self._clocks:
            clock.advance(seconds)

    def logged(self, level: str) -> list[str]:
        return [text for known, text in self.log if known == level]

    def _note(self, record: logging.LogRecord) -> None:
        self.log.append((record.levelname, record.getMessage()))


@contextmanager
def library(name: str, patch: Callable[[Any, str, Any], None]) -> Iterator[Library]:
    with ExitStack() as world:
        yield Library(name, patch, world)


def codes(*responses: TestResponse) -> str:
    return " ".join(str(response.status_code) for response in responses)


def times(number: int, asked: Flask | FlaskClient, path: str = "/", method: str = "GET", **options: Any) -> str:
    """The codes of so many requests."""
    client = asked.test_client() if isinstance(asked, Flask) else asked
    return codes(*(client.open(path, method=method, **options) for _ in range(number)))


def by_header(name: str = "X-Key") -> Callable[[], str]:
    """A ``key_func``: what the request says."""

    def key() -> str:
        return request.headers.get(name, "nobody")

    key.__qualname__ = f"by_{name}"
    return key


def at(address: str) -> dict[str, Any]:
    return {"environ_base": {"REMOTE_ADDR": address}}
