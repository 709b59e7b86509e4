"""Who visits a page, and what they may do, found out once per request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, cast

from flask import current_app, g, request
from flask.sansio.app import App
from werkzeug.exceptions import Forbidden, HTTPException

from ...declare.limiter import check_callable
from ...engine import ConfigurationError
from ...engine.storage.addresses import host_and_port
from ...serve.gate import gate_in_force
from ..blueprints import Language, language_of
from .throttle import LANGUAGE, count_rejected_visit, require_few_guesses

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
    """``""`` if the visitor was not let in."""
    may_change: bool
    language: Language
    unprotected: bool = False
    """Whether there is no ``authorize``: in debug mode, on this machine."""


def visit() -> Visit:
    """The visit of the current request."""
    return cast("Visit", g.multilimit_visit)


class Authenticator:
    """Finds out who makes a request, and lets nobody else in."""

    def __init__(
        self, authorize: Authorize | None, may_change: MayChange | None, *, serves: Callable[[App], None]
    ) -> None:
        if authorize is not None:
            check_callable("authorize", authorize)
        if may_change is not None:
            check_callable("may_change", may_change, "the author")
        self._authorize = authorize
        self._may_change = may_change
        self._serves = serves

    def require_authorize(self, app: App) -> None:
        """Raise :class:`ConfigurationError` if everybody could change limits."""
        if self._authorize is None and not app.debug:
            raise ConfigurationError(
                "Dashboard: give authorize=, a callable that returns the name of the visitor, or None; without it "
                "the dashboard works in debug mode only, as under `flask run --debug`, and on this machine"
            )

    def begin_visit(self) -> None:
        """Raise :exc:`Forbidden` for nobody, and what ``authorize`` raises."""
        self._serves(current_app._get_current_object())  # type: ignore[attr-defined]
        language = language_of(request, gate_in_force().settings.locale, before=request.cookies.get(LANGUAGE))
        g.multilimit_visit = Visit("", may_change=False, language=language)
        author = self._developer() if self._authorize is None else self._asked(self._authorize)
        may_change = bool(current_app.secret_key) and (self._may_change is None or bool(self._may_change(author)))
        g.multilimit_visit = Visit(author, may_change, language, unprotected=self._authorize is None)

    def _developer(self) -> str:
        if not (current_app.debug and _is_from_this_machine()):
            raise Forbidden
        return DEVELOPER

    def _asked(self, authorize: Authorize) -> str:
        require_few_guesses()
        try:
            author = _name_from(authorize())
        except HTTPException as error:
            if error.code in {401, 403}:
                count_rejected_visit()
            raise
        if author is None:
            count_rejected_visit()
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
    """Whether the request comes from a browser on this machine, and to a name of this machine: other sites can make
    their own names point here, and tunnels bring requests of others."""
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
