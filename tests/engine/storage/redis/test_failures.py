"""Only on servers: what goes wrong between us and the server charges once or not at all, and says so clearly."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import traceback
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import redis

from flask_multilimit.engine import (
    ConfigurationError,
    Limiter,
    MemoryStorage,
    RedisStorage,
    StorageError,
    hits_for,
    storage_from_uri,
)
from flask_multilimit.engine.algorithms import ALGORITHMS
from flask_multilimit.engine.storage.redis.failures import NOBODY_THERE, TOO_LATE
from support.bench import bare, hits, rule
from support.rates import RATES
from support.servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.servers import Binary

SECRET = "hunter2"


class Proxy:
    """Stands on a port between a client and a server; loses the next request or reply when told to."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self._losing: str | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_next(self, what: str) -> None:
        """The next "request" or the next "reply", and the connection with it."""
        self._losing = what

    @property
    def has_lost(self) -> bool:
        return self._losing is None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                for ends in ((client, server, "request"), (server, client, "reply")):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, what: str) -> None:
        with source, contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if self._losing == what:
                    self._losing = None
                    break
                sink.sendall(data)
            for end in (sink, source):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(any_server: Server) -> Iterator[Proxy]:
    proxy = Proxy(any_server.url.removeprefix("unix://"))
    yield proxy
    proxy.close()


@pytest.fixture
def distant(client: redis.Redis, proxy: Proxy) -> Iterator[Limiter]:
    """A limiter whose connection goes through the proxy; it has been used once, and the server is empty."""
    assert client.dbsize() == 0
    limiter = Limiter(storage_from_uri(proxy.url, timeout=10))
    for name in RATES:
        limiter.check(hits(rule(name), subject="warm"))
    limiter.check(hits([rule(name) for name in RATES], subject="warm"))
    client.flushdb()
    yield limiter
    limiter.close()


@pytest.fixture
def own_server(any_server: Server) -> Iterator[Server]:
    """Each server in turn, for tests that stop, freeze or starve it."""
    with Server(any_server.binary, tcp=True) as server:
        yield server


# A lost connection


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_a_check_whose_connection_is_lost_is_charged_once_where_ids_are_kept(
    distant: Limiter, served: Limiter, proxy: Proxy, lost: str
) -> None:
    plan = hits("5/minute; 9/hour", cost=2)
    proxy.lose_next(lost)

    decision = distant.check(plan)

    assert proxy.has_lost
    assert decision.allowed
    assert [status.remaining for status in decision.statuses] == [3, 7]
    assert [status.remaining for status in served.peek(plan).statuses] == [3, 7]


def test_the_last_unit_is_admitted_although_the_reply_was_lost(distant: Limiter, proxy: Proxy) -> None:
    proxy.lose_next("reply")

    assert distant.check(hits("1/minute")).allowed
    assert not distant.check(hits("1/minute")).allowed


def test_one_rule_that_keeps_ids_saves_the_others_from_a_second_charge(
    distant: Limiter, served: Limiter, proxy: Proxy, algorithm: str
) -> None:
    plan = hits([rule(algorithm, 30, 5), rule("sliding_window", 60, 9)])
    proxy.lose_next("reply")

    distant.check(plan)

    assert [status.remaining for status in served.peek(plan).statuses] == [4, 8]


@pytest.mark.parametrize("algorithm", [name for name, twin in ALGORITHMS.items() if not twin.REMEMBERS_IDS])
def test_where_no_ids_are_kept_a_lost_reply_is_an_error_and_one_charge(
    distant: Limiter, served: Limiter, proxy: Proxy, algorithm: str
) -> None:
    proxy.lose_next("reply")

    with pytest.raises(StorageError):
        distant.check(hits(rule(algorithm)))

    assert served.peek(hits(rule(algorithm))).remaining == 4


