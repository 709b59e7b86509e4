"""A replay gives the verdicts that the app itself gives at the same instants."""

import gc
import math
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from flask import Blueprint, Flask, request
from hypothesis import given, settings
from hypothesis import strategies as st

from flask_multilimit import (
    IP,
    USER,
    Ban,
    Concurrent,
    ConfigurationError,
    Decision,
    MultiLimit,
    Reserve,
    Rule,
    rate_limiter,
)
from flask_multilimit.control.entries import Override
from flask_multilimit.declare.addresses import Who
from flask_multilimit.engine import MemoryStorage
from flask_multilimit.engine.algorithms import ALGORITHMS
from flask_multilimit.operate.simulate.logged import LoggedRequest
from flask_multilimit.operate.simulate.questions import LimitSet, limits_of, replay_of, run, simulate, suggest_limits
from flask_multilimit.operate.simulate.reading import read_logs
from flask_multilimit.operate.simulate.replay_plan import Replacements
from flask_multilimit.operate.simulate.report import Report
from flask_multilimit.operate.simulate.resolving import HOSTS_REMEMBERED, Routes, user_of
from flask_multilimit.serve.gate import gate_of

from .lines import SECOND, START_AT


class Clock:
    now = START_AT

    def __call__(self) -> int:
        return self.now


def make_app(clock: Clock, algorithm: str = "sliding_window") -> Flask:
    """Its views answer with the status that the request asks for."""
    app = Flask("replayed")
    app.config["MULTILIMIT_UNMATCHED_LIMITS"] = {"type": "ip", "rules": "3 per 4 seconds"}
    app.config["MULTILIMIT_APPLICATION_LIMITS"] = "30 per 9 seconds"
    MultiLimit(app, storage=MemoryStorage(clock=clock), user_loader=lambda: request.headers.get("X-User"))
    inner = Blueprint("inner", "inner", url_prefix="/inner")
    rate_limiter(type=USER, rules="4 per 6 seconds")(inner)

    def view(name: str) -> Any:
        def function(**_: Any) -> tuple[str, int]:
            return "", int(request.headers["X-Status"])

        function.__name__ = name
        return function

    burst = 3 if "burst" in ALGORITHMS[algorithm].PARAMETERS else None
    app.get("/items/<int:n>")(
        rate_limiter(
            type=IP,
            rules=[Rule(5, 3, algorithm=algorithm, burst=burst), Rule(10, 5, algorithm=algorithm)],
            ban=Ban(after=2, within=20, time=3, factor=2, most=12),
        )(view("items"))
    )
    app.route("/login", methods=["GET", "POST"])(
        rate_limiter(
            type=IP, rules="3 per 5 seconds", methods=["POST"], charge_when=lambda response: response.status_code == 401
        )(rate_limiter(rules="6 per 8 seconds", shadow=True)(view("login")))
    )
    inner.get("/cost")(
        rate_limiter(type=(USER, IP), rules=Rule(7, 9, algorithm=algorithm, burst=burst), cost=2)(view("cost"))
    )
    app.register_blueprint(inner)
    return app


TARGETS = (
    "/items/1",
    "/items/2?a=b",
    "/items/x",
    "/login",
    "/login",
    "/inner/cost",
    "/inner/cost/",
    "/nowhere",
    "/items%2F1",
)

