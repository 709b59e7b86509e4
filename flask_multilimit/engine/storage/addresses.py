"""Addresses, and how a URI is shown without its secrets."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

LAST_PORT = 65_535
_HOST_AND_PORT = r"(\[[^\[\]]*\]|[^:\[\]]*):(?P<port>.*)"


class PortError(ValueError):
    """An address whose port is not a port."""

    def __init__(self, address: str) -> None:
        in_brackets = "; an IPv6 address needs brackets" if address.count(":") > 1 and "[" not in address else ""
        super().__init__(f"the port must be a number from 1 to {LAST_PORT}{in_brackets}")


def check_port(text: str) -> None:
    """Raise :class:`PortError` for ``host:port`` or ``[IPv6]:port`` with an impossible port."""
    match = re.fullmatch(_HOST_AND_PORT, text)
    port = match["port"] if match else ""
    if port and not (re.fullmatch("[0-9]{1,5}", port) and 1 <= int(port) <= LAST_PORT):
        raise PortError(text)


def host_and_port(text: str, port: int) -> tuple[str, int]:
    """The parts of ``host``, ``host:port`` or ``[IPv6]:port``; ``port`` is the default. Raises ``ValueError`` or its
    child :class:`PortError`."""
    check_port(text)
    parts = urlsplit(f"//{text}")
    if not parts.hostname or parts.netloc != text:
        raise ValueError(f"{text!r} is not an address")
    return parts.hostname, parts.port or port


def redacted(url: str) -> str:
    """``url``, however malformed, without user and password. What follows the address is left out if it may contain
    one."""
    credentials, at, address = url.rpartition("@")
    scheme, separator, _ = credentials.partition("://")
    if "?" in credentials:  # it is part of a password, or the "@" is part of the options
        address = ""
    shown = (f"{scheme}://***@{address}" if separator else f"***@{address}") if at else url
    return re.split("[?#]", shown)[0]
