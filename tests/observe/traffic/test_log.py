"""The log by default: one line a minute while something is refused."""

import logging

import pytest

from flask_multilimit.observe.traffic import Check, Counts, Refused, RuleCount
from flask_multilimit.observe.traffic.log import RefusalLog, line_of
from support.forks import forked


class Minutes:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def minutes() -> Minutes:
    return Minutes()


@pytest.fixture
def log(minutes: Minutes, caplog: pytest.LogCaptureFixture) -> RefusalLog:
    caplog.set_level(logging.INFO)
    return RefusalLog(logging.getLogger("test"), clock=minutes)


def refused(amount: int, rule: str = "ip-60s", endpoint: str = "search") -> Counts:
    return Counts(
        {Check(endpoint, "refused", "storage"): amount},
        {RuleCount(endpoint, rule, "refuses"): amount},
        {Refused(endpoint, rule, "ip", "203.0.113.7"): amount},
    )


def test_minute_of_refusals_is_one_line(log: RefusalLog, minutes: Minutes, caplog: pytest.LogCaptureFixture) -> None:
    for second in range(60):
        minutes.now = second
        log.add(refused(3) if second else refused(2, "user-60s", "login"))
        assert log.log_if_due() is True
    minutes.now = 60

    assert log.log_if_due() is False

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "Rate limits: 179 refused in 60 s: search by ip-60s 177, login by user-60s 2")
    ]


def test_forked_child_does_not_log_refusals_of_its_parent(log: RefusalLog, caplog: pytest.LogCaptureFixture) -> None:
    log.add(refused(3))

    def refuse_another() -> list[str]:
        log.add(refused(1))
        log.log_if_due(at_once=True)
        return [record.getMessage() for record in caplog.records]

    assert forked(refuse_another)() == ["Rate limits: 1 refused in 1 s: search by ip-60s 1"]


def test_no_line_is_logged_without_refusals(
    log: RefusalLog, minutes: Minutes, caplog: pytest.LogCaptureFixture
) -> None:
    log.add(Counts({Check("search", "allowed", "storage"): 5, Check("search", "refunded", "storage"): 5}))
    minutes.now = 100
    assert log.log_if_due() is False
    assert caplog.records == []


def test_each_minute_is_counted_anew(log: RefusalLog, minutes: Minutes, caplog: pytest.LogCaptureFixture) -> None:
    for minutes.now in (0, 60, 90, 150):
        if minutes.now in {0, 90}:
            log.add(refused(1))
        log.log_if_due()

    assert caplog.text.count("1 refused in 60 s") == 2


def test_line_names_bans_denials_and_unanswered_requests() -> None:
    counts = Counts(
        {
            Check("a", "banned", "storage"): 4,
            Check("a", "denied", "list"): 3,
            Check("a", "unanswered", "nobody"): 2,
            Check("a", "allowed", "storage"): 100,
        }
    )

    assert line_of(counts, 61.4, subjects=False) == "4 banned, 3 denied, 2 unanswered in 61 s"


def test_line_names_the_rules_that_refuse_most() -> None:
    counts = Counts({}, {RuleCount("search", f"rule-{n}", "refuses"): n for n in range(1, 9)})
    assert line_of(counts, 60, subjects=False).endswith("search by rule-5 5, search by rule-4 4, and 3 more")


@pytest.mark.parametrize(("subjects", "end"), [(False, ""), (True, ". Refused most: ip 203.0.113.7 3")])
def test_last_line_is_logged_when_the_process_ends(
    minutes: Minutes, caplog: pytest.LogCaptureFixture, subjects: bool, end: str
) -> None:
    caplog.set_level(logging.INFO)
    log = RefusalLog(logging.getLogger("test"), subjects=subjects, clock=minutes)
    log.add(refused(3))
    minutes.now = 7

    assert log.log_if_due(at_once=True) is False
    assert caplog.messages == [f"Rate limits: 3 refused in 7 s: search by ip-60s 3{end}"]
