"""Every text of the customer's page is there in both languages, with the same places for values."""

from __future__ import annotations

import re
from pathlib import Path

from babel.messages.mofile import read_mo
from babel.messages.pofile import read_po

from flask_multilimit.operate import usage
from flask_multilimit.operate.usage import MONTHS
from operate.dashboard.test_messages import PLACES, texts_in

FOLDER = Path(next(iter(usage.__path__)))
CATALOGUE = FOLDER / "translations" / "zh.po"
UNITS = {"ms", "s", "min", "h", "d", "never"}
with CATALOGUE.open("rb") as po:
    CHINESE = {str(each.id): str(each.string) for each in read_po(po) if each.id}


def test_the_catalogue_has_every_text_of_the_page_and_no_other() -> None:
    written = {text for text in texts_in(FOLDER / "templates" / "usage.html") if text}

    assert set(CHINESE) == written | UNITS | set(MONTHS)


def test_every_text_is_translated_and_the_compiled_catalogue_says_the_same() -> None:
    with CATALOGUE.with_suffix(".mo").open("rb") as mo:
        compiled = {str(each.id): str(each.string) for each in read_mo(mo) if each.id}

    assert "" not in CHINESE.values()
    assert compiled == CHINESE, f"pybabel compile -i {CATALOGUE} -o {CATALOGUE.with_suffix('.mo')}"


def test_a_translation_has_the_same_places_and_chinese_punctuation() -> None:
    for text, chinese in CHINESE.items():
        assert sorted(PLACES.findall(text)) == sorted(PLACES.findall(chinese)), text
        assert not re.search(r"[\u4e00-\u9fff][,:;?!(]|[,:;?!)][\u4e00-\u9fff]", chinese), chinese
