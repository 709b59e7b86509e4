"""Limits that are checked inside a view, a command or a task: `multilimit.check` and `multilimit.limit`."""

import gc
from typing import Any

import pytest
from flask import Flask, request

from flask_multilimit import (
    ConfigurationError,
    Decision,
    LimitType,
    MultiLimit,
    RateLimitExceeded,
    current_decision,
    rate_limiter,
)
from flask_multilimit.signals import limits_checked
from support.asking import ask, heard, policy, statuses, view
from support.clock import Clock
from support.doubles import RecordingStorage


@pytest.fixture
def multilimit(app: Flask, storage: RecordingStorage) -> MultiLimit:
    return MultiLimit(app, storage=storage, user_loader=lambda: request.headers.get("X-User"))


def decisions_alive() -> int:
    gc.collect()
    return sum(type(each) is Decision for each in gc.get_objects())


class TestCheck:
    @pytest.mark.parametrize("type_", [LimitType.USER, (LimitType.IP, LimitType.USER)])
    def test_check_of_users_in_an_app_that_does_not_know_them_is_an_error_with_a_remedy(
        self, limited_app: Flask, type_: Any
    ) -> None:
        multilimit = limited_app.extensions["multilimit"]
        with (
            limited_app.test_request_context(),
            pytest.raises(ConfigurationError, match=r'limiter on "mail": .* needs to know the user; pass user_loader='),
        ):
            multilimit.check("5/minute", scope="mail", type=type_)

        with limited_app.app_context():
            assert multilimit.check("5/minute", scope="mail", subject="user:42").allowed

    def test_check_returns_a_decision_and_does_not_refuse(self, app: Flask, multilimit: MultiLimit) -> None:
        def look() -> Any:
            decision = multilimit.check("2/minute; 5/hour", scope="mail")
            return {"allowed": decision.allowed, "left": decision.remaining, "wait": decision.retry_after}

        app.add_url_rule("/", "view", look)

        assert [ask(app).json for _ in range(3)] == [
            {"allowed": True, "left": 1, "wait": 0},
            {"allowed": True, "left": 0, "wait": 0},
            {"allowed": False, "left": 0, "wait": 60},
        ]

    def test_check_is_shown_in_header_fields_and_signalled(
        self, app: Flask, multilimit: MultiLimit, storage: RecordingStorage
    ) -> None:
        app.add_url_rule("/", "view", lambda: str(multilimit.check("2/minute", scope="mail").allowed))

        with heard(app, limits_checked) as signals:
            response = ask(app)

        assert (len(storage.checks), policy(response)) == (1, ["default-60s"])
        assert [told["endpoint"] for _, told in signals] == ["mail"]

    def test_429_of_the_view_gets_retry_after_of_a_refused_check(self, app: Flask, multilimit: MultiLimit) -> None:
        app.add_url_rule("/", "view", lambda: ("", 200 if multilimit.check("1/minute", scope="mail").allowed else 429))
        assert [ask(app).headers.get("Retry-After") for _ in range(2)] == [None, "60"]

    def test_check_counts_the_client_of_the_request(self, app: Flask, multilimit: MultiLimit) -> None:
        def check(kind: Any) -> str:
            return str(multilimit.check("1/minute", scope="mail", type=kind).allowed)

        app.add_url_rule("/ip", "ip", lambda: check(LimitType.IP))
        app.add_url_rule("/user", "user", lambda: check(LimitType.USER))

        assert [ask(app, "/ip", environ_base={"REMOTE_ADDR": f"192.0.2.{n}"}).text for n in (1, 1, 2)] == [
            "True",
            "False",
            "True",
        ]
        assert [ask(app, "/user", headers={"X-User": user}).text for user in ("ann", "ann", "bob")] == [
            "True",
            "False",
            "True",
        ]

    def test_check_with_an_endpoint_as_scope_shares_its_quota(self, app: Flask, multilimit: MultiLimit) -> None:
        app.add_url_rule("/limited", "limited", rate_limiter(rules="2/minute")(view()))
        app.add_url_rule("/", "view", lambda: str(multilimit.check("2/minute", scope="limited").allowed))
        assert ask(app).text == "True"
        assert statuses(app, "/limited", "/limited") == [200, 429]

    def test_check_accepts_cost_and_shadow(self, app: Flask, multilimit: MultiLimit) -> None:
        with app.app_context():
            assert multilimit.check("5/minute", scope="a", cost=4).remaining == 1
            assert multilimit.check("5/minute", scope="a", cost=0).remaining == 1
            assert not multilimit.check("5/minute", scope="a", cost=lambda: 2).allowed
            assert multilimit.check("5/minute", scope="a", cost=2, shadow=True).shadowed

    def test_many_checks_in_one_request_do_not_accumulate_decisions(self, app: Flask, multilimit: MultiLimit) -> None:
        @rate_limiter("5/minute")
        def chat() -> str:  # like a websocket that checks each message
            before = decisions_alive()
            for _ in range(1000):
                multilimit.check("10/minute", scope="messages", name="messages")
            return str(decisions_alive() - before)

        app.add_url_rule("/", "chat", chat)

        answer = ask(app)

        assert int(answer.text) < 500
        assert policy(answer) == ["default-60s", "messages-60s"]

    def test_many_released_slots_in_one_request_do_not_accumulate_decisions(
        self, app: Flask, multilimit: MultiLimit
    ) -> None:
        @rate_limiter("5 at once")
        def chat() -> str:
            before = decisions_alive()
            for _ in range(500):
                outer, inner = (multilimit.check("2 at once", scope="work", name="work") for _ in range(2))
                assert outer.allowed
                assert inner.allowed
                multilimit.release(inner)
                multilimit.release(outer)
            return str(decisions_alive() - before)

        app.add_url_rule("/", "chat", chat)

        assert int(ask(app).text) < 500

    def test_check_allows_everything_when_limits_are_disabled(self, app: Flask, storage: RecordingStorage) -> None:
        app.config["MULTILIMIT_ENABLED"] = False
        multilimit = MultiLimit(app, storage=storage)

        with app.app_context():
            assert all(multilimit.check("1/minute", scope="a").allowed for _ in range(3))
        assert storage.checks == []


