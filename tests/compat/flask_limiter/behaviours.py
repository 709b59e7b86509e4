"""What an app can see of its Limiter: each function runs on Flask-Limiter and on our bridge, and tells what it saw."""

# mypy: disable-error-code="untyped-decorator"

import json
from collections.abc import Callable
from typing import Any

import flask
from flask import Blueprint, Response, current_app, g, make_response, request
from werkzeug.exceptions import BadRequest, TooManyRequests
from werkzeug.test import TestResponse

from support.limiters import Library, Shop, asked, by_client, named
from support.servers import Server, find_binaries

BOTH = ("GET", "POST")


NAMES = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "Retry-After")


def _fields(*names: str) -> Callable[[Library, TestResponse], str]:
    def tell(lib: Library, response: TestResponse) -> str:
        told = []
        for name in names:
            value = response.headers.get(name)
            if name.endswith("Reset") and value:
                value = f"+{int(value) - int(lib._now)}"
            told.append(str(value))
        return " ".join(told)

    return tell


def _code_and_limit(lib: Library, response: TestResponse) -> str:
    return f"{response.status_code} {response.headers.get('X-RateLimit-Limit')}"


def _text(lib: Library, response: TestResponse) -> str:
    return response.text


def _paragraph(lib: Library, response: TestResponse) -> str:
    return response.text.rpartition("<p>")[2].removesuffix("</p>\n")


def _is_free() -> bool:
    return "free" in request.args


def _function(s: Shop, name: str, limit: str, **options: Any) -> Any:
    return s.limiter.limit(limit, **options)(named(name, lambda: name))


# Limits of views


def text_forms(lib: Library) -> str:
    s = lib.shop()
    forms = ["1 per minute", "1/minute", "1 PER 2 Hours", "1/day;5 per month", "2/second, 1/minute", "1/2minutes|9/day"]
    forms += ["1 per 30 seconds", "1/year", "  1  /  hour  ", "1per10minutes", "2/1day; 1/0minute"]
    for number, form in enumerate(forms):
        s.limited(f"/{number}", form)
    return " | ".join(s.codes(f"/{number}*2") for number in range(len(forms)))


@asked("/", lambda lib, each: f"{each.status_code} {_fields(*NAMES)(lib, each)}", headers_enabled=True)
def limit_of_zero(s: Shop) -> None:
    s.limited("/", "0/minute")


@asked("/", _fields(*NAMES[1:]), headers_enabled=True)
def header_fields_when_the_cost_is_above_the_limit(s: Shop) -> None:
    s.limited("/", "2/minute", cost=3)


@asked("/?free / /?free", _fields(*NAMES[1:3]), headers_enabled=True)
def header_fields_of_a_response_that_is_not_deducted(s: Shop) -> None:
    s.limited("/", "2/minute", deduct_when=lambda response: not _is_free())


@asked("/*3 /@ann")
def a_refused_request_in_the_other_limits(s: Shop) -> None:
    s.view("/", s.limiter.limit("3/second", key_func=lambda: "everyone"), s.limiter.limit("1/minute"))


@asked("/a*3 /b*2", application_limits=["3/hour"])
def a_refused_request_in_the_limit_of_the_app(s: Shop) -> None:
    s.limited("/a", "1/hour")
    s.view("/b")


@asked("/?n=0 /?n=1 /?n=2 /?n=3")
def keys_that_are_no_text(s: Shop) -> None:
    given: list[Any] = [1, "1", b"1", 2.5]
    s.limited("/", "1/minute", key_func=lambda: given[int(request.args["n"])])


@asked("/*2", key_prefix=5)
def a_key_prefix_that_is_no_text(s: Shop) -> None:
    s.limited("/", "1/minute")


@asked("/*3")
def an_empty_key(s: Shop) -> None:
    s.limited("/", "1/minute", key_func=lambda: "")


@asked("/*3")
def a_key_of_zero(s: Shop) -> None:
    given: list[Any] = ["", 0, 0]
    s.limited("/", "1/minute", key_func=given.pop)


@asked("/*2")
def keys_that_are_objects(s: Shop) -> None:
    kept: list[Any] = []

    def key() -> Any:
        kept.append(object())
        return kept[-1]

    s.limited("/", "1/minute", key_func=key)


@asked(
    "/*2",
    default_limits="",
    application_limits="",
    meta_limits="",
    header_name_mapping="",
    request_identifier="",
    RATELIMIT_STORAGE_OPTIONS="",
)
def empty_text_in_place_of_arguments(s: Shop) -> None:
    s.view("/")


@asked("/?free /*3", default_limits=["2/minute"])
def a_function_that_overrides_defaults_after_one_that_does_not(s: Shop) -> None:
    keeping = _function(s, "keeping", "9/minute", override_defaults=False)
    overriding = _function(s, "overriding", "9/minute")
    s.app.get("/")(named("either", lambda: keeping() if _is_free() else overriding()))


def a_limit_without_a_key(lib: Library) -> str:
    s = lib.shop(key_func=True)
    s.limited("/own", "1/minute", key_func=by_client)
    try:
        s.limited("/", "1/minute")
    except ValueError:
        seen = "an error at import"
    else:
        seen = s.codes("/")
    assert s.codes("/own*2") == "200 429"
    return seen


@asked("/*3")
def limits_of_the_same_text(s: Shop) -> None:
    s.view("/", s.limiter.limit("4/minute"), s.limiter.limit("4/minute", error_message="no"))


@asked("/?n=9 /?n=4 /?n=1")
def a_cost_above_the_limit(s: Shop) -> None:
    s.limited("/", "4/minute", cost=lambda: int(request.args["n"]))


@asked("/*2", _text)
def exception_of_a_refusal(s: Shop) -> None:
    s.limited("/", "1/2days", cost=1)

    @s.app.errorhandler(s.lib.names.RateLimitExceeded)
    def refused(error: Any) -> Any:
        item = error.limit.limit
        told = [isinstance(error, TooManyRequests), error.code, error.description, error.response, str(item)]
        told += [item.amount, item.multiples, item.GRANULARITY.name, item.GRANULARITY.seconds, item.get_expiry()]
        told += [item.namespace, item.key_for("a", 1, b"c"), error.limit.cost, error.limit.shared, error.limit.methods]
        told += [error.limit.is_exempt, error.limit.method_exempt, error.limit.deduction_amount]
        told.append(error.limit.scope_for("index", "GET"))
        return json.dumps(told), 429


def limits_compare(lib: Library) -> str:
    limit = lib.shop().limiter.limit
    texts = ("1/minute", "1 per minute", "1 per 100 seconds", "2/minute")
    minute, same, longer, more = (single.limit for text in texts for single in limit(text))
    return str([minute == same, hash(minute) == hash(same), longer < minute, minute < more, minute == 1])


