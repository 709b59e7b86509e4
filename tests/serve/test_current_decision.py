"""``current_decision`` and ``peek`` where no limit applies: they answer as if the limit were as large as possible."""

from typing import Any

import pytest
from flask import Flask, render_template_string

from flask_multilimit import ConfigurationError, LimitType, MultiLimit, current_decision, rate_limiter
from flask_multilimit.engine.rules import MAX_COUNT
from support.asking import ask
from support.changes import control_of
from support.doubles import RecordingStorage

REASONS = ["disabled", "allowed by a list", "no rules for this request", "switched off by an override", "exempt now"]
UNLIMITED = {
    "allowed": True,
    "remaining": MAX_COUNT,
    "retry_after": 0,
    "reset_after": 0,
    "delay": 0,
    "statuses": [],
    "violated": [],
    "bans": [],
}


def shown(decision: Any) -> dict[str, Any]:
    """The attributes of a decision that views read."""
    return {name: getattr(decision, name) for name in UNLIMITED}


@pytest.fixture(params=REASONS)
def unlimited(request: pytest.FixtureRequest, app: Flask, storage: RecordingStorage) -> MultiLimit:
    """An app whose view and function have a limit that does not apply, for one of ``REASONS``."""
    app.config["MULTILIMIT_ENABLED"] = request.param != "disabled"
    allow = ["127.0.0.1"] if request.param == "allowed by a list" else []
    options: dict[str, Any] = {"rules": (lambda: None) if request.param == "no rules for this request" else "5/minute"}
    if request.param == "exempt now":
        options["exempt_when"] = lambda: True
    multilimit = MultiLimit(app, storage=storage, allow=allow)
    app.add_url_rule("/", "index", rate_limiter(type=LimitType.IP, **options)(lambda: shown(current_decision)))

    service = rate_limiter(name="service", **options)(lambda: "done")

    @app.get("/service")
    def serve() -> Any:
        service()  # type: ignore[no-untyped-call]
        return shown(current_decision)

    if request.param == "switched off by an override":
        control_of(app).override("*", off=True, lasting=True, force=True)
    return multilimit


@pytest.mark.usefixtures("unlimited")
@pytest.mark.parametrize("path", ["/", "/service"])
def test_unlimited_view_gets_a_decision_that_admits(app: Flask, path: str) -> None:
    assert ask(app, path).json == UNLIMITED


@pytest.mark.usefixtures("unlimited")
@pytest.mark.parametrize("path", ["/", "/nowhere"])
def test_after_request_functions_handlers_and_templates_can_read_current_decision(app: Flask, path: str) -> None:
    app.context_processor(lambda: {"decision": current_decision})
    seen: list[Any] = []

    @app.after_request
    def look(response: Any) -> Any:
        seen.append(shown(current_decision) | {"rendered": render_template_string("{{ decision.remaining }}")})
        return response

    app.register_error_handler(404, lambda _: (render_template_string("{{ decision.remaining }}"), 404))

    ask(app, path)

    assert [(each["allowed"], each["rendered"]) for each in seen] == [(True, str(MAX_COUNT))]


def test_decision_without_limits_can_be_refunded_released_peeked_and_reset(app: Flask, unlimited: MultiLimit) -> None:
    @app.get("/all")
    @rate_limiter(rules="5/minute", exempt_when=lambda: True)
    def everything() -> str:
        refunded = unlimited.refund(current_decision)
        unlimited.release(current_decision)
        unlimited.reset()
        unlimited.reset("index", "ip:127.0.0.1")
        return f"{refunded.allowed} {unlimited.peek().allowed} {unlimited.peek('index', 'ip:127.0.0.1').allowed}"

    assert ask(app, "/all").text == "True True True"


def test_exempt_function_outside_a_request_does_not_get_an_earlier_decision(limited_app: Flask) -> None:
    free = False
    service = rate_limiter(rules="5/minute", exempt_when=lambda: free)(lambda: current_decision.remaining)

    with limited_app.app_context():
        assert service() == 4  # type: ignore[no-untyped-call]
        free = True
        assert service() == MAX_COUNT  # type: ignore[no-untyped-call]


def test_current_decision_in_a_function_is_unlimited_when_limits_are_disabled(app: Flask) -> None:
    app.config["MULTILIMIT_ENABLED"] = False
    MultiLimit(app)
    with app.app_context():
        assert rate_limiter(rules="5/minute")(lambda: current_decision.remaining)() == MAX_COUNT


@pytest.mark.parametrize("enabled", [True, False])
def test_current_decision_before_a_limited_function_is_called_is_an_error(app: Flask, enabled: bool) -> None:
    app.config["MULTILIMIT_ENABLED"] = enabled
    MultiLimit(app)
    with app.app_context(), pytest.raises(RuntimeError, match="no limited function has been called"):
        current_decision.remaining  # noqa: B018


def test_current_decision_before_limits_are_checked_is_an_error(app: Flask) -> None:
    MultiLimit(app)
    app.before_request(lambda: str(current_decision.remaining))
    app.get("/")(rate_limiter()(lambda: "ok"))

    with pytest.raises(RuntimeError, match="have not been checked yet"):
        ask(app)


def test_current_decision_without_multilimit_is_an_error(app: Flask) -> None:
    app.get("/")(lambda: str(current_decision.remaining))
    with pytest.raises(ConfigurationError, match="has no MultiLimit"):
        ask(app)


def test_reset_during_an_override_clears_the_declared_quota(multilimit: MultiLimit, app: Flask) -> None:
    app.add_url_rule("/", "index", rate_limiter(type=LimitType.IP, rules="1/minute")(lambda: "ok"))
    ask(app)
    with app.app_context():
        off = multilimit.control.override("index", off=True, lasting=True)
        multilimit.reset("index", "ip:127.0.0.1")
        multilimit.control.undo(off.id)

    assert ask(app).status_code == 200
