"""TLS contexts, each created once: loading the CAs of a machine can take longer than a whole check may.

redis-py creates one for each connection.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The TLS options of redis-py that a URI can have, without their ``ssl_``."""

    cert_reqs: ssl.VerifyMode
    check_hostname: bool
    ca_certs: str | None
    ca_path: str | None
    ca_data: str | None
    certfile: str | None
    keyfile: str | None
    password: str | None = field(repr=False)
    min_version: Any
    ciphers: str | None

    @classmethod
    def of(cls, connection: Any) -> TlsOptions:
        """The options as a connection of redis-py understands them."""
        return cls(
            cert_reqs=connection.cert_reqs,
            check_hostname=connection.check_hostname and connection.cert_reqs != ssl.CERT_NONE,
            ca_certs=connection.ca_certs,
            ca_path=connection.ca_path,
            ca_data=connection.ca_data,
            certfile=connection.certfile,
            keyfile=connection.keyfile,
            password=connection.certificate_password,
            min_version=getattr(connection, "ssl_min_version", None),  # from redis-py 5.1 on
            ciphers=getattr(connection, "ssl_ciphers", None),
        )

    def context(self) -> ssl.SSLContext:
        """The context. It is created again if a file was replaced, because certificates expire. Raises ``OSError`` that
        names the file."""
        files = (self.ca_certs, self.certfile, self.keyfile)
        return _context(self, tuple(_changed_at(file) for file in files if file))


def _changed_at(file: str) -> int:
    return Path(file).stat().st_mtime_ns if Path(file).exists() else 0


@lru_cache(maxsize=32)
def _context(options: TlsOptions, _: tuple[int, ...]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = options.check_hostname
    context.verify_mode = options.cert_reqs
    authorities = options.ca_certs, options.ca_path, options.ca_data
    if any(authorities):
        _load("ssl_ca_certs, ssl_ca_path", authorities, context.load_verify_locations)
    if options.certfile or options.keyfile:  # a password, even a wrong one, or OpenSSL would ask at the terminal
        own = options.certfile or "", options.keyfile, options.password or ""
        _load("ssl_certfile, ssl_keyfile", own, context.load_cert_chain)
    if options.min_version is not None:
        context.minimum_version = options.min_version
    if options.ciphers:
        context.set_ciphers(options.ciphers)
    return context


def _load(names: str, given: tuple[Any, ...], load: Callable[..., object]) -> None:
    try:
        load(*given)
    except OSError as error:  # as are those of TLS
        shown = ", ".join(repr(path) for path in given[:2] if path)
        raise OSError(f"{names}: {shown} cannot be used: {error.strerror or error}") from error
