"""Everything public is in the reference, the links of README work, and all files name the same versions."""

import ast
import re
from pathlib import Path

import pytest
from blinker import NamedSignal
from flask import Flask

import flask_multilimit
from docs.snippets import blocks_of
from flask_multilimit import MultiLimit
from flask_multilimit.config import PREFIX, Settings
from flask_multilimit.engine.storage import SCHEMES
from flask_multilimit.insight import doctor
from flask_multilimit.insight.limits import endpoint_limits, places_of
from flask_multilimit.insight.values import as_json
from flask_multilimit.operate.command_line import COMMANDS
from flask_multilimit.serve.gate import gate_of
from support.folders import DOCS, ROOT
from support.rates import RATES

REFERENCE = ROOT / "docs" / "reference"
SETTINGS = {PREFIX + name.upper(): field for name, field in Settings.model_fields.items()}

VERSIONS = {
    "setup.cfg": r"Python :: (3\.\d+)",
    "README.md": r"Python (3\.\d+) to (3\.\d+)",
    "README.zh-CN.md": r"Python (3\.\d+) 至 (3\.\d+)",
    "CHANGELOG.md": r"Python (3\.\d+) to (3\.\d+)",
}
"""The files that name versions of Python, and the pattern of each."""


def _sections() -> dict[str, str]:
    """The text of each setting."""
    _, *parts = re.split(r"^## `(\w+)`$", (REFERENCE / "configuration.md").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _first_cells(begin: str) -> list[str]:
    """The names in the first column of a table of the command line reference, sorted."""
    table = (REFERENCE / "cli.md").read_text().partition(begin)[2].partition("\n\n")[0]
    return sorted(re.findall(r"`(.+?)`", " ".join(re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE))))


def test_every_example_is_named_on_some_page() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    examples = {each.name for each in (ROOT / "examples").iterdir() if not each.name.startswith(("_", "."))}
    assert {name for name in examples if f"examples/{name.removesuffix('.py')}" not in text} == set()


def test_every_setting_is_documented_and_no_other() -> None:
    assert sorted(_sections()) == sorted(SETTINGS)


@pytest.mark.parametrize("name", SETTINGS)
def test_setting_is_documented_with_its_default(name: str) -> None:
    shown = re.search(r"^Default\n: `(.+)`$", _sections().get(name, ""), re.MULTILINE)
    assert shown is not None
    assert ast.literal_eval(shown[1]) == SETTINGS[name].get_default(call_default_factory=True)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_choice_of_a_setting_is_documented(name: str) -> None:
    choices = getattr(SETTINGS[name].annotation, "__args__", ())
    section = _sections().get(name, "")
    assert not [choice for choice in choices if isinstance(choice, str) and f'`"{choice}"`' not in section]


def test_every_finding_of_the_doctor_is_documented() -> None:
    rooms = Path(doctor.__file__).read_text(encoding="utf-8")
    made = re.findall(r'\bFinding\(\s*"([\w ]+)"', rooms)
    assert sorted(set(made)) == _first_cells("| finding |")


def test_every_field_of_a_limit_in_json_is_documented(app: Flask) -> None:
    MultiLimit(app, default_limits="9/minute")
    app.add_url_rule("/", "view", lambda: "")
    (place,) = (each for each in places_of(gate_of(app)) if each.name == "view")
    (limit,) = as_json(endpoint_limits(gate_of(app), place))["limits"]

    assert sorted(limit) == _first_cells("A limit has\n\n| field |")


def test_every_command_is_in_the_reference() -> None:
    assert _first_cells("| commands |") == sorted([*COMMANDS, "migrate"])


def test_every_scheme_of_a_storage_is_documented() -> None:
    section = _sections()["MULTILIMIT_STORAGE_URI"]
    assert [name for name in SCHEMES if f"`{name}://`" not in section] == []


def test_every_algorithm_is_documented() -> None:
    page = (ROOT / "docs" / "explanation" / "algorithms.md").read_text()
    assert [name for name in RATES if f"| `{name}`" not in page] == []


@pytest.mark.parametrize("name", flask_multilimit.__all__)
def test_public_name_is_in_the_reference(name: str) -> None:
    is_signal = isinstance(getattr(flask_multilimit, name), NamedSignal)
    page = (REFERENCE / ("signals.md" if is_signal else "api.md")).read_text()
    assert re.search(rf"^(?:\.\. (?:auto|py:)\w+:: | {{13}}){name}(?:\(\))?$", page, re.MULTILINE)


READMES = ["README.md", "README.zh-CN.md"]


@pytest.mark.parametrize("readme", READMES)
def test_links_in_a_readme_lead_to_files(readme: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / readme).read_text(encoding="utf-8"))
    assert not [link for link in links if "://" not in link and not (ROOT / link).exists()]


def test_table_of_versions_matches_the_checks() -> None:
    table = (REFERENCE / "versions.md").read_text().partition("Each row is a run")[2]
    noxfile, declared = ((ROOT / name).read_text() for name in ("noxfile.py", "setup.cfg"))
    newest, oldest = (re.search(rf"^\| (.+?) \|.*\| `{run}` \|$", table, re.MULTILINE) for run in ("tests", "oldest"))

    assert newest is not None
    assert newest[1].split(", ") == re.findall(r"Python :: (3\.\d+)", declared)
    assert oldest is not None
    for name, shown in zip(["flask", r"redis\[hiredis\]"], oldest[0].split(" | ")[1:3], strict=True):
        assert re.findall(rf'"{name}==([\d.]+?)(?:\.\*)?"', noxfile) == [shown]
        assert f"{name.replace(chr(92), '')}>={shown}" in declared


MOST_WORDS = 1_500
"""On one page, its code and tables included: a page answers one question."""
LONGER = {"configuration.md"}
"""The reference of all settings is one table to search in."""


def test_no_page_is_too_long_to_read() -> None:
    words = {page: len(re.findall(r"\S*\w\S*", page.read_text(encoding="utf-8"))) for page in DOCS.rglob("*.md")}
    assert {page.name for page, number in words.items() if number > MOST_WORDS} <= LONGER


def test_readmes_in_both_languages_show_the_same_code() -> None:
    english, chinese = ([block.text for block in blocks_of(ROOT / readme)] for readme in READMES)
    assert chinese == english


def test_python_versions_agree_in_all_files() -> None:
    found = {name: re.findall(pattern, (ROOT / name).read_text(encoding="utf-8")) for name, pattern in VERSIONS.items()}
    declared = found["setup.cfg"]
    assert found["README.md"] == found["README.zh-CN.md"] == [(declared[0], declared[-1])]
    assert found["CHANGELOG.md"] == [(declared[0], declared[-1])]
