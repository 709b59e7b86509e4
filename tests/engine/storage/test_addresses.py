"""Storage URIs: a mistake is an error at once, with its remedy, and no error shows a password."""

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import redis
from flask import Flask

from flask_multilimit import MultiLimit
from flask_multilimit.config import Settings
from flask_multilimit.engine import ConfigurationError, Limiter, RedisStorage, storage_from_uri
from flask_multilimit.engine.storage import SCHEMES, ClusterStorage, MemoryStorage, storage_from

SECRET = "hunter2"


@pytest.mark.parametrize(
    "uri",
    [
        *("", "memory", "memory:", "memory:/", "memory://x", "memory://localhost", "redis", "redis:", "redis://"),
        *("redis:/localhost", "reddis://localhost", "http://localhost", "localhost:6379", "://", "unix://", " "),
        *("redis://localhost:99999", "redis://[::1]:99999"),
        *("redis://localhost?db=one", "redis://localhost?socket_timeout=soon", "redis://localhost/one"),
        *("redis://localhost?nonsense=1", "redis://localhost?protocol=7", "redis://localhost:1,localhost:2"),
        *("redis+cluster://", "redis+cluster://:6379", "redis+cluster://a,,b", "redis+cluster://a?db=2", "cluster://a"),
        *("redis+cluster://a/1", "redis+cluster://a:6379/0/0", "redis+cluster://a?no=1", "redis+cluster://a:1,b:99999"),
        "unix://run/redis.sock",
        *("redis://.internal:6379", "rediss://a..b", f"valkey://{'x' * 64}", "redis+cluster://a,.b:1"),
        "redis+sentinel://.internal/limits",
    ],
)
def test_malformed_uri_is_an_error_that_shows_the_uri(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="storage URI") as caught:
        storage_from_uri(uri)
    assert uri.partition("?")[0] in str(caught.value)


@pytest.mark.parametrize(
    "uri",
    [
        *(f"reddis://:{SECRET}@localhost", f"reddis://me:{SECRET}@localhost", f"redis://:{SECRET}@localhost:port"),
        *(f"redis://:{SECRET}/x@localhost:6379/0", f"redis://:{SECRET}?x@localhost:6379/0"),
        *(f"redis://:{SECRET}#x@localhost:6379/0", f"redis://:[{SECRET}]@localhost:port", f"redis://:a@{SECRET}@h:x"),
        *(f"redis:/:{SECRET}@localhost", f":{SECRET}@localhost:6379", f"memory://:{SECRET}@localhost"),
        *(f"redis://localhost?password={SECRET}&db=one", f"redis://localhost?password=a&{SECRET}=b"),
        *(f"redis://localhost?db=one&password={SECRET}", f"redis://:x@localhost:port#{SECRET}"),
        *(f"redis+cluster://me:{SECRET}@a:port", f"redis+cluster://:{SECRET}@a,b/7?x=1"),
        # without a host, a password is where a port should be
        *(f"{scheme}://me:{SECRET}" for scheme in [*SCHEMES, "reddis", "http"]),
        *(
            f"redis://:{SECRET}",
            f"redis://:{SECRET}/0",
            f"redis:/:{SECRET}",
            f"me:{SECRET}",
        ),
        *(f"redis://[::1]:{SECRET}", f"redis://[{SECRET}", f"redis+cluster://a:1,b:{SECRET}", f"me:{SECRET}://host"),
        *(f"redis+sentinel://me:{SECRET}/shop", f"redis://me:{SECRET}?db=one", f"redis://me:pass/word:{SECRET}/0"),
        *(f"redis://me:{SECRET}@h/database", f"redis://me:{SECRET}@h/0?nonsense={SECRET}", f"redis://h/0?db={SECRET}"),
        *(f"redis+sentinel://me:{SECRET}@h", f"redis+sentinel://me:{SECRET}@h:port/shop"),
        *(f"redis+sentinel://{rest}?sentinel_password={SECRET}" for rest in ("h", f"me:{SECRET}@h/shop/database")),
        f"redis+sentinel://h/shop?sentinel_secret={SECRET}&sentinel_password={SECRET}",
    ],
)
def test_error_of_a_malformed_uri_hides_the_password(uri: str) -> None:
    for open_storage in (storage_from_uri, storage_from):
        with pytest.raises(ConfigurationError) as caught:
            open_storage(uri)
        assert SECRET not in "".join(traceback.format_exception(caught.value)), "nor do its causes show it"


