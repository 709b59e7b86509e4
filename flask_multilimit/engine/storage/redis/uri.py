"""Makes the client for a storage URI, and finds mistakes in the URI before any connection is made."""

from __future__ import annotations

import re
from codecs import lookup_error
from contextlib import suppress
from difflib import get_close_matches
from inspect import signature
from typing import Any
from urllib.parse import parse_qs, urlsplit

import redis
from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import SSLConnection
from redis.exceptions import RedisError
from redis.retry import Retry

from ...errors import ConfigurationError
from ..addresses import MalformedError, check_address, redacted, shown_storage
from .connections import SENTINEL_SCHEMES, TIMED_CONNECTIONS, Deadline, TimedTlsConnection

_DRIVER: dict[str, Any] = {}
"""Options that tell redis-py its own version. Otherwise, it looks that up on disk for each connection, which takes
milliseconds. It sends the version to the server, on which twemproxy hangs up; but without this greeting, redis-py does
not read what a server with TLS 1.3, or a full one, sends first, and takes the connection for broken."""
try:
    from redis.driver_info import DriverInfo
except ImportError:  # older versions look once, when they are imported
    pass
else:
    _DRIVER["driver_info"] = DriverInfo(lib_version=redis.__version__)


def address_of(client: Any) -> str:
    """The address of the server of a client object, without user and password; empty if it is not known."""
    options = getattr(getattr(client, "connection_pool", None), "connection_kwargs", {})
    if place := options.get("primary") or options.get("local_server"):
        return str(place)
    place = f"unix://{options['path']}" if options.get("path") else ""
    if options.get("host"):
        place = f"{options['host']}:{options.get('port', 6379)}"
    return place and f"{place}, database {options.get('db') or 0}"


def timed_client(url: str, deadline: Deadline, *, given: str = "", **kind: Any) -> Redis:
    """A client that keeps ``deadline`` and does not retry. Raises :class:`ConfigurationError`, which shows ``url``, or
    the URI that the user has ``given`` in its place. ``kind``: options of its pool, such as a ``connection_class``."""
    common: dict[str, Any] = {"protocol": 2, "retry": Retry(NoBackoff(), 0), "health_check_interval": 0}
    if "lib_" not in url:
        common |= _DRIVER
    scheme = url.partition(":")[0]
    try:
        _check_credentials(url)
        _check_names(url)
        if scheme not in {*SENTINEL_SCHEMES, *TIMED_CONNECTIONS}:
            raise ValueError(f"its scheme must be one of {', '.join(TIMED_CONNECTIONS)}")
        if scheme in SENTINEL_SCHEMES:
            from .sentinel import to_primary  # noqa: PLC0415 - with its threads; most URIs name a server

            plain, kind = to_primary(url, **common)
        else:
            _check_address_in(url)
            plain, kind = url, kind or {"connection_class": TIMED_CONNECTIONS[scheme]}
        time_outs = {"socket_timeout": deadline.seconds, "socket_connect_timeout": deadline.seconds}
        client = Redis.from_url(plain, deadline=deadline, **time_outs, **common, **kind)
        pool = client.connection_pool
        _check_database(plain)
        _check_options(pool.connection_class(**pool.connection_kwargs))
    except (ValueError, TypeError, RedisError) as error:
        raise ConfigurationError(f"storage URI {shown_storage(given or url)}: {_why_malformed(url, error)}") from None
    return client


def _why_malformed(url: str, error: Exception) -> str:
    """What is wrong with ``url``, without secrets: the error of redis-py may quote a part of the password."""
    unknown = re.search(_UNKNOWN_OPTION, str(error))
    if unknown:
        kind = TIMED_CONNECTIONS[re.split("[+:]", url)[0]]
        return _unknown_option(unknown[1], kind, "one of the options" if _may_hold_secrets(url) else unknown[1])
    if isinstance(error, MalformedError) or not _may_hold_secrets(url):
        return str(error)
    return "malformed; special characters in user and password must be percent-encoded"


_UNKNOWN_OPTION = "unexpected keyword argument '([^']*)'"
"""Python's message about an option that no connection of redis-py takes."""


def _may_hold_secrets(text: str) -> bool:
    return "@" in text or "password" in text or "***" in redacted(text)


