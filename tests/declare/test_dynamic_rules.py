"""Rules that a callable gives, and what applies when it fails."""

from __future__ import annotations

import logging
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from flask import Blueprint, Flask, request

from flask_multilimit import ConfigurationError, LimitType, MultiLimit, Rule, rate_limiter
from flask_multilimit.signals import rules_failed
from support.asking import ask, statuses, view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.doubles import RecordingStorage
    from support.servers import Server

PLANS: dict[str, Any] = {"free": "1/minute", "gold": "3/minute; 100/hour", "staff": None, "closed": 0}


class Tiers:
    """Where the rules of a customer are looked up; `answer` takes its place when it is broken."""

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
    """An app whose errors are answered with 500."""
    app.testing = False
    return app


@pytest.fixture
def failures(app: Flask) -> Iterator[list[dict[str, Any]]]:
    """What the signal tells."""
    told: list[dict[str, Any]] = []

    def receive(_app: Flask, **arguments: Any) -> None:
        told.append(arguments)

    with rules_failed.connected_to(receive, app):
        yield told


def get(app: Flask, key: str, plan: str = "free") -> int:
    return ask(app, headers={"X-Key": key, "X-Plan": plan}).status_code


def test_each_customer_has_the_rules_of_a_plan(limited: Flask) -> None:
    assert [get(limited, "f", "free") for _ in range(2)] == [200, 429]
    policy = ask(limited, headers={"X-Key": "g", "X-Plan": "gold"}).headers["RateLimit-Policy"]
    assert policy == '"api_key-60s";q=3;w=60, "api_key-3600s";q=100;w=3600'
    assert [get(limited, "g", "gold") for _ in range(3)] == [200, 200, 429]


def test_a_change_of_plan_holds_at_once_with_the_history_that_is_there(limited: Flask) -> None:
    assert [get(limited, "k", plan) for plan in ("free", "free", "gold", "gold", "free")] == [200, 429, 200, 200, 429]


def test_rules_by_request_are_one_check_with_all_others(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage, application_limits="100/day")
    app.add_url_rule("/", "view", rate_limiter(rules=lambda: (Rule(1, 2), "5/minute"))(view()))

    ask(app)

    assert storage.windows == [[86400, 1, 60]]


