"""One view, without limits and with the same three limits (two by address and one for all) of ours and of
Flask-Limiter.

If an app is meant to refuse, it lets one request pass and none after it.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

import redis
from flask import Flask, abort

from flask_multilimit import LimitType, MultiLimit, Rule, rate_limiter

from .contenders import PATIENCE

if TYPE_CHECKING:
    from flask.typing import ResponseReturnValue

MANY = 10**6


def bare() -> Flask:
    app = Flask("bare")
    app.get("/", endpoint="view")(view)
    return app


def ours(url: str = "", *, refusing: bool = False, deny_cache: float = 1) -> Flask:
    """``deny_cache`` is the seconds for which a refusal is believed; 1 is the default of the extension."""
    app = Flask("ours")
    app.config["MULTILIMIT_STORAGE_URI"] = url or os.environ["STORAGE_URI"]
    app.config["MULTILIMIT_STORAGE_TIMEOUT"] = PATIENCE
    app.config["MULTILIMIT_ON_STORAGE_ERROR"] = "raise"
    app.config["MULTILIMIT_DENY_CACHE"] = deny_cache
    MultiLimit(app)
    count = 1 if refusing else MANY
    each = rate_limiter(type=LimitType.IP, rules=[Rule(600, count), Rule(6_000, 2 * count)])
    everyone = rate_limiter(rules=Rule(60_000, 3 * count))
    app.get("/", endpoint="view")(each(everyone(view)))
    return app


def theirs(url: str = "", *, refusing: bool = False, fields: bool = True) -> Flask:
    """With or without the header ``fields`` that ours has, for which Flask-Limiter asks the server again."""
    return _with_names_of("flask_limiter", url, refusing=refusing, fields=fields)


def bridge(url: str = "", *, refusing: bool = False, fields: bool = True) -> Flask:
    """The app of Flask-Limiter with one changed import."""
    return _with_names_of("flask_multilimit.compat.flask_limiter", url, refusing=refusing, fields=fields)


def _with_names_of(library: str, url: str, *, refusing: bool, fields: bool) -> Flask:
    names, util = import_module(library), import_module(f"{library}.util")
    app = Flask(library)
    app.config["MULTILIMIT_STORAGE_TIMEOUT"] = PATIENCE
    app.config["MULTILIMIT_ON_STORAGE_ERROR"] = "raise"
    storage: Any = url or os.environ["STORAGE_URI"]
    limiter = names.Limiter(
        util.get_remote_address, app=app, storage_uri=storage, strategy="moving-window", headers_enabled=fields
    )
    count = 1 if refusing else MANY
    each = limiter.limit(f"{count}/600seconds;{2 * count}/6000seconds")
    everyone = limiter.limit(f"{3 * count}/60000seconds", key_func=lambda: "everyone")
    app.get("/", endpoint="view")(each(everyone(view)))
    return app


def pinging() -> Flask:
    """No limits, but one question to the server through redis-py."""
    app, client = Flask("pinging"), redis.Redis.from_url(os.environ["STORAGE_URI"])

    @app.get("/")
    def view_after_ping() -> ResponseReturnValue:
        client.ping()
        return "ok"

    return app


def aborting() -> Flask:
    """No limits, but every request refused by the view itself."""
    app = Flask("aborting")
    app.get("/", endpoint="view")(lambda: abort(429))
    return app


def view() -> ResponseReturnValue:
    return "ok"
