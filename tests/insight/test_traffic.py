"""The traffic of the last hour in memory: read in parts, summed, forgotten."""

import logging
from collections.abc import Sequence
from random import Random

import pytest

from flask_multilimit.engine import StorageError
from flask_multilimit.engine.storage.tallies import Tallies, TalliesInMemory, Tally
from flask_multilimit.insight.traffic import ALL, SLICES, TrafficMemory
from flask_multilimit.observe.traffic import Check, Counts, Refused, RuleCount, TrafficReader
from flask_multilimit.observe.traffic.counts import BUCKET_SECONDS, TrafficKeys, bucket_at, tallies_of
from flask_multilimit.observe.traffic.flushing import Outbox

PREFIX = "rate_limit:"
ADA = Refused("search", "ip-60s", "ip", "203.0.113.7")


class World:
    """A storage with traffic, and two clocks: that of the storage, and that of the memory."""

    def __init__(self, *, seconds_an_answer: float = 0.0) -> None:
        self.now = 1_700_000_004.0
        self.monotonic = 0.0
        self.asked: list[int] = []
        self.away = False
        self._seconds = seconds_an_answer
        self._kept = TalliesInMemory(lambda: self.now)
        self._number = 0
        self.reader = TrafficReader(self, PREFIX)
        self.memory = TrafficMemory(self.reader, clock=lambda: self.monotonic)

    def tally(self, tallies: Sequence[Tally], *, source: str, number: int) -> float:
        return self._kept.tally(tallies, source=source, number=number)

    def tallies(self, keys: Sequence[str]) -> Tallies:
        if self.away:
            raise StorageError("it is away")
        self.asked.append(len(keys))
        self.monotonic += self._seconds
        return self._kept.tallies(keys)

    def happens(self, counts: Counts, *, ago: float = 0.0) -> None:
        self._number += 1
        bucket = bucket_at(self.now - ago)
        self.tally(tallies_of(TrafficKeys(PREFIX), bucket, counts), source="test", number=self._number)

    def look(self) -> TrafficMemory:
        self.monotonic += 10
        with self.memory.looking() as memory:
            return memory

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def world() -> World:
    return World()


def some(passed: int = 3, refused: int = 0) -> Counts:
    counts = Counts({Check("search", "allowed", "storage"): passed})
    if refused:
        counts.checks[Check("search", "refused", "deny_cache")] = refused
        counts.rules[RuleCount("search", "ip-60s", "refuses")] = refused
        counts.refused[ADA] = refused
    return counts


def test_amounts_are_summed_by_endpoint_in_total_and_for_a_shorter_time_span(world: World) -> None:
    world.happens(some(3, 2), ago=600)
    world.happens(Counts({Check("quote", "shadowed", "storage"): 5, Check("quote", "denied", "list"): 1}))

    memory = world.look()

    assert memory.total("search", "passed") == 3
    assert memory.total("search", "refused") == 2
    assert memory.total("search", "ip-60s", "refuses") == 2
    assert memory.total("quote", "banned") == 1
    assert memory.total(ALL, "passed") == 8
    assert sum(memory.series("search", "passed")) == 3
    assert memory.series("search", "passed")[-61] == 3
    assert memory.series("nowhere", "passed") == (0,) * SLICES
    assert [memory.total("search", "passed", slices=each) for each in (60, 61)] == [0, 3]
    assert [memory.total("search", "ip-60s", "refuses", slices=each) for each in (60, 61)] == [0, 2]
    assert len(memory.series("search", "passed", slices=30)) == 30


@pytest.mark.parametrize("seed", range(6))
def test_memory_shows_what_the_storage_has_whatever_its_clock_does_between_looks(seed: int) -> None:
    random, world = Random(seed), World()
    for _ in range(30):
        world.pass_(random.choice([1, 9, 40, 300, 2000, 86_400, -15, -100, -1000, -7200]))
        for _ in range(random.randrange(3)):
            world.happens(some(random.randrange(1, 9), random.randrange(3)), ago=random.randrange(20))
        known, reader = world.look(), TrafficReader(world, PREFIX)
        with TrafficMemory(reader).looking(patient=True) as anew:
            assert known.series("search", "passed") == anew.series("search", "passed")
            assert known.refusals.most(10) == anew.refusals.most(10)
            assert dict.fromkeys(known.rings) == dict.fromkeys(anew.rings)
        slices = world.reader.read().slices
        assert [sum(each.checks.values()) for each in slices] == [
            sum(each.checks.values()) for each in reader.read().slices
        ]


def test_slow_storage_is_read_in_parts_over_several_looks() -> None:
    world = World(seconds_an_answer=0.5)
    for minute in range(60):
        world.happens(some(1), ago=60 * minute)

    first = world.look().seconds()
    looks = 1
    while not world.look().is_complete():
        looks += 1

    assert first < 600
    assert looks > 5
    assert world.memory.total("search", "passed") == 60
    assert max(world.asked) <= 20


