"""What all pages share: templates, the frame, and the header fields that keep a browser strict."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from hashlib import blake2b
from importlib.resources import files
from typing import Any, cast
from urllib.parse import urlencode

from flask import Response, current_app, g, request
from markupsafe import Markup, escape
from werkzeug.exceptions import HTTPException

from ...config import PREFIX
from ...engine.text import Phrase, quoted, visible_page
from ...insight.health import storage_state
from ...insight.text import LocalTime, rate
from ...serve.gate import gate_in_force
from ...serve.headers import own_copy
from ..blueprints import LANGUAGES, Language, duration_in, json_response, measure_in, templates_of
from ..blueprints import translated as translated_by
from .drawing import axis, iso, number, share, utc
from .forms import FIELD, can_sign, encode_field, form_token, keep_nonce
from .visit import LANGUAGE, keep_cookie, remember_browser, visit

PAGES = {
    "now": "Now",
    "limits": "Limits",
    "subject": "Subject",
    "lists": "Lists",
    "history": "History",
    "what_if": "What if",
}
"""The pages in the navigation, by endpoint."""
_PAGE_OF_FORM = {"make_change": "change", "undo": "lists", "reset": "subject", "unban": "subject"}
"""The page that says why a form changed nothing, by the endpoint that takes the form: links cannot lead there."""

NOT_LET_IN = "You may not see this page."
YEAR = 365 * 86_400
POLICY = "; ".join(
    (
        "default-src 'none'",
        *(f"{each} 'self'" for each in ("style-src", "script-src", "img-src", "connect-src", "form-action")),
        *("base-uri 'none'", "frame-ancestors 'none'"),
    )
)

TEMPLATES = templates_of(__package__)
TEMPLATES.filters |= {
    "axis": axis,
    "iso": iso,
    "number": number,
    "quoted": quoted,
    "rate": rate,
    "sent": encode_field,
    "share": share,
    "utc": utc,
}
translated: partial[str] = partial(translated_by, __package__)


def phrase_in(language: Language, text: str) -> str:
    """``text`` in ``language``, with the phrases in it; as HTML if it has a time, so that a browser shows it in its own
    zone, as all other times."""
    if isinstance(text, LocalTime):
        return Markup('<time datetime="{}">{}</time>').format(iso(text.at), utc(text.at))
    if not isinstance(text, Phrase):
        return translated(language, text)
    values = {name: _value_in(language, name, value) for name, value in text.values.items()}
    if any(isinstance(value, Markup) for value in values.values()):
        return escape(translated(language, text.template)).format(**values)
    return translated(language, text.template, **values)


def _value_in(language: Language, name: str, value: str) -> str:
    if isinstance(value, Phrase):
        return phrase_in(language, value)
    return measure_in(__package__, language, value) if name.endswith("time") else value


def rule_in(language: Language, text: str) -> str:
    """The text of a rule in ``language``: ``100 per minute``, ``5 at once``. That of a calendar stays."""
    found = _RULE.fullmatch(text)
    if found is None:
        return text
    n = number(int(found[1]))
    if found[2] is None:
        return translated(language, "{n} at once", n=n)
    return translated(language, "{n} per {time}", n=n, time=measure_in(__package__, language, found[2]))


def _window_in(language: Language, text: str) -> str:
    """A window in ``language``: ``60 s``. The period of a calendar stays."""
    return measure_in(__package__, language, text) if text[:1].isdigit() else text


_RULE = re.compile("([0-9]+) (?:per (?!calendar )(.+)|at once)")


def render(template: str, *, status: int = 200, **values: Any) -> Response:
    """The page of ``template`` with ``values``, for the current visit."""
    page = visible_page(TEMPLATES.get_template(template).render(**_frame(), **values))
    return Response(page, status, content_type="text/html; charset=utf-8")


def refusal_page(error: HTTPException) -> Response:
    """The response to a visit that ends with ``error``, or else the one that ``authorize`` made. A stranger learns
    nothing about the app."""
    if error.response is not None or "multilimit_visit" not in g:
        return cast("Response", error.get_response())
    why = error.description if error.description != type(error).description else NOT_LET_IN
    shown = translated(visit().language, str(why))
    if _page().startswith("api"):
        response = json_response({"error": str(why)})
    elif visit().author:
        response = render("refused.html", title=error.name, why=shown)
    else:
        response = _bare(error.name, shown)
    response.status_code = error.code or 403
    retry_after = getattr(error, "retry_after", None)
    if retry_after is not None:
        response.headers["Retry-After"] = str(retry_after)
    return response


def complete(response: Response) -> Response:
    """Let browsers keep what we need for the next page."""
    response = own_copy(response)  # the app may have answered in place of a page
    if is_file() and response.status_code in {200, 206, 304}:
        response.cache_control.no_cache = None  # Flask sets it
        response.cache_control.max_age = YEAR  # its address has its version
        return response
    response.vary.add("Cookie")
    if "multilimit_visit" in g:
        keep_nonce(response, root())
        if (language := request.args.get("lang")) in LANGUAGES:
            keep_cookie(response, LANGUAGE, language, root(), YEAR)
        if visit().author:
            remember_browser(response, root())
    return response


def is_file() -> bool:
    """Whether the request is for a file that everybody can download with the package."""
    return _page() == "static"


def _page() -> str:
    """The endpoint of the request, without the name of the blueprint."""
    return (request.endpoint or "").rpartition(".")[2]


def _bare(title: str, why: str) -> Response:
    """A page that says nothing else, neither about the app nor about the dashboard."""
    page = Markup('<!doctype html><html lang="{}"><meta charset="utf-8"><title>{}</title><p>{}</p>').format(
        "zh-Hans" if visit().language == "zh" else "en", title, why
    )
    return Response(page, content_type="text/html; charset=utf-8")


def _frame() -> dict[str, Any]:
    visitor, page = visit(), _page()
    page = _PAGE_OF_FORM.get(page, page)
    return {
        "app_name": current_app.name,
        "as_json": url(f"api_{page}", **{**request.args.to_dict(), "lang": None, "done": None, "undone": None}),
        "banners": [translated(visitor.language, text) for text in _banners()],
        "here": lambda **changed: url(page, **{**request.args.to_dict(), "lang": None, **changed}),
        "in_language": lambda code: url(page, **{**request.args.to_dict(), "lang": code}),
        "lang": visitor.language,
        "languages": LANGUAGES,
        "page": page,
        "pages": PAGES,
        "static": _static,
        "duration": partial(duration_in, __package__, visitor.language),
        "token_fields": _token_fields,
        "can_sign": can_sign,
        "health": storage_state(gate_in_force()),
        "rule_text": partial(rule_in, visitor.language),
        "say": partial(phrase_in, visitor.language),
        "t": partial(translated, visitor.language),
        "url": url,
        "visit": visitor,
        "window_text": partial(_window_in, visitor.language),
    }


def root() -> str:
    """The path where all our pages begin."""
    return url("now")


def _token_fields() -> Markup:
    """The fields that each form needs: ours, and that of Flask-WTF's ``CSRFProtect``, if the app has one."""
    tokens = [(FIELD, form_token())]
    make = current_app.jinja_env.globals.get("csrf_token")
    if "csrf" in current_app.extensions and callable(make):
        tokens.append((current_app.config.get("WTF_CSRF_FIELD_NAME", "csrf_token"), make()))
    return Markup("").join(Markup('<input type="hidden" name="{}" value="{}">').format(*each) for each in tokens)


def _banners() -> list[str]:
    """Warnings that every page shows."""
    settings, found = gate_in_force().settings, []
    if visit().unprotected:
        found.append("Debug mode: anyone on this machine may see and change this. Pass authorize= to Dashboard.")
    if not settings.enabled:
        found.append(f"{PREFIX}ENABLED is False: nothing is limited.")
    elif not can_sign():
        found.append("SECRET_KEY is not set, so nothing can be changed here: forged forms could not be recognised.")
    return found


def url(name: str, /, **query: Any) -> str:
    """The address of one of our pages. Flask does not make the query, because it uses some names as options."""
    given = {key: value for key, value in query.items() if value is not None}
    return current_app.url_for(f".{name}") + (f"?{urlencode(given, errors='replace')}" if given else "")


def _static(name: str) -> str:
    """The address of one of our files. It differs when the file has changed."""
    return current_app.url_for(".static", filename=name, v=version_of(STATIC[name]))


def version_of(content: bytes) -> str:
    return blake2b(content, digest_size=6).hexdigest()


STATIC: Mapping[str, bytes] = {each.name: each.read_bytes() for each in files(__package__).joinpath("static").iterdir()}
"""Our files by their names. They may be in an archive, where Flask finds none."""
