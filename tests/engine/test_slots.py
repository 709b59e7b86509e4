"""The keeper of slots: gives back without waiting, and again what turns out to be lost."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from flask_multilimit.engine import Concurrent, Limiter, RedisStorage, hits_for, slots
from flask_multilimit.engine.slots import KEEPER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

    from support.servers import Server

PATIENCE = 20
THREE = hits_for(Concurrent(3), scope="reports")


@pytest.fixture
def limiter(server: Server, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Limiter]:
    redis_client.delete(THREE[0].key)
    for name in ("CONFIRM_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(slots, name, 0.05)
    limiter = Limiter(RedisStorage.from_url(server.url, timeout=10))
    yield limiter
    limiter.close()


def until(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_so()


def test_a_slot_that_is_given_back_is_free_for_the_next_check(limiter: Limiter) -> None:
    for _ in range(20):
        with limiter.slot(THREE) as first, limiter.slot(THREE) as second, limiter.slot(THREE) as third:
            assert [first.remaining, second.remaining, third.remaining] == [2, 1, 0]
    assert limiter.peek(THREE).remaining == 3


def test_slots_that_many_threads_give_back_at_once_are_all_free(limiter: Limiter) -> None:
    many = hits_for(Concurrent(40), scope="reports")
    ready = threading.Barrier(40)

    def work() -> None:
        with limiter.slot(many):
            ready.wait(PATIENCE)

    threads = [threading.Thread(target=work) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert limiter.peek(many).remaining == 40
    assert len(KEEPER) == 0


def test_a_release_that_is_lost_with_its_connection_is_made_again(limiter: Limiter, redis_client: redis.Redis) -> None:
    with limiter.slot(THREE):
        redis_client.client_kill_filter(_type="normal", skipme=True)

    assert until(lambda: redis_client.zcard(THREE[0].key) == 0)
    assert until(lambda: len(KEEPER) == 0)


def test_a_release_that_the_server_refuses_is_made_again(
    limiter: Limiter, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with limiter.slot(THREE):
        redis_client.config_set("min-replicas-to-write", 1)
    try:
        assert until(lambda: len(KEEPER) == 1), "nobody else asks; the keeper finds out by itself"
        assert redis_client.zcard(THREE[0].key) == 1
    finally:
        redis_client.config_set("min-replicas-to-write", 0)

    assert until(lambda: redis_client.zcard(THREE[0].key) == 0)
    assert "could not be released" in caplog.text


def test_what_is_released_just_before_the_limiter_is_closed_is_free(
    limiter: Limiter, redis_client: redis.Redis
) -> None:
    with limiter.slot(THREE):
        pass
    limiter.close()

    assert redis_client.zcard(THREE[0].key) == 0
    assert len(KEEPER) == 0


def test_a_release_waits_for_no_answer(
    limiter: Limiter, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "CONFIRM_SECONDS", 30)
    storage: Any = limiter.storage
    with limiter.slot(THREE):
        redis_client.client_pause(60_000, all=False)
    try:
        (line,) = storage._wire._idle
        assert line.owed == 1
    finally:
        redis_client.client_unpause()

    assert until(lambda: redis_client.zcard(THREE[0].key) == 0)
