"""A cluster whose hash slots move, whose servers die, and whose replies cannot be trusted."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from unittest.mock import patch
from uuid import uuid4

import pytest
from redis.crc import key_slot

from flask_multilimit.engine import (
    Ban,
    Decision,
    GuardedStorage,
    Hit,
    Limiter,
    StorageError,
    hits_for,
    storage_from_uri,
)
from flask_multilimit.engine.decision import FALLBACKS
from flask_multilimit.engine.storage import storage_from
from support.bench import connect, hits, rule
from support.cluster import Cluster
from support.forks import forked
from support.liar import Liar
from support.servers import Binary
from support.threads import under_load

PLAN = hits("50/minute; 500/hour; 5000/day", scope="api")
"""Its keys are in one hash slot."""
SLOT = key_slot(PLAN[0].key.encode())
LONG = 30.0
"""Seconds that a test waits at most."""


@pytest.fixture(params=["URI", "client"])
def limiter(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Limiter]:
    is_client = request.param == "client"
    limiter = Limiter(storage_from(cluster.shared_client) if is_client else storage_from_uri(cluster.uri, timeout=10))
    yield limiter
    limiter.close()


@pytest.fixture
def move(cluster: Cluster) -> Iterator[Move]:
    move = Move(cluster, SLOT)
    yield move
    move.finish()
    cluster.move(SLOT, move.target, move.source)


class Move:
    """Moves one hash slot to another server, step by step."""

    def __init__(self, cluster: Cluster, slot: int) -> None:
        self.cluster, self.slot = cluster, slot
        self.source = cluster.owner(PLAN[0].key)
        self.target = cluster.another(self.source)
        self._begun = self._done = False

    def begin(self) -> None:
        self._begun = True
        self.cluster.begin_move(self.slot, self.source, self.target)

    def key(self, hit: Hit) -> None:
        self.cluster.move_key(hit.key, self.source, self.target)

    def finish(self) -> None:
        if not self._begun:
            self.begin()
        if not self._done:
            self.cluster.end_move(self.slot, self.source, self.target)
        self._done = True


def remaining(decision: Decision) -> list[int]:
    return [status.remaining for status in decision.statuses]


# Slots that move


def test_moved_hash_slot_is_found_and_remembered(limiter: Limiter, move: Move) -> None:
    limiter.check(PLAN)
    move.finish()

    decisions = [limiter.check(PLAN) for _ in range(3)]

    assert [decision.remaining for decision in decisions] == [48, 47, 46]
    refused_there = move.cluster.client_of(move.source).info("errorstats")
    limiter.check(PLAN)
    assert move.cluster.client_of(move.source).info("errorstats") == refused_there


def test_hash_slot_that_moves_costs_no_connection(limiter: Limiter, move: Move) -> None:
    """Otherwise each check of a new client would make all others connect again, as long as the move takes."""

    def connections() -> int:
        return int(move.cluster.client_of(move.source).info("stats")["total_connections_received"])

    limiter.check(PLAN)
    move.begin()
    move.key(PLAN[0])
    before = connections()

    for _ in range(3):
        limiter.check(PLAN)

    assert connections() == before


@pytest.mark.parametrize("moved", [(), (0,), (1, 2), (0, 1, 2)], ids=str)
def test_checks_during_a_hash_slot_move_are_counted_once(limiter: Limiter, move: Move, moved: tuple[int, ...]) -> None:
    limiter.check(PLAN)
    move.begin()
    for place in moved:
        move.key(PLAN[place])

    decisions = [limiter.check(PLAN) for _ in range(3)]
    limiter.refund(decisions[0])
    limiter.refund(decisions[1], PLAN[1:])
    seen = limiter.peek(PLAN)
    move.finish()

    assert all(decision.allowed for decision in decisions)
    assert remaining(seen) == remaining(limiter.peek(PLAN)) == [47, 498, 4998]


def test_the_only_charge_of_a_key_is_refunded_while_its_hash_slot_moves(
    limiter: Limiter, move: Move, algorithm: str
) -> None:
    plan = hits(rule(algorithm, 30, 9), scope="api")
    decision = limiter.check(plan)
    move.begin()

    limiter.refund(decision)

    assert remaining(limiter.peek(plan)) == [9]


def test_new_subject_is_counted_while_its_hash_slot_moves(limiter: Limiter, move: Move, algorithm: str) -> None:
    """Its keys do not exist yet: neither server takes all of them in one command."""
    plan = hits([rule(algorithm, 30, 9), rule(algorithm, 60, 9), rule("sliding_window", 90, 9)], scope="api")
    move.begin()

    decisions = [limiter.check(plan) for _ in range(2)]
    many = limiter.check_many([plan])
    move.finish()

    assert [remaining(decision) for decision in (*decisions, *many)] == [[8] * 3, [7] * 3, [6] * 3]
    assert remaining(limiter.peek(plan)) == [6] * 3


def test_checks_that_keep_all_connections_are_counted_while_a_hash_slot_moves(cluster: Cluster, move: Move) -> None:
    limiter = Limiter(storage_from_uri(f"{cluster.uri}?max_connections=1", timeout=10))
    for scope in ("application", "api.update", "shop"):  # on different servers
        limiter.check(hits("5/minute", scope=scope))
    move.begin()

    decisions = [limiter.check(PLAN) for _ in range(3)]

    assert [decision.remaining for decision in decisions] == [49, 48, 47]
    limiter.close()


@pytest.mark.parametrize("tight", [0, 1, 2])
def test_refusal_charges_nothing_while_a_hash_slot_moves(limiter: Limiter, move: Move, tight: int) -> None:
    rules = [rule("fixed_window", 60, 9), rule("sliding_window", 60, 9), rule("token_bucket", 60, 9)]
    rules[tight] = rule(rules[tight].algorithm, 60, 1)
    plan = hits(rules, scope="api")
    move.begin()
    limiter.check(plan)
    move.key(plan[1])

    refused = limiter.check(plan)
    move.finish()

    assert [status.hit for status in refused.violated] == [plan[tight]]
    assert remaining(refused) == remaining(limiter.peek(plan)) == [8 if at != tight else 0 for at in range(3)]


def test_ban_in_a_hash_slot_that_moves_counts_no_strikes_and_refuses_nothing_by_itself(
    limiter: Limiter, move: Move
) -> None:
    *_, ban = hits_for("9/minute", scope="api", subject="user:ann", ban=Ban(after=2))
    watched = hits("1/minute", scope="shop")  # in another hash slot
    plan = (*watched, replace(ban, watches=(watched[0].key,)))
    limiter.check(plan)
    move.begin()

    refused = limiter.check(plan)
    move.finish()

    assert [status.hit for status in refused.violated] == [*watched]
    assert [each.bans[0].strikes_left for each in (refused, limiter.check(plan))] == [2, 1]


def test_reset_reaches_both_servers_while_a_hash_slot_moves(limiter: Limiter, move: Move) -> None:
    limiter.check(PLAN)
    move.begin()
    move.key(PLAN[0])

    limiter.reset(PLAN)
    move.finish()

    assert remaining(limiter.peek(PLAN)) == [50, 500, 5000]


def test_repeated_check_is_charged_once_while_its_hash_slot_moves(limiter: Limiter, move: Move) -> None:
    check_id = uuid4()
    limiter.check(PLAN, check_id=check_id)
    move.begin()
    limiter.check(PLAN, check_id=check_id)
    move.key(PLAN[0])
    limiter.check(PLAN, check_id=check_id)
    move.finish()
    limiter.check(PLAN, check_id=check_id)

    assert remaining(limiter.peek(PLAN)) == [49, 499, 4999]


def test_resharding_under_load_counts_every_unit_once(cluster: Cluster) -> None:
    """Hash slots move to and fro between two servers while many threads use limits up, and are refused by others."""
    limiter = Limiter(storage_from_uri(cluster.uri, timeout=10))
    plan = hits("400/hour; 1000/day", scope="api") + hits("100000/hour", scope="application")
    refusing = plan + hits("1/hour", scope="shop")
    limiter.check(refusing)
    source = cluster.owner(plan[0].key)
    target = cluster.another(source)
    admitted = [1]

    def check() -> None:
        admitted.append(limiter.check(plan).allowed)
        assert not limiter.check(refusing).allowed

    with under_load(check):
        for _ in range(6):
            cluster.move(SLOT, source, target)
            cluster.move(SLOT, target, source)
    while limiter.check(plan).allowed:  # use up what is left
        admitted.append(1)

    assert sum(admitted) == 400
    assert remaining(limiter.peek(plan)) == [0, 600, 100000 - 400]
    limiter.close()


def test_hash_slot_without_an_owner_is_an_error_with_a_remedy(cluster: Cluster, limiter: Limiter) -> None:
    limiter.check(PLAN)
    owner = cluster.owner(PLAN[0].key)
    cluster.client_of(owner).execute_command("CLUSTER", "DELSLOTS", SLOT)  # type: ignore[no-untyped-call]

    try:
        with pytest.raises(StorageError) as caught:
            limiter.check(PLAN)
    finally:
        cluster.client_of(owner).execute_command("CLUSTER", "ADDSLOTS", SLOT)  # type: ignore[no-untyped-call]

    assert "CLUSTER INFO" in caught.value.remedy
    assert limiter.check(PLAN).remaining == 48


# Servers that fail


def answered(limiter: Limiter, plan: tuple[Hit, ...]) -> Decision:
    """The first decision, after any number of errors."""
    deadline = time.monotonic() + LONG
    while True:
        try:
            return limiter.check(plan)
        except StorageError:  # noqa: PERF203 - so it is
            if time.monotonic() > deadline:
                raise


def test_limits_of_a_shard_apply_after_its_fail_over(binary: Binary) -> None:
    with Cluster(binary, replicas=1) as cluster:
        limiter = Limiter(storage_from_uri(cluster.uri, timeout=0.5))
        theirs, ours = hits("5/hour", scope="shop"), hits("5/hour", scope="application")
        assert cluster.owner(theirs[0].key) is cluster.servers[0]
        replica = cluster.client_of(cluster.servers[3])
        before = limiter.check(theirs + ours)
        cluster.until(lambda: replica.dbsize() == 1, "replication")

        cluster.servers[0].kill()
        during = limiter.check(ours)
        after = answered(limiter, theirs)

        assert (before.remaining, during.remaining) == (4, 3)
        assert after.remaining == 3
        assert remaining(limiter.check(theirs + ours)) == [2, 2]
        limiter.close()


def test_fail_over_under_load_causes_no_errors_and_no_extra_units(binary: Binary) -> None:
    """With a guard, as in an app; half of the keys are on a server that stays alive."""
    with Cluster(binary, replicas=1) as cluster:
        changes = list[str]()
        storage = storage_from_uri(cluster.uri, timeout=0.5)
        guard = GuardedStorage(storage, workers=1, on_change=lambda health: changes.append(health.state))
        limiter = Limiter(guard)
        shared, own = hits("100000/hour", scope="application"), hits("40/hour", scope="shop")
        replica = cluster.client_of(cluster.servers[3])
        decisions = [limiter.check(shared + own) for _ in range(20)]
        replica.execute_command("READONLY")  # type: ignore[no-untyped-call]
        cluster.until(lambda: replica.zcard(own[0].key) == 20, "replication")

        cluster.servers[0].kill()
        with under_load(lambda: decisions.append(limiter.check(shared + own))):
            cluster.until(lambda: guard.health().state == "failed", "failure")
            cluster.until(lambda: changes[-1:] == ["working"], "recovery")
            storage.peek(own)  # the failed half answers, too

        assert changes == ["failed", "working"], "a check of the living half must not count as recovery"
        assert sum(decision.allowed for decision in decisions) == 40
        assert remaining(answered(limiter, shared + own)) == [100_000 - 40, 0]
        limiter.close()


@pytest.mark.parametrize("back_first", [0, 2])
def test_storage_is_back_only_when_every_needed_server_is(binary: Binary, back_first: int) -> None:
    """Also if no charges wait for the storage, which would need all servers."""
    with Cluster(binary) as cluster:
        changes = list[str]()
        storage = storage_from_uri(cluster.uri, timeout=0.3)
        guard = GuardedStorage(storage, on_error="allow", on_change=lambda health: changes.append(health.state))
        limiter = Limiter(guard)
        plan = tuple(hit for scope in ("application", "api.update", "shop") for hit in hits("9/hour", scope=scope))
        owners = [cluster.owner(hit.key) for hit in plan]
        assert len(set(owners)) == 3
        limiter.check(plan)
        owners[0].suspend()
        owners[2].suspend()
        during = limiter.check(plan)

        owners[back_first].resume()
        with patch.object(storage, "check", wraps=storage.check) as asked:
            # The first may have begun before, and the third begins when the second has ended.
            cluster.until(lambda: asked.call_count >= 3, "three probes")
        while_one_is_away = list(changes)
        owners[2 - back_first].resume()
        cluster.until(lambda: changes[-1:] == ["working"], "recovery")

        assert (during.allowed, during.decided_by) == (True, "allow")
        assert while_one_is_away == ["failed"]
        assert changes == ["failed", "working"]
        assert limiter.check(plan).decided_by not in FALLBACKS
        limiter.close()


@pytest.mark.parametrize("first", [False, True], ids=["asked second", "asked first"])
def test_check_on_a_frozen_shard_refunds_the_other_shards(binary: Binary, first: bool) -> None:
    """What was charged on the living servers is refunded although the deadline has passed."""
    with Cluster(binary) as cluster:
        limiter = Limiter(storage_from_uri(cluster.uri, timeout=0.2))
        living, dead = hits("9/hour; 9/day", scope="application"), hits("9/hour", scope="shop")
        plan = living + dead if first else dead + living
        connect(limiter, plan)
        limiter.check(plan)
        cluster.servers[0].suspend()

        with pytest.raises(StorageError) as caught:
            limiter.check(plan)
        left = remaining(limiter.check(living))
        cluster.servers[0].resume()

        assert caught.value.check_id is not None
        assert left == [7, 7]
        limiter.close()


def test_dead_servers_in_the_uri_are_skipped(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    uri = cluster.uri.replace("redis+cluster://", f"redis+cluster://127.0.0.1:{port},")
    limiter = Limiter(storage_from_uri(uri, timeout=5))

    assert limiter.check(PLAN).remaining == 49
    limiter.close()


def test_frozen_first_server_of_the_uri_does_not_block_later_checks(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = cluster.uri.replace("redis+cluster://", f"redis+cluster://127.0.0.1:{silent.getsockname()[1]},")
        limiter = Limiter(storage_from_uri(uri, timeout=0.3))

        with pytest.raises(StorageError):
            limiter.check(PLAN)
        assert answered(limiter, PLAN).allowed
        limiter.close()


# Servers that send wrong replies


class LyingShard(Liar):
    """A server that claims all hash slots, and answers every other command with ``reply``, or if that is empty, by
    closing the connection."""

    def __init__(self, reply: Callable[[int], bytes]) -> None:
        super().__init__(self._answers)
        self._reply = reply(self.port)
        self.asked = 0
        self.heard = b""
        self.asked_for_slots = threading.Event()
        self.silent: threading.Event | None = None
        """Until it is set, the first client that asks for the hash slots gets no answer."""

    def _answers(self, data: bytes) -> Iterator[bytes]:
        self.heard += data
        port = b"%d" % self.port
        for command in data.split(b"\r\n*"):
            if b"CLUSTER" in command:
                first = not self.asked_for_slots.is_set()
                self.asked_for_slots.set()
                if first and self.silent is not None:
                    self.silent.wait(LONG)
                yield b"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:" + port + b"\r\n$1\r\nx\r\n"
            elif b"CLIENT" in command or b"ASKING" in command:
                yield b"+OK\r\n"
            else:
                self.asked += 1
                if self._reply:
                    yield self._reply


def test_check_without_a_reply_is_repeated_elsewhere_under_its_id(cluster: Cluster) -> None:
    with LyingShard(lambda _: b"") as liar:
        uri = cluster.uri.replace("redis+cluster://", f"redis+cluster://127.0.0.1:{liar.port},")
        limiter = Limiter(storage_from_uri(uri, timeout=5))

        decision = limiter.check(PLAN)

        assert decision.allowed
        assert b"$16\r\n" + decision.check_id + b"\r\n" in liar.heard
        limiter.close()


def test_check_that_keeps_no_id_is_not_repeated_elsewhere(cluster: Cluster) -> None:
    with LyingShard(lambda _: b"") as liar:
        uri = cluster.uri.replace("redis+cluster://", f"redis+cluster://127.0.0.1:{liar.port},")
        limiter = Limiter(storage_from_uri(uri, timeout=5))
        plan = hits(rule("fixed_window"))

        with pytest.raises(StorageError):
            limiter.check(plan)
        assert limiter.check(plan).remaining == 4
        decision = limiter.check(plan)
        limiter.refund(decision)
        assert limiter.peek(plan).remaining == 4
        limiter.close()


def test_fork_while_hash_slots_are_learned_does_not_lock_the_child() -> None:
    with LyingShard(lambda _: b"+OK\r\n") as liar:
        liar.silent = threading.Event()
        limiter = Limiter(storage_from_uri(f"redis+cluster://127.0.0.1:{liar.port}", timeout=LONG))

        def learn() -> None:
            with contextlib.suppress(StorageError):
                limiter.check(PLAN)

        learning = threading.Thread(target=learn)
        learning.start()
        assert liar.asked_for_slots.wait(LONG)

        def check() -> str:
            with pytest.raises(StorageError) as failed:
                limiter.check(PLAN)
            return str(failed.value)

        error = forked(check)()
        liar.silent.set()
        learning.join(LONG)

    assert "wrong shape" in error
