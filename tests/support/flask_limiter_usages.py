"""Flask-Limiter as public code uses it, written anew: each function declares limits, and says where this was found.

``@used(asks)`` names the requests, as :meth:`Shop.answers` reads them.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, NamedTuple

from flask import Blueprint, Response, current_app, g, jsonify, make_response, request
from flask.views import MethodView, View

from support.limiters import Shop, by_client, named


class Usage(NamedTuple):
    """One usage."""

    declare: Callable[[Shop], Any]
    asks: str
    options: dict[str, Any]
    """Of the Limiter."""


USAGES: dict[str, Usage] = {}


def used(asks: str, **options: Any) -> Callable[[Callable[[Shop], Any]], Callable[[Shop], Any]]:
    def note(declare: Callable[[Shop], Any]) -> Callable[[Shop], Any]:
        assert declare.__doc__, "say where it was found"
        USAGES[declare.__name__] = Usage(declare, asks, options)
        return declare

    return note


def everyone() -> str:
    return "everyone"


BOTH = ("GET", "POST")

# Limits of one view


@used("/*3 /@ann*2 /fast /ping*3", default_limits=["200 per day", "50 per hour"])
def quick_start(s: Shop) -> None:
    """Quick start of its documentation: defaults of days and hours, a slow view, one that is exempt."""
    s.limited("/", "2 per day")
    s.view("/fast")
    s.view("/ping", s.limiter.exempt)


@used("POST/login?status=401*3 POST/login")
def log_in_counts_failures(s: Shop) -> None:
    """Log-ins where only wrong passwords count (401)."""
    s.view(
        "/login",
        s.limiter.limit("2/hour", override_defaults=True, deduct_when=lambda response: response.status_code == 401),
        methods=BOTH,
    )


@used("POST/login?status=302*4 POST/login*3")
def log_in_counts_all_but_redirects(s: Shop) -> None:
    """A staff page of a school: whoever is redirected was right."""
    counts = s.limiter.limit(
        "2 per 15 minutes", methods=["POST"], deduct_when=lambda response: response.status_code != 302
    )
    s.view("/login", counts, methods=BOTH)


@used("/activate*3 /activate?bad*3")
def counts_what_the_view_marks(s: Shop) -> None:
    """An e-mail service: the view sets g.deduct_limit for wrong codes."""

    @s.app.get("/activate")
    @s.limiter.limit("2/minute", deduct_when=lambda r: hasattr(g, "deduct_limit") and g.deduct_limit)
    def activate() -> str:
        g.deduct_limit = "bad" in request.args
        return "ok"


@used("/verify?status=400*3 +60 /verify*4")
def different_limits_for_good_and_bad(s: Shop) -> None:
    """A page that verifies e-mail addresses: one limit of successes, one of failures."""
    s.view(
        "/verify",
        s.limiter.limit("3 per minute", override_defaults=False, deduct_when=lambda r: r.status_code == 200),
        s.limiter.limit("2 per minute", override_defaults=False, deduct_when=lambda r: r.status_code != 200),
    )


@used("/send*4 +10 /send*2")
def two_windows_in_one_text(s: Shop) -> None:
    """APIs with a burst and a sustained limit in one text."""
    s.limited("/send", "2 per 10 seconds;3 per hour")


@used("/*2 +1 /*2")
def three_stacked_limits(s: Shop) -> None:
    """Stacked decorators of second, minute and hour."""
    s.view("/", s.limiter.limit("100/day"), s.limiter.limit("10/hour"), s.limiter.limit("1/second"))


@used("/*3 /@ann*3")
def by_a_user_of_the_request(s: Shop) -> None:
    """APIs that limit by API key or user."""
    s.limited("/", "2/hour", key_func=by_client)


@used("/@ann*2 /@bob*2")
def one_quota_of_everyone(s: Shop) -> None:
    """Costly calls that all visitors share: the key is a constant."""
    s.limited("/", "3/hour", key_func=lambda: "global")


@used("/*3 /other*3")
def with_a_name_for_its_parameter(s: Shop) -> None:
    """Code that names the first parameter."""
    s.limited("/", limit_value="2 per hour")
    s.limited("/other", limit_value="1 per second", error_message="slowly")


@used("/*3")
def with_a_message(s: Shop) -> None:
    """Pages that tell their visitors in their language."""
    s.limited("/", "2/hour", error_message="Zu viele Versuche.")


@used("/*3")
def with_a_message_that_is_made(s: Shop) -> None:
    """Sites with translations: the message is a callable."""
    s.limited("/", "2/hour", error_message=lambda: f"too many of {request.path}")


@used("/@ann*3 /@bob*3")
def exempt_when_somebody_is_staff(s: Shop) -> None:
    """Sites where staff is not limited."""
    s.limited("/", "1/hour", exempt_when=lambda: by_client() == "ann")


@used("/?size=3 /?size=2 /?size=1 /?size=1")
def with_a_cost_of_the_request(s: Shop) -> None:
    """Exports that cost by their size."""
    s.limited("/", "6/hour", cost=lambda: int(request.args["size"]))


@used("/*2 POST/*3")
def each_method_by_itself(s: Shop) -> None:
    """REST resources with one limit for each method."""
    s.view("/", s.limiter.limit("2/minute", per_method=True), methods=BOTH)


@used("/*2 /x*2")
def with_a_scope(s: Shop) -> None:
    """Views with a scope beside their endpoint."""
    s.limited("/", "1/hour", scope="search")
    s.limited("/x", "1/hour", scope="search")


@used("/*2")
def nobody_passes(s: Shop) -> None:
    """Pages that are closed by a limit of 0, and tests of error pages."""
    s.limited("/", "0/minute", override_defaults=False)


@used("/*3 +40 /*2")
def several_keys_at_one_view(s: Shop) -> None:
    """A decorator that joins limits by address and by user, of several windows."""
    s.view(
        "/",
        s.limiter.limit("4/minute", key_func=everyone),
        s.limiter.limit("2/40second"),
        s.limiter.limit("9/day", key_func=by_client),
    )


@used("/*3 POST/*3")
def read_and_write_in_one_view(s: Shop) -> None:
    """Views that read and write, with a limit for each."""
    s.view(
        "/", s.limiter.limit("2/minute", methods=["GET"]), s.limiter.limit("1/minute", methods=["POST"]), methods=BOTH
    )


@used("/*2 /@ann*3")
def several_windows_by_user(s: Shop) -> None:
    """An image service with limits of 2 seconds and 90 minutes, all by callables."""
    s.view(
        "/",
        s.limiter.limit(limit_value=lambda: "9 per 90 minutes", key_func=by_client),
        s.limiter.limit(limit_value=lambda: "2 per 2 seconds", key_func=by_client),
    )


# Limits from elsewhere


@used("/*3", LIMIT="2 per hour")
def from_the_settings(s: Shop) -> None:
    """Apps whose limits stand in their settings."""
    s.limited("/", lambda: current_app.config["LIMIT"])


@used("/@ann*2 /*3")
def by_plan(s: Shop) -> None:
    """Services with plans: the limit depends on who asks."""

    def limit_of_plan() -> str:
        return {"ann": "1/hour"}.get(by_client(), "2/hour")

    s.limited("/", limit_of_plan, key_func=by_client)


@used("/@ann*3 /*2")
def without_limit_for_some(s: Shop) -> None:
    """Services where a paying client has no limit: the callable returns nothing."""
    s.limited("/", lambda: "" if by_client() == "ann" else "1/hour")


# Shared limits


@used("/a /b /a /c")
def shared_by_name(s: Shop) -> None:
    """Calls of one paid service that several views use."""
    mail = s.limiter.shared_limit("2/hour", scope="mail")
    s.view("/a", mail)
    s.view("/b", mail)
    s.view("/c")


@used("/file*2 /view*2", PUBLIC="3/hour")
def shared_from_the_settings(s: Shop) -> None:
    """Public files: a shared limit from the settings, of GET alone, with a message."""
    for path in ("/file", "/view"):
        shared = s.limiter.shared_limit(
            lambda: current_app.config["PUBLIC"], "public_file", methods=["GET"], error_message="too many"
        )
        s.view(path, shared)


@used("/a/x*2 /b/x /a/y")
def shared_by_what_is_asked(s: Shop) -> None:
    """A proxy that limits each host behind it: the scope is a callable."""
    shared = s.limiter.shared_limit("2/hour", scope=lambda endpoint: request.path.rpartition("/")[2])
    s.view("/a/<part>", shared)
    s.view("/b/<part>", shared)


# Default limits, and those of the app


@used("/*3 /static/none*3", RATELIMIT_DEFAULT="2/hour;9/day")
def defaults_in_the_settings(s: Shop) -> None:
    """Apps that set RATELIMIT_DEFAULT."""
    s.view("/")


@used("/a*2 /health*3", default_limits=["1/hour"], default_limits_exempt_when=lambda: request.path == "/health")
def defaults_but_not_for_health(s: Shop) -> None:
    """Apps whose health check has no limit."""
    s.view("/a")
    s.view("/health")


@used("/*3 POST/*2", default_limits=["1/hour"], default_limits_exempt_when=lambda: request.method in {"GET", "HEAD"})
def defaults_for_writing(s: Shop) -> None:
    """Apps that limit only what writes."""
    s.view("/", methods=BOTH)


@used("/a*2 /b*2 /nowhere", application_limits=["3/hour"])
def of_the_app(s: Shop) -> None:
    """Apps with one budget for all their views."""
    s.view("/a")
    s.view("/b")


@used("/*3 /free*3", default_limits=["1/hour"], application_limits=["9/hour"])
def exempt(s: Shop) -> None:
    """Health checks and webhooks."""
    s.view("/")
    s.view("/free", s.limiter.exempt)


@used("/health*3 /*2", default_limits=["1/hour"])
def filtered_by_path(s: Shop) -> None:
    """Apps that do not limit health checks, by a filter."""

    @s.limiter.request_filter
    def is_health_check() -> bool:
        return request.path in {"/health", "/healthz"}

    s.view("/")
    s.view("/health")


# Blueprints and classes


@used("/api/a*3 /api/b /free*2")
def a_blueprint(s: Shop) -> None:
    """Apps that limit a blueprint when it is registered."""
    api = Blueprint("api", __name__, url_prefix="/api")
    s.view("/a", on=api)
    s.view("/b", on=api)
    s.app.register_blueprint(api)
    s.view("/free")
    s.limiter.limit("2/minute")(api)


@used("/hooks/a*3 /a*2", default_limits=["1/hour"])
def an_exempt_blueprint(s: Shop) -> None:
    """Blueprints of webhooks that are exempt."""
    hooks = Blueprint("hooks", __name__, url_prefix="/hooks")
    s.limiter.exempt(hooks)
    s.view("/a", on=hooks)
    s.app.register_blueprint(hooks)
    s.view("/a")


@used("/chat/send*2 /chat/list*3", default_limits=["1/hour"])
def an_exempt_blueprint_with_limits_of_views(s: Shop) -> None:
    """A chat whose blueprint is exempt, while a view of it has a limit."""
    chat = Blueprint("chat", __name__, url_prefix="/chat")
    s.limiter.exempt(chat)
    s.view("/send", s.limiter.limit("1/minute"), on=chat)
    s.view("/list", on=chat)
    s.app.register_blueprint(chat)


@used("/v1/*3 /v1/users/*3")
def nested_blueprints(s: Shop) -> None:
    """Its documentation on nested blueprints."""
    outer, inner = Blueprint("v1", __name__, url_prefix="/v1"), Blueprint("users", __name__, url_prefix="/users")
    s.view("/", on=outer)
    inner.add_url_rule("/", "list", named("list_users", lambda: "ok"))
    outer.register_blueprint(inner)
    s.app.register_blueprint(outer)
    s.limiter.limit("2/minute")(outer)
    s.limiter.limit("5/minute", override_defaults=False)(inner)


@used("/ai/*3")
def a_blueprint_found_by_name(s: Shop) -> None:
    """A planner that looks its blueprints up in the app, and limits them in a loop."""
    s.app.register_blueprint(ai := Blueprint("ai", __name__, url_prefix="/ai"), url_prefix="/ai")
    del ai
    other = Blueprint("other", __name__, url_prefix="/ai")
    s.view("/", on=other)
    s.app.register_blueprint(other)
    for name in ("ai", "other", "missing"):
        if found := s.app.blueprints.get(name):
            s.limiter.limit("2/minute")(found)


@used("/page*3")
def a_class_with_decorators(s: Shop) -> None:
    """Flask-RESTful, flask-restx and GraphQL views with decorators = [...]."""

    class Page(View):
        decorators: ClassVar[list[Any]] = [s.limiter.limit("2/second")]

        def dispatch_request(self) -> str:
            return "page"

    s.app.add_url_rule("/page", view_func=Page.as_view("page"))


@used("/item*3 POST/item*2")
def a_class_with_limited_methods(s: Shop) -> None:
    """Resources with a decorator on one method."""

    class Item(MethodView):
        @s.limiter.limit("2/minute")
        def get(self) -> str:
            return "item"

        def post(self) -> str:
            return "item"

    s.app.add_url_rule("/item", view_func=Item.as_view("item"))


@used("/tags*3 POST/tags*2")
def a_class_with_a_limit_of_get(s: Shop) -> None:
    """A public register whose search has a limit of its own for GET."""

    class Tags(MethodView):
        decorators: ClassVar[list[Any]] = [s.limiter.limit("2/minute", methods=["GET"], key_func=by_client)]

        def get(self) -> str:
            return "tags"

        def post(self) -> str:
            return "tags"

    s.app.add_url_rule("/tags", view_func=Tags.as_view("tags"))


@used("/*3")
def a_decorator_around_a_limit(s: Shop) -> None:
    """Apps that wrap limiter.limit in a decorator of their own."""

    def api_limit(text: str) -> Any:
        def decorator(view: Any) -> Any:
            @s.limiter.limit(text, key_func=by_client)
            @wraps(view)
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                return view(*args, **kwargs)

            return wrapped

        return decorator

    s.view("/", api_limit("2/minute"))


@used("/*3")
def limited_after_it_was_registered(s: Shop) -> None:
    """Factories that put limits on app.view_functions of other packages."""
    s.view("/")
    s.app.view_functions["view_of_index"] = s.limiter.limit("2/minute")(s.app.view_functions["view_of_index"])


@used("/a*2 /b*2")
def a_limited_function(s: Shop) -> None:
    """Functions that are called by views, such as one that sends mail."""

    @s.limiter.limit("1/minute")
    def send() -> str:
        return "sent"

    s.app.get("/a", endpoint="a")(named("a", lambda: send()))
    s.app.get("/b", endpoint="b")(named("b", lambda: send()))


@used("/*4")
def a_limited_block(s: Shop) -> None:
    """Its documentation: a block that is left out when it is called too often."""

    @s.app.get("/")
    def index() -> str:
        try:
            with s.limiter.limit("2/second"):
                return "much"
        except s.lib.names.RateLimitExceeded:
            return "little"


# What a refusal is


@used("/*2")
def an_error_handler(s: Shop) -> None:
    """APIs that answer 429 as JSON."""
    s.app.errorhandler(429)(lambda error: (jsonify(error=f"ratelimit exceeded {error.description}"), 429))
    s.limited("/", "1/minute")


@used("/*2")
def an_error_handler_of_the_exception(s: Shop) -> None:
    """Apps that handle RateLimitExceeded, and show its limit."""

    @s.app.errorhandler(s.lib.names.RateLimitExceeded)
    def refused(error: Any) -> Any:
        return f"{error.limit.limit} {error.code} {error.limit.limit.amount}", 429

    s.limited("/", "1/minute", error_message="slowly")


@used("/*2")
def a_response_of_the_limit(s: Shop) -> None:
    """Log-in forms that are shown again, with a message."""
    s.limited("/", "1/minute", on_breach=lambda limit: make_response("the form", 429), error_message="wait")


@used("/*3")
def when_to_come_again(s: Shop) -> None:
    """Error pages that show when the limit ends, from current_limit."""

    @s.app.errorhandler(429)
    def refused(error: Any) -> Any:
        return f"in {max(0, s.limiter.current_limit.reset_at - int(time.time()))} s", 429

    s.limited("/", "2/minute")


@used("/*3", default_limits=["2/minute"])
def header_fields_of_the_app(s: Shop) -> None:
    """Apps that write header fields themselves, in after_request."""

    @s.app.after_request
    def add(response: Response) -> Response:
        if limit := s.limiter.current_limit:
            response.headers["X-RateLimit-Limit"] = str(limit.limit.amount)
            response.headers["X-RateLimit-Remaining"] = str(limit.remaining)
            response.headers["X-RateLimit-Reset"] = str(limit.reset_at - limit.limit.get_expiry())
        return response

    s.view("/")
    s.view("/free", s.limiter.exempt)


@used("/*3", RATELIMIT_HEADERS_ENABLED=True, RATELIMIT_HEADER_REMAINING="X-Left", strategy="moving-window")
def header_fields_by_other_names(s: Shop) -> None:
    """Apps that rename fields in the settings."""
    s.limited("/", "2/minute")


# Settings


@used("/*3 +31 /*2", strategy="moving-window", key_prefix="shop")
def a_moving_window(s: Shop) -> None:
    """Apps that choose the exact strategy, with a prefix."""
    s.limited("/", "2/minute")


@used("/*3", default_limits=["1/minute"])
def switched_off_later(s: Shop) -> None:
    """Fixtures that set limiter.enabled."""
    s.view("/")
    s.limiter.enabled = False


@used(
    "/*3", RATELIMIT_STORAGE_OPTIONS={}, in_memory_fallback_enabled=True, swallow_errors=True, default_limits=["2/hour"]
)
def settings_of_production(s: Shop) -> None:
    """Settings for production that swallow errors and have a fallback."""
    s.view("/")


@used("/a*3 /b*2", request_identifier=lambda: "all")
def one_name_for_all_views(s: Shop) -> None:
    """Apps that identify requests themselves."""
    s.limited("/a", "2/minute")
    s.limited("/b", "2/minute")


@used("/*2 +1 /*2", default_limits=["1/second"], meta_limits=["2/hour"])
def a_meta_limit(s: Shop) -> None:
    """Its documentation: clients that are refused often are kept out."""
    s.view("/")


@used("/own*2 /other*2", key_func=True)
def keys_of_each_limit_alone(s: Shop) -> None:
    """A book server: the Limiter has no key, and each limit its own."""
    s.limited("/own", "1/minute", key_func=by_client)
    s.limited("/other", "1/day", key_func=lambda: request.remote_addr)


# By hand


@used("POST/login?status=401*2 POST/login?status=200 POST/login?status=401*3")
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


@used("/token*2 /token?good /token*3", default_limits=["4/hour"], application_limits=["9/hour"], key_prefix="x")
def cleared_by_the_keys_of_limits(s: Shop) -> None:
    """A book server: a good token clears the storage's keys of default limits, and of those of the app."""

    @s.app.get("/token")
    def token() -> str:
        if "good" in request.args:
            for limit in s.limiter.current_limits:
                s.limiter.limiter.storage.clear(limit.key)
        return "ok"


