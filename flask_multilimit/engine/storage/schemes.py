"""Opens the storage for a URI or a client object of ``redis``.

The modules of a storage are imported when it is opened, so a process does not load those that it does not use.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any, Literal, NamedTuple, cast

from ..errors import ConfigurationError
from .addresses import shown_storage
from .base import Storage, check_timeout, is_storage, load
from .memory import MemoryStorage

DEFAULT_TIMEOUT = 0.1
"""The longest time that connecting may take, and that an answer may take, in seconds."""


class Scheme(NamedTuple):
    """How a URI is opened."""

    open: Callable[[str, float], Storage]
    """Opens the storage of a URI, given the time-out in seconds. Does not connect. Raises
    :class:`ConfigurationError`."""
    address: Literal["required", "optional", "none"] = "required"
    """Whether an address follows the ``://``."""


def _redis(uri: str, timeout: float) -> Storage:
    # redis-py knows no URIs of Valkey, which has the same protocol.
    url = uri.replace("valkey", "redis", 1) if uri.startswith("valkey") else uri
    return cast("Storage", load("RedisStorage").from_url(url, timeout=timeout, given=uri))


def _cluster(uri: str, timeout: float) -> Storage:
    return cast("Storage", load("ClusterStorage").from_uri(uri, timeout=timeout))


def _local(uri: str, timeout: float) -> Storage:
    return cast("Storage", load("LocalStorage").from_path(uri.removeprefix("local://"), timeout=timeout))


SCHEMES: dict[str, Scheme] = {
    "memory": Scheme(lambda _uri, _timeout: MemoryStorage(), address="none"),
    "local": Scheme(_local, address="optional"),
    "redis": Scheme(_redis),
    "rediss": Scheme(_redis),
    "unix": Scheme(_redis),
    "valkey": Scheme(_redis),
    "valkeys": Scheme(_redis),
    "redis+sentinel": Scheme(_redis),
    "rediss+sentinel": Scheme(_redis),
    "redis+cluster": Scheme(_cluster),
    "rediss+cluster": Scheme(_cluster),
}
"""Every storage that a URI can name. To add one, add a line here, or from outside the package run
``SCHEMES["NAME"] = Scheme(...)`` before the first URI that uses it."""


def storage_from_uri(uri: str, *, timeout: float = DEFAULT_TIMEOUT) -> Storage:
    """The storage at ``uri``, such as ``redis://localhost:6379/0``, of any scheme in ``SCHEMES``.

    ``timeout`` is in seconds. No connection is made here. Raises :class:`ConfigurationError`.
    """
    if not isinstance(uri, str):
        raise ConfigurationError(f"uri={shown_storage(uri)}: give text, such as redis://localhost:6379/0")
    check_timeout(timeout)
    name, separator, address = uri.partition("://")
    scheme = SCHEMES.get(name)
    if scheme is None or not separator:
        known = ", ".join(f"{each}://" for each in SCHEMES)
        raise _wrong(uri, f'not one of {known}, for instance "redis://localhost:6379/0"')
    if scheme.address == "none" and address:
        raise _wrong(uri, f"nothing may follow {name}://")
    if scheme.address == "required" and not address:
        raise _wrong(uri, f"it names no server; write it as {name}://{_EXAMPLES.get(name, 'localhost:6379')}")
    return scheme.open(uri, timeout)


_EXAMPLES = {
    "unix": "/run/redis.sock",
    "redis+sentinel": "localhost:26379/SERVICE",
    "rediss+sentinel": "localhost:26379/SERVICE",
}
"""What follows the slashes, if it is not ``host:port``."""


def _wrong(uri: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"storage URI {shown_storage(uri)}: {reason}")


def storage_from(given: Any, *, timeout: float = DEFAULT_TIMEOUT) -> Storage:
    """``given`` itself if it is a storage, the storage of a URI, or one around a client object of ``redis``."""
    if isinstance(given, str):
        return storage_from_uri(given, timeout=timeout)
    if is_storage(given):
        return cast("Storage", given)
    if iscoroutinefunction(getattr(given, "execute_command", None)):
        raise ConfigurationError(
            f"storage={type(given).__name__} of {type(given).__module__}: a check does not await its answer; "
            "give a client that is not async, such as redis.Redis(...), or a URI"
        )
    return _storage_around(given)


def _storage_around(given: Any) -> Storage:
    import redis.cluster  # noqa: PLC0415 - see above

    if isinstance(given, (redis.client.Pipeline, redis.cluster.ClusterPipeline)):
        raise ConfigurationError(
            f"storage={type(given).__name__}: a pipeline keeps commands until it runs; give the client that made it"
        )
    if isinstance(given, redis.cluster.RedisCluster):
        return cast("Storage", load("ClusterStorage").from_client(given))
    if isinstance(given, redis.Redis):
        return cast("Storage", load("RedisStorage")(given))
    if hasattr(given, "evalsha") and not isinstance(given, type):
        raise ConfigurationError(
            f"storage={type(given).__name__} of {type(given).__module__}: its errors are not those of redis-py; give a "
            "URI, such as valkey://localhost:6379/0, or a client object of redis (both speak to Valkey)"
        )
    if hasattr(given, "master_for"):
        raise ConfigurationError("storage=Sentinel(...): give a client of the primary: sentinel.master_for(NAME)")
    raise ConfigurationError(f"storage={shown_storage(given)}: give a URI, a client object of redis, or a Storage")
