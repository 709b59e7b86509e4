"""Random stacks of decorators around a view: each limit that applies counts every request exactly once, or refuses it.

A stack is a list of layers, the outermost first. Each layer says whether it tells what it wraps, and a model says from
that alone which limits apply; what was charged is read from storage.
"""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

from flask import Blueprint, Flask, request
from hypothesis import example, given
from hypothesis import strategies as st

from flask_multilimit import Decision, MultiLimit, exempt, rate_limiter
from flask_multilimit.engine import Hit
from support.clock import Clock
from support.doubles import (
    Instance,
    RecordingStorage,
    UpdatedInstance,
    retrying,
    with_wraps,
    with_wrapt,
    without_arguments,
    without_wraps,
)
from support.effort import tries

View = Callable[..., Any]
Decorator = Callable[[View], View]

APPLICATION, BLUEPRINT, CONFIGURATION = 1001, 1002, 1003
"""Seconds of the windows of limits that stand elsewhere. Each limit has a window of its own, which tells it apart."""
MANY = 1000


class ChargedStorage(RecordingStorage):
    """Counts charges, by the seconds of the window."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.charged: Counter[float] = Counter()
        self.refused = False

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        decision = super().check(hits, check_id)
        if decision.allowed:
            self.charged.update(hit.rule.time for hit in hits)
        self.refused |= not decision.allowed
        return decision

    def begin(self) -> None:
        """A request."""
        self.charged.clear()
        self.checks.clear()
        self.refused = False


def stopping(place: int, *, tells: bool) -> Decorator:
    """Returns early when the request says so, as ``login_required`` and caches do."""

    def decorate(view: View) -> View:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return "stopped" if str(place) in request.args.getlist("stop") else view(*args, **kwargs)

        return functools.wraps(view)(wrapper) if tells else wrapper

    return decorate


def caching(view: View) -> View:
    """Calls the view once, and has no ``__wrapped__``."""
    kept: list[Any] = []

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not kept:
            kept.append(view(*args, **kwargs))
        return kept[0]

    return wrapper


def naming(view: View) -> View:
    """Has ``__wrapped__``, but copies no attributes."""

    @functools.wraps(view, updated=())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    return wrapper


def never_calling(view: View) -> View:
    return functools.wraps(view)(lambda **_: "never")


class Page:
    def __init__(self, view: View) -> None:
        self.view = view

    def show(self, *args: Any, **kwargs: Any) -> Any:
        return self.view(*args, **kwargs)


def probed(entered: Counter[int], window: int, view: View) -> View:
    """Counts calls of the limiter of ``window`` directly below it, and has ``__wrapped__``."""

    @functools.wraps(view)
    def probe(*args: Any, **kwargs: Any) -> Any:
        entered[window] += 1
        return view(*args, **kwargs)

    return probe


def holding(entered: Counter[int], window: int, view: View) -> View:
    """Its closure holds another limited function, which it calls only when the request says so."""
    service = probed(entered, window, rate_limiter(rules=f"{MANY} per {window} seconds")(lambda: "done"))

    @functools.wraps(view)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if "serve" in request.args:
            service()
        return view(*args, **kwargs)

    return wrapper


SIMPLE: dict[str, Decorator] = {
    "wraps": with_wraps,
    "names": naming,
    "wrapt": with_wrapt,
    "updated object": UpdatedInstance,
    "partial": functools.partial,
    "cache": functools.cache,
    "retry": retrying,
    "never": never_calling,
    "no wraps": without_wraps,
    "fixed arguments": without_arguments,
    "opaque cache": caching,
    "object": Instance,
    "bound method": lambda view: Page(view).show,
}
OPAQUE = {"no wraps", "fixed arguments", "opaque cache", "object", "bound method", "opaque stop"}
KINDS = (*SIMPLE, "stop", "opaque stop", "holding", "limiter", "limiter", "limiter", "pair", "pair", "exempt")
SECOND = 200
"""Seconds by which the window of the second limiter of a pair is longer."""


def build(kinds: list[str], counts: dict[int, int], entered: Counter[int], reached: Callable[[], None]) -> View:
    """The view below ``kinds``, which calls ``reached``.

    The limiter at place ``i`` has a window of ``i + 1`` seconds; of a pair, the second stands directly below the first.
    """

    def base(**_: Any) -> str:
        reached()
        return "ok"

    view: View = base
    for place, kind in reversed(list(enumerate(kinds))):
        window = place + 1
        if kind == "pair":
            view = rate_limiter(rules=f"{MANY} per {SECOND + window} seconds", scope=f"second-{window}")(view)
        if kind in {"limiter", "pair"}:
            limiter = rate_limiter(rules=f"{counts.get(window, MANY)} per {window} seconds", scope=f"limit-{window}")
            view = probed(entered, window, limiter(view))
        elif kind == "holding":
            view = holding(entered, 100 + window, view)
        elif kind == "exempt":
            view = exempt(with_wraps(view))
        elif kind.endswith("stop"):
            view = stopping(place, tells=kind == "stop")(view)
        else:
            view = SIMPLE[kind](view)
    return view


def groups_of(kinds: list[str]) -> list[list[int]]:
    """The windows of limiters that are one stack: those with no opaque layer between them, the outermost first."""
    groups: list[list[int]] = [[]]
    for place, kind in enumerate(kinds):
        if kind in OPAQUE:
            groups.append([])
        elif kind == "limiter":
            groups[-1].append(place + 1)
        elif kind == "pair":
            groups[-1] += [place + 1, SECOND + place + 1]
    return groups


def expected(kinds: list[str], entered: Counter[int]) -> Counter[float]:
    own, *hidden = groups_of(kinds)
    seen = next((at for at, kind in enumerate(kinds) if kind in OPAQUE), len(kinds))
    charged: Counter[float] = Counter()
    if "exempt" not in kinds[:seen]:
        charged.update([APPLICATION, BLUEPRINT, CONFIGURATION])
    if own and entered[own[0]]:
        charged.update(own)  # once for each request, although it may be called more often
    for group in hidden:
        for window in group:
            charged[window] += entered[group[0]]  # a limited function that is called
    charged.update({window: times for window, times in entered.items() if window > 100})
    return +charged


stacks = st.lists(st.sampled_from(KINDS), max_size=8)
asked = st.lists(
    st.tuples(st.lists(st.integers(0, 7), max_size=2), st.booleans()).map(
        lambda each: "/?" + "&".join([*(f"stop={place}" for place in each[0]), *(["serve"] if each[1] else [])])
    ),
    min_size=1,
    max_size=4,
)


@tries(4)
@given(stacks, asked, st.none() | st.integers(1, 8))
@example(["stop", "limiter"], ["/?stop=0", "/"], None)
@example(["cache", "limiter"], ["/", "/"], None)
@example(["never", "limiter"], ["/"], None)
@example(["retry", "limiter", "retry", "limiter"], ["/"], None)
@example(["retry", "no wraps", "limiter"], ["/"], None)
@example(["holding", "holding"], ["/", "/?serve"], None)
@example(["object", "exempt", "limiter"], ["/"], None)
@example(["limiter", "no wraps", "limiter"], ["/", "/"], 3)
@example(["pair", "no wraps", "pair", "stop", "pair"], ["/", "/?stop=3", "/"], 1)
@example(["limiter", "opaque cache", "pair"], ["/", "/"], None)
@example(["names", "pair"], ["/", "/"], None)
@example(["object", "names"], ["/"], None)
def test_every_limit_of_a_random_stack_counts_once_or_refuses(
    kinds: list[str], paths: list[str], scarce: int | None
) -> None:
    storage = ChargedStorage(Clock(1_700_000_000_000_000))
    app, shop = Flask("shop"), Blueprint("shop", "shop")
    app.testing = True
    app.config["MULTILIMIT_DENY_CACHE"] = 0  # every refusal is an answer of the storage
    app.config["MULTILIMIT_LIMITS"] = {"shop.view": f"{MANY} per {CONFIGURATION} seconds"}
    MultiLimit(app, storage=storage, application_limits=f"{MANY} per {APPLICATION} seconds")
    rate_limiter(rules=f"{MANY} per {BLUEPRINT} seconds")(shop)
    entered: Counter[int] = Counter()
    checked: list[int] = []
    counts = {} if scarce is None else {scarce: 1}
    shop.add_url_rule("/", "view", build(kinds, counts, entered, lambda: checked.append(len(storage.checks))))
    app.register_blueprint(shop)

    for path in paths:
        entered.clear()
        checked.clear()
        storage.begin()
        response = app.test_client().get(path)
        wanted = expected(kinds, entered)

        assert response.status_code == (429 if storage.refused else 200)
        asked_for = Counter(float(window) for windows in storage.windows for window in windows)
        assert asked_for == wanted, (path, kinds)
        if checked and wanted[APPLICATION]:
            assert any(APPLICATION in windows for windows in storage.windows[: checked[0]]), "before the view"
        if not storage.refused:
            assert storage.charged == wanted, (path, kinds)
            own = groups_of(kinds)[0]
            if own and entered[own[0]]:
                together = {float(window) for window in (APPLICATION, BLUEPRINT, CONFIGURATION) if wanted[window]}
                assert any({*own, *together} <= set(windows) for windows in storage.windows), "one check"
