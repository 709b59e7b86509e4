"""Every text of our pages is there in both languages, with the same places for values."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from babel.messages.mofile import read_mo
from babel.messages.pofile import read_po
from jinja2 import Environment, nodes

from flask_multilimit.engine import rules
from flask_multilimit.engine.storage.layers import health as storage_health
from flask_multilimit.insight import health, impact, past, standing
from flask_multilimit.insight.standing import Sentence
from flask_multilimit.operate import dashboard, usage
from flask_multilimit.operate.dashboard.shell import rule_in, said

from .conftest import ROOT
from .test_now import asked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flask import Flask
    from flask.testing import FlaskClient

FOLDER = Path(next(iter(dashboard.__path__)))
TEMPLATES = sorted((FOLDER / "templates").glob("*.html"))
CATALOGUE = FOLDER / "translations" / "zh.po"


def texts(catalogue: Path) -> dict[str, str]:
    with catalogue.open("rb") as file:
        found = read_mo(file) if catalogue.suffix == ".mo" else read_po(file)
    return {str(each.id): str(each.string) for each in found if each.id}


CHINESE = texts(CATALOGUE)
OF_CUSTOMERS = Path(next(iter(usage.__path__)))
CATALOGUES = {"dashboard": CATALOGUE, "usage": OF_CUSTOMERS / "translations" / "zh.po"}
UNITS = {"s", "ms", "min", "h", "d", "never"}
WORKERS_FOUND_BY = {
    "memory of this process",
    "the arguments of gunicorn",
    "the number of CPUs",
    "the other processes of the same server",
}
PLACES = re.compile(r"\{\w+(?::,)?\}")


def texts_in(template: Path) -> Iterator[str]:
    """What is given to ``t(...)``: by itself, chosen from a mapping, or from a list of pairs."""
    tree = Environment(autoescape=True).parse(template.read_text(encoding="utf-8"))
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == "t":
            yield from _constants(call.args[0])
    for mapping in tree.find_all(nodes.Dict):
        yield from (each for pair in mapping.items for each in _constants(pair.value))
    for loop in tree.find_all(nodes.For):
        if isinstance(loop.iter, nodes.List):
            pairs = [each.items for each in loop.iter.items if isinstance(each, nodes.Tuple)]
            yield from (each for _, title in pairs for each in _constants(title))


def _constants(node: nodes.Node) -> Iterator[str]:
    if isinstance(node, nodes.Const) and isinstance(node.value, str):
        yield node.value


def texts_of_rooms() -> Iterator[str]:
    """Sentences that rooms hold in constants."""
    for path in (*sorted(FOLDER.glob("*.py")), *(Path(str(room.__file__)) for room in (impact, standing, past))):
        if path.stem == "whatif":
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                text = str(node.value.value)
                if " " in text.strip() and text == text.strip():
                    yield text


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_every_text_of_a_template_is_there_in_chinese(template: Path) -> None:
    assert [text for text in texts_in(template) if text and text not in CHINESE] == []


def test_every_sentence_of_a_room_is_there_in_chinese() -> None:
    written = set(texts_of_rooms())

    assert impact.MORE_PASS in written
    assert sorted(written - set(CHINESE)) == []


@pytest.mark.parametrize("catalogue", CATALOGUES.values(), ids=CATALOGUES)
def test_every_text_is_translated_with_the_same_places_and_compiled(catalogue: Path) -> None:
    chinese, compiled = texts(catalogue), catalogue.with_suffix(".mo")

    assert [text for text, translation in chinese.items() if not translation] == []
    assert {text: sorted(PLACES.findall(text)) for text in chinese} == {
        text: sorted(PLACES.findall(translation)) for text, translation in chinese.items()
    }
    assert texts(compiled) == chinese, f"pybabel compile -i {catalogue} -o {compiled}"


@pytest.mark.parametrize("catalogue", CATALOGUES.values(), ids=CATALOGUES)
def test_chinese_has_its_own_punctuation(catalogue: Path) -> None:
    """Which is as wide as a character. What a visitor is to type keeps its own."""
    ours = [chinese.replace("类型名:对象", "") for chinese in texts(catalogue).values()]

    assert [text for text in ours if re.search(r"[\u4e00-\u9fff”][,:;?!(]|[,:;?!)][\u4e00-\u9fff“]", text)] == []


def test_the_catalogue_of_the_customers_page_has_every_text_of_it_and_no_other() -> None:
    written = {text for text in texts_in(OF_CUSTOMERS / "templates" / "usage.html") if text}

    assert set(texts(CATALOGUES["usage"])) == written | UNITS | set(usage.MONTHS)


def test_no_translation_is_left_over() -> None:
    written = {text for template in TEMPLATES for text in texts_in(template)} | set(texts_of_rooms())
    source = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py"))

    named = written | UNITS | set(rules.UNITS) | WORKERS_FOUND_BY | set(health.MEANWHILE.values())
    assert [text for text in CHINESE if text not in named and text.partition(":")[0] not in source] == []


@pytest.mark.parametrize(
    ("text", "english", "chinese"),
    [
        ("2 per minute", "2 per minute", "每分钟 2"),
        ("1000000 per 20 s", "1,000,000 per 20 s", "每20 秒 1,000,000"),
        ("3 at once", "3 at once", "同时 3 个"),
        ("9 per calendar month in UTC", "9 per calendar month in UTC", "9 per calendar month in UTC"),
    ],
)
def test_the_texts_of_rules_are_translated(text: str, english: str, chinese: str) -> None:
    assert (rule_in("en", text), rule_in("zh", text)) == (english, chinese)


def test_every_unit_of_a_rule_is_there_in_chinese() -> None:
    assert set(rules.UNITS) <= set(CHINESE)


def test_times_in_a_sentence_have_chinese_units() -> None:
    sentence = Sentence.of(standing.LASTS, time="5 min")

    assert said("zh", sentence).endswith("还有 5 分钟")


def test_every_kind_of_change_has_a_name_in_chinese() -> None:
    kinds = {"set", "undo", "import", "reset", "unban", "put back"}
    shown = (FOLDER / "templates" / "history.html").read_text(encoding="utf-8")

    assert all(f'"{kind}": "' in shown for kind in kinds)


def test_how_workers_were_counted_is_there_in_chinese() -> None:
    """But for names of settings, which are the same in every language."""
    sources = Path(storage_health.__file__).read_text(encoding="utf-8")
    told = {text for text in re.findall(r'Workers\([^"\n]*"([^"]+)"', sources) if " " in text}

    assert told | {"the arguments of gunicorn"} == WORKERS_FOUND_BY
    assert set(CHINESE) >= WORKERS_FOUND_BY


@pytest.mark.parametrize(
    "page", ["", "limits", "lists", "history", "subject?who=203.0.113.7", "change?endpoint=show", "what-if"]
)
def test_pages_are_made_in_chinese(app: Flask, ada: FlaskClient, page: str) -> None:
    asked(app)

    text = ada.get(ROOT + page, headers={"Accept-Language": "zh-CN"}).text

    assert 'lang="zh-Hans"' in text
    assert "限额" in text
