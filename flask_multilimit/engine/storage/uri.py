"""Storage URIs: what is wrong with one, before anybody connects, and how one is shown without its secrets."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit


class MalformedError(ValueError):
    """A URI that cannot be meant; the text quotes nothing that is secret."""


def redacted(url: str) -> str:
    """``url``, however malformed, without user and password, nor what follows the address, where one may be, too."""
    credentials, at, address = url.rpartition("@")
    scheme, separator, _ = credentials.partition("://")
    if "?" in credentials:  # of a password, or the "@" is one among the options
        address = ""
    shown = (f"{scheme}://***@{address}" if separator else f"***@{address}") if at else url
    return re.split("[?#]", shown)[0]


def why_malformed(url: str, error: Exception) -> str:
    """What redis-py says is wrong, which may quote a part of the password."""
    if isinstance(error, MalformedError) or not ("@" in url or "password" in url):
        return str(error)
    return "malformed; special characters of user and password must be percent-encoded"


def check_database(url: str) -> None:
    """Raise ``ValueError`` for a database that is no number: redis-py would take 0."""
    parts = urlsplit(url)
    if parts.scheme != "unix" and not re.fullmatch(r"/?[0-9]*", parts.path):
        raise ValueError(f"the database must be a number, got {parts.path[1:]!r}")


def check_files(options: Mapping[str, Any]) -> None:
    """Raise :class:`MalformedError` for certificates that cannot be read: in a connection's error it would look as if
    the server were at fault."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authorities = options.get("ssl_ca_certs"), options.get("ssl_ca_path")
    own = options.get("ssl_certfile"), options.get("ssl_keyfile")
    if any(authorities):
        _load("ssl_ca_certs, ssl_ca_path", authorities, context.load_verify_locations)
    if own[1] and not own[0]:
        raise MalformedError("ssl_keyfile is the key to a certificate: give ssl_certfile, too")
    if own[0]:  # a password, even a wrong one, or OpenSSL would ask at the terminal
        _load("ssl_certfile, ssl_keyfile", (*own, options.get("ssl_password") or ""), context.load_cert_chain)


def _load(names: str, given: tuple[Any, ...], load: Any) -> None:
    try:
        load(*given)
    except OSError as error:  # as are those of TLS
        shown = ", ".join(repr(path) for path in given[:2] if path)
        raise MalformedError(f"{names}: {shown} cannot be used: {error.strerror or error}") from None