class TestLimit:
    def test_limit_block_admits_or_refuses_like_a_decorator(self, app: Flask, multilimit: MultiLimit) -> None:
        entered = []

        def send() -> str:
            with multilimit.limit("1/minute", scope="mail", message="No more mail.") as decision:
                entered.append(decision.remaining)
            return "sent"

        app.add_url_rule("/", "view", send)

        first, second = ask(app), ask(app, headers={"Accept": "application/json"})
        assert (first.text, entered) == ("sent", [0])
        assert (second.status_code, second.headers["Retry-After"]) == (429, "60")
        assert (second.json or {})["detail"] == "No more mail."

    def test_limit_block_is_shown_beside_limits_of_decorators(
        self, app: Flask, multilimit: MultiLimit, storage: RecordingStorage
    ) -> None:
        def send() -> str:
            with multilimit.limit("3/hour", scope="mail"):
                return str(current_decision.remaining)

        app.add_url_rule("/", "view", rate_limiter(rules="9/minute")(send))

        response = ask(app)
        assert (response.text, policy(response)) == ("2", ["default-60s", "default-3600s"])
        assert storage.windows == [[60], [3600]]

    def test_limit_block_can_be_charged_by_the_response(self, app: Flask, multilimit: MultiLimit) -> None:
        def send() -> Any:
            with multilimit.limit("1/minute", scope="mail", charge_when=lambda response: response.status_code == 200):
                return "sent", int(request.args["status"])

        app.add_url_rule("/", "view", send)

        assert [ask(app, f"/?status={status}").status_code for status in (503, 503, 200, 200)] == [503, 503, 200, 429]


class TestWithoutRequest:
    def test_limit_block_refuses_a_command(self, app: Flask, multilimit: MultiLimit, clock: Clock) -> None:
        @app.cli.command("rebuild")
        def rebuild() -> None:
            with multilimit.limit("1/minute", scope="rebuild"):
                print("rebuilt")  # noqa: T201 - the command's output

        runner = app.test_cli_runner()
        first, second = runner.invoke(args=["rebuild"]), runner.invoke(args=["rebuild"])

        assert first.output == "rebuilt\n"
        assert isinstance(second.exception, RateLimitExceeded)
        assert second.exception.decision.retry_after == 60
        clock.advance(60)
        assert runner.invoke(args=["rebuild"]).output == "rebuilt\n"

    @pytest.mark.parametrize("kind", [LimitType.IP, LimitType.USER, (LimitType.USER, LimitType.IP)])
    def test_check_by_ip_or_user_without_a_subject_is_an_error(
        self, app: Flask, multilimit: MultiLimit, kind: Any
    ) -> None:
        with app.app_context(), pytest.raises(ConfigurationError, match=r'limiter on "task": .*pass subject='):
            multilimit.check("1/minute", scope="task", type=kind)

    def test_charge_when_is_an_error_and_charges_nothing(
        self, app: Flask, multilimit: MultiLimit, storage: RecordingStorage
    ) -> None:
        with (
            app.app_context(),
            pytest.raises(ConfigurationError, match=r'limiter on "task": charge_when needs the response'),
            multilimit.limit("1/minute", scope="task", charge_when=lambda _: True),
        ):
            pass
        assert storage.checks == []


class TestMistakes:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"scope": ""}, "scope='': give text, such as \"mail\"$"),
            ({"rules": "5/fortnight"}, 'limiter on "mail": rule .*unknown unit'),
            ({"rules": lambda: "5/minute"}, "a callable for rules is for declarations; call it here"),
            ({"cots": 1}, r"'cots' is not an option of a limiter; did you mean 'cost'\?"),
            ({"methods": ["POST"]}, 'limiter on "mail": methods is for declarations'),
            ({"with_defaults": True}, 'limiter on "mail": with_defaults is for declarations'),
            ({"settle": True}, 'limiter on "mail": settle=True is for declarations; here, say it of the decision'),
            ({"cost": 10}, 'limiter on "mail": cost=10: .* could never admit it'),
            ({"type": lambda: "x"}, "a type of your own needs a name"),
        ],
    )
    def test_invalid_option_of_a_limit_block_is_an_error_with_a_remedy(
        self, app: Flask, multilimit: MultiLimit, storage: RecordingStorage, options: Any, message: str
    ) -> None:
        with (
            app.app_context(),
            pytest.raises(ConfigurationError, match=message),
            multilimit.limit(**{"rules": "5/minute", "scope": "mail", **options}),
        ):
            pass
        assert storage.checks == []
