"""The breaker is closed: the storage decides, and a failure that is no outage changes nothing."""

from collections.abc import Callable
from uuid import uuid4

import pytest

from engine.storage.layers.guard.workers import FOUR, Shared, Workers, fails_first, loses_the_first_reply, lost_reply
from flask_multilimit.engine import ConfigurationError, Limiter, StorageError
from flask_multilimit.engine.decision import FALLBACKS
from support.bench import hits
from support.clock import Clock


def test_check_without_a_reply_is_repeated_and_charged_once(workers: Workers) -> None:
    workers.storage.stumbles = 1

    decision = workers.limiter.check(hits("5/minute"))

    assert (decision.allowed, decision.decided_by) == (True, "memory")
    assert workers.limiter.peek(hits("5/minute")).remaining == 4
    assert (workers.changes, len(workers.storage.asked)) == ([], 2)


def test_peek_without_a_reply_is_repeated(workers: Workers) -> None:
    asked = loses_the_first_reply(workers.storage, "peek")
    assert workers.limiter.peek(hits()).decided_by not in FALLBACKS
    assert (workers.changes, len(asked)) == ([], 2)


def test_each_check_of_a_batch_without_a_reply_is_repeated(workers: Workers) -> None:
    loses_the_first_reply(workers.storage, "check_many")
    decisions = workers.limiter.check_many([hits(subject="ada"), hits(subject="bob")])
    assert FALLBACKS.isdisjoint(decision.decided_by for decision in decisions)
    assert (workers.changes, len(workers.storage.asked)) == ([], 4)


def test_repeated_checks_of_a_batch_have_ids_of_their_own(workers: Workers) -> None:
    """The error may know that of the one that failed alone."""
    fails_first(workers.storage, "check_many", lost_reply(uuid4()))
    workers.limiter.check_many([hits("5/minute")] * 2)
    assert workers.storage.peek(hits("5/minute")).remaining == 3


def test_repeated_check_many_takes_its_slots_once(workers: Workers) -> None:
    loses_the_first_reply(workers.storage, "check_many")
    decisions = workers.limiter.check_many([FOUR, FOUR])
    assert [decision.allowed for decision in decisions] == [True, True]
    assert workers.storage.peek(FOUR).remaining == 2


def test_check_that_gets_an_error_is_not_repeated(broken: Workers) -> None:
    broken.limiter.check(hits())
    assert len(broken.storage.asked) == 1
    assert [change.state for change in broken.changes] == ["failed"]


def test_check_that_has_waited_too_long_is_not_repeated(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_multilimit.engine.storage.layers.outage.PATIENCE", -1)
    workers.storage.stumbles = 1
    assert workers.limiter.check(hits()).decided_by == "local"


def test_failure_of_one_key_is_no_outage_for_other_keys(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    limiter = workers.limiter
    workers.storage.error = StorageError("WRONGTYPE", key_specific=True)

    assert [limiter.check(hits("3/minute")).allowed for _ in range(4)] == [True] * 3 + [False]
    workers.storage.error = None

    assert limiter.check(hits("3/minute", subject="bob")).decided_by not in FALLBACKS
    assert limiter.health().state == "working"
    assert workers.changes == []
    assert len(caplog.records) == 1


def test_number_of_remembered_answers_is_bounded(make: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_multilimit.engine.storage.layers.fallback.REMEMBERED", 10)
    workers, plans = make(), [hits("2/minute", subject=f"client-{n}") for n in range(100)]
    for plan in plans:
        workers.limiter.check(plan)
    workers.break_down()

    left = [workers.limiter.check(plan).remaining for plan in plans]

    assert left == [1] * 80 + [0] * 20, "of two"


def test_health_of_a_memory_storage_is_always_working() -> None:
    assert Limiter().health().state == "working"


def test_the_health_of_a_shared_storage_without_a_guard_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="Shared is not guarded"):
        Limiter(Shared(Clock())).health()
