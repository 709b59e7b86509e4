"""The languages of pages: which one a visitor reads, and its texts."""

from __future__ import annotations

from functools import cache
from gettext import GNUTranslations
from importlib.resources import files
from typing import Literal, cast

from flask import Request

from ..engine.bounds import LONGEST_PREFERENCE
from ..insight.text import duration

Language = Literal["en", "zh"]
LANGUAGES: dict[Language, str] = {"en": "English", "zh": "中文"}
"""The name of each language in that language."""


def language_of(asked: Request, locale: str, *, before: str | None = None) -> Language:
    """The chosen language, otherwise the one that was chosen ``before``, otherwise that of ``MULTILIMIT_LOCALE``,
    otherwise the one that the browser prefers."""
    for language in LANGUAGES:
        if asked.args.get("lang") == language:
            return language
    for chosen in (before, locale):
        if chosen in LANGUAGES:
            return chosen
    if len(asked.headers.get("Accept-Language", "")) > LONGEST_PREFERENCE:
        return "en"
    return cast("Language", asked.accept_languages.best_match(list(LANGUAGES), "en"))


def translated(package: str, language: Language, text: str, /, **values: object) -> str:
    """``text`` in ``language``, as the catalogue of ``package`` has it, with ``values`` in their places."""
    sentence = text if language == "en" or not text else _catalogue(package, language).gettext(text)
    return sentence.format(**values) if values else sentence


def duration_in(package: str, language: Language, seconds: float) -> str:
    """A duration, with its unit from the catalogue of ``package``."""
    number, _, unit = duration(seconds).partition(" ")
    return f"{number} {translated(package, language, unit)}" if unit else translated(package, language, number)


@cache
def _catalogue(package: str, language: Language) -> GNUTranslations:
    """The compiled catalogue: ``pybabel compile`` makes it."""
    with files(package).joinpath("translations", f"{language}.mo").open("rb") as file:
        return GNUTranslations(file)
