"""What one process counts between two flushes."""

import threading
from typing import NamedTuple

import pytest

from flask_multilimit import Ban, Rule
from flask_multilimit.engine import Hit, Limiter, MemoryStorage, hits_for
from flask_multilimit.observe.events import OTHERS, ByList, hits_near_limit, is_near_limit, outcome_of
from flask_multilimit.observe.traffic import Check, Refused, RuleCount, counting
from flask_multilimit.observe.traffic.counting import MOST_SENT, Counter
from flask_multilimit.observe.traffic.counts import LONGEST_SUBJECT
from flask_multilimit.signals import Event
from observe.traffic.conftest import Limiting
from support.forks import forked


@pytest.fixture
def counter() -> Counter:
    return Counter(subjects=True)


class Counted(NamedTuple):
    subject: tuple[str, str]
    hits: tuple[Hit, ...]


def count(counter: Counter, event: Event) -> None:
    counter.count(event.endpoint, event.outcome, event.decided_by, event.decision, event.applied)


def test_refusals_are_counted_by_decider_and_endpoint(counter: Counter, event: Limiting) -> None:
    """Even if the same rules refuse the same subject."""
    event("a")
    refused = event("a")
    count(counter, refused)
    count(counter, refused._replace(decided_by="deny_cache"))
    count(counter, refused._replace(endpoint="b"))
    count(counter, refused._replace(outcome="banned"))

    counts = counter.take()
    assert counts.checks == {
        Check("a", "refused", "memory"): 1,
        Check("a", "refused", "deny_cache"): 1,
        Check("b", "refused", "memory"): 1,
        Check("a", "banned", "memory"): 1,
    }
    assert counts.rules == {RuleCount("a", "ip-3600s", "refuses"): 3, RuleCount("b", "ip-3600s", "refuses"): 1}


def test_events_waiting_to_be_summed_are_bounded(counter: Counter, event: Limiting) -> None:
    """If no thread runs that sums them."""
    allowed, refused = event("a", subject="x", rules="10/hour"), [event("b"), event("b")][1]
    assert allowed.decision is not None
    for _ in range(3 * counting.AT_ONCE):
        counter.count_admitted("a", allowed.decision, allowed.applied)
    assert len(counter._admitted) < counting.AT_ONCE
    for each in (allowed, refused):
        for _ in range(3 * counting.AT_ONCE):
            count(counter, each)
        assert len([*counter._labels, *counter._detailed]) < counting.AT_ONCE

    assert sum(counter.take().checks.values()) == 9 * counting.AT_ONCE


def test_subject_whose_costly_request_is_refused_with_much_left_is_counted(counter: Counter) -> None:
    hits = hits_for("10/hour", scope="a", subject="ip:x", cost=11)
    decision = Limiter(MemoryStorage()).check(hits)
    counter.count("a", "refused", "memory", decision, [Counted(("ip", "x"), hits)])

    assert counter.take().refused == {Refused("a", "ip-3600s", "ip", "x"): 1}


def test_shadow_limit_counts_no_refused_subjects(counter: Counter, event: Limiting) -> None:
    for _ in range(3):
        count(counter, event("a", shadow=True))
    assert counter.take().refused == {}


def test_shadow_ban_that_begins_with_another_ban_is_not_counted(counter: Counter) -> None:
    ban = Ban(after=1, within=60, time=600)
    plan = hits_for("1/hour", scope="login", ban=ban) + hits_for("1/hour", scope="trial", ban=ban, shadow=True)
    limiter = Limiter(MemoryStorage())
    limiter.check(plan)

    decision = limiter.check(plan)
    counter.count("login", outcome_of(decision, 0.0), "memory", decision, [Counted(("default", ""), plan)])

    assert [status.begun for status in decision.bans] == [True, True]
    counts = counter.take()
    assert sum(amount for each, amount in counts.rules.items() if each.did == "bans") == 1
    assert [begun.key for begun in counts.begun] == [decision.bans[0].hit.key]


