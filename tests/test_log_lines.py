"""Log lines have one prefix, by which they are found among other lines of the app, and go through a safe logger."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import flask_multilimit
from flask_multilimit.engine import text

PACKAGE = Path(flask_multilimit.__file__).parent
PREFIX = "Rate limits: "
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


@cache
def parsed() -> dict[str, ast.Module]:
    """The syntax tree of each file."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != Path(text.__file__)
    }


def _calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Each call that logs a line: its file, its logger, and the call."""
    for name, tree in parsed().items():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS):
                continue
            logger = ast.unparse(node.func.value)
            if "log" in logger.lower():
                yield name, logger, node


def _made(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each assignment: the last part of the name, and the value."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield ast.unparse(target).rpartition(".")[2], ast.unparse(node.value)


def test_every_log_line_has_the_same_prefix() -> None:
    """Except in the bridge, which logs the lines of Flask-Limiter."""
    lines = {
        f"{name}:{call.lineno}": ast.unparse(call.args[1 if call.func.attr == "log" else 0])  # type: ignore[attr-defined]
        for name, _, call in _calls()
        if not name.startswith("compat/") or ".app.logger" in ast.unparse(call.func)
    }

    assert len(lines) > 25
    assert {where: text for where, text in lines.items() if not text.strip("'\"").startswith(PREFIX)} == {}


def test_every_log_line_goes_through_a_safe_logger() -> None:
    """A logger is made in the call, or has a name to which its file assigns nothing but safe loggers."""
    for name, logger, call in _calls():
        values = [value for made, value in _made(parsed()[name]) if made == logger.rpartition(".")[2]]
        safe = [value.startswith("SafeLogger(") for value in values or [logger]]
        assert all(safe), f"{name}:{call.lineno}: {logger} is no SafeLogger"


def test_get_logger_is_called_only_in_the_bridge() -> None:
    """``limiter.logger`` of the bridge is public."""
    assert not [name for name, tree in parsed().items() if "getLogger" in ast.unparse(tree) and "compat" not in name]
