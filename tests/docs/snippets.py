"""Takes the code out of README and documentation, and runs it.

Blocks of Python run from top to bottom in one namespace a page. A comment above a block, ``% example: NAME`` (in
README ``<!-- example: NAME -->``), begins a new namespace, which tests get by that name. A block whose caption is the
name of a file is also written to that file, so that others can import it.
"""

import doctest
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.folders import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

_EXAMPLE = re.compile(r"(?:%|<!--) example: (?P<name>[\w-]+)(?: -->)?")
_OPTION = re.compile(r":(?P<name>[a-z-]+): *(?P<value>.*)")
_OPENING = re.compile(r"(?P<fence>`{3,})(?:\{code-block\} *)?(?P<language>[\w+-]*)")

NOWHERE = "redis://localhost:6379/0"
"""The server that the pages name."""

FIRST = ""
"""The example that a page begins with."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of one page."""

    page: Path
    line: int
    language: str
    example: str
    caption: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Every fenced block, in order."""
    found, example, lines = [], FIRST, page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        if match := _EXAMPLE.fullmatch(lines[number]):
            example = match["name"]
        elif match := _OPENING.match(lines[number].lstrip()):
            start = number + 1
            indent = len(lines[number]) - len(lines[number].lstrip())
            number = next(at for at in range(start, len(lines)) if lines[at].strip() == match["fence"])
            body = [line[indent:] for line in lines[start:number]]
            options = {option["name"]: option["value"] for line in body if (option := _OPTION.fullmatch(line))}
            text = "\n".join(line for line in body if not _OPTION.fullmatch(line)) + "\n"
            found.append(Block(page, start + 1, match["language"], example, options.get("caption", ""), text))
        number += 1
    return found


def examples_of(page: Path) -> list[str]:
    """The names of the examples that have Python."""
    return list(dict.fromkeys(block.example for block in blocks_of(page) if block.language in {"python", "pycon"}))


def run_example(page: Path, example: str, *, server_url: str, folder: Path) -> dict[str, Any]:
    """The namespace after all Python of one example, in which the server of the pages is at ``server_url``."""
    namespace: dict[str, Any] = {"__name__": "example"}
    blocks = [block for block in blocks_of(page) if block.example == example]
    for block in blocks:
        if block.caption:
            (folder / block.caption).write_text(block.text)
    for block in blocks:
        text = block.text.replace(NOWHERE, server_url)
        if block.language == "python":
            exec(compile(text, str(block), "exec"), namespace)
        elif block.language == "pycon":
            _run_session(block, text, namespace)
    return namespace


def _run_session(block: Block, text: str, namespace: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(text, namespace, str(block), str(block.page), block.line)
    problems: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=problems.append, clear_globs=False)
    assert not problems, "".join(problems)
    namespace.update(test.globs)