@asked("/*2")
def async_views(s: Shop) -> None:
    @s.app.get("/")
    @s.limiter.limit("1/minute")
    async def index() -> str:
        return "ok"


# Default limits


@asked(
    "/?bad*2 /*3 POST/*3 /?free",
    default_limits=["4/minute"],
    default_limits_per_method=True,
    default_limits_exempt_when=_is_free,
    default_limits_deduct_when=lambda response: response.status_code != 400,
    default_limits_cost=2,
)
def default_limits_with_options(s: Shop) -> None:
    @s.app.route("/", methods=BOTH)
    def index() -> str:
        if "bad" in request.args:
            raise BadRequest
        return "ok"


def default_limits_as_objects(lib: Library) -> str:
    limit = lib.names.Limit(
        "1/minute",
        key_function=by_client,
        methods=["GET"],
        per_method=True,
        error_message="no",
        exempt_when=_is_free,
        scope="x",
        cost=1,
        deduct_when=None,
        on_breach=None,
        meta_limits=None,
        shared=False,
    )
    s = lib.shop(default_limits=[limit, lib.names.Limit("3/minute")], default_limits_cost=3)
    s.view("/", methods=BOTH)
    return s.codes("/*2 /?free*2 POST/*2")


@asked("/static/nothing.css*2 /files/a.css*2 /nowhere*2", default_limits=["1/minute"], application_limits=["1/minute"])
def no_limits_for_static_files(s: Shop) -> None:
    s.app.add_url_rule("/files/<path:filename>", "files.static", lambda filename: filename)


# Limits of the application


@asked(
    "/a?free*2 /b?not*2 /a /b /a POST/a",
    application_limits=["4/minute"],
    application_limits_per_method=True,
    application_limits_exempt_when=_is_free,
    application_limits_deduct_when=lambda response: "not" not in request.args,
    application_limits_cost=lambda: 2,
)
def application_limits_with_options(s: Shop) -> None:
    s.view("/a", methods=BOTH)
    s.view("/b", methods=BOTH)


def application_limits_as_objects(lib: Library) -> str:
    limit = lib.names.ApplicationLimit("1/minute", key_function=by_client, scope="part", error_message="no")
    s = lib.shop(application_limits=[limit])
    s.view("/a")
    s.view("/b")
    return s.codes("/a /b /a@eve")


@asked("/a*3", application_limits=["2/minute"])
def application_limits_before_the_view(s: Shop) -> None:
    s.view("/a", lambda view: lambda: ("no", 403), s.limiter.limit("10/minute"))


# Blueprints


def _nested(s: Shop) -> tuple[Blueprint, Blueprint]:
    """A blueprint with /p/a, and one within it with /p/c/b."""
    parent, child = Blueprint("parent", __name__, url_prefix="/p"), Blueprint("child", __name__, url_prefix="/c")
    s.view("/a", on=parent)
    s.view("/b", on=child)
    parent.register_blueprint(child)
    s.app.register_blueprint(parent)
    return parent, child


@asked("/shop/a*4 /shop/b*4 /shop/own*4 /shop/both*4", default_limits=["1/minute"])
def limits_of_a_blueprint(s: Shop) -> None:
    shop = Blueprint("shop", __name__, url_prefix="/shop")
    s.view("/a", on=shop)
    s.view("/b", on=shop)
    s.view("/own", s.limiter.limit("3/minute"), on=shop)
    s.view("/both", s.limiter.limit("3/minute", override_defaults=False), on=shop)
    s.app.register_blueprint(shop)
    s.limiter.limit("2/minute")(shop)


@asked("/p/c/b*2 +61 /p/c/b /p/a", default_limits=["1/minute"])
def limits_of_a_blueprint_beside_the_default_ones(s: Shop) -> None:
    _, child = _nested(s)
    s.limiter.limit("2/hour", override_defaults=False)(child)


@asked("/p/c/b*3")
def limits_of_a_blueprint_beside_those_of_its_parent(s: Shop) -> None:
    parent, child = _nested(s)
    s.limiter.limit("1/minute")(parent)
    s.limiter.limit("2/minute")(child)
    s.limiter.limit("9/hour", override_defaults=False)(child)


# Exemptions of views


@asked("/above*2 /below*2")
def exempt_above_and_below_a_limit(s: Shop) -> None:
    s.view("/above", s.limiter.exempt, s.limiter.limit("1/minute"))
    s.view("/below", s.limiter.limit("1/minute"), s.limiter.exempt)


def exemptions_after_the_first_request(lib: Library) -> str:
    s = lib.shop(default_limits=["1/minute"])
    view = s.view("/")
    seen = s.codes("/*2")
    s.limiter.exempt(view)
    return seen + " | " + s.codes("/*2")


# Limits that depend on the request


@asked("/*2")
def callable_that_reads_what_a_decorator_set(s: Shop) -> None:
    def find(view: Any) -> Any:
        def found() -> Any:
            g.limit = "1/minute"
            return view()

        return found

    s.view("/", find, s.limiter.limit(lambda: g.limit))


@asked("/?limit=1/minute*2 /?limit=1/min /?limit=nonsense")
def callable_that_returns_malformed_limits(s: Shop) -> None:
    s.limited("/", lambda: request.args["limit"])


@asked("/*2", default_limits=["1/minute"])
def callable_that_never_returns_a_limit(s: Shop) -> None:
    s.limited("/", lambda: "1/min")


@asked("/?who=ann /?who=bob")
def callable_of_limits_that_raises(s: Shop) -> None:
    limits = {"ann": "1/minute"}
    s.limited("/", lambda: limits[request.args["who"]])


def text_that_is_no_limit(lib: Library) -> str:
    return _with_text(lib, "2/min") + " | " + _with_text(lib, "ten per minute")


def a_very_large_amount(lib: Library) -> str:
    return _with_text(lib, "1000000001/day")


def a_window_of_years(lib: Library) -> str:
    return _with_text(lib, "1/year") + " | " + _with_text(lib, "1 per 3 years")


def _with_text(lib: Library, text: str) -> str:
    s = lib.shop()
    try:
        s.limited("/", text)
    except ValueError:
        return "an error at import"
    return s.codes("/*3")


# Functions that are no views


@asked("/send*4 /store*4", default_limits=["3/minute"])
def decorated_functions(s: Shop) -> None:
    send, store = _function(s, "send", "2/minute"), _function(s, "store", "2/minute", override_defaults=False)
    s.app.get("/send", endpoint="send")(lambda: send())
    s.app.get("/store", endpoint="store")(lambda: store())