logged = st.builds(
    lambda gap, method, target, address, status, user: (gap, LoggedRequest(0, method, target, address, status, user)),
    gap=st.sampled_from([0, 0, 0, 1, SECOND // 2, SECOND, SECOND, 2 * SECOND, 7 * SECOND]),
    method=st.sampled_from(["GET", "GET", "POST", "HEAD", "OPTIONS"]),
    target=st.sampled_from(TARGETS),
    address=st.sampled_from(["203.0.113.1", "203.0.113.2", "2001:db8::1", "2001:db8::2", "::ffff:203.0.113.1"]),
    status=st.sampled_from([200, 401, 500]),
    user=st.sampled_from([None, None, "ann", "bob"]),
)


def at_instants(steps: list[tuple[int, LoggedRequest]]) -> list[LoggedRequest]:
    at, found = START_AT, []
    for gap, request_ in steps:
        at += gap
        found.append(request_._replace(at=at))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=60)
@given(steps=st.lists(logged, max_size=60))
def test_replay_gives_the_verdicts_of_the_app(algorithm: str, steps: list[tuple[int, LoggedRequest]]) -> None:
    requests = at_instants(steps)
    clock = Clock()
    client = make_app(clock, algorithm).test_client()
    real = []
    for each in requests:
        clock.now = each.at
        user = user_of(each)  # the name beside a 401 is that of a failed login
        headers = {"X-Status": str(each.status), **({"X-User": user} if user else {})}
        response = client.open(
            each.target, method=each.method, headers=headers, environ_base={"REMOTE_ADDR": each.address}, buffered=True
        )  # and closed, which releases its slots
        real.append(response.status_code != 429)
    found: list[bool] = []

    report = simulate(make_app(Clock(), algorithm), requests, on_decision=verdicts_to(found))

    assert found == real
    assert report.refused == real.count(False)
    assert report.admitted + report.refused + report.outside == report.requests == len(requests)


def verdicts_to(found: list[bool]) -> Callable[[LoggedRequest, Decision | None], None]:
    return lambda _, decision: found.append(decision is None or decision.allowed)


def replayed(app: Flask, *requests: LoggedRequest, **options: Any) -> Report:
    return simulate(app, requests, **options)


def at(second: float, target: str = "/", **fields: Any) -> LoggedRequest:
    return LoggedRequest.of(START_AT / SECOND + second, "GET", target, **{"address": "203.0.113.7", **fields})


def app_with(*limiters: Any, **config: Any) -> Flask:
    """An app with one view at ``/`` and these limiters."""
    app = Flask("small")
    app.config.from_mapping(config)
    MultiLimit(app, user_loader=lambda: None)

    def index() -> str:
        return ""

    for limiter in reversed(limiters):
        index = limiter(index)
    app.get("/")(index)
    return app


def test_report_counts_endpoints_clients_and_lockouts() -> None:
    app = app_with(rate_limiter(type=IP, rules="2/minute"))

    report = replayed(
        app,
        *(at(second, status=500 if second == 2 else 200) for second in (0, 1, 2, 3, 5)),
        at(6, address="203.0.113.8", status=200),
        at(70, status=429),
        at(71, "/nowhere", status=404),
    )

    (index, unmatched) = report.endpoints
    assert (index.name, index.requests, index.admitted, index.refused) == ("index", 7, 4, 3)
    assert list(index.statuses.items()) == [(200, 2), (500, 1)]
    assert (unmatched.name, unmatched.requests, unmatched.unlimited) == ("unmatched", 1, 1)
    assert (report.requests, report.admitted, report.refused, report.succeeded_before) == (8, 5, 3, 2)
    assert (report.really_refused, report.now_admitted) == (1, 1)
    assert (report.clients, report.clients_refused) == (2, 1)
    (worst,) = report.worst
    assert (worst.name, worst.requests, worst.refused) == ("203.0.113.7", 7, 3)
    assert worst.first_refused == START_AT + 2 * SECOND
    assert worst.longest_lockout == report.longest_lockout == 58, "from 2 s to 60 s, when the first leaves the window"
    assert report.commands == 7
    assert (report.first, report.last) == (START_AT, START_AT + 71 * SECOND)
    assert report.refused_names == {"203.0.113.7"}
    assert report.complete


def test_rules_count_refusals_and_those_of_no_other_rule() -> None:
    rules = [Rule(10, 2), Rule(60, 4, algorithm="fixed_window"), Rule(600, 50)]
    app = app_with(rate_limiter(type=IP, rules=rules), rate_limiter(type=IP, rules="1/hour", shadow=True))

    report = replayed(app, *map(at, [0, 1, 2, 10, 11, 12, 40]))

    ten, minute, long, shadow = report.rules
    assert (ten.refused, ten.alone) == (2, 1)
    assert (minute.refused, minute.alone) == (2, 1)
    assert (long.refused, long.least_remaining) == (0, 46)
    assert (shadow.shadow, shadow.refused, shadow.alone) == (True, 6, 3)


def test_rule_of_a_shared_key_is_that_of_the_stricter_limiter() -> None:
    app = app_with(rate_limiter(type=IP, rules=lambda: "1/minute", name="wide", scope="calls"))
    limits = {"limits": {"index": {"type": "ip", "rules": "2/minute", "scope": "calls"}}}

    report = replayed(app, *map(at, range(3)), limits=limits, rules={"wide": "9/minute"})

    asked = [(rule.text, rule.limiter, rule.refused) for rule in report.rules if rule.asked]
    assert asked == [("2 per minute", 'limits: limits["index"]', 1)]


@pytest.mark.parametrize("name", ["index", "fixed"])
def test_replacement_that_takes_the_place_of_nothing_is_a_note(name: str) -> None:
    app = app_with(rate_limiter(type=IP, rules="9/minute", name="fixed"))

    report = replayed(app, *map(at, range(3)), rules={name: "1/minute"}, costs={name: 5}, priorities={name: "low"})

    assert report.refused == 0
    assert [(note.text, note.requests) for note in report.notes] == [
        (f"--cost {name}: not used, because no limit there has a cost by request", 3),
        (f"--rules {name}: not used, because no limit there has rules by request", 3),
        (f"--priority {name}: not used, because no limit there has a reserve", 3),
    ]


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "concurrency"])
def test_used_up_rule_has_nothing_left(algorithm: str) -> None:
    burst = 2 if "burst" in ALGORITHMS[algorithm].PARAMETERS else None
    app = app_with(rate_limiter(rules=Rule(60, 2, algorithm=algorithm, burst=burst)))
    assert [rule.least_remaining for rule in replayed(app, at(0), at(0)).rules] == [0]


