"""What the doctor finds without a command line; tests/operate/cli/test_doctor.py examines real servers."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
from flask import Blueprint
from flask.views import MethodView

from flask_multilimit import IP, MultiLimit, exempt, rate_limiter
from flask_multilimit.compat.flask_limiter import Limiter
from flask_multilimit.compat.flask_limiter.util import get_remote_address
from flask_multilimit.insight.doctor import Finding, Level, examine, examine_latency
from flask_multilimit.serve.gate import gate_of
from support.asking import view
from support.doubles import Instance, with_wraps, with_wrapt, without_wraps

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Flask

LIMITER = rate_limiter(type=IP, rules="5/minute")


class Kept:
    """Keeps the view for a method that is the view."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def show(self) -> Any:
        return self.function()


def hidden(app: Flask) -> list[Finding]:
    MultiLimit(app)
    return [found for found in examine(gate_of(app)) if found.name == "hidden"]


@pytest.mark.parametrize(
    "decorate",
    [
        without_wraps,
        Instance,
        lambda limited: Kept(limited).show,
        lambda limited: without_wraps(with_wraps(without_wraps(limited))),
        lambda limited: functools.partial(without_wraps(limited)),
        lambda limited: LIMITER(without_wraps(limited)),
    ],
    ids=["function", "object", "bound method", "several", "partial", "below a limiter"],
)
def test_a_limiter_below_a_decorator_that_does_not_tell_what_it_wraps_is_a_hint(
    app: Flask, decorate: Callable[[Any], Callable[..., Any]]
) -> None:
    app.add_url_rule("/", "shown", decorate(LIMITER(view())))

    (found,) = hidden(app)

    assert found.level == "hint"
    assert found.text.startswith("Views that hold a limited function: shown (support.asking:view.")
    assert "functools.wraps" in str(found.remedy)


def test_a_hidden_limiter_on_a_method_of_a_class_is_found(app: Flask) -> None:
    class Items(MethodView):
        get = without_wraps(LIMITER(lambda _: "items"))

    app.add_url_rule("/", view_func=Items.as_view("items"))

    assert "items (" in hidden(app)[0].text


@pytest.mark.parametrize("decorate", [with_wraps, with_wrapt, functools.cache, functools.partial, LIMITER])
def test_decorators_that_tell_what_they_wrap_hide_nothing(app: Flask, decorate: Callable[[Any], Any]) -> None:
    app.add_url_rule("/", "shown", decorate(rate_limiter(rules="9/hour")(view())))
    app.add_url_rule("/bare", "bare", without_wraps(view()))

    assert hidden(app) == []


def declared(app: Flask, **limits: Any) -> Finding:
    MultiLimit(app, **limits)
    (found,) = [found for found in examine(gate_of(app)) if found.name == "declarations"]
    return found


def test_endpoints_without_limits_are_a_hint_unless_somebody_has_exempted_them(app: Flask) -> None:
    off = Blueprint("off", __name__)
    off.add_url_rule("/off", "shown", view())
    app.register_blueprint(exempt(off))
    app.add_url_rule("/exempt", "asked", exempt(view()))
    app.add_url_rule("/partly", "partly", exempt("application")(view()))
    app.add_url_rule("/limited", "limited", LIMITER(view()))
    app.config["MULTILIMIT_EXEMPT"] = ["static"]

    found = declared(app)

    assert found.level == "hint"
    assert found.text == "1 endpoint limited, 3 exempt, 1 without any limit: partly."


def test_limits_of_the_bridge_are_counted(app: Flask) -> None:
    app.get("/limited", endpoint="limited")(view())
    Limiter(get_remote_address, app=app, storage_uri="memory://", default_limits=["5/minute"])

    (found,) = [found for found in examine(gate_of(app)) if found.name == "declarations"]

    assert found.text == "1 endpoint limited, 1 without any limit: static."


def test_limits_of_flask_limiter_are_not_counted_and_it_says_so(app: Flask) -> None:
    app.extensions["limiter"] = {object()}

    found = declared(app)

    assert str(found.remedy).startswith(
        "This does not count limits of Flask-Limiter: `flask limiter limits` lists them."
    )


def test_where_each_endpoint_has_a_limit_all_is_well(app: Flask) -> None:
    found = declared(app, default_limits="5/minute")

    assert (found.level, found.text) == ("ok", "1 endpoint limited, none without limits.")


@pytest.mark.parametrize(
    ("connecting", "slowest", "level", "remedy"),
    [
        (0.04, 0.002, "ok", ""),
        (0.06, 0.002, "warning", "Leave more time to connect: set it higher."),
        (0.06, 0.07, "warning", "Every limited request takes one round trip: put the server nearer to the app."),
    ],
)
def test_the_first_trip_which_has_to_connect_is_told_apart(
    connecting: float, slowest: float, level: Level, remedy: str
) -> None:
    found = examine_latency([connecting, *[0.001] * 6, slowest], 0.1)

    assert (found.level, found.remedy) == (level, remedy or None)
    assert found.text.startswith(f"1.00 ms a round trip, the slowest of 7 {slowest * 1000:.2f} ms.")
