"""Addresses, and how a URI is shown without its secrets."""

from __future__ import annotations

import re
from urllib.parse import urlsplit


def host_and_port(text: str, port: int) -> tuple[str, int]:
    """Of ``host``, ``host:port`` or ``[IPv6]:port``; ``port`` is the default. Raises ``ValueError``."""
    parts = urlsplit(f"//{text}")
    if not parts.hostname or parts.netloc != text:
        raise ValueError(f"{text!r} is no address")
    return parts.hostname, parts.port or port


def redacted(url: str) -> str:
    """``url``, however malformed, without user and password, nor what follows the address, where one may be, too."""
    credentials, at, address = url.rpartition("@")
    scheme, separator, _ = credentials.partition("://")
    if "?" in credentials:  # of a password, or the "@" is one among the options
        address = ""
    shown = (f"{scheme}://***@{address}" if separator else f"***@{address}") if at else url
    return re.split("[?#]", shown)[0]