@pytest.mark.parametrize(
    "given",
    [
        f"redis://me:{SECRET}@localhost".encode(),
        {"host": "localhost", "password": SECRET},
        [f"redis://me:{SECRET}@localhost"],
    ],
    ids=["bytes", "dict", "list"],
)
@pytest.mark.parametrize(
    "refuses",
    [
        storage_from,
        storage_from_uri,
        RedisStorage,
        *(
            lambda given: RedisStorage.from_url(given, timeout=1),
            lambda given: ClusterStorage.from_uri(given, timeout=1),
        ),
        *(ClusterStorage.from_client, lambda given: MultiLimit(Flask("shop"), storage=given)),
        lambda given: Settings.from_config({"MULTILIMIT_STORAGE_URI": given}),
    ],
    ids=[
        "storage_from",
        "storage_from_uri",
        "RedisStorage",
        "RedisStorage.from_url",
        "ClusterStorage.from_uri",
        "ClusterStorage.from_client",
        "MultiLimit",
        "setting",
    ],
)
def test_error_of_a_wrong_storage_argument_names_its_type_and_hides_its_value(
    given: Any, refuses: Callable[[Any], object]
) -> None:
    with pytest.raises(ConfigurationError, match=type(given).__name__) as caught:
        refuses(given)
    assert SECRET not in str(caught.value)


