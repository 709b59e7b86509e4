"""`charge_when`: units are charged before the view, and kept or refunded after it."""

import re
import sys
from collections.abc import Callable
from decimal import Decimal
from io import BytesIO
from typing import Any

import pytest
from flask import Flask, Response, abort, copy_current_request_context, request, send_file

from flask_multilimit import MultiLimit, current_decision, rate_limiter
from flask_multilimit.engine import hits_for
from flask_multilimit.serve import settle, state
from flask_multilimit.signals import Event, limit_event
from support.asking import ask, statuses, view
from support.clock import Clock
from support.cluster import Cluster
from support.threads import in_threads, interleaved


def failed(response: Response) -> bool:
    return response.status_code >= 400


def answer() -> Any:
    """A view that answers with the status in the query."""
    status = int(request.args.get("status", 200))
    return str(current_decision.remaining), status


@pytest.fixture
def app(app: Flask, any_storage: Any) -> Flask:
    MultiLimit(app, storage=any_storage)
    return app


@pytest.fixture
def login(app: Flask) -> Flask:
    app.testing = False
    app.add_url_rule("/", "login", rate_limiter(rules="3/minute", charge_when=failed)(answer))
    return app


@pytest.mark.parametrize(
    "condition", [failed, lambda response: response.status if failed(response) else None], ids=["bool", "text"]
)
def test_response_that_fails_the_condition_is_refunded(app: Flask, condition: Callable[[Response], Any]) -> None:
    app.add_url_rule("/", "login", rate_limiter(rules="3/minute", charge_when=condition)(answer))
    assert statuses(app, *["/"] * 10) == [200] * 10
    assert statuses(app, *["/?status=401"] * 4) == [401, 401, 401, 429]
    assert statuses(app, "/") == [429]


def test_refund_is_reported_with_its_endpoint_on_a_cluster(cluster: Cluster) -> None:
    app = Flask("shop")
    app.config["MULTILIMIT_STORAGE_TIMEOUT"] = 10
    multilimit, events = MultiLimit(app, storage=cluster.uri), list[Event]()
    app.add_url_rule("/", "login", rate_limiter(rules="3/minute", charge_when=failed)(answer))

    with limit_event.connected_to(lambda _, event: events.append(event), app):
        ask(app)

    assert [(event.outcome, event.endpoint) for event in events] == [("allowed", "login"), ("refunded", "login")]
    with app.app_context():
        multilimit.limiter.close()


def test_view_sees_its_own_charge(login: Flask) -> None:
    assert ask(login).text == "2"


def test_refused_request_refunds_nothing(login: Flask, clock: Clock) -> None:
    statuses(login, *["/?status=401"] * 3)
    clock.advance(30)
    statuses(login, *["/"] * 5)
    clock.advance(29.999999)

    assert statuses(login, "/") == [429]


def test_refund_returns_the_whole_cost_and_nothing_of_other_limiters(app: Flask) -> None:
    dear = rate_limiter(rules="10/minute", cost=4, charge_when=failed)
    app.add_url_rule("/", "view", dear(rate_limiter(rules="100/hour", name="kept")(answer)))

    fields = [ask(app).headers["RateLimit"] for _ in range(2)]

    assert [field.split("r=")[1].split(";")[0] for field in fields] == ["10", "10"]
    assert [field.split("r=")[2].split(";")[0] for field in fields] == ["99", "98"]


def no_key() -> str:
    return dict[str, str]()["key"]


