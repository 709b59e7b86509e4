"""The project's checks, each in an environment of its own."""

from __future__ import annotations

import os
from pathlib import Path

import nox

nox.needs_version = ">=2025.2"
nox.options.sessions = ["tests", "oldest", "lint", "types", "docs", "examples"]
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = "CI" in os.environ

PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
OLDEST = [
    "blinker==1.7.*",
    "flask==3.0.*",
    "pydantic==2.8.*",
    "redis[hiredis]==5.0.*",
    "werkzeug==3.0.*",
]


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the tests with the newest dependencies."""
    session.install(".[test]")
    session.run("pytest", *session.posargs)


@nox.session(python=PYTHONS[0])
def oldest(session: nox.Session) -> None:
    """Run the tests with the oldest dependencies that setup.cfg admits."""
    session.install(".[test]", *OLDEST)
    # Before 5.1, redis-py leaves the socket open when it cannot connect to a unix socket.
    session.run("pytest", "-W", "ignore:unclosed <socket:ResourceWarning", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format."""
    session.install("ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types."""
    session.install(".[test]", "mypy", "nox")
    session.run("mypy", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; a warning is an error."""
    session.install(".[docs]")
    session.run("sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html")


@nox.session
def examples(session: nox.Session) -> None:
    """Load each example and list its routes, which builds its limits but needs no server."""
    session.install(".[test]")
    found = sorted(Path("examples").glob("*.py"))
    if not found:
        session.error("no example found in examples/")
    for example in found:
        session.run("flask", "--app", str(example), "routes")
