"""How hard tests try: a little in the quick run, more in CI, and as hard as you like by hand."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("MULTILIMIT_FUZZ_EXAMPLES", "20"))


def tries(share: float = 1.0) -> settings:
    """For tests whose examples are dear, a ``share`` of the examples of others."""
    return settings(
        max_examples=max(int(EXAMPLES * share), 1),
        derandomize="CI" in os.environ,
        suppress_health_check=list(HealthCheck),
    )


def slow(value: object) -> Any:
    """The case of a parametrised test that is slow, or adds little to the others."""
    return pytest.param(value, marks=pytest.mark.slow)
