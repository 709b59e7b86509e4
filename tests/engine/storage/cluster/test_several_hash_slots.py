"""Plans whose keys are in several hash slots of a cluster are all or nothing: a refusal takes charges back."""

import itertools
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from redis.crc import key_slot

from flask_multilimit.engine import (
    Ban,
    ClusterStorage,
    Concurrent,
    GuardedStorage,
    Hit,
    Hits,
    Limiter,
    MemoryStorage,
    RedisStorage,
    Rule,
    StorageError,
    hits_for,
)
from flask_multilimit.engine.decision import Charge, Decision
from flask_multilimit.engine.slots import require_slots, slots_of
from flask_multilimit.engine.storage import storage_from
from flask_multilimit.engine.storage.cluster.servers import NodesOfUri
from support.bench import bare, hits, rule
from support.clock import Clock
from support.cluster import Cluster
from support.servers import Binary, Server
from support.waiting import until

SCOPES = ("application", "api.update", "shop")
"""In different hash slots, on different servers."""


def timed(cluster: Cluster, clock: Any = None) -> Limiter:
    return Limiter(ClusterStorage(NodesOfUri(cluster.uri, timeout=10), clock=clock))


@pytest.fixture
def limiter(cluster: Cluster) -> Iterator[Limiter]:
    limiter = timed(cluster)
    yield limiter
    limiter.close()


def plan_of(*counts: int, algorithm: str = "sliding_window") -> tuple[Hit, ...]:
    """One rule in each of as many scopes."""
    scopes = zip(SCOPES, counts, strict=False)
    return tuple(hit for scope, count in scopes for hit in hits(rule(algorithm, 60, count), scope=scope))


def remaining(decision: Decision) -> list[int]:
    return [status.remaining for status in decision.statuses]


def members(cluster: Cluster, key: str) -> set[bytes]:
    found: Any = cluster.client_of(cluster.owner(key)).zrange(key, 0, -1)
    return set(found)


def spoil(cluster: Cluster, hit: Hit) -> None:
    """Put a value of another type in the key of ``hit``, so that its server fails to answer."""
    client = cluster.client_of(cluster.owner(hit.key))
    client.delete(hit.key)
    client.rpush(hit.key, "not ours")


def test_the_scopes_of_these_tests_lie_on_different_servers(cluster: Cluster) -> None:
    owners = [cluster.owner(hit.key) for hit in plan_of(1, 1, 1)]
    assert len(set(owners)) == 3


# Bans that watch rules in other hash slots


def banned_by_others(*watched: Hit) -> tuple[Hit, ...]:
    """A ban for a minute after two refusals by rules in other hash slots."""
    ban = Ban(after=2, within=60, time=60, factor=1)
    *_, hit = hits_for("1/minute", scope="elsewhere", subject="user:ann", ban=ban)
    return (*watched, replace(hit, watches=tuple(each.key for each in watched)))


def seen_bans(decision: Decision) -> list[tuple[bool, bool, bool, int]]:
    return [(decision.allowed, ban.holds, ban.begun, ban.strikes_left) for ban in decision.bans]


@pytest.mark.parametrize("counts", [(1,), (1, 3), (3, 1), (1, 1, 1)], ids=str)
def test_a_refusal_in_another_hash_slot_is_a_strike(limiter: Limiter, counts: tuple[int, ...]) -> None:
    plan, one_storage = banned_by_others(*plan_of(*counts)), Limiter("memory://")
    for _ in range(5):
        assert seen_bans(limiter.check(plan)) == seen_bans(one_storage.check(plan))
    assert limiter.peek(plan[-1:]).bans[0].holds


def test_refusal_in_another_hash_slot_by_a_rule_that_a_ban_does_not_watch_is_no_strike(limiter: Limiter) -> None:
    watched, other = plan_of(9, 1)
    plan = (other, *banned_by_others(watched))
    assert [seen_bans(limiter.check(plan)) for _ in range(3)] == [
        [(allowed, False, False, 2)] for allowed in (True, False, False)
    ]


def test_refusal_is_one_strike_beside_a_refusal_in_another_hash_slot(limiter: Limiter) -> None:
    ban = Ban(after=2, within=60, time=60, factor=1)
    plan = (*hits_for("1/minute", scope="elsewhere", subject="user:ann", ban=ban), *plan_of(1))
    one_storage = Limiter("memory://")

    for _ in range(4):
        assert seen_bans(limiter.check(plan)) == seen_bans(one_storage.check(plan))

    assert limiter.peek(plan[:2]).bans[0].holds


