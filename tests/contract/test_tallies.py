"""Tallies on every storage: amounts are added once, their names are bounded, and they expire."""

import time
from collections.abc import Iterator
from typing import cast

import pytest
import redis

from flask_multilimit.engine import ClusterStorage, MemoryStorage, StorageError
from flask_multilimit.engine.storage import KeepsTallies, Tally
from flask_multilimit.engine.storage.cluster.servers import NodesOfUri
from flask_multilimit.engine.storage.redis.storage import RedisStorage
from flask_multilimit.engine.storage.tallies import SOURCE_SECONDS, TalliesInMemory, seconds_of, tallies_of
from support.cluster import Cluster
from support.servers import Binary, Servers, find_binaries

FIRST, SECOND = "rate_limit:{*traffic}:counts:1", "rate_limit:{*traffic}:counts:2"
SOURCE = "rate_limit:{*traffic}:from:abc"


@pytest.fixture(params=["memory", "cluster", "client", *find_binaries()])
def keeper(
    request: pytest.FixtureRequest, server_binaries: dict[str, Binary], servers: Servers
) -> Iterator[KeepsTallies]:
    """Each storage in turn, empty. "client" is one with health checks, which the storage asks by its own methods."""
    if request.param == "memory":
        yield MemoryStorage()
        return
    if request.param == "cluster":
        cluster: Cluster = request.getfixturevalue("cluster")
        storage = ClusterStorage(NodesOfUri(cluster.uri, timeout=10))
        yield storage
        storage.close()
        return
    name = next(iter(server_binaries)) if request.param == "client" else request.param
    server = servers.running(server_binaries[name])
    with server.client(health_check_interval=30 if request.param == "client" else 0) as client:
        client.flushall()
        yield RedisStorage(client)


def tally(key: str = FIRST, /, most: int = 100, **amounts: int) -> Tally:
    return Tally(key, amounts, seconds=60, most=most)


def test_amounts_add_up_by_name(keeper: KeepsTallies) -> None:
    keeper.tally([tally(FIRST, a=1, b=2), tally(SECOND, a=5)], source=SOURCE, number=1)
    keeper.tally([tally(FIRST, b=40)], source=SOURCE, number=2)
    assert keeper.tallies([FIRST, SECOND]).amounts == [{"a": 1, "b": 42}, {"a": 5}]


def test_tally_sent_again_changes_nothing(keeper: KeepsTallies) -> None:
    for number in (1, 2, 2, 1):
        keeper.tally([tally(a=1)], source=SOURCE, number=number)
    assert keeper.tallies([FIRST]).amounts == [{"a": 2}]


def test_each_source_numbers_its_tallies_separately(keeper: KeepsTallies) -> None:
    keeper.tally([tally(a=1)], source=SOURCE, number=7)
    keeper.tally([tally(a=1)], source=f"{SOURCE}d", number=1)
    assert keeper.tallies([FIRST]).amounts == [{"a": 2}]


def test_smallest_amounts_are_dropped_beyond_the_maximum_of_names(keeper: KeepsTallies) -> None:
    amounts = {f"name{i}": i for i in range(1, 31)}
    keeper.tally([tally(FIRST, 10, **amounts)], source=SOURCE, number=1)
    assert keeper.tallies([FIRST]).amounts == [{f"name{i}": i for i in range(21, 31)}]


def test_names_can_be_any_text(keeper: KeepsTallies) -> None:
    names = {"refused\tapi.search\tip-60s": 3, "grüße\n{}": 4, "": 1}
    keeper.tally([Tally(FIRST, names, seconds=60, most=10)], source=SOURCE, number=1)
    assert keeper.tallies([FIRST]).amounts == [names]


def test_instants_replace_each_other_and_expire(keeper: KeepsTallies) -> None:
    now = round(keeper.tallies([FIRST]).at * 1000)

    def put(number: int, **instants: int) -> None:
        keeper.tally([Tally(FIRST, instants, seconds=60, most=10, instants=True)], source=SOURCE, number=number)

    put(1, c=now - 61_000)
    put(2, a=now + 5000, b=now - 50_000)
    put(3, a=now + 1000)

    assert keeper.tallies([FIRST]).amounts == [{"a": now + 1000, "b": now - 50_000}]


