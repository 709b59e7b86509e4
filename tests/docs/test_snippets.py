"""Every piece of Python in README and documentation runs, and every session answers what the page says."""

from collections.abc import Callable
from typing import Any

import pytest

from docs.snippets import PAGES, Block, blocks_of, examples_of
from flask_multilimit.declare.data import LimitsFile, parse_toml, validated
from support.folders import ROOT

EXAMPLES = [(str(page.relative_to(ROOT)), example) for page in PAGES for example in examples_of(page)]
LANGUAGES = {
    "",
    "python",
    "pycon",
    "lua",
    "console",
    "text",
    "toml",
    "http",
    "json",
    "toctree",
    "eval-rst",
    "include",
    "raw",
}


@pytest.mark.parametrize(("page", "example"), EXAMPLES, ids=[f"{page}-{example}" for page, example in EXAMPLES])
def test_python_of_an_example_runs(run: Callable[..., dict[str, Any]], page: str, example: str) -> None:
    if example == "graphql":
        pytest.importorskip("graphql")
    run(page, example)


def test_every_code_block_has_a_known_language() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page)]
    assert not [str(block) for block in blocks if block.language not in LANGUAGES]


def test_every_limits_file_on_a_page_is_valid() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page) if block.language == "toml"]
    assert blocks
    for block in blocks:
        validated(LimitsFile, str(block), parse_toml(block.text))


def test_files_named_in_commands_exist() -> None:
    missing = [
        f"{block}: {word}" for page in PAGES for block in blocks_of(page) for word in _files(block) if not _exists(word)
    ]
    assert not missing


def _files(block: Block) -> list[str]:
    if block.language != "console":
        return []
    folders = ("examples/", "tests/", "benchmarks/", "flask_multilimit/")
    return [word for word in block.text.split() if word.startswith(folders)]


def _exists(name: str) -> bool:
    return (ROOT / name).exists() or (ROOT / f"{name}.py").exists()
