"""Programs that some tests run and pip does not install: from Debian, or from wherever this machine has them."""

from __future__ import annotations

import os
import shutil

import pytest

SYSTEM = os.pathsep.join(["/usr/sbin", "/sbin"])
"""Where Debian puts servers; the PATH of a user may lack it."""


def program(name: str) -> str:
    """The path of ``name``. Without it the test is skipped, but in CI it fails: `.ci/run` installs all of them."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{SYSTEM}")
    if path is not None:
        return path
    if "CI" in os.environ:
        pytest.fail(f"{name} is missing: add it to PROGRAMS in .ci/run", pytrace=False)
    pytest.skip(f"{name} is not installed")
