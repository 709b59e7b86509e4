"""Adds header fields, if they are enabled."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING

from flask import Response
from werkzeug.http import http_date, parse_date

from .constants import HeaderNames
from .settings import Settings

if TYPE_CHECKING:
    from .requests import RequestLimit


def add_headers(response: Response, shown: RequestLimit, settings: Settings) -> None:
    """Add header fields about ``shown``. A ``Retry-After`` that the view has set is never made earlier."""
    names, headers = settings.header_names, response.headers
    window = shown.window
    reset_at = int(window.reset_time + 1)
    headers.add(names[HeaderNames.LIMIT], str(shown.limit.amount))
    headers.add(names[HeaderNames.REMAINING], str(window.remaining))
    headers.add(names[HeaderNames.RESET], str(reset_at))
    now = time.time()
    retry_at = max((reset_at, *(_retry_at(given, now) for given in headers.getlist("Retry-After"))))
    value = http_date(retry_at) if settings.retry_after == "http-date" else str(int(retry_at - now))
    headers.set(names[HeaderNames.RETRY_AFTER], value)


def _retry_at(given: str, now: float) -> int:
    """The end of an existing ``Retry-After``; 0 if it makes no sense."""
    date: datetime | None = parse_date(given)
    if date is not None:
        return int(date.timestamp())
    return int(now + int(given)) if given.isdecimal() else 0
