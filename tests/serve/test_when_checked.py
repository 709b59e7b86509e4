"""When limits are checked: once, when the view is reached, or else when the request ends."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from flask import Blueprint, Flask, Response, abort, g, redirect, request
from werkzeug.test import run_wsgi_app

from flask_multilimit import (
    Ban,
    Concurrent,
    ConfigurationError,
    LimitType,
    MultiLimit,
    RateLimitExceeded,
    Reserve,
    Rule,
    rate_limiter,
)
from flask_multilimit.engine import StorageError, hits_for
from flask_multilimit.serve.gate import gate_of
from support.asking import ask, statuses, view
from support.clock import Clock
from support.doubles import RecordingStorage, raising
from support.rates import RATES


def ended_by(end: Callable[[], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that ends a request without an ``Authorization``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if "Authorization" in request.headers else end()

        return wrapped

    return decorate


login_required, aborting = ended_by(lambda: ("login required", 401)), ended_by(lambda: abort(401))
failing, never_called = ended_by(raising(RuntimeError)), ended_by(lambda: Response("from a cache"))


OWN, SHARED = 1, [3600, 60]
"""The window of the limiter on the view, and those of the app and of its blueprint."""


@pytest.fixture
def limited(app: Flask, storage: RecordingStorage) -> Callable[[Callable[..., Any]], Flask]:
    """An app with one view that has a limit of its own, below another decorator."""
    app.testing = False
    MultiLimit(app, storage=storage, application_limits="3/hour")
    blueprint = rate_limiter(rules="100/minute")(Blueprint("pages", __name__))

    def limited(decorator: Callable[..., Any]) -> Flask:
        blueprint.get("/", endpoint="view")(decorator(rate_limiter(rules="50/second")(view())))
        app.register_blueprint(blueprint)
        return app

    return limited


@pytest.mark.parametrize(
    ("decorator", "status"), [(login_required, 401), (aborting, 401), (failing, 500), (never_called, 200)]
)
def test_shared_limits_are_charged_when_a_decorator_ends_the_request(
    limited: Callable[..., Flask], storage: RecordingStorage, decorator: Callable[..., Any], status: int
) -> None:
    app = limited(decorator)
    assert statuses(app, *"////") == [status, status, status, 429]
    assert storage.windows == [SHARED] * 4


@pytest.mark.parametrize("decorator", [login_required, aborting])
def test_request_that_reaches_the_view_is_one_check(
    limited: Callable[..., Flask], storage: RecordingStorage, decorator: Callable[..., Any]
) -> None:
    app = limited(decorator)
    assert [ask(app, headers={"Authorization": "me"}).status_code for _ in range(4)] == [200, 200, 200, 429]
    assert storage.windows == [[*SHARED, OWN]] * 4


@pytest.mark.parametrize("decorator", [login_required, aborting, failing, never_called])
def test_shared_limits_are_charged_when_another_extension_replaces_the_dispatch(
    limited: Callable[[Callable[..., Any]], Flask], decorator: Callable[..., Any]
) -> None:
    app = limited(decorator)
    app.dispatch_request = functools.partial(Flask.dispatch_request, app)  # type: ignore[method-assign]
    assert [status == 429 for status in statuses(app, *"////")] == [False, False, False, True]


def test_shared_limits_are_charged_by_requests_beside_the_first_when_another_extension_replaces_the_dispatch(
    limited: Callable[..., Flask], storage: RecordingStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = limited(login_required)
    app.dispatch_request = functools.partial(Flask.dispatch_request, app)  # type: ignore[method-assign]
    gate, answered = gate_of(app), list[int]()
    surround = gate._surround_dispatch

    def meanwhile() -> None:
        if gate.startup.finished:  # requests of other threads pass
            answered.append(ask(app).status_code)
        surround()

    monkeypatch.setattr(gate, "_surround_dispatch", meanwhile)
    answered.append(ask(app).status_code)

    assert storage.windows == [SHARED] * len(answered)


def test_shared_limits_are_charged_when_the_dispatch_was_no_method_before(
    app: Flask, storage: RecordingStorage
) -> None:
    app.dispatch_request = functools.partial(Flask.dispatch_request, app)  # type: ignore[method-assign]
    MultiLimit(app, storage=storage, application_limits="3/hour")
    app.get("/")(never_called(rate_limiter(rules="50/second")(view())))
    assert statuses(app, *"////") == [200, 200, 200, 429]


@pytest.mark.parametrize(
    "name",
    ["preprocess_request", "dispatch_request", "process_response", "handle_user_exception", "handle_exception", "run"],
)
def test_replaced_methods_of_the_app_are_bound_to_it(app: Flask, name: str) -> None:
    signature = inspect.signature(getattr(app, name))

    MultiLimit(app)

    method = getattr(app, name)
    assert method.__self__ is app
    assert method.__name__ == name
    assert inspect.signature(method) == signature


@pytest.mark.parametrize("replaced", [functools.partial, lambda method, app: lambda: method(app)])
def test_method_that_was_no_method_before_takes_at_least_what_it_took(app: Flask, replaced: Callable[..., Any]) -> None:
    app.dispatch_request = replaced(Flask.dispatch_request, app)  # type: ignore[method-assign]
    MultiLimit(app)
    inspect.signature(app.dispatch_request).bind()


def test_header_fields_show_shared_limits_when_the_view_is_not_reached(limited: Callable[..., Flask]) -> None:
    app = limited(never_called)
    answers = [ask(app) for _ in range(4)]
    assert answers[0].headers["RateLimit"] == '"application-3600s";r=2;t=2400, "default-60s";r=99;t=60'
    assert answers[3].headers["Retry-After"] == "3600"


def _closing(closed: list[str]) -> Response:
    response = Response("ok")
    response.call_on_close(lambda: closed.append("closed"))
    return response


def test_response_replaced_by_a_refusal_is_closed(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage, application_limits="1/hour")
    closed: list[str] = []

    def cached(function: Callable[..., Any]) -> Callable[..., Any]:
        return functools.wraps(function)(lambda: _closing(closed))

    app.get("/", endpoint="view")(cached(rate_limiter(rules="9/second")(view())))
    client = app.test_client()

    assert client.get("/").status_code == 200
    closed.clear()
    assert client.get("/").status_code == 429
    assert closed == ["closed"]


@pytest.mark.parametrize(
    ("ending", "status"), [(lambda: redirect("/login"), 302), (lambda: abort(403), 403)], ids=["redirect", "abort"]
)
@pytest.mark.parametrize("decorated", [True, False])
def test_shared_limits_are_charged_when_before_request_ends_the_request(
    app: Flask, storage: RecordingStorage, ending: Callable[[], Any], status: int, decorated: bool
) -> None:
    limits: dict[str, Any] = {"application_limits" if decorated else "default_limits": "2/hour"}
    MultiLimit(app, storage=storage, **limits)
    app.get("/", endpoint="view")(rate_limiter(rules="9/second")(view()) if decorated else view())
    app.before_request(ending)

    assert statuses(app, "/", "/", "/", "/nowhere") == [status, status, 429, status]
    assert storage.windows == [[3600]] * 3


@pytest.mark.parametrize("above_the_view", [False, True])
def test_shared_limits_are_charged_if_a_request_ends_before_its_view_as_by_a_timeout_of_gevent(
    app: Flask, storage: RecordingStorage, above_the_view: bool
) -> None:
    multilimit = MultiLimit(app, storage=storage, application_limits=[Rule(3600, 2), Concurrent(1)])
    limited, killed = rate_limiter(rules="9/second")(view()), raising(SystemExit)
    app.get("/", endpoint="view")(functools.wraps(limited)(killed) if above_the_view else limited)
    if not above_the_view:
        app.before_request(killed)

    for _ in range(3):  # the third, beyond the limit, is no refusal: the exception may end the server
        with pytest.raises(SystemExit):
            ask(app)

    assert storage.windows == [[3600, 60]] * 3
    with app.app_context():
        assert [each.remaining for each in multilimit.peek("view").statuses] == [0, 1, 9]


@pytest.mark.parametrize("where", ["user_loader", "exempt_when", "rules", "list"])
@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("ended", ["", "answer", "error"])
def test_request_is_charged_by_its_address_if_a_callable_of_a_limit_ends_it_as_by_a_timeout_of_gevent(
    app: Flask, storage: RecordingStorage, where: str, limited: bool, ended: str
) -> None:
    calls: list[None] = []
    closed: list[str] = []

    def hanging() -> Any:
        calls.append(None)
        raise SystemExit

    callables: dict[str, Any] = {"exempt_when": hanging} if where == "exempt_when" else {}
    callables["rules"], callables["fallback"] = (hanging, "3/hour") if where == "rules" else ("3/hour", None)
    user = hanging if where in {"user_loader", "list"} else lambda: None
    lists: dict[str, Any] = {"allow": ["user:ann"]} if where == "list" else {}
    limits = [rate_limiter(rules="5/hour"), rate_limiter(type=LimitType.USER, **callables)]
    MultiLimit(app, storage=storage, user_loader=user, application_limits=limits, **lists)
    app.get("/", endpoint="view")(rate_limiter(type=LimitType.IP, rules="9/second")(view()) if limited else view())
    if ended:  # before the limits are checked
        app.before_request((lambda: _closing(closed)) if ended == "answer" else raising(ValueError))

    with pytest.raises(SystemExit):
        ask(app)

    keys = ["rate_limit:{application}:default::sliding_window:3600000"]
    keys.append("rate_limit:{application}:anonymous:127.0.0.1:sliding_window:3600000")
    if limited and not ended:
        keys.append("rate_limit:{view}:ip:127.0.0.1:sliding_window:1000")
    assert [sorted(asked) for asked in storage.keys_asked] == [sorted(keys)]
    assert len(calls) == 1  # it might hang again, and nothing would end it
    assert len(closed) == (ended == "answer")


def test_request_that_a_timeout_of_gevent_ends_is_charged_by_its_header_field_unless_its_network_is_exempt(
    app: Flask, storage: RecordingStorage
) -> None:
    limits = [{"type": "header:X-Tenant", "rules": "5/hour"}, {"rules": "9/hour", "exempt": ["127.0.0.0/8"]}]
    MultiLimit(app, storage=storage, application_limits=limits)
    app.get("/")(view())
    app.before_request(raising(SystemExit))

    with pytest.raises(SystemExit):
        ask(app, headers={"X-Tenant": "ann"})

    assert storage.keys_asked == [["rate_limit:{application}:x-tenant:ann:sliding_window:3600000"]]


def test_limits_that_could_not_be_checked_when_a_timeout_ended_the_request_are_logged(
    app: Flask, storage: RecordingStorage, caplog: pytest.LogCaptureFixture
) -> None:
    app.config.update(MULTILIMIT_ON_STORAGE_ERROR="raise", MULTILIMIT_DENY_CACHE=0)
    MultiLimit(app, storage=storage, application_limits="1/hour")
    app.get("/", endpoint="view")(view())
    app.before_request(raising(SystemExit))

    for _ in range(2):  # the second is refused, as it should be
        with pytest.raises(SystemExit):
            ask(app)
    assert caplog.records == []
    storage.check = raising(StorageError("no answer"))  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        ask(app)

    messages = [each.message for each in caplog.records if each.exc_info]
    assert messages == ["Rate limits: could not check a request that was ended, at view"]


class TestUsersLoadedBeforeTheView:
    """Limits of the app are checked after every ``before_request`` function."""

    @pytest.fixture
    def by_user(self, app: Flask, storage: RecordingStorage) -> MultiLimit:
        return MultiLimit(
            app,
            storage=storage,
            user_loader=lambda: g.user,  # AttributeError when it is called too early
            default_limits={"type": "user", "rules": "1/minute"},
        )

    def load_user(self) -> None:
        g.user = request.headers["X-User"]

    def as_user(self, app: Flask, name: str) -> int:
        return ask(app, headers={"X-User": name}).status_code

    @pytest.mark.usefixtures("by_user")
    def test_user_loaded_by_a_nested_blueprint_is_limited(self, app: Flask) -> None:
        outer, inner = Blueprint("outer", __name__), Blueprint("inner", __name__)
        inner.get("/", endpoint="view")(view())
        inner.before_request(self.load_user)
        outer.register_blueprint(inner)
        app.register_blueprint(outer)

        assert [self.as_user(app, name) for name in ("ann", "bob", "ann")] == [200, 200, 429]

    @pytest.mark.usefixtures("by_user")
    @pytest.mark.parametrize("decorated", [True, False])
    def test_user_loaded_by_the_app_is_limited(self, app: Flask, decorated: bool) -> None:
        limited = rate_limiter(type=LimitType.USER, rules="1/hour")(view())
        app.get("/", endpoint="view")(limited if decorated else view())
        app.before_request(self.load_user)
        assert [self.as_user(app, name) for name in ("ann", "bob", "ann")] == [200, 200, 429]


class TestUnknownUsers:
    """Limits apply to a request whose user, or another subject, cannot be determined."""

    BY_USER_AND_ADDRESS: ClassVar = [{"type": "user", "rules": "9/minute"}, {"type": "ip", "rules": "2/hour"}]

    @pytest.fixture(autouse=True)
    def by_user_and_address(self, app: Flask, storage: RecordingStorage) -> None:
        def user() -> str:
            return str(g.user)  # AttributeError before it is loaded

        MultiLimit(app, storage=storage, user_loader=user, default_limits=self.BY_USER_AND_ADDRESS)

    def refuse_strangers(self) -> None:
        if "X-User" not in request.headers:
            abort(401)
        g.user = request.headers["X-User"]

    def test_request_ended_by_before_request_is_charged_as_anonymous(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        app.get("/", endpoint="view")(view())
        app.before_request(self.refuse_strangers)

        assert statuses(app, "/", "/", "/") == [401, 401, 429]
        assert storage.keys_asked[0] == [
            "rate_limit:{view}:anonymous:127.0.0.1:sliding_window:60000",
            "rate_limit:{view}:ip:127.0.0.1:sliding_window:3600000",
        ]

    def test_request_ended_by_a_decorator_is_charged_by_default_limits(self, app: Flask) -> None:
        app.get("/", endpoint="view")(login_required(rate_limiter(rules="9/second", with_defaults=True)(view())))
        assert statuses(app, "/", "/", "/") == [401, 401, 429]

    @pytest.mark.parametrize("limited", [True, False])
    def test_request_is_charged_when_the_user_loader_raises(
        self, app: Flask, storage: RecordingStorage, limited: bool
    ) -> None:
        app.testing = False
        limiter = rate_limiter(type=LimitType.IP, rules="9/second", with_defaults=True)
        app.get("/", endpoint="view")(limiter(view()) if limited else view())

        assert statuses(app, "/", "/", "/") == [500, 500, 429]
        assert storage.windows == [[60, 3600, 1] if limited else [60, 3600]] * 3

    @pytest.mark.parametrize(
        "unknown",
        [
            {"type": lambda: g.tenant, "name": "tenant"},
            {"type": (LimitType.IP, lambda: g.tenant), "name": "tenant"},
            {"exempt_when": lambda: g.user.is_admin},
            {"cost": lambda: g.user.cost},
            {"reserve": Reserve({"high": 0.5}, lambda: g.user.priority)},
        ],
        ids=["type", "part of a type", "exempt_when", "cost", "priority"],
    )
    def test_callable_that_needs_the_user_leaves_other_limits_in_force(
        self, app: Flask, storage: RecordingStorage, unknown: dict[str, Any]
    ) -> None:
        blueprint = rate_limiter(rules="5 per 7 seconds", **unknown)(Blueprint("pages", __name__))
        rate_limiter(type=LimitType.IP, rules="2/hour")(blueprint)
        blueprint.get("/", endpoint="view")(view())
        app.register_blueprint(blueprint)
        app.before_request(self.refuse_strangers)

        assert statuses(app, "/", "/", "/") == [401, 401, 429]
        assert storage.windows == [[3600] if "type" in unknown else [7, 3600]] * 3

    def test_user_lists_leave_limits_in_force_for_unknown_users(self, storage: RecordingStorage) -> None:
        other = Flask("other")
        MultiLimit(other, storage=storage, user_loader=lambda: g.user, allow=["user:ann"], application_limits="2/hour")
        other.get("/", endpoint="view")(view())
        other.before_request(self.refuse_strangers)

        assert statuses(other, "/", "/", "/") == [401, 401, 429]
        assert statuses(other, "/", headers={"X-User": "ann"}) == [200]


def raises() -> Any:
    raise ValueError("not a number")


class Undecided:
    """A value without a truth value, which no callable may return."""

    def __bool__(self) -> bool:
        raise TypeError("undecided")


async def answers_later() -> bool:
    return False


COROUTINE = answers_later()
COROUTINE.close()  # otherwise Python warns that nobody has awaited it
IMPOSSIBLE = [
    pytest.param(raises, id="raises"),
    pytest.param(lambda: 2.5, id="float"),
    pytest.param(lambda: True, id="bool"),
    pytest.param(lambda: [7], id="list"),
    pytest.param(Undecided, id="no truth value"),
]
"""Callables that raise, or return a value that no limiter accepts."""


class TestFailingCallables:
    """A client that makes a callable fail is still limited by all other limits, and can be banned."""

    FAILING: ClassVar[dict[str, Callable[[Callable[[], Any]], dict[str, Any]]]] = {
        "cost": lambda fails: {"type": LimitType.IP, "cost": fails},
        "settled cost": lambda fails: {"type": LimitType.IP, "cost": fails, "settle": True},
        "priority": lambda fails: {"type": LimitType.IP, "reserve": Reserve({"high": 0.5}, fails)},
        "type": lambda fails: {"type": fails, "name": "tenant"},
        "part of a type": lambda fails: {"type": (LimitType.IP, fails), "name": "tenant"},
        "user": lambda _: {"type": LimitType.USER},
    }

    def limited(self, app: Flask, storage: Any, what: str, fails: Callable[[], Any], *, count: int = 100) -> Flask:
        app.testing = False
        by_address = {"type": LimitType.IP, "rules": "3/hour", "ban": Ban(after=2, within=60, time=7200, most=7200)}
        MultiLimit(app, storage=storage, application_limits=by_address, user_loader=fails)
        limiter = rate_limiter(rules=f"{count}/minute", **self.FAILING[what](fails))
        app.get("/", endpoint="view")(limiter(view()))
        app.get("/other", endpoint="other")(view())
        return app

    @pytest.mark.parametrize("fails", IMPOSSIBLE)
    @pytest.mark.parametrize("what", FAILING)
    def test_other_limits_refuse_and_ban_the_client(
        self, app: Flask, any_storage: Any, what: str, fails: Callable[[], Any]
    ) -> None:
        app = self.limited(app, any_storage, what, fails)
        assert statuses(app, *"/////") == [500, 500, 500, 429, 429]
        assert ask(app, "/other").headers["Retry-After"] == "7200"

    @pytest.mark.parametrize("fails", IMPOSSIBLE)
    @pytest.mark.parametrize("what", ["cost", "settled cost", "priority", "user"])
    def test_limiter_with_the_callable_charges_one_unreserved_unit(
        self, app: Flask, any_storage: Any, what: str, fails: Callable[[], Any]
    ) -> None:
        app = self.limited(app, any_storage, what, fails, count=4 if what == "priority" else 2)
        assert statuses(app, "/", "/", "/") == [500, 500, 429]

    @pytest.mark.parametrize("fails", IMPOSSIBLE)
    def test_failing_priority_does_not_change_the_cost(
        self, app: Flask, any_storage: Any, fails: Callable[[], Any]
    ) -> None:
        app.testing = False
        MultiLimit(app, storage=any_storage)
        reserve = Reserve({"high": 0.5}, fails)
        limiter = rate_limiter(type=LimitType.IP, rules="12/minute", cost=3, reserve=reserve)
        app.get("/", endpoint="view")(limiter(view()))

        assert statuses(app, "/", "/", "/") == [500, 500, 429]

    @pytest.mark.parametrize("fails", [raises, Undecided, lambda: raises, lambda: COROUTINE])
    def test_failing_exempt_when_exempts_no_client(
        self, app: Flask, any_storage: Any, fails: Callable[[], Any]
    ) -> None:
        app.testing = False
        MultiLimit(app, storage=any_storage, application_limits="3/hour")
        app.get("/", endpoint="view")(rate_limiter(rules="2/minute", exempt_when=fails)(view()))
        assert statuses(app, "/", "/", "/") == [500, 500, 429]

    @pytest.mark.parametrize(("cost", "count"), [(-1, 2), ("1", 2), (None, 2), (10_001, 20_000)])
    def test_invalid_cost_is_charged_as_one_unit(self, app: Flask, any_storage: Any, cost: Any, count: int) -> None:
        app = self.limited(app, any_storage, "cost", lambda: cost, count=count)

        answer = ask(app)

        assert answer.status_code == 500
        assert f'"ip-60s";r={count - 1}' in answer.headers["RateLimit"]
        assert statuses(app, "/", "/other", "/other") == [500, 200, 429]

    @pytest.mark.parametrize("fails", IMPOSSIBLE)
    @pytest.mark.parametrize("what", FAILING)
    def test_request_ended_by_before_request_keeps_its_answer_and_is_limited(
        self, app: Flask, any_storage: Any, what: str, fails: Callable[[], Any]
    ) -> None:
        MultiLimit(
            app,
            storage=any_storage,
            user_loader=fails,
            application_limits="2/hour",
            default_limits={"rules": "100/minute", **self.FAILING[what](fails)},
        )
        app.get("/", endpoint="view")(view())
        app.before_request(lambda: ("login required", 401))

        assert statuses(app, "/", "/", "/") == [401, 401, 429]

    @pytest.mark.parametrize("fails", IMPOSSIBLE)
    def test_failing_user_loader_with_user_lists_leaves_application_limits(
        self, app: Flask, any_storage: Any, fails: Callable[[], Any]
    ) -> None:
        app.testing = False
        MultiLimit(app, storage=any_storage, user_loader=fails, allow=["user:ann"], application_limits="2/hour")
        app.get("/", endpoint="view")(view())
        assert statuses(app, "/", "/", "/") == [500, 500, 429]

    @pytest.mark.parametrize("fails", IMPOSSIBLE)
    @pytest.mark.parametrize("what", FAILING)
    def test_other_limits_of_a_function_refuse_and_ban_the_client(
        self, app: Flask, any_storage: Any, what: str, fails: Callable[[], Any]
    ) -> None:
        app.testing = False
        MultiLimit(app, storage=any_storage, user_loader=fails)
        by_address = rate_limiter(type=LimitType.IP, rules="2/hour", ban=Ban(after=2, within=60, time=7200, most=7200))
        guess = by_address(rate_limiter(rules="100/minute", **self.FAILING[what](fails))(view()))
        app.get("/", endpoint="view")(lambda: guess())  # noqa: PLW0108 - as a view, it would have the limits itself

        assert statuses(app, "/", "/", "/", "/") == [500, 500, 429, 429]
        assert ask(app).headers["Retry-After"] == "7200"

    def test_function_outside_a_request_raises_the_error_and_charges_nothing(
        self, app: Flask, any_storage: Any
    ) -> None:
        MultiLimit(app, storage=any_storage)
        shared = rate_limiter(rules="2/hour", scope="tasks")
        failing = shared(rate_limiter(rules="9/minute", cost=raises)(view()))
        other = shared(view())

        with app.app_context():
            for _ in range(3):
                with pytest.raises(ValueError, match="not a number"):
                    failing()
            assert [other(), other()] == ["ok", "ok"]

    @pytest.mark.parametrize("what", ["cost", "priority", "exempt_when"])
    def test_callable_that_calls_what_it_limits_is_an_error(self, app: Flask, what: str) -> None:
        """Without an error, each call would end by a RecursionError, be repeated, and so on for hours."""

        def asks() -> Any:
            return service()

        options = {"exempt_when": asks} if what == "exempt_when" else self.FAILING[what](asks)
        limiter = rate_limiter(rules="9/minute", **options)
        service = limiter(view())
        app = self.limited(app, "memory://", "user", lambda: "ann")
        app.get("/asking", endpoint="asking")(limiter(view()))
        app.testing = True

        with pytest.raises(ConfigurationError, match=r"asks calls itself: it calls .*; give that limit another"):
            ask(app, "/asking")
        assert statuses(app, "/other", "/other", "/other") == [200, 200, 429]

    @pytest.mark.parametrize("takes_subject", [False, True])
    def test_rules_callable_that_calls_what_it_limits_is_an_error(self, app: Flask, takes_subject: bool) -> None:
        """Without an error, each call would charge the other limits until Python's stack is full."""

        def rules() -> Any:
            return service()

        def rules_of(subject: str) -> Any:  # noqa: ARG001
            return service()

        MultiLimit(app)
        failing = rate_limiter(type=LimitType.IP, rules=rules_of if takes_subject else rules)
        service = rate_limiter(rules="9/minute", scope="shared")(failing(view()))
        app.get("/", endpoint="view")(lambda: service())  # noqa: PLW0108 - as a view, it would have the limits itself
        app.testing = True

        with pytest.raises(ConfigurationError, match=r"rules\S* calls itself: it calls .*; give that limit another"):
            ask(app)
        with app.app_context():
            assert app.extensions["multilimit"].limiter.peek(hits_for("9/minute", scope="shared")).remaining == 7

    def test_error_names_the_limiter_and_the_invalid_cost(self, app: Flask) -> None:
        app = self.limited(app, "memory://", "cost", lambda: -1)
        app.testing = True
        with pytest.raises(ConfigurationError, match='limiter on "view": cost=-1: must be a whole number'):
            ask(app)