def test_repeated_check_is_one_strike_in_another_hash_slot(limiter: Limiter) -> None:
    plan, id_ = banned_by_others(*plan_of(1)), uuid4()
    limiter.check(plan)
    seen = [seen_bans(limiter.check(plan, check_id=id_)) for _ in range(3)]
    assert seen == [[(False, False, False, 1)]] * 3


@pytest.mark.parametrize("algorithm", ["fixed_window", "token_bucket"])
def test_refusal_in_another_hash_slot_gives_back_nothing_of_a_limit_with_a_ban(
    limiter: Limiter, algorithm: str
) -> None:
    banning = hits_for(rule(algorithm, 3600, 9), scope="elsewhere", subject="user:ann", ban=Ban())
    plan = (*banning, *plan_of(1))

    decisions = [limiter.check(plan) for _ in range(4)]

    assert [decision.allowed for decision in decisions] == [True, False, False, False]
    assert limiter.peek(banning).remaining == 8


def test_ban_of_a_shadow_has_begun_even_if_another_hash_slot_refuses(limiter: Limiter) -> None:
    trial = hits_for("1/minute; 9/hour", scope="elsewhere", subject="user:ann", ban=Ban(after=1), shadow=True)
    plan, one_storage = (*plan_of(1), *trial), Limiter("memory://")
    for _ in range(3):
        assert seen_bans(limiter.check(plan)) == seen_bans(one_storage.check(plan))


def test_a_peek_is_no_strike_in_another_hash_slot(limiter: Limiter) -> None:
    plan = banned_by_others(*plan_of(1))
    limiter.check(plan)
    seen = [seen_bans(limiter.peek(plan)) for _ in range(3)]
    assert seen == [[(False, False, False, 2)]] * 3


# All or nothing


LEAVE_NOTHING = ["fixed_window", "gcra", "leaky_bucket", "sliding_window", "token_bucket"]
"""Algorithms that keep nothing of a charge that is taken back. ``sliding_window_counter`` keeps the begin of its
window."""


@pytest.mark.parametrize("seed", range(6))
def test_cluster_gives_the_same_replies_as_a_memory_storage(cluster: Cluster, seed: int) -> None:
    """The same history, under one clock, in a cluster and in memory: many rules in many slots."""
    dice, clock = random.Random(seed), Clock()
    here, there = Limiter(MemoryStorage(clock)), timed(cluster, clock)
    everything = [
        hit
        for scope in (*SCOPES, "a", "b")
        for name in LEAVE_NOTHING
        for shadow in (False, True)
        for hit in hits_for(rule(name, 10, dice.randint(2, 9)), scope=scope, shadow=shadow, subject=f"user:{shadow}")
    ]
    admitted: list[tuple[Decision, Decision]] = []
    for _ in range(120):
        plan = dice.sample(everything, dice.randint(1, 8))
        ask = dice.choice(["check", "check", "check", "peek"])
        one, other = getattr(here, ask)(plan), getattr(there, ask)(plan)
        assert list(other.reply) == list(one.reply)
        assert (other.allowed, remaining(other)) == (one.allowed, remaining(one))
        admitted += [(one, other)] if one.charges else []
        if admitted and dice.random() < 0.2:
            one, other = admitted.pop(dice.randrange(len(admitted)))
            here.refund(one)
            there.refund(other)
        clock.advance(dice.choice([0, 0.1, 1.5]))
    there.close()


