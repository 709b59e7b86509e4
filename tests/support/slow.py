"""Parameters that only the slow tests try."""

from __future__ import annotations

from typing import Any

import pytest


def slow(value: object) -> Any:
    """The case of a parametrised test that is slow, or adds little to the others."""
    return pytest.param(value, marks=pytest.mark.slow)