@asked("/*2")
def two_functions_in_one_view(s: Shop) -> None:
    send, store = _function(s, "send", "1/minute"), _function(s, "store", "1/minute")
    s.app.get("/")(lambda: send() + store())


@asked("/*2 POST/", default_limits=["2/hour"])
def a_default_limit_with_the_text_of_another(s: Shop) -> None:
    s.view("/", s.limiter.limit("2/hour", methods=["GET"]), methods=BOTH)


@asked("/True?send /True*3 /False?send /False*3", default_limits=["2/minute"])
def functions_that_are_called_by_some_requests(s: Shop) -> None:
    for overrides in (True, False):
        send = _function(s, f"send{overrides}", "9/minute", override_defaults=overrides)
        s.app.get(f"/{overrides}", endpoint=f"{overrides}")(
            lambda send=send: send() if "send" in request.args else "ok"
        )


@asked("/*3")
def functions_with_different_limits_in_one_view(s: Shop) -> None:
    send, store = _function(s, "send", "9/minute"), _function(s, "store", "2/minute")
    s.app.get("/")(lambda: send() + store())


@asked("/shop/*3")
def functions_in_the_view_of_a_limited_blueprint(s: Shop) -> None:
    shop = Blueprint("shop", __name__, url_prefix="/shop")
    send = _function(s, "send", "9/minute", override_defaults=False)
    shop.get("/")(s.limiter.limit("9/minute", override_defaults=False)(named("index", lambda: send() + send())))
    s.app.register_blueprint(shop)
    s.limiter.limit("2/minute")(shop)


@asked("/*3", default_limits=["2/minute"])
def functions_beside_default_limits_in_an_exempt_view(s: Shop) -> None:
    send = _function(s, "send", "9/minute", override_defaults=False)
    s.app.get("/")(s.limiter.exempt(named("index", lambda: send())))


@asked("/*3")
def functions_made_at_each_request(s: Shop) -> None:
    s.app.get("/")(lambda: _function(s, "inner", "2/minute")())


def with_statements(lib: Library) -> str:
    s = lib.shop()

    @s.app.get("/")
    def index() -> str:
        with s.limiter.limit("3/minute"):
            text = "a"
        try:
            with s.limiter.limit("1/hour"):
                text += "b"
        except lib.names.RateLimitExceeded:
            text += "-"
        return text

    return s.told("/*3", _text) + " " + s.codes("/")


@asked("/over?send@ann /over*3 /beside?send@ann /beside*3", default_limits=["2/minute"])
def with_statements_that_some_requests_enter(s: Shop) -> None:
    @s.app.get("/over")
    def over() -> str:
        if "send" in request.args:
            with s.limiter.limit("9/minute"):
                return "sent"
        return "ok"

    @s.app.get("/beside")
    def beside() -> str:
        if "send" in request.args:
            with s.limiter.limit("9/minute", override_defaults=False):
                return "sent"
        return "ok"


@asked("/1*2 /2*2", default_limits=["9/minute"])
def with_statements_by_part(s: Shop) -> None:
    @s.app.get("/<int:part>")
    def index(part: int) -> str:
        with s.limiter.limit(lambda: "1/minute", scope=part, key_func=lambda: "everyone"):
            return "ok"


@asked("/*2")
def limits_put_on_a_registered_view(s: Shop) -> None:
    s.limiter.limit("1/minute")(s.view("/"))


@asked("/*2 /b*2")
def limits_put_on_a_registered_method(s: Shop) -> None:
    class Page:
        def show(self) -> str:
            return "ok"

    page, other = Page(), Page()
    s.app.add_url_rule("/", "page", page.show)
    s.app.add_url_rule("/b", "other", other.show)
    s.limiter.limit("1/minute")(page.show)


def limits_added_to_a_limited_view(lib: Library) -> str:
    s = lib.shop()
    limited = s.limited("/", "9/minute")
    seen = s.codes("/")
    s.limiter.limit("1/hour")(limited)
    return seen + " | " + s.codes("/*2")


@asked("/a*3 /b*3", default_limits=["1/minute"])
def route_limits(s: Shop) -> None:
    s.view("/a", s.lib.names.RouteLimit("2/minute", limiter=s.limiter))
    s.view("/b", s.lib.names.RouteLimit("2/minute", limiter=s.limiter, override_defaults=True))


# Charges that depend on the response


def deduct_when(lib: Library) -> str:
    s = lib.shop(headers_enabled=True)
    s.limited("/", "2/minute", deduct_when=lambda response: response.status_code == 401)
    left = s.told("/?status=200*2 /?status=401", _fields("X-RateLimit-Remaining"))
    return left + " | " + s.codes("/?status=401*2 /?status=200")


@asked("/*3", _fields("X-RateLimit-Remaining"), headers_enabled=True)
def header_fields_after_a_refund_of_a_limit_that_the_view_has_read(s: Shop) -> None:
    @s.app.get("/")
    @s.limiter.limit("2/minute", deduct_when=lambda response: False)
    def view() -> str:
        return str(s.limiter.current_limit.limit if s.limiter.current_limit.remaining else "")


@asked("/?status=404 /?status=200 /?status=404 /?status=400 /?status=404")
def deduct_when_of_limits_with_one_quota(s: Shop) -> None:
    good = s.limiter.limit("2/minute", deduct_when=lambda response: response.status_code == 200)
    bad = s.limiter.limit("2/minute", deduct_when=lambda response: response.status_code == 400)
    s.view("/", good, bad)


@asked("/ / / /", _text)
def deduct_when_of_a_refusal(s: Shop) -> None:
    s.app.errorhandler(429)(lambda error: (error.description, 429))
    failed = s.limiter.limit("2/minute", deduct_when=lambda response: response.status_code == 429)
    s.view("/", failed, s.limiter.limit("1/hour"))


@asked("/1", _text)
def requests_at_once_with_deduct_when(s: Shop) -> None:
    @s.app.get("/<int:depth>")
    @s.limiter.limit("1/minute", deduct_when=lambda response: True)
    def index(depth: int) -> str:
        return f"200 {s.codes(f'/{depth - 1}')}" if depth else "200"


# What a refusal sets off


def on_breach(lib: Library) -> str:
    told: list[str] = []

    def everywhere(limit: Any) -> Any:
        told.append(f"all {limit.limit}")
        return make_response("all", 429) if "all" in request.args else None

    def here(limit: Any) -> Any:
        told.append(f"one {limit.limit} {limit.breached} {limit.key}")
        return make_response("one", 420) if "one" in request.args else "no response"

    s = lib.shop(on_breach=everywhere)
    s.limited("/", "1/day", on_breach=here)
    seen = s.told("/*2 /?all /?one /?all&one", lambda lib, each: f"{each.status_code} {each.text[:3]}")
    return seen + " | " + "; ".join(told[:2])


