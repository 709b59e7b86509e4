"""Most log lines go to the app's logger, among lines of others: all begin alike, so that they can be found there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import flask_multilimit

PACKAGE = Path(flask_multilimit.__file__).parent
PREFIX = "Rate limits: "
OURS = ("app.logger", "_logger", "_log")
"""How the loggers are called. Not the ``limiter.logger`` of the bridge: its lines are those of Flask-Limiter."""
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def _lines() -> Iterator[tuple[str, str]]:
    """Where a line is logged, and the text of the call."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in LEVELS and ast.unparse(node.func.value).endswith(OURS):
                text = node.args[1 if node.func.attr == "log" else 0]
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", ast.unparse(text)


def test_every_log_line_begins_with_the_same_words() -> None:
    lines = dict(_lines())

    assert len(lines) > 25
    assert {where: text for where, text in lines.items() if not text.strip("'\"").startswith(PREFIX)} == {}
