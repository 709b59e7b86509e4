"""The texts of the pages: English as in the templates, and other languages as their catalogues translate it."""

from __future__ import annotations

from functools import cache
from gettext import GNUTranslations
from importlib.resources import files
from typing import Literal, cast

from flask import Request

from .throttle import LANGUAGE

Language = Literal["en", "zh"]
LANGUAGES: dict[Language, str] = {"en": "English", "zh": "中文"}
"""The name of each language in that language."""


def language_of(asked: Request, locale: str) -> Language:
    """The chosen language, otherwise that of ``MULTILIMIT_LOCALE``, otherwise the one that the browser prefers."""
    for language in LANGUAGES:
        if asked.args.get("lang") == language:
            return language
    for chosen in (asked.cookies.get(LANGUAGE), locale):
        if chosen in LANGUAGES:
            return chosen
    return cast("Language", asked.accept_languages.best_match(list(LANGUAGES), "en"))


def translated(language: Language, text: str, /, **values: object) -> str:
    """``text`` in ``language``, with ``values`` in their places."""
    sentence = text if language == "en" or not text else _catalogue(language).gettext(text)
    return sentence.format(**values) if values else sentence


@cache
def _catalogue(language: Language) -> GNUTranslations:
    """The compiled catalogue: ``pybabel compile`` makes it."""
    with files(__package__).joinpath("translations", f"{language}.mo").open("rb") as file:
        return GNUTranslations(file)