@pytest.mark.parametrize(
    ("shared", "own", "admitted"),
    [("1000/hour", "20/hour", 60), ("50/hour", "1000/hour", 50)],
    ids=["their own limits refuse", "the shared limit refuses"],
)
def test_concurrent_refusals_neither_exceed_limits_nor_lose_units(
    cluster: Cluster, limiter: Limiter, shared: str, own: str, admitted: int
) -> None:
    """Three plans that share a limit, each with one of its own, by many threads. A check that one of them refuses may
    have charged the other for a moment."""
    common = hits(shared, scope="application")
    separate = [hits(own, scope=scope) for scope in ("api.update", "login", "x")]

    def ask(n: int) -> Decision:
        return limiter.check(common + separate[n % 3] if n % 2 else separate[n % 3] + common)

    with ThreadPoolExecutor(8) as pool:
        decisions = list(pool.map(ask, range(450)))

    ids = {decision.check_id for decision in decisions if decision.allowed}
    charged = [members(cluster, each[0].key) for each in separate]
    assert len(ids) == admitted
    assert members(cluster, common[0].key) == set[bytes]().union(*charged) == ids
    assert own == "1000/hour" or [len(each) for each in charged] == [20] * 3


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_failed_hash_slot_leaves_quotas_in_other_hash_slots_unchanged(
    cluster: Cluster, limiter: Limiter, algorithm: str, failing: int
) -> None:
    plan = plan_of(9, 9, 9, algorithm=algorithm)
    limiter.check(plan)
    spoil(cluster, plan[failing])
    others = [hit for hit in plan if hit is not plan[failing]]

    for _ in range(3):
        with pytest.raises(StorageError) as caught:
            limiter.check(plan)
        assert caught.value.key_specific

    assert remaining(limiter.peek(others)) == [8, 8]


# Concurrent rules: a check holds slots in several hash slots


def at_once(*counts: int, timeout: float = 60) -> tuple[Hit, ...]:
    """One ``Concurrent`` rule in each of as many scopes."""
    scopes = zip(SCOPES, counts, strict=False)
    return tuple(hit for scope, count in scopes for hit in hits(Concurrent(count, timeout), scope=scope))


@pytest.mark.parametrize("tight", [0, 1, 2])
def test_refused_check_holds_no_slot_on_any_server(cluster: Cluster, limiter: Limiter, tight: int) -> None:
    counts = [9, 9, 9]
    counts[tight] = 2
    plan = at_once(*counts) + hits("100/hour", scope="login")
    with limiter.slot(plan) as first, limiter.slot(plan) as second:
        refused = limiter.check(plan)

        assert (first.allowed, second.allowed, refused.allowed, refused.waits_for_slot) == (True, True, False, True)
        assert [status.hit for status in refused.violated] == [plan[tight]]
        assert [members(cluster, hit.key) for hit in plan] == [{first.check_id, second.check_id}] * 4

    assert remaining(limiter.peek(plan)) == [*counts, 98]


def test_failed_hash_slot_leaves_no_slot_held_on_other_servers(cluster: Cluster, limiter: Limiter) -> None:
    plan = at_once(9, 9, 9)
    spoil(cluster, plan[2])

    for asked in (plan, plan[::-1]):
        with pytest.raises(StorageError):
            limiter.check(asked)

    assert remaining(limiter.peek(plan[:2])) == [9, 9]


def test_slots_on_several_servers_are_renewed_together(cluster: Cluster, limiter: Limiter) -> None:
    plan = at_once(3, 3, 3)
    decision = limiter.check(plan)

    def scores() -> list[Any]:
        return [cluster.client_of(cluster.owner(hit.key)).zscore(hit.key, decision.check_id) for hit in plan]

    before = scores()
    require_slots(limiter.storage).renew(slots_of(decision))

    assert all(after > was for was, after in zip(before, scores(), strict=True))
    limiter.release(decision)
    assert scores() == [None] * 3


def test_no_more_requests_run_at_once_than_every_rule_admits(limiter: Limiter) -> None:
    """Many threads ask in any order, so that checks which refuse each other meet on every server."""
    plan, running, most = at_once(9, 2, 3), set[bytes](), list[int]()

    def work(seed: int) -> int:
        dice, admitted = random.Random(seed), 0
        for _ in range(40):
            with limiter.slot(dice.sample(plan, len(plan))) as decision:
                if decision.allowed:
                    running.add(decision.check_id)
                    most.append(len(running))
                    limiter.peek(plan)  # takes a moment
                    running.discard(decision.check_id)
                    admitted += 1
        return admitted

    with ThreadPoolExecutor(6) as pool:
        admitted = sum(pool.map(work, range(6)))

    assert admitted > 0
    assert max(most) <= 2
    assert remaining(limiter.peek(plan)) == [9, 2, 3]


