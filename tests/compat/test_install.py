"""``install()``: frameworks that import Flask-Limiter find the bridge."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def run(code: str) -> str:
    """What ``code`` prints in a process of its own."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


INSTALL = "from flask_multilimit.compat import install; install(); "


@pytest.mark.parametrize(
    "statement",
    [
        "from flask_limiter import Limiter as found",
        "import flask_limiter; found = flask_limiter.Limiter",
        "from flask_limiter.util import get_remote_address as found",
        "from flask_limiter.constants import ConfigVars as found",
        "from flask_limiter.errors import RateLimitExceeded as found",
        "from flask_limiter.contrib.util import get_remote_address_cloudflare as found",
        "import flask_limiter.commands; found = flask_limiter.commands.cli.callback",
    ],
)
def test_what_is_imported_then_is_ours(statement: str) -> None:
    assert run(f"{INSTALL}{statement}; print(found.__module__)").startswith("flask_multilimit.compat.flask_limiter")


def test_there_is_one_of_each_class_whatever_name_it_is_imported_by() -> None:
    code = (
        "import flask_limiter.errors as a; from flask_multilimit.compat.flask_limiter import errors as b; print(a is b)"
    )

    assert run(INSTALL + code) == "True"


def test_twice_is_once() -> None:
    assert run(f"{INSTALL}install(); import flask_limiter; print(flask_limiter.__name__)").endswith("flask_limiter")


def test_it_is_refused_when_flask_limiter_is_there_already() -> None:
    assert "flask_limiter is imported already" in run(f"import flask_limiter; {INSTALL}")


def test_the_names_of_modules_that_nobody_may_import_are_not_found() -> None:
    assert "No module named 'flask_limiter._extension'" in run(f"{INSTALL}import flask_limiter._extension")
