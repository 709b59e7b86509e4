"""The number of examples of random tests: few in the quick run, more in CI, and any number by hand."""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("MULTILIMIT_FUZZ_EXAMPLES", "20"))


def tries(share: float = 1.0) -> settings:
    """Settings with this ``share`` of the usual number of examples, for tests whose examples are slow."""
    return settings(
        max_examples=max(int(EXAMPLES * share), 1),
        derandomize="CI" in os.environ,
        suppress_health_check=list(HealthCheck),
    )


def slow(value: object) -> Any:
    """The case of a parametrised test that is slow, or adds little to the others."""
    return pytest.param(value, marks=pytest.mark.slow)
