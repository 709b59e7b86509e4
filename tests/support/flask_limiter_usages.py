"""Flask-Limiter as public code uses it, rewritten: each function declares limits, and says who does this."""

# mypy: disable-error-code="untyped-decorator"

import time
from collections.abc import Callable
from types import FunctionType
from typing import Any, ClassVar

from flask import Blueprint, request
from flask.views import MethodView, View

from support.limiters import Library, Shop, asked, by_client, named, whole


def everyone() -> str:
    return "everyone"


# Limits of one view


@asked("/*3 /@ann*2 /fast /ping*3", whole, default_limits=["200 per day", "50 per hour"])
def quick_start(s: Shop) -> None:
    """Quick start of its documentation: defaults of days and hours, a slow view, one that is exempt."""
    s.limited("/", "2 per day")
    s.view("/fast")
    s.view("/ping", s.limiter.exempt)


@asked("/*3 /other*3", whole)
def with_a_name_for_its_parameter(s: Shop) -> None:
    """Code that names the first parameter."""
    s.limited("/", limit_value="2 per hour")
    s.limited("/other", limit_value="1 per second", error_message="slowly")


@asked("/*3 +40 /*2", whole)
def several_keys_at_one_view(s: Shop) -> None:
    """A decorator that joins limits by address and by user, of several windows."""
    s.view(
        "/",
        s.limiter.limit("4/minute", key_func=everyone),
        s.limiter.limit("2/40second"),
        s.limiter.limit("9/day", key_func=by_client),
    )


# Default limits, and those of the app


@asked("/health*3 /*2", whole, default_limits=["1/hour"])
def filtered_by_path(s: Shop) -> None:
    """Apps that do not limit health checks, by a filter."""

    @s.limiter.request_filter
    def is_health_check() -> bool:
        return request.path in {"/health", "/healthz"}

    s.view("/")
    s.view("/health")


# Blueprints and classes


@asked("/v1/*3 /v1/users/*3", whole)
def nested_blueprints(s: Shop) -> None:
    """Its documentation on nested blueprints."""
    outer, inner = Blueprint("v1", __name__, url_prefix="/v1"), Blueprint("users", __name__, url_prefix="/users")
    s.view("/", on=outer)
    inner.add_url_rule("/", "list", named("list_users", lambda: "ok"))
    outer.register_blueprint(inner)
    s.app.register_blueprint(outer)
    s.limiter.limit("2/minute")(outer)
    s.limiter.limit("5/minute", override_defaults=False)(inner)


@asked("/page*3", whole)
def a_class_with_decorators(s: Shop) -> None:
    """Flask-RESTful, flask-restx and GraphQL views with decorators = [...]."""

    class Page(View):
        decorators: ClassVar[list[Any]] = [s.limiter.limit("2/second")]

        def dispatch_request(self) -> str:
            return "page"

    s.app.add_url_rule("/page", view_func=Page.as_view("page"))


@asked("/item*3 POST/item*2", whole)
def a_class_with_limited_methods(s: Shop) -> None:
    """Resources with a decorator on one method."""

    class Item(MethodView):
        @s.limiter.limit("2/minute")
        def get(self) -> str:
            return "item"

        def post(self) -> str:
            return "item"

    s.app.add_url_rule("/item", view_func=Item.as_view("item"))


@asked("/*3", whole)
def limited_after_it_was_registered(s: Shop) -> None:
    """Factories that put limits on app.view_functions of other packages."""
    s.view("/")
    s.app.view_functions["view_of_index"] = s.limiter.limit("2/minute")(s.app.view_functions["view_of_index"])


# What a refusal is


@asked("/*3", whole)
def when_to_come_again(s: Shop) -> None:
    """Error pages that show when the limit ends, from current_limit."""

    @s.app.errorhandler(429)
    def refused(error: Any) -> Any:
        return f"in {max(0, s.limiter.current_limit.reset_at - int(time.time()))} s", 429

    s.limited("/", "2/minute")


# By hand


@asked("POST/login?status=401*2 POST/login?status=200 POST/login?status=401*3", whole)
def cleared_after_a_good_log_in(s: Shop) -> None:
    """A book server and a forum: a good log-in clears all limits of the request."""

    @s.app.post("/login")
    @s.limiter.limit("40/day", key_func=by_client)
    @s.limiter.limit("3/minute", key_func=by_client, methods=["POST"])
    def login() -> Any:
        if request.args["status"] == "200":
            for limit in s.limiter.current_limits:
                s.limiter.limiter.clear(limit.limit, *limit.request_args)
        return "", int(request.args["status"])


@asked("POST/login*2 POST/login?good POST/login*2", whole)
def cleared_by_text_and_endpoint(s: Shop) -> None:
    """A shop clears by the text of the limit, the key and the endpoint, as the library joins them."""
    from limits import parse

    @s.app.post("/login")
    @s.limiter.limit("3 per 15 minutes", key_func=by_client, deduct_when=lambda response: response.status_code == 200)
    def login() -> str:
        if "good" in request.args:
            s.limiter.limiter.clear(parse("3 per 15 minutes"), by_client(), request.endpoint)
        return "ok"


@asked("/*3", whole)
def checked_in_before_request(s: Shop) -> None:
    """Blueprints that are limited by a function before each request."""

    @s.app.before_request
    @s.limiter.limit("2/minute")
    def check() -> None:
        return None

    s.view("/")


USAGES: dict[str, Callable[[Library], str]] = {
    name: function
    for name, function in vars().copy().items()
    if isinstance(function, FunctionType) and hasattr(function, "__wrapped__")
}