QUEUE = Rule(10, 1, algorithm="leaky_bucket", burst=1, max_delay=20)
OUTCOMES: dict[str, tuple[dict[str, Any], Sequence[float | LoggedRequest], dict[str, object]]] = {
    "a shadow refuses nobody": ({"rules": "1/minute", "shadow": True}, [0, 1, 2], {"admitted": 3, "shadowed": 2}),
    "a request that may wait is delayed": (
        {"rules": "1 per 10 seconds", "wait": 6},
        [0, 5, 6, 100],
        {"admitted": 3, "refused": 1, "delayed": 1},
    ),
    "a queue delays": ({"rules": QUEUE, "wait": 20}, [0, 0, 0, 0], {"admitted": 3, "refused": 1, "delayed": 2}),
    "a lock-out ends with the first request that passes": (
        {"rules": "1 per 10 seconds"},
        [0, 1, 10, 11, 30],
        {"refused": 2, "longest_lockout": 9},
    ),
    "what a shadow would refuse holds no slot": (
        {"type": IP, "rules": Concurrent(1), "shadow": True},
        [at(0, took=10), at(1, took=1), at(2, took=1)],
        {"admitted": 3, "shadowed": 2},
    ),
    "a waiting request gets the next free slot": (
        {"rules": Concurrent(1), "wait": 5},
        [at(0, took=4), at(1, took=1), at(2, took=1), at(2.5, took=9), at(20, took=1)],
        {"admitted": 5, "delayed": 3, "refused": 0},
    ),
    "a user in the log is logged in": (
        {"type": USER, "rules": "1/minute"},
        [at(0, user="ann"), at(1, user="bob")],
        {"refused": 0, "notes": ()},
    ),
}


@pytest.mark.parametrize(("limiter", "requests", "expected"), OUTCOMES.values(), ids=OUTCOMES)
def test_report_counts_shadowed_delayed_and_refused_requests(
    limiter: dict[str, Any], requests: Sequence[float | LoggedRequest], expected: dict[str, object]
) -> None:
    each_at = (each if isinstance(each, LoggedRequest) else at(each) for each in requests)

    report = replayed(app_with(rate_limiter(**limiter)), *each_at)

    (index,) = report.endpoints
    found = {name: getattr(index if hasattr(index, name) else report, name) for name in expected}
    assert found == expected


def test_cost_above_the_count_locks_out_for_ever() -> None:
    app = app_with(rate_limiter(rules="2/minute", cost=lambda: 1))
    assert replayed(app, at(0), costs={"index": 3}).longest_lockout == math.inf


def test_fields_that_have_subjects_and_costs_are_read_from_the_log(tmp_path: Path) -> None:
    app = app_with(rate_limiter(type=USER, rules="1/minute"))
    log = tmp_path / "access.json"
    log.write_text(
        "".join(
            f'{{"msec": "{START_AT / SECOND + second}", "request": "GET / HTTP/1.1", "remote_addr": "203.0.113.7",'
            f' "status": "200", "key": "key-{second % 2}", "tokens": "7"}}\n'
            for second in range(4)
        )
    )

    report = simulate(app, read_logs(log), subjects={"user": "key"})
    suggested = suggest_limits(app, read_logs(log), type="user", subjects={"user": "key"}, cost_field="tokens")

    assert (report.refused, report.clients) == (2, 2)
    assert (suggested.subjects, suggested.peaks[0].max) == (2, 14)


