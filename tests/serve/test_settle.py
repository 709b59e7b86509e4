"""`settle`: the charge becomes what a request really cost, by the response, the view, or the end of a stream."""

from __future__ import annotations

import asyncio
import io
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

import pytest
from flask import Flask, Response, abort, jsonify, request, send_file, stream_with_context
from werkzeug.test import TestResponse
from werkzeug.wsgi import ClosingIterator

from flask_multilimit import (
    IP,
    Ban,
    Concurrent,
    ConfigurationError,
    MultiLimit,
    Reserve,
    Rule,
    current_decision,
    rate_limiter,
    settle,
)
from flask_multilimit.engine import Hit, StorageError, hits_for
from flask_multilimit.engine.threads import Beat
from flask_multilimit.serve import settle as settling
from flask_multilimit.serve.gate import gate_of
from flask_multilimit.serve.settle import MOST_OPEN, Settlement
from flask_multilimit.serve.state import Records
from flask_multilimit.signals import Event, limit_event
from support.changes import control_of
from support.doubles import raising
from support.forks import forked
from support.threads import interleaved
from support.waiting import PATIENCE

Asking = Callable[..., Callable[..., TestResponse]]

TOKENS = Rule(3600, 1000, algorithm="fixed_window")


@pytest.fixture
def app() -> Flask:
    app = Flask("chat")
    app.config["TESTING"] = True
    MultiLimit(app)
    return app


def serve(app: Flask, view: Callable[[], Any], **options: Any) -> Callable[..., TestResponse]:
    """Serve ``view`` at /, with a limiter of 1000 units an hour that charges 100 before it is settled."""
    options = {"rules": TOKENS, "cost": 100, **options}
    app.add_url_rule("/", "view", rate_limiter(**options)(view))
    client = app.test_client()
    return lambda **more: client.open("/", **more)


def left(app: Flask) -> int:
    with app.app_context():
        return int(app.extensions["multilimit"].peek("view").remaining)


def shown(response: Any) -> list[int]:
    """What is left of each limit, as the header field says."""
    return [int(found) for found in re.findall(r"r=(\d+)", response.headers["RateLimit"])]


@pytest.fixture
def storage(app: Flask) -> Any:
    with app.app_context():
        return app.extensions["multilimit"].limiter.storage


@pytest.fixture
def events(app: Flask) -> Iterator[list[Event]]:
    found: list[Event] = []
    with limit_event.connected_to(lambda _, event: found.append(event), app):
        yield found


def settling_at(*settled: int) -> Callable[[], str]:
    """A view that calls ``settle`` with each of these."""

    def view() -> str:
        for units in settled:
            settle(units)
        return "ok"

    return view


@pytest.mark.parametrize(("cost", "expected"), [(0, 1000), (100, 900)])
def test_view_that_does_not_settle_is_charged_the_estimate(app: Flask, cost: int, expected: int) -> None:
    get = serve(app, lambda: "ok", cost=cost, settle=True)
    assert (shown(get()), left(app)) == ([expected], expected)


@pytest.mark.parametrize("units", [0, 40, 100, 340, 1500])
def test_settle_callable_decides_the_charge_and_header_fields_show_the_rest(app: Flask, units: int) -> None:
    get = serve(app, lambda: jsonify(tokens=units), settle=lambda response: response.json["tokens"])
    assert shown(get()) == [left(app)] == [max(1000 - units, 0)]


@pytest.mark.parametrize("dialect", ["draft-11", "draft-06", "legacy", "both"])
def test_no_header_field_is_negative_while_a_debt_refuses(dialect: str) -> None:
    app = Flask("chat")
    app.config["MULTILIMIT_HEADERS"] = dialect
    MultiLimit(app)
    cost = {"cost": lambda: request.args.get("cost", 100, int), "settle": lambda _: 5000}
    get = serve(app, lambda: "ok", rules=[TOKENS, "2000 per day"], **cost)

    settled, refused, too_large = get(), get(), get(query_string={"cost": 9000})

    assert (refused.status_code, too_large.status_code) == (429, 429)
    for response in (settled, refused, too_large):
        fields = [value for name, value in response.headers if "Rate" in name or name == "Retry-After"]
        assert fields
        assert not [value for value in fields if re.search(r"(^|=)-|t=0", value)]


@pytest.mark.parametrize("cost", [0, lambda: 0], ids=["number", "callable"])
def test_request_without_an_estimate_passes_while_one_unit_is_free(app: Flask, cost: Any) -> None:
    get = serve(app, lambda: "ok", cost=cost, settle=lambda _: 400)
    assert [shown(get()) for _ in range(3)] == [[600], [200], [0]]
    assert get().status_code == 429