@asked("/*2", fail_on_first_breach=False)
def an_on_breach_beside_another_that_sends_nothing(s: Shop) -> None:
    quiet = s.limiter.limit("1/day", on_breach=lambda limit: None)
    s.view("/", quiet, s.limiter.limit("1/hour", on_breach=lambda limit: make_response("one", 420)), quiet)


def an_on_breach_that_raises(lib: Library) -> str:
    seen = []
    for swallow in (False, True):
        s = lib.shop(swallow_errors=swallow)
        s.limited("/", "1/day", on_breach=lambda limit: 1 / 0)
        seen.append(s.codes("/*2"))
    return " | ".join([*seen, *lib.logged("ERROR")])


def log_line_of_a_refusal(lib: Library) -> str:
    s = lib.shop(key_prefix="p")
    s.limited("/", "1/day")
    return s.codes("/*2") + " " + "; ".join(lib.logged("INFO"))


def fail_on_first_breach(lib: Library) -> str:
    seen = []
    for first in (True, False):
        told: list[Any] = []
        s = lib.shop(fail_on_first_breach=first, on_breach=told.append)
        s.limited("/", "1/minute; 1/hour; 1/day")
        s.app.errorhandler(429)(lambda error: (error.description, 429))
        shown: list[Any] = []

        @s.app.after_request
        def note(response: Response, limiter: Any = s.limiter, shown: list[Any] = shown) -> Response:
            shown[:] = limiter.current_limits
            return response

        text = s.told("/*2", _text)
        seen.append(f"{text}, {len(told)} told, {[str(each.limit) for each in shown if each.breached]} of {len(shown)}")
    return " | ".join(seen)


# Meta limits


def meta_limits(lib: Library) -> str:
    s = lib.shop(
        default_limits=["1/second"],
        meta_limits=["2/minute", lib.names.MetaLimit("3/hour"), lambda: "9/day"],
        on_meta_breach=lambda limit: make_response(f"meta {limit.limit} {limit.breached}", 429),
        headers_enabled=True,
    )
    s.view("/")
    s.view("/free", s.limiter.exempt)
    seen = [s.codes("/*2 +1 /*2 +1 /*2 +1")]
    seen.append(s.told("/", lambda lib, each: f"{each.text} {_fields(*NAMES[:2])(lib, each)}"))
    seen.append(s.codes("/free /@ann +60 /*3 +60"))
    return " | ".join([*seen, s.told("/", _text)])


def meta_limits_of_a_limit(lib: Library) -> str:
    s = lib.shop()
    meta = lib.names.MetaLimit(
        "1/hour",
        key_function=by_client,
        on_breach=lambda limit: make_response("meta", 429),
        exempt_when=_is_free,
        scope="own",
    )
    s.limited("/a", "1/second", meta_limits=[meta])
    s.limited("/b", "1/second", meta_limits=["1/hour"])
    s.limited("/c", "1/second")
    seen = s.codes("/a*2 /b*2 /c*2 +1 /a*2 /b*2 /c*2 +1")
    return " | ".join([seen, s.told("/a", _text), s.codes("/a?free +1 /a@eve")])


ELSEWHERE = "/unlimited /exempt /spared /nowhere /static/none POST/"


@asked(f"/ {ELSEWHERE} /*2 {ELSEWHERE}", meta_limits=["1/hour"])
def meta_limits_refuse_at_every_place(s: Shop) -> None:
    """A client that a meta limit refuses is refused at places without limits, too."""
    s.limited("/", "1/minute")
    s.view("/unlimited")
    s.view("/exempt", s.limiter.exempt)
    s.view("/spared", s.limiter.exempt(flags=s.lib.names.ExemptionScope.META))


@asked("/spared*3 +61 /spared /", _paragraph, application_limits=["1/minute"], meta_limits=["1/hour"])
def meta_limits_count_refusals_where_they_spare(s: Shop) -> None:
    s.view("/spared", s.limiter.exempt(flags=s.lib.names.ExemptionScope.META))
    s.view("/")


def meta_limits_with_a_cost(lib: Library) -> str:
    s = lib.shop(meta_limits=[lib.names.MetaLimit("3/hour", cost=2)])
    s.limited("/", "1/second")
    return s.codes("/*2 +1 /*2 +1 /*2 +1 /*2")


@asked("/*2", meta_limits=["0/hour"])
def meta_limit_of_zero(s: Shop) -> None:
    s.view("/")


@asked("/*4", _paragraph, meta_limits=["2/minute"])
def meta_limit_of_a_limit_of_zero(s: Shop) -> None:
    s.limited("/", "0/hour")


def callbacks_and_body_of_meta_limits(lib: Library) -> str:
    told: list[str] = []
    s = lib.shop(
        key_prefix="shop",
        default_limits=["1/second"],
        meta_limits=[lib.names.MetaLimit("1/minute", error_message="too often")],
        on_meta_breach=lambda limit: told.append(f"{limit.request_args} {limit.key} {limit.remaining}"),
        on_breach=lambda limit: told.append(f"{limit.limit}"),
    )
    s.view("/")
    return " | ".join([s.told("/*3", _paragraph), *told])


@asked("/*3", _paragraph, fail_on_first_breach=False)
def meta_limits_of_limits_that_refuse_together(s: Shop) -> None:
    daily = s.lib.names.MetaLimit("1/day", scope="daily")
    one = s.limiter.limit("1/second", meta_limits=[daily])
    s.view("/", s.limiter.limit("1/minute", meta_limits=["1/hour"]), one)


@asked("/*2 +61 /")
def meta_limits_of_a_limit_beside_another_that_refuses(s: Shop) -> None:
    s.view("/", s.limiter.limit("1/minute"), s.limiter.limit("9/minute", meta_limits=["1/hour"]))


def meta_limits_during_an_outage(lib: Library) -> str:
    options: dict[str, Any] = {"meta_limits": ["1/minute"], "in_memory_fallback": ["1/second"]}
    return _outage(lib, **options)


def meta_limits_by_hand(lib: Library) -> str:
    s = lib.shop(meta_limits=["1/hour"])
    s.limited("/", "1/minute")
    with s.app.test_request_context():
        (meta,) = lib.names.MetaLimit("1/hour").bind(s.limiter)
        identifiers = ("127.0.0.1", "meta")
        seen = [s.limiter.limiter.test(meta.limit, *identifiers)]
        s.limiter.limiter.hit(meta.limit, *identifiers)
        seen.append(s.limiter.limiter.test(meta.limit, *identifiers))
        s.codes("/*2")
        assert not s.limiter.limiter.test(meta.limit, *identifiers)
        s.limiter.limiter.clear(meta.limit, *identifiers)
        seen.append(s.limiter.limiter.test(meta.limit, *identifiers))
    return " | ".join(map(str, seen))


