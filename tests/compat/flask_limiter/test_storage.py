"""Storage URIs and options of Flask-Limiter, and the storages that they become."""

from collections.abc import Callable
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
import redis
from flask import Flask

from flask_multilimit import ConfigurationError, MultiLimit
from flask_multilimit.compat.flask_limiter import Limiter, get_remote_address
from flask_multilimit.compat.flask_limiter.storage import storage_from
from support.cluster import Cluster
from support.servers import Server


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("memory://", "memory://"),
        ("memory://ignored", "memory://"),
        ("redis://:secret@host:6379/1", "redis://:secret@host:6379/1"),
        ("rediss://host", "rediss://host"),
        ("redis://", "redis://localhost"),
        ("redis:///1", "redis://localhost/1"),
        ("redis://:secret@:6380?db=1", "redis://:secret@localhost:6380?db=1"),
        ("valkey://host:6379", "valkey://host:6379"),
        ("redis+unix:///run/redis.sock?db=1", "unix:///run/redis.sock?db=1"),
        ("redis+sentinel://a:26379,b:26379/mymaster", "redis+sentinel://a:26379,b:26379/mymaster"),
        (
            "redis+sentinel://ann:b%2B@a,b/mymaster",
            "redis+sentinel://ann:b%2B@a,b/mymaster?sentinel_username=ann&sentinel_password=b%2B",
        ),
        ("redis+sentinel://:b@a/x?sentinel_password=c", "redis+sentinel://:b@a/x?sentinel_password=c"),
        ("valkey+cluster://a:7000,b:7000", "redis+cluster://a:7000,b:7000"),
        ("local://", "local://"),
    ],
)
def test_uri_of_flask_limiter_becomes_one_of_ours(theirs: str, ours: str) -> None:
    assert storage_from(theirs, {}) == ours


@pytest.mark.parametrize("scheme", ["memcached", "mongodb", "mongodb+srv", "etcd", "async+redis", "tape"])
def test_unsupported_storage_is_an_error_with_a_remedy_and_no_secret(scheme: str) -> None:
    remedy = 'use "redis://host:6379" or "valkey://host:6379", or on one machine'
    with pytest.raises(ConfigurationError, match=remedy) as caught:
        storage_from(f"{scheme}://user:secret@host", {})
    assert "secret" not in str(caught.value)


def test_storage_options_configure_the_client() -> None:
    client = storage_from("redis://host:6379/1", {"socket_timeout": 7, "key_prefix": "x", "wrap_exceptions": True})
    given = client.connection_pool.connection_kwargs
    assert (given["host"], given["db"], given["socket_timeout"]) == ("host", 1, 7)


def test_given_connection_pool_is_used() -> None:
    pool = redis.ConnectionPool.from_url("redis://host:6379")
    assert storage_from("redis://ignored", {"connection_pool": pool}).connection_pool is pool


def test_connection_pool_of_another_library_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"\(connection_pool\): give a pool of redis, for Valkey, too"):
        storage_from("valkey://", {"connection_pool": object()})


def test_storage_options_configure_a_sentinel_client() -> None:
    uri = "redis+sentinel://ann:b%40b@a:26379,b/mymaster"
    client = storage_from(uri, {"socket_timeout": 7, "sentinel_kwargs": {"password": "of sentinels"}})

    pool = client.connection_pool
    asked = [each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels]
    assert (pool.service_name, pool.connection_kwargs["password"]) == ("mymaster", "b@b")
    assert pool.connection_kwargs["socket_timeout"] == 7
    assert [(each["host"], each["port"], each["password"]) for each in asked] == [
        ("a", 26379, "of sentinels"),
        ("b", 26379, "of sentinels"),
    ]


def test_sentinels_get_the_login_and_timeout_of_the_server_unless_they_have_their_own() -> None:
    def asked(uri: str, **options: Any) -> dict[str, Any]:
        (sentinel,) = storage_from(uri, options).connection_pool.sentinel_manager.sentinels
        given: dict[str, Any] = sentinel.connection_pool.connection_kwargs
        return {name: given.get(name) for name in ("username", "password", "socket_timeout")}

    assert asked("redis+sentinel://ann:b@a/mymaster", socket_timeout=7) == {
        "username": "ann",
        "password": "b",
        "socket_timeout": 7,
    }
    assert asked("redis+sentinel://a/mymaster", password="b")["password"] == "b"
    none = {"username": None, "password": None}
    assert asked("redis+sentinel://ann:b@a/mymaster", sentinel_kwargs=none)["password"] is None


def test_storage_options_configure_a_cluster_client(app: Flask, shared_cluster: Cluster) -> None:
    uri = shared_cluster.uri.replace("redis+cluster", "valkey+cluster")
    with closing(storage_from(uri, {"socket_timeout": 5})) as client:
        multilimit = MultiLimit(app, storage=client)
        limiter = Limiter(get_remote_address, app=app)
        app.get("/")(limiter.limit("1/hour", scope=uuid4().hex)(lambda: "ok"))

        assert [app.test_client().get("/").status_code for _ in range(2)] == [200, 429]
        multilimit.close()