def test_a_shadow_that_keeps_ids_does_not_answer_for_those_that_count(
    distant: Limiter, served: Limiter, proxy: Proxy
) -> None:
    """It refuses nothing, but is not charged when it would have, and then it knows no id."""
    shadow = hits_for("1/hour", scope="api", shadow=True)
    counted = hits(rule("fixed_window"))
    assert served.check(shadow).allowed
    proxy.lose_next("reply")

    with pytest.raises(StorageError):
        distant.check(shadow + counted)

    assert served.peek(counted).remaining == 4


def test_a_check_with_an_id_of_its_own_may_be_repeated_by_whoever_gave_it(
    distant: Limiter, served: Limiter, proxy: Proxy
) -> None:
    plan, check_id = hits("5/minute"), uuid4()
    proxy.lose_next("reply")
    with contextlib.suppress(StorageError):
        distant.check(plan, check_id=check_id)

    assert distant.check(plan, check_id=check_id).allowed
    assert served.peek(plan).remaining == 4


def test_a_connection_killed_between_two_checks_goes_unnoticed(
    any_server: Server, client: redis.Redis, algorithm: str
) -> None:
    limiter = Limiter(storage_from_uri(any_server.url, timeout=10))
    for _ in range(3):
        assert limiter.check(hits(rule(algorithm))).allowed
        client.client_kill_filter(_type="normal", skipme=True)

    assert limiter.peek(hits(rule(algorithm))).remaining == 2
    limiter.close()


def test_a_server_that_restarts_is_found_again(own_server: Server) -> None:
    limiter = Limiter(storage_from_uri(own_server.url, timeout=10))
    assert limiter.check(hits()).remaining == 4

    own_server.restart()

    assert limiter.check(hits()).remaining == 4
    limiter.close()


def test_no_connection_is_kept_to_a_server_that_has_become_a_replica(own_server: Server) -> None:
    limiter = Limiter(storage_from_uri(f"{own_server.tcp_url}?client_name=ours", timeout=10))
    limiter.check(hits())
    limiter.check_many([hits()])
    admin = own_server.client()
    admin.replicaof("127.0.0.1", "1")

    with pytest.raises(StorageError) as caught:
        limiter.check(hits())

    assert "redis+sentinel://" in caught.value.remedy
    deadline = time.monotonic() + 10
    while any(client["name"] == "ours" for client in admin.client_list()):
        assert time.monotonic() < deadline
    limiter.close()


# Errors


def test_a_refused_port_is_a_storage_error_that_keeps_the_cause() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    limiter = bare(f"redis://:{SECRET}@127.0.0.1:{port}")

    for action in (limiter.check, limiter.peek, limiter.reset):
        with pytest.raises(StorageError) as caught:
            action(hits())
        assert isinstance(caught.value.__cause__, redis.ConnectionError)
        assert SECRET not in str(caught.value)


def test_a_missing_socket_is_a_storage_error() -> None:
    with pytest.raises(StorageError) as caught:
        bare("unix:///nowhere/redis.sock").check(hits())

    assert isinstance(caught.value.__cause__, redis.ConnectionError)


def test_a_frozen_server_is_a_storage_error_after_the_time_out_and_not_much_later(own_server: Server) -> None:
    limiter = Limiter(storage_from_uri(own_server.tcp_url, timeout=0.1))
    own_server.suspend()
    start = time.monotonic()

    with pytest.raises(StorageError) as caught:
        limiter.check(hits())

    assert isinstance(caught.value.__cause__, redis.TimeoutError)
    assert time.monotonic() - start < 8
    own_server.resume()
    limiter.close()


def test_a_check_that_timed_out_is_not_tried_again_behind_our_back(own_server: Server) -> None:
    limiter = Limiter(storage_from_uri(own_server.url, timeout=0.2))
    limiter.check(hits())
    own_server.suspend()
    with pytest.raises(StorageError):
        limiter.check(hits())
    own_server.resume()

    # The one request that was sent may have been read by the server when it woke up.
    assert bare(own_server.client()).peek(hits()).remaining in {3, 4}
    limiter.close()