class TestFinalResponse:
    """`charge_when` gets the response as it is sent."""

    @pytest.mark.parametrize(
        ("raising", "expected"),
        [
            (lambda: abort(401), 401),
            (lambda: abort(Response("own", 403)), 403),
            (lambda: 1 / 0, 500),
            (no_key, 418),
        ],
        ids=["abort", "abort with a response", "an exception", "an exception with a handler"],
    )
    def test_error_response_is_charged_however_the_view_raised_it(
        self, app: Flask, raising: Callable[[], Any], expected: int
    ) -> None:
        app.testing = False
        app.register_error_handler(KeyError, lambda _: ("no such thing", 418))
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute", charge_when=failed)(lambda: raising()))  # noqa: PLW0108 - a new one
        assert statuses(app, "/", "/") == [expected, 429]

    def test_exception_that_a_handler_turns_into_200_is_refunded(self, app: Flask) -> None:
        app.register_error_handler(KeyError, lambda _: "all is well")
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute", charge_when=failed)(no_key))
        assert statuses(app, "/", "/", "/") == [200, 200, 200]

    def test_condition_sees_the_status_set_by_after_request_functions(self, app: Flask) -> None:
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute", charge_when=failed)(view()))

        @app.after_request
        def spoil(response: Response) -> Response:
            response.status_code = 503
            return response

        assert statuses(app, "/", "/") == [503, 503]
        assert ask(app).headers["RateLimit"].startswith('"default-60s";r=0')

    def test_unhandled_exception_leaves_the_charge(self, app: Flask) -> None:
        app.config["PROPAGATE_EXCEPTIONS"] = True
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute", charge_when=failed)(lambda: str(1 / 0)))

        with pytest.raises(ZeroDivisionError):
            ask(app)
        assert statuses(app, "/") == [429]

    @pytest.mark.parametrize("charge_when", [200, "2xx"])
    @pytest.mark.parametrize(
        ("fields", "etag", "status"),
        [
            ({"Range": "bytes=0-"}, "yes", 206),
            ({"If-Match": '"no"'}, "yes", 412),
            ({"If-Match": '"no"', "If-Modified-Since": "Sun, 01 Nov 2026 00:00:00 GMT"}, False, 412),
        ],
    )
    def test_a_file_is_charged_with_whatever_status_the_client_asks_for_all_of_it(
        self, app: Flask, charge_when: Any, fields: dict[str, str], etag: Any, status: int
    ) -> None:
        @app.get("/")
        @rate_limiter(rules="2/minute", charge_when=charge_when)
        def file() -> Response:
            return send_file(BytesIO(b"all"), "text/plain", etag=etag, last_modified=None if etag else 0)

        first = ask(app, headers=fields)

        assert (first.status_code, first.data) == (status, b"all")
        assert statuses(app, "/", "/", headers=fields) == [status, 429]

    def test_failed_precondition_without_content_is_no_success(self, app: Flask) -> None:
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute", charge_when=200)(lambda: abort(412)))
        assert statuses(app, "/", "/") == [412, 412]

    def test_empty_answer_about_a_file_that_the_client_has_is_no_success(self, app: Flask) -> None:
        file = lambda: send_file(BytesIO(b"all"), "text/plain", etag="yes")  # noqa: E731
        app.add_url_rule("/", "file", rate_limiter(rules="1/minute", charge_when=200)(file))
        assert statuses(app, "/", "/", headers={"If-None-Match": "*"}) == [304, 304]

    @pytest.mark.parametrize("charge_when", ["4xx", [404], ["5xx", 404], 404, (404,), {404}], ids=str)
    def test_statuses_can_be_given_in_place_of_a_condition(self, app: Flask, charge_when: Any) -> None:
        limiter = rate_limiter(rules="1/minute", charge_when=charge_when)
        app.add_url_rule("/<int:status>", "view", limiter(lambda status: ("", status)))
        assert statuses(app, "/200", "/200", "/404", "/200") == [200, 200, 404, 429]


