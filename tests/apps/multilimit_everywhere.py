"""A plugin of pytest: every Flask app that the tests make has the extension, with limits that no test reaches.

The tested project does not know of it. At the end it prints how many requests were checked; none is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flask import Flask

from flask_multilimit import MultiLimit
from flask_multilimit.signals import limits_checked

if TYPE_CHECKING:
    import pytest

GENEROUS = "1000000/minute; 5000000/hour"
CHECKED: list[str] = []
_make = Flask.__init__


def _make_limited(app: Flask, *args: Any, **kwargs: Any) -> None:
    _make(app, *args, **kwargs)
    by_address = {"type": "ip", "rules": GENEROUS}
    MultiLimit(app, application_limits=by_address, default_limits=by_address, unmatched_limits=by_address)


def _note(_: Flask, *, endpoint: str, **__: Any) -> None:
    CHECKED.append(endpoint)


def pytest_configure() -> None:
    Flask.__init__ = _make_limited  # type: ignore[assignment,method-assign]
    limits_checked.connect(_note)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not CHECKED:
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"{len(CHECKED)} requests of {len(set(CHECKED))} endpoints were checked")
