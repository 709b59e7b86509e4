"""`shadow=True`: the limiter is checked, counted and signalled, but never refuses."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask

from flask_multilimit import Decision, LimitType, MultiLimit, Reserve, current_decision, rate_limiter, settle
from flask_multilimit.engine import Limiter
from flask_multilimit.serve.gate import gate_of
from flask_multilimit.signals import limits_checked, request_rejected, shadow_rejected
from support.asking import ask, heard, policy, statuses, view
from support.clock import Clock


@pytest.fixture
def sent(app: Flask) -> Iterator[list[tuple[str, Any]]]:
    with heard(app, limits_checked, request_rejected, shadow_rejected) as sent:
        yield sent


def shadowed(sent: list[tuple[str, Any]]) -> list[tuple[str, list[str]]]:
    """The name of each signal, and the shadows that would have refused."""
    return [(name, [status.name for status in told["decision"].shadowed]) for name, told in sent]


def test_shadow_is_signalled_when_it_would_have_refused(
    app: Flask, any_storage: Any, sent: list[tuple[str, Any]], clock: Clock
) -> None:
    MultiLimit(app, storage=any_storage)
    app.add_url_rule("/", "view", rate_limiter(rules="1/minute", shadow=True, name="trial")(view()))

    for seconds in (0, 0, 60):
        clock.advance(seconds)
        ask(app)

    assert shadowed(sent) == [
        ("limits-checked", []),
        ("limits-checked", ["trial-60s"]),
        ("shadow-rejected", ["trial-60s"]),
        ("limits-checked", []),
    ]


def test_shadow_counts_like_a_limiter_that_refuses(app: Flask, any_storage: Any) -> None:
    """It does not charge what it would refuse, so its count is that of the same limiter without ``shadow``."""
    MultiLimit(app, storage=any_storage)
    shadow = rate_limiter(rules="2/minute", shadow=True, scope="trial")
    real = rate_limiter(rules="2/minute", scope="trial")
    app.add_url_rule("/", "view", shadow(lambda: ",".join(str(status.allowed) for status in current_decision.statuses)))
    app.add_url_rule("/real", "real", real(view()))

    assert [ask(app).text for _ in range(3)] == ["True", "True", "False"]
    assert statuses(app, "/real") == [429]


def test_shadow_is_not_charged_when_another_limit_refuses(app: Flask, any_storage: Any, clock: Clock) -> None:
    app.config["MULTILIMIT_SHADOW_HEADERS"] = True
    MultiLimit(app, storage=any_storage)
    shadow, real = rate_limiter(rules="9/minute", shadow=True), rate_limiter(type=LimitType.IP, rules="1/second")
    app.add_url_rule("/", "view", shadow(real(view())))

    statuses(app, "/", "/", "/")
    clock.advance(1)

    assert '"default-60s";r=7' in ask(app).headers["RateLimit"]


def test_shadow_is_in_header_fields_only_when_configured(app: Flask, any_storage: Any) -> None:
    other = Flask("other")
    other.config["MULTILIMIT_SHADOW_HEADERS"] = True
    for each in (app, other):
        MultiLimit(each, storage=any_storage)
        shadow = rate_limiter(rules="1/minute", shadow=True, name="trial")
        each.add_url_rule("/", "view", shadow(rate_limiter(rules="9/hour")(view())))
        each.add_url_rule("/alone", "alone", rate_limiter(rules="1/minute", shadow=True)(view()))

    assert policy(ask(app)) == ["default-3600s"]
    assert policy(ask(app, "/alone")) == []
    assert policy(ask(other)) == ["trial-60s", "default-3600s"]
    assert ask(other, "/alone").headers["RateLimit"] == '"default-60s";r=0;t=60'


def test_shadows_in_settings_never_refuse(app: Flask, any_storage: Any, sent: list[tuple[str, Any]]) -> None:
    shadow = {"rules": "1/minute", "shadow": True}
    app.config |= {"MULTILIMIT_LIMITS": {"view": {**shadow, "rules": "1/hour"}}, "MULTILIMIT_SHADOW_HEADERS": True}
    MultiLimit(app, storage=any_storage, application_limits=shadow, unmatched_limits=shadow)
    app.add_url_rule("/", "view", view())

    assert statuses(app, "/", "/") == [200, 200]
    assert statuses(app, "/no", "/no") == [404, 404]
    assert ("shadow-rejected", ["application-60s", "default-3600s"]) in shadowed(sent)


def test_shadow_does_not_wait_or_call_on_rejected(app: Flask, any_storage: Any) -> None:
    rejected: list[Decision] = []
    slept: list[float] = []
    MultiLimit(app, storage=any_storage, on_rejected=rejected.append)
    gate_of(app).limiter = Limiter(any_storage, sleep=slept.append)
    limiter = rate_limiter(rules="1/minute", shadow=True, wait=60, on_rejected=rejected.append)
    app.add_url_rule("/", "view", limiter(view()))

    assert statuses(app, "/", "/") == [200, 200]
    assert (rejected, slept) == ([], [])


FAILING: dict[str, Callable[[Callable[[], Any]], dict[str, Any]]] = {
    "cost": lambda fails: {"cost": fails},
    "exempt_when": lambda fails: {"exempt_when": fails},
    "priority": lambda fails: {"rules": "4/minute", "reserve": Reserve({"high": 0.5}, fails)},
    "rules": lambda fails: {"rules": fails},
    "type": lambda fails: {"type": fails, "name": "tenant"},
    "user": lambda _: {"type": LimitType.USER},
}


def raises() -> Any:
    raise ValueError("no number")


@pytest.mark.parametrize("fails", [raises, lambda: raises])
@pytest.mark.parametrize("what", FAILING)
def test_trial_whose_callable_fails_changes_no_answer_and_is_logged(
    app: Flask, any_storage: Any, what: str, fails: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    app.testing = False
    MultiLimit(app, storage=any_storage, user_loader=fails, default_limits="2/hour")
    trial = rate_limiter(shadow=True, **{"rules": "1/minute", **FAILING[what](fails)})
    app.add_url_rule("/", "view", trial(view()))

    assert statuses(app, "/", "/", "/") == [200, 200, 429]
    assert len(caplog.records) == 1


def test_reset_raises_the_error_of_a_trial_whose_quota_it_cannot_find(app: Flask) -> None:
    multilimit = MultiLimit(app)
    app.add_url_rule("/", "view", rate_limiter(type=LimitType.IP, rules=raises, shadow=True)(view()))

    with app.test_request_context("/"), pytest.raises(ValueError, match="no number"):
        multilimit.reset()


def test_trial_in_a_view_whose_callable_fails_changes_no_answer(app: Flask, any_storage: Any) -> None:
    multilimit = MultiLimit(app, storage=any_storage)
    trial: dict[str, Any] = {"rules": "1/minute", "scope": "mail", "type": raises, "name": "tenant", "shadow": True}
    app.add_url_rule("/", "view", lambda: str(multilimit.check(**trial).allowed))

    assert [ask(app).text for _ in range(2)] == ["True", "True"]


def test_trial_that_settles_beside_another_limit_needs_no_name(app: Flask, any_storage: Any) -> None:
    app.config["MULTILIMIT_SHADOW_HEADERS"] = True
    MultiLimit(app, storage=any_storage)

    @rate_limiter(rules="9/hour", settle=True, name="trial", shadow=True)
    @rate_limiter(rules="9/hour", settle=True, name="real")
    def spend() -> str:
        settle(4)
        return "ok"

    app.add_url_rule("/", "view", spend)

    answered = ask(app)

    assert answered.status_code == 200
    assert sorted(re.findall(r'"(\w+)-3600s";r=(\d)', answered.headers["RateLimit"])) == [("real", "5"), ("trial", "5")]


def test_trial_that_is_charged_by_the_response_fails_no_call_outside_of_a_request(
    app: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    MultiLimit(app)
    trial = rate_limiter(rules="1/minute", charge_when=[401], shadow=True)
    service = trial(rate_limiter(rules="9/hour", scope="service")(lambda: "sent"))

    with app.app_context():
        assert service() == "sent"  # type: ignore[no-untyped-call]
        assert current_decision.remaining == 8
    assert len(caplog.records) == 1


def test_limit_that_fails_beside_a_trial_still_ends_the_request_with_its_error(app: Flask, any_storage: Any) -> None:
    app.testing = False
    MultiLimit(app, storage=any_storage)
    trial, failing = rate_limiter(rules="1/minute", shadow=True), rate_limiter(rules="9/hour", cost=raises)
    app.add_url_rule("/", "view", trial(failing(view())))

    assert statuses(app, "/", "/") == [500, 500]


@pytest.mark.parametrize("what", FAILING)
def test_limit_whose_callable_fails_refuses_nobody_while_it_is_set_to_shadow(
    app: Flask, any_storage: Any, what: str
) -> None:
    app.testing = False
    multilimit = MultiLimit(app, storage=any_storage, user_loader=raises)
    app.add_url_rule("/", "view", rate_limiter(**{"rules": "1/minute", **FAILING[what](raises)})(view()))

    before = statuses(app, "/")
    with app.app_context():
        multilimit.control.override("view", shadow=True, for_=60, force=True)

    assert before + statuses(app, "/", "/") == [500, 200, 200]
