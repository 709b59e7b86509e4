"""Storage URIs: what is wrong with one, before anybody connects, and how one is shown without its secrets."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from .deadline import TimedTlsConnection


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


def check_credentials(url: str) -> None:
    """Raise :class:`MalformedError` for a URI of which some part may be the rest of a password."""
    place, *rest = re.split("[/?#]", url.partition("://")[2], maxsplit=1)
    if "@" in place and "@" in "".join(rest):
        raise MalformedError("there is an @ too many: special characters of passwords and options are percent-encoded")


def check_database(url: str) -> None:
    """Raise ``ValueError`` for a database that is no number: redis-py would take 0."""
    parts = urlsplit(url)
    if parts.scheme != "unix" and not re.fullmatch(r"/?[0-9]*", parts.path):
        raise ValueError(f"the database must be a number, got {parts.path[1:]!r}")


def check_options(connection: Any) -> None:
    """Raise :class:`MalformedError` for options that would make an error of each connection: of one not yet made."""
    if any(getattr(connection, name, None) for name in ("ssl_validate_ocsp", "ssl_validate_ocsp_stapled")):
        raise MalformedError("OCSP takes a client object of redis in place of a URI")
    if isinstance(connection, TimedTlsConnection):
        try:
            connection.context()
        except OSError as error:
            raise MalformedError(str(error)) from None
