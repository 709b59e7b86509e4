"""Who asks for a page, and what they may do: known once a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, cast

from flask import abort, current_app, g, request
from flask.sansio.app import App

from ...declare.limiter import check_callable
from ...engine import ConfigurationError
from ...serve.gate import AppGate, gate_of
from .messages import Language, language_of

Authorize = Callable[[], "str | None"]
"""Returns the name of who asks, ``None`` for nobody."""
MayChange = Callable[[str], bool]
"""Whether who has this name may change limits and lists."""

DEVELOPER = "developer"
"""Who asks from this machine, where nobody authorizes."""
LONGEST_NAME = 200
_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip")
"""Header fields by which a request shows that it came over a proxy, so not from this machine."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of one person."""

    author: str
    may_change: bool
    language: Language
    unprotected: bool
    """Whether nobody authorizes: in debug mode, on this machine."""


class Desk:
    """Lets people in, or not."""

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
        """Raise :class:`ConfigurationError` where everybody could change limits."""
        if self._authorize is None and not app.debug:
            raise ConfigurationError(
                "Dashboard: give authorize=, a callable that returns the name of who may see it, or None; without it "
                "the dashboard works in debug mode only, as under `flask run --debug`, and on this machine"
            )

    def receive(self) -> Visit:
        """Who makes the current request. Aborts it with 403 for nobody."""
        self._serves(current_app._get_current_object())  # type: ignore[attr-defined]
        if self._authorize is None:
            author = DEVELOPER if current_app.debug and _is_from_here() else None
        else:
            author = _named(self._authorize())
        if author is None:
            abort(403)
        may_change = self._may_change is None or bool(self._may_change(author))
        visit = Visit(author, may_change, language_of(request, gate().settings.locale), self._authorize is None)
        g.multilimit_visit = visit
        return visit


def visit() -> Visit:
    """That of the current request."""
    return cast("Visit", g.multilimit_visit)


def gate() -> AppGate:
    """That of the current app."""
    return gate_of(current_app)


def _named(author: Any) -> str | None:
    if author is None or author == "":
        return None
    if not isinstance(author, str) or len(author) > LONGEST_NAME:
        raise ConfigurationError(
            f"Dashboard: authorize returned {author!r:.80}: return a name of at most {LONGEST_NAME} characters, or None"
        )
    return author


def _is_from_here() -> bool:
    """Whether a browser on this machine asks, by a name of this machine: a page elsewhere may have its own name lead
    here, and a tunnel brings others' requests."""
    if any(name in request.headers for name in _FORWARDED):
        return False
    return _is_loopback(request.remote_addr or "") and _is_loopback(_host_of(request.host))


def _host_of(host: str) -> str:
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
