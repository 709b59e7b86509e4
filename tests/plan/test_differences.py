"""What a change would change, in the words of a preview."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from flask_multilimit import IP, Ban, MultiLimit, rate_limiter
from flask_multilimit.plan.differences import differences
from flask_multilimit.serve.gate import gate_of
from plan.written import override, overrides
from support.asking import view

if TYPE_CHECKING:
    from flask import Flask


def lines_before_and_after(app: Flask, **change: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The limits at the endpoint "show", before the override and after it."""
    plans = gate_of(app).plans
    plans.ensure()
    (found,) = differences(plans, plans.changed(overrides(override("show", **change))))
    assert found.endpoint == "show"
    return found.before, found.after


@pytest.mark.parametrize("shadow", [False, True])
def test_a_difference_shows_a_ban_after_its_rules(app: Flask, *, shadow: bool) -> None:
    MultiLimit(app)
    ban = Ban(after=3, within=600, time=3600)
    app.add_url_rule("/", "show", rate_limiter(type=IP, rules="2/minute", ban=ban, shadow=shadow)(view()))

    before, after = lines_before_and_after(app, limiter="ip", off=True)

    end = " (shadow)" if shadow else ""
    assert before == (f"ip-60s: 2 per 60s{end}", f"ip-ban: {ban}{end}")
    assert after == ()


def test_a_difference_shows_the_overrides_of_rules_by_request(app: Flask) -> None:
    MultiLimit(app)
    app.add_url_rule("/", "show", rate_limiter(type=IP, rules=lambda: "2/minute", name="tier")(view()))

    before, after = lines_before_and_after(app, limiter="tier", times=2)

    assert before == ("tier: rules by request",)
    assert after == ("tier: rules by request (limiter tier at show: 2 times the count)",)
