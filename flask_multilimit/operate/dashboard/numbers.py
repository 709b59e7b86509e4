"""How numbers and times are written in pages, in every language."""

from __future__ import annotations

from datetime import datetime, timezone


def number(value: float) -> str:
    return f"{value:,}"


def rate(value: float) -> str:
    """A number per second, with about three digits."""
    if value == 0:
        return "0"
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}"


def axis(value: float) -> str:
    """A round number for the axis of a drawing."""
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"


def share(part: float, whole: float) -> str:
    """``1.3 %``; empty for nothing."""
    if not part or not whole:
        return ""
    percent = 100 * part / whole
    return f"{percent:.1f} %" if percent >= 0.1 else "< 0.1 %"


def iso(at: float) -> str:
    """For programs."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def utc(at: float) -> str:
    """The time in UTC, for people without JavaScript. With it, they see their own zone."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