def test_storage_options_of_local_storage_are_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"storage_options \(socket_timeout\): local:// takes none"):
        storage_from("local://", {"socket_timeout": 7})


@pytest.mark.parametrize(
    ("uri", "options", "reason"),
    [
        ("redis://h", {"soket_timeout": 1}, r".*: soket_timeout is not an option of .*; did you mean socket_timeout\?"),
        ("redis+sentinel://h/s", {"soket_timeout": 1}, ".*: soket_timeout is not an option of .*"),
        ("redis://h", {"max_connections": "many"}, '"max_connections" must be a positive integer'),
        ("redis://:secret@h?db=one", {"socket_timeout": 1}, r"storage URI 'redis://\*\*\*@h': malformed; .*"),
    ],
)
def test_wrong_storage_option_is_an_error_that_names_it(uri: str, options: dict[str, Any], reason: str) -> None:
    named = rf"RATELIMIT_STORAGE_OPTIONS or storage_options \({', '.join(options)}\)"
    with pytest.raises(ConfigurationError, match=f"^{named}: {reason}$"):
        storage_from(uri, options)


def test_limits_are_kept_on_a_server(server: Server) -> None:
    answers = []
    for _ in range(2):  # the second app is a restart
        app = app_with(MULTILIMIT_STORAGE_TIMEOUT=10)
        limiter = Limiter(get_remote_address, app=app, storage_uri=server.url, key_prefix="shop")
        app.get("/")(limiter.limit("3/hour")(lambda: "ok"))
        answers += [app.test_client().get("/").status_code for _ in range(2)]

    assert answers == [200, 200, 200, 429]
    limiter.reset()
    assert app.test_client().get("/").status_code == 200


def app_with(**config: Any) -> Flask:
    app = Flask("shop")
    app.config.update(config)
    return app


def test_apps_with_other_prefixes_on_one_server_have_counters_of_their_own(server: Server) -> None:
    apps = [app_with(MULTILIMIT_KEY_PREFIX=f"{name}:", MULTILIMIT_STORAGE_TIMEOUT=10) for name in ("shop", "blog")]
    shop, blog = (Limiter(get_remote_address, app=app, storage_uri=server.url).storage for app in apps)
    shop.incr("mail", 60, amount=2)

    assert (blog.get("mail"), blog.incr("mail", 60), blog.get("mail")) == (0, 1, 1)
    blog.clear("mail")
    assert (shop.get("mail"), blog.get("mail")) == (2, 0)


def test_limiter_uses_the_storage_of_the_existing_multilimit() -> None:
    app = app_with()
    multilimit = MultiLimit(app)

    limiter = Limiter(get_remote_address, app=app)

    with app.app_context():
        assert limiter.storage.storage is multilimit.limiter.storage


@pytest.mark.parametrize(("ours", "theirs"), [("redis://host", "memory://"), ("redis://host", "redis://other")])
def test_storage_other_than_that_of_the_settings_of_multilimit_is_an_error(ours: str, theirs: str) -> None:
    app = app_with(MULTILIMIT_STORAGE_URI=ours)
    with pytest.raises(ConfigurationError, match="leave out RATELIMIT_STORAGE_URI and storage_uri"):
        Limiter(get_remote_address, app=app, storage_uri=theirs)


def test_storage_may_be_named_in_both_settings() -> None:
    app = app_with(MULTILIMIT_STORAGE_URI="redis://localhost:1")
    for uri in (None, "redis://localhost:1", "redis://:1"):
        assert Limiter(get_remote_address, app=app, storage_uri=uri).storage.storage.shared


def test_app_may_name_another_storage_after_one_that_was_an_error() -> None:
    app = app_with()
    with pytest.raises(ConfigurationError, match="it names no service"):
        Limiter(get_remote_address, app=app, storage_uri="redis+sentinel://host")

    assert not Limiter(get_remote_address, app=app, storage_uri="memory://").storage.storage.shared


def test_storage_other_than_that_of_multilimit_is_an_error() -> None:
    app = app_with(RATELIMIT_STORAGE_URI="redis://host")
    MultiLimit(app)
    with pytest.raises(ConfigurationError, match="set MULTILIMIT_STORAGE_URI, and leave out RATELIMIT_STORAGE_URI"):
        Limiter(get_remote_address, app=app)


@pytest.mark.parametrize("first", [MultiLimit, lambda app: Limiter(get_remote_address, app=app)])
def test_storage_in_memory_is_that_of_an_app_that_names_none(first: Callable[[Flask], object]) -> None:
    app = app_with()
    app.add_url_rule("/", view_func=lambda: "index")
    first(app)

    Limiter(get_remote_address, app=app, storage_uri="memory://", application_limits=["1/minute"])

    client = app.test_client()
    assert [client.get("/").status_code for _ in range(2)] == [200, 429]


def test_storage_in_memory_is_another_than_a_given_client() -> None:
    app = app_with()
    MultiLimit(app, storage=redis.Redis())
    with pytest.raises(ConfigurationError, match="already has another storage"):
        Limiter(get_remote_address, app=app, storage_uri="memory://")
