"""What one decision in memory does in Python."""

from __future__ import annotations

import pytest

from flask_multilimit.engine import Limiter, hits_for
from support.calls import calls_during


@pytest.mark.parametrize(
    ("rules", "charge"), [("1000/minute", "charge_unit"), ("1000/minute; 2000/hour; 9000/day", "charge_units")]
)
def test_an_admitted_check_is_four_calls(rules: str, charge: str) -> None:
    limiter = Limiter("memory://")
    hits = hits_for(rules, scope="api.update", subject="203.0.113.7", type="ip")
    limiter.check(hits)

    called = calls_during(lambda: limiter.check(hits))

    assert called == ["limiter.check", "memory.check", "hits.new_id", f"sliding_window.{charge}"]
