"""Rules in words, for the command line and the dashboard."""

from __future__ import annotations

import pytest

from flask_multilimit import Concurrent, Rule
from flask_multilimit.operate.words import rule_text


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