@asked("/*3 +61 /?clear*2", meta_limits=["1/hour"])
def a_meta_limit_cleared_by_its_key(s: Shop) -> None:
    s.limited("/", "1/minute")

    @s.app.errorhandler(429)
    def refused(error: Any) -> Any:
        if "clear" in request.args:
            s.limiter.storage.clear(s.limiter.current_limit.key)
        return error.description, 429


@asked("/*2 +20 /*2 +1 /*2 +38 /*2 +2 /*2 +20 /*2", meta_limits=["2/minute"])
def the_end_of_a_meta_limit(s: Shop) -> None:
    s.limited("/", "1/second")


@asked(
    "/*2 +61 /*2 +61 /?strict*2 +61 /",
    meta_limits=[lambda: "1/hour" if "strict" in request.args else "9/hour"],
)
def meta_limits_by_request(s: Shop) -> None:
    s.limited("/", "1/minute")


@asked("/*3 /other", meta_limits=["2/hour"])
def refusals_while_a_meta_limit_holds(s: Shop) -> None:
    s.limited("/", "1/hour", meta_limits=["1/hour"])
    s.view("/other")


@asked("/*3", _fields("Retry-After"), meta_limits=["1/minute"], headers_enabled=True)
def retry_after_of_the_last_strike(s: Shop) -> None:
    s.limited("/", "1/second")


@asked("/*2 +1 /")
def meta_limits_of_a_blueprint(s: Shop) -> None:
    shop = Blueprint("shop", __name__)
    s.view("/", on=shop)
    s.limiter.limit("1/second", meta_limits=["1/hour"])(shop)
    s.app.register_blueprint(shop)


def meta_limits_by_method(lib: Library) -> str:
    s = lib.shop(meta_limits=[lib.names.MetaLimit("1/hour", per_method=True)])
    s.view("/", s.limiter.limit("1/second"), methods=BOTH)
    return s.codes("/*2 +1 /*2 +1 POST/*2")


def request_filter_during_a_meta_limit(lib: Library) -> str:
    s = lib.shop(meta_limits=["1/hour"])
    s.limiter.request_filter(_is_free)
    s.limited("/", "1/minute")
    seen = s.codes("/*2 /?free")
    s.limiter.enabled = False
    return seen + " | " + s.codes("/")


@asked("/*3")
def deduct_when_that_raises(s: Shop) -> None:
    s.limited("/", "2/minute", deduct_when=lambda response: response.is_deducted)


@asked("/free /")
def request_filter_where_nothing_is_limited(s: Shop) -> None:
    s.limiter.request_filter(lambda: request.args["plan"] == "internal")
    s.view("/free")
    s.limited("/", "2/minute")


@asked("/limited*3 /other*3", default_limits=["2/minute"])
def a_view_named_like_a_limited_one(s: Shop) -> None:
    for path, *decorators in (("/limited", s.limiter.limit("1/minute")), ("/other",)):
        function = named("same", lambda: "ok")
        for decorator in decorators:
            function = decorator(function)
        s.app.add_url_rule(path, path.strip("/"), function)


def alternating_decorators_of_two_limiters(lib: Library) -> str:
    s = lib.shop()
    other = lib.limiter(s.app)
    s.view("/", s.limiter.limit("3/minute"), other.limit("9/minute"), s.limiter.limit("9/hour"))
    return s.codes("/*4")


def a_limiter_in_two_apps(lib: Library) -> str:
    limiter = lib.names.Limiter(lib.util.get_remote_address, application_limits=["3/minute"])
    apps = [lib.app(f"shop{number}", RATELIMIT_DEFAULT=f"{number}/minute") for number in (1, 2)]
    for app in apps:
        limiter.init_app(app)
        lib.freeze(app)
    shops = [Shop(lib, app, limiter) for app in apps]
    for s in shops:
        s.view("/")
    return " | ".join(s.codes("/*3") for s in shops)


def a_meta_limit_of_thousands(lib: Library) -> str:
    try:
        lib.names.MetaLimit("1001/day")
    except ValueError as error:
        return str(error)
    return "none"


# Header fields


@asked("/ /", _fields(*NAMES[:3], "RateLimit", "RateLimit-Policy"))
def no_header_fields_by_default(s: Shop) -> None:
    s.limited("/", "1/minute")


@asked("/ /", _fields("Retry-After"))
def retry_after_without_header_fields(s: Shop) -> None:
    s.limited("/", "1/minute")


@asked("/ /", _fields("Cache-Control"))
def caching_of_a_refusal(s: Shop) -> None:
    s.limited("/", "1/minute")


@asked("/ +20 / / /app /nowhere", _fields(*NAMES), headers_enabled=True, application_limits=["60/minute"])
def header_fields(s: Shop) -> None:
    s.limited("/", "2/minute; 9/hour")
    s.view("/app")


def header_names(lib: Library) -> str:
    names = lib.names.HeaderNames
    mapping = {names.LIMIT: "X-Limit", names.REMAINING: "X-Left", names.RETRY_AFTER: "X-Wait"}
    s = lib.shop(RATELIMIT_HEADER_RESET="X-Reset", headers_enabled=True, header_name_mapping=mapping)
    s.limited("/", "2/minute")
    return s.told("/", _fields("X-Limit", "X-Left", "X-Reset", "X-Wait"))


@asked(
    "/",
    _fields("X-Limit", "X-Left", "X-RateLimit-Reset", "X-Wait"),
    RATELIMIT_HEADERS_ENABLED=True,
    RATELIMIT_HEADER_LIMIT="X-Limit",
    RATELIMIT_HEADER_REMAINING="X-Left",
    RATELIMIT_HEADER_RETRY_AFTER="X-Wait",
    RATELIMIT_HEADER_RETRY_AFTER_VALUE="http-date",
)
def header_names_by_setting(s: Shop) -> None:
    s.limited("/", "2/minute")


@asked("/ /", _fields("Retry-After"), headers_enabled=True, retry_after="http-date")
def retry_after_as_a_date(s: Shop) -> None:
    s.limited("/", "1/minute")


@asked("/?1000 /?5 /?Sun,+06+Nov+2033+01:01:01+GMT", _fields("Retry-After"), headers_enabled=True)
def a_retry_after_of_the_view(s: Shop) -> None:
    @s.app.get("/")
    @s.limiter.limit("9/minute")
    def index() -> Any:
        return "", {"Retry-After": next(iter(request.args))}


