"""Counts on their way to storage: each arrives exactly once, also after failures."""

import pytest

from flask_multilimit.engine import StorageError
from flask_multilimit.observe.traffic import Check, Counts, Refused, TrafficReader
from flask_multilimit.observe.traffic.counting import MOST_SENT
from flask_multilimit.observe.traffic.counts import BUCKET_SECONDS, is_traffic
from flask_multilimit.observe.traffic.flushing import MOST_WAITING, Outbox, as_stored
from observe.traffic.conftest import PREFIX, Keeper, outbox_to
from support.doubles import raising
from support.forks import forked


def some(amount: int = 1, endpoint: str = "view") -> Counts:
    return Counts({Check(endpoint, "refused", "storage"): amount}, {}, {Refused(endpoint, "ip-60s", "ip", "a"): amount})


def total(keeper: Keeper, seconds: float = 3600) -> int:
    return sum(TrafficReader(keeper, PREFIX).read(seconds).total.checks.values())


def test_a_flush_is_one_command(outbox: Outbox, keeper: Keeper) -> None:
    outbox.put(some())
    outbox.send()

    ((_, number, keys),) = keeper.sent
    assert number == 1
    assert len(keys) == 3
    assert all(is_traffic(key) for key in keys)


def test_long_outage_loses_no_counts_and_the_thread_goes_on_until_they_are_sent(outbox: Outbox, keeper: Keeper) -> None:
    keeper.error = StorageError("away")
    for number in range(100):
        outbox.put(some(1, f"view-{number % 7}"))
        assert outbox.send()  # the thread goes on
        keeper.now += BUCKET_SECONDS
    keeper.error = None
    assert not outbox.send()  # it may end

    assert len(keeper.sent) == MOST_WAITING
    assert total(keeper) == 100


def test_outage_of_hours_in_which_a_process_starts_keeps_few_batches(
    outbox: Outbox, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper.error = StorageError("away")
    monkeypatch.setattr(keeper, "tallies", raising(keeper.error))
    for _ in range(MOST_WAITING + 10):
        outbox.put(some())
        keeper.now += 60
    keeper.error = None
    outbox.send()

    assert len(keeper.sent) == MOST_WAITING


def test_waiting_subjects_are_bounded_to_the_most_refused(outbox: Outbox) -> None:
    for start in range(0, 300, 100):
        refused = {Refused("view", "ip-60s", "ip", str(n)): n + 1 for n in range(start, start + 100)}
        outbox.put(Counts({Check("view", "refused", "storage"): 1}, {}, refused))

    assert len(outbox._waiting[0].counts.refused) == MOST_SENT
    assert min(outbox._waiting[0].counts.refused.values()) == 201


def test_storage_that_refuses_traffic_is_logged_once(
    outbox: Outbox, keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    keeper.error = StorageError("NOPERM", remedy="allow it")
    for _ in range(5):
        outbox.put(some())
        outbox.send()

    assert [record.getMessage() for record in caplog.records] == [
        "Rate limits: could not store traffic; will retry: NOPERM (allow it)"
    ]


def test_storage_that_is_down_is_not_logged_by_traffic(keeper: Keeper, caplog: pytest.LogCaptureFixture) -> None:
    outbox = outbox_to(keeper, is_down=lambda: True)
    keeper.error = StorageError("away")
    outbox.put(some())
    outbox.send()

    assert caplog.records == []


def test_forked_child_sends_only_its_own_counts(outbox: Outbox, keeper: Keeper) -> None:
    outbox.put(some())

    def send_another() -> list[tuple[str, int, list[str]]]:
        outbox.send()
        outbox.put(some())
        outbox.send()
        return keeper.sent

    ((of_child, number, _),) = forked(send_another)()
    outbox.send()

    ((of_parent, *_),) = keeper.sent
    assert number == 1
    assert of_child != of_parent


def test_subjects_are_hashed_with_a_key() -> None:
    counts = some()
    hashed = [next(iter(as_stored(counts, "hashed", key).refused)).subject for key in (b"one", b"one", b"two")]
    assert hashed[0] == hashed[1] != hashed[2]
    assert all(len(subject) == 16 and subject != "a" for subject in hashed)


def test_subjects_of_invalid_unicode_are_escaped() -> None:
    counts = Counts({}, {}, {Refused("view", "ip-60s", "tenant", "a\ud800b"): 1})
    assert next(iter(as_stored(counts, "plain", b"").refused)).subject == "a\\ud800b"
    assert len(next(iter(as_stored(counts, "hashed", b"k").refused)).subject) == 16