def test_a_note_counts_each_request_once_however_many_limiters_it_is_about() -> None:
    app = app_with(
        rate_limiter(type=USER, rules="9/minute"),
        rate_limiter(type=USER, rules="99/hour"),
        rate_limiter(type=IP, rules=lambda: "1/minute", exempt_when=lambda: False),
        rate_limiter(type=IP, rules=lambda: "1/hour", exempt_when=lambda: False),
    )

    report = replayed(app, at(0), at(1))

    assert {note.requests for note in report.notes} == {2}, report.notes


@pytest.mark.parametrize(
    ("charge_when", "status"),
    [(lambda response: response.headers["X"] == "1", 200), ([200], 412)],
    ids=["header", "412 with a file or without"],
)
def test_report_notes_differences_of_the_replay(charge_when: Any, status: int) -> None:
    app = app_with(
        rate_limiter(type=lambda: "x", name="api_key", rules="1/minute"),
        rate_limiter(type=IP, rules=lambda: "1/minute", name="plan"),
        rate_limiter(rules="50/minute", cost=lambda: 5, exempt_when=lambda: True),
        rate_limiter(type=USER, rules="100/minute", charge_when=charge_when),
    )

    report = replayed(app, at(0, status=status), at(1, status=status))

    texts = {note.text.split(" of ")[0].split(":")[0]: note.requests for note in report.notes}
    assert texts == {
        "type 'api_key'": 2,
        "rules by request": 2,
        "cost by request": 2,
        "exempt_when": 2,
        "charge_when": 2,
        "users": 2,
    }
    assert report.refused == 0


def test_concurrency_limits_are_left_out_without_durations() -> None:
    app = app_with(rate_limiter(type=IP, rules=[Concurrent(1), Rule(60, 3)]))
    report = replayed(app, *map(at, range(5)))
    assert (report.admitted, report.refused) == (3, 2)
    assert [(note.text.split(":")[0], note.requests) for note in report.notes] == [("concurrency limits", 5)]


def test_slots_are_held_for_the_duration_of_requests() -> None:
    app = app_with(rate_limiter(type=IP, rules=Concurrent(2)))

    report = replayed(app, at(0, took=10), at(1, took=2), at(2, took=1), at(3, took=1), at(3.5, took=1), at(4, took=1))

    assert report.endpoints[0].statuses == {0: 2}, "two are refused, at 2 s and 3.5 s"
    assert report.worst[0].first_refused == START_AT + 2 * SECOND
    assert report.worst[0].longest_lockout == 0, "a wait for a slot has no known length"
    assert (report.commands, not report.notes) == (6 + 4, True), "four were admitted"


def test_slot_is_held_beyond_its_timeout_during_a_long_request() -> None:
    app = app_with(rate_limiter(type=IP, rules=Concurrent(1, timeout=6)))
    requests = at(0, took=100), at(50), at(99.9, took=1), at(100, took=1)
    assert verdicts(app, *requests) == [True, True, False, True], "the second has no duration, so it takes no slot"


def test_report_counts_bans_and_their_refusals() -> None:
    ban = Ban(after=2, within=60, time=100, factor=3, most=1000)
    app = app_with(rate_limiter(type=IP, rules="1 per 10 seconds", ban=ban))

    report = replayed(
        app,
        *map(at, [0, 1, 2]),  # banned at 2 s, until 102 s
        *map(at, [50, 101]),
        *map(at, [102, 103, 104]),  # banned at 104 s, for 300 s
        at(403),
        at(404),
        *(at(405 + second, address="203.0.113.8") for second in range(3)),
        *(at(500 + second, address="203.0.113.9") for second in range(2)),
    )

    (found,) = report.bans
    assert (found.name, found.type, found.shadow) == ("ip-ban", "ip", False)
    assert found.text.startswith("ban of 100 s after 2 refusals in 60 s")
    assert (found.begun, found.clients) == (3, 2)
    assert found.refused == 3, "the requests at 50, 101 and 403 s"
    assert (report.refused, report.clients_refused) == (2 + 2 + 2 + 1 + 2 + 1, 3)
    assert report.longest_lockout == 403 - 103 + 1, "of the second ban, from the refusal that led to it"