@asked("/", _fields("X-RateLimit-Remaining"), headers_enabled=True)
def header_fields_after_a_slow_view(s: Shop) -> None:
    @s.app.get("/")
    @s.limiter.limit("2/second")
    def index() -> str:
        s.lib.advance(2)
        return "ok"


@asked("/ +10 / +10 /", _fields(*NAMES), headers_enabled=True, strategy="moving-window")
def header_fields_of_a_moving_window(s: Shop) -> None:
    s.limited("/", "2/minute")


@asked("/ +10 / +10 /", _fields(*NAMES), headers_enabled=True, strategy="sliding-window-counter")
def header_fields_of_the_sliding_window_counter(s: Shop) -> None:
    s.limited("/", "2/minute")


# Strategies


def _four_a_minute(s: Shop) -> None:
    s.limited("/", "4/minute")


fixed_window = asked("/ +50 /*4 +10 /*5", strategy="fixed-window")(_four_a_minute)
moving_window = asked("/*2 +50 /*3 +10.5 /*3 +49 /*2 +1 /*2", strategy="moving-window")(_four_a_minute)
moving_window_at_its_edge = asked("/*4 +60 /", strategy="moving-window")(_four_a_minute)
sliding_window_counter = asked("/*4 +1 / +150 /*2", strategy="sliding-window-counter")(_four_a_minute)
windows_of_the_sliding_window_counter = asked("+45 /*4 +30 /*3 +30 /*3", strategy="sliding-window-counter")(
    _four_a_minute
)


def unknown_strategy(lib: Library) -> str:
    return _raised(lib, RATELIMIT_STRATEGY="leaky")


def _raised(lib: Library, **config: Any) -> str:
    try:
        lib.limiter(lib.app(**config))
    except Exception as error:
        return f"{type(error).__module__.partition('.')[0]}.{type(error).__name__}"
    return "nothing"


# Storages


def memcached(lib: Library) -> str:
    return _raised(lib, RATELIMIT_STORAGE_URI="memcached://127.0.0.1:1").partition(".")[0]


def unknown_storage(lib: Library) -> str:
    return _raised(lib, RATELIMIT_STORAGE_URI="tape://")


def storage_of_an_app(lib: Library) -> str:
    s = lib.shop()
    s.limited("/", "1/minute")
    seen = f"{s.limiter.storage.check()} {s.codes('/*2')}"
    s.limiter.storage.reset()
    return seen + " | " + s.codes("/")