def _unknown_option(name: str, kind: type[Any], shown: str) -> str:
    if name.startswith("ssl") and not issubclass(kind, SSLConnection):
        return "options that begin with ssl are those of TLS: rediss://"
    makers = [vars(each)["__init__"] for each in kind.__mro__ if "__init__" in vars(each)]
    known = {option for maker in makers for option in signature(maker).parameters}
    nearest = get_close_matches(name, known | {"max_connections"}, n=1)
    return f"{shown} is not an option of a connection" + (f"; did you mean {nearest[0]}?" if nearest else "")


def _check_credentials(url: str) -> None:
    """Raise :class:`MalformedError` for a URI in which a piece of the password may be in another part."""
    authority, *rest = re.split("[/?#]", url.partition("://")[2], maxsplit=1)
    if "@" in authority and "@" in "".join(rest):
        raise MalformedError("there is one @ too many: percent-encode special characters in passwords and options")


def _check_names(url: str) -> None:
    """Raise :class:`MalformedError` for options whose text redis-py would use as an object, in each request."""
    names = parse_qs(url.partition("?")[2]).keys() & _OBJECTS
    if names:
        raise MalformedError(f"{min(names)} is not possible with a URI: give a client object of redis")


_OBJECTS = {
    *("cache_config", "command_packer", "credential_provider", "deadline", "event_dispatcher", "redis_connect_func"),
    *("maint_notifications_config", "retry", "socket_keepalive_options", "socket_type"),
}


def _check_address_in(url: str) -> None:
    """Raise :class:`MalformedError` unless the address is that of one server. redis-py would connect to another one."""
    scheme, _, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    host = authority.rpartition("@")[2]
    if scheme == "unix" and host:
        raise MalformedError("the path of a socket begins with a slash: unix:///run/redis.sock")
    if scheme != "unix" and "," in host:
        raise MalformedError("write several servers as redis+cluster://host,host or redis+sentinel://host,host/service")
    # An "@" further on belongs to a password that contains a "/": then this is not the host.
    if scheme != "unix" and ("@" in authority or "@" not in rest):
        check_address(host)


def _check_database(url: str) -> None:
    """Raise ``ValueError`` if the database is not a number. redis-py would use 0."""
    parts = urlsplit(url)
    if parts.scheme != "unix" and not re.fullmatch(r"/?[0-9]*", parts.path):
        raise ValueError(f"the database must be a number, got {parts.path[1:]!r}")


def _check_options(connection: Any) -> None:
    """Raise :class:`MalformedError` for options with which every connection would fail. Does not connect."""
    if any(getattr(connection, name, None) for name in ("ssl_validate_ocsp", "ssl_validate_ocsp_stapled")):
        raise MalformedError("OCSP is not possible with a URI: give a client object of redis")
    if not _can_read(connection.encoder):
        raise MalformedError(_UNREADABLE)
    if isinstance(connection, TimedTlsConnection):
        try:
            connection.context()
        except OSError as error:
            raise MalformedError(str(error)) from None


_UNREADABLE = "replies cannot be read in this encoding: leave out encoding and encoding_errors"


def check_client(client: Any) -> None:
    """Raise :class:`ConfigurationError` if a client object has an unknown option, or cannot read replies. Does not
    connect."""
    pool: Any = getattr(client, "connection_pool", None)
    make = getattr(type(pool), "make_connection", None)
    if getattr(make, "__module__", "").startswith("redis."):  # a pool of one's own may give connections other options
        kind = pool.connection_class
        try:
            kind(**pool.connection_kwargs)
        except Exception as error:  # what else is wrong shows at checks, which may do without the server
            if unknown := re.search(_UNKNOWN_OPTION, str(error)):
                reason = _unknown_option(unknown[1], kind, unknown[1])
                raise ConfigurationError(f"client={shown_storage(client)}: {reason}") from None
    encoder = getattr(client, "get_encoder", None)
    if encoder is not None and not _can_read(encoder()):
        raise ConfigurationError(f"client={shown_storage(client)}: {_UNREADABLE}")


def _can_read(encoder: Any) -> bool:
    """Whether replies of a server, with texts of ours in UTF-8, can be read."""
    with suppress(LookupError, UnicodeError):
        lookup_error(encoder.encoding_errors)
        return encoder.decode("é".encode()) in {"é", "é".encode()}
    return False
