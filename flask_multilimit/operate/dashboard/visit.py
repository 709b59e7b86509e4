"""Who visits a page, and what they may do, found out once per request; and how often strangers may try.

Strangers cannot lock an operator out. Visits without credentials are counted apart from guesses; a browser that was let
in before is counted by itself, whatever others guess from the same address.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Literal, cast

from flask import Response, current_app, g, request
from flask.sansio.app import App
from itsdangerous import BadData, URLSafeTimedSerializer
from werkzeug.exceptions import Forbidden, HTTPException, TooManyRequests

from ...declare.limiter import check_callable
from ...declare.subjects import LimitType
from ...engine import ConfigurationError, Decision, StorageError, hits_for
from ...engine.hits import Hits
from ...engine.storage.addresses import host_and_port
from ...serve.gate import gate_in_force
from ..blueprints import Language, language_of

Authorize = Callable[[], "str | None"]
"""Returns the name of the visitor; ``None`` to let nobody in."""
MayChange = Callable[[str], bool]
"""Whether the person with this name may change limits and lists."""

DEVELOPER = "developer"
"""The name of a visitor from this machine if there is no ``authorize``."""
LONGEST_NAME = 200
_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip")
"""Header fields that show that a request came through a proxy, so not from this machine."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of one person."""

    author: str
    """The name of the person; ``""`` if they were not let in."""
    may_change: bool
    language: Language
    unprotected: bool = False
    """Whether there is no ``authorize``: in debug mode, on this machine."""


def visit() -> Visit:
    """The visit of the current request."""
    return cast("Visit", g.multilimit_visit)


class Authenticator:
    """Finds out who makes a request, and lets nobody else in."""

    def __init__(self, authorize: Authorize | None, may_change: MayChange | None) -> None:
        if authorize is not None:
            check_callable("authorize", authorize)
        if may_change is not None:
            check_callable("may_change", may_change, "the author")
        self._authorize = authorize
        self._may_change = may_change

    def require_authorize(self, app: App) -> None:
        """Raise :class:`ConfigurationError` if everybody could change limits."""
        if self._authorize is None and not app.debug:
            raise ConfigurationError(
                "Dashboard: give authorize=, a callable that returns the name of the visitor, or None; without it, the "
                "dashboard works only in debug mode, as under `flask run --debug`, and only on this machine"
            )

    def begin_visit(self) -> None:
        """Find out who visits. Raises :exc:`Forbidden` for a stranger, and what ``authorize`` raises."""
        language = language_of(request, gate_in_force().settings.locale, before=request.cookies.get(LANGUAGE))
        g.multilimit_visit = Visit("", may_change=False, language=language)
        if self._authorize is None and not (current_app.debug and _is_from_this_machine()):
            raise Forbidden
        author = DEVELOPER if self._authorize is None else self._ask(self._authorize)
        may_change = bool(current_app.secret_key) and (self._may_change is None or bool(self._may_change(author)))
        g.multilimit_visit = Visit(author, may_change, language, unprotected=self._authorize is None)

    def _ask(self, authorize: Authorize) -> str:
        with counted_visit():
            author = _name_from(authorize())
            if author is None:
                raise Forbidden
            return author


def _name_from(author: Any) -> str | None:
    if author is None or author == "":
        return None
    if not isinstance(author, str) or len(author) > LONGEST_NAME:
        raise ConfigurationError(
            f"Dashboard: authorize returned {author!r:.80}: return a name of at most {LONGEST_NAME} characters, or None"
        )
    return author


def _is_from_this_machine() -> bool:
    """Whether the request comes from a browser on this machine, and is for a name of this machine: other sites can make
    their own names point here, and tunnels forward requests of others."""
    if any(name in request.headers for name in _FORWARDED):
        return False
    try:
        name, _ = host_and_port(request.host, 80)
    except ValueError:
        return False
    return _is_loopback(request.remote_addr or "") and _is_loopback(name)


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


# How often: limits that nobody can change

REJECTED_VISITS = "10/minute"
"""The limit of rejected visits without credentials from one address. Beyond it, the status is 429; a
visitor whom ``authorize`` accepts is let in all the same."""
GUESSES = "10/minute"
"""The limit of rejected visits with credentials. Beyond it, ``authorize`` is not called."""
CHANGES = "60/minute"
"""The limit of changes by one person."""
UPLOADS = "6/minute"
"""The limit of logs that one person uploads."""
SCOPE = "flask_multilimit.dashboard"

KNOWN_BROWSER = "multilimit_browser"
"""The cookie of a browser that was let in."""
KNOWN_SECONDS = 30 * 86_400
LANGUAGE, FORM = "multilimit_language", "multilimit_form"
"""Our other cookies, which every visitor may have."""

TOO_MANY = "Too many changes in a minute. Nothing was changed; wait a little, and send it again."
TOO_MANY_UPLOADS = "Too many logs in a minute. Wait a little, and send it again."