def default_storage(lib: Library) -> str:
    import warnings

    app = lib.app(RATELIMIT_STORAGE_URI=None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lib.limiter(app)
    return f"{sum('in-memory' in str(each.message) for each in caught)} warning"


def two_limiters_with_two_storages(lib: Library) -> str:
    app = lib.app()
    lib.limiter(app)
    try:
        lib.names.Limiter(lib.util.get_remote_address, app=app, storage_uri="redis://127.0.0.1:1")
    except ValueError:
        return "an error"
    return "both"


def reset(lib: Library) -> str:
    s = lib.shop(default_limits=["1/minute"], key_prefix="p")
    s.view("/")
    seen = s.codes("/*2")
    s.limiter.reset()
    return " | ".join([seen, s.codes("/"), *lib.logged("INFO")[-1:]])


def limits_checked_by_hand(lib: Library) -> str:
    s = lib.shop(strategy="moving-window")
    (single,) = s.limiter.limit("3/minute")
    item = single.limit
    with s.app.test_request_context():
        hand = s.limiter.limiter
        told = [hand.hit(item, "ann", "mail"), round(hand.get_window_stats(item, "ann", "mail")[0] - lib._now)]
        lib.advance(10)
        told += [hand.hit(item, "ann", "mail", cost=2), hand.hit(item, "ann", "mail")]
        told += [hand.test(item, "ann", "mail"), hand.test(item, "bob", "mail", cost=3), hand.test(item, "bob", cost=4)]
        stats = hand.get_window_stats(item, "ann", "mail")
        told += [stats.remaining, round(stats.reset_time - lib._now)]
        hand.clear(item, "ann", "mail")
        told += [hand.get_window_stats(item, "ann", "mail")[1]]
    return str(told)


# Of the current request


def counters_of_the_app(lib: Library) -> str:
    s = lib.shop()
    store, told = s.limiter.storage, list[Any]()
    with s.app.app_context():
        told += [store.get("mail"), store.incr("mail", 60), store.incr("mail", 60), store.incr("mail", 60, amount=3)]
        told += [store.get("mail"), round(store.get_expiry("mail") - lib._now), store.incr("post", 5000)]
        store.clear("mail")
        told += [store.get("mail"), store.get("post"), s.limiter.limiter.storage.get("post"), store.incr("mail", 7)]
        lib.advance(7)
        told += [store.get("mail"), store.incr("mail", 60), store.get("mail"), store.get("post")]
    return str(told)


def quotas_by_the_key_of_a_limit(lib: Library) -> str:
    s, seen = lib.shop(key_prefix="p", key_func=by_client, default_limits=["2/minute", "5000/day"]), []
    s.view("/")

    @s.app.after_request
    def note(response: Response) -> Response:
        for limit in s.limiter.current_limits:
            seen.append(f"{s.limiter.storage.get(limit.key)} of {limit.limit.amount}")
            if "clear" in request.args:
                s.limiter.limiter.storage.clear(limit.key)
        return response

    return s.codes("/@eve*2 /?clear*2 /") + f" {seen}"


@asked("/*2 /free", _text)
def current_limits(s: Shop) -> None:
    def tell() -> str:
        shown = s.limiter.current_limit
        return " ".join(
            [str(shown and (shown.limit, shown.breached)), *(_stand(s.lib, each) for each in s.limiter.current_limits)]
        )

    s.app.get("/")(s.limiter.limit("3/minute;2/hour")(s.limiter.shared_limit("5/second", "x")(tell)))
    s.app.get("/free", endpoint="free")(lambda: tell())


def _stand(lib: Library, limit: Any) -> str:
    seconds = limit.reset_at - int(lib._now)
    return f"({limit.limit}: {limit.remaining} {seconds} {limit.breached} {limit.shared})"


@asked("/*2", _text)
def current_limits_of_a_refusal(s: Shop) -> None:
    s.limited("/", "9/minute;1/hour")

    @s.app.errorhandler(429)
    def tell(error: Any) -> Any:
        shown = [s.limiter.current_limit, *s.limiter.current_limits]
        return " ".join(_stand(s.lib, each) for each in shown), 429


@asked("/", _text, key_prefix="p")
def attributes_of_a_request_limit(s: Shop) -> None:
    @s.app.get("/", endpoint="index")
    @s.limiter.limit("3/minute")
    def index() -> str:
        limit = s.limiter.current_limit
        told = [limit.key, limit.request_args, limit.window.remaining, round(limit.window.reset_time - s.lib._now)]
        told += [limit.limit.amount, limit.extension.limiter is not None, limit.limiter is not None]
        told.append(s.limiter.limiter.get_window_stats(limit.limit, *limit.request_args).remaining)
        return str(told)


@asked("/", lambda lib, each: each.text + each.headers["X-Limits"])
def context_of_the_request(s: Shop) -> None:
    s.app.get("/")(s.limiter.limit("3/minute")(lambda: str(s.limiter.context.view_rate_limit.remaining)))

    @s.app.after_request
    def note(response: Response) -> Response:
        response.headers["X-Limits"] = str(len(s.limiter.context.view_rate_limits))
        return response


def identify_request(lib: Library) -> str:
    s = lib.shop(request_identifier=lambda: request.path)
    s.app.get("/<part>")(s.limiter.limit("1/minute")(lambda part: s.limiter.identify_request()))
    seen = s.told("/a /b", _text) + " " + s.codes("/a")
    with lib.app().test_request_context():
        unknown = lib.names.Limiter(lib.util.get_remote_address).identify_request()
    return f"{seen} {unknown!r}"


# Apps


def init_app(lib: Library) -> str:
    limiter = lib.names.Limiter(lib.util.get_remote_address, default_limits=["1/minute"], storage_uri="memory://")
    seen = [str(limiter.initialized)]
    own = limiter.limit("2/minute")(named("own", lambda: "ok"))
    for name in ("first", "second"):
        s = Shop(lib, lib.app(name), limiter)
        limiter.init_app(s.app)
        lib.freeze(s.app)
        s.app.get("/own")(own)
        s.view("/")
        seen.append(s.codes("/*2 /own*3"))
    seen.append(f"{limiter.initialized} {limiter.enabled} {limiter in s.app.extensions['limiter']}")
    return " | ".join(seen)


def a_limiter_of_the_current_app(lib: Library) -> str:
    limiter = lib.names.Limiter(lib.util.get_remote_address, app=current_app, storage_uri="memory://")
    s = Shop(lib, lib.app(), limiter)
    with s.app.app_context():
        limiter.init_app(current_app)
    s.limited("/", "1/minute")
    return s.codes("/*2")


def limiter_without_an_app(lib: Library) -> str:
    limiter = lib.names.Limiter(lib.util.get_remote_address, default_limits=["1/minute"])
    s = Shop(lib, lib.app(), limiter)
    s.limited("/", "1/minute")
    return s.codes("/*2")


def switched_off(lib: Library) -> str:
    seen = []
    switches: tuple[dict[str, Any], ...] = ({"RATELIMIT_ENABLED": False}, {"enabled": False})
    for switch in switches:
        s = lib.shop(default_limits=["1/minute"], RATELIMIT_STORAGE_URI="tape://", **switch)
        s.limited("/", "1/minute")
        known = "limiter" in s.app.extensions
        seen.append(f"{s.codes('/*2')} {s.limiter.enabled} {s.limiter.initialized} {known}")
    return " | ".join(seen)


def switched_off_and_on(lib: Library) -> str:
    s = lib.shop(headers_enabled=True, application_limits=["5/minute"])
    s.limited("/", "1/minute")
    s.limiter.enabled = False
    seen = s.told("/*2", _code_and_limit)
    s.limiter.enabled = True
    return seen + " | " + s.codes("/*2")


def two_limiters(lib: Library) -> str:
    s = lib.shop(key_prefix="a", default_limits=["3/hour"], headers_enabled=True)
    second = lib.limiter(s.app, key_prefix="b", default_limits=["2/minute"])
    s.view("/")
    s.view("/own", s.limiter.limit("1/minute"), second.limit("9/minute"))
    return s.codes("/*3 +61 /*2 /own*2")


def two_limiters_without_prefix(lib: Library) -> str:
    s = lib.shop()
    s.view("/", s.limiter.limit("2/minute"), lib.limiter(s.app).limit("2/minute"))
    return s.codes("/*3")


@asked(
    "/?free*2 /?not*2 /*3 POST/*3",
    RATELIMIT_DEFAULT="2/minute;3/hour",
    RATELIMIT_DEFAULTS_PER_METHOD=True,
    RATELIMIT_DEFAULTS_COST=1,
    RATELIMIT_DEFAULTS_EXEMPT_WHEN=_is_free,
    RATELIMIT_DEFAULTS_DEDUCT_WHEN=lambda response: "not" not in request.args,
    RATELIMIT_APPLICATION="6/minute",
    RATELIMIT_APPLICATION_PER_METHOD=True,
    RATELIMIT_APPLICATION_COST=lambda: 1,
    RATELIMIT_APPLICATION_EXEMPT_WHEN=_is_free,
    RATELIMIT_APPLICATION_DEDUCT_WHEN=lambda response: True,
    RATELIMIT_KEY_PREFIX="p",
    RATELIMIT_STRATEGY="moving-window",
    RATELIMIT_STORAGE_URI="memory://",
    RATELIMIT_STORAGE_OPTIONS={},
    RATELIMIT_SWALLOW_ERRORS=False,
    RATELIMIT_FAIL_ON_FIRST_BREACH=True,
    RATELIMIT_IN_MEMORY_FALLBACK_ENABLED=True,
)
def settings(s: Shop) -> None:
    s.view("/", methods=BOTH)


@asked(
    "/a /b*2",
    _text,
    RATELIMIT_DEFAULT="1/second",
    RATELIMIT_META="1/minute",
    RATELIMIT_ON_BREACH_CALLBACK=lambda limit: make_response("breach", 429),
    RATELIMIT_ON_META_BREACH_CALLBACK=lambda limit: make_response("meta", 429),
    RATELIMIT_REQUEST_IDENTIFIER=lambda: "everywhere",
)
def settings_of_reactions(s: Shop) -> None:
    s.view("/a")
    s.view("/b")


@asked(
    "/*2",
    _code_and_limit,
    RATELIMIT_DEFAULT="9/minute",
    RATELIMIT_HEADERS_ENABLED=True,
    RATELIMIT_STRATEGY="moving-window",
    default_limits=["1/minute"],
    headers_enabled=False,
    strategy="fixed-window",
)
def arguments_go_before_settings(s: Shop) -> None:
    s.view("/")


def swallow_errors(lib: Library) -> str:
    seen = []
    for swallow in (False, True):
        s = lib.shop(swallow_errors=swallow)
        s.limited("/", "1/minute", key_func=lambda: str(1 / 0))
        seen.append(s.codes("/*2"))
    return " | ".join(seen) + f" | {len(lib.logged('ERROR'))} errors logged"


def outside_of_a_request(lib: Library) -> str:
    s = lib.shop()
    try:
        with s.app.app_context():
            s.limited("/", "1/minute")()
    except RuntimeError:
        return "RuntimeError"
    return "passed"


# The command line


CLEAR = "clear --key 127.0.0.1 -y"
TOLD = (
    *("a: /a", "free: /free", "7 per 1 hour", "2 per 1 minute", "Exempt", "Pass (7 out of 7", "Fail (0 out of 2"),
    *("2 per 1 minute (POST): Pass (2", "not found", "matched", "RATELIMIT_STRATEGY", "No Flask-Limiter"),
)


def _run(lib: Library, app: flask.Flask, command: str, wanted: tuple[str, ...] = TOLD) -> str:
    commands: Any = __import__(f"{lib.name}.commands", fromlist=["cli"])
    output = app.test_cli_runner().invoke(commands.cli, command.split()).output
    return f"{command.split(maxsplit=1)[0]}: " + ", ".join(text for text in wanted if text in output)


def flask_limiter_command(lib: Library) -> str:
    s = lib.shop(default_limits=["7/hour"])
    s.view("/a")
    s.view("/b", s.limiter.limit("2/minute", per_method=True), methods=BOTH)
    s.view("/free", s.limiter.exempt)
    s.codes("/b*2")
    options = ("", "--key 127.0.0.1", "--endpoint view_of_a", "--endpoint no", "--path /no", "--path /a")
    seen = [_run(lib, s.app, f"limits {each}") for each in options]
    seen.append(_run(lib, s.app, "config", wanted=("RATELIMIT_STRATEGY", "7 per 1 hour", "7/hour")).partition(",")[0])
    seen.append(_run(lib, s.app, CLEAR, wanted=("7 per 1 hour: Cleared", "2 per 1 minute")))
    return " | ".join([*seen, s.codes("/b"), _run(lib, lib.app(), "limits")])


def limits_of_the_application_on_the_command_line(lib: Library) -> str:
    s = lib.shop(default_limits=["7/hour"], application_limits=["50/day"])
    s.view("/a")
    s.codes("/a")
    wanted = ("50 per 1 day",)
    return " | ".join(
        _run(lib, s.app, each, wanted=wanted) for each in ("limits", "limits --endpoint view_of_a", CLEAR)
    )


def exempt_blueprints_on_the_command_line(lib: Library) -> str:
    s = lib.shop()
    for flags in lib.names.ExemptionScope:
        blueprint = Blueprint(str(flags.name), "b")
        s.view(f"/{flags.name}", on=blueprint)
        s.limiter.exempt(blueprint, flags=flags)
        s.app.register_blueprint(blueprint)
    endpoints = sorted(each for each in s.app.view_functions if each != "static")
    told = (each + _run(lib, s.app, f"limits --endpoint {each}", wanted=("Exempt",)) for each in endpoints)
    return " | ".join(told)


# Outages


def _outage(
    lib: Library, asks: str = "/*3", tell: Callable[[Library, TestResponse], str] | None = None, **options: Any
) -> str:
    app = lib.app(MULTILIMIT_WORKERS=1)
    nobody = "redis://127.0.0.1:1"
    s = Shop(lib, app, lib.names.Limiter(lib.util.get_remote_address, app=app, storage_uri=nobody, **options))
    s.limited("/", "2/minute")
    return s.codes(asks) if tell is None else s.told(asks, tell)


def an_outage(lib: Library) -> str:
    return _outage(lib)


def an_outage_with_swallow_errors(lib: Library) -> str:
    return _outage(lib, tell=_code_and_limit, swallow_errors=True, headers_enabled=True)


def _refused_before_an_outage(lib: Library, **options: Any) -> str:
    app = lib.app()
    with Server(next(iter(find_binaries().values()))) as server:
        uri = server.url.replace("unix:", "redis+unix:")
        limiter = lib.names.Limiter(lib.util.get_remote_address, app=app, storage_uri=uri, **options)
        s = Shop(lib, app, limiter)
        s.limited("/", "1/hour")
        seen = s.codes("/*2")
    return seen + " | " + s.codes("/*2")


def a_refused_client_during_an_outage(lib: Library) -> str:
    return _refused_before_an_outage(lib, swallow_errors=True)


def a_refused_client_during_an_outage_with_limits_in_memory(lib: Library) -> str:
    return _refused_before_an_outage(lib, in_memory_fallback=["1/minute"])


def an_outage_with_a_fallback(lib: Library) -> str:
    return _outage(lib, in_memory_fallback_enabled=True)


def limits_in_memory_at_a_view_without_limits(lib: Library) -> str:
    app = lib.app()
    options: dict[str, Any] = {"storage_uri": "redis://127.0.0.1:1", "in_memory_fallback": ["2/minute"]}
    s = Shop(lib, app, lib.names.Limiter(lib.util.get_remote_address, app=app, **options))
    s.limited("/limited", "9/minute")
    s.view("/free")
    return s.codes("/limited /free*3")


def deduct_when_of_a_limit_in_memory(lib: Library) -> str:
    options = {"key_function": lib.util.get_remote_address, "deduct_when": lambda response: response.status_code == 401}
    failed = lib.names.Limit("2/minute", **options)
    return _outage(lib, "/*3 /?status=401*2 /", in_memory_fallback=[failed])


def outage_with_limits_in_memory(lib: Library) -> str:
    seen = [_outage(lib, in_memory_fallback=["1/minute"])]
    app = lib.app(RATELIMIT_IN_MEMORY_FALLBACK="1/minute", RATELIMIT_STORAGE_URI="redis://127.0.0.1:1")
    limiter = lib.names.Limiter(lib.util.get_remote_address, app=app, storage_options={"socket_timeout": 1})
    s = Shop(lib, app, limiter)
    s.limited("/", "2/minute")
    return " | ".join([*seen, s.codes("/*2")])


# Names


def names(lib: Library) -> str:
    scope, names = lib.names.ExemptionScope, lib.names.HeaderNames
    told = [sorted(each.name for each in scope), scope.NONE.value, [(each.name, each.value) for each in names]]
    told += [sorted((name, value) for name, value in vars(lib.constants.ConfigVars).items() if name.isupper())]
    errors: Any = __import__(f"{lib.name}.errors", fromlist=["errors"])
    cloud: Any = __import__(f"{lib.name}.contrib.util", fromlist=["util"])
    told += [errors.RateLimitExceeded is lib.names.RateLimitExceeded, lib.names.__version__]
    with lib.app().test_request_context(headers={"CF-Connecting-IP": "203.0.113.7"}):
        told += [lib.util.get_remote_address(), cloud.get_remote_address_cloudflare()]
    return json.dumps(told)
