"""Rules in words, for the command line and the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from flask_multilimit import IP, Concurrent, MultiLimit, Rule, rate_limiter
from flask_multilimit.operate.listing import limiters_of
from flask_multilimit.operate.words import limits_as_json, rule_text
from flask_multilimit.serve.gate import gate_of
from support.asking import view

if TYPE_CHECKING:
    from flask import Flask


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (Rule(60, 100), "100 per minute"),
        (Rule(20, 3), "3 per 20 s"),
        (Concurrent(5), "5 at once"),
        (Concurrent(5, timeout=300), "5 at once"),
    ],
)
def test_a_rule_reads_as_it_is_written(rule: Rule, text: str) -> None:
    assert rule_text(rule) == text


@pytest.mark.parametrize(("options", "name"), [({}, "ip"), ({"name": "tier"}, "tier")], ids=["unnamed", "named"])
def test_a_limiter_with_rules_by_request_is_listed_by_its_name_or_its_type(
    app: Flask, options: dict[str, Any], name: str
) -> None:
    MultiLimit(app)
    app.add_url_rule("/", "show", rate_limiter(type=IP, rules=lambda: "2/minute", **options)(view()))

    (listed,) = limiters_of(gate_of(app))
    (row,) = limits_as_json(listed)

    assert (row["name"], row["type"], row["count"], row["by_request"]) == (name, "ip", None, True)
