"""Access lists of a server: the documented rights are enough for every operation, and each of them is needed."""

import contextlib
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
import redis
from redis.crc import key_slot

from flask_multilimit.engine import Ban, GuardedStorage, Limiter, RedisStorage, StorageError, hits_for, storage_from_uri
from flask_multilimit.engine.algorithms import ALGORITHMS
from flask_multilimit.engine.storage import Tally
from flask_multilimit.engine.storage.redis.failures import (
    REMEDIES,
    RIGHTS,
    RIGHTS_IN_A_CLUSTER,
    RIGHTS_OF_OPERATORS,
    RIGHTS_OF_WORKERS,
)
from support.bench import bare, hits, rule
from support.clock import Clock
from support.cluster import Cluster
from support.folders import DOCS
from support.servers import Server
from support.waiting import until

Allow = Callable[[str], RedisStorage]

PAGE = DOCS / "how-to" / "redis-access.md"
USER = ["limiter", "on", ">PASSWORD", "~rate_limit:*"]


@pytest.fixture
def allow(any_server: Server, client: redis.Redis) -> Iterator[Allow]:
    """Makes a storage of a user who has only the given rights."""
    opened: list[RedisStorage] = []

    def allow(rights: str) -> RedisStorage:
        acl(client, "SETUSER", *USER, *rights.split())
        client.script_flush("SYNC")
        uri = any_server.tcp_url.replace("redis://", "redis://limiter:PASSWORD@")
        storage = storage_from_uri(uri, timeout=10)
        assert isinstance(storage, RedisStorage)
        opened.append(storage)
        return storage

    yield allow
    for storage in opened:
        storage.close()
    acl(client, "DELUSER", "limiter")


def acl(client: redis.Redis, *arguments: str) -> None:
    client.execute_command("ACL", *arguments)  # type: ignore[no-untyped-call]


def use_everything(storage: RedisStorage) -> None:
    """Each operation with each algorithm, by the server's clock; by a clock of the test, what needs time to happen."""
    for name in ALGORITHMS:
        limiter, plan = Limiter(storage), hits(rule(name))
        limiter.refund(limiter.check(plan))
        limiter.check(plan, check_id=uuid4())
        limiter.check_many([plan, plan])
        limiter.peek(plan)
        assert not limiter.check(hits(rule(name), cost=4)).allowed
        limiter.reset(plan)
    banning = hits_for("1/minute", scope="banning", ban=Ban())
    for _ in range(5):
        Limiter(storage).check(banning)
    counts, instants = "rate_limit:{*traffic}:counts:1", "rate_limit:{*traffic}:counts:2"
    each = [Tally(counts, {"a": 1}, seconds=60, most=10), Tally(instants, {"b": 2**42}, 60, most=10, instants=True)]
    storage.tally(each, source="rate_limit:{*traffic}:from", number=1)
    assert storage.tallies([counts, instants]).amounts == [{"a": 1}, {"b": 2**42}]
    storage.clock = clock = Clock()
    limiter, plan = Limiter(storage), hits("1000 per 10 seconds", scope="aged", cost=200)
    for seconds in (0, 5, 11, -30):
        clock.advance(seconds)
        assert limiter.check(plan).allowed
    limiter.reset(plan)


def test_documented_rights_are_enough_for_every_operation(allow: Allow) -> None:
    use_everything(allow(RIGHTS))


@pytest.mark.parametrize("right", RIGHTS.split())
def test_each_documented_right_is_needed(allow: Allow, right: str) -> None:
    storage = allow(" ".join(other for other in RIGHTS.split() if other != right))
    with pytest.raises(StorageError) as caught:
        use_everything(storage)
    assert right.partition("|")[0] in caught.value.remedy


def test_access_list_refuses_keys_with_another_prefix(allow: Allow) -> None:
    with pytest.raises(StorageError) as caught:
        bare(allow(RIGHTS)).check(hits_for("5/minute", scope="api", prefix="other:"))
    assert caught.value.remedy == REMEDIES["NOPERM"] or "~rate_limit:*" in caught.value.remedy


def test_listing_keys_needs_the_rights_scan_and_pttl(allow: Allow) -> None:
    storage = allow(f"{RIGHTS} +scan +pttl")
    Limiter(storage).check(hits())
    assert [found.key for found in storage.keys("rate_limit:")] == [hits()[0].key]

    for missing in ("-scan", "-pttl"):
        with pytest.raises(StorageError):
            allow(f"{RIGHTS} +scan +pttl {missing}").keys("rate_limit:")


def test_guard_recovers_with_the_documented_rights_alone(allow: Allow, client: redis.Redis) -> None:
    guard = GuardedStorage(allow(RIGHTS), workers=1)
    with contextlib.closing(Limiter(guard)) as limiter:
        limiter.check(hits())
        acl(client, "SETUSER", "limiter", "-evalsha")
        assert limiter.check(hits()).decided_by == "local"

        acl(client, "SETUSER", "limiter", "+evalsha")

        until(lambda: limiter.health().state == "working")
        assert limiter.peek(hits()).remaining == 3
        assert limiter.health().given_up == 0


@pytest.fixture
def allow_in_cluster(cluster: Cluster) -> Iterator[Callable[[str], Limiter]]:
    """Makes a limiter of a user who has only the given rights on every server of a cluster."""
    with contextlib.ExitStack() as opened:

        def allow(rights: str) -> Limiter:
            for server in cluster.primaries:
                acl(cluster.client_of(server), "SETUSER", *USER, "resetkeys", "~rate_limit:*", "-@all", *rights.split())
            uri = cluster.uri.replace("://", "://limiter:PASSWORD@")
            return opened.enter_context(contextlib.closing(Limiter(storage_from_uri(uri, timeout=10))))

        yield allow
    for server in cluster.primaries:
        acl(cluster.client_of(server), "DELUSER", "limiter")


def ask_while_a_slot_moves(cluster: Cluster, limiter: Limiter) -> None:
    """Its key is on neither server yet, so the one that gives the slot away sends the check on."""
    cluster.flush()
    plan = hits("5/minute", scope="moving")
    source = cluster.owner(plan[0].key)
    target, slot = cluster.another(source), key_slot(plan[0].key.encode())
    cluster.begin_move(slot, source, target)
    try:
        limiter.check(plan)
    finally:
        cluster.end_move(slot, source, target)
        cluster.move(slot, target, source)


def test_cluster_needs_exactly_the_documented_further_rights(
    cluster: Cluster, allow_in_cluster: Callable[[str], Limiter]
) -> None:
    ask_while_a_slot_moves(cluster, allow_in_cluster(f"{RIGHTS} {RIGHTS_IN_A_CLUSTER}"))

    for missing in RIGHTS_IN_A_CLUSTER.split():
        limiter = allow_in_cluster(f"{RIGHTS} {RIGHTS_IN_A_CLUSTER} {missing.replace('+', '-')}")
        with pytest.raises(StorageError) as caught:
            ask_while_a_slot_moves(cluster, limiter)
        assert missing in caught.value.remedy.split()


def test_documentation_names_the_rights_in_the_code() -> None:
    told = " ".join(PAGE.read_text().replace("\\\n", " ").split())

    assert f"ACL SETUSER worker on >PASSWORD ~rate_limit:* {RIGHTS} {RIGHTS_OF_WORKERS} ```" in told
    operator = f"{RIGHTS} {RIGHTS_OF_WORKERS} {RIGHTS_OF_OPERATORS}"
    assert f"ACL SETUSER operator on >PASSWORD ~rate_limit:* {operator} ```" in told
    assert f"`{RIGHTS_IN_A_CLUSTER}`" in told
