"""Rules that a callable returns, and the rules that apply when it fails."""

import gc
import logging
from collections.abc import Callable, Iterator
from threading import Event, Thread
from typing import Any

import pytest
from flask import Blueprint, Flask, request

from flask_multilimit import ConfigurationError, LimitType, MultiLimit, Rule, rate_limiter
from flask_multilimit.serve.gate import gate_of
from flask_multilimit.signals import rules_failed
from support.asking import ask, statuses, view
from support.doubles import RecordingStorage, raising
from support.forks import forked
from support.waiting import PATIENCE

PLANS: dict[str, Any] = {"free": "1/minute", "gold": "3/minute; 100/hour", "staff": None, "closed": 0}


class Tiers:
    """The callable for rules: it looks up the plan of the request, or returns (or raises) `answer` if that is set."""

    def __init__(self) -> None:
        self.answer: Any = None

    def __call__(self) -> Any:
        return _returned(self.answer if self.answer is not None else PLANS[request.headers["X-Plan"]])


def _returned(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def api_key() -> str:
    return request.headers.get("X-Key", "")


@pytest.fixture
def tiers() -> Tiers:
    return Tiers()


@pytest.fixture
def limited(app: Flask, storage: RecordingStorage, tiers: Tiers) -> Flask:
    MultiLimit(app, storage=storage)
    by_key = rate_limiter(type=api_key, name="api_key", rules=tiers)
    app.add_url_rule("/", "view", by_key(view()), methods=["GET", "POST"])
    return production(app)


def production(app: Flask) -> Flask:
    """The app, which now answers errors with 500."""
    app.testing = False
    return app


@pytest.fixture
def failures(app: Flask) -> Iterator[list[dict[str, Any]]]:
    """The arguments of each signal that rules failed."""
    signals: list[dict[str, Any]] = []

    def receive(_app: Flask, **arguments: Any) -> None:
        signals.append(arguments)

    with rules_failed.connected_to(receive, app):
        yield signals


def get(app: Flask, key: str, plan: str = "free") -> int:
    return ask(app, headers={"X-Key": key, "X-Plan": plan}).status_code


def test_each_client_has_the_rules_of_its_plan(limited: Flask) -> None:
    assert [get(limited, "f", "free") for _ in range(2)] == [200, 429]
    policy = ask(limited, headers={"X-Key": "g", "X-Plan": "gold"}).headers["RateLimit-Policy"]
    assert policy == '"api_key-60s";q=3;w=60, "api_key-3600s";q=100;w=3600'
    assert [get(limited, "g", "gold") for _ in range(3)] == [200, 200, 429]


def test_changed_plan_applies_at_once_to_the_used_quota(limited: Flask) -> None:
    assert [get(limited, "k", plan) for plan in ("free", "free", "gold", "gold", "free")] == [200, 429, 200, 200, 429]


def test_dynamic_rules_are_one_check_with_all_other_limits(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage, application_limits="100/day")
    app.add_url_rule("/", "view", rate_limiter(rules=lambda: (Rule(1, 2), "5/minute"))(view()))
    ask(app)
    assert storage.windows == [[86400, 1, 60]]


def test_stricter_rule_decides_when_a_fixed_rule_has_the_same_key(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage)
    app.add_url_rule("/", "view", rate_limiter(rules=lambda: "9/minute")(rate_limiter(rules="2/minute")(view())))
    assert statuses(app, "/", "/", "/") == [200, 200, 429]


@pytest.mark.parametrize(
    "answer",
    [
        *(RuntimeError("database away"), 5, False, {}, b"", 0.0, "  ", [""], "5/fortnight", ...),
        *([Rule(1, 1), None], {"rules": "5/minute"}),
    ],
    ids=repr,
)
class TestFailingCallable:
    def test_last_good_rules_of_each_client_stay_in_force(self, limited: Flask, tiers: Tiers, answer: Any) -> None:
        assert [get(limited, "g", "gold"), get(limited, "f", "free")] == [200, 200]
        tiers.answer = answer
        assert [get(limited, "g", "gold") for _ in range(3)] == [200, 200, 429]
        assert get(limited, "f", "free") == 429

    def test_request_of_a_new_client_is_500(self, limited: Flask, tiers: Tiers, answer: Any) -> None:
        assert [get(limited, "s", "staff"), get(limited, "g", "gold")] == [200, 200]
        tiers.answer = answer
        assert [get(limited, f"new-{number}") for number in range(3)] == [500] * 3

    def test_failure_is_logged_and_signalled_once_until_it_ends(
        self,
        limited: Flask,
        tiers: Tiers,
        failures: list[dict[str, Any]],
        caplog: pytest.LogCaptureFixture,
        answer: Any,
    ) -> None:
        with caplog.at_level(logging.ERROR):
            for now in (None, answer, answer, None, answer):
                tiers.answer = now
                get(limited, "g", "gold")
            ask(limited, method="POST", headers={"X-Key": "g"})

        assert len(failures) == len(caplog.records) == 2
        assert all(failure["where"].startswith("support.asking:view") for failure in failures)
        message = caplog.records[0].getMessage()
        assert 'the rules of the limiter "api_key" on "support.asking:view' in message
        assert "the last good ones of each subject apply" in message
        assert "for a subject without any, this error ends the request" in message


def test_client_that_makes_the_callable_fail_does_not_become_unlimited(limited_app: Flask) -> None:
    def by_plan() -> Any:
        int(request.args.get("page", 1))
        return PLANS[request.headers["X-Plan"]]

    limited_app.add_url_rule("/", "view", rate_limiter(type=api_key, name="api_key", rules=by_plan)(view()))
    production(limited_app)
    assert get(limited_app, "s", "staff") == 200

    bad = [ask(limited_app, "/?page=x", headers={"X-Key": "f", "X-Plan": "free"}).status_code for _ in range(3)]
    good = [get(limited_app, "f", "free") for _ in range(2)]
    afterwards = [ask(limited_app, "/?page=x", headers={"X-Key": key, "X-Plan": "free"}).status_code for key in "fs"]

    assert (bad, good, afterwards) == ([500] * 3, [200, 429], [429, 200])


SHARED_SUBJECTS = pytest.mark.parametrize(
    "type_",
    [LimitType.DEFAULT, LimitType.IP, LimitType.USER, (LimitType.USER, LimitType.IP), (LimitType.IP, str), str],
    ids=["everyone", "address", "visitor", "visitor at an address", "address without a key", "no key"],
)


@SHARED_SUBJECTS
def test_no_limit_for_one_client_of_a_shared_subject_does_not_free_others(
    app: Flask, storage: RecordingStorage, type_: Any
) -> None:
    MultiLimit(app, storage=storage, user_loader=lambda: None)
    answers = iter(["1/minute", None, RuntimeError("database away")])
    shared = rate_limiter(type=type_, name="shared", rules=lambda: _returned(next(answers)))
    app.add_url_rule("/", "view", shared(view()))

    assert statuses(app, "/", "/", "/") == [200, 200, 429]


@SHARED_SUBJECTS
@pytest.mark.parametrize("last", [None, "9/minute"], ids=["no limit", "a looser plan"])
def test_fallback_of_a_shared_subject_overrides_the_last_good_rules(
    app: Flask, storage: RecordingStorage, type_: Any, last: Any
) -> None:
    MultiLimit(app, storage=storage, user_loader=lambda: None)
    answers = iter([last, *[RuntimeError("database away")] * 3])
    shared = rate_limiter(type=type_, name="shared", rules=lambda: _returned(next(answers)), fallback="2/minute")
    app.add_url_rule("/", "view", shared(view()))

    assert statuses(app, "/", "/", "/", "/")[-1] == 429


def test_failure_for_a_shared_address_without_last_good_rules_is_500(limited_app: Flask) -> None:
    answers = iter([None, RuntimeError("database away")])
    by_address = rate_limiter(type=LimitType.IP, rules=lambda: _returned(next(answers)))
    limited_app.add_url_rule("/", "view", by_address(view()))
    assert statuses(production(limited_app), "/", "/") == [200, 500]


@pytest.mark.parametrize("type_", [LimitType.USER, (LimitType.USER, LimitType.IP)], ids=["user", "user at an address"])
def test_unlimited_user_stays_unlimited_when_the_callable_fails(
    app: Flask, storage: RecordingStorage, type_: Any
) -> None:
    MultiLimit(app, storage=storage, user_loader=lambda: "ann")
    answers = iter([None, *[RuntimeError("database away")] * 3])
    by_user = rate_limiter(type=type_, rules=lambda: _returned(next(answers)), fallback="1/minute")
    app.add_url_rule("/", "view", by_user(view()))

    assert statuses(app, "/", "/", "/", "/") == [200] * 4


def test_other_limits_are_charged_when_the_callable_fails(limited_app: Flask) -> None:
    fail = raising(RuntimeError("database away"))
    stack = rate_limiter(type=LimitType.IP, rules="2/minute")(rate_limiter(type=api_key, name="k", rules=fail)(view()))
    limited_app.add_url_rule("/", "view", stack)
    assert statuses(production(limited_app), "/", "/", "/") == [500, 500, 429]


def test_failing_callable_is_500_although_before_request_answers(
    app: Flask, storage: RecordingStorage, tiers: Tiers
) -> None:
    MultiLimit(app, storage=storage, application_limits=rate_limiter(type=LimitType.IP, rules=tiers))
    app.add_url_rule("/", "view", view())
    app.before_request(lambda: "cached")
    assert statuses(production(app), "/", headers={"X-Plan": "none"}) == [500]


class TestFallback:
    def test_fallback_limits_only_clients_without_last_good_rules(
        self, limited_app: Flask, tiers: Tiers, caplog: pytest.LogCaptureFixture
    ) -> None:
        by_key = rate_limiter(type=api_key, name="api_key", rules=tiers, fallback="2/minute")
        limited_app.add_url_rule("/", "view", by_key(view()))
        assert [get(limited_app, "s", "staff"), get(limited_app, "c", "closed")] == [200, 429]

        tiers.answer = RuntimeError("database away")

        assert [get(limited_app, "new") for _ in range(3)] == [200, 200, 429]
        assert [get(limited_app, "s") for _ in range(3)] == [200] * 3
        assert get(limited_app, "c") == 429
        expected = "and for one that several clients may share, its fallback (2 per minute): RuntimeError"
        assert expected in caplog.messages[0]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"rules": "5/minute", "fallback": "1/minute"}, "fallback: these rules apply if a callable for rules"),
            ({"rules": view(), "fallback": "often"}, "rule 'often': write it as \"100/minute\""),
            ({"rules": view(), "fallback": []}, "rules: none given"),
            ({"rules": view(), "fallback": "1 at once", "charge_when": lambda _: True}, "fallback: charge_when has no"),
            ({"rules": view(), "fallback": "1/minute", "cost": 5}, "cost=5: 1 per minute could never admit it"),
        ],
    )
    def test_invalid_fallback_is_an_error_at_the_decorator(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            rate_limiter(**options)(view())


@pytest.mark.parametrize(
    "answer", [None, "", [], (), set()], ids=["None", "empty text", "empty list", "empty tuple", "empty set"]
)
def test_callable_that_returns_nothing_means_no_limit_for_this_request(
    app: Flask, storage: RecordingStorage, failures: list[dict[str, Any]], answer: Any
) -> None:
    MultiLimit(app, storage=storage, application_limits="100/day")
    answers = iter(["1/minute", answer, "1/minute"])
    app.add_url_rule("/", "view", rate_limiter(rules=lambda: next(answers))(view()))

    assert statuses(app, "/", "/", "/") == [200, 200, 429]
    assert storage.windows == [[86400, 60], [86400], [86400, 60]]
    assert failures == []


def test_exhausted_iterator_of_rules_counts_as_a_failure(limited_app: Flask) -> None:
    production(limited_app)
    plan = (Rule(60, count) for count in [3])  # meant as a tuple
    limited_app.add_url_rule("/", "view", rate_limiter(type=api_key, name="api_key", rules=lambda: plan)(view()))

    assert [get(limited_app, "a") for _ in range(4)] == [200, 200, 200, 429], "the last good ones"
    assert get(limited_app, "b") == 500


def test_callable_that_returns_0_refuses_every_request(
    multilimit: MultiLimit, app: Flask, failures: list[dict[str, Any]]
) -> None:
    answers = iter([0, "1/minute", 0, RuntimeError("database away"), 0])
    app.add_url_rule("/", "index", rate_limiter(rules=lambda: _returned(next(answers)))(view()))

    refused, admitted, *others = [ask(app) for _ in range(4)]

    assert [refused.status_code, admitted.status_code] == [429, 200]
    assert "Retry-After" not in refused.headers
    assert refused.headers["RateLimit-Policy"] == '"default-60s";q=0;w=60'
    assert [other.status_code for other in others] == [429, 429]
    assert len(failures) == 1
    with app.app_context():
        decision = multilimit.peek("index", "everyone")
        assert decision.hits[0].rule.count == 0


class TestLastGoodRules:
    def test_last_good_rules_are_kept_for_each_limiter_of_a_callable(self, limited_app: Flask) -> None:
        broken = False

        def by_endpoint() -> Any:
            return _returned(
                RuntimeError() if broken else {"login": "1/minute", "feed": "9/minute"}[str(request.endpoint)]
            )

        for name in ("login", "feed"):
            limited_app.add_url_rule(f"/{name}", name, rate_limiter(rules=by_endpoint)(view()))
        assert statuses(limited_app, "/login", "/feed") == [200, 200]

        broken = True

        assert statuses(limited_app, "/login", "/feed") == [429, 200]

    def test_last_good_rules_of_a_blueprint_are_kept_for_each_endpoint(self, limited_app: Flask) -> None:
        answers: list[Any] = ["1/minute", "1000/minute"]
        shop = rate_limiter(rules=lambda: answers.pop(0))(Blueprint("shop", "shop"))
        for name in ("login", "feed"):
            shop.add_url_rule(f"/{name}", name, view())
        limited_app.register_blueprint(shop)

        assert statuses(limited_app, "/login", "/feed", "/login", "/feed") == [200, 200, 429, 200]

    @pytest.mark.parametrize("shared_by", ["the whole app", "a scope"])
    def test_last_good_rules_of_a_shared_quota_apply_at_every_endpoint(
        self, app: Flask, storage: RecordingStorage, tiers: Tiers, failures: list[dict[str, Any]], shared_by: str
    ) -> None:
        limit: Callable[..., Any] = rate_limiter(type=LimitType.IP, rules=tiers, scope="api")
        MultiLimit(app, storage=storage, application_limits=limit if shared_by == "the whole app" else None)
        for path in ("/a", "/b"):
            app.add_url_rule(path, path, view() if shared_by == "the whole app" else limit(view()))

        assert statuses(app, "/a", headers={"X-Plan": "gold"}) == [200]
        tiers.answer = RuntimeError("database away")

        assert statuses(app, "/b", "/a", "/b") == [200, 200, 429]
        assert len(failures) == 1

    def test_last_good_rules_are_those_of_the_latest_call_not_of_the_latest_answer(self, limited_app: Flask) -> None:
        begun, go_on, broken = Event(), Event(), False

        def slow_for_gold() -> Any:
            if broken:
                raise RuntimeError("database away")
            if request.headers["X-Plan"] == "gold":
                begun.set()
                go_on.wait(PATIENCE)
            return PLANS[request.headers["X-Plan"]]

        limited_app.add_url_rule("/", "view", rate_limiter(type=api_key, name="api_key", rules=slow_for_gold)(view()))
        late = Thread(target=get, args=(limited_app, "k", "gold"))
        late.start()
        assert begun.wait(PATIENCE)
        get(limited_app, "k", "free")
        go_on.set()
        late.join(PATIENCE)

        broken = True

        assert get(limited_app, "k") == 429

    def test_client_whose_last_good_rules_were_forgotten_gets_500(
        self, limited: Flask, tiers: Tiers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("flask_multilimit.declare.dynamic.REMEMBERED", 2)
        for key, plan in (("forgotten", "free"), ("a", "staff"), ("b", "staff")):
            get(limited, key, plan)
        tiers.answer = RuntimeError("database away")

        assert [get(limited, key) for key in ("forgotten", "a", "b")] == [500, 200, 200]


def test_repeated_failure_for_one_client_is_signalled_once(limited: Flask, failures: list[dict[str, Any]]) -> None:
    for _ in range(3):
        get(limited, "g", "gold")
        get(limited, "broken", "no such plan")
    assert [type(failure["error"]) for failure in failures] == [KeyError]


def test_failure_for_several_clients_in_a_row_is_signalled_once(
    limited: Flask, tiers: Tiers, failures: list[dict[str, Any]]
) -> None:
    tiers.answer = RuntimeError("database away")
    for key in ("a", "b", "c"):
        get(limited, key)
    assert len(failures) == 1


def test_failures_for_many_invented_subjects_send_few_signals(limited: Flask, failures: list[dict[str, Any]]) -> None:
    for number in range(50):
        get(limited, "g", "gold")
        get(limited, f"invented-{number}", "no such plan")
    assert len(failures) == 10


CUSTOMERS = {"key-of-ann": "free", "key-of-bob": "gold"}
ODD = '[["user", "ann"], ["ip", "203.0.113.9"]]'
"""An id that looks like several subjects."""


def test_nothing_is_kept_of_a_limited_function_that_is_gone(app: Flask) -> None:
    MultiLimit(app)

    def serve() -> Any:
        send: Any = rate_limiter(rules=lambda: "9/minute")(lambda: "sent")
        return send()

    app.add_url_rule("/", "show", serve)
    assert [ask(app).text for _ in range(5)] == ["sent"] * 5
    gc.collect()

    assert len(gate_of(app).plans.planner.dynamic) == 0


class TestCallableWithSubject:
    @pytest.fixture
    def multilimit(self, app: Flask, storage: RecordingStorage) -> MultiLimit:
        """In a process that has not served any request yet."""
        multilimit = MultiLimit(app, storage=storage)
        by_key = rate_limiter(type=api_key, name="api_key", rules=lambda key: PLANS[CUSTOMERS[key]])
        app.add_url_rule("/", "view", by_key(view()))
        return multilimit

    def test_peek_at_another_subject_uses_the_rules_of_that_subject(self, app: Flask, multilimit: MultiLimit) -> None:
        counts = {}
        with app.test_request_context("/", headers={"X-Key": "key-of-bob"}):
            for key in CUSTOMERS:
                decision = multilimit.peek("view", f"api_key:{key}")
                counts[key] = [hit.rule.count for hit in decision.hits]

        assert counts == {"key-of-ann": [1], "key-of-bob": [3, 100]}

    def test_reset_of_another_subject_resets_all_its_quotas(self, app: Flask, multilimit: MultiLimit) -> None:
        statuses(app, "/", "/", "/", headers={"X-Key": "key-of-bob"})

        with app.test_request_context("/", headers={"X-Key": "key-of-ann"}):
            multilimit.reset("view", "api_key:key-of-bob")
            decision = multilimit.peek("view", "api_key:key-of-bob")

        assert [status.remaining for status in decision.statuses] == [3, 100]

    def test_peek_says_that_the_log_has_the_error_of_a_callable(
        self, app: Flask, multilimit: MultiLimit, caplog: pytest.LogCaptureFixture
    ) -> None:
        with app.app_context(), pytest.raises(ConfigurationError, match="if it does and failed, mend what"):
            multilimit.peek("view", "api_key:unknown")
        assert "KeyError('unknown')" in caplog.text

    @pytest.mark.parametrize(
        ("type_", "user", "subject"),
        [
            (LimitType.IP, "ann", "127.0.0.1"),
            (LimitType.USER, "ann", "ann"),
            (LimitType.USER, None, None),
            ((LimitType.USER, LimitType.IP), "ann", ("ann", "127.0.0.1")),
            (LimitType.USER, ODD, ODD),
            ((LimitType.USER, LimitType.IP), ODD, (ODD, "127.0.0.1")),
        ],
    )
    def test_callable_gets_an_id_or_its_parts_or_none_for_a_visitor(
        self, app: Flask, storage: RecordingStorage, type_: Any, user: str | None, subject: Any
    ) -> None:
        MultiLimit(app, storage=storage, user_loader=lambda: user)
        given: list[Any] = []
        app.add_url_rule("/", "view", rate_limiter(type=type_, rules=given.append)(view()))

        ask(app)

        assert given == [subject]

    @pytest.mark.parametrize(
        ("rules", "policy"),
        [
            (lambda n="2/minute": n, "2;w=60"),
            (lambda *parts: f"{len(parts) + 1}/minute", "1;w=60"),
            (lambda subject="nobody": f"{len(subject)}/minute", "9;w=60"),
        ],
        ids=["optional parameter", "any number of parameters", "optional parameter named subject"],
    )
    def test_optional_parameter_gets_the_subject_only_when_named_subject(
        self, limited_app: Flask, rules: Any, policy: str
    ) -> None:
        limited_app.add_url_rule("/", "view", rate_limiter(type=LimitType.IP, rules=rules)(view()))
        assert ask(limited_app).headers["RateLimit-Policy"] == f'"ip-60s";q={policy}'


class TestCallableWithoutSubject:
    @pytest.mark.parametrize("call", ["peek", "reset"])
    def test_peek_or_reset_of_an_unknown_subject_is_an_error(self, app: Flask, limited: Flask, call: str) -> None:
        multilimit: Any = app.extensions["multilimit"]

        with (
            limited.test_request_context("/", headers={"X-Key": "g", "X-Plan": "gold"}),
            pytest.raises(ConfigurationError, match='rules of api_key at "view" depend on the request, so those of'),
        ):
            getattr(multilimit, call)("view", "api_key:f")

    def test_peek_answers_for_the_client_of_the_request_and_known_subjects(self, limited: Flask) -> None:
        multilimit: Any = limited.extensions["multilimit"]
        get(limited, "f", "free")

        with limited.test_request_context("/", headers={"X-Key": "g", "X-Plan": "gold"}):
            own, named = multilimit.peek(), multilimit.peek("view", "api_key:g")
            other = multilimit.peek("view", "api_key:f")

        for decision, counts in ((own, [3, 100]), (named, [3, 100]), (other, [1])):
            assert [hit.rule.count for hit in decision.hits] == counts

    def test_peek_raises_the_error_of_the_callable(self, limited: Flask) -> None:
        multilimit: Any = limited.extensions["multilimit"]
        with limited.test_request_context("/", headers={"X-Key": "g", "X-Plan": "none"}), pytest.raises(KeyError):
            multilimit.peek()


def test_forked_child_serves_although_another_thread_kept_rules_at_the_fork(limited: Flask) -> None:
    assert get(limited, "f") == 200
    (rules,) = gate_of(limited).plans.planner.dynamic.values()

    with rules._lock():
        of_child = forked(lambda: get(limited, "g"))

    assert of_child() == 200
