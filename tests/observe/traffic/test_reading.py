"""What people read of the traffic of the last hour."""

import gc
from dataclasses import replace

import pytest

from flask_multilimit import ConfigurationError
from flask_multilimit.engine import MemoryStorage
from flask_multilimit.observe.traffic import Check, Counts, Refused, RuleCount, TrafficReader, reader_of
from flask_multilimit.observe.traffic.counts import BUCKET_SECONDS, TrafficKeys
from observe.traffic.conftest import PREFIX, Keeper, Sender


def refused(subject: str, amount: int = 1) -> Counts:
    return Counts({Check("view", "refused", "storage"): amount}, {}, {Refused("view", "ip-60s", "ip", subject): amount})


def test_counts_are_read_as_they_were_stored(reader: TrafficReader, send: Sender) -> None:
    counts = Counts(
        {Check("a", "allowed", "storage"): 5, Check("a", "refused", "deny_cache"): 3, Check("b b", "banned", "x"): 1},
        {
            RuleCount("a", "ip-60s", "refuses"): 3,
            RuleCount("a", "ip-60s", "near"): 2,
            RuleCount("c", "x", "shadows"): 1,
        },
        {Refused("a", "ip-60s", "ip", "203.0.113.7"): 3, Refused("a", "ip-60s", "tenant", "a\tb:c {}"): 1},
    )

    send(counts)

    assert replace(reader.read(60).total, starts=counts.starts) == counts


def test_tab_in_a_name_is_read_as_a_blank(reader: TrafficReader, send: Sender) -> None:
    send(Counts({Check("a\tb", "allowed", "storage"): 5}))
    assert reader.read(60).total.checks == {Check("a b", "allowed", "storage"): 5}


def test_slices_are_ten_seconds_each_without_gaps(reader: TrafficReader, send: Sender, keeper: Keeper) -> None:
    send(refused("x", 1))
    keeper.now += 25
    send(refused("x", 4))
    keeper.now += 1

    recent = reader.read(60)

    assert recent.checks() == (0, 0, 0, 1, 0, 4)
    assert recent.start + 6 * BUCKET_SECONDS >= recent.at == keeper.now


def test_series_can_be_filtered_by_endpoint_outcome_and_rule(reader: TrafficReader, send: Sender) -> None:
    send(
        Counts(
            {Check("a", "allowed", "storage"): 5, Check("a", "refused", "storage"): 3, Check("b", "refused", "x"): 1},
            {
                RuleCount("a", "one", "refuses"): 3,
                RuleCount("a", "two", "refuses"): 2,
                RuleCount("a", "one", "near"): 7,
            },
        )
    )
    recent = reader.read(10)

    assert recent.checks() == (9,)
    assert recent.checks(endpoint="a") == (8,)
    assert recent.checks(outcomes=["refused"]) == (4,)
    assert recent.checks(endpoint="b", outcomes=["allowed"]) == (0,)
    assert recent.rules("refuses") == (5,)
    assert recent.rules("refuses", endpoint="a", rule="one") == (3,)
    assert recent.rules("near") == (7,)


def test_top_subjects_are_the_most_refused_of_all_slices(reader: TrafficReader, send: Sender, keeper: Keeper) -> None:
    for subject, amount in (("rare", 1), ("often", 5)):
        send(refused(subject, amount))
    keeper.now += 10
    send(refused("often", 2))
    send(refused("most", 8))

    top = reader.read(3600).top_subjects(2)

    assert [(each.subject, each.refused) for each in top] == [("most", 8), ("often", 7)]
    assert top[0][:3] == ("view", "ip-60s", "ip")


def test_top_subject_has_the_span_of_its_latest_series(reader: TrafficReader, send: Sender, keeper: Keeper) -> None:
    start = keeper.now
    send(refused("x"))
    keeper.now = start + 300
    for _ in range(3):
        send(refused("x"))
        keeper.now += 50
    keeper.now = start + 430

    (top,) = reader.read(3600).top_subjects()

    assert top.refused == 4
    assert (top.since, top.until) == (start + 300, start + 410)


@pytest.mark.parametrize(("asked", "slices"), [(0, 1), (10, 1), (11, 2), (3600, 360), (10**6, 360)])
def test_at_most_an_hour_is_read(reader: TrafficReader, keeper: Keeper, asked: float, slices: int) -> None:
    keeper.now = 1_700_000_009.0
    assert len(reader.read(asked).slices) == slices


def test_settled_slices_are_read_once(
    reader: TrafficReader, send: Sender, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(refused("x"))
    keeper.now += 60
    reader.read()
    asked: list[str] = []
    ask = keeper.tallies

    def noting(keys: list[str]) -> object:
        asked.extend(keys)
        return ask(keys)

    monkeypatch.setattr(keeper, "tallies", noting)

    assert reader.read().total.checks == {Check("view", "refused", "storage"): 1}
    assert len(asked) <= 10


def test_reader_keeps_slices_of_the_last_hour_only(reader: TrafficReader, keeper: Keeper) -> None:
    def kept() -> int:
        gc.collect()
        return sum(type(each) is Counts for each in gc.get_objects())

    before = kept()
    for _ in range(5):
        assert len(reader.read().slices) == 360
        keeper.now += 3600

    assert 300 < kept() - before <= 360


def test_fields_of_a_later_version_are_left_out(reader: TrafficReader, keeper: Keeper, send: Sender) -> None:
    from flask_multilimit.engine.storage import Tally

    send(refused("x"))
    key = TrafficKeys(PREFIX).counts(int(keeper.now // BUCKET_SECONDS))
    keeper.tally([Tally(key, {"teleported\ta\tb": 1, "odd": 2}, 60, 10)], source="other", number=1)

    assert reader.read(60).total.checks == {Check("view", "refused", "storage"): 1}


def test_storage_that_keeps_no_traffic_is_an_error() -> None:
    assert isinstance(reader_of(MemoryStorage(), PREFIX), TrafficReader)
    with pytest.raises(ConfigurationError, match="a object keeps no traffic"):
        reader_of(object(), PREFIX)  # type: ignore[arg-type]