@pytest.mark.parametrize("cost", [10_001, 10**9, 10**9 + 1, 10**400], ids=lambda cost: f"1e{len(str(cost)) - 1}")
@pytest.mark.parametrize("count", [5, 1000, 10_000])
@pytest.mark.parametrize("algorithm", [*RATES, "concurrency"])
def test_cost_above_the_count_is_refused_without_retry_after(
    app: Flask, any_storage: Any, algorithm: str, count: int, cost: int
) -> None:
    MultiLimit(app, storage=any_storage)
    limit = Concurrent(min(count, 1000), 60) if algorithm == "concurrency" else Rule(60, count, algorithm=algorithm)
    app.get("/", endpoint="view")(rate_limiter(rules=limit, cost=lambda: cost if request.args else 1)(view()))

    refused = ask(app, "/?dear")

    assert refused.status_code == 429
    assert "Retry-After" not in refused.headers
    assert f"r={limit.quota.burst}" in refused.headers["RateLimit"]
    assert statuses(app, "/") == [200]


def test_view_that_calls_itself_is_charged_once(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage, application_limits="9/hour")

    @app.get("/")
    @rate_limiter(rules="9/second")
    def countdown(left: int = 2) -> str:
        return countdown(left - 1) if left else "done"

    assert ask(app).text == "done"
    assert storage.windows == [[3600, 1]]


