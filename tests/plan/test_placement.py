"""A limiter above a decorator that registers the function is an error at start-up: it would never run."""

import functools
import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import flask
import pytest
import wrapt
import wrapt.wrappers  # type: ignore[import-untyped]
from flask import Blueprint, Flask
from flask_login import LoginManager, user_logged_in
from flask_socketio import SocketIO  # type: ignore[import-untyped]
from werkzeug.local import LocalProxy

from flask_multilimit import IP, ConfigurationError, MultiLimit, rate_limiter
from flask_multilimit.engine import MemoryStorage
from flask_multilimit.signals import limits_checked
from support.asking import ask, statuses, view
from support.clock import Clock
from support.doubles import OPEN

Decorator = Callable[[Callable[..., Any]], Any]


def registering_blueprint(app: Flask, register: Callable[[Blueprint], Decorator]) -> Decorator:
    def decorate(function: Callable[..., Any]) -> Any:
        pages = Blueprint("pages", "pages")
        registered = register(pages)(function)
        app.register_blueprint(pages)
        return registered

    return decorate


def connecting_to_login(app: Flask) -> Decorator:
    LoginManager(app)
    return user_logged_in.connect  # type: ignore[no-any-return]


class Pages:
    """An extension that keeps functions, like Dash; the app knows it only by its hook."""

    def __init__(self, app: Flask) -> None:
        self.callbacks: dict[str, dict[str, Callable[..., Any]]] = {}
        app.before_request(self.set_up)

    def set_up(self) -> None: ...

    def callback(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.callbacks[function.__name__] = {"callback": function}
        return function


class Guard:
    """Is known only to the views that it decorates, as Flask-HTTPAuth is."""

    verify: Any

    def __init__(self, app: Flask) -> None:
        app.get("/guarded", endpoint="guarded")(self.required(view()))

    def required(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return functools.wraps(function)(lambda: self.verify() and function())

    def verify_password(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.verify = function
        return function


class Job:
    __slots__ = ("function", "trigger")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


class Scheduler:
    """Keeps functions as deep as Flask-APScheduler with APScheduler."""

    def __init__(self, app: Flask) -> None:
        self._scheduler = SimpleNamespace(stores={"default": SimpleNamespace(jobs={})})
        app.extensions["scheduler"] = self

    def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self._scheduler.stores["default"].jobs[function.__name__] = (Job(function), None)
        return function


SIGNALS = (flask.request_started, limits_checked, user_logged_in)
REGISTRIES: dict[str, Callable[[Flask], Decorator]] = {
    "@app.route": lambda app: app.get("/"),
    "@app.route of a blueprint": lambda app: registering_blueprint(app, lambda pages: pages.get("/")),
    "@app.errorhandler": lambda app: app.errorhandler(404),
    "@app.errorhandler of a class": lambda app: app.errorhandler(KeyError),
    "@app.errorhandler of a blueprint": lambda app: registering_blueprint(app, lambda pages: pages.errorhandler(404)),
    "@app.before_request": lambda app: app.before_request,
    "@app.before_request of a blueprint": lambda app: registering_blueprint(app, lambda pages: pages.before_request),
    "@app.after_request": lambda app: app.after_request,
    "@app.teardown_request": lambda app: app.teardown_request,
    "@app.teardown_appcontext": lambda app: app.teardown_appcontext,
    "@app.context_processor": lambda app: app.context_processor,
    "@app.shell_context_processor": lambda app: app.shell_context_processor,
    "@app.url_value_preprocessor": lambda app: app.url_value_preprocessor,
    "@app.url_defaults": lambda app: app.url_defaults,
    "@app.template_filter": lambda app: app.template_filter(),
    "@app.template_test": lambda app: app.template_test(),
    "@app.template_global": lambda app: app.template_global(),
    "the decorator of LoginManager": lambda app: LoginManager(app).user_loader,
    "the decorator of SocketIO": lambda app: SocketIO(app, async_mode="threading").on("message"),
    "the decorator of SocketIO for errors": lambda app: SocketIO(app, async_mode="threading").on_error(),
    "the decorator of Pages": lambda app: Pages(app).callback,
    "the decorator of Guard": lambda app: Guard(app).verify_password,
    "the decorator of Scheduler": lambda app: Scheduler(app).task,
    "@multilimit.user_loader": lambda app: app.extensions["multilimit"].user_loader,
    'the decorator of the signal "request-started"': lambda _: flask.request_started.connect,
    'the decorator of the signal "request-started" for one app': flask.request_started.connect_via,
    'the decorator of the signal "limits-checked"': lambda _: limits_checked.connect,
    'the decorator of the signal "logged-in"': connecting_to_login,
}


TOO_LATE = {f"@app.{name}" for name in ("after_request", "teardown_request", "teardown_appcontext")}


@pytest.mark.parametrize("registry", REGISTRIES)
def test_limiter_above_a_registering_decorator_is_an_error(multilimit: MultiLimit, app: Flask, registry: str) -> None:
    @rate_limiter()
    @REGISTRIES[registry](app)
    def misplaced(*_: Any) -> Any: ...

    decorator = registry.partition(" for ")[0].partition(" of a ")[0]
    with pytest.raises(ConfigurationError, match=rf"misplaced.*stands above {decorator}, .*put {decorator} on top"):
        multilimit.validate(app)
    for signal in SIGNALS:  # signals outlive the app
        signal.disconnect(misplaced.__wrapped__)


@pytest.mark.parametrize("registry", sorted(TOO_LATE))
def test_limiter_on_a_function_that_runs_after_the_view_is_an_error(
    multilimit: MultiLimit, app: Flask, registry: str
) -> None:
    @REGISTRIES[registry](app)
    @rate_limiter()
    def late(*_: Any) -> Any: ...

    with pytest.raises(ConfigurationError, match=rf"late.*{registry} calls it when the response is made.*on the view"):
        multilimit.validate(app)


@pytest.mark.parametrize("registry", sorted(REGISTRIES.keys() - TOO_LATE))
def test_limiter_below_a_registering_decorator_is_no_error(multilimit: MultiLimit, app: Flask, registry: str) -> None:
    @REGISTRIES[registry](app)
    @rate_limiter()
    def placed(*_: Any) -> Any: ...

    multilimit.validate(app)


def test_before_request_function_can_be_a_limited_view_as_well(multilimit: MultiLimit, app: Flask) -> None:
    @app.before_request
    def free() -> Any: ...

    app.after_request(lambda response: response)
    app.get("/", endpoint="limited")(rate_limiter(rules="1/minute")(free))

    multilimit.validate(app)


def test_misplaced_limiter_fails_every_request_of_the_app(app: Flask) -> None:
    MultiLimit(app)
    app.get("/free", endpoint="free")(view())
    rate_limiter()(app.get("/")(view()))  # the limited function is not kept
    gc.collect()
    app.testing = False

    assert statuses(app, "/free", "/", "/free") == [500] * 3


def test_misplaced_limiter_above_another_limiter_is_an_error(app: Flask) -> None:
    MultiLimit(app)
    kept = rate_limiter(type=IP, rules="1/minute")(app.get("/")(rate_limiter(rules="100/hour")(view())))

    with pytest.raises(ConfigurationError, match="stands above"):
        ask(app)
    del kept


@pytest.mark.parametrize("foreign", OPEN.values(), ids=OPEN.keys())
def test_misplaced_limiter_above_another_decorator_is_an_error(app: Flask, foreign: Decorator) -> None:
    MultiLimit(app)
    kept = rate_limiter()(foreign(app.get("/")(view())))

    with pytest.raises(ConfigurationError, match="stands above"):
        ask(app)
    del kept


def test_function_can_be_routed_with_and_without_its_limiter(app: Flask) -> None:
    MultiLimit(app)
    free = app.get("/internal")(view())
    app.add_url_rule("/public", "public", rate_limiter(rules="1/minute")(free))
    assert statuses(app, "/public", "/public", "/internal") == [200, 429, 200]


def test_function_can_be_limited_in_only_one_app_of_a_factory(clock: Clock) -> None:
    page = view()

    def create_app(*, limited: bool) -> Flask:
        app = Flask("shop")
        MultiLimit(app, storage=MemoryStorage(clock=clock))
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute")(page) if limited else page)
        return app

    assert statuses(create_app(limited=True), "/", "/") == [200, 429]
    gc.collect()
    assert statuses(create_app(limited=False), "/", "/") == [200, 200]


def test_limiter_above_a_decorator_that_registers_a_wrapper_is_an_error(app: Flask) -> None:
    """flask-smorest and others register a wrapper and return the function."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        app.add_url_rule("/", "answer", functools.wraps(function)(lambda: function()))  # noqa: PLW0108
        return function

    MultiLimit(app)
    kept = rate_limiter()(register(lambda: "ok"))

    with pytest.raises(ConfigurationError, match=r'"answer": @rate_limiter stands above @app\.route'):
        ask(app)
    del kept


def test_function_kept_by_an_extension_can_be_limited_elsewhere() -> None:
    app = Flask(__name__)
    MultiLimit(app)
    kept = Pages(app).callback(lambda: "ok")
    limited = rate_limiter(rules="1/minute")(kept)
    app.add_url_rule("/", "view", lambda: f"{limited()}!")

    assert statuses(app, "/", "/") == [200, 429]


def test_method_can_be_limited_on_one_object_and_routed_on_another(app: Flask) -> None:
    class Pages:
        def page(self) -> str:
            return "ok"

    MultiLimit(app)
    limited = rate_limiter(rules="1/minute")(Pages().page)
    app.add_url_rule("/free", "free", Pages().page)
    app.add_url_rule("/", "limited", lambda: f"{limited()}!")

    assert statuses(app, "/free", "/free", "/", "/") == [200, 200, 200, 429]


def test_limiter_above_a_cli_command_is_an_error_at_the_decorator(app: Flask) -> None:
    with pytest.raises(ConfigurationError, match=r"stands above @app\.cli\.command.*put @app\.cli\.command on top"):

        @rate_limiter()
        @app.cli.command()
        def command() -> None: ...


@pytest.mark.parametrize("package", ["celery.app.task", "huey.api", "dramatiq.actor"])
def test_limiter_above_a_queue_task_is_an_error_at_the_decorator(package: str) -> None:
    task_class = type("Task", (), {"__module__": package, "__call__": print})  # like the tasks of these libraries
    with pytest.raises(ConfigurationError, match="which calls the function without it"):
        rate_limiter()(task_class())


class LazyTask:
    """Like a shared task of Celery, which looks up the app of Celery."""

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        raise AttributeError

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("there is no app of Celery yet")


@pytest.mark.parametrize("lazy", [LocalProxy, lambda _: LazyTask()], ids=["Werkzeug", "Celery"])
def test_search_for_misplaced_limiters_resolves_no_local_proxy(app: Flask, lazy: Callable[..., Any]) -> None:
    MultiLimit(app)
    app.jinja_env.globals["shop"] = lazy(lambda: app.extensions["shop"])
    app.extensions["pages"] = Pages(app)
    app.extensions["pages"].callbacks["shop"] = {"callback": app.jinja_env.globals["shop"]}
    app.get("/")(rate_limiter(rules="1/minute")(lambda: "ok"))

    assert statuses(app, "/", "/") == [200, 429]


def test_receiver_of_a_signal_may_be_dropped_while_receivers_are_searched(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    receivers: dict[Any, Any] = {"another": view()}

    class Dropped(weakref.ReferenceType[Any]):
        def __call__(self) -> Any:
            receivers.pop("another", None)  # as when the app of a receiver is collected

    receivers["dropped"] = Dropped(app)
    monkeypatch.setattr(flask.request_started, "receivers", {**flask.request_started.receivers, **receivers})
    receivers = flask.request_started.receivers

    MultiLimit(app).validate(app)

    assert "another" not in receivers


class Hook:
    def __call__(self) -> None: ...


HOOKS: dict[str, Callable[[], Any]] = {
    "wrapt": lambda: wrapt.FunctionWrapper(view(), lambda f, _, a, k: f(*a, **k)),
    "wrapt without its C extension": lambda: wrapt.wrappers.FunctionWrapper(view(), lambda f, _, a, k: f(*a, **k)),
    "partial": lambda: functools.partial(view()),
    "callable object": Hook,
}


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_limiter_above_a_registered_callable_is_an_error(
    multilimit: MultiLimit, app: Flask, hook: Callable[[], Any]
) -> None:
    kept = rate_limiter()(app.before_request(hook()))
    with pytest.raises(ConfigurationError, match=r"stands above @app\.before_request"):
        multilimit.validate(app)
    del kept
