"""The app under attack: limits of every kind, on a real server, with a dashboard and the command line."""

import io
import logging
from dataclasses import dataclass, field
from typing import Any
from unicodedata import category

from flask import Flask, request
from flask.testing import FlaskClient

from flask_multilimit import IP, USER, Ban, MultiLimit, rate_limiter
from flask_multilimit.dashboard import Dashboard
from flask_multilimit.serve.gate import gate_of
from support.asking import pass_a_second

SECRET = {"SECRET_KEY": "key of the tests", "MULTILIMIT_LOG": "subjects"}


@dataclass
class House:
    """One app, its clients, and what it logged."""

    app: Flask
    multilimit: MultiLimit
    log: io.StringIO = field(default_factory=io.StringIO)

    def client(self) -> FlaskClient:
        return self.app.test_client()

    def operator(self) -> FlaskClient:
        client = self.client()
        client.environ_base["HTTP_X_OPERATOR"] = "ada"
        return client

    def command(self, *arguments: str) -> str:
        """All that the command writes, as a terminal gets it."""
        result = self.app.test_cli_runner().invoke(args=["multilimit", *arguments], color=True)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return str(result.output)

    def flush(self) -> None:
        pass_a_second(self.app)

    def close(self) -> None:
        self.app.logger.handlers.clear()
        gate_of(self.app).limiter.close()


def house(uri: str, *endpoints: str, **settings: Any) -> House:
    """A house whose views are called ``endpoints``, at ``/0``, ``/1`` and so on."""
    app = Flask("shop")
    app.json.ensure_ascii = False  # type: ignore[attr-defined]
    app.config.update(SECRET, MULTILIMIT_STORAGE_TIMEOUT=10, **settings)
    multilimit = MultiLimit(app, storage=uri, user_loader=lambda: request.args.get("user"))
    for number, endpoint in enumerate(endpoints):
        view = rate_limiter(type=IP, rules="3/minute", ban=Ban(after=2, within=60, time=60))(lambda: "ok")
        view = rate_limiter(type=USER, rules="3/minute")(view)
        view = rate_limiter(type=client_said, name="said", rules="3/minute")(view)
        app.add_url_rule(f"/{number}", endpoint, view, methods=["GET", "POST"])
    app.register_blueprint(Dashboard(multilimit, authorize=lambda: request.headers.get("X-Operator")))
    made = House(app, multilimit)
    app.logger.handlers[:] = [logging.StreamHandler(made.log)]
    app.logger.setLevel(logging.DEBUG)
    return made


def client_said() -> str:
    """A subject that the client chooses."""
    return request.args.get("said") or request.headers.get("User-Agent", "")


def control_characters_in(text: str) -> set[str]:
    """The characters of ``text`` that a terminal, a browser or a reader of logs obeys, other than a new line."""
    return {each for each in text if each != "\n" and category(each) in {"Cc", "Cf", "Cs", "Zl", "Zp"}}
