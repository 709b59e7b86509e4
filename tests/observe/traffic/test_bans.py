"""The bans in force: each process stores the bans that began in it, and all processes read them."""

import os

import pytest
import redis

from flask_multilimit.engine import RedisStorage, StorageError
from flask_multilimit.observe.traffic import Check, Counts, Refused, TrafficReader
from flask_multilimit.observe.traffic import counts as table
from flask_multilimit.observe.traffic.counting import BAN_LIST, DENY_LIST
from flask_multilimit.observe.traffic.counts import LIVES_SECONDS, CountedBan
from flask_multilimit.observe.traffic.reading import SECONDS, TrafficWatch, top_shares
from observe.traffic.conftest import PREFIX, Keeper, Sender, outbox_to
from support.doubles import raising

DAY = 86_400


def begun(*ends: float, endpoint: str = "login", rule: str = "ip-ban", key: str = "", began: float = 1.5) -> Counts:
    """Bans that end at these instants."""
    bans = [CountedBan(endpoint, rule, key or os.urandom(8).hex(), began, end) for end in ends]
    return Counts({Check(endpoint, "banned", "storage"): len(ends)}, begun=bans)


def test_ended_ban_is_remembered_for_an_hour(send: Sender, reader: TrafficReader, keeper: Keeper) -> None:
    end = keeper.now + 60
    send(begun(end, key="a", began=keeper.now))
    keeper.now = end + 3600

    assert reader.bans().begun == [CountedBan("login", "ip-ban", "a", end - 60, end)]
    keeper.now = end + LIVES_SECONDS
    assert reader.bans().begun == []


def test_bans_that_end_first_are_forgotten_beyond_the_maximum(
    send: Sender, reader: TrafficReader, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "MOST_BANS", 5)
    for length in (100, 900, 200, 800, 300, 700, 400, 600, 500):
        send(begun(keeper.now + length))

    ends = sorted(round(ban.until - keeper.now) for ban in reader.bans().begun)
    assert ends == [500, 600, 700, 800, 900]


def test_bans_accept_names_of_any_text(send: Sender, reader: TrafficReader, keeper: Keeper) -> None:
    send(begun(keeper.now + 60, endpoint="grüße\n{}", rule="a b"))
    assert reader.bans().in_force() == {("grüße {}", "a b"): 1}


def test_key_of_bans_expires_an_hour_after_the_last_ban(redis_client: redis.Redis) -> None:
    at = RedisStorage(redis_client).tallies(["rate_limit:{*traffic}:x"]).at
    send = Sender(outbox_to(RedisStorage(redis_client)))
    for end in (at + 7200, at + 600):
        send(begun(end))

    assert list(redis_client.scan_iter("*bans*")) == [b"rate_limit:{*traffic}:bans"]
    assert 7200 - 10 < redis_client.ttl("rate_limit:{*traffic}:bans") - LIVES_SECONDS <= 7200
    assert TrafficReader(RedisStorage(redis_client), PREFIX).bans().in_force() == {("login", "ip-ban"): 2}


class TestWatch:
    @pytest.fixture
    def watch(self, reader: TrafficReader, keeper: Keeper) -> TrafficWatch:
        return TrafficWatch(reader, clock=lambda: keeper.now)

    def test_gauge_of_bans_asks_storage_every_few_seconds(
        self, watch: TrafficWatch, send: Sender, keeper: Keeper
    ) -> None:
        assert watch.look() is False
        send(begun(keeper.now + 600))

        assert watch.look() is False
        keeper.now += SECONDS
        assert watch.look() is True
        assert watch.in_force() == {("login", "ip-ban"): 1}

    def test_ended_ban_leaves_the_gauge_without_asking_storage(
        self, watch: TrafficWatch, send: Sender, keeper: Keeper
    ) -> None:
        send(begun(keeper.now + 3))
        watch.look()

        keeper.now += 2.9
        assert watch.in_force() == {("login", "ip-ban"): 1}
        keeper.now += 0.1
        assert watch.in_force() == {}
        assert watch.look() is False, "the beat may rest"

    def test_gauge_of_bans_stays_while_storage_is_down(
        self, watch: TrafficWatch, send: Sender, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        send(begun(keeper.now + 600))
        watch.look()
        monkeypatch.setattr(keeper, "tallies", raising(StorageError("away")))
        keeper.now += SECONDS

        assert watch.look() is True
        assert watch.in_force() == {("login", "ip-ban"): 1}

    def test_gauge_of_bans_asks_nothing_at_exit(self, watch: TrafficWatch, keeper: Keeper) -> None:
        keeper.tallies = raising(AssertionError("asked"))  # type: ignore[method-assign]
        assert watch.look(ending=True) is False


def test_top_share_ignores_bans_and_lists() -> None:
    counts = Counts(
        {Check("login", "refused", "storage"): 40, Check("login", "banned", "storage"): 900},
        refused={
            Refused("login", "ip-60s", "ip", "203.0.113.7"): 10,
            Refused("login", "ip-ban", "ip", "203.0.113.8"): 600,
            Refused("login", BAN_LIST, "ip", "203.0.113.9"): 200,
            Refused("login", DENY_LIST, "ip", "203.0.113.9"): 100,
        },
    )

    assert top_shares(counts, bans={("login", "ip-ban")}, shared="default") == {"login": 0.25}


def test_top_share_counts_all_rules_that_refuse_a_client() -> None:
    """A refusal counts under the rule with the longest window, so that of one client changes from time to time."""
    counts = Counts(
        {Check("login", "refused", "storage"): 10},
        refused={
            Refused("login", "ip-60s", "ip", "203.0.113.7"): 5,
            Refused("login", "ip-3600s", "ip", "203.0.113.7"): 4,
            Refused("login", "ip-60s", "ip", "203.0.113.8"): 1,
        },
    )

    assert top_shares(counts, bans=(), shared="default") == {"login": 0.9}