def test_two_looks_within_a_second_ask_storage_once(world: World) -> None:
    world.look()
    asked = len(world.asked)
    with world.memory.looking():
        assert len(world.asked) == asked


def test_rates_are_those_of_the_last_minute(world: World) -> None:
    world.pass_(6)
    world.happens(some(120), ago=30)
    world.happens(some(1000), ago=120)
    assert world.look().rate("search", "passed") == pytest.approx(120 / 50)


def test_traffic_stays_known_while_storage_is_down(world: World) -> None:
    world.happens(some(3))
    world.look()
    world.away = True

    memory = world.look()

    assert str(memory.problem) == "it is away"
    assert memory.total("search", "passed") == 3
    world.away = False
    assert world.look().problem is None


def test_storage_known_to_be_down_is_not_asked(world: World) -> None:
    world.monotonic += 10
    with world.memory.looking(is_away=True) as memory:
        assert (memory.at, world.asked) == (0.0, [])


def test_most_refused_client_has_its_latest_series(world: World) -> None:
    world.happens(some(0, 5), ago=1800)
    world.happens(some(0, 4), ago=40)
    world.happens(some(0, 4), ago=10)

    refused = world.look().refusals.most(5)
    amount, since, _ = world.memory.refusals.latest([ADA])

    assert (refused, amount) == ([(ADA, 13)], 8)
    assert world.now - 50 <= since <= world.now - 40
    assert world.memory.refusals.most(5, lambda who: who.endpoint == "quote") == []
    assert world.memory.refusals.by_client(5, lambda _: True, slices=6) == [[(ADA, 8)]]


def test_ban_continues_the_series_of_the_rule_before_it() -> None:
    world, ban = World(), ADA._replace(rule="ip-ban")
    for ago in range(200, 0, -20):
        world.happens(Counts(refused={ADA if ago == 200 else ban: 3}), ago=ago)
    memory = world.look()

    amount, since, _ = memory.refusals.latest([ban, ADA])
    before = memory.refusals.series_at(world.now - 20, lambda who: who.subject == ADA.subject)

    assert (amount, since) == (30, bucket_at(world.now - 200) * BUCKET_SECONDS)
    assert [(who, series.amount) for who, series in before] == [(ban, 27), (ADA, 3)]


def test_first_refusal_is_known_to_the_second(world: World) -> None:
    for pause in (100, 35, 5, 70):
        world.now += pause
        outbox = Outbox(world, PREFIX, logger=logging.getLogger(), clock=lambda: world.now)  # another worker
        outbox.put(some(0, 1))
        outbox.send()
    first = world.now
    world.now += 7
    outbox.put(some(0, 1))
    outbox.send()

    ((who, amount),) = world.look().refusals.most(1)
    latest, since, _ = world.memory.refusals.latest([who])

    assert (amount, latest, since) == (5, 2, first - 0.5)  # in the middle of its second


def test_rates_begin_at_the_check_that_started_the_thread(world: World) -> None:
    outbox = Outbox(world, PREFIX, logger=logging.getLogger(), clock=lambda: world.now)
    world.now += 1  # after that check
    outbox.put(some(40))
    outbox.send()
    world.now += 3

    assert world.look().rate("search", "passed") == pytest.approx(10)


def test_rates_and_series_begin_with_the_first_of_several_workers_also_at_the_edge_of_a_slice(world: World) -> None:
    world.now = edge = 1_700_000_010.0
    for pause in (0.2, 8):
        world.now += pause
        outbox = Outbox(world, PREFIX, logger=logging.getLogger(), clock=lambda: world.now)  # another worker
        outbox.put(some(40, 1))
        outbox.send()
    world.now = edge + 9

    assert world.look().rate("search", "passed") == pytest.approx(80 / 9.8)
    assert world.memory.refusals.latest([ADA]).since == pytest.approx(edge - 0.3)


def test_long_outage_does_not_interrupt_a_series(world: World) -> None:
    first = world.now
    outbox = Outbox(world, PREFIX, logger=logging.getLogger(), clock=lambda: world.now)
    for _ in range(330):  # nothing is sent
        outbox.put(some(0, 3))
        world.now += 10
    outbox.send()

    ((who, amount),) = world.look().refusals.most(1)
    latest, since, _ = world.memory.refusals.latest([who])

    assert (amount, latest, since) == (990, 990, first - 0.5)


def test_rates_after_an_idle_hour_are_divided_by_the_time_since_the_first_new_check(world: World) -> None:
    world.happens(some(3))
    world.look()
    world.pass_(7200)
    world.happens(some(140))
    world.pass_(10)

    assert world.look().rate("search", "passed") == pytest.approx(10)


def test_bucket_that_grew_after_a_look_is_read_again_when_it_changes_no_more(world: World) -> None:
    world.happens(some(1))
    world.look()
    world.happens(some(2))
    world.pass_(120)

    assert world.look().total("search", "passed") == 3
