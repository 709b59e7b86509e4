"""What three limits add to a request in Flask: from WSGI environment to response, with no web server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flask import Flask
from werkzeug.test import EnvironBuilder

from . import apps
from .contenders import OURS
from .measure import Call, Samples, Variant, figures_of, in_turn
from .results import Figure, median_of
from .setting import Setting

PART = "flask"
BARE = Variant("bare view", "admitted")
THEIRS = "Flask-Limiter, with header fields"
BRIDGE = "the bridge from it, with header fields"


def measure(setting: Setting) -> Iterator[Figure]:
    with setting.server_on_one_core() as server:
        url = server.tcp_url
        variants = {
            BARE: _request(apps.bare()),
            Variant(OURS, "admitted"): _request(apps.ours(url)),
            Variant(THEIRS, "admitted"): _request(apps.theirs(url)),
            Variant("Flask-Limiter, without", "admitted"): _request(apps.theirs(url, fields=False)),
            Variant(BRIDGE, "admitted"): _request(apps.bridge(url)),
            Variant("the bridge from it, without", "admitted"): _request(apps.bridge(url, fields=False)),
        }
        server.client().flushall()
        samples = in_turn(variants, rounds=setting.rounds(300), server=server.pid)
        server.client().flushall()  # they share their keys
        refused = {
            BARE: variants[BARE],
            Variant(OURS, "refused"): _request(apps.ours(url, refusing=True), "429"),
            Variant(f"{OURS}, MULTILIMIT_DENY_CACHE=0", "refused"): _request(
                apps.ours(url, refusing=True, deny_cache=0), "429"
            ),
            Variant(THEIRS, "refused"): _request(apps.theirs(url, refusing=True), "429"),
            Variant(BRIDGE, "refused"): _request(apps.bridge(url, refusing=True), "429"),
        }
        refusals = in_turn(refused, rounds=setting.rounds(300), server=server.pid)
    yield from figures_of(PART, samples)
    yield from figures_of(PART, {variant: taken for variant, taken in refusals.items() if variant != BARE})
    yield from _added(samples)
    yield from _added(refusals)


def _added(samples: Samples) -> Iterator[Figure]:
    """The time beyond that of the bare view, round by round."""
    added = {
        variant: [(each.wall - bare.wall, each.cpu - bare.cpu) for each, bare in zip(taken, samples[BARE], strict=True)]
        for variant, taken in samples.items()
        if variant != BARE
    }
    for (who, case), each in added.items():
        yield median_of(PART, who, case, "µs added", (wall for wall, _ in each))
        yield median_of(PART, who, case, "CPU µs added", (cpu for _, cpu in each))
        if case == "admitted":
            both = zip(each, added[Variant(OURS, case)], strict=True)
            yield median_of(PART, who, case, "times ours", (theirs[0] / ours[0] for theirs, ours in both))


def _request(app: Flask, status: str = "200") -> Call:
    environ = EnvironBuilder(path="/", environ_base={"REMOTE_ADDR": "203.0.113.7"}).get_environ()

    def ask() -> str:
        lines: list[str] = []

        def start(line: str, *_: object) -> Any:
            lines.append(line)

        for _ in app.wsgi_app(dict(environ), start):
            pass
        return lines[0]

    def call() -> None:
        line = ask()
        assert line.startswith(status), line

    ask()  # the first request may pass
    return call
