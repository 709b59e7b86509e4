"""Addresses of servers, and URIs without their secrets."""

from __future__ import annotations

import re
from contextlib import suppress
from types import NoneType
from typing import cast
from urllib.parse import urlsplit

from ..errors import brief

Address = tuple[str, int]
"""Host and port."""

LAST_PORT = 65_535
_HOST_AND_PORT = r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(:(?P<port>.*))?"


class MalformedError(ValueError):
    """An address is malformed. The message contains no secrets."""


def check_address(text: str) -> None:
    """Raise :class:`MalformedError` for ``host``, ``host:port`` or ``[IPv6]:port`` with an invalid port, or with a host
    for which Python would raise ``ValueError`` at each connection."""
    match = re.fullmatch(_HOST_AND_PORT, text)
    port = match["port"] if match else ""
    if port and not (re.fullmatch("[0-9]{1,5}", port) and 1 <= int(port) <= LAST_PORT):
        in_brackets = "; an IPv6 address needs brackets" if text.count(":") > 1 and "[" not in text else ""
        raise MalformedError(f"the port must be a number from 1 to {LAST_PORT}{in_brackets}")
    try:
        (match["host"] if match else "").encode("idna")
    except UnicodeError:
        raise MalformedError("the host has a part that is empty or too long, or an invalid character") from None


def host_and_port(text: str, port: int) -> Address:
    """The host and the port (by default ``port``) in ``host``, ``host:port`` or ``[IPv6]:port``. Raises
    :class:`MalformedError`."""
    check_address(text)
    with suppress(ValueError):
        parts = urlsplit(f"//{text}")
        if parts.hostname and parts.netloc == text:
            return parts.hostname, parts.port or port
    raise MalformedError("an address is host, host:port or [IPv6]:port, and several are separated by commas")


_SHOWN = r"(?:\[[^\[\]]*\]|[^:\[]|:(?=[0-9]{0,5}(?:[,/]|$)))*"
"""An address up to a colon without a port after it: if the host was left out, a password may begin there."""


def redacted(url: str) -> str:
    """``url``, however malformed, without user and password. The part after the address is left out if it may contain
    a password."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    credentials, at, address = rest.rpartition("@")
    if "?" in credentials:  # the "?" is part of a password, or the "@" part of the options
        address = ""
    address = re.split("[?#]", address)[0]
    shown = cast("re.Match[str]", re.match(_SHOWN, address))[0]
    hidden = address[len(shown) :]
    if not re.fullmatch("[A-Za-z0-9+.-]*", scheme):
        scheme = "***"
    return f"{scheme}{separator}{'***@' if at else ''}{shown}{hidden and f'{hidden[0]}***'}"


def shown_storage(given: object) -> str:
    """``given`` as an error about a storage shows it: a URI without its secrets; of an object that may contain a
    password, only the type."""
    if isinstance(given, str):
        return brief(redacted(given))
    is_plain = isinstance(given, (int, float, NoneType, type))
    return brief(given) if is_plain else f"an object of type {type(given).__name__}"