def test_header_fields_during_a_debt_show_when_the_next_unit_is_free(app: Flask) -> None:
    rules = [Rule(3600, 1000, algorithm="sliding_window_counter"), Rule(3600, 1000, algorithm="gcra", burst=500)]
    get = serve(app, lambda: "ok", rules=rules, cost=0, settle=lambda _: 1380)
    fields = get().headers["RateLimit"].split(", ")
    assert [field.partition(";")[2] for field in fields] == ["r=0;t=4594", "r=0;t=3172"]


def test_settle_header_decides_each_charge_and_is_removed_from_a_response_that_a_view_returns_again(
    app: Flask,
) -> None:
    kept = Response("ok", headers={"X-Tokens": "340"})
    get = serve(app, lambda: kept, settle="header:X-Tokens")

    responses = [get(), get()]

    assert not [each for each in responses if "X-Tokens" in each.headers]
    assert left(app) == 1000 - 2 * 340


def test_settle_header_is_sent_to_the_client_with_option_keep(app: Flask) -> None:
    app.config["MULTILIMIT_LIMITS"] = {
        "view": {"rules": "5000/hour", "cost": 10, "settle": "header:X-Tokens", "settle_header": "keep"}
    }
    other = Flask("kept")
    other.config.update(app.config)
    MultiLimit(other)
    other.add_url_rule("/", "view", lambda: Response("ok", headers={"X-Tokens": "340"}))

    response = other.test_client().get("/")

    assert (response.headers["X-Tokens"], left(other)) == ("340", 4660)


def test_one_header_settles_every_limiter_that_reads_it(app: Flask) -> None:
    view = rate_limiter(rules=Rule(60, 500), scope="also", name="also", cost=10, settle="header:X-Tokens")(
        lambda: Response("ok", headers={"X-Tokens": "340"})
    )

    response = serve(app, view, settle="header:X-Tokens")()

    assert shown(response) == [660, 160]
    assert "X-Tokens" not in response.headers