# Clocks


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_counter", "token_bucket"])
def test_each_charge_is_refunded_by_the_clock_of_its_own_server(cluster: Cluster, algorithm: str) -> None:
    """Two servers, one an hour ahead. The server of the last hit is always asked first."""
    now = 1_750_000_000_000_000
    limiter = timed(cluster, itertools.cycle([now + 3_600_000_000, now]).__next__)
    plan = plan_of(5, 5, algorithm=algorithm)

    decision = limiter.check(plan)
    assert decision.at == now
    assert [charge.until - now > 3_600_000_000 for charge in decision.charges] == [False, True]
    limiter.refund(decision)

    assert remaining(limiter.peek(plan)) == [5, 5]
    limiter.close()


# Other operations of a storage


def scripts_run(cluster: Cluster) -> int:
    """On all servers, since they began."""
    stats = [cluster.client_of(server).info("commandstats") for server in cluster.servers]
    return sum(each.get("cmdstat_evalsha", {"calls": 0})["calls"] for each in stats)


@pytest.mark.parametrize(
    ("counts", "admitted", "refused"),
    [((2,), 1, 1), ((9, 2), 2, 2), ((2, 9), 2, 4), ((9, 9, 2), 3, 3), ((9, 2, 9), 3, 5), ((2, 9, 9), 3, 7)],
    ids=str,
)
def test_number_of_commands_of_a_check_is_as_documented(
    cluster: Cluster, limiter: Limiter, counts: tuple[int, ...], admitted: int, refused: int
) -> None:
    """How-to "Keep quotas in Redis", the table of commands."""
    plan = plan_of(*counts)
    limiter.check(plan)
    limiter.peek(plan)
    limiter.refund(limiter.check(plan))  # now every server knows every script

    before = scripts_run(cluster)
    assert limiter.check(plan).allowed
    between = scripts_run(cluster)
    assert not limiter.check(plan).allowed
    after = scripts_run(cluster)

    assert (between - before, after - between) == (admitted, refused)


OF_ONE_SUBJECT = [
    hit for scope in SCOPES for hit in hits_for("5/minute", scope=scope, subject="ip:203.0.113.7", hash_tag="subject")
]


@pytest.mark.parametrize(
    "plan",
    [hits("5/second; 50/minute; 500/hour"), OF_ONE_SUBJECT],
    ids=["rules of one scope", "scopes of one subject"],
)
def test_plan_in_one_hash_slot_is_one_command(cluster: Cluster, limiter: Limiter, plan: Sequence[Hit]) -> None:
    limiter.check(plan)
    before = scripts_run(cluster)
    limiter.check(plan)
    assert scripts_run(cluster) - before == 1


def test_charges_in_several_hash_slots_are_refunded_in_part_and_whole(limiter: Limiter) -> None:
    plan = plan_of(5, 5, 5)
    decision = limiter.check(plan)

    limiter.refund(decision, plan[:1])
    assert remaining(limiter.peek(plan)) == [5, 4, 4]
    limiter.refund(decision)
    assert remaining(limiter.peek(plan)) == [5, 5, 5]


def test_keys_of_several_hash_slots_are_reset_and_listed(cluster: Cluster, limiter: Limiter) -> None:
    plan = plan_of(5, 5, 5) + hits("9/hour")
    limiter.check(plan)
    storage = limiter.storage
    assert isinstance(storage, ClusterStorage)

    listed = storage.keys("rate_limit:")
    few = storage.keys("rate_limit:", 2)
    there = cluster.keys()
    limiter.reset(plan[:3])

    assert [stored.key for stored in listed] == sorted(hit.key for hit in plan) == there
    assert all(stored.ttl for stored in listed)
    assert len(few) == 2
    assert cluster.keys() == [plan[3].key]


def test_owners_are_learned_again_while_checks_keep_all_connections(cluster: Cluster) -> None:
    storage, plan = ClusterStorage.from_uri(f"{cluster.uri}?max_connections=1", timeout=10), plan_of(1, 2, 3)
    storage.check(plan)

    listed = storage.keys("rate_limit:")

    assert [stored.key for stored in listed] == sorted(hit.key for hit in plan)
    storage.close()


