"""Any number of limiters, in any mix with decorators that are not ours: one check, where the outermost one stands."""

from __future__ import annotations

import asyncio
import functools
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from flask import Flask, abort, current_app, request

from flask_multilimit import LimitType, MultiLimit, Rule, exempt, rate_limiter
from flask_multilimit.serve.gate import gate_of
from support.doubles import FOREIGN, OPAQUE, OPEN, copying_attributes, limited_service, with_wraps

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis
    from flask.testing import FlaskClient

    from support.clock import Clock
    from support.doubles import Decorator, RecordingStorage
    from support.servers import Server


def test_stacked_limiters_are_one_check_outermost_first(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage
) -> None:
    @limited_app.get("/update")
    @rate_limiter(type=LimitType.IP, rules=[Rule(time=50, count=100), Rule(time=20, count=50)])
    @rate_limiter(type=LimitType.DEFAULT, rules=[Rule(time=60, count=1000)])
    def update() -> str:
        return "ok"

    assert client.get("/update").text == "ok"

    assert storage.keys_asked == [
        [
            "rate_limit:{update}:ip:127.0.0.1:sliding_window:50000",
            "rate_limit:{update}:ip:127.0.0.1:sliding_window:20000",
            "rate_limit:{update}:default::sliding_window:60000",
        ]
    ]
    assert storage.other_calls == []


@pytest.mark.parametrize("many", [1, 2, 3, 10, 50])
def test_any_number_of_limiters_is_one_check(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage, many: int
) -> None:
    def view() -> str:
        return "ok"

    limited: Callable[[], str] = view
    for window in range(many, 0, -1):
        limited = rate_limiter(rules=Rule(time=window, count=100 + window))(limited)
    limited_app.add_url_rule("/", "view", limited)

    assert client.get("/").status_code == 200
    assert storage.windows == [list(range(1, many + 1))]


def test_ten_stacked_rules_are_one_command_on_a_real_server(
    app: Flask, server: Server, redis_client: redis.Redis
) -> None:
    app.config["MULTILIMIT_DENY_CACHE"] = 0
    MultiLimit(app, storage=server.url)

    @app.get("/")
    @rate_limiter(type=LimitType.IP, rules=[Rule(time=window, count=window - 50) for window in range(60, 65)])
    @with_wraps
    @rate_limiter(type=LimitType.DEFAULT, rules=[Rule(time=window, count=window) for window in range(60, 65)])
    def view() -> str:
        return "ok"

    client = app.test_client()
    client.get("/")  # connects, and loads the script

    with redis_client.monitor() as monitor:  # type: ignore[no-untyped-call]
        responses = [client.get("/").status_code for _ in range(12)]
        with server.client() as marker:
            marker.echo("that is all")
        seen = list(itertools.takewhile(lambda event: "that is all" not in event["command"], monitor.listen()))

    assert responses == [200] * 9 + [429] * 3
    of_requests = [each for each in seen if each["client_type"] != "lua" and "{control}" not in each["command"]]
    commands = [event["command"].split()[0] for event in of_requests]
    assert [command for command in commands if command not in {"HELLO", "CLIENT", "SELECT"}] == ["EVALSHA"] * 12
    gate_of(app).limiter.close()


def test_limiters_of_different_methods_are_one_check_of_those_that_serve_the_request(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage
) -> None:
    @limited_app.route("/", methods=["GET", "POST", "PUT"])
    @rate_limiter(rules="10/minute", methods=["GET"])
    @rate_limiter(rules="100/hour", methods=["POST"])
    @rate_limiter(rules="1000/day", methods=["GET"])
    def view() -> str:
        return "ok"

    assert [client.open("/", method=method).text for method in ("GET", "POST", "PUT")] == ["ok"] * 3
    assert storage.windows == [[60, 86400], [3600]]


def test_a_refusal_by_one_limiter_charges_none(limited_app: Flask, client: FlaskClient, clock: Clock) -> None:
    @limited_app.get("/")
    @rate_limiter(type=LimitType.IP, rules=Rule(time=1, count=1))
    @rate_limiter(rules=Rule(time=100, count=3))
    def view() -> str:
        return "ok"

    first, *refused = [client.get("/").status_code for _ in range(10)]
    clock.advance(1)

    assert (first, set(refused)) == (200, {429})
    assert client.get("/").headers["RateLimit"] == '"ip-1s";r=0;t=1, "default-100s";r=1;t=34'


