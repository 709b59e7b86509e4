"""Storage behind sentinels: found through any of them, and found again after a fail-over."""

import contextlib
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from flask_multilimit.engine import ConfigurationError, Health, Limiter, StorageError, storage_from_uri
from flask_multilimit.engine.storage.redis.connections import Deadline
from flask_multilimit.engine.storage.redis.sentinel import to_primary
from support.bench import bare, hits, rule
from support.liar import Liar
from support.sentinel import SERVICE, SentinelServer, Trio
from support.servers import Binary, Server
from support.threads import under_load
from support.waiting import SECONDS, until

THREADS = 8
SECRETS = {"password": "hunter2", "sentinel": "corr/ct@horse"}
IN_QUOTES = "corr%2Fct%40horse"
"""The sentinel's password as a URI has it."""
LOST_AT_MOST = 2 * THREADS
"""Charges that the primary may not have passed on when it died: a replica follows a little behind."""


@pytest.fixture(scope="module")
def primary(binary: Binary) -> Iterator[Server]:
    with Server(binary, tcp=True) as server:
        yield server


@pytest.fixture(scope="module")
def sentinel(binary: Binary, primary: Server) -> Iterator[SentinelServer]:
    """A single sentinel, which can only say where the primary is."""
    with SentinelServer(binary, primary.port, quorum=2) as server:
        yield server


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where connections are accepted, and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def refusing_port() -> int:
    """A port that refuses."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def sentinel_of_redis_py(*ports: int, **options: Any) -> Any:
    return Sentinel([("127.0.0.1", port) for port in ports], **options)  # type: ignore[no-untyped-call]


# Where the primary is


def test_quotas_are_kept_on_the_primary(
    primary: Server, sentinel: SentinelServer, open_limiter: Callable[..., Limiter]
) -> None:
    limiter = open_limiter(f"redis+sentinel://127.0.0.1:{sentinel.port}/{SERVICE}/3")

    assert limiter.check(hits(scope="found")).remaining == 4
    limiter.refund(limiter.check(hits(scope="found")))
    assert [decision.remaining for decision in limiter.check_many([hits(scope="found")] * 2)] == [3, 2]
    assert limiter.peek(hits(scope="found")).remaining == 2
    assert primary.client(db=3).dbsize() == 1
    limiter.reset(hits(scope="found"))
    assert primary.client(db=3).dbsize() == 0


def test_checks_move_to_the_primary_that_sentinels_name(
    binary: Binary, primary: Server, open_limiter: Callable[..., Limiter]
) -> None:
    with (
        Server(binary, tcp=True) as promoted,
        SentinelServer(binary, primary.port, quorum=1) as sentinel,
        sentinel.client() as asked,
    ):
        limiter = open_limiter(f"redis+sentinel://127.0.0.1:{sentinel.port}/{SERVICE}")
        limiter.check(hits(scope="planned"))

        asked.sentinel_remove(SERVICE)
        asked.sentinel_monitor(SERVICE, "127.0.0.1", promoted.port, 1)

        until(lambda: limiter.check(hits(scope="planned")).remaining == 4)
        assert promoted.client().dbsize() == 1


@pytest.mark.parametrize("ends", ["closed", "garbage"])
def test_sentinel_thread_ends_with_its_limiter(sentinel: SentinelServer, ends: str) -> None:
    def asking() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "multilimit-sentinel"}

    before = asking()
    limiter = Limiter(storage_from_uri(f"redis+sentinel://127.0.0.1:{sentinel.port}/{SERVICE}", timeout=10))
    limiter.check(hits(scope="ending"))
    threads = asking() - before
    assert len(threads) == 1

    if ends == "closed":
        limiter.close()
    else:
        del limiter

    def has_ended() -> bool:
        gc.collect()  # again and again: while the thread asks, the limiter is no garbage
        return not asking() & threads

    until(has_ended)


def test_sentinel_is_asked_by_one_connection_until_that_is_lost(
    sentinel: SentinelServer, open_limiter: Callable[..., Limiter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_multilimit.engine.storage.redis.sentinel.LOOK_SECONDS", 0.1)

    with sentinel.client() as client:

        def asking() -> set[str]:
            return {each["id"] for each in client.client_list() if each["cmd"].startswith("sentinel")}

        def kept() -> set[str]:
            """The connections that ask at the beginning and at the end of some time."""
            before = until(asking)
            time.sleep(0.5)
            return before & asking()

        limiter = open_limiter(f"redis+sentinel://127.0.0.1:{sentinel.port}/{SERVICE}")
        limiter.check(hits(scope="kept"))
        (first,) = until(kept)

        client.client_kill_filter(_id=first)
        until(lambda: kept() - {first})
        limiter.close()
        until(lambda: not asking())


def test_master_client_of_redis_py_can_be_the_storage(sentinel: SentinelServer) -> None:
    known = sentinel_of_redis_py(sentinel.port, socket_timeout=10)
    with contextlib.closing(known.master_for(SERVICE, socket_timeout=10)) as client:
        limiter = bare(client)
        limiter.reset(hits(scope="master"))

        assert limiter.check(hits(scope="master")).remaining == 4
        assert limiter.peek(hits(scope="master")).remaining == 4
    for each in known.sentinels:
        each.close()


@pytest.mark.parametrize("silent_ones", [1, 2])
def test_dead_and_silent_sentinels_do_not_use_up_the_deadline(
    sentinel: SentinelServer,
    refusing_port: int,
    silent_port: int,
    silent_ones: int,
    open_limiter: Callable[..., Limiter],
) -> None:
    hosts = [*[silent_port] * silent_ones, refusing_port, sentinel.port]
    places = ",".join(f"127.0.0.1:{port}" for port in hosts)
    limiter = open_limiter(f"redis+sentinel://{places}/{SERVICE}", timeout=2)
    assert limiter.check(hits(scope="patience")).allowed


@pytest.mark.parametrize(
    "answer",
    [
        b"*2\r\n$8\r\n10.0.0.2\r\n$3\r\nabc\r\n",
        b"*2\r\n$1\r\n\xff\r\n$4\r\n6379\r\n",
        b"*2\r\n$8\r\n10.0.0.2\r\n$5\r\n72538\r\n",
        b"*2\r\n$8\r\n10.0.0.2\r\n$20\r\n99999999999999999999\r\n",
        b"*1\r\n$8\r\n10.0.0.2\r\n",
        b"%1\r\n$4\r\nport\r\n:7002\r\n",
        b"*2\r\n$-1\r\n$-1\r\n",
        b":6379\r\n",
        b"*99999999999\r\n",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"-ERR no\r\n",
    ],
)
def test_sentinel_that_answers_with_no_address_is_passed_over(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_multilimit.engine.storage.redis.sentinel.LOOK_SECONDS", 0.2)
    address, closed = b"*2\r\n$8\r\n10.0.0.2\r\n$4\r\n7002\r\n", threading.Event()

    def answering(text: bytes) -> Liar:
        return Liar(lambda data: [text] if b"SENTINEL" in data else [b"+OK\r\n" * data.count(b"CLIENT")])

    with answering(answer) as first, answering(address) as second:
        places = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
        primary = to_primary(f"redis+sentinel://{places}/{SERVICE}", protocol=2)[1]["primary"]
        deadline = Deadline(SECONDS)
        deadline.start()
        assert primary.address(deadline) == ("10.0.0.2", 7002)
        primary.ask_another_first()
        primary.close_idle = lambda: closed.set

        primary.watch(("10.0.0.1", 7001))

        assert closed.wait(SECONDS), "it has noticed the new primary"
        primary.close()


@pytest.mark.parametrize("host", ["a" * 64, "primary..example"])
def test_impossible_name_of_the_primary_is_a_storage_error(host: str, open_limiter: Callable[..., Limiter]) -> None:
    named = f"*2\r\n${len(host)}\r\n{host}\r\n$4\r\n6379\r\n".encode()
    with Liar(lambda data: [named] if b"SENTINEL" in data else [b"+OK\r\n" * data.count(b"CLIENT")]) as sentinel:
        limiter = open_limiter(f"redis+sentinel://127.0.0.1:{sentinel.port}/{SERVICE}")

        with pytest.raises(StorageError, match="gave no answer"):
            limiter.check(hits())


def test_sentinel_that_answered_is_asked_first_next_time(
    primary: Server, sentinel: SentinelServer, open_limiter: Callable[..., Limiter]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        places = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{sentinel.port}"
        limiter = open_limiter(f"redis+sentinel://{places}/{SERVICE}", timeout=4)
        limiter.check(hits(scope="next"))
        silent.accept()[0].close()  # it was asked then
        primary.client().client_kill_filter(_type="normal", skipme=True)

        assert limiter.check(hits(scope="next")).allowed

        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_outdated_sentinel_is_asked_last_next_time(
    binary: Binary, sentinel: SentinelServer, refusing_port: int, open_limiter: Callable[..., Limiter]
) -> None:
    with SentinelServer(binary, refusing_port, quorum=2) as stale:
        places = f"127.0.0.1:{stale.port},127.0.0.1:{sentinel.port}"
        limiter = open_limiter(f"redis+sentinel://{places}/{SERVICE}")

        plan = hits(rule("fixed_window"), scope="stale")  # a check that is not repeated when the connection is lost

        with pytest.raises(StorageError, match=f"127.0.0.1:{refusing_port}"):
            limiter.check(plan)
        assert limiter.check(plan).allowed


def test_server_and_sentinel_get_their_own_credentials(binary: Binary, open_limiter: Callable[..., Limiter]) -> None:
    with Server(binary, tcp=True) as server:
        lines = (
            f"sentinel auth-pass {SERVICE} {SECRETS['password']}",
            f"user watcher on >{SECRETS['sentinel']} -@all +sentinel|get-master-addr-by-name",
        )
        server.client().config_set("requirepass", SECRETS["password"])
        with SentinelServer(binary, server.port, quorum=2, options=lines) as sentinel:
            place = f"127.0.0.1:{sentinel.port}/{SERVICE}"
            query = f"sentinel_username=watcher&sentinel_password={IN_QUOTES}"
            limiter = open_limiter(f"redis+sentinel://:{SECRETS['password']}@{place}?{query}")
            assert limiter.check(hits()).allowed
            rights: Callable[..., object] = sentinel.client().execute_command

            for uri, told in (
                (f"redis+sentinel://{place}?{query}", "give the password"),
                (f"redis+sentinel://:{SECRETS['password']}@{place}?{query}x", "sentinel_password"),
            ):
                with pytest.raises(StorageError) as caught:
                    open_limiter(uri).check(hits())
                assert told in caught.value.remedy
            rights("ACL", "SETUSER", "watcher", "-@all")
            with pytest.raises(StorageError) as caught:
                open_limiter(f"redis+sentinel://:{SECRETS['password']}@{place}?{query}").check(hits())
            assert "+sentinel|get-master-addr-by-name" in caught.value.remedy


# Errors


def test_unknown_service_name_is_an_error_with_a_remedy(
    sentinel: SentinelServer, open_limiter: Callable[..., Limiter]
) -> None:
    limiter = open_limiter(f"redis+sentinel://127.0.0.1:{sentinel.port}/limit%20s")
    with pytest.raises(StorageError, match=rf"'limit s': 127.0.0.1:{sentinel.port} knows none") as caught:
        limiter.check(hits())
    assert "sentinel monitor NAME" in caught.value.remedy


def test_unreachable_sentinels_are_named_in_an_error(
    refusing_port: int, silent_port: int, open_limiter: Callable[..., Limiter]
) -> None:
    limiter = open_limiter(f"redis+sentinel://127.0.0.1:{silent_port},127.0.0.1:{refusing_port}/{SERVICE}", timeout=0.1)

    with pytest.raises(StorageError) as caught:
        limiter.check(hits())

    assert all(f"127.0.0.1:{port}" in str(caught.value) for port in (silent_port, refusing_port))
    assert "whether the sentinels run" in caught.value.remedy


def test_error_of_a_redis_py_client_shows_no_passwords(refusing_port: int) -> None:
    """Some versions of redis-py write its sentinels with all they know into the error."""
    known = sentinel_of_redis_py(refusing_port, sentinel_kwargs={"password": SECRETS["sentinel"], "socket_timeout": 1})
    client = known.master_for(SERVICE, password=SECRETS["password"], retry=Retry(NoBackoff(), 0))

    with pytest.raises(StorageError, match=f"No master found for '{SERVICE}'") as caught:
        bare(client).check(hits())

    assert not any(secret in f"{caught.value}{caught.value.__cause__}" for secret in SECRETS.values())


def test_sentinel_object_is_refused_as_a_storage() -> None:
    with pytest.raises(ConfigurationError, match="master_for"):
        Limiter(sentinel_of_redis_py(26379))


# A fail-over


class Load:
    """Checks of a limit too small for the outage, and of one that is never used up."""

    SCARCE = hits("200/hour", scope="scarce")
    PLENTY = hits("100000/hour", scope="plenty")

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self.admitted = {"scarce": 0, "plenty": 0}
        self._lock = threading.Lock()

    def check(self) -> None:
        for name, plan in (("scarce", self.SCARCE), ("plenty", self.PLENTY)):
            decision = self._limiter.check(plan)
            with self._lock:
                self.admitted[name] += decision.allowed
        time.sleep(0.02)


@pytest.fixture
def trio(binary: Binary) -> Iterator[Trio]:
    with Trio(binary) as trio:
        yield trio


@pytest.mark.parametrize("fault", [Server.kill, Server.suspend], ids=["killed", "frozen"])
def test_fail_over_under_load_causes_no_errors(
    trio: Trio, fault: Callable[[Server], None], open_guarded: Callable[..., Limiter], changes: list[Health]
) -> None:
    limiter = open_guarded(trio.url)
    load = Load(limiter)
    idle = [_well_connected(make(trio), trio.primary.client()) for make in (_by_uri, _by_redis_py)]
    with under_load(load.check, threads=THREADS):
        until(lambda: load.admitted["plenty"] > 3 * THREADS)
        fault(trio.primary)
        until(lambda: changes)
        fails = [_fails(each) for each in idle]
        new = trio.wait_for_another_primary()
        at_once = [_works_at_once(each) for each in idle]
        until(lambda: limiter.health().state == "working" and len(changes) > 1)
        until(lambda: load.admitted["scarce"] >= 200 - LOST_AT_MOST)
    used = 100_000 - limiter.peek(Load.PLENTY).remaining

    assert [change.state for change in changes][:2] == ["failed", "working"]
    assert load.admitted["scarce"] <= 200 + LOST_AT_MOST
    assert load.admitted["plenty"] - LOST_AT_MOST <= used <= load.admitted["plenty"]
    assert limiter.peek(Load.SCARCE).decided_by == "storage"
    assert new.client().info("replication")["role"] == "master"
    assert fails == at_once == [True, True]
    for each in idle:
        each.close()


def _by_uri(trio: Trio) -> Limiter:
    return Limiter(storage_from_uri(trio.url, timeout=1))


def _by_redis_py(trio: Trio) -> Limiter:
    options: dict[str, Any] = {"socket_timeout": 1, "retry": Retry(NoBackoff(), 0)}
    known = sentinel_of_redis_py(*[sentinel.port for sentinel in trio.sentinels], sentinel_kwargs=options)
    return bare(known.master_for(SERVICE, **options))


def _well_connected(limiter: Limiter, admin: redis.Redis) -> Limiter:
    """With many idle connections, for single checks and for many at once."""
    plan = hits("100000/hour", scope="idle")
    uses: list[Callable[[], object]] = [lambda: limiter.check(plan), lambda: limiter.check_many([plan])] * THREADS
    wanted = len(admin.client_list()) + len(uses)
    admin.client_pause(60_000, all=False)  # so that no connection is given back
    with ThreadPoolExecutor(len(uses)) as pool:
        for use in uses:
            pool.submit(use)
        until(lambda: len(admin.client_list()) >= wanted)
        admin.client_unpause()
    return limiter


def _fails(limiter: Limiter) -> bool:
    with pytest.raises(StorageError):
        limiter.check(hits("100000/hour", scope="idle"))
    return True


def _works_at_once(limiter: Limiter) -> bool:
    """Whether the idle connections to the old primary are no longer used."""
    decision = limiter.check(hits("100000/hour", scope="idle"))
    return decision.allowed and limiter.check_many([hits("100000/hour", scope="idle")])[0].allowed
