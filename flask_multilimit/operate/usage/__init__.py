"""The answers to customers: JSON, its schema, and a page that shows the same."""

from __future__ import annotations

import re
from functools import cache, partial
from typing import Any, NamedTuple
from urllib.parse import urlencode

from flask import Response, request, url_for
from pydantic import TypeAdapter

from ...engine.periods import instant, zone_named
from ...engine.text import LONGEST_PREFERENCE, visible_page
from ...insight.usage import Quota, Quotas
from ...insight.values import as_json
from ...serve.gate import gate_in_force
from ...serve.headers import own_copy
from ..blueprints import LANGUAGES, duration_in, hash_source, json_response, language_of, templates_of, translated

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
RELATIVE_SECONDS = 2 * 3600
"""A period that ends sooner is shown with the time until then."""
_JSON, _HTML = "application/json", "text/html"

TEMPLATES = templates_of(__package__)


def answer(quotas: Quotas) -> Response:
    """The response in the form that the client prefers, or else JSON."""
    if _prefers_page():
        return Response(_page(quotas), content_type="text/html; charset=utf-8")
    response = json_response(as_json(quotas))
    place = request.view_args or {}  # the app may serve it at "/<customer>/limits", or at a subdomain of each
    response.headers["Link"] = f'<{url_for(".schema", **place)}>; rel="describedby"'
    return response


def schema(**_: object) -> Response:
    """The JSON schema of the answer."""
    return json_response(_schema(), "application/schema+json")


def vary(response: Response) -> Response:
    """Say what the answer depends on."""
    response = own_copy(response)  # the app may have answered in place of a page
    response.vary.update(("Accept", "Accept-Language", "Cookie", "Authorization"))
    return response


def _prefers_page() -> bool:
    if len(request.headers.get("Accept", "")) > LONGEST_PREFERENCE:
        return False
    return request.accept_mimetypes.best_match([_JSON, _HTML], _JSON) == _HTML


def _page(quotas: Quotas) -> str:
    language = language_of(request, gate_in_force().settings.locale)
    used, unused = list[Quota](), list[Quota]()
    for each in quotas.resources.values():
        if each.used != 0 or each.retry_after != 0:
            used.append(each)
        else:
            unused.append(each)
    page = TEMPLATES.get_template("usage.html").render(
        quotas=quotas,
        used=used,
        unused=unused,
        lang=language,
        languages=LANGUAGES,
        in_language=_in_language,
        t=partial(translated, __package__, language),
        duration=partial(duration_in, __package__, language),
        day=_day,
    )
    return visible_page(page)


def _in_language(code: str) -> str:
    """The query of the same page in another language. What else is in it may say who asks."""
    others = [(name, value) for name, value in request.args.items(multi=True) if name != "lang"]
    return f"?{urlencode([*others, ('lang', code)], errors='replace')}"


class Day(NamedTuple):
    """An instant as the clocks of a time zone show it."""

    iso: str
    year: int | None
    """``None``: the next such day."""
    month: str
    day: int
    time: str
    zone: str


def _day(quota: Quota) -> Day | None:
    """The day on which the period of a calendar ends; ``None`` if it ends soon, or has no calendar."""
    if quota.timezone is None or quota.reset_after < RELATIVE_SECONDS:
        return None
    zone = zone_named(quota.timezone)
    at = instant(quota.reset).astimezone(zone)
    now = instant(quota.reset - quota.reset_after).astimezone(zone)
    year = None if at.year == now.year else at.year
    named, iso = quota.timezone.rpartition("/")[2].replace("_", " "), at.isoformat()
    if named.startswith("GMT"):  # the sign in the name of Etc/GMT+5, which is west of Greenwich, is the opposite
        named = f"UTC{iso[-6:]}"
    return Day(iso, year, MONTHS[at.month - 1], at.day, at.strftime("%H:%M"), named)


@cache
def _schema() -> dict[str, Any]:
    made = TypeAdapter(Quotas).json_schema(mode="serialization", by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


@cache
def policy() -> str:
    """No script, no request; the styles are those of the template, which its hash allows."""
    source, _, _ = TEMPLATES.loader.get_source(TEMPLATES, "usage.html")  # type: ignore[union-attr]
    styles = re.findall("<style>([^<]*)</style>", source)
    hashes = " ".join(map(hash_source, styles))
    nothing = "; ".join(f"{each} 'none'" for each in ("default-src", "base-uri", "form-action", "frame-ancestors"))
    return f"{nothing}; style-src {hashes}; img-src data:"