@pytest.mark.parametrize("position", [0, 1])
def test_a_key_of_another_kind_is_a_storage_error_and_nothing_is_charged(
    served: Limiter, client: redis.Redis, algorithm: str, position: int
) -> None:
    plan = hits([rule(algorithm, 30), rule(algorithm, 60)])
    client.rpush(plan[position].key, "not ours")

    with pytest.raises(StorageError) as caught:
        served.check(plan)

    assert isinstance(caught.value.__cause__, redis.ResponseError)
    assert list(client.scan_iter()) == [plan[position].key.encode()]


def test_a_server_out_of_memory_is_a_storage_error_and_nothing_is_charged(own_server: Server, algorithm: str) -> None:
    client = own_server.client()
    limiter = bare(client)
    plan = hits([rule(algorithm, 30), rule("sliding_window", 60), rule("fixed_window", 60)])
    limiter.check(plan)
    before = {key: client.dump(key) for key in client.scan_iter()}

    client.config_set("maxmemory", "1")
    with pytest.raises(StorageError) as caught:
        limiter.check(plan)

    assert isinstance(caught.value.__cause__, redis.ResponseError)
    assert {key: client.dump(key) for key in client.scan_iter()} == before
    client.config_set("maxmemory", "0")
    assert limiter.check(plan).remaining == 3


def test_a_wrong_password_is_a_storage_error_that_does_not_show_it(own_server: Server) -> None:
    own_server.client().config_set("requirepass", "right")
    limiter = bare(own_server.tcp_url.replace("redis://", f"redis://:{SECRET}@"))

    with pytest.raises(StorageError) as caught:
        limiter.check(hits())

    assert SECRET not in f"{caught.value} {caught.value.__cause__}"
    own_server.client(password="right").config_set("requirepass", "")
    limiter.close()


def test_a_client_that_decodes_replies_or_speaks_resp3_serves_as_well(any_server: Server) -> None:
    for options in ({"decode_responses": True}, {"protocol": 3}):
        limiter = bare(any_server.client(**options))
        limiter.reset(hits())
        decision = limiter.check(hits())
        assert (decision.allowed, decision.remaining) == (True, 4)
        limiter.refund(decision)
        assert limiter.peek(hits()).remaining == 5


# Addresses