def test_shadow_limit_and_its_bans_are_counted_and_refuse_nothing() -> None:
    app = app_with(rate_limiter(type=IP, rules="1/minute", ban=Ban(after=2), shadow=True))
    report = replayed(app, *map(at, range(5)))
    assert [(each.shadow, each.begun, each.clients, each.refused) for each in report.bans] == [(True, 1, 1, 2)]
    assert (report.refused, report.rules[0].shadow, report.rules[0].refused) == (0, True, 4)


def test_lists_decide_before_limits() -> None:
    app = app_with(
        rate_limiter(type=IP, rules="1/minute"),
        MULTILIMIT_ALLOW=["203.0.113.0/24", "user:ann"],
        MULTILIMIT_DENY=["203.0.113.7", "198.51.100.0/24"],
    )

    report = replayed(
        app,
        *map(at, range(3)),
        *(at(second, address="198.51.100.1") for second in range(3, 6)),
        *(at(second, address="198.51.100.1", user="ann") for second in range(6, 8)),
        *(at(second, address="192.0.2.1") for second in range(8, 10)),
    )

    (index,) = report.endpoints
    assert (index.allowed, index.denied, index.admitted, index.refused) == (5, 3, 1, 1)
    assert (report.admitted, report.denied, report.refused) == (6, 3, 1)
    assert not report.notes


def test_client_that_a_list_denies_is_not_admitted_now() -> None:
    refused_then = [at(second, status=429) for second in range(3)]
    report = replayed(app_with(), *refused_then, limits={"deny": ["203.0.113.7"]})
    assert (report.really_refused, report.now_admitted) == (3, 0)
    assert replayed(app_with(), *refused_then).now_admitted == 3


def test_limits_file_replaces_lists_of_the_app() -> None:
    app = app_with(rate_limiter(type=IP, rules="1/minute"), MULTILIMIT_DENY=["203.0.113.7"])
    report = replayed(app, at(0), at(1, address="192.0.2.1"), limits={"deny": ["192.0.2.0/24"]})
    assert (report.admitted, report.denied) == (1, 1), "the lists of the file replace those of the app"


def test_list_entries_for_unknown_subjects_are_left_out_with_a_note() -> None:
    app = app_with(
        rate_limiter(type=lambda: "x", name="api_key", rules="1/minute"), MULTILIMIT_ALLOW=["api_key:secret"]
    )

    report = replayed(app, at(0), at(1))

    assert [note.requests for note in report.notes if note.text.startswith("entries of lists for 'api_key'")] == [2]
    assert not replayed(app, at(0, fields={"X-Key": "secret"}), subjects={"api_key": "X-Key"}).rules[0].asked


def test_priorities_can_be_given() -> None:
    app = app_with(
        rate_limiter(type=IP, rules="10/minute", reserve=Reserve({"critical": 0.5}, lambda: None), name="shed")
    )
    requests = [at(second) for second in range(10)]

    unknown, critical = replayed(app, *requests), replayed(app, *requests, priorities={"shed": "critical"})

    assert (unknown.admitted, critical.admitted) == (5, 10)
    assert [(note.text.split(" of ")[0], note.requests) for note in unknown.notes] == [("priorities", 10)]
    assert not critical.notes


@pytest.mark.parametrize(
    ("status", "refused"),
    [(200, {"1 per minute": 4, "3 per minute": 2}), (500, {"1 per minute": 0, "3 per minute": 0})],
    ids=["charged", "refunded"],
)
def test_override_for_a_subject_applies_only_to_it(status: int, refused: dict[str, int]) -> None:
    app = app_with(rate_limiter(type=IP, rules="1/minute", charge_when=lambda response: response.status_code == 200))
    override = Override(kind="override", id="00000001", since=0, who=Who.parse("203.0.113.7"), rules="3/minute")
    plans = gate_of(app).applier.plans_with([override])
    replay = replay_of(app, limits=LimitSet(plans, None), subjects={}, replacements=Replacements())

    for second in range(5):
        replay.add(at(second, status=status))
        replay.add(at(second, address="203.0.113.8", status=status))
    report = replay.report()

    assert {rule.text: rule.refused for rule in report.rules} == refused