def test_the_stricter_decides_where_a_fixed_rule_has_the_same_key(app: Flask, storage: RecordingStorage) -> None:
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
class TestFailure:
    def test_leaves_the_last_good_rules_of_each_customer_in_force(
        self, limited: Flask, tiers: Tiers, answer: Any
    ) -> None:
        assert [get(limited, "g", "gold"), get(limited, "f", "free")] == [200, 200]

        tiers.answer = answer

        assert [get(limited, "g", "gold") for _ in range(3)] == [200, 200, 429]
        assert get(limited, "f", "free") == 429

    def test_of_a_new_customer_is_an_error_of_the_app_and_the_view_does_not_run(
        self, limited: Flask, tiers: Tiers, answer: Any
    ) -> None:
        assert [get(limited, "s", "staff"), get(limited, "g", "gold")] == [200, 200]

        tiers.answer = answer

        assert [get(limited, f"new-{number}") for number in range(3)] == [500] * 3

    def test_is_logged_and_signalled_once_until_it_is_over(
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
        assert all(told["where"].startswith("support.asking:view") for told in failures)
        message = caplog.records[0].getMessage()
        assert 'the rules of the limiter on "support.asking:view' in message
        assert "the last good ones of each subject apply" in message
        assert "for a subject without any, this error ends the request" in message


def test_a_client_that_makes_the_callable_fail_never_gets_the_freedom_of_staff(
    app: Flask, storage: RecordingStorage
) -> None:
    def by_plan() -> Any:
        int(request.args.get("page", 1))
        return PLANS[request.headers["X-Plan"]]

    MultiLimit(app, storage=storage)
    app.add_url_rule("/", "view", rate_limiter(type=api_key, name="api_key", rules=by_plan)(view()))
    production(app)
    assert get(app, "s", "staff") == 200

    bad = [ask(app, "/?page=x", headers={"X-Key": "f", "X-Plan": "free"}).status_code for _ in range(3)]
    good = [get(app, "f", "free") for _ in range(2)]
    afterwards = [ask(app, "/?page=x", headers={"X-Key": key, "X-Plan": "free"}).status_code for key in "fs"]

    assert (bad, good, afterwards) == ([500] * 3, [200, 429], [429, 200])


OF_SEVERAL = pytest.mark.parametrize(
    "type_",
    [LimitType.DEFAULT, LimitType.IP, LimitType.USER, (LimitType.USER, LimitType.IP), (LimitType.IP, str), str],
    ids=["everyone", "address", "visitor", "visitor at an address", "address without a key", "no key"],
)


@OF_SEVERAL
def test_what_frees_one_client_of_a_shared_subject_does_not_free_the_others(
    app: Flask, storage: RecordingStorage, type_: Any
) -> None:
    MultiLimit(app, storage=storage, user_loader=lambda: None)
    answers = iter(["1/minute", None, RuntimeError("database away")])
    shared = rate_limiter(type=type_, name="shared", rules=lambda: _returned(next(answers)))
    app.add_url_rule("/", "view", shared(view()))

    assert statuses(app, "/", "/", "/") == [200, 200, 429]


@OF_SEVERAL
@pytest.mark.parametrize("last", [None, "9/minute"], ids=["no limit", "a looser plan"])
def test_where_several_clients_are_one_subject_a_fallback_goes_before_the_rules_of_the_last_one(
    app: Flask, storage: RecordingStorage, type_: Any, last: Any
) -> None:
    MultiLimit(app, storage=storage, user_loader=lambda: None)
    answers = iter([last, *[RuntimeError("database away")] * 3])
    shared = rate_limiter(type=type_, name="shared", rules=lambda: _returned(next(answers)), fallback="2/minute")
    app.add_url_rule("/", "view", shared(view()))

    assert statuses(app, "/", "/", "/", "/")[-1] == 429


def test_no_limit_of_one_client_behind_an_address_ends_the_request_of_another_if_the_callable_fails(
    app: Flask, storage: RecordingStorage
) -> None:
    MultiLimit(app, storage=storage)
    answers = iter([None, RuntimeError("database away")])
    by_address = rate_limiter(type=LimitType.IP, rules=lambda: _returned(next(answers)))
    app.add_url_rule("/", "view", by_address(view()))

    assert statuses(production(app), "/", "/") == [200, 500]


@pytest.mark.parametrize("type_", [LimitType.USER, (LimitType.USER, LimitType.IP)], ids=["user", "user at an address"])
def test_a_user_keeps_no_limit_where_the_callable_fails(app: Flask, storage: RecordingStorage, type_: Any) -> None:
    MultiLimit(app, storage=storage, user_loader=lambda: "ann")
    answers = iter([None, *[RuntimeError("database away")] * 3])
    by_user = rate_limiter(type=type_, rules=lambda: _returned(next(answers)), fallback="1/minute")
    app.add_url_rule("/", "view", by_user(view()))

    assert statuses(app, "/", "/", "/", "/") == [200] * 4


def test_the_other_limits_are_charged_where_a_callable_fails(app: Flask, storage: RecordingStorage) -> None:
    def fail() -> Any:
        raise RuntimeError("database away")

    MultiLimit(app, storage=storage)
    stack = rate_limiter(type=LimitType.IP, rules="2/minute")(rate_limiter(type=api_key, name="k", rules=fail)(view()))
    app.add_url_rule("/", "view", stack)

    assert statuses(production(app), "/", "/", "/") == [500, 500, 429]


def test_a_callable_that_fails_frees_no_request_that_ends_before_its_view(
    app: Flask, storage: RecordingStorage, tiers: Tiers
) -> None:
    MultiLimit(app, storage=storage, application_limits=rate_limiter(type=LimitType.IP, rules=tiers))
    app.add_url_rule("/", "view", view())
    app.before_request(lambda: "cached")

    assert statuses(production(app), "/", headers={"X-Plan": "none"}) == [500]


class TestFallback:
    def test_limits_customers_for_whom_the_callable_has_not_worked_yet(
        self, app: Flask, storage: RecordingStorage, tiers: Tiers, caplog: pytest.LogCaptureFixture
    ) -> None:
        MultiLimit(app, storage=storage)
        by_key = rate_limiter(type=api_key, name="api_key", rules=tiers, fallback="2/minute")
        app.add_url_rule("/", "view", by_key(view()))
        assert [get(app, "s", "staff"), get(app, "c", "closed")] == [200, 429]

        tiers.answer = RuntimeError("database away")

        assert [get(app, "new") for _ in range(3)] == [200, 200, 429]
        assert [get(app, "s") for _ in range(3)] == [200] * 3
        assert get(app, "c") == 429
        expected = "and for one that several clients may share, its fallback (2 per 60s): RuntimeError"
        assert expected in caplog.messages[0]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"rules": "5/minute", "fallback": "1/minute"}, "fallback: these rules apply if a callable for rules"),
            ({"rules": view(), "fallback": "often"}, "rule 'often': write it as \"100/minute\""),
            ({"rules": view(), "fallback": []}, "rules: none given"),
            ({"rules": view(), "fallback": "1 at once", "charge_when": lambda _: True}, "fallback: charge_when has no"),
            ({"rules": view(), "fallback": "1/minute", "cost": 5}, "cost=5: 1 per 60s could never admit it"),
        ],
    )
    def test_is_checked_where_it_is_declared(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            rate_limiter(**options)(view())


@pytest.mark.parametrize("answer", [None, "", [], (), set()], ids=["None", "no text", "no list", "no tuple", "no set"])
def test_a_callable_may_return_that_there_is_no_limit_now(
    app: Flask, storage: RecordingStorage, failures: list[dict[str, Any]], answer: Any
) -> None:
    MultiLimit(app, storage=storage, application_limits="100/day")
    answers = iter(["1/minute", answer, "1/minute"])
    app.add_url_rule("/", "view", rate_limiter(rules=lambda: next(answers))(view()))

    assert statuses(app, "/", "/", "/") == [200, 200, 429]
    assert storage.windows == [[86400, 60], [86400], [86400, 60]]
    assert failures == []


def test_rules_that_an_earlier_request_used_up_free_nobody(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage)
    production(app)
    plan = (Rule(60, count) for count in [3])  # meant as a tuple
    app.add_url_rule("/", "view", rate_limiter(type=api_key, name="api_key", rules=lambda: plan)(view()))

    assert [get(app, "a") for _ in range(4)] == [200, 200, 200, 429], "the last good ones"
    assert get(app, "b") == 500


def test_a_callable_may_return_that_nothing_passes(
    app: Flask, storage: RecordingStorage, failures: list[dict[str, Any]]
) -> None:
    multilimit = MultiLimit(app, storage=storage)
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


@pytest.mark.usefixtures("redis_client")  # empties the server
def test_nothing_passes_on_a_real_server_either(app: Flask, server: Server) -> None:
    MultiLimit(app, storage=server.url)
    app.add_url_rule("/", "view", rate_limiter(rules=lambda: 0)(view()))

    assert statuses(app, "/", "/") == [429, 429]


class TestLastGoodRules:
    def test_of_one_callable_are_kept_for_each_limiter(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage)
        broken = False

        def by_endpoint() -> Any:
            return _returned(
                RuntimeError() if broken else {"login": "1/minute", "feed": "9/minute"}[str(request.endpoint)]
            )

        for name in ("login", "feed"):
            app.add_url_rule(f"/{name}", name, rate_limiter(rules=by_endpoint)(view()))
        assert statuses(app, "/login", "/feed") == [200, 200]

        broken = True

        assert statuses(app, "/login", "/feed") == [429, 200]

    def test_of_a_blueprint_are_kept_for_each_endpoint(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage)
        answers: list[Any] = ["1/minute", "1000/minute"]
        shop = rate_limiter(rules=lambda: answers.pop(0))(Blueprint("shop", "shop"))
        for name in ("login", "feed"):
            shop.add_url_rule(f"/{name}", name, view())
        app.register_blueprint(shop)

        assert statuses(app, "/login", "/feed", "/login", "/feed") == [200, 200, 429, 200]

    @pytest.mark.parametrize("shared_by", ["the whole app", "a scope"])
    def test_of_one_quota_apply_at_all_endpoints_that_share_it(
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

    def test_are_the_latest_that_were_asked_for_whichever_answer_comes_last(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        begun, go_on, broken = Event(), Event(), False

        def slow_for_gold() -> Any:
            if broken:
                raise RuntimeError("database away")
            if request.headers["X-Plan"] == "gold":
                begun.set()
                go_on.wait(10)
            return PLANS[request.headers["X-Plan"]]

        MultiLimit(app, storage=storage)
        app.add_url_rule("/", "view", rate_limiter(type=api_key, name="api_key", rules=slow_for_gold)(view()))
        late = Thread(target=get, args=(app, "k", "gold"))
        late.start()
        assert begun.wait(10)
        get(app, "k", "free")
        go_on.set()
        late.join(10)

        broken = True

        assert get(app, "k") == 429

    def test_that_are_forgotten_bring_nobody_other_rules(
        self, limited: Flask, tiers: Tiers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("flask_multilimit.declare.dynamic.REMEMBERED", 2)
        for key, plan in (("forgotten", "free"), ("a", "staff"), ("b", "staff")):
            get(limited, key, plan)
        tiers.answer = RuntimeError("database away")

        assert [get(limited, key) for key in ("forgotten", "a", "b")] == [500, 200, 200]


def test_a_failure_for_one_customer_among_many_is_reported_once(limited: Flask, failures: list[dict[str, Any]]) -> None:
    for _ in range(3):
        get(limited, "g", "gold")
        get(limited, "broken", "no such plan")

    assert [type(told["error"]) for told in failures] == [KeyError]


def test_a_client_that_invents_keys_writes_few_lines(limited: Flask, failures: list[dict[str, Any]]) -> None:
    for number in range(50):
        get(limited, "g", "gold")
        get(limited, f"invented-{number}", "no such plan")

    assert len(failures) == 10


CUSTOMERS = {"key-of-ann": "free", "key-of-bob": "gold"}


class TestCallableThatTakesTheSubject:
    @pytest.fixture
    def multilimit(self, app: Flask, storage: RecordingStorage) -> MultiLimit:
        """In a process that has served nothing yet."""
        multilimit = MultiLimit(app, storage=storage)
        by_key = rate_limiter(type=api_key, name="api_key", rules=lambda key: PLANS[CUSTOMERS[key]])
        app.add_url_rule("/", "view", by_key(view()))
        return multilimit

    def test_gives_each_its_rules(self, app: Flask, multilimit: MultiLimit) -> None:  # noqa: ARG002 - sets the app up
        assert statuses(app, "/", "/", headers={"X-Key": "key-of-ann"}) == [200, 429]
        assert statuses(app, "/", "/", "/", "/", headers={"X-Key": "key-of-bob"}) == [200, 200, 200, 429]

    def test_answers_a_peek_for_somebody_else_by_the_plan_of_that_customer(
        self, app: Flask, multilimit: MultiLimit
    ) -> None:
        counts = {}
        with app.test_request_context("/", headers={"X-Key": "key-of-bob"}):
            for key in CUSTOMERS:
                decision = multilimit.peek("view", f"api_key:{key}")
                counts[key] = [hit.rule.count for hit in decision.hits]

        assert counts == {"key-of-ann": [1], "key-of-bob": [3, 100]}

    def test_lets_a_reset_reach_all_quotas_of_that_customer(self, app: Flask, multilimit: MultiLimit) -> None:
        statuses(app, "/", "/", "/", headers={"X-Key": "key-of-bob"})

        with app.test_request_context("/", headers={"X-Key": "key-of-ann"}):
            multilimit.reset("view", "api_key:key-of-bob")
            decision = multilimit.peek("view", "api_key:key-of-bob")

        assert [status.remaining for status in decision.statuses] == [3, 100]

    @pytest.mark.parametrize(
        ("type_", "user", "subject"),
        [
            (LimitType.IP, "ann", "127.0.0.1"),
            (LimitType.USER, "ann", "ann"),
            (LimitType.USER, None, None),
            ((LimitType.USER, LimitType.IP), "ann", ("ann", "127.0.0.1")),
        ],
    )
    def test_gets_the_id_or_one_for_each_part_and_none_for_a_visitor(
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
        ids=["a default", "any number", "one called subject"],
    )
    def test_is_one_with_a_parameter_that_it_needs_or_one_called_subject(
        self, app: Flask, storage: RecordingStorage, rules: Any, policy: str
    ) -> None:
        MultiLimit(app, storage=storage)
        app.add_url_rule("/", "view", rate_limiter(type=LimitType.IP, rules=rules)(view()))

        assert ask(app).headers["RateLimit-Policy"] == f'"ip-60s";q={policy}'


class TestCallableThatTakesNoSubject:
    @pytest.mark.parametrize("call", ["peek", "reset"])
    def test_says_that_the_rules_of_somebody_else_are_not_known(self, app: Flask, limited: Flask, call: str) -> None:
        multilimit: Any = app.extensions["multilimit"]

        with (
            limited.test_request_context("/", headers={"X-Key": "g", "X-Plan": "gold"}),
            pytest.raises(ConfigurationError, match='rules of api_key at "view" depend on the request, so those of'),
        ):
            getattr(multilimit, call)("view", "api_key:f")

    def test_answers_about_the_client_of_the_request_and_subjects_that_were_served_here(self, limited: Flask) -> None:
        multilimit: Any = limited.extensions["multilimit"]
        get(limited, "f", "free")

        with limited.test_request_context("/", headers={"X-Key": "g", "X-Plan": "gold"}):
            own, named = multilimit.peek(), multilimit.peek("view", "api_key:g")
            other = multilimit.peek("view", "api_key:f")

        for decision, counts in ((own, [3, 100]), (named, [3, 100]), (other, [1])):
            assert [hit.rule.count for hit in decision.hits] == counts

    def test_raises_the_error_of_the_callable_for_the_client_of_the_request(self, limited: Flask) -> None:
        multilimit: Any = limited.extensions["multilimit"]

        with limited.test_request_context("/", headers={"X-Key": "g", "X-Plan": "none"}), pytest.raises(KeyError):
            multilimit.peek()
