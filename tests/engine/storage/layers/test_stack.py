"""Layers: their order, which limiters get which, and wrong options."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from flask_multilimit.engine import (
    Concurrent,
    ConfigurationError,
    DenyCache,
    GuardedStorage,
    Layers,
    LeasingStorage,
    Limiter,
    MemoryStorage,
    RedisStorage,
    Rule,
    hits_for,
)
from flask_multilimit.engine.slots import slots_of
from flask_multilimit.engine.storage import layers_of
from support.bench import hits
from support.clock import Clock
from support.doubles import RecordingStorage
from support.servers import Server


def layers(limiter: Limiter) -> list[str]:
    return [type(layer).__name__ for layer in layers_of(limiter.outermost)]


def test_limiter_made_from_a_uri_or_a_client_has_all_layers(server: Server, redis_client: redis.Redis) -> None:
    for storage in (server.url, redis_client):
        assert layers(Limiter(storage)) == ["DenyCache", "GuardedStorage", "RedisStorage"]


def test_storage_object_gets_layers_only_if_they_are_given(redis_client: redis.Redis) -> None:
    storage = RedisStorage(redis_client)
    assert layers(Limiter(storage)) == ["RedisStorage"]
    assert layers(Limiter(storage, layers=Layers(deny_cache=0))) == ["GuardedStorage", "RedisStorage"]


def test_memory_storage_gets_no_layers() -> None:
    limiter = Limiter("memory://", layers=Layers())
    limiter.check(hits_for(Rule(60, 10, lease=5), scope="leased"))
    assert layers(limiter) == ["MemoryStorage"]


def test_storage_that_has_layers_gets_no_second_ones(redis_client: redis.Redis) -> None:
    given = DenyCache(GuardedStorage(RedisStorage(redis_client), workers=1))
    assert layers(Limiter(given, layers=Layers())) == ["DenyCache", "GuardedStorage", "RedisStorage"]


@pytest.mark.parametrize(
    ("deny_cache", "expected"),
    [
        (1.0, ["DenyCache", "LeasingStorage", "GuardedStorage", "RedisStorage"]),
        (0, ["LeasingStorage", "GuardedStorage", "RedisStorage"]),
    ],
    ids=["with a deny cache", "without a deny cache"],
)
def test_lease_layer_is_added_with_the_first_rule_that_has_a_lease(
    redis_client: redis.Redis, deny_cache: float, expected: list[str]
) -> None:
    limiter = Limiter(redis_client, layers=Layers(deny_cache=deny_cache, workers=1))
    leased = hits_for(Rule(60, 10, lease=5), scope="leased")

    limiter.check(hits())
    assert "LeasingStorage" not in layers(limiter)
    decisions = [limiter.check(leased) for _ in range(3)]

    assert layers(limiter) == expected
    assert [decision.decided_by for decision in decisions] == ["storage", "storage", "lease"]


def all_layers(storage: MemoryStorage, clock: Clock) -> DenyCache:
    guard = GuardedStorage(storage, workers=1, clock=clock)
    return DenyCache(LeasingStorage(guard, clock=clock), clock=clock)


def test_slots_are_renewed_and_released_through_every_layer() -> None:
    clock = Clock()
    storage = RecordingStorage(clock)
    outermost = all_layers(storage, clock)
    wanted = hits_for(Concurrent(1, timeout=60), scope="reports")
    held = outermost.check(wanted)

    clock.advance(40)
    outermost.renew(slots_of(held))
    clock.advance(40)
    assert storage.peek(wanted).remaining == 0

    outermost.release(slots_of(held))
    assert storage.peek(wanted).remaining == 1


def test_closing_a_limiter_closes_the_storage_below_every_layer() -> None:
    class Closable(RecordingStorage):
        closed = False

        def close(self) -> None:
            self.closed = True

    storage = Closable(Clock())

    Limiter(all_layers(storage, Clock())).close()

    assert storage.closed


def wrong(option: str, values: list[Any], text: str) -> list[Any]:
    return [pytest.param(option, value, rf"{option}=.*: give {text}", id=f"{option}={value}") for value in values]


WRONG = [
    *wrong("workers", [0, -1, True, 1.5, "2"], "a whole number, 1 or more, or leave it out"),
    *wrong("logger", ["app"], "a logging.Logger"),
    *wrong("on_change", ["print"], "a callable with the Health"),
    *wrong("memory_keys", [999, 0, True, 1e6, "50000", None], "a whole number, 1000 or more"),
]
WRONG_POLICIES = ["locally", "", 1, True, ["local"], None]
POLICIES = "one of 'local', 'allow', 'deny', 'raise'"


@pytest.mark.parametrize(("option", "value", "message"), [*WRONG, *wrong("on_error", WRONG_POLICIES, POLICIES)])
def test_wrong_option_of_a_guard_is_an_error(option: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        GuardedStorage(MemoryStorage(), **{option: value})


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        *WRONG,
        *wrong("on_storage_error", WRONG_POLICIES, POLICIES),
        *wrong("deny_cache", [-1, 61, "1", True, None], "seconds from 0, which is off, to 60"),
    ],
)
def test_wrong_option_of_layers_is_an_error(option: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Layers(**{option: value})


@pytest.mark.parametrize("seconds", [0, -1, 60.1, float("nan"), float("inf"), "1", None, True])
def test_wrong_time_of_a_deny_cache_is_an_error(seconds: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"DenyCache\(seconds=.*\): must be above 0, at most 60; to do without"
    ):
        DenyCache(MemoryStorage(), seconds=seconds)


@pytest.mark.parametrize("layer", [DenyCache, GuardedStorage, LeasingStorage])
@pytest.mark.parametrize("storage", [None, "redis://:secret@localhost", MemoryStorage, 3])
def test_layer_around_an_object_that_is_no_storage_is_an_error(layer: Callable[[Any], object], storage: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r" around .*: give a Storage, such as storage_from_uri\(URI\)"
    ) as caught:
        layer(storage)
    assert "secret" not in str(caught.value)
