"""No text that a stranger sends makes a regular expression slow."""

from __future__ import annotations

from support.patterns import patterns_of_the_package


def test_every_pattern_takes_linear_time_whatever_the_text() -> None:
    slow = [str(used) for used in patterns_of_the_package() if not used.is_linear]

    assert slow == []