def test_values_for_callables_can_be_given() -> None:
    app = app_with(
        rate_limiter(type=lambda: "x", name="api_key", rules="3/minute"),
        rate_limiter(type=IP, rules=lambda: "1/minute", name="plan"),
        rate_limiter(rules="50/minute", cost=lambda: 5, name="units"),
    )

    def keyed(second: float, key: str) -> LoggedRequest:
        return at(second, fields={"X-Api-Key": key})

    report = replayed(
        app,
        *(keyed(second, key) for second, key in enumerate("aaaabb")),
        subjects={"api_key": "X-Api-Key"},
        rules={"plan": "5/minute"},
        costs={"units": 12},
    )

    assert not report.notes
    by_name = {rule.name: rule.refused for rule in report.rules}
    assert by_name == {"api_key-60s": 1, "plan-60s": 0, "units-60s": 1}, "50 units are 4 requests"


def test_given_rules_of_a_limiter_of_two_types_have_their_name_in_header_fields() -> None:
    app = app_with(rate_limiter(type=(USER, IP), rules=lambda: "1/minute"))
    report = replayed(app, at(0), rules={"index": "5/minute"})
    assert [rule.name for rule in report.rules] == ["user-ip-60s"]


def test_unmatched_limiter_reads_its_field_and_given_cost() -> None:
    limits = {"type": "header:X-Api-Key", "rules": "3/minute", "cost": lambda: 9, "name": "lost"}
    app = app_with(MULTILIMIT_UNMATCHED_LIMITS=limits)
    report = replayed(app, *(at(second, "/lost", fields={"X-Api-Key": "a"}) for second in range(2)), costs={"lost": 2})
    assert [(each.name, each.requests, each.refused) for each in report.endpoints] == [("unmatched", 2, 1)]


def test_cost_of_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="no endpoint and no limiter is called 'unit'"):
        replayed(app_with(), costs={"unit": 2})


def test_given_limits_replace_all_but_decorators(tmp_path: Path) -> None:
    app = app_with(rate_limiter(type=IP, rules="3/minute"), MULTILIMIT_APPLICATION_LIMITS="1/minute")
    file = tmp_path / "limits.json"
    file.write_text('{"limits": {"index": {"type": "ip", "rules": "2 per 90 seconds"}}}')
    requests = [at(second) for second in range(5)]

    assert simulate(app, requests).admitted == 1
    assert simulate(app, requests, limits={}).admitted == 3
    assert simulate(app, requests, limits=file).admitted == 2
    assert simulate(app, requests, limits={"default_limits": "1/minute"}).admitted == 3, "defaults yield to decorators"
    with pytest.raises(ConfigurationError, match="did you mean"):
        simulate(app, requests, limits={"limit": {}})
    with pytest.raises(ConfigurationError, match=r"no endpoint.* lists the endpoints$"):  # nothing about the start
        simulate(app, requests, limits={"limits": {"nowhere": "1/minute"}})


def test_header_type_of_a_limits_file_reads_its_field() -> None:
    limits = {"limits": {"index": {"type": "header:X-Api-Key", "rules": "1/minute"}}}

    report = replayed(
        app_with(),
        *(at(second, fields=fields) for second, fields in enumerate([{"X-Api-Key": "a"}, {}, {}, {}])),
        limits=limits,
    )

    assert report.refused == 2, "all without the header are one subject"
    assert [note.requests for note in report.notes] == [3]


def test_suggestion_for_a_header_type_counts_requests_without_the_header_as_one_subject() -> None:
    name, requests = "header:X-Api-Key", [at(0, fields={"X-Api-Key": "a"}), at(0), at(0), at(0)]
    suggested = suggest_limits(app_with(), requests, type=name, subjects={name: "X-Api-Key"})
    assert (suggested.subjects, suggested.peaks[0].max) == (2, 3)


def test_limit_of_another_type_does_not_count_requests_without_its_field() -> None:
    app = app_with(rate_limiter(type=lambda: "x", name="api_key", rules="1/minute"))
    requests = [at(second, fields={"X-Api-Key": key} if key else {}) for second, key in enumerate(["a", "", "", "a"])]
    assert verdicts(app, *requests, subjects={"api_key": "X-Api-Key"}) == [True, True, True, False]


@pytest.mark.parametrize(("status", "succeeded"), [(0, 0), (99, 0), (100, 1), (200, 1), (399, 1), (400, 0), (503, 0)])
def test_refused_request_has_really_succeeded_with_a_status_from_100_to_399(status: int, succeeded: int) -> None:
    app = app_with(rate_limiter(rules="1/minute"))
    assert replayed(app, at(0), at(1, status=status)).succeeded_before == succeeded