_ANONYMOUS_FIELDS = re.compile(
    r"accept(-.+)?|b3|cache-control|cdn-loop|cf-(connecting-ip|ipcountry|ray|visitor)|client-ip"
    r"|cloudfront-(forwarded|is|viewer).+|connect-time|connection|content-(length|type)|disguised-host|dnt"
    r"|fly-(client-ip|forwarded.+|region|request-id|trace.+)|forwarded|from|host|if-(modified-since|none-match)"
    r"|keep-alive|max-forwards|origin|pragma|priority|range|referer|save-data|sec-(ch|fetch|gpc|purpose).*|te"
    r"|total-route-time|trace(parent|state)|true-client-ip|upgrade(-insecure-requests)?|user-agent|via"
    r"|was-default-hostname|x-amz(-cf|n-trace)-id|x-appservice-proto|x-arr-(log-id|ssl)|x-b3-.+|x-client-(ip|port)"
    r"|x-cloud-trace-context|x-envoy-.+|x-forwarded-(for|host|port|prefix|proto|scheme|server|ssl|tlsversion)"
    r"|x-original-(forwarded-for|url)|x-real-ip|x-request-(id|start)|x-scheme|x-site-deployment-id"
    r"|x-waws-unencoded-url"
)
"""Header fields that identify nobody: those of browsers, and of proxies and platforms in front of an app."""


@contextmanager
def counted_visit() -> Iterator[None]:
    """Count what ``authorize`` decides in this block. Raises :exc:`TooManyRequests` after too many guesses, and for a
    visitor without credentials who has been rejected too often.

    A visit with credentials counts as a guess until it is let in: otherwise, ``authorize`` would try all guesses that
    arrive together, and all that make it fail.
    """
    kind = _kind_of_visit()
    guess = None if kind == "ip" else _count(_hits_of_visit(kind))
    try:
        yield
    except HTTPException as error:
        if error.code == Forbidden.code and guess is None:  # any other answer may lead to a log-in
            _count(_hits_of_visit(kind))
        raise
    if guess is not None:
        with suppress(StorageError):  # then it counts as a guess for a minute
            gate_in_force().limiter.refund(guess)


def require_few_changes() -> None:
    """Count a change of this person. Raises :exc:`TooManyRequests`."""
    _count(_hits(CHANGES, f"author:{visit().author}"), TOO_MANY)


def require_few_uploads() -> None:
    """Count a log that this person uploads. Raises :exc:`TooManyRequests`."""
    _count(_hits(UPLOADS, f"uploader:{visit().author}"), TOO_MANY_UPLOADS)


def remember_browser(response: Response, path: str) -> None:
    """Give a browser whose visitor was let in a cookie by which it is known from now on."""
    if current_app.secret_key and not _known_browser():
        whose = [visit().author, _address()]  # the same in each new cookie, so that collecting them gains no guesses
        keep_cookie(response, KNOWN_BROWSER, serializer("browser").dumps(whose), path, KNOWN_SECONDS)


def keep_cookie(response: Response, name: str, value: str | bytes, path: str, seconds: int | None = None) -> None:
    """Set one of our cookies. Without ``seconds``, it lives as long as the window."""
    response.set_cookie(
        name, str(value), max_age=seconds, path=path, secure=request.is_secure, httponly=True, samesite="Strict"
    )


def _kind_of_visit() -> Literal["guesser", "fields", "ip"]:
    """What the visit counts as: a guess, if it has anything by which ``authorize`` could know somebody; ``fields``, if
    that is only header fields. Proxies that we do not know add some to all visits, so these are counted apart: visits
    of strangers would keep out those who log in."""
    cookies = set(request.cookies) - {LANGUAGE, FORM, KNOWN_BROWSER}
    if cookies or request.args or request.content_length or "Authorization" in request.headers:
        return "guesser"
    names = {name.lower() for name in request.headers.keys()} - {"cookie"}  # noqa: SIM118 - it iterates over pairs
    return "ip" if all(map(_ANONYMOUS_FIELDS.fullmatch, names)) else "fields"


def _known_browser() -> str:
    """What identifies a browser that was let in before; empty for any other."""
    given = request.cookies.get(KNOWN_BROWSER, "")
    if not (given and current_app.secret_key):
        return ""
    try:
        return str(serializer("browser").loads(given, max_age=KNOWN_SECONDS))
    except BadData:
        return ""


def serializer(purpose: str) -> Any:
    """Signs values that come back from a browser, so that nobody else can make them."""
    keys = [*(current_app.config.get("SECRET_KEY_FALLBACKS") or ()), current_app.secret_key]
    return URLSafeTimedSerializer(keys, salt=f"flask_multilimit.dashboard.{purpose}")


def _hits_of_visit(kind: str) -> Hits:
    if known := _known_browser():
        return _hits(GUESSES, f"browser:{known}")
    return _hits(REJECTED_VISITS if kind == "ip" else GUESSES, f"{kind}:{_address()}")


def _address() -> str:
    subject = gate_in_force().subjects.resolve(LimitType.IP, None)
    return "" if subject is None else subject.value


def _hits(rules: str, subject: str) -> Hits:
    prefix = gate_in_force().settings.key_prefix
    hits = hits_for(rules, scope=SCOPE, subject=subject, prefix=prefix, on_storage_error="local")
    hits.revisable = False  # an override of all endpoints would let strangers guess without end
    return hits


def _count(hits: Hits, why: str | None = None) -> Decision:
    """Count a visit, a change or an upload. Raises :exc:`TooManyRequests`, which says ``why``."""
    decision = gate_in_force().limiter.check(hits)
    if decision.allowed:
        return decision
    raise TooManyRequests(why, retry_after=math.ceil(decision.retry_after))
