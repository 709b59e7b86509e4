"""Random apps, where at most one limit applies to a request, give the same answers on both libraries.

(Where several apply, or a request costs more than is left, a refused one counts there, and not here; the Retry-After of
a refusal is rounded up here; of several meta limits, each counts refusals while another holds here.)
"""

import random
from typing import Any

import pytest
from flask import Blueprint

from support.limiters import OURS, THEIRS, Library, by_client, library, named

UNITS = ("second", "minute", "hour", "2 minutes", "30 seconds")
METHODS = ("GET", "POST")
FIELDS = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "Retry-After")


def limit_text(draw: random.Random) -> str:
    return f"{draw.choice((2, 4, 6))} per {draw.choice(UNITS)}"


def options_of_a_limit(draw: random.Random, *, meta: bool) -> dict[str, Any]:
    """None replaces the default limits for some requests only; ``meta``: perhaps with meta limits."""
    chosen: dict[str, Any] = {}
    if draw.random() < 0.3:
        chosen["per_method"] = True
    if draw.random() < 0.3:
        chosen["cost"] = 2
    if draw.random() < 0.2:
        chosen["methods"] = [draw.choice(METHODS)]
    if draw.random() < 0.2:
        chosen["scope"] = draw.choice(("x", "y"))
    if draw.random() < 0.2:
        chosen["error_message"] = "wait"
    if meta and draw.random() < 0.2:
        chosen["meta_limits"] = [f"1 per {draw.choice(UNITS)}"]  # several meta limits end differently on both libraries
    return chosen


def random_app(lib: Library, draw: random.Random) -> Any:
    app = lib.app()
    # Its count differs from all others: at one endpoint, Flask-Limiter shares a quota between limits of the same text.
    defaults = [f"{draw.choice((3, 5))} per {draw.choice(UNITS)}"] if draw.random() < 0.6 else None
    per_method = draw.random() < 0.3
    metas = [f"1 per {draw.choice(UNITS)}"] if draw.random() < 0.3 else None
    limiter = lib.limiter(
        app,
        key_func=by_client,
        default_limits=defaults,
        default_limits_per_method=per_method,
        meta_limits=metas,
        headers_enabled=True,
    )
    parent, child = Blueprint("parent", __name__, url_prefix="/p"), Blueprint("child", __name__, url_prefix="/c")
    parent.register_blueprint(child)
    shared = limiter.shared_limit(limit_text(draw), "mail")
    for number in range(6):
        place: Any = draw.choice((app, parent, child))
        decorators = {
            "none": [],
            "limit": [limiter.limit(limit_text(draw), **options_of_a_limit(draw, meta=metas is None))],
            "shared": [shared],
            "exempt": [limiter.exempt],
        }[draw.choice(("none", "none", "limit", "limit", "shared", "exempt"))]
        view = named(f"random_view{number}", lambda: "ok")
        for decorator in decorators:
            view = decorator(view)
        place.add_url_rule(f"/{number}", f"view{number}", view, methods=METHODS)
    for blueprint in (parent, child):
        choice = draw.random()
        if choice < 0.4:
            limiter.limit(limit_text(draw))(blueprint)
        elif choice < 0.6:
            flags = draw.choice(list(lib.names.ExemptionScope)) | lib.names.ExemptionScope.DEFAULT
            limiter.exempt(blueprint, flags=flags)
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
        path, method = draw.choice(paths), draw.choice(METHODS)
        headers = {"X-Key": draw.choice(("ann", "bob"))}
        response = client.open(path, method=method, headers=headers)
        fields = FIELDS[:-1] if response.status_code == 429 else FIELDS
        shown = [response.headers.get(name) for name in fields]
        lines.append(f"{method} {path} {headers['X-Key']} {response.status_code} {shown}")
    return lines


@pytest.mark.parametrize("seed", range(40))
def test_both_libraries_answer_random_requests_to_random_apps_alike(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = []
    for name in (THEIRS, OURS):
        with monkeypatch.context() as patch, library(name, patch.setattr) as lib:
            answers.append(answers_of(lib, seed))

    assert answers[0] == answers[1]
