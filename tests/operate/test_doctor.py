"""What doctor says of views, without a command line: limits that a decorator hides."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
from flask.views import MethodView

from flask_multilimit import IP, MultiLimit, rate_limiter
from flask_multilimit.operate.doctor import Finding, Severity, examine
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

    assert found.level is Severity.HINT
    assert found.text.startswith("Views that hold a limited function: shown (support.asking:view.")
    assert "functools.wraps" in found.remedy


def test_so_is_one_on_the_method_of_a_class(app: Flask) -> None:
    class Items(MethodView):
        get = without_wraps(LIMITER(lambda _: "items"))

    app.add_url_rule("/", view_func=Items.as_view("items"))

    assert "items (" in hidden(app)[0].text


@pytest.mark.parametrize("decorate", [with_wraps, with_wrapt, functools.cache, functools.partial, LIMITER])
def test_decorators_that_tell_what_they_wrap_hide_nothing(app: Flask, decorate: Callable[[Any], Any]) -> None:
    app.add_url_rule("/", "shown", decorate(rate_limiter(rules="9/hour")(view())))
    app.add_url_rule("/bare", "bare", without_wraps(view()))

    assert hidden(app) == []