def test_missing_key_is_empty(keeper: KeepsTallies) -> None:
    assert keeper.tallies([FIRST, SECOND]).amounts == [{}, {}]


def test_writing_and_reading_return_the_time_of_the_storage(keeper: KeepsTallies) -> None:
    before = time.time()
    written = keeper.tally([tally(a=1)], source=SOURCE, number=1)
    read = keeper.tallies([FIRST]).at
    assert before - 1 < written <= read < time.time() + 1


def test_large_amounts_are_exact(keeper: KeepsTallies) -> None:
    keeper.tally([tally(a=2**52)], source=SOURCE, number=1)
    keeper.tally([tally(a=1)], source=SOURCE, number=2)
    assert keeper.tallies([FIRST]).amounts == [{"a": 2**52 + 1}]


def test_every_key_has_a_ttl(redis_client: redis.Redis) -> None:
    RedisStorage(redis_client).tally([tally(FIRST, a=1), tally(SECOND, a=5)], source=SOURCE, number=1)
    left = {key: redis_client.ttl(key) for key in (FIRST, SECOND, SOURCE)}
    assert left == {FIRST: 60, SECOND: 60, SOURCE: SOURCE_SECONDS}


def test_tally_is_one_command(redis_client: redis.Redis) -> None:
    storage = RedisStorage(redis_client)
    storage.tally([tally(a=1)], source=SOURCE, number=1)  # loads the script
    before = cast("dict[str, int]", redis_client.info("commandstats")["cmdstat_evalsha"])["calls"]

    storage.tally([tally(FIRST, a=1), tally(SECOND, b=1)], source=SOURCE, number=2)

    after = cast("dict[str, int]", redis_client.info("commandstats")["cmdstat_evalsha"])["calls"]
    assert after - before == 1


def test_key_of_instants_expires_after_the_latest(redis_client: redis.Redis) -> None:
    storage = RedisStorage(redis_client)
    now = round(storage.tallies([FIRST]).at * 1000)

    for number, later in enumerate((90_000, 30_000), 1):
        instants = {str(number): now + later}
        storage.tally([Tally(FIRST, instants, seconds=60, most=10, instants=True)], source=SOURCE, number=number)

    assert 140 < redis_client.ttl(FIRST) <= 150


def test_memory_keeps_instants_until_they_expire() -> None:
    now = [1000.0]
    tallies = TalliesInMemory(clock=lambda: now[0])
    for number, instant in enumerate((1_090_000, 1_030_000), 1):
        instants = Tally(FIRST, {str(number): instant}, seconds=60, most=10, instants=True)
        tallies.tally([instants], source=SOURCE, number=number)

    now[0] = 1149.0
    assert tallies.tallies([FIRST]).amounts == [{"1": 1_090_000, "2": 1_030_000}]
    now[0] = 1150.0
    assert tallies.tallies([FIRST]).amounts == [{}]


def test_memory_forgets_expired_tallies() -> None:
    now = [1000.0]
    tallies = TalliesInMemory(clock=lambda: now[0])
    tallies.tally([tally(FIRST, a=1)], source=SOURCE, number=1)
    now[0] += 59
    tallies.tally([tally(SECOND, a=1)], source=SOURCE, number=2)

    now[0] += 1

    assert tallies.tallies([FIRST, SECOND]).amounts == [{}, {"a": 1}]


@pytest.mark.parametrize("reply", [None, [], [1], [1, 2, 3], [1, 2, ["a"]], [1, 2, ["a", "b"]], [1, 2], 7])
def test_malformed_reply_is_a_storage_error(reply: object) -> None:
    with pytest.raises(StorageError, match="wrong shape"):
        tallies_of(reply, 1)


@pytest.mark.parametrize("reply", [None, [], [1], ["a", "b"]])
def test_malformed_time_is_a_storage_error(reply: object) -> None:
    with pytest.raises(StorageError, match="wrong shape"):
        seconds_of(reply)
