"""Most log lines go to the app's logger, among lines of others: all begin alike, so that they can be found there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import flask_multilimit
from flask_multilimit.engine import text

PACKAGE = Path(flask_multilimit.__file__).parent
PREFIX = "Rate limits: "
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
SAFE = ("_logger", "SafeLogger()")
"""How loggers that make text safe for eyes end, without the logger in brackets."""
FILES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
    if path != Path(text.__file__)
}


def _calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Where a line is logged, by which logger, and the call."""
    for name, tree in FILES.items():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS):
                continue
            logger = ast.unparse(node.func.value)
            if "log" in logger.lower():
                yield f"{name}:{node.lineno}", re.sub(r"\(.*\)", "()", logger), node


def test_every_log_line_begins_with_the_same_words() -> None:
    """Not those of the bridge, whose lines are those of Flask-Limiter."""
    lines = {
        where: ast.unparse(call.args[1 if call.func.attr == "log" else 0])  # type: ignore[attr-defined]
        for where, _, call in _calls()
        if not where.startswith("compat/") or ".app.logger" in ast.unparse(call.func)
    }

    assert len(lines) > 25
    assert {where: text for where, text in lines.items() if not text.strip("'\"").startswith(PREFIX)} == {}


def test_every_log_line_goes_through_the_logger_that_makes_text_safe() -> None:
    raw = {where: logger for where, logger, _ in _calls() if not logger.endswith(SAFE)}

    assert raw == {}


def test_what_is_called_a_safe_logger_is_one() -> None:
    """Only SafeLogger makes ``_logger`` and ``self._logger``. Nobody else asks for a logger by name, except the bridge,
    whose ``limiter.logger`` is public."""
    made = [
        (name, ast.unparse(target), ast.unparse(node.value))
        for name, tree in FILES.items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]

    assert not [each for each in made if each[1].endswith("_logger") and not each[2].startswith("SafeLogger(")]
    assert not [name for name, tree in FILES.items() if "getLogger" in ast.unparse(tree) and "compat" not in name]