class TestFailingCondition:
    """The view has done its work: its client gets the response, and pays for it."""

    @pytest.fixture(
        params=[
            lambda response: response.json["ok"],
            lambda response: response.nonsense,
            lambda _: 0,
            lambda _: 2.5,
            lambda _: Decimal(0),
            lambda _: WithoutTruthValue(),
        ],
        ids=["not JSON", "raises", "an int", "a float", "a Decimal", "neither true nor false"],
    )
    def condition(self, request: pytest.FixtureRequest) -> Any:
        return request.param

    @pytest.mark.parametrize("made", ["complete", "stream"])
    def test_failing_condition_keeps_the_response_and_the_charge(
        self, app: Flask, condition: Any, made: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        paid = view() if made == "complete" else lambda: Response(iter(["o", "k"]))
        app.post("/", endpoint="pay")(rate_limiter(rules="2/minute", charge_when=condition)(paid))

        answers = [ask(app, method="POST") for _ in range(3)]

        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert [answer.text for answer in answers[:2]] == ["ok"] * 2
        assert ["charge_when of the limiter" in each for each in caplog.messages] == [True]
        assert ["so the charge stands" in each for each in caplog.messages] == [True]

    @pytest.mark.parametrize("outermost", [True, False])
    def test_failing_condition_leaves_settlement_of_other_limiters(
        self, app: Flask, condition: Any, *, outermost: bool
    ) -> None:
        others = [
            rate_limiter(rules="100/minute", cost=10, settle=lambda _: 1, name="real"),
            rate_limiter(rules="50/hour", charge_when=failed, name="failed"),
        ]
        failing = rate_limiter(rules="20/day", charge_when=condition, name="failing")
        stacked: Any = view()
        for limiter in [*others, failing] if outermost else [failing, *others]:
            stacked = limiter(stacked)
        app.get("/", endpoint="view")(stacked)

        assert statuses(app, "/") == [200]
        left = dict(re.findall(r'"([^"]+)";r=(\d+)', ask(app).headers["RateLimit"]))

        assert left == {"real-60s": "98", "failed-3600s": "50", "failing-86400s": "18"}

    def test_log_explains_a_condition_that_returns_a_number(self, app: Flask, caplog: pytest.LogCaptureFixture) -> None:
        returns_a_number: Any = lambda _: 1  # noqa: E731
        app.get("/", endpoint="view")(rate_limiter(rules="2/minute", charge_when=returns_a_number)(view()))
        ask(app)
        assert "charge_when returned 1, and it decides whether" in caplog.text

    def test_failing_condition_of_a_function_called_by_a_view_keeps_its_charge(
        self, app: Flask, condition: Any
    ) -> None:
        guess = rate_limiter(rules="2/minute", charge_when=condition)(view())
        app.add_url_rule("/", "view", lambda: guess())  # noqa: PLW0108 - as a view, its limit would be that of the view
        assert statuses(app, "/", "/", "/") == [200, 200, 429]


class WithoutTruthValue:
    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


def test_function_is_charged_by_the_response_of_the_view_that_calls_it(app: Flask) -> None:
    guess = rate_limiter(rules="2/minute", charge_when=failed)(view())

    def login() -> Any:
        guess()
        return "", int(request.args["status"])

    app.add_url_rule("/", "view", login)

    assert statuses(app, *["/?status=200"] * 5) == [200] * 5
    assert statuses(app, *["/?status=401"] * 3) == [401, 401, 429]


def test_charges_of_two_threads_of_one_request_are_all_given_back(app: Flask) -> None:
    charged = rate_limiter(rules="1000/hour", charge_when=lambda _: False)(view())
    app.add_url_rule("/left", "left", lambda: charged() and str(current_decision.remaining))

    @app.get("/")
    def fan_out() -> str:
        of_another, before = copy_current_request_context(charged), sys.gettrace()

        def at_each_line(_: Any, event: str, __: Any) -> Any:
            if event == "line":
                in_threads(1, of_another)
            return at_each_line

        sys.settrace(lambda frame, *_: at_each_line if frame.f_code.co_filename == settle.__file__ else None)
        try:
            return charged()
        finally:
            sys.settrace(before)

    assert statuses(app, "/") == [200]
    assert ask(app, "/left").text == "999"


def test_charges_of_two_threads_of_a_request_without_preprocessing_are_all_given_back(app: Flask) -> None:
    charged = rate_limiter(rules="1000/hour", scope="fan-out", charge_when=lambda _: False)(view())

    def fan_out(other: list[Callable[[], object]]) -> None:
        with app.test_request_context("/"):
            other.append(copy_current_request_context(charged))
            charged()
            other.clear()
            app.process_response(Response())

    for _ in interleaved(list[Callable[[], object]], fan_out, lambda other: [each() for each in other], of=state):
        with app.app_context():
            limiter = app.extensions["multilimit"].limiter
            assert limiter.peek(hits_for("1000/hour", scope="fan-out")).remaining == 1000
