"""CONTRIBUTING names existing files, and only a few for each recipe."""

from __future__ import annotations

import re

import pytest

from support.folders import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
PATH = re.compile(r"`((?:flask_multilimit|tests|docs|examples|benchmarks)/[^`\s]*)`")
RECIPES = dict(re.findall(r"^### Add (.*?)\n(.*?)(?=^###? |\Z)", PAGE, re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("path", sorted(set(PATH.findall(PAGE))))
def test_path_in_contributing_exists_or_is_new(path: str) -> None:
    folder, _, name = path.rstrip("/").rpartition("/")
    assert (ROOT / path).exists() or (name.startswith("NAME.") and (ROOT / folder).is_dir())


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_names_at_most_five_files(recipe: str) -> None:
    table, _, prose = RECIPES[recipe].partition("\n\nRead ")
    change, read = PATH.findall(table), PATH.findall(prose)

    assert 1 <= len(change) <= 5
    assert 1 <= len(read) <= 5


def test_every_usual_addition_has_a_recipe() -> None:
    assert {
        "a storage",
        "an algorithm",
        "a header dialect",
        "a metric",
        "an alert",
        "a ban list",
        "a control entry",
        "a face",
    } <= set(RECIPES)