def test_check_many_decides_one_check_after_the_other_and_charges_each_id_once(limiter: Limiter) -> None:
    plan, ids = plan_of(3, 3, 3), [uuid4() for _ in range(4)]

    decisions = limiter.check_many([plan] * 2)
    again = limiter.storage.check_many([plan] * 2, [ids[0], ids[0]])

    assert [decision.allowed for decision in (*decisions, *again)] == [True] * 4
    assert not limiter.check(plan).allowed


def test_refund_of_checked_hits_finds_charges_that_an_ended_override_moved(cluster: Cluster) -> None:
    limiter, declared, moved = timed(cluster), Hits(hits("5/minute")), Hits(hits("3/hour"))
    moved.apply_overrides = lambda _: moved
    limiter.follow(lambda _: moved)
    decision = limiter.check(declared)
    limiter.follow(lambda given: given)

    limiter.refund(decision, declared)

    assert limiter.storage.peek(moved).remaining == 3
    limiter.close()


def test_batch_of_which_one_check_fails_is_charged_once_when_it_is_repeated(cluster: Cluster) -> None:
    """Only what failed is repeated: a fixed window would be charged again."""
    storage = ClusterStorage(NodesOfUri(cluster.uri, timeout=10))
    names = ("fixed_window", "sliding_window", "fixed_window")
    plans = [hits(Rule(60, 5, algorithm=name), scope=scope) for name, scope in zip(names, SCOPES, strict=True)]
    check, failures = storage.check, [1]

    def lose_second(plan: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        decision = check(plan, check_id)
        if plan is plans[1] and failures:
            failures.clear()
            raise StorageError("the reply was lost", no_reply=True, check_id=decision.id)
        return decision

    storage.check = lose_second  # type: ignore[assignment,method-assign]
    limiter = Limiter(GuardedStorage(storage))
    limiter.check_many([*plans, plans[1]])

    assert [limiter.peek(plan).remaining for plan in plans] == [4, 3, 4]
    limiter.close()


def test_failed_hash_slot_leaves_the_other_checks_of_its_batch_to_their_servers(cluster: Cluster) -> None:
    limiter = Limiter(GuardedStorage(ClusterStorage(NodesOfUri(cluster.uri, timeout=10)), workers=1))
    plans = [hits("5/minute", scope=scope) for scope in SCOPES]
    spoil(cluster, plans[1][0])

    decisions = limiter.check_many(plans)

    assert [decision.decided_by for decision in decisions] == ["storage", "local", "storage"]
    assert [limiter.peek(plan).remaining for plan in (plans[0], plans[2])] == [4, 4]
    limiter.close()


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}, {"protocol": 2}], ids=str)
def test_limiter_works_with_a_given_cluster_client_and_leaves_it_open(
    cluster: Cluster, options: dict[str, Any]
) -> None:
    client = cluster.client(**options)
    limiter = bare(client)
    plan = plan_of(2, 9, 9)

    decisions = [limiter.check(plan) for _ in range(3)]
    limiter.refund(decisions[0])

    assert [decision.allowed for decision in decisions] == [True, True, False]
    assert remaining(limiter.peek(plan)) == [1, 8, 8]
    assert isinstance(storage_from(client), ClusterStorage)
    limiter.close()
    assert client.ping()


@pytest.mark.slow
def test_a_client_that_remaps_addresses_reaches_the_servers(binary: Binary) -> None:
    """Also servers that it learns of by a redirection."""
    inside = [("inside.example", 7000 + n) for n in range(3)]
    plan = plan_of(9, 9, 9)
    with Cluster(binary, announced=inside) as cluster:
        outside = {at: ("127.0.0.1", server.port) for at, server in zip(inside, cluster.servers, strict=True)}
        limiter = Limiter(cluster.client(address_remap=lambda at: outside.get(at, at)))
        source = cluster.owner(plan[0].key)
        before = limiter.check(plan)
        cluster.move(key_slot(plan[0].key.encode()), source, cluster.another(source))

        assert [before.remaining, limiter.check(plan).remaining] == [8, 7]
        limiter.close()


def test_closed_limiter_leaves_no_connection_and_can_be_used_again(cluster: Cluster, limiter: Limiter) -> None:
    before = [len(cluster.client_of(server).client_list()) for server in cluster.servers]
    limiter.check(plan_of(5, 5, 5))

    limiter.close()

    cluster.until(
        lambda: [len(cluster.client_of(server).client_list()) for server in cluster.servers] <= before, "closing"
    )
    assert limiter.check(plan_of(5, 5, 5)).remaining == 3


