"""Random apps, where at most one limit applies to a request, give the same answers on both libraries.

(Where several apply, or a request costs more than is left, a refused one counts there, and not here; the Retry-After of
a refusal is rounded up here; of several meta limits, each counts refusals while another holds here.)
"""

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from flask import Blueprint, request

from support.limiters import OURS, THEIRS, Library, by_client, library, named

UNITS = ("second", "minute", "hour", "2 minutes", "30 seconds")
METHODS = ("GET", "POST")
FIELDS = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "Retry-After")


def limit_text(draw: random.Random) -> str:
    return f"{draw.choice((2, 4, 6))} per {draw.choice(UNITS)}"


def limit_text_or_callable(draw: random.Random) -> Any:
    text = limit_text(draw)
    return by_request(text, draw.choice(("", limit_text(draw)))) if draw.random() < 0.2 else text


def by_request(text: str, otherwise: str = "") -> Callable[[], str]:
    return lambda: otherwise if is_free() else text


def is_free() -> bool:
    return "X-Free" in request.headers


OPTIONS: dict[str, tuple[Any, ...]] = {
    "per_method": (True,),
    "exempt_when": (is_free,),
    "cost": (2,),
    "methods": (["GET"], ["POST"]),
    "scope": ("x", "y", lambda endpoint: endpoint[-1], lambda _: request.path[-1]),
    "error_message": ("wait", lambda: f"too many of {request.path}"),
}
"""The values from which each option of a limit is drawn. None replaces the default limits for some requests only."""


def some_of(options: Iterable[str], draw: random.Random) -> dict[str, Any]:
    return {name: draw.choice(OPTIONS[name]) for name in options if draw.random() < 0.25}


def limits_of_an_app(draw: random.Random) -> dict[str, Any]:
    """Those of the whole app, or default ones, or neither, with options, and meta limits."""
    scope = draw.choice(("default", "default", "application", "no"))
    if scope == "no":
        chosen: dict[str, Any] = {}
    else:
        # Its count differs from all others: at one endpoint, Flask-Limiter shares a quota of limits of the same text.
        text = f"{draw.choice((3, 5))} per {draw.choice(UNITS)}"
        chosen = {f"{scope}_limits": [draw.choice((str, by_request))(text)]}
        chosen |= {
            f"{scope}_limits_{name}": value for name, value in some_of(["per_method", "exempt_when"], draw).items()
        }
    return chosen | meta_limits(draw)


def meta_limits(draw: random.Random) -> dict[str, Any]:
    return {"meta_limits": [f"1 per {draw.choice(UNITS)}"]} if draw.random() < 0.3 else {}


def flags_of_an_exemption(lib: Library, draw: random.Random) -> Any:
    scopes = lib.names.ExemptionScope
    return draw.choice([scopes.APPLICATION | scopes.DEFAULT | scopes.META, *(each | scopes.DEFAULT for each in scopes)])


def random_app(lib: Library, draw: random.Random) -> Any:
    app, options = lib.app(), limits_of_an_app(draw)
    limiter = lib.limiter(app, key_func=by_client, headers_enabled=True, **options)
    parent, child = Blueprint("parent", __name__, url_prefix="/p"), Blueprint("child", __name__, url_prefix="/c")
    parent.register_blueprint(child)
    options_of_shared = {**some_of(OPTIONS, draw), "scope": draw.choice(("mail", lambda _: request.path[-1]))}
    shared = limiter.shared_limit(limit_text_or_callable(draw), **options_of_shared)
    exempt = limiter.exempt(flags=flags_of_an_exemption(lib, draw))
    send = limiter.limit(limit_text(draw))(named("send", lambda: "ok"))
    only_of_app = "application_limits" in options
    for number in range(6):
        place: Any = draw.choice((app, parent, child))
        # Several meta limits end differently on both libraries.
        metas = {} if "meta_limits" in options else meta_limits(draw)
        own = limiter.limit(limit_text_or_callable(draw), **some_of(OPTIONS, draw), **metas)
        limits = [] if only_of_app else [own, own, shared, lambda view: named(view.__name__, lambda **_: send())]
        decorate = draw.choice([lambda view: view, lambda view: view, exempt, *limits])
        view = decorate(named(f"random_view{number}", lambda: "ok"))
        place.add_url_rule(f"/{number}", f"view{number}", view, methods=METHODS)
    for blueprint in (parent, child):
        if draw.random() < 0.4 and not only_of_app:
            limiter.limit(limit_text(draw))(blueprint)
        if draw.random() < 0.3:
            limiter.exempt(blueprint, flags=flags_of_an_exemption(lib, draw))
    parent.register_blueprint(child, name="again", url_prefix="/again")
    app.register_blueprint(parent)
    return app


def answers_of(lib: Library, seed: int) -> list[str]:
    draw = random.Random(seed)
    app = random_app(lib, draw)
    paths = sorted({str(rule) for rule in app.url_map.iter_rules() if "static" not in str(rule)})
    client, lines = app.test_client(), []
    for _ in range(60):
        lib.advance(draw.choice((0, 0, 0, 0.5, 7, 31)))
        path, method = draw.choice(paths), draw.choice((*METHODS, "HEAD", "OPTIONS"))
        headers = {"X-Key": draw.choice(("ann", "bob")), **draw.choice(({}, {}, {"X-Free": "1"}))}
        response = client.open(path, method=method, headers=headers)
        fields = FIELDS[:-1] if response.status_code == 429 else FIELDS
        shown = [response.headers.get(name) for name in fields]
        lines.append(f"{method} {path} {headers['X-Key']} {response.status_code} {shown} {response.text}")
    return lines


@pytest.mark.parametrize("seed", range(60))
def test_both_libraries_answer_random_requests_to_random_apps_alike(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = []
    for name in (THEIRS, OURS):
        with monkeypatch.context() as patch, library(name, patch.setattr) as lib:
            answers.append(answers_of(lib, seed))

    assert answers[0] == answers[1]
