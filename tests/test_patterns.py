"""No text that a stranger sends makes a regular expression slow: each is timed on long texts that nearly match."""

from __future__ import annotations

import ast
import inspect
import re
from collections import deque
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from time import thread_time
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import flask_multilimit

PACKAGE = Path(flask_multilimit.__file__).parent
USES = frozenset({"match", "fullmatch", "search", "findall", "finditer", "sub", "split"})
TRUSTED = {
    "engine/storage/redis/compiled.py",  # reads the scripts of this package, as do the next two its files
    "engine/storage/redis/scripts.py",
    "observe/boards.py",
    "operate/simulate/formats.py",  # compiles what an operator gives as --regex and --format
}
"""Files whose patterns match only text of this package, or are the operator's own."""
SIZES = (*range(12, 40, 2), 100, 1000, 30_000)
"""Characters of a part that is repeated: exponential time is too long for the first, quadratic for the last."""
SLOW = 0.3
"""Seconds; linear time is a few milliseconds."""


class Used(NamedTuple):
    """A regular expression where the package uses it."""

    place: str
    pattern: str
    flags: int
    use: str
    """``fullmatch``, ``search`` and so on."""

    def __str__(self) -> str:
        return f"{self.place} {self.use} {self.pattern}"

    def seconds(self, text: str) -> float:
        began = thread_time()
        if self.use in {"match", "fullmatch", "search"}:
            getattr(re, self.use)(self.pattern, text, self.flags)
        else:
            deque(re.finditer(self.pattern, text, self.flags), 0)
        return thread_time() - began


def patterns_of_the_package() -> Iterator[Used]:
    """Every regular expression in the source, with each of its uses."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    uses = _uses_by_name(trees.values())
    for path, tree in trees.items():
        place = path.relative_to(PACKAGE).as_posix()
        for call, name in _calls(tree) if place not in TRUSTED else ():
            assert isinstance(call.func, ast.Attribute)
            function = call.func.attr
            pattern, flags = _evaluated(path, function, call)
            for use in uses.get(name, {"search"}) if function == "compile" else {function}:
                yield Used(place, pattern, flags, use)


def _calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """The calls of functions of ``re`` that take a pattern, each with the name that is given to the result."""
    assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    named = {id(node.value): ast.unparse(node.targets[0]) for node in assignments}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"re.{use}" for use in (*USES, "compile")}:
            yield node, named.get(id(node), "")


def _uses_by_name(trees: Iterable[ast.AST]) -> dict[str, set[str]]:
    """How compiled patterns are used, by their names: those are different everywhere."""
    found: dict[str, set[str]] = {}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute) and node.attr in USES and isinstance(node.value, ast.Name):
            found.setdefault(node.value.id, set()).add(node.attr)
    return found


def _evaluated(path: Path, function: str, call: ast.Call) -> tuple[str, int]:
    names = vars(
        import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"))
    )
    keywords = {each.arg: each.value for each in call.keywords if each.arg}
    given = inspect.signature(getattr(re, function)).bind(*call.args, **keywords).arguments
    pattern, flags = (eval(ast.unparse(given[name]), names) if name in given else 0 for name in ("pattern", "flags"))
    return str(pattern), int(flags)


def is_slow(used: Used, data: st.DataObject) -> bool:
    """Whether it is slow on a text that matches but for a part that is repeated, and an end that is none."""
    text = data.draw(st.from_regex(re.compile(used.pattern, used.flags), fullmatch=True))
    start = data.draw(st.integers(0, max(len(text) - 1, 0)))
    part = text[start : start + data.draw(st.integers(1, 3))]
    longer = (text[:start] + (part * size)[:size] for size in SIZES)
    return any(used.seconds(f"{each}\0") > SLOW for each in longer)


quickly = settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)


@pytest.mark.parametrize("used", list(patterns_of_the_package()), ids=str)
@quickly
@given(data=st.data())
def test_a_pattern_takes_linear_time_whatever_the_text(used: Used, data: st.DataObject) -> None:
    assert not is_slow(used, data)


@pytest.mark.parametrize(
    ("pattern", "use"),
    [("(a+)+b", "fullmatch"), (r"(?:\d\d?)*x", "fullmatch"), (r"\d+x", "search")],
)
def test_a_pattern_that_may_take_longer_is_found(pattern: str, use: str) -> None:
    @quickly
    @given(data=st.data())
    def try_texts(data: st.DataObject) -> None:
        assert not is_slow(Used("", pattern, 0, use), data)

    with pytest.raises(AssertionError):
        try_texts()