@pytest.mark.parametrize("foreign", OPEN.values(), ids=OPEN.keys())
class TestDecoratorsThatTellWhatTheyWrap:
    @pytest.mark.parametrize("other", OPEN.values(), ids=OPEN.keys())
    def test_two_kinds_at_every_place_leave_one_check(
        self,
        limited_app: Flask,
        client: FlaskClient,
        storage: RecordingStorage,
        foreign: Callable[[Callable[..., Any]], Callable[..., Any]],
        other: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        @foreign
        @other
        @rate_limiter(rules="10/minute")
        @other
        @foreign
        @rate_limiter(rules="100/hour")
        @foreign
        @other
        @rate_limiter(rules="1000/day")
        @other
        def view() -> str:
            return "ok"

        limited_app.add_url_rule("/", "endpoint", view)

        assert client.get("/").text == "ok"
        assert storage.windows == [[60, 3600, 86400]]
        assert storage.keys_asked[0][0] == "rate_limit:{endpoint}:default::sliding_window:60000"


@pytest.mark.parametrize("opaque", OPAQUE.values(), ids=OPAQUE.keys())
class TestDecoratorsThatTellNothing:
    """What is below counts as a function that the view calls: where it stands, by its own name."""

    def test_between_two_limiters_leave_each_its_own_check(
        self, limited_app: Flask, client: FlaskClient, storage: RecordingStorage, opaque: Decorator
    ) -> None:
        @rate_limiter(rules="10/minute")
        @opaque
        @rate_limiter(rules="100/hour")
        def view() -> str:
            return "ok"

        limited_app.add_url_rule("/", "view", view)

        assert client.get("/").text == "ok"
        assert storage.windows == [[60], [3600]]

    def test_outside_all_limiters_leave_every_other_limit_in_force(
        self, app: Flask, storage: RecordingStorage, opaque: Decorator
    ) -> None:
        MultiLimit(app, storage=storage, application_limits="90/hour", default_limits="50 per 2 hours")

        @opaque
        @rate_limiter(rules="10/minute")
        @rate_limiter(rules="11 per 2 minutes")
        def view() -> str:
            return "ok"

        app.add_url_rule("/", "endpoint", view)

        assert app.test_client().get("/").text == "ok"
        assert storage.windows == [[3600, 7200], [60, 120]]
        assert "{endpoint}" in storage.keys_asked[0][1]
        assert "{endpoint}" not in storage.keys_asked[1][0]

    def test_inside_all_limiters_change_nothing(
        self, limited_app: Flask, client: FlaskClient, storage: RecordingStorage, opaque: Decorator
    ) -> None:
        @rate_limiter(rules="10/minute")
        @opaque
        def view() -> str:
            return "ok"

        limited_app.add_url_rule("/", "endpoint", view)

        assert client.get("/").text == "ok"
        assert storage.keys_asked == [["rate_limit:{endpoint}:default::sliding_window:60000"]]


class TestWhatMerelyHoldsALimitedFunction:
    """Only a guess would say that it wraps it: all limits that stand elsewhere hold, and are checked before."""

    @pytest.fixture
    def limited_app(self, app: Flask, storage: RecordingStorage) -> Flask:
        app.config["MULTILIMIT_LIMITS"] = {"view": "70 per 3 hours"}
        MultiLimit(app, storage=storage, application_limits="90/hour", default_limits="50 per 2 hours")
        return app

    def holders(self) -> dict[str, Callable[[Callable[[], str]], Callable[..., str]]]:
        def closure(service: Callable[[], str]) -> Callable[..., str]:
            def view(*_args: Any, **_kwargs: Any) -> str:
                return service() if "mail" in request.args else "nothing sent"

            return view

        class Page:
            def __init__(self, service: Callable[[], str]) -> None:
                self.service = service

            def __call__(self, **_arguments: Any) -> str:
                return self.service() if "mail" in request.args else "nothing sent"

        return {"closure": closure, "object": Page}

    @pytest.mark.parametrize("kind", ["closure", "object"])
    def test_keeps_its_own_limits(
        self, limited_app: Flask, client: FlaskClient, storage: RecordingStorage, kind: str
    ) -> None:
        limited_app.add_url_rule("/", "view", self.holders()[kind](limited_service(rules="10/minute", scope="mail")))

        assert [client.get("/").text, client.get("/?mail").text] == ["nothing sent", "done"]
        before = [3600, 10800]
        assert storage.windows == [before, before, [60]]
        assert storage.keys_asked[-1] == ["rate_limit:{mail}:default::sliding_window:60000"]

    @pytest.mark.parametrize("kind", ["closure", "object"])
    def test_is_not_exempt_because_of_it(
        self, limited_app: Flask, client: FlaskClient, storage: RecordingStorage, kind: str
    ) -> None:
        limited_app.add_url_rule("/", "view", self.holders()[kind](exempt(lambda: "done")))

        assert client.get("/").text == "nothing sent"
        assert storage.windows == [[3600, 10800]]

    def test_may_be_limited_itself_beside_a_routed_view(self, limited_app: Flask, client: FlaskClient) -> None:
        @limited_app.get("/")
        def view() -> str:
            return "ok"

        @rate_limiter(rules="10/minute")
        def audit(*args: Any, **kwargs: Any) -> str:
            return view(*args, **kwargs)

        assert client.get("/").text == "ok"

    def test_keeps_quotas_apart_that_delegate_to_one_function(
        self, limited_app: Flask, storage: RecordingStorage
    ) -> None:
        def deliver(*_args: Any) -> str:
            return "sent"

        @rate_limiter(rules="1/minute")
        def mail(*args: Any) -> str:
            return deliver(*args)

        @rate_limiter(rules="1/minute")
        def text(*args: Any) -> str:
            return deliver(*args)

        with limited_app.app_context():
            assert [mail(), text()] == ["sent", "sent"]
        assert storage.keys_asked[0] != storage.keys_asked[1]


def test_a_decorator_that_copies_attributes_tells_what_it_wraps(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage
) -> None:
    view = copying_attributes(rate_limiter(rules="10/minute")(lambda: "ok"))
    limited_app.add_url_rule("/", "endpoint", rate_limiter(rules="100/hour")(view))

    assert client.get("/").text == "ok"
    assert storage.windows == [[3600, 60]]


def test_an_object_whose_call_is_limited_is_a_view_of_one_check(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage, application_limits="90/hour", default_limits="50 per 2 hours")

    class Page:
        @rate_limiter(rules="10/minute")
        def __call__(self) -> str:
            return "ok"

    app.add_url_rule("/", "page", Page())

    assert app.test_client().get("/").text == "ok"
    assert storage.windows == [[3600, 60]]


def test_decorators_above_the_outermost_limiter_run_before_the_check(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage
) -> None:
    def login_required(view: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(view)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if "user" not in request.args:
                abort(401)
            return view(*args, **kwargs)

        return wrapper

    @limited_app.get("/")
    @login_required
    @rate_limiter()
    def view() -> str:
        return "ok"

    assert client.get("/").status_code == 401
    assert storage.checks == []
    assert client.get("/?user=ann").text == "ok"
    assert len(storage.checks) == 1


@pytest.mark.parametrize("copying", [False, True], ids=["plain", "with functools.wraps"])
def test_decorators_between_limiters_run_after_the_check(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage, copying: bool
) -> None:
    ran: list[int] = []

    def counting(view: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            ran.append(len(storage.checks))
            return view(*args, **kwargs)

        return functools.wraps(view)(wrapper) if copying else wrapper

    @rate_limiter(rules="1/minute")
    @counting
    @rate_limiter(rules="20/hour", type=LimitType.IP)
    def view() -> str:
        return "ok"

    limited_app.add_url_rule("/", "view", view)

    assert [client.get("/").status_code for _ in range(3)] == [200, 429, 429]
    assert ran == [1]


def test_a_decorator_that_calls_twice_is_charged_once(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage
) -> None:
    def retrying(view: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(view)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            view(*args, **kwargs)
            return view(*args, **kwargs)

        return wrapper

    @limited_app.get("/")
    @rate_limiter(rules="10/minute")
    @retrying
    @rate_limiter(rules="100/hour")
    @rate_limiter(rules="1000/day")
    def view() -> str:
        return "ok"

    assert client.get("/").status_code == 200
    assert storage.windows == [[60, 3600, 86400]]


def awaiting(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await view(*args, **kwargs)

    return wrapper


def synchronous(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return current_app.ensure_sync(view)(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    "between", [lambda view: view, awaiting, synchronous], ids=["nothing", "awaits", "ensure_sync"]
)
def test_an_async_view_is_one_check_whatever_stands_between_its_limiters(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage, between: Callable[..., Any]
) -> None:
    @rate_limiter(rules="2/minute")
    @between
    @rate_limiter(rules="100/hour")
    async def view() -> str:
        return "ok"

    limited_app.add_url_rule("/", "view", view)

    assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
    assert storage.windows == [[60, 3600]] * 3


async def _service() -> str:
    return "sent"


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN.keys())
def test_async_functions_below_a_decorator_that_does_not_await(
    limited_app: Flask, storage: RecordingStorage, foreign: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    service = rate_limiter(rules="10/minute")(foreign(rate_limiter(rules="100/hour")(_service)))

    with limited_app.app_context():
        assert asyncio.run(_awaited(service)) == "sent"

    assert storage.windows == ([[60], [3600]] if foreign in OPAQUE.values() else [[60, 3600]])


async def _awaited(function: Callable[[], Any]) -> Any:
    return await function()


def test_limited_functions_side_by_side_are_checked_where_they_stand(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage
) -> None:
    def either(one: Callable[[], str], other: Callable[[], str]) -> Callable[..., str]:
        def wrapper(*args: Any, **kwargs: Any) -> str:
            return one(*args, **kwargs) if "one" in request.args else other(*args, **kwargs)

        return wrapper

    one = rate_limiter(rules="10/minute")(lambda: "one")
    other = rate_limiter(rules="100/hour")(lambda: "other")
    limited_app.add_url_rule("/", "view", rate_limiter(rules="1000/day")(either(one, other)))

    assert [client.get("/?one").text, client.get("/").text] == ["one", "other"]
    assert storage.windows == [[86400], [60], [86400], [3600]]


def test_arguments_and_result_pass_through(limited_app: Flask, client: FlaskClient) -> None:
    @limited_app.get("/<int:first>/<second>")
    @rate_limiter(rules="10/minute")
    @rate_limiter(rules="100/hour")
    def view(first: int, second: str = "") -> tuple[dict[str, object], int]:
        return {"first": first, "second": second}, 201

    response = client.get("/1/two")

    assert (response.status_code, response.json) == (201, {"first": 1, "second": "two"})


def test_the_decorated_function_keeps_its_name_and_documentation() -> None:
    @rate_limiter()
    @rate_limiter(type=LimitType.IP, rules="1/second")
    def documented() -> None:
        """Explain."""

    assert (documented.__name__, documented.__doc__) == ("documented", "Explain.")


def test_a_view_may_use_proxies_imported_in_its_factory(limited_app: Flask, client: FlaskClient) -> None:
    from flask import g, request, session

    @limited_app.get("/")
    @rate_limiter()
    def view() -> str:
        return f"{request.path}{'x' in session}{'x' in g}"

    assert client.get("/").text == "/FalseFalse"


def test_objects_a_view_closes_over_are_not_touched(limited_app: Flask, client: FlaskClient) -> None:
    class Touchy:
        def __getattr__(self, name: str) -> Any:
            raise LookupError(name)

        def __call__(self) -> str:
            return "ok"

    touchy = Touchy()

    @limited_app.get("/")
    @rate_limiter()
    def view() -> str:
        return touchy()

    assert client.get("/").text == "ok"


def test_a_closure_that_is_not_filled_yet_is_no_obstacle(limited_app: Flask, client: FlaskClient) -> None:
    @limited_app.get("/")
    @rate_limiter()
    def view(**_: Any) -> str:
        return later()

    def later() -> str:
        return "ok"

    assert client.get("/").text == "ok"
