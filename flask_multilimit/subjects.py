"""Who shares a quota: the type of a limiter, resolved to a subject for this request."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, NamedTuple
from uuid import UUID

from flask import Flask, request

from .engine import ConfigurationError


class LimitType(str, Enum):
    """Who shares the quota of a limiter."""

    DEFAULT = "default"
    """Everyone: one quota for all."""
    GLOBAL = "default"
    """Another name for ``DEFAULT``."""
    IP = "ip"
    """Requests of one client address: ``request.remote_addr`` and nothing a client could make up. IPv6 addresses
    of one network (/64 unless ``MULTILIMIT_IPV6_PREFIX`` says else) count as one, an IPv4-mapped one as IPv4."""
    USER = "user"
    """Requests of one user: what ``user_loader`` returns, or flask-login's current user."""


UserLoader = Callable[[], Any]
"""Returns the id of the current request's user, ``None`` for nobody."""

SubjectType = LimitType | Callable[[], str | int | UUID | None]
"""A :class:`LimitType`, or a callable of one's own. ``None`` says: this limiter does not apply."""

ANONYMOUS = "anonymous"
RESERVED_NAMES = frozenset({*(kind.value for kind in LimitType), "global", ANONYMOUS})
"""What a type of one's own cannot be called."""


class Subject(NamedTuple):
    """The resolved value of a type."""

    kind: str
    """How a key names the type."""
    value: str


EVERYONE = Subject(LimitType.DEFAULT.value, "")


class Subjects:
    """Resolves types to subjects for the current request of one app."""

    def __init__(
        self,
        app: Flask,
        *,
        ipv6_prefix: int,
        anonymous_user: str,
        find_user_loader: Callable[[], UserLoader | None],
    ) -> None:
        self._app = app
        self._ipv6_prefix = ipv6_prefix
        self._anonymous_user = anonymous_user
        self._find_user_loader = find_user_loader

    def resolve(self, type_: SubjectType, name: str | None) -> Subject | None:
        if type_ is LimitType.DEFAULT:
            return EVERYONE
        if type_ is LimitType.IP:
            return Subject("ip", self._address())
        if type_ is LimitType.USER:
            return self._user()
        value = type_()  # type: ignore[operator]  # a LimitType has been dealt with
        return None if value is None else Subject(str(name), _text(value, f"the type {name!r}"))

    def require_users(self, where: str) -> None:
        """Raise :class:`ConfigurationError` unless there is a way to know the user."""
        if self._find_user_loader() is None and not hasattr(self._app, "login_manager"):
            raise ConfigurationError(
                f'limiter on "{where}": type=LimitType.USER needs to know the user; pass user_loader= to MultiLimit, '
                "decorate a function with @multilimit.user_loader, or set up flask-login"
            )

    def _address(self) -> str:
        return network_of(request.remote_addr or "", self._ipv6_prefix)

    def _user(self) -> Subject:
        load = self._find_user_loader() or _flask_login_user
        value = load()
        if value is not None and value != "":
            return Subject("user", _text(value, "user_loader"))
        return Subject(ANONYMOUS, self._address() if self._anonymous_user == "ip" else "")


def _flask_login_user() -> Any:
    from flask_login import current_user  # noqa: PLC0415 - optional: there when app.login_manager is

    return current_user.get_id() if current_user.is_authenticated else None


def _text(value: object, source: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (int, UUID)) and not isinstance(value, bool):
        return str(value)
    # Another object's text may differ at every request: a limit that never refuses.
    raise ConfigurationError(f"{source} returned {value!r:.80}: return a str, an int, a UUID, or None")


@lru_cache(maxsize=4096)
def network_of(address: str, ipv6_prefix: int) -> str:
    """The client that ``address`` stands for, spelled in one way: an IPv4 address, or a network of IPv6.

    What is no address (a unix socket's peer, say) stays as it is: one subject.
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ip_network((parsed, ipv6_prefix), strict=False))
