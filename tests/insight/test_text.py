"""How numbers are written for people."""

from __future__ import annotations

import pytest

from flask_multilimit.insight.text import rate


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.004, "<0.01"), (0.5, "0.50"), (9.994, "9.99"), (10, "10.0"), (99.94, "99.9"), (1234.5, "1,234")],
)
def test_a_rate_has_about_three_digits_and_a_rare_one_is_not_nothing(value: float, text: str) -> None:
    assert rate(value) == text