def test_view_called_again_after_a_refusal_is_checked_again(
    app: Flask, storage: RecordingStorage, clock: Clock
) -> None:
    def patient(view: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(view)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                return view(*args, **kwargs)
            except RateLimitExceeded as error:
                clock.advance(error.decision.retry_after)
                return view(*args, **kwargs)

        return wrapper

    MultiLimit(app, storage=storage, application_limits="9/hour")
    app.add_url_rule("/", "view", patient(rate_limiter(rules="1/second")(view())))

    assert statuses(app, "/", "/") == [200, 200]
    assert storage.windows == [[3600, 1]] * 3
    assert ask(app).headers["RateLimit"].startswith('"application-3600s";r=6;')


@pytest.mark.parametrize("rules", [None, "9/minute"], ids=["from a free view", "from a limited one"])
def test_request_that_a_view_dispatches_to_another_is_checked_there(limited_app: Flask, rules: str | None) -> None:
    def forward() -> Response:
        request.environ["PATH_INFO"] = "/target"
        adapter: Any = limited_app.create_url_adapter(request)
        request.url_rule, request.view_args = adapter.match(return_rule=True)
        return limited_app.full_dispatch_request()

    limited_app.add_url_rule("/", "forward", rate_limiter(rules=rules, name="own")(forward) if rules else forward)
    limited_app.add_url_rule("/target", "target", rate_limiter(rules="1/minute")(view()))

    assert statuses(limited_app, "/", "/", "/target") == [200, 429, 429]
    assert ask(limited_app).headers["Retry-After"] == "60"


def test_wsgi_environment_served_twice_is_checked_twice(app: Flask, storage: RecordingStorage) -> None:
    """Single page apps do this: the index is served in place of a page that is not found."""
    MultiLimit(app, storage=storage, default_limits="5/minute", unmatched_limits="5/hour")
    app.get("/index.html", endpoint="index")(view())
    inner = app.wsgi_app

    def with_fallback(environ: Any, start_response: Any) -> Any:
        _, status, _ = run_wsgi_app(inner, environ)
        if status.startswith("404"):
            environ["PATH_INFO"] = "/index.html"
        return inner(environ, start_response)

    app.wsgi_app = with_fallback  # type: ignore[method-assign]

    answer = ask(app, "/somewhere")

    assert answer.status_code == 200
    assert storage.windows == [[3600], [60]]
    assert answer.headers["RateLimit"] == '"default-60s";r=4;t=48'


def test_response_with_a_plain_dict_of_headers_gets_rate_limit_fields(limited_app: Flask) -> None:
    response = Response("ok")
    response.headers = {"X-Own": "yes"}  # type: ignore[assignment]
    limited_app.add_url_rule("/", "view", rate_limiter(rules="5/minute")(lambda: response))

    answer = ask(limited_app)

    assert (answer.status_code, answer.headers["X-Own"]) == (200, "yes")
    assert answer.headers["RateLimit"] == '"default-60s";r=4;t=48'


def test_refusals_too_get_rate_limit_fields_below_an_after_request_function_that_assigns_a_dict(
    limited_app: Flask,
) -> None:
    limited_app.add_url_rule("/", "view", rate_limiter(rules="1/minute")(lambda: "ok"))

    @limited_app.after_request
    def reply_with_own_headers(response: Response) -> Response:
        response.headers = {**response.headers, "X-Own": "yes"}  # type: ignore[assignment]
        return response

    admitted, refused = ask(limited_app), ask(limited_app)

    assert [(each.status_code, each.headers["X-Own"]) for each in (admitted, refused)] == [(200, "yes"), (429, "yes")]
    assert [each.headers["RateLimit"][:18] for each in (admitted, refused)] == ['"default-60s";r=0;'] * 2
    assert refused.headers["Cache-Control"] == "no-store"