def test_text_of_settings_hides_the_password_of_the_storage() -> None:
    settings = Settings.from_config({"MULTILIMIT_STORAGE_URI": f"redis://me:{SECRET}@localhost"})
    assert SECRET not in f"{settings} {settings!r}"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        (
            "redis://h?max_conections=4",
            "max_conections is not an option of a connection; did you mean max_connections?",
        ),
        ("rediss://h?ssl_ca_cert=ca.pem", "did you mean ssl_ca_certs?"),
        ("redis+cluster://h:1?qwertz=1", "storage URI 'redis+cluster://h:1': qwertz is not an option of a connection"),
        (
            "redis://:secret@h?soket_timeout=1",
            "'redis://***@h': one of the options is not an option of a connection; did you mean socket_timeout?",
        ),
        ("redis://h?retry=3", "retry is not possible with a URI: give a client object of redis"),
        ("redis://h?encoding_errors=nonsense", "leave out encoding and encoding_errors"),
        ("redis://h?encoding=utf-16&decode_responses=1", "leave out encoding and encoding_errors"),
        ("redis://h?encoding=latin-1&decode_responses=1", "leave out encoding and encoding_errors"),
        ("unix:///run/redis.sock?retry=3", "retry is not possible with a URI: give a client object of redis"),
        ("redis+sentinel://h/shop?retry=3", "retry is not possible with a URI: give a client object of redis"),
        (
            "redis+cluster://h:1?cache_config=1",
            "cache_config is not possible with a URI: give a client object of redis",
        ),
        ("redis://h?ssl_ca_certs=ca.pem", "options that begin with ssl are those of TLS: rediss://"),
        ("redis://h:1,h:2", "write several servers as redis+cluster://host,host or redis+sentinel://host,host/service"),
        ("unix://run/redis.sock", "the path of a socket begins with a slash: unix:///run/redis.sock"),
        ("redis://:x@host:99999/0", "'redis://***@host:99999/0': the port must be a number from 1 to 65535"),
        ("rediss://[::1]:70000", "the port must be a number from 1 to 65535"),
        ("redis://host:0", "the port must be a number from 1 to 65535"),
        ("redis://::1/0", "an IPv6 address needs brackets"),
        ("redis://:x@host:redis", "the port must be a number from 1 to 65535"),
        ("valkey://:x@host:99999", "'valkey://***@host:99999': the port must be a number from 1 to 65535"),
        ("valkeys://host:port", "'valkeys://host:***': the port must be a number from 1 to 65535"),
        ("redis+sentinel://:x@host:1,host:99999/shop", "host:99999/shop': the port must be a number from 1 to 65535"),
        ("redis+cluster://host:0", "the port must be a number from 1 to 65535"),
        ("rediss+cluster://[::1]:1,host:6_0", "the port must be a number from 1 to 65535"),
        ("redis+cluster://host:7000/1", "'redis+cluster://host:7000/1': a cluster has only database 0"),
        ("memory://host", "nothing may follow memory://"),
        ("rediss+sentinel://", "it names no server; write it as rediss+sentinel://localhost:26379/SERVICE"),
        ("redis+sentinel://h:26379", "it names no service: redis+sentinel://host:26379,host:26379/SERVICE"),
        ("rediss+sentinel://h:26379/", "it names no service: rediss+sentinel://host:26379,host:26379/SERVICE"),
        ("redis+sentinel:///limits", "it names no sentinel, or has a comma too many: host:port,host:port"),
        ("rediss+sentinel://h:26379,/limits", "it names no sentinel, or has a comma too many: host:port,host:port"),
        ("redis+sentinel://h:port/limits", "the port must be a number from 1 to 65535"),
        ("redis+sentinel://::1/limits", "an IPv6 address needs brackets"),
        ("redis+sentinel://[::1/limits", "host, host:port or [IPv6]:port, and several are separated by commas"),
        ("redis+sentinel://h/limits/one", "the database must be a number, got 'one'"),
        ("redis+sentinel://h/limits/0/1", "the database must be a number, got '0/1'"),
        ("redis+sentinel://h/s?sentinel_pasword=x", "of sentinels it takes sentinel_username and sentinel_password"),
        ("rediss+sentinel://h/s?nonsense=1", "'rediss+sentinel://h/s': nonsense is not an option of a connection"),
        ("redis+sentinel://h/limits?socket_timeout=soon", "Invalid value for 'socket_timeout' in connection URL."),
        ("redis://u:1/2@host/0", "malformed; special characters in user and password must be percent-encoded"),
    ],
)
def test_error_names_the_wrong_part_of_a_uri_and_its_remedy(uri: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        storage_from_uri(uri)
    assert str(caught.value).replace("`", "'").endswith(message)  # redis-py 5 quotes with backquotes


@pytest.mark.parametrize(
    "uri",
    [
        *("memory://", "redis://localhost", "rediss://h:6380/1", "valkey://[::1]:6379", "valkeys://u:p@h", "unix:///s"),
        *("redis+sentinel://localhost/limits", "redis+sentinel://[::1],[::1]:26380/limits/1"),
        "rediss+sentinel://me:p%40ss@a:1,b:2,c/my%2Flimits/0?sentinel_username=me&sentinel_password=x",
    ],
)
def test_storage_is_made_from_a_uri_without_a_connection(uri: str) -> None:
    storage_from_uri(uri).close()


@pytest.mark.parametrize("timeout", [0, -1, "1", True, None, float("nan"), float("inf")])
def test_timeout_that_is_not_positive_seconds_is_an_error(timeout: float) -> None:
    with pytest.raises(ConfigurationError, match=r"timeout=.*: give seconds above 0"):
        storage_from_uri("redis://localhost", timeout=timeout)


@pytest.mark.parametrize("wrong", [None, 7, b"redis://localhost", object(), MemoryStorage, redis.Redis, RedisStorage])
def test_an_argument_that_is_no_storage_is_an_error(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="storage="):
        Limiter(wrong)


def test_a_client_of_another_library_is_refused_at_once() -> None:
    """The guard knows only errors of redis-py. Others would become responses with status 500."""
    client_of_valkey = type("Valkey", (), {"__module__": "valkey.client", "evalsha": None, "script_load": None})()
    with pytest.raises(ConfigurationError, match=r"storage=Valkey of valkey\.client: .* give a URI, such as valkey://"):
        Limiter(client_of_valkey)


@pytest.mark.parametrize(
    ("uri", "wrong", "message"),
    [
        (
            "redis://h",
            {"soket_timeout": 1},
            "soket_timeout is not .* option of a connection; did you mean socket_timeout",
        ),
        ("redis://h", {"ssl": True}, "options that begin with ssl are those of TLS: rediss://"),
        ("unix:///run/redis.sock", {"host": "h"}, "host is not an option of a connection$"),
    ],
)
def test_a_client_with_an_unknown_option_is_refused_at_once(uri: str, wrong: dict[str, Any], message: str) -> None:
    """Otherwise, each request would end with a ``TypeError``."""
    with pytest.raises(ConfigurationError, match=f"client=an object of type Redis: {message}"):
        Limiter(redis.Redis.from_url(uri, **wrong))


class OwnPool(redis.ConnectionPool):
    def make_connection(self) -> Any:
        return self.connection_class(host=self.connection_kwargs["region"])


def test_a_pool_that_makes_its_connections_by_itself_may_have_options_of_its_own() -> None:
    Limiter(redis.Redis(connection_pool=OwnPool(region="eu.example")))


class UnconnectedCluster(redis.RedisCluster):
    def __init__(self, **options: Any) -> None:
        self.encoder = redis.Redis(**options).get_encoder()


@pytest.mark.parametrize("kind", [redis.Redis, UnconnectedCluster])
@pytest.mark.parametrize("wrong", [{"encoding": "latin-1"}, {"encoding": "ascii", "encoding_errors": "ignore"}])
def test_a_client_that_would_read_one_subject_as_another_is_refused_at_once(
    kind: Callable[..., Any], wrong: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError, match=r"leave out encoding and encoding_errors"):
        Limiter(kind(decode_responses=True, **wrong))