@pytest.mark.parametrize(
    "answer", [404, Response("elsewhere", 302), Response("ok", 200)], ids=["status", "redirect", "response"]
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_aborted_view_is_settled_like_any_response(app: Flask, answer: Any, method: str) -> None:
    def view() -> str:
        settle(3)
        abort(answer)

    assert shown(serve(app, view, settle=True)(method=method)) == [997]


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
@pytest.mark.parametrize("settled", [(), (3,), (0,)])
def test_view_whose_error_propagates_to_the_server_is_charged_what_it_said(
    app: Flask, settled: tuple[int, ...], error: type[BaseException]
) -> None:
    def view() -> str:
        settling_at(*settled)()
        raise error

    with pytest.raises(error):
        serve(app, view, settle=True)()

    assert left(app) == 1000 - (settled or (100,))[0]


def test_request_that_after_request_functions_end_is_charged_what_its_view_said(app: Flask) -> None:
    def fail(_: Response) -> Response:
        raise ZeroDivisionError

    app.testing = False
    app.after_request(fail)

    assert serve(app, settling_at(3), settle=True)().status_code == 500
    assert left(app) == 997


def length(announced: int) -> dict[str, str]:
    return {"Content-Length": str(announced)}


def streaming(settled: list[int], headers: dict[str, str] | None = None) -> Callable[[], Response]:
    """A view that streams a character after each ``settle``."""

    def view() -> Response:
        def generate() -> Iterator[str]:
            for units in settled:
                settle(units)
                yield "x"

        return Response(stream_with_context(generate()), headers=headers)

    return view


def test_stream_is_settled_after_it_is_sent(app: Flask) -> None:
    get = serve(app, streaming([10, 20, 640]), settle=True)

    with get(buffered=False) as response:
        assert shown(response) == [900]
        assert response.data == b"xxx"

    assert left(app) == 360


class Parts:
    """An iterator that is no generator; its attribute has the name that werkzeug uses for a part of a file."""

    def __init__(self, iterable: Iterable[bytes]) -> None:
        self.iterable = iter(iterable)

    def __iter__(self) -> Parts:
        return self

    def __next__(self) -> bytes:
        return next(self.iterable)


class ServerFileWrapper(Parts):
    """A file wrapper of a server."""

    def __init__(self, file: IO[bytes], _: int) -> None:
        super().__init__(file)


@pytest.mark.parametrize("direct_passthrough", [False, True])
@pytest.mark.parametrize("status", [200, 206, 404])
@pytest.mark.parametrize(
    "wrap",
    [
        iter,
        Parts,
        lambda parts: map(bytes.upper, parts),
        lambda parts: ClosingIterator(Parts(parts), lambda: None),
        lambda parts: ClosingIterator(ClosingIterator(parts)),
        lambda parts: ClosingIterator(map(bytes.upper, parts)),
    ],
    ids=["generator", "iterator", "map", "closing", "closing-twice", "nothing to close"],
)
def test_stream_with_content_length_is_settled_after_it_is_sent(
    app: Flask, wrap: Callable[..., Any], status: int, *, direct_passthrough: bool
) -> None:
    def view() -> Response:
        def generate() -> Iterator[bytes]:
            for units in (10, 20, 640):
                settle(units)
                yield b"x"

        body = wrap(stream_with_context(generate()))
        return Response(body, status, headers=length(3), direct_passthrough=direct_passthrough)

    environ = {"wsgi.file_wrapper": ServerFileWrapper}
    response = serve(app, view, settle=True)(environ_overrides=environ, buffered=True)

    assert (shown(response), left(app)) == ([900], 360)


def test_stream_passed_to_abort_is_settled_after_it_is_sent(app: Flask) -> None:
    stream = streaming([10, 20, 640], length(3))
    response = serve(app, lambda: abort(stream()), settle=True)(buffered=True)
    assert (shown(response), left(app)) == ([900], 360)


@pytest.mark.parametrize("fails", ["view", "after_request"])
def test_stream_of_an_error_handler_is_settled_after_it_is_sent(app: Flask, fails: str) -> None:
    def view() -> str:
        settle(10)
        return str(1 // (fails != "view"))

    def fail_once(_: Response) -> Response:
        app.after_request_funcs.clear()
        raise ZeroDivisionError

    app.config["PROPAGATE_EXCEPTIONS"] = False
    app.register_error_handler(500, lambda _: streaming([20, 640])())
    if fails == "after_request":
        app.after_request(fail_once)

    get = serve(app, view, settle=True)

    assert get(buffered=True).text == "xx"
    assert left(app) == 360


@pytest.mark.parametrize(
    "wrapper", [None, ServerFileWrapper, lambda file, _: file], ids=["no file wrapper", "class", "function"]
)
@pytest.mark.parametrize(("headers", "status"), [({}, 200), ({"Range": "bytes=0-1"}, 206)], ids=["whole file", "range"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_header_fields_of_a_sent_file_show_the_quota_after_settlement(
    app: Flask, wrapper: Any, headers: dict[str, str], status: int, method: str
) -> None:
    def view() -> Response:
        settle(3)
        return send_file(io.BytesIO(b"file"), mimetype="text/plain", conditional=True)

    environ = {} if wrapper is None else {"wsgi.file_wrapper": wrapper}
    response = serve(app, view, settle=True)(headers=headers, method=method, environ_overrides=environ, buffered=True)

    assert (response.status_code, shown(response)) == (status, [997])


def test_requests_do_not_wait_for_the_settlement_of_a_stream(
    app: Flask, storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.config["TESTING"] = False
    get = serve(app, streaming([10, 640]), settle=True)
    answers, is_settled, settle_there = threading.Event(), threading.Event(), storage.settle

    def settle_late(*given: Any) -> None:
        assert answers.wait(PATIENCE)
        settle_there(*given)
        is_settled.set()

    monkeypatch.setattr(storage, "settle", settle_late)
    for _ in range(2):
        get(buffered=True)
    before = left(app)
    answers.set()

    assert before == 800
    assert is_settled.wait(PATIENCE)


def test_streams_that_end_while_others_are_settled_at_close_raise_nothing(app: Flask) -> None:
    def ended() -> tuple[Settlement, list[int]]:
        settlement, settled = Settlement(gate_of(app), Records(app)), list[int]()
        settlement._ended.append(lambda: settled.append(1))
        return settlement, settled

    for _, settled in interleaved(
        ended, lambda world: world[0]._settle_ended(), lambda world: world[0]._settle_ended(), of=settling
    ):
        assert settled == [1]


def test_forked_child_leaves_streams_that_have_ended_to_its_parent(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    app.config["TESTING"] = False
    monkeypatch.setattr(Beat, "wake", lambda *_: None)  # so that no thread settles them before the fork
    serve(app, streaming([640]), settle=True)(buffered=True)

    def left_at_end() -> int:
        app.extensions["multilimit"].close()
        return left(app)

    assert [forked(left_at_end)(), left_at_end()] == [900, 360]


def test_estimates_of_the_oldest_streams_stand_when_too_many_wait_to_be_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flask_multilimit.serve.settle.MOST_ENDED", 2)
    monkeypatch.setattr(Beat, "wake", lambda *_: None)
    app = Flask("chat")
    MultiLimit(app)
    get = serve(app, streaming([10]), settle=True)
    for _ in range(3):
        get(buffered=True)

    app.extensions["multilimit"].close()

    assert left(app) == 1000 - 100 - 2 * 10


def test_settle_callable_runs_when_the_stream_is_closed(app: Flask) -> None:
    sent = list[str]()

    def view() -> Response:
        def generate() -> Iterator[str]:
            for part in "abc":
                sent.append(part)
                yield part

        return Response(generate())

    get = serve(app, view, settle=lambda _: len(sent))
    with get(buffered=False) as response:
        assert left(app) == 900
        assert response.data == b"abc"

    assert left(app) == 997


def test_settle_without_a_request_is_an_error_that_suggests_stream_with_context() -> None:
    with pytest.raises(RuntimeError, match="stream_with_context"):
        settle(3)


@pytest.mark.parametrize(
    ("returns", "lines"),
    [
        *((lambda _, units=units: units, 1) for units in (-1, True, "12", 1.5, float("nan"), [3])),
        (lambda _: 1 // 0, 1),
        (lambda _: None, 0),
    ],
    ids=["negative", "bool", "text", "float", "nan", "list", "raises", "None"],
)
def test_settle_callable_that_fails_or_returns_no_units_leaves_the_estimate(
    app: Flask, returns: Any, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    response = serve(app, lambda: "ok", settle=returns)()
    assert (response.status_code, left(app)) == (200, 900)
    assert ["settle of the limiter" in each for each in caplog.messages] == [True] * lines
    assert ["so the estimate stands" in each for each in caplog.messages] == [True] * lines


@pytest.mark.parametrize("units", [-1, True, "12", 1.5, None])
def test_settle_with_an_invalid_number_is_an_error_in_the_view(app: Flask, units: Any) -> None:
    def view() -> str:
        with pytest.raises(ConfigurationError, match="whole number"):
            settle(units)
        return "ok"

    serve(app, view, settle=True)()

    assert left(app) == 900


def test_settle_with_an_astronomic_number_is_bounded(app: Flask, caplog: pytest.LogCaptureFixture) -> None:
    get = serve(app, settling_at(10**30), settle=True)
    assert [get().status_code for _ in range(2)] == [200, 429]
    assert caplog.messages == []


def test_units_beyond_the_maximum_of_a_sliding_window_are_logged_once(
    app: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    units = iter([10_000, 12_000, 12_000])
    get = serve(app, lambda: "ok", rules=Rule(3600, 50_000), settle=lambda _: next(units))

    for _ in range(3):
        get()

    assert left(app) == 20_000
    (line,) = caplog.messages
    assert "took 12000 units" in line
    assert "such as sliding_window_counter" in line


def test_settle_needs_a_name_when_several_limiters_settle(app: Flask) -> None:
    @app.get("/")
    @rate_limiter(rules=Rule(60, 1000), scope="tokens", cost=10, settle=True, name="tokens")
    @rate_limiter(rules=Rule(60, 500), scope="queries", cost=10, settle=True, name="queries")
    @rate_limiter(rules=Rule(60, 50), name="requests", settle=lambda _: None)
    def view() -> str:
        with pytest.raises(ConfigurationError, match="name=, one of tokens, queries"):
            settle(3)
        for other in ("requests", "elsewhere"):
            with pytest.raises(ConfigurationError, match="tokens, queries"):
                settle(3, name=other)
        settle(300, name="tokens")
        settle(4, name="queries")
        return "ok"

    app.add_url_rule("/elsewhere", "elsewhere", rate_limiter(name="elsewhere", settle=True)(lambda: "ok"))

    assert shown(app.test_client().get("/")) == [700, 496, 49]


def test_slots_of_a_limiter_that_settles_are_released(app: Flask) -> None:
    def view() -> str:
        settle(0)
        return str(current_decision.statuses[1].remaining)

    get = serve(app, view, rules=[Rule(60, 1000), Concurrent(200)], settle=True)

    assert [get().text for _ in range(3)] == ["199", "199", "199"]


def test_slot_of_a_stream_that_is_settled_at_zero_is_held_until_the_stream_ends(app: Flask) -> None:
    def view() -> Response:
        return Response(iter("abc"), headers={"X-Tokens": "0"})

    get = serve(app, view, rules=[TOKENS, Concurrent(200)], settle="header:X-Tokens")

    def remaining() -> list[int]:
        with app.app_context():
            return [each.remaining for each in app.extensions["multilimit"].peek("view").statuses]

    with get(buffered=False):
        assert remaining() == [1000, 199]
    assert remaining() == [1000, 200]


def test_estimate_stays_when_storage_fails_to_settle(
    app: Flask, storage: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    get = serve(app, lambda: "ok", settle=lambda _: 30)
    get()

    monkeypatch.setattr(storage, "settle", raising(StorageError("away")))
    response = get()
    monkeypatch.undo()

    assert response.status_code == 200
    assert left(app) == 870
    assert "could not settle" in caplog.text


def test_one_call_of_the_storage_settles_all_rules(app: Flask, storage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.get("/all")
    @rate_limiter(rules=[Rule(60, 1000), Rule(3600, 9000)], cost=10, settle=lambda _: 3, name="tokens")
    @rate_limiter(rules=Rule(60, 500), scope="failures", charge_when=[401], name="failures")
    def view() -> str:
        return "ok"

    settled = list[Any]()
    monkeypatch.setattr(storage, "settle", lambda *given: settled.append(given))
    app.test_client().get("/all")

    ((_, charges),) = settled
    assert [charge.units for charge in charges] == [3, 3, 0]


def test_each_settlement_of_a_request_is_an_event_with_its_units(app: Flask, events: list[Event]) -> None:
    def view() -> Response:
        def parts() -> Iterator[str]:
            yield "ok"
            settle(130)

        return Response(stream_with_context(parts()), headers={"X-Calls": "1"})

    calls = rate_limiter(name="calls", rules="10/hour", cost=3, settle="header:X-Calls")
    get = serve(app, calls(view), name="tokens", settle=True)
    get(buffered=True)

    assert [(event.outcome, event.settled) for event in events] == [
        ("allowed", ()),
        ("settled", (("calls-3600s", 3, 1),)),
        ("settled", (("tokens-3600s", 100, 130),)),
    ]


@pytest.mark.parametrize(("cost", "outcome"), [(0, "settled"), (3, "refunded")])
def test_settlement_at_zero_is_a_refund_only_when_units_were_charged(
    app: Flask, events: list[Event], cost: int, outcome: str
) -> None:
    view = rate_limiter(rules="10/hour", name="requests")(lambda: "ok")
    serve(app, view, cost=cost, settle=lambda _: 0)()
    assert [event.outcome for event in events] == ["allowed", outcome]


def test_refund_event_counts_no_slots(app: Flask, events: list[Event]) -> None:
    def view() -> str:
        app.extensions["multilimit"].refund(current_decision)
        return "ok"

    serve(app, view, rules=[Concurrent(2), Rule(3600, 1000)], cost=1)()

    assert [each.settled for each in events if each.outcome == "refunded"] == [(("default-3600s", 1, 0),)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"settle": lambda _: 1, "charge_when": [401]}, "settle and charge_when"),
        ({"settle": lambda _: 1, "rules": Rule(60, 100, lease=5), "cost": 1}, "leave out lease"),
        ({"settle": 5}, "settle=5: give"),
        ({"settle": True, "settle_header": "keep"}, "no field says"),
        ({"settle": "header:X-Tokens", "settle_header": True}, "settle_header=True: give"),
        ({"settle": False}, "settle=False: give"),
        ({"settle": "tokens"}, "settle='tokens': give"),
        ({"settle": lambda: 1}, "which it does not take"),
        ({"settle": True, "rules": Rule(60, 50_000), "cost": 20_000}, "take fixed_window, sliding_window_counter"),
    ],
)
def test_invalid_settle_option_is_an_error(app: Flask, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        serve(app, lambda: "ok", **options)()


def test_settle_callable_outside_a_request_is_an_error(app: Flask) -> None:
    service = rate_limiter(rules="5/minute", settle=lambda _: 1)(lambda: "ok")
    with app.app_context(), pytest.raises(ConfigurationError, match="settle needs the response of a request"):
        service()  # type: ignore[no-untyped-call]


def test_settle_callable_outside_a_request_is_no_error_where_its_rules_are_no_limit_now(app: Flask) -> None:
    service = rate_limiter(rules=lambda: None, settle=lambda _: 1)(lambda: "ok")
    with app.app_context():
        assert service() == "ok"  # type: ignore[no-untyped-call]


# Functions that are no views


def limited(function: Callable[..., Any], name: str = "service", **options: Any) -> Callable[..., Any]:
    options = {"rules": Rule(3600, 1000), "cost": 10, "settle": True, **options}
    return rate_limiter(name=name, scope=name, **options)(function)


def left_of(app: Flask, name: str) -> int:
    with app.app_context():
        limiter = app.extensions["multilimit"].limiter
    return int(limiter.peek(hits_for(Rule(3600, 1000), scope=name)).remaining)


def test_task_outside_a_request_is_charged_the_settled_units(app: Flask) -> None:
    def work(units: int) -> None:
        settle(units + 1)
        settle(units)

    task = limited(work)
    with app.app_context():
        task(340)
        task(3)

        assert left_of(app, "service") == 657


def test_task_that_raises_is_charged_settled_units_or_its_estimate(app: Flask) -> None:
    def work(units: int) -> None:
        if units:
            settle(units)
        raise ZeroDivisionError

    task = limited(work)
    with app.app_context():
        for units in (0, 7):
            with pytest.raises(ZeroDivisionError):
                task(units)

        assert left_of(app, "service") == 983


def test_view_and_function_that_it_calls_settle_separately(app: Flask) -> None:
    service = limited(settling_at(30))

    def view() -> str:
        settle(200)
        service()
        service()
        return "ok"

    assert shown(serve(app, view, settle=True)()) == [left(app), left_of(app, "service")] == [800, 940]


def test_settle_of_a_view_after_a_function_call_leaves_the_function(app: Flask) -> None:
    service = limited(lambda: None)

    def view() -> str:
        service()
        settle(200)
        return "ok"

    serve(app, view, settle=True)()

    assert [left(app), left_of(app, "service")] == [800, 990]


def test_settle_after_a_call_whose_charge_depends_on_the_response_settles_the_caller(app: Flask) -> None:
    inner = limited(lambda: None, "inner", settle=None, charge_when=[500])

    def call() -> str:
        inner()
        settle(200)
        return "ok"

    outer = limited(call, "outer")

    assert serve(app, lambda: str(outer()))().text == "ok"
    assert [left_of(app, name) for name in ("inner", "outer")] == [1000, 800]


def test_nested_functions_settle_separately(app: Flask) -> None:
    inner = limited(settling_at(3), "inner")

    def call() -> None:
        inner()
        settle(200)

    outer = limited(call, "outer")
    with app.app_context():
        outer()

        assert [left_of(app, name) for name in ("inner", "outer")] == [997, 800]


def test_settle_in_a_function_without_a_settle_option_settles_its_caller(app: Flask) -> None:
    helper = limited(settling_at(40), "helper", settle=None, rules=Concurrent(2), cost=1)
    with app.app_context():
        limited(helper, "outer")()
        assert left_of(app, "outer") == 960


def test_settle_in_a_function_without_a_settle_option_settles_the_view(app: Flask) -> None:
    helper = limited(settling_at(40), "helper", settle=None, rules=Concurrent(2), cost=1)
    response = serve(app, lambda: f"{helper()}!", settle=True)()
    assert (response.text, left(app)) == ("ok!", 960)


@pytest.mark.parametrize(
    "options", [{"exempt_when": lambda: True}, {"rules": lambda: None}], ids=["exempt", "no rules"]
)
@pytest.mark.parametrize("is_generator", [False, True])
def test_settle_in_a_function_whose_limiter_does_not_apply_leaves_the_view_that_calls_it(
    app: Flask, options: dict[str, Any], is_generator: bool
) -> None:
    def parts() -> Iterator[str]:
        settle(30)
        settle(30, name="service")
        yield "part"

    service = limited(parts if is_generator else lambda: [*parts()], **options)

    def view() -> str:
        settle(200)
        return "".join(service())

    assert serve(app, view, settle=True)().text == "part"
    assert left(app) == 800


@pytest.mark.parametrize("options", [{"exempt_when": lambda: True}, {"methods": ["POST"]}], ids=["exempt", "method"])
@pytest.mark.parametrize("is_view", [True, False])
def test_settle_of_a_limiter_that_does_not_apply_leaves_the_others(
    app: Flask, options: dict[str, Any], is_view: bool
) -> None:
    @app.route("/", methods=["GET", "POST"])
    def view() -> str:
        settle(200, name="service")
        settle(30, name="tokens")
        return "ok"

    function = limited(rate_limiter(rules="500/minute", name="tokens", settle=True, **options)(view))
    app.view_functions["view"] = function if is_view else lambda: str(function())

    assert app.test_client().get("/").text == "ok"
    assert left_of(app, "service") == 800


def test_settle_of_a_limiter_that_is_switched_off_leaves_the_others(app: Flask) -> None:
    def view() -> str:
        settle(200, name="default")
        settle(30, name="tokens")
        return "ok"

    get = serve(app, rate_limiter(rules="500/minute", name="tokens", settle=True)(view), settle=True)
    control_of(app).override("view", limiter="tokens", off=True, lasting=True)

    assert [get().text, left(app)] == ["ok", 800]


def test_settle_without_a_name_also_settles_a_limiter_that_an_override_adds(app: Flask) -> None:
    get = serve(app, settling_at(200), settle=True)
    added = {"type": "ip", "rules": "500/hour", "cost": 10, "settle": True}
    control_of(app).override("view", limit=added, lasting=True)

    assert shown(get()) == [800, 300]


def test_settle_in_a_function_settles_a_limiter_that_an_override_adds(app: Flask, events: list[Event]) -> None:
    inner = limited(settling_at(30), settle=None)
    outer = limited(lambda: [inner()], settle=None, rules=Concurrent(2), cost=1)
    added = {"name": "added", "rules": "1000/hour", "cost": 20, "settle": True}

    with app.app_context():
        outer()
        control_of(app).override(events[-1].endpoint, limit=added, lasting=True, force=True)
        outer()

    assert events[-1].settled == (("added-3600s", 20, 30),)


@pytest.mark.parametrize("is_view", [True, False])
@pytest.mark.parametrize("slots", [True, False])
def test_caller_of_a_function_to_which_an_override_adds_a_limiter_is_settled(
    app: Flask, events: list[Event], is_view: bool, slots: bool
) -> None:
    """The code cannot know that limiter: it is settled at what is said to the caller."""
    rules = Concurrent(2) if slots else "1000/hour"
    helper = limited(lambda: "helped", "helper", settle=None, rules=rules, cost=1)
    added = {"name": "added", "rules": "1000/hour", "cost": 20, "settle": True}

    def call() -> str:
        answer: str = helper()
        settle(200)
        return answer

    outer = limited(call, "outer")
    get = serve(app, call if is_view else lambda: str(outer()), settle=is_view or None)
    get()
    (scope,) = {each.endpoint for each in events if each.decision and "{helper}" in each.decision.hits[0].key}
    control_of(app).override(scope, limit=added, lasting=True, force=True)
    get()

    assert (left(app) if is_view else left_of(app, "outer")) == 600
    assert ("added-3600s", 20, 200) in [line for event in events for line in event.settled]


@pytest.mark.parametrize("slots", [True, False])
def test_exempt_caller_settles_each_call_of_a_function_to_which_an_override_adds_a_limiter(
    app: Flask, events: list[Event], slots: bool
) -> None:
    """Also if the function holds slots, which end with its own call."""
    helper = limited(lambda: "", "helper", settle=None, rules=Concurrent(2) if slots else "1000/hour", cost=1)

    def call() -> None:
        assert [helper(), helper()] == ["", ""]
        settle(200)

    task = limited(call, exempt_when=lambda: True)
    added = {"name": "added", "rules": "1000/hour", "cost": 20, "settle": True}
    with app.app_context():
        task()
        control_of(app).override(events[-1].endpoint, limit=added, lasting=True, force=True)
        task()

    assert [each.settled for each in events if each.settled] == [(("added-3600s", 20, 200),)] * 2


def test_settle_does_nothing_in_an_exempt_view(app: Flask) -> None:
    def view() -> str:
        settle(40)
        settle(40, name="no limiter")
        return "ok"

    get = serve(app, view, settle=True, exempt_when=lambda: True)
    assert get().text == "ok"
    assert left(app) == 1000


def test_generator_is_settled_when_it_ends_or_is_closed(app: Flask) -> None:
    def parts() -> Iterator[int]:
        for part in (100, 200, 300):
            settle(part)
            yield part

    service = limited(parts)
    with app.app_context():
        for _ in service():
            pass
        closed = service()
        next(closed)
        assert left_of(app, "service") == 690
        closed.close()

        assert left_of(app, "service") == 600


def test_coroutine_is_settled_when_it_ends(app: Flask) -> None:
    async def work(units: int) -> None:
        await asyncio.sleep(0)
        settle(units)

    async def together() -> None:
        await asyncio.gather(*(task(units) for units in (100, 20, 3)))

    task = limited(work)
    with app.app_context():
        asyncio.run(together())

        assert left_of(app, "service") == 877


def test_task_with_two_settling_limiters_must_name_one(app: Flask) -> None:
    def work() -> None:
        with pytest.raises(ConfigurationError, match="give name="):
            settle(3)
        settle(300, name="tokens")

    task = limited(limited(work, "tokens"), "queries")
    with app.app_context():
        task()

        assert [left_of(app, name) for name in ("tokens", "queries")] == [700, 990]


def test_settle_does_nothing_when_limits_are_disabled() -> None:
    off = Flask("off")
    off.config["MULTILIMIT_ENABLED"] = False
    MultiLimit(off)

    def view() -> str:
        settle(12)
        return str(len(current_decision.statuses))

    assert serve(off, view, settle=True)().text == "0"
    with off.app_context():
        limited(lambda: settle(3))()


# Together with the other options of a limiter


@pytest.fixture
def asking(app: Flask) -> Asking:
    """Makes a view whose requests say in the query how many units they take."""

    def make(**options: Any) -> Callable[..., TestResponse]:
        get = serve(app, lambda: "ok", **{"settle": lambda _: int(request.args["took"]), **options})
        return lambda units=1, **more: get(query_string={"took": units, **more})

    return make


def override(app: Flask, **rules: Any) -> None:
    control_of(app).override("view", rule="default-3600s", rules=rules, lasting=True)


def test_shadow_is_settled_unless_it_would_have_refused(app: Flask, asking: Asking) -> None:
    get = asking(shadow=True)
    assert [(get(units).status_code, left(app)) for units in (950, 340)] == [(200, 50)] * 2


def test_each_request_refused_by_a_debt_is_a_strike(asking: Asking) -> None:
    get = asking(type=IP, ban=Ban(after=2, within=600, time=7200))
    get(5000)

    answers = [get() for _ in range(3)]

    assert [answer.status_code for answer in answers] == [429] * 3
    assert int(answers[-1].headers["Retry-After"]) == 7200


def test_reserve_is_kept_until_a_debt_uses_it(asking: Asking) -> None:
    get = asking(reserve=Reserve({"critical": 0.2}, lambda: request.args.get("priority")), cost=10)
    get(795)
    assert get().status_code == 503
    assert [get(100, priority="critical").status_code for _ in range(3)] == [200, 200, 503]


@pytest.mark.parametrize("rules", [lambda: TOKENS, lambda: "1000/hour"], ids=["Rule", "text"])
def test_dynamic_rules_are_settled(asking: Asking, rules: Any) -> None:
    get = asking(rules=rules)
    assert [shown(get(340)) for _ in range(2)] == [[660], [320]]


def test_override_of_a_count_keeps_settled_units_and_is_settled(app: Flask, asking: Asking) -> None:
    get = asking()
    get(340)
    override(app, count=500)

    assert shown(get(150)) == [10]
    assert get().status_code == 429


@pytest.mark.parametrize("cost", [0, 10])
def test_override_with_another_algorithm_is_settled(app: Flask, asking: Asking, cost: int) -> None:
    get = asking(cost=cost)
    override(app, algorithm="sliding_window_counter")
    assert [shown(get(340)) for _ in range(2)] == [[660], [320]]


def test_override_during_a_request_does_not_move_its_settlement(app: Flask) -> None:
    def view() -> str:
        override(app, algorithm="token_bucket")
        return "ok"

    serve(app, view, settle=lambda _: 40)()

    with app.app_context():
        as_before = [Hit(hit.key, hit.rule) for hit in hits_for(TOKENS, scope="view")]  # overrides do not change these
        assert app.extensions["multilimit"].limiter.peek(as_before).remaining == 960


def test_request_that_waited_is_settled_once(asking: Asking) -> None:
    get = asking(rules=Rule(0.2, 10, algorithm="fixed_window"), cost=6, wait=5)
    assert [shown(get(8)) for _ in range(2)] == [[2], [2]]


def test_exempt_and_allowed_requests_are_not_settled(app: Flask, asking: Asking) -> None:
    get = asking(exempt_when=lambda: "free" in request.args)

    assert get(40, free=1).status_code == 200
    assert shown(get(10)) == [990]
    control_of(app).allow("127.0.0.1", lasting=True)
    assert "RateLimit" not in get(500).headers


def test_check_in_a_view_that_its_algorithm_cannot_settle_is_warned_of_once(
    app: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    multilimit = app.extensions["multilimit"]

    @app.get("/")
    def show() -> str:
        with multilimit.limit("20000/minute", scope="export", settle=lambda _: 15_000):
            return "ok"

    assert [app.test_client().get("/").status_code for _ in range(2)] == [200, 200]
    (warning,) = [each for each in caplog.messages if "charges at most" in each]
    assert 'the limiter on "export" took 15000 units, and sliding_window charges at most 10000' in warning


@pytest.mark.parametrize("more", [{"type": IP, "ban": Ban()}, {"rules": [TOKENS, Concurrent(2)]}])
def test_bans_and_slots_are_not_warned_of_as_rules_that_cannot_charge_the_real_cost(
    asking: Asking, more: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert asking(**more)(2000).status_code == 200
    assert [each for each in caplog.messages if "charges at most" in each] == []


def test_request_keeps_a_bounded_number_of_charges_until_its_response(app: Flask) -> None:
    send: Any = rate_limiter("5000/minute", charge_when=[500])(lambda: "sent")
    get = serve(app, lambda: [send() for _ in range(MOST_OPEN + 5)], charge_when=[500])

    app.add_url_rule("/look", "look", lambda: f"{send()}: {current_decision.remaining}")

    assert get().status_code == 200

    assert left(app) == 1000
    assert app.test_client().get("/look").text == f"sent: {5000 - 6 - 1}"


def test_task_keeps_a_bounded_number_of_charges_until_it_ends(app: Flask, events: list[Event]) -> None:
    """Such as those of a limiter that an override adds to a function that it calls."""
    helper = limited(lambda: "", "helper", settle=None, rules="5000/hour", cost=1)

    def work(times: int) -> None:
        assert not any(helper() for _ in range(times))
        settle(0)

    task = limited(work)
    added = {"name": "added", "rules": "5000/hour", "settle": True}
    with app.app_context():
        task(1)
        (scope,) = {each.endpoint for each in events if each.decision and "{helper}" in each.decision.hits[0].key}
        control_of(app).override(scope, limit=added, lasting=True, force=True)
        events.clear()
        task(MOST_OPEN + 5)

    assert left_of(app, "service") == 1000
    assert len([each for each in events if each.settled]) == MOST_OPEN
