"""What the doctor says about a server; tests/operate/cli/test_doctor.py examines real ones."""

from __future__ import annotations

import pytest

from flask_multilimit.operate.doctor import Severity
from flask_multilimit.operate.doctor.server import _latency


@pytest.mark.parametrize(
    ("connecting", "slowest", "severity", "remedy"),
    [
        (0.04, 0.002, Severity.OK, ""),
        (0.06, 0.002, Severity.WARNING, "Leave more time to connect: set it higher."),
        (0.06, 0.07, Severity.WARNING, "Every limited request takes one round trip: put the server nearer to the app."),
    ],
)
def test_the_first_trip_which_has_to_connect_is_told_apart(
    connecting: float, slowest: float, severity: Severity, remedy: str
) -> None:
    found = _latency([connecting, *[0.001] * 6, slowest], 0.1)

    assert (found.severity, found.remedy) == (severity, remedy)
    assert found.text.startswith(f"1.00 ms a round trip, the slowest of 7 {slowest * 1000:.2f} ms.")