@pytest.mark.parametrize(
    "uri",
    [
        *("", "memory", "memory:", "memory:/", "memory://x", "memory://localhost", "redis", "redis:", "redis://"),
        *("redis:/localhost", "reddis://localhost", "http://localhost", "localhost:6379", "://", "unix://", " "),
        *("redis://localhost:port", "redis://localhost:99999", "redis://localhost:-1", "redis://[::1"),
        *("redis://localhost?db=one", "redis://localhost?socket_timeout=soon", "redis://localhost/one"),
        *("redis://localhost?nonsense=1", "redis://localhost?protocol=7", "redis://localhost:1,localhost:2"),
        "unix://run/redis.sock",
    ],
)
def test_a_malformed_address_is_an_error_at_once_that_shows_it(uri: str) -> None:
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
    ],
)
def test_a_malformed_address_does_not_show_its_password(uri: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        storage_from_uri(uri)

    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "told"),
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
        ("redis://h?ssl_ca_certs=ca.pem", "options that begin with ssl_ are those of TLS: rediss://"),
        ("redis://h:1,h:2", "several servers are redis+cluster://host,host or redis+sentinel://host,host/service"),
        ("unix://run/redis.sock", "the path of a socket begins with a slash: unix:///run/redis.sock"),
        ("redis://:x@host:99999/0", "'redis://***@host:99999/0': the port must be a number from 1 to 65535"),
        ("rediss://[::1]:70000", "the port must be a number from 1 to 65535"),
        ("redis://host:0", "the port must be a number from 1 to 65535"),
        ("redis://::1/0", "an IPv6 address needs brackets"),
        ("redis://:x@host:redis", "the port must be a number from 1 to 65535"),
        ("valkey://:x@host:99999", "'valkey://***@host:99999': the port must be a number from 1 to 65535"),
        ("valkeys://host:port", "'valkeys://host:port': the port must be a number from 1 to 65535"),
        ("redis+sentinel://:x@host:1,host:99999/shop", "host:99999/shop': the port must be a number from 1 to 65535"),
        ("redis+cluster://host:0", "the port must be a number from 1 to 65535"),
        ("rediss+cluster://[::1]:1,host:6_0", "the port must be a number from 1 to 65535"),
        ("redis+cluster://host:7000/1", "'redis+cluster://host:7000/1': a cluster has only database 0"),
        ("memory://host", "nothing may follow memory://"),
        ("rediss+sentinel://", "it names no server; write it as rediss+sentinel://localhost:26379/SERVICE"),
        ("redis://u:1/2@host/0", "malformed; special characters of user and password must be percent-encoded"),
    ],
)
def test_a_wrong_part_of_an_address_is_told_with_its_remedy(uri: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        storage_from_uri(uri)

    assert str(caught.value).endswith(told)


@pytest.mark.parametrize(
    "uri",
    ["memory://", "redis://localhost", "rediss://h:6380/1", "valkey://[::1]:6379", "valkeys://u:p@h", "unix:///s"],
)
def test_a_storage_is_made_without_a_connection(uri: str) -> None:
    storage_from_uri(uri).close()


@pytest.mark.parametrize("timeout", [0, -1, "1", True, None, float("nan"), float("inf")])
def test_a_timeout_is_seconds(timeout: float) -> None:
    with pytest.raises(ConfigurationError, match=r"timeout=.*: give seconds above 0"):
        storage_from_uri("redis://localhost", timeout=timeout)


@pytest.mark.parametrize("wrong", [None, 7, b"redis://localhost", object(), MemoryStorage, redis.Redis, RedisStorage])
def test_what_is_neither_address_nor_client_nor_storage_is_an_error(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="storage="):
        Limiter(wrong)


def test_a_client_of_another_library_is_refused_at_once() -> None:
    """Its errors would be 500s: the guard knows those of redis-py."""
    client_of_valkey = type("Valkey", (), {"__module__": "valkey.client", "evalsha": None, "script_load": None})()

    with pytest.raises(ConfigurationError, match=r"storage=Valkey of valkey\.client: .* give a URI, such as valkey://"):
        Limiter(client_of_valkey)


def test_a_uri_in_bytes_does_not_show_its_password() -> None:
    with pytest.raises(ConfigurationError, match="storage=") as caught:
        Limiter(f"redis://:{SECRET}@localhost".encode())

    assert SECRET not in str(caught.value)


def test_a_client_of_ones_own_stays_open_when_the_limiter_is_closed(any_server: Server) -> None:
    client = any_server.client()
    limiter = bare(client)
    limiter.check(hits())

    limiter.close()

    assert client.connection_pool is not None
    assert client.ping()


def test_a_failure_names_the_server_and_what_to_do(server_binaries: dict[str, Binary]) -> None:
    with Server(next(iter(server_binaries.values())), tcp=True) as server:
        limiter = Limiter(storage_from_uri(f"{server.tcp_url}/3", timeout=1))
        limiter.check(hits())
        server.suspend()
        with pytest.raises(StorageError) as late:
            limiter.check(hits())
        server.kill()
        with pytest.raises(StorageError) as gone:
            limiter.check(hits())
        limiter.close()

    named = f"the rate limit storage gave no answer (127.0.0.1:{server.port}, database 3): "
    assert str(late.value).startswith(f"{named}TimeoutError")
    assert late.value.remedy == TOO_LATE
    assert str(gone.value).startswith(f"{named}ConnectionError")
    assert gone.value.remedy == NOBODY_THERE
    for failure in (late.value, gone.value):
        told = "".join(traceback.format_exception(type(failure), failure, failure.__traceback__))
        assert "During handling of the above exception" not in told  # of what the client has tried inside