# Endpoints and hosts


def test_endpoints_are_found_by_the_url_map_of_the_app() -> None:
    app = app_with(rate_limiter(rules="1/minute"))
    app.get("/caf\u00e9/<path:rest>", endpoint="path")(lambda rest: rest)
    app.get("/folder/", endpoint="folder")(lambda: "")

    report = replayed(
        app,
        at(0, "/caf%C3%A9/a/b?x=1"),
        at(1, "http://testserver/caf\u00e9/c"),
        at(2, "/folder"),
        at(3, "*"),
        at(4, "/#x"),
        LoggedRequest(START_AT + 5 * SECOND, "BREW", "/"),
    )

    assert {each.name: each.requests for each in report.endpoints} == {"path": 2, "index": 1, "unmatched": 1}
    assert report.outside == 2, "a redirect of the router, and what is no path"


@pytest.mark.parametrize("target", ["http://[/", "http://[::1/", "//[/http://", "http://\u2100/", "://", "http://\0/%"])
def test_malformed_target_does_not_stop_a_replay(target: str) -> None:
    assert replayed(app_with(), at(0, target)).requests == 1


def test_a_replay_remembers_no_long_path_or_host() -> None:
    routes, long = Routes(app_with()), "x" * 8000
    for path, host, most in ((f"{long}/{{}}", "shop.test", 1_000_000), ("{}", long, HOSTS_REMEMBERED * 20_000)):
        tracemalloc.start()
        for number in range(HOSTS_REMEMBERED * 2):
            routes.destination_of(at(0, f"/{path.format(number)}")._replace(host=f"{number // 2}.{host}"))
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < most
        tracemalloc.stop()


def test_a_replay_remembers_no_method_that_a_client_invents() -> None:
    app = app_with(MULTILIMIT_UNMATCHED_LIMITS=rate_limiter(rules="1/hour", methods=["PURGE"]))
    routes = Routes(app, methods=limits_of(app).plans.unmatched_methods)
    methods = [*(f"BREW{'X' * number}" for number in range(9)), "PURGE", "GET"]

    destinations = {routes.destination_of(at(0, "/nowhere")._replace(method=method)) for method in methods}

    assert sorted(each.method for each in destinations) == ["", "GET", "PURGE"]


def test_app_below_a_path_gets_only_its_requests() -> None:
    report = replayed(app_with(), at(0, "/shop/"), at(1, "/shop"), at(2, "/shopping"), at(3, "/"), script_name="/shop/")
    assert {each.name: each.requests for each in report.endpoints} == {"index": 2}
    assert report.outside == 2


def test_a_429_outside_of_the_app_is_none_that_these_limits_admit() -> None:
    report = replayed(app_with(), at(0, status=429), at(1, "/shop/", status=429), script_name="/shop")
    assert (report.outside, report.really_refused, report.now_admitted) == (1, 1, 1)


def test_report_on_an_endpoint_called_outside_has_no_requests_from_outside() -> None:
    app = app_with()
    app.get("/outside", endpoint="outside")(lambda: "")
    options: Any = {"limits": limits_of(app), "subjects": {}, "replacements": Replacements(), "script_name": "/shop"}
    replay = replay_of(app, **options, endpoint="outside")
    run([at(0, "/"), at(1, "/shop/outside")], [replay])
    assert (replay.report().requests, replay.report().outside) == (1, 0)


@pytest.mark.parametrize("script_name", ["shop", "[x", "a:b", "x" * 100])
def test_path_of_an_app_without_its_slash_is_an_error(script_name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"script_name='.*: give a path such as /shop"):
        replayed(app_with(), at(0), script_name=script_name)


@pytest.mark.parametrize("script_name", ["/?x", "/#", "/\udc80", "/\n", "//[x"])
def test_path_of_an_app_may_have_any_character(script_name: str) -> None:
    assert replayed(app_with(), at(0), script_name=script_name).outside == 1


def test_endpoints_are_found_by_host_and_subdomain() -> None:
    app = Flask("hosts", host_matching=True, static_host="static.example")
    MultiLimit(app)
    app.get("/", host="a.example", endpoint="a")(lambda: "")
    app.get("/", host="<name>.b.example", endpoint="b")(lambda name: name)

    report = replayed(
        app, at(0, host="a.example"), at(1, host="x.b.example"), at(2, host="c.example"), at(3, "http://a.example/")
    )

    assert {each.name: each.requests for each in report.endpoints} == {"a": 2, "b": 1, "unmatched": 1}