# Addresses


@pytest.mark.parametrize(
    ("uri", "start"),
    [
        ("redis+cluster://a", [("a", 6379)]),
        ("redis+cluster://a:7000,b:7001/0", [("a", 7000), ("b", 7001)]),
        ("rediss+cluster://user:p%40ss@a:7000,[::1]:7001/?ssl_cert_reqs=none", [("a", 7000), ("::1", 7001)]),
    ],
    ids=["default port", "two servers", "TLS"],
)
def test_uri_names_the_servers_to_begin_with(uri: str, start: list[tuple[str, int]]) -> None:
    assert NodesOfUri(uri, timeout=1).start == start


def test_client_of_each_server_gets_the_options_of_the_uri() -> None:
    nodes = NodesOfUri("rediss+cluster://user:p%40ss@a:7000/?ssl_cert_reqs=none", timeout=1)
    options = nodes.client_at(("::1", 7005)).connection_pool.connection_kwargs
    assert (options["host"], options["port"], options["username"], options["password"]) == ("::1", 7005, "user", "p@ss")
    assert options["deadline"] is nodes.deadline


def test_remedy_says_that_a_single_server_is_not_part_of_a_cluster(server: Server) -> None:
    limiter = bare(f"redis+cluster://127.0.0.1:{server.port}")

    with pytest.raises(StorageError) as caught:
        limiter.check(hits())

    assert "is not part of a cluster" in caught.value.remedy
    assert not caught.value.key_specific


def test_remedy_names_the_uri_scheme_of_clusters_for_a_server_in_one(cluster: Cluster) -> None:
    plan = plan_of(5, 5, 5)
    for server in cluster.servers:
        limiter = bare(server.tcp_url)
        elsewhere = next(hit for hit in plan if cluster.owner(hit.key) is not server)
        for asked in ([elsewhere], plan):  # MOVED, CROSSSLOT
            with pytest.raises(StorageError) as caught:
                limiter.check(asked)
            assert "redis+cluster://" in caught.value.remedy
        limiter.close()


@pytest.mark.parametrize("protocol", [2, 3], ids=["wire", "client"])
def test_check_in_several_hash_slots_leaves_the_others_of_its_batch_to_a_single_server(
    cluster: Cluster, protocol: int
) -> None:
    """The server refuses it together with the script, which the batch sends once."""
    plan = plan_of(5, 5, 5)
    server = cluster.owner(plan[0].key)
    limiter = Limiter(GuardedStorage(RedisStorage(server.client(protocol=protocol)), workers=1))
    cluster.client_of(server).script_flush()

    decisions = limiter.check_many([plan, plan[:1], plan[:1]])

    assert [decision.decided_by for decision in decisions] == ["local", "storage", "storage"]
    assert decisions[-1].remaining == 3
    limiter.close()


def test_refund_is_made_in_other_hash_slots_when_one_fails(cluster: Cluster, limiter: Limiter) -> None:
    plan = plan_of(5, 5, 5)
    decision = limiter.check(plan)
    charges: tuple[Charge, ...] = decision.charges
    spoil(cluster, plan[1])

    with pytest.raises(StorageError):
        limiter.storage.settle(decision.id, charges)

    assert remaining(limiter.peek([plan[0], plan[2]])) == [5, 5]


def test_refund_that_one_server_refuses_is_not_made_twice_by_the_others(cluster: Cluster) -> None:
    """They may not recognise it, and would give back units of others."""
    plan = plan_of(9, 9, algorithm="fixed_window")
    refusing = cluster.client_of(cluster.owner(plan[1].key))
    limiter = Limiter(GuardedStorage(ClusterStorage(NodesOfUri(cluster.uri, timeout=10)), workers=1))
    first, *_ = [limiter.check(plan) for _ in range(3)]
    refusing.execute_command("ACL", "SETUSER", "default", "-evalsha")  # type: ignore[no-untyped-call]

    with pytest.raises(StorageError, match="evalsha"):
        limiter.refund(first)

    refusing.execute_command("ACL", "SETUSER", "default", "+evalsha")  # type: ignore[no-untyped-call]
    until(lambda: limiter.health().state == "working")
    assert remaining(limiter.peek(plan)) == [7, 6]
    limiter.close()
