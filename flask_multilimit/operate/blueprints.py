"""What our blueprints share: checks of their place, templates, languages, header fields that keep a browser strict."""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from gettext import GNUTranslations
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from typing import Any, ClassVar, Literal, cast

from flask import Blueprint, Request, Response, request, request_finished
from flask.sansio.app import App
from jinja2 import Environment, PackageLoader, StrictUndefined

from ..declare.advice import EXTENSION
from ..declare.decorators import exempt
from ..engine import ConfigurationError
from ..engine.errors import brief, check_text
from ..engine.text import LONGEST_PREFERENCE, visible_json
from ..insight.text import duration
from ..serve.headers import cache_fields

STRICT = {
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
Language = Literal["en", "zh"]
LANGUAGES: dict[Language, str] = {"en": "English", "zh": "中文"}
"""The name of each language in that language."""


class StrictBlueprint(Blueprint):
    """A blueprint about the limits of one ``multilimit``. No cache keeps its pages, and a browser allows no more than
    they need, also where the app, or Flask-Talisman, gives every response header fields of its own."""

    _may_be_shared: ClassVar[bool] = True
    """Whether the app, or Flask-CORS, may let other sites read the pages."""

    def __init__(self, multilimit: object, name: str, import_name: str, *, url_prefix: str, **options: Any) -> None:
        """Raises :class:`ConfigurationError` for a name or a path that no blueprint can have."""
        kind = type(self).__name__
        check_text(f"{kind}: name", name)
        check_text(f"{kind}: url_prefix", url_prefix)
        if url_prefix and not url_prefix.startswith("/"):
            raise ConfigurationError(f"{kind}: url_prefix={brief(url_prefix)}: give a path such as /limits")
        super().__init__(name, import_name, url_prefix=url_prefix, **options)
        self._multilimit = multilimit
        exempt(self)

    def register(self, app: App, options: dict[str, Any]) -> None:
        """Raise :class:`ConfigurationError` if ``app`` has another :class:`MultiLimit`."""
        if EXTENSION in app.extensions:
            self._require_served(app)
        super().register(app, options)
        request_finished.connect(self._restrict, app)  # after all functions for after_request

    def _restrict(self, sender: App, response: Response, **_: object) -> None:
        if sender.blueprints.get(request.blueprint or "") is self:
            response.headers.update({**STRICT, "Content-Security-Policy": self._policy()})
            if request.endpoint != f"{request.blueprint}.static" or response.status_code >= HTTPStatus.BAD_REQUEST:
                for name in cache_fields(response):
                    del response.headers[name]
                response.headers["Cache-Control"] = "no-store"
            if not self._may_be_shared:
                response.headers.pop("Access-Control-Allow-Origin", None)

    def _policy(self) -> str:
        raise NotImplementedError

    def _require_served(self, app: App) -> None:
        """Raise :class:`ConfigurationError` unless the limits of ``app`` are those that this is about."""
        if app.extensions.get(EXTENSION) is not self._multilimit:
            raise ConfigurationError(
                f"the app {app.name!r} does not have the MultiLimit that its {type(self).__name__} was given: call "
                "multilimit.init_app(app)"
            )


def json_response(value: Any, content_type: str = "application/json") -> Response:
    """``value`` as JSON that is safe for eyes."""
    return Response(visible_json(value, separators=(",", ":")) + "\n", content_type=content_type)


def hash_source(text: str) -> str:
    """The source for a Content-Security-Policy that allows the style or script with this text."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def templates_of(package: str) -> Environment:
    """The templates of ``package`` in their own environment: the app's may have other delimiters, or not escape."""
    return Environment(
        loader=PackageLoader(package), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def language_of(request: Request, locale: str, *, before: str | None = None) -> Language:
    """The chosen language, otherwise the one that was chosen ``before``, otherwise that of ``MULTILIMIT_LOCALE``,
    otherwise the one that the browser prefers."""
    for language in LANGUAGES:
        if request.args.get("lang") == language:
            return language
    for chosen in (before, locale):
        if chosen in LANGUAGES:
            return chosen
    if len(request.headers.get("Accept-Language", "")) > LONGEST_PREFERENCE:
        return "en"
    return cast("Language", request.accept_languages.best_match(list(LANGUAGES), "en"))


def translated(package: str, language: Language, text: str, /, **values: object) -> str:
    """``text`` in ``language``, as the catalogue of ``package`` has it, with ``values`` in their places."""
    sentence = text if language == "en" or not text else _catalogue(package, language).gettext(text)
    return sentence.format(**values) if values else sentence


def duration_in(package: str, language: Language, seconds: float) -> str:
    """A duration, with its unit from the catalogue of ``package``."""
    return measure_in(package, language, duration(seconds))


def measure_in(package: str, language: Language, text: str) -> str:
    """``5 min`` or ``minute``, with its unit from the catalogue of ``package``."""
    number, _, unit = text.partition(" ")
    return f"{number} {translated(package, language, unit)}" if unit else translated(package, language, number)


@cache
def _catalogue(package: str, language: Language) -> GNUTranslations:
    """The compiled catalogue: ``pybabel compile`` makes it."""
    with files(package).joinpath("translations", f"{language}.mo").open("rb") as file:
        return GNUTranslations(file)