def test_banned_subject_is_counted_by_its_ban_and_not_by_a_limit_with_a_longer_window(counter: Counter) -> None:
    plan = hits_for("1/hour", scope="login", subject="ip:x", ban=Ban(after=1, within=60, time=600))
    limiter = Limiter(MemoryStorage())
    limiter.check(plan)

    for _ in range(2):
        decision = limiter.check(plan)
        counter.count("login", outcome_of(decision, 0.0), "memory", decision, [Counted(("ip", "x"), plan)])

    assert counter.take().refused == {Refused("login", "ip-ban", "ip", "x"): 2}


def test_subjects_denied_by_a_list_count_as_refused(counter: Counter) -> None:
    for _ in range(2):
        counter.count("a", "denied", "list", None, (ByList(("ip", "203.0.113.7")),))
    counter.count("a", "banned", "list", None, (ByList(("user", "42")),))

    assert counter.take().refused == {
        Refused("a", "(deny list)", "ip", "203.0.113.7"): 2,
        Refused("a", "(banned by hand)", "user", "42"): 1,
    }


def test_near_limit_is_judged_for_each_rule() -> None:
    """Nine units left of ten are few, but more than a fifth."""
    limiter, hits = Limiter(MemoryStorage()), hits_for("10/second; 100000/day", scope="a", subject="ip:")
    decision = limiter.check(hits)

    assert not is_near_limit(decision)
    assert hits_near_limit(decision) == []


def test_queue_is_near_its_limit_when_few_of_its_places_are_left() -> None:
    limiter, rule = Limiter(MemoryStorage()), Rule(60, 60, algorithm="leaky_bucket", max_delay=9)
    hits = hits_for(rule, scope="a", subject="ip:")

    assert [bool(hits_near_limit(limiter.check(hits))) for _ in range(10)] == [False] * 8 + [True] * 2


def test_names_beyond_the_maximum_are_counted_together(
    counter: Counter, event: Limiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "MOST_NAMES", 3)
    for number in range(10):
        for _ in range(2):
            count(counter, event(f"mail-{number}"))
    count(counter, event("mail-0"))

    counts = counter.take()
    assert len(counts.checks) <= 5
    assert sum(counts.checks.values()) == 21
    assert counts.checks[Check("mail-0", "refused", "memory")] == 2
    assert counts.checks[Check(OTHERS, "refused", "memory")] > 0
    assert sum(amount for rule, amount in counts.rules.items() if rule.did == "refuses") == 11


def test_only_the_most_refused_subjects_are_taken(counter: Counter, event: Limiting) -> None:
    for number in range(MOST_SENT + 50):
        for _ in range(2):
            count(counter, event(subject=str(number)))
    assert len(counter.take().refused) == MOST_SENT


def test_long_subject_keeps_its_beginning_and_a_digest(counter: Counter, event: Limiting) -> None:
    for end in ("1", "1", "2", "2"):
        count(counter, event(subject="x" * 1000 + end))

    subjects = [who.subject for who in counter.take().refused]
    assert len(set(subjects)) == 2
    assert all(len(subject) == LONGEST_SUBJECT and subject.startswith("x" * 40) for subject in subjects)


def test_concurrent_threads_lose_no_counts(counter: Counter, event: Limiting) -> None:
    event()
    refused = event()
    taken = []

    def count_often() -> None:
        for _ in range(5_000):
            count(counter, refused)

    threads = [threading.Thread(target=count_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken.append(counter.take())
    taken.append(counter.take())

    assert sum(amount for counts in taken for amount in counts.checks.values()) == 20_000
    assert sum(amount for counts in taken for amount in counts.rules.values()) == 20_000
    assert sum(amount for counts in taken for amount in counts.refused.values()) == 20_000


def test_forked_child_starts_with_no_counts(counter: Counter, event: Limiting) -> None:
    count(counter, event())

    def count_another() -> list[Check]:
        count(counter, event("b"))
        return list(counter.take().checks)

    assert forked(count_another)() == [Check("b", "allowed", "memory")]
    assert list(counter.take().checks) == [Check("view", "allowed", "memory")]
