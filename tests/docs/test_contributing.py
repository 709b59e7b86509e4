"""CONTRIBUTING names existing files and tests, and only a few files for each recipe."""

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


def test_commands_with_a_word_select_tests() -> None:
    commands = re.findall(r"^\$ pytest (\S+\.py) -k (\w+)", PAGE, re.MULTILINE)
    assert commands
    for file, word in commands:
        assert re.search(rf"^def test_\w*{word}", (ROOT / file).read_text(), re.MULTILINE), (file, word)


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