@pytest.mark.skipif("TRUSTED_HOSTS" not in Flask.default_config, reason="Flask knows no TRUSTED_HOSTS before 3.1")
@pytest.mark.parametrize("trusted", [["shop.example"], [".shop.example", "other.example"]])
def test_requests_to_untrusted_hosts_are_left_out_but_not_those_without_a_host(trusted: list[str]) -> None:
    app = app_with(TRUSTED_HOSTS=trusted)
    report = replayed(app, at(0), at(1, host="shop.example"), at(2, host="evil.example"))
    assert (report.outside, report.endpoints[0].requests) == (1, 2)


def test_address_in_a_forwarded_field_is_the_last_one() -> None:
    app = app_with(rate_limiter(type=IP, rules="1/minute"))

    report = replayed(
        app,
        *(at(second, fields={"X-Forwarded-For": f"1.1.1.{second}, 203.0.113.9"}) for second in range(2)),
        subjects={"ip": "X-Forwarded-For"},
    )

    assert report.refused == 1
    assert report.worst[0].name == "203.0.113.9"


def test_garbage_collector_is_tuned_only_during_a_replay() -> None:
    before, during = gc.get_threshold(), list[int]()
    replayed(app_with(), at(0), on_decision=lambda *_: during.append(gc.get_threshold()[0]))
    assert during[0] >= max(before[0], 50_000)
    assert gc.get_threshold() == before


def with_tokens(units: int | None) -> dict[str, str]:
    return {} if units is None else {"tokens": str(units)}


def settling(**options: Any) -> Flask:
    """An app whose view takes 10 of 100 tokens a minute before it is settled."""
    options = {"cost": 10, "settle": "header:X-Tokens", **options}
    return app_with(rate_limiter(rules=Rule(60, 100, algorithm="fixed_window"), **options))


def verdicts(app: Flask, *requests: LoggedRequest, **options: Any) -> list[bool]:
    found: list[bool] = []
    replayed(app, *requests, on_decision=verdicts_to(found), **options)
    return found


def test_estimate_is_charged_until_the_response_is_complete() -> None:
    long = at(0, took=10, fields=with_tokens(95))
    soon, later = at(5, fields=with_tokens(1)), at(20, fields=with_tokens(1))
    assert verdicts(settling(), long, soon, later, cost_field="tokens") == [True, True, False]
    assert verdicts(settling(), long, soon, later) == [True, True, True], "the estimate stands"


def test_every_rule_of_a_limiter_is_settled() -> None:
    rules = [Rule(5, 40), Rule(60, 100, algorithm="fixed_window")]
    app = app_with(rate_limiter(rules=rules, cost=10, settle="header:X-Tokens"))
    report = replayed(app, at(0, fields=with_tokens(30)), cost_field="tokens")
    assert [rule.least_remaining for rule in report.rules] == [10, 70]


def test_charge_when_refunds_when_the_response_is_complete() -> None:
    app = app_with(rate_limiter(rules="1/minute", charge_when=[401]))
    requests = [at(second, took=2, status=200) for second in (0, 1, 3, 4)]
    assert verdicts(app, *requests) == [True, False, True, False]


def test_settlements_of_a_response_are_one_command() -> None:
    app = app_with(*(rate_limiter(type=type_, rules="9/minute", charge_when=[401]) for type_ in (IP, USER)))
    assert replayed(app, at(0, status=200)).commands == 2


@pytest.mark.parametrize(("units", "left"), [(1, 90), (40, 60), (95, 5), (500, 0)])
def test_least_remaining_is_taken_after_the_settlement(units: int, left: int) -> None:
    report = replayed(settling(), at(0, fields=with_tokens(units)), cost_field="tokens")
    assert [(rule.refused, rule.least_remaining) for rule in report.rules] == [(0, left)]


@pytest.mark.parametrize("text", ["", "-", "-5", "1.5", "1e9", "x" * 10**5, "9" * 30, "\uff11\uff12"])
def test_invalid_real_cost_leaves_the_estimate_with_a_note(text: str) -> None:
    report = replayed(settling(), at(0, fields={"tokens": text}), at(1, fields=with_tokens(3)), cost_field="tokens")
    assert [(note.text.split(":")[-1], note.requests) for note in report.notes] == [
        (" the log does not say the real cost; the estimate stands", 1)
    ]
