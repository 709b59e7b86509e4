"""The clock of this process."""

from __future__ import annotations

from time import monotonic_ns


def monotonic_microseconds() -> int:
    """Microseconds from an arbitrary origin; never steps back."""
    return monotonic_ns() // 1000