@used("POST/login*2 POST/login?good POST/login*2")
def cleared_by_text_and_endpoint(s: Shop) -> None:
    """A shop clears by the text of the limit, the key and the endpoint, as the library joins them."""
    from limits import parse

    @s.app.post("/login")
    @s.limiter.limit("3 per 15 minutes", key_func=by_client, deduct_when=lambda response: response.status_code == 200)
    def login() -> str:
        if "good" in request.args:
            s.limiter.limiter.clear(parse("3 per 15 minutes"), by_client(), request.endpoint)
        return "ok"


@used("/*4 /@ann*2")
def failures_by_hand(s: Shop) -> None:
    """Services that count failures of an account beside the limit of the address."""
    from limits import parse

    failures = parse("2/15 minutes")

    @s.app.get("/")
    def index() -> Any:
        if not s.limiter.limiter.test(failures, "login-failures", by_client()):
            reset, left = s.limiter.limiter.get_window_stats(failures, "login-failures", by_client())
            return f"locked for {round(reset - time.time())}, {left} left", 423
        s.limiter.limiter.hit(failures, "login-failures", by_client())
        return "wrong password", 401


@used("/*3 /status /@ann")
def standing_by_hand(s: Shop) -> None:
    """Pages that show what is left of the limit of another view."""
    (item,) = (each.limit for each in s.limiter.limit("2/hour"))
    s.limited("/", "2/hour", cost=1, exempt_when=lambda: False)

    @s.app.get("/status")
    def status() -> str:
        return str(s.limiter.limiter.get_window_stats(item, "127.0.0.1", "view_of_index").remaining)


@used("/*4")
def a_limiter_on_the_storage(s: Shop) -> None:
    """A chat that counts in the storage itself."""

    @s.app.get("/")
    def index() -> Any:
        key = f"chat:send:{request.remote_addr}"
        if s.limiter.storage.incr(key, 60) > 2:
            return f"{s.limiter.storage.get(key)} in {round(s.limiter.storage.get_expiry(key) - time.time())} s", 429
        return "ok"


@used("/*2 /reset /*2", default_limits=["1/hour"])
def reset_all(s: Shop) -> None:
    """Fixtures and admin pages that reset everything."""
    s.view("/")
    s.app.get("/reset")(s.limiter.exempt(named("reset", lambda: str(s.limiter.reset()))))


@used("/*3")
def checked_in_before_request(s: Shop) -> None:
    """Blueprints that are limited by a function before each request."""

    @s.app.before_request
    @s.limiter.limit("2/minute")
    def check() -> None:
        return None

    s.view("/")
