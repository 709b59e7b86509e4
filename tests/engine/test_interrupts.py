"""Exceptions that come from anywhere, such as those of signal handlers: whatever they interrupt works afterwards."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from threading import Thread
from time import monotonic
from unittest.mock import Mock

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from flask_multilimit.engine import Limiter, MemoryStorage, Rule, forks, hits_for
from flask_multilimit.engine.slots import Keeper
from flask_multilimit.engine.storage.cluster.hash_slots import HASH_SLOTS, HashSlots
from flask_multilimit.engine.storage.forgetting import _remove_leaf
from flask_multilimit.engine.storage.layers import leases
from flask_multilimit.engine.storage.layers.leases import LeasingStorage
from flask_multilimit.engine.storage.redis.connections import Deadline
from flask_multilimit.engine.storage.redis.storage import RedisStorage
from flask_multilimit.engine.storage.redis.wire import command_of, wire_of
from flask_multilimit.engine.threads import Beat
from support.doubles import raising
from support.interrupts import Interrupt, interrupted
from support.servers import Binary, Server
from support.waiting import PATIENCE, SECONDS, until

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def check() -> Callable[[], object]:
    limiter, both = Limiter(), [Rule(60, 5), Rule(60, 5, algorithm="token_bucket")]
    hits = hits_for(both, scope="api", subject="ip:203.0.113.7")
    return lambda: limiter.check(hits)


def fork() -> Callable[[], object]:
    """CPython ignores what is raised before and after a fork."""
    check_limit = check()

    def act() -> None:
        for call in (forks._before, forks._after_in_parent, forks._after_in_parent):
            with suppress(Interrupt):
                call()
        check_limit()

    return act


def wake() -> Callable[[], object]:
    beat = Beat(lambda: None, name="multilimit-interrupted")
    return beat.wake


def learn_owners() -> Callable[[], object]:
    deadline = Deadline(None)
    slots = HashSlots([("10.0.0.1", 7001)], lambda _: [[0, HASH_SLOTS - 1, ["10.0.0.2", 7001]]], deadline)
    return slots.primaries


@pytest.mark.parametrize("made", [check, fork, wake, learn_owners])
def test_interrupted_thread_leaves_no_lock_locked(made: Callable[[], Callable[[], object]]) -> None:
    act = made()
    for point in interrupted(act):
        another = Thread(target=act, daemon=True)
        another.start()
        another.join(SECONDS)
        assert not another.is_alive(), point


def test_key_that_is_set_aside_is_never_in_the_heap_twice() -> None:
    class Key(str):
        def __lt__(self, other: str) -> bool:
            if next(comparisons) == number:
                raise Interrupt
            return super().__lt__(other)

    for number in range(4):
        comparisons = count()
        heap: list[tuple[int, str]] = [(0, Key(key)) for key in "akblmcdnopqe"]
        with suppress(Interrupt):
            _remove_leaf(heap, 8)

        assert len({key for _, key in heap}) == len(heap), number


def test_beat_runs_its_task_although_the_start_of_its_thread_was_interrupted() -> None:
    runs = count(1)
    last = 0

    def task() -> None:
        nonlocal last
        last = next(runs)

    beat = Beat(task, name="multilimit-interrupted")

    def run() -> None:
        beat.wake()
        until(lambda: not beat.running)

    for _ in interrupted(run):
        before = last
        beat.wake()
        until(lambda before=before: last > before)  # type: ignore[misc]


def test_slot_that_is_interrupted_before_its_block_begins_is_renewed_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a timeout of gevent, which switches greenlets while a thread starts."""

    keeper, storage = Keeper(), MemoryStorage()  # that of the process may have a thread, which need not be woken
    monkeypatch.setattr(keeper.beat, "wake", raising(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        keeper.hold(storage, storage.check(hits_for("5 at once", scope="api")))

    assert len(keeper) == 0


def test_interrupted_check_keeps_other_subjects_from_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MOST_LEASES", 2)
    storage = LeasingStorage(MemoryStorage())
    subjects = (f"user:{number}" for number in count())

    def check_one() -> list[str]:
        leased = hits_for(Rule(60, 50, lease=10), scope="api", subject=next(subjects))
        return [storage.check(leased).decided_by for _ in range(4)]

    def check_first() -> None:
        nonlocal storage
        storage = LeasingStorage(MemoryStorage())
        check_one()

    for point in interrupted(check_first, of="flask_multilimit/engine/storage/layers"):
        assert all("lease" in check_one() for _ in range(3)), point


@pytest.mark.parametrize("single", [False, True], ids=["", "with a single connection"])
def test_interrupted_client_object_gives_nobody_the_standing_of_another(server: Server, single: bool) -> None:
    client = server.client(retry=Retry(NoBackoff(), 1), single_connection_client=single)
    limiter, subjects = Limiter(client), count()

    def standing(subject: str) -> int:
        return limiter.check(hits_for(Rule(60, 9999), scope=f"single-{single}", subject=subject)).remaining

    for number in range(3):
        standing(f"user:{number % 2}")
    for act in (partial(standing, "user:0"), partial(RedisStorage(client).keys, "rate_limit:", 3)):
        for point in interrupted(act, of="redis"):
            assert standing(f"user:new{next(subjects)}") == 9998, point
    limiter.close()


def test_connection_whose_greeting_was_interrupted_is_not_kept_for_another_question(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = server.client(client_name="greeted")
    monkeypatch.setattr(client.connection_pool.connection_class, "read_response", Mock(side_effect=KeyboardInterrupt))

    with pytest.raises(KeyboardInterrupt):
        Limiter(client).check(hits_for("5/minute", scope="api"))

    (connection,) = client.connection_pool._available_connections
    assert connection._sock is None, "the answer to CLIENT SETNAME may come later"


def test_interrupted_client_keeps_no_idle_connection_in_a_blocking_pool_of_older_redis_py(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Older(redis.BlockingConnectionPool):
        def disconnect(self) -> None:  # type: ignore[override]
            pytest.fail("it would close connections in use, too")

    pool = Older.from_url(server.url, max_connections=2)
    client = redis.Redis(connection_pool=pool)
    client.ping()
    (connection,) = filter(None, pool.pool.queue)
    disconnect = connection.disconnect

    def disconnect_idle() -> None:
        assert pool.pool.mutex.locked(), "another thread may take it into use"
        disconnect()

    monkeypatch.setattr(connection, "disconnect", disconnect_idle)
    monkeypatch.setattr(client, "parse_response", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        RedisStorage(client).check(hits_for("5/minute", scope="api"))

    assert connection._sock is None


def test_interrupted_question_costs_the_pool_no_connection(server: Server) -> None:
    wire = wire_of(server.client(max_connections=1), Deadline(None))
    assert wire is not None

    def ask_twice() -> object:
        return [wire.ask(command_of(b"PING"), monotonic()) for _ in "ab"]  # opens a connection, and uses it again

    for point in interrupted(ask_twice):
        assert ask_twice() == [b"PONG", b"PONG"], point
        wire.close()


TIMES_OUT = """
from gevent import monkey

monkey.patch_all()

import os
import signal
import sys

import gevent

from flask_multilimit.engine import Limiter, hits_for
from flask_multilimit.engine.storage import storage_from_uri

server, uri = int(sys.argv[1]), sys.argv[2]
limiter = Limiter(storage_from_uri(uri, timeout=60))


def left(subject, cost):
    return limiter.check(hits_for("9/hour", scope="mail", subject=subject, cost=cost)).remaining


left("user:idle", 1)
os.kill(server, signal.SIGSTOP)
try:
    with gevent.Timeout(0.1):
        left("user:timed-out", 5)
except gevent.Timeout:
    others = [gevent.spawn(left, f"user:{cost}", cost) for cost in (1, 2, 3)]
    gevent.sleep(0.1)
finally:
    os.kill(server, signal.SIGCONT)
gevent.joinall(others, raise_error=True)
print([each.value for each in others], left("user:timed-out", 1))
"""


def test_check_that_a_timeout_of_gevent_ends_counts_and_gives_nobody_its_reply(binary: Binary) -> None:
    with Server(binary) as server:
        command = [sys.executable, "-c", TIMES_OUT, str(server.pid), f"{server.url}?max_connections=1"]
        made = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert (made.stdout, made.stderr) == ("[8, 7, 6] 3\n", "")
