"""What an app can see of its Limiter: each function runs on Flask-Limiter and on our bridge, and tells what it saw."""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import json
from typing import Any

import flask
from flask import Blueprint, Response, current_app, g, make_response, request
from werkzeug.exceptions import BadRequest, TooManyRequests

from support.limiters import Library, at, by_header, codes, times
from support.servers import Server, find_binaries

# Limits of views


def text_forms(lib: Library) -> str:
    app, limiter = lib.shop()
    forms = ["1 per minute", "1/minute", "1 PER 2 Hours", "1/day;5 per month", "2/second, 1/minute", "1/2minutes|9/day"]
    forms += ["1 per 30 seconds", "1/year", "  1  /  hour  ", "1per10minutes", "2/1day; 1/0minute"]
    for number, form in enumerate(forms):
        app.add_url_rule(f"/{number}", f"view{number}", limiter.limit(form)(_view(number)))
    return " | ".join(times(2, app, f"/{number}") for number in range(len(forms)))


def _view(number: int) -> Any:
    def view() -> str:
        return str(number)

    view.__name__ = view.__qualname__ = f"view{number}"
    return view


def limit_of_zero(lib: Library) -> str:
    app, limiter = lib.shop(headers_enabled=True)
    app.get("/")(limiter.limit("0/minute")(_view(1)))
    response = app.test_client().get("/")
    return f"{response.status_code} {response.headers['X-RateLimit-Limit']} {response.headers['X-RateLimit-Remaining']}"


def a_refused_request_in_the_other_limits(lib: Library) -> str:
    app, limiter = lib.shop()

    @app.get("/")
    @limiter.limit("3/second", key_func=lambda: "everyone")
    @limiter.limit("1/minute")
    def index() -> str:
        return "ok"

    return times(3, app) + " | " + times(1, app, **at("203.0.113.7"))


def a_refused_request_in_the_limit_of_the_app(lib: Library) -> str:
    app, limiter = lib.shop(application_limits=["3/hour"])
    app.get("/a", endpoint="a")(limiter.limit("1/hour")(_view(1)))
    app.get("/b", endpoint="b")(_view(2))
    return times(3, app, "/a") + " | " + times(2, app, "/b")


def keys_that_are_no_text(lib: Library) -> str:
    app, limiter = lib.shop()
    given: list[Any] = [1, "1", b"1", 2.5]
    app.get("/")(limiter.limit("1/minute", key_func=lambda: given[int(request.args["n"])])(_view(1)))
    client = app.test_client()
    return codes(*(client.get(f"/?n={number}") for number in range(4)))


def an_empty_key(lib: Library) -> str:
    app, limiter = lib.shop()
    app.get("/")(limiter.limit("1/minute", key_func=lambda: "")(_view(1)))
    return times(3, app)


def a_key_of_zero(lib: Library) -> str:
    given: list[Any] = ["", 0, 0]
    return _with_key(lib, given.pop, 3)


def keys_that_are_objects(lib: Library) -> str:
    kept: list[Any] = []

    def key() -> Any:
        kept.append(object())
        return kept[-1]

    return _with_key(lib, key, 2)


def _with_key(lib: Library, key: Any, requests: int) -> str:
    app, limiter = lib.shop()
    app.get("/")(limiter.limit("1/minute", key_func=key)(_view(1)))
    return times(requests, app)


def a_limit_without_a_key(lib: Library) -> str:
    app, limiter = lib.shop(key_func=True)
    app.get("/own", endpoint="own")(limiter.limit("1/minute", key_func=by_header())(_view(1)))
    try:
        app.get("/")(limiter.limit("1/minute")(_view(2)))
    except ValueError:
        seen = "an error at import"
    else:
        seen = times(1, app)
    assert times(2, app, "/own") == "200 429"
    return seen


def limits_of_the_same_text(lib: Library) -> str:
    app, limiter = lib.shop()
    app.get("/")(limiter.limit("4/minute")(limiter.limit("4/minute", error_message="no")(_view(1))))
    return times(3, app)


def methods(lib: Library) -> str:
    app, limiter = lib.shop(default_limits=["2/minute"])
    app.route("/", methods=["GET", "POST"])(limiter.limit("1/minute", methods=["post"])(_view(1)))
    return times(2, app, method="POST") + " | " + times(3, app)


def head_and_options(lib: Library) -> str:
    app, limiter = lib.shop()
    app.get("/")(limiter.limit("2/minute")(_view(1)))
    return " ".join(times(1, app, method=method) for method in ("OPTIONS", "HEAD", "GET", "GET", "OPTIONS"))


def a_cost_above_the_limit(lib: Library) -> str:
    app, limiter = lib.shop()
    app.get("/")(limiter.limit("4/minute", cost=lambda: int(request.args["n"]))(_view(1)))
    client = app.test_client()
    return codes(*(client.get(f"/?n={n}") for n in (9, 4, 1)))


def body_of_a_refusal(lib: Library) -> str:
    app, limiter = lib.shop()
    app.get("/")(limiter.limit("1/day")(_view(1)))
    client = app.test_client()
    client.get("/")
    response = client.get("/")
    return f"{response.status} {response.mimetype} {'<p>1 per 1 day</p>' in response.text}"


def what_a_refusal_raises(lib: Library) -> str:
    app, limiter = lib.shop()
    app.get("/")(limiter.limit("1/2days", cost=1)(_view(1)))

    @app.errorhandler(lib.names.RateLimitExceeded)
    def refused(error: Any) -> Any:
        item = error.limit.limit
        told = [isinstance(error, TooManyRequests), error.code, error.description, error.response, str(item)]
        told += [item.amount, item.multiples, item.GRANULARITY.name, item.GRANULARITY.seconds, item.get_expiry()]
        told += [item.namespace, item.key_for("a", 1, b"c"), error.limit.cost, error.limit.shared, error.limit.methods]
        told += [error.limit.is_exempt, error.limit.method_exempt, error.limit.deduction_amount]
        told.append(error.limit.scope_for("index", "GET"))
        return json.dumps(told), 429

    client = app.test_client()
    client.get("/")
    return str(client.get("/").text)


def limits_compare(lib: Library) -> str:
    _, limiter = lib.shop()
    items: list[Any] = []
    for number, text in enumerate(("1/minute", "1 per minute", "1 per 100 seconds", "2/minute")):
        (single,) = limiter.limit(text)
        items.append(single.limit)
        assert number < 9
    return str(
        [
            items[0] == items[1],
            hash(items[0]) == hash(items[1]),
            items[2] < items[0],
            items[0] < items[3],
            items[0] == 1,
        ]
    )


def async_views(lib: Library) -> str:
    app, limiter = lib.shop()

    @app.get("/")
    @limiter.limit("1/minute")
    async def index() -> str:
        return "ok"

    return times(2, app)


def scope(lib: Library) -> str:
    app, limiter = lib.shop()
    app.get("/<part>")(limiter.limit("1/minute", scope=lambda _: request.view_args["part"])(lambda part: part))  # type: ignore[index]
    app.get("/a/b", endpoint="b")(limiter.limit("1/minute", scope="named")(_view(1)))
    return times(2, app, "/x") + " | " + times(2, app, "/y") + " | " + times(2, app, "/a/b")


def what_a_scope_is_told(lib: Library) -> str:
    app, limiter = lib.shop()
    told: list[str] = []

    def part(endpoint: str) -> str:
        told.append(endpoint)
        return "a"

    app.get("/", endpoint="index")(limiter.limit("1/minute", scope=part)(_view(1)))
    app.test_client().get("/")
    return " ".join(sorted(set(told)))


# Shared limits


def shared_limits_of_one_scope(lib: Library) -> str:
    app, limiter = lib.shop()
    app.get("/a", endpoint="a")(limiter.shared_limit("3/hour", "mail", cost=2)(_view(1)))
    app.get("/b", endpoint="b")(
        limiter.shared_limit("3/hour", "mail", exempt_when=lambda: "free" in request.args)(_view(2))
    )
    client = app.test_client()
    return codes(*map(client.get, ("/a", "/b", "/b", "/b?free")))


def shared_limits_of_several_methods(lib: Library) -> str:
    app, limiter = lib.shop()
    mail = limiter.shared_limit("1/hour", "mail", per_method=True, error_message="no", methods=["GET", "POST"])
    app.route("/a", methods=["GET", "POST", "PUT"], endpoint="a")(mail(_view(1)))
    return " | ".join(times(2, app, "/a", method=method) for method in ("GET", "POST", "PUT"))


# Default limits


def default_limits_with_options(lib: Library) -> str:
    app = lib.app()
    lib.limiter(
        app,
        default_limits=["4/minute"],
        default_limits_per_method=True,
        default_limits_exempt_when=lambda: "free" in request.args,
        default_limits_deduct_when=lambda response: response.status_code != 400,
        default_limits_cost=2,
    )

    @app.route("/", methods=["GET", "POST"])
    def index() -> str:
        if "bad" in request.args:
            raise BadRequest
        return "ok"

    seen = times(2, app, "/?bad") + " | " + times(3, app) + " | " + times(3, app, method="POST")
    return seen + " | " + times(1, app, "/?free")


def default_limits_as_objects(lib: Library) -> str:
    app = lib.app()
    limit = lib.names.Limit(
        "1/minute",
        key_function=by_header(),
        methods=["GET"],
        per_method=True,
        error_message="no",
        exempt_when=lambda: "free" in request.args,
        scope="x",
        cost=1,
        deduct_when=None,
        on_breach=None,
        meta_limits=None,
        shared=False,
    )
    lib.limiter(app, default_limits=[limit, lib.names.Limit("3/minute")], default_limits_cost=3)
    app.route("/", methods=["GET", "POST"])(_view(1))
    return times(2, app) + " | " + times(2, app, "/?free") + " | " + times(2, app, method="POST")


def default_limits_that_depend_on_the_request(lib: Library) -> str:
    app = lib.app()
    lib.limiter(app, default_limits=[lambda: request.headers.get("X-Limit", "")])
    app.get("/")(_view(1))
    return times(2, app) + " | " + times(2, app, headers={"X-Limit": "1/minute"})


def no_limits_for_static_files(lib: Library) -> str:
    app = lib.app()
    lib.limiter(app, default_limits=["1/minute"], application_limits=["1/minute"])
    app.add_url_rule("/static/<path:filename>", "files.static", lambda filename: filename)
    return times(2, app, "/static/nothing.css") + " | " + times(2, app, "/nowhere")


# Limits of the application


def application_limits_with_options(lib: Library) -> str:
    app = lib.app()
    lib.limiter(
        app,
        application_limits=["4/minute"],
        application_limits_per_method=True,
        application_limits_exempt_when=lambda: "free" in request.args,
        application_limits_deduct_when=lambda response: "not" not in request.args,
        application_limits_cost=lambda: 2,
    )
    app.route("/a", methods=["GET", "POST"], endpoint="a")(_view(1))
    app.route("/b", methods=["GET", "POST"], endpoint="b")(_view(2))
    client = app.test_client()
    seen = times(2, client, "/a?free") + " | " + times(2, client, "/b?not") + " | "
    return seen + codes(*map(client.get, ("/a", "/b", "/a"))) + " | " + times(1, client, "/a", method="POST")


def application_limits_as_objects(lib: Library) -> str:
    app = lib.app()
    limit = lib.names.ApplicationLimit("1/minute", key_function=by_header(), scope="part", error_message="no")
    lib.limiter(app, application_limits=[limit])
    app.get("/a", endpoint="a")(_view(1))
    app.get("/b", endpoint="b")(_view(2))
    client = app.test_client()
    return codes(*map(client.get, ("/a", "/b"))) + " | " + times(1, client, "/a", headers={"X-Key": "ann"})


def application_limits_before_the_view(lib: Library) -> str:
    app, limiter = lib.shop(application_limits=["2/minute"])

    def forbid(view: Any) -> Any:
        return lambda: ("no", 403)

    app.get("/a", endpoint="a")(forbid(limiter.limit("10/minute")(_view(1))))
    return times(3, app, "/a")


def application_limits_by_request(lib: Library) -> str:
    app = lib.app()
    lib.limiter(app, application_limits=[lambda: "1/minute" if "suspect" in request.args else "2/minute"])
    app.get("/")(_view(1))
    return times(3, app) + " | " + times(2, app, "/?suspect")


# Blueprints


def _nested(lib: Library, app: flask.Flask) -> tuple[Blueprint, Blueprint]:
    parent, child = Blueprint("parent", __name__, url_prefix="/p"), Blueprint("child", __name__, url_prefix="/c")
    assert lib is not None
    parent.get("/", endpoint="index")(_view(1))
    child.get("/", endpoint="index")(_view(2))
    parent.register_blueprint(child)
    app.register_blueprint(parent)
    return parent, child


def limits_of_a_blueprint(lib: Library) -> str:
    app, limiter = lib.shop(default_limits=["1/minute"])
    shop = Blueprint("shop", __name__, url_prefix="/shop")
    shop.get("/a", endpoint="a")(_view(1))
    shop.get("/b", endpoint="b")(_view(2))
    shop.get("/own", endpoint="own")(limiter.limit("3/minute")(_view(3)))
    shop.get("/both", endpoint="both")(limiter.limit("3/minute", override_defaults=False)(_view(4)))
    app.register_blueprint(shop)
    limiter.limit("2/minute")(shop)
    return " | ".join(times(4, app, f"/shop/{name}") for name in ("a", "b", "own", "both"))


def limits_of_a_blueprint_beside_the_default_ones(lib: Library) -> str:
    app, limiter = lib.shop(default_limits=["1/minute"])
    _, child = _nested(lib, app)
    limiter.limit("2/hour", override_defaults=False)(child)
    seen = times(2, app, "/p/c/")
    lib.advance(61)
    return seen + " | " + times(1, app, "/p/c/") + " | " + times(1, app, "/p/")


def limits_around_a_blueprint(lib: Library) -> str:
    app, limiter = lib.shop()
    parent, child = _nested(lib, app)
    limiter.limit("2/minute")(parent)
    seen = times(3, app, "/p/") + " | " + times(3, app, "/p/c/")
    limiter.limit("4/hour")(child)
    lib.advance(61)
    return seen + " | " + times(4, app, "/p/c/")


def exempt_blueprints(lib: Library) -> str:
    seen = []
    scope = lib.names.ExemptionScope
    flags = (
        None,
        scope.DEFAULT,
        scope.DEFAULT | scope.DESCENDENTS,
        scope.APPLICATION | scope.DEFAULT,
        scope.APPLICATION,
    )
    for each in flags:
        app, limiter = lib.shop(default_limits=["1/minute"], application_limits=["3/minute"])
        parent, _ = _nested(lib, app)
        limiter.exempt(parent) if each is None else limiter.exempt(parent, flags=each)
        seen.append(times(2, app, "/p/") + " " + times(2, app, "/p/c/"))
    return " | ".join(seen)


def exempt_from_the_limits_around(lib: Library) -> str:
    app, limiter = lib.shop()
    parent, child = _nested(lib, app)
    limiter.limit("1/minute")(parent)
    limiter.exempt(child, flags=lib.names.ExemptionScope.ANCESTORS)
    return times(2, app, "/p/") + " | " + times(3, app, "/p/c/")


def an_exempt_blueprint_with_limits(lib: Library) -> str:
    seen = []
    for flags in (None, lib.names.ExemptionScope.DEFAULT):
        app, limiter = lib.shop(default_limits=["1/minute"])
        parent, _ = _nested(lib, app)
        limiter.limit("2/minute")(parent)
        limiter.exempt(parent) if flags is None else limiter.exempt(parent, flags=flags)
        seen.append(times(3, app, "/p/"))
    return " | ".join(seen)


# Exemptions of views


def exempt_views(lib: Library) -> str:
    seen = []
    scope = lib.names.ExemptionScope
    for flags in (None, scope.APPLICATION, scope.DEFAULT, scope.META):
        app, limiter = lib.shop(default_limits=["1/minute"], application_limits=["2/minute"])
        exempt = limiter.exempt if flags is None else limiter.exempt(flags=flags)
        app.get("/")(exempt(_view(1)))
        seen.append(times(3, app))
    return " | ".join(seen)


def what_exempt_undoes(lib: Library) -> str:
    app, limiter = lib.shop()
    app.get("/above")(limiter.exempt(limiter.limit("1/minute")(_view(1))))
    app.get("/below")(limiter.limit("1/minute")(limiter.exempt(_view(2))))
    return times(2, app, "/above") + " | " + times(2, app, "/below")


# Limits that depend on the request


def limits_by_what_a_decorator_has_found(lib: Library) -> str:
    app, limiter = lib.shop()

    def find(view: Any) -> Any:
        def found() -> Any:
            g.limit = "1/minute"
            return view()

        found.__name__ = "found"
        return found

    app.get("/")(find(limiter.limit(lambda: g.limit)(_view(1))))
    return times(2, app)


def another_count_for_the_same_key(lib: Library) -> str:
    app, limiter = lib.shop()
    app.get("/")(limiter.limit(lambda: request.args["limit"])(_view(1)))
    client = app.test_client()
    return codes(*(client.get(f"/?limit={count}/minute") for count in (2, 2, 3, 3)))


def limits_that_make_no_sense(lib: Library) -> str:
    app, limiter = lib.shop()
    app.get("/")(limiter.limit(lambda: request.args["limit"])(_view(1)))
    client = app.test_client()
    return codes(*(client.get(f"/?limit={text}") for text in ("1/minute", "1/minute", "1/min", "nonsense")))


def limits_that_never_made_sense(lib: Library) -> str:
    app, limiter = lib.shop(default_limits=["1/minute"])
    app.get("/")(limiter.limit(lambda: "1/min")(_view(1)))
    return times(2, app)


def limits_that_raise(lib: Library) -> str:
    app, limiter = lib.shop()
    limits = {"ann": "1/minute"}
    app.get("/")(limiter.limit(lambda: limits[request.args["who"]])(_view(1)))
    client = app.test_client()
    return codes(*(client.get(f"/?who={who}") for who in ("ann", "bob")))


def text_that_is_no_limit(lib: Library) -> str:
    return _with_text(lib, "2/min") + " | " + _with_text(lib, "ten per minute")


def a_very_large_amount(lib: Library) -> str:
    return _with_text(lib, "1000000001/day")


def a_window_of_years(lib: Library) -> str:
    return _with_text(lib, "1/year") + " | " + _with_text(lib, "1 per 3 years")


def _with_text(lib: Library, text: str) -> str:
    app, limiter = lib.shop()
    try:
        app.get("/")(limiter.limit(text)(_view(1)))
    except ValueError:
        return "an error at import"
    return times(3, app)


# Functions that are no views


def decorated_functions(lib: Library) -> str:
    app, limiter = lib.shop(default_limits=["3/minute"])

    @limiter.limit("2/minute")
    def send() -> str:
        return "sent"

    @limiter.limit("2/minute", override_defaults=False)
    def store() -> str:
        return "stored"

    app.get("/send", endpoint="send")(lambda: send())
    app.get("/store", endpoint="store")(lambda: store())
    return times(4, app, "/send") + " | " + times(4, app, "/store")


def two_functions_in_one_view(lib: Library) -> str:
    app, limiter = lib.shop()

    @limiter.limit("1/minute")
    def send() -> str:
        return "sent"

    @limiter.limit("1/minute")
    def store() -> str:
        return "stored"

    app.get("/")(lambda: send() + store())
    return times(2, app)


def a_default_limit_with_the_text_of_another(lib: Library) -> str:
    app, limiter = lib.shop(default_limits=["2/hour"])
    app.route("/", methods=["GET", "POST"])(limiter.limit("2/hour", methods=["GET"])(_view(1)))
    return times(2, app) + " | " + times(1, app, method="POST")


def functions_that_are_called_by_some_requests(lib: Library) -> str:
    app, limiter = lib.shop(default_limits=["2/minute"])
    for overrides in (True, False):
        send = limiter.limit("9/minute", override_defaults=overrides)(_view(int(overrides)))
        app.get(f"/{overrides}", endpoint=f"{overrides}")(lambda send=send: send() if "send" in request.args else "ok")
    return " | ".join(times(1, app, f"/{each}?send") + " " + times(3, app, f"/{each}") for each in (True, False))


def functions_with_different_limits_in_one_view(lib: Library) -> str:
    app, limiter = lib.shop()

    @limiter.limit("9/minute")
    def send() -> str:
        return "sent"

    @limiter.limit("2/minute")
    def store() -> str:
        return "stored"

    app.get("/")(lambda: send() + store())
    return times(3, app)


def functions_made_at_each_request(lib: Library) -> str:
    app, limiter = lib.shop()

    @app.get("/")
    def index() -> Any:
        @limiter.limit("2/minute")
        def inner() -> str:
            return "inner"

        return inner()

    return times(3, app)


def with_statements(lib: Library) -> str:
    app, limiter = lib.shop()

    @app.get("/")
    def index() -> str:
        with limiter.limit("3/minute"):
            text = "a"
        try:
            with limiter.limit("1/hour"):
                text += "b"
        except lib.names.RateLimitExceeded:
            text += "-"
        return text

    client = app.test_client()
    return " ".join(client.get("/").text if number < 3 else times(1, client) for number in range(4))


def with_statements_by_part(lib: Library) -> str:
    app, limiter = lib.shop(default_limits=["9/minute"])

    @app.get("/<int:part>")
    def index(part: int) -> str:
        with limiter.limit(lambda: "1/minute", scope=part, key_func=lambda: "everyone"):
            return "ok"

    return times(2, app, "/1") + " | " + times(2, app, "/2")


def with_statements_of_shared_limits(lib: Library) -> str:
    app, limiter = lib.shop()
    mail = limiter.shared_limit("1/hour", "mail")

    def send() -> str:
        with mail:
            return "sent"

    app.get("/a", endpoint="a")(lambda: send())
    app.get("/b", endpoint="b")(lambda: send())
    client = app.test_client()
    return codes(*map(client.get, ("/a", "/b")))


def limits_put_on_a_registered_view(lib: Library) -> str:
    app, limiter = lib.shop()
    app.get("/", endpoint="index")(_view(1))
    limiter.limit("1/minute")(app.view_functions["index"])
    return times(2, app)


def limits_added_to_a_limited_view(lib: Library) -> str:
    app, limiter = lib.shop()
    limited = limiter.limit("9/minute")(_view(1))
    app.get("/")(limited)
    seen = times(1, app)
    limiter.limit("1/hour")(limited)
    return seen + " | " + times(2, app)


def route_limits(lib: Library) -> str:
    app, limiter = lib.shop(default_limits=["1/minute"])
    app.get("/a", endpoint="a")(lib.names.RouteLimit("2/minute", limiter=limiter)(_view(1)))
    app.get("/b", endpoint="b")(lib.names.RouteLimit("2/minute", limiter=limiter, override_defaults=True)(_view(2)))
    return times(3, app, "/a") + " | " + times(3, app, "/b")


# Charges that depend on the response


def deduct_when(lib: Library) -> str:
    app, limiter = lib.shop(headers_enabled=True)

    @app.get("/<int:status>")
    @limiter.limit("2/minute", deduct_when=lambda response: response.status_code == 401)
    def index(status: int) -> Any:
        return "", status

    client = app.test_client()
    left = [client.get(path).headers["X-RateLimit-Remaining"] for path in ("/200", "/200", "/401")]
    return " ".join(left) + " | " + codes(*map(client.get, ("/401", "/401", "/200")))


def deduct_when_of_limits_with_one_quota(lib: Library) -> str:
    app, limiter = lib.shop()
    good = limiter.limit("2/minute", deduct_when=lambda response: response.status_code == 200)
    bad = limiter.limit("2/minute", deduct_when=lambda response: response.status_code == 400)
    app.get("/<int:status>")(good(bad(lambda status: ("", status))))
    return codes(*map(app.test_client().get, ("/404", "/200", "/404", "/400", "/404")))


def deduct_when_with_a_cost(lib: Library) -> str:
    app, limiter = lib.shop()
    app.get("/")(limiter.limit("4/minute", cost=2, deduct_when=lambda response: True)(_view(1)))
    return times(3, app)


def deduct_when_of_a_refusal(lib: Library) -> str:
    app, limiter = lib.shop()
    app.errorhandler(429)(lambda error: (error.description, 429))

    @app.get("/")
    @limiter.limit("2/minute", deduct_when=lambda response: response.status_code == 429)
    @limiter.limit("1/hour")
    def index() -> str:
        return "ok"

    client = app.test_client()
    return " | ".join(client.get("/").text for _ in range(4))


def requests_at_once_with_deduct_when(lib: Library) -> str:
    app, limiter = lib.shop()

    @app.get("/<int:depth>")
    @limiter.limit("1/minute", deduct_when=lambda response: True)
    def index(depth: int) -> str:
        if not depth:
            return "200"
        return "200 " + app.test_client().get(f"/{depth - 1}").text[:3].replace("<!d", "429")

    return app.test_client().get("/1").text


# What a refusal sets off


def on_breach(lib: Library) -> str:
    app = lib.app()
    told: list[str] = []

    def everywhere(limit: Any) -> Any:
        told.append(f"all {limit.limit}")
        return make_response("all", 429) if "all" in request.args else None

    def here(limit: Any) -> Any:
        told.append(f"one {limit.limit} {limit.breached} {limit.key}")
        return make_response("one", 420) if "one" in request.args else "no response"

    limiter = lib.limiter(app, on_breach=everywhere)
    app.get("/")(limiter.limit("1/day", on_breach=here)(_view(1)))
    client = app.test_client()
    client.get("/")
    seen = [client.get(path) for path in ("/", "/?all", "/?one", "/?all&one")]
    return " ".join(f"{each.status_code} {each.text[:3]}" for each in seen) + " | " + "; ".join(told[:2])


def an_on_breach_that_raises(lib: Library) -> str:
    seen = []
    for swallow in (False, True):
        app, limiter = lib.shop(swallow_errors=swallow)
        app.get("/")(limiter.limit("1/day", on_breach=lambda limit: 1 / 0)(_view(1)))
        client = app.test_client()
        client.get("/")
        seen.append(times(1, client))
    return " | ".join([*seen, *lib.logged("ERROR")])


def the_line_in_the_log(lib: Library) -> str:
    app, limiter = lib.shop(key_prefix="p")
    app.get("/", endpoint="index")(limiter.limit("1/day")(_view(1)))
    times(2, app)
    return "; ".join(lib.logged("INFO"))


def fail_on_first_breach(lib: Library) -> str:
    seen = []
    for first in (True, False):
        app = lib.app()
        told: list[str] = []
        limiter = lib.limiter(app, fail_on_first_breach=first, on_breach=lambda limit, told=told: told.append(limit))
        app.get("/")(limiter.limit("1/minute; 1/hour; 1/day")(_view(1)))
        app.errorhandler(429)(lambda error: (error.description, 429))
        shown: list[Any] = []

        @app.after_request
        def note(response: Response, limiter: Any = limiter, shown: list[Any] = shown) -> Response:
            shown[:] = limiter.current_limits
            return response

        client = app.test_client()
        client.get("/")
        text = client.get("/").text
        seen.append(f"{text}, {len(told)} told, {[str(each.limit) for each in shown if each.breached]} of {len(shown)}")
    return " | ".join(seen)


# Meta limits


def meta_limits(lib: Library) -> str:
    app = lib.app()
    limiter = lib.limiter(
        app,
        default_limits=["1/second"],
        meta_limits=["2/minute", lib.names.MetaLimit("3/hour"), lambda: "9/day"],
        on_meta_breach=lambda limit: make_response(f"meta {limit.limit} {limit.breached}", 429),
        headers_enabled=True,
    )
    app.get("/", endpoint="index")(_view(1))
    app.get("/free", endpoint="free")(limiter.exempt(_view(2)))
    client, seen = app.test_client(), []
    for _ in range(3):
        seen.append(times(2, client))
        lib.advance(1)
    response = client.get("/")
    seen.append(f"{response.text} {response.headers['X-RateLimit-Limit']} {response.headers['X-RateLimit-Remaining']}")
    seen.append(times(1, client, "/free") + " " + times(1, client, **at("203.0.113.7")))
    lib.advance(60)
    seen.append(times(2, client) + " " + times(1, client))
    lib.advance(60)
    seen.append(client.get("/").text)
    return " | ".join(seen)


def meta_limits_of_a_limit(lib: Library) -> str:
    app, limiter = lib.shop()
    meta = lib.names.MetaLimit(
        "1/hour",
        key_function=by_header(),
        on_breach=lambda limit: make_response("meta", 429),
        exempt_when=lambda: "free" in request.args,
        scope="own",
    )
    app.get("/a", endpoint="a")(limiter.limit("1/second", meta_limits=[meta])(_view(1)))
    app.get("/b", endpoint="b")(limiter.limit("1/second", meta_limits=["1/hour"])(_view(2)))
    app.get("/c", endpoint="c")(limiter.limit("1/second")(_view(3)))
    client, seen = app.test_client(), []
    for _ in range(2):
        seen += [times(2, client, f"/{name}") for name in "abc"]
        lib.advance(1)
    seen.append(
        client.get("/a").text
        + " "
        + times(1, client, "/a?free")
        + " "
        + times(1, client, "/a", headers={"X-Key": "ann"})
    )
    return " | ".join(seen)


def meta_limits_elsewhere(lib: Library) -> str:
    """Who is refused, is so at places without limits, too."""
    app, limiter = lib.shop(meta_limits=["1/hour"])
    app.get("/", endpoint="index")(limiter.limit("1/minute")(_view(1)))
    app.get("/unlimited", endpoint="unlimited")(_view(2))
    app.get("/exempt", endpoint="exempt")(limiter.exempt(_view(3)))
    spared = limiter.exempt(_view(4), flags=lib.names.ExemptionScope.META)
    app.get("/spared", endpoint="spared")(spared)
    client, seen = app.test_client(), []
    for number in (1, 2):
        paths = ("/unlimited", "/exempt", "/spared", "/nowhere", "/static/none")
        seen.append(" ".join([times(number, client), *(times(1, client, path) for path in paths)]))
        seen.append(times(1, client, method="POST"))
    return " | ".join(seen)


def meta_limits_count_refusals_where_they_spare(lib: Library) -> str:
    app, limiter = lib.shop(application_limits=["1/minute"], meta_limits=["1/hour"])
    spared = limiter.exempt(_view(1), flags=lib.names.ExemptionScope.META)
    app.get("/spared", endpoint="spared")(spared)
    app.get("/", endpoint="index")(_view(2))
    seen = [times(3, app, "/spared")]
    lib.advance(61)
    return " | ".join([*seen, times(1, app, "/spared"), times(1, app)])


def meta_limits_with_a_cost(lib: Library) -> str:
    app = lib.app()
    meta = lib.names.MetaLimit("3/hour", cost=2)
    limiter = lib.limiter(app, meta_limits=[meta])
    app.get("/", endpoint="index")(limiter.limit("1/second")(_view(1)))
    client, seen = app.test_client(), []
    for _ in range(4):
        seen.append(times(2, client))
        lib.advance(1)
    return " | ".join(seen)


def meta_limits_that_let_nothing_pass(lib: Library) -> str:
    app = lib.app()
    lib.limiter(app, meta_limits=["0/hour"])
    app.get("/", endpoint="index")(_view(1))
    return times(2, app)


def meta_limits_of_limits_that_let_nothing_pass(lib: Library) -> str:
    app, limiter = lib.shop(meta_limits=["2/minute"])
    app.get("/", endpoint="index")(limiter.limit("0/hour")(_view(1)))
    client = app.test_client()
    return " ".join(client.get("/").text.rpartition("<p>")[2].removesuffix("</p>\n") for _ in range(4))


def meta_limits_and_what_they_tell(lib: Library) -> str:
    app, told = lib.app(), list[str]()
    lib.limiter(
        app,
        key_prefix="shop",
        default_limits=["1/second"],
        meta_limits=[lib.names.MetaLimit("1/minute", error_message="too often")],
        on_meta_breach=lambda limit: told.append(f"{limit.request_args} {limit.key} {limit.remaining}"),
        on_breach=lambda limit: told.append(f"{limit.limit}"),
    )
    app.get("/", endpoint="index")(_view(1))
    client = app.test_client()
    texts = [client.get("/").text for _ in range(3)]
    return " | ".join([*told, str("too often" in texts[2])])


def meta_limits_of_limits_that_refuse_together(lib: Library) -> str:
    app, limiter = lib.shop(fail_on_first_breach=False)
    daily = lib.names.MetaLimit("1/day", scope="daily")
    one = limiter.limit("1/second", meta_limits=[daily])
    app.get("/", endpoint="index")(limiter.limit("1/minute", meta_limits=["1/hour"])(one(_view(1))))
    client = app.test_client()
    return " ".join(client.get("/").text.rpartition("<p>")[2].removesuffix("</p>\n") for _ in range(3))


def meta_limits_during_an_outage(lib: Library) -> str:
    options: dict[str, Any] = {"meta_limits": ["1/minute"], "in_memory_fallback": ["1/second"]}
    return _outage(lib, **options)


def meta_limits_by_hand(lib: Library) -> str:
    app, limiter = lib.shop(meta_limits=["1/hour"])
    app.get("/", endpoint="index")(limiter.limit("1/minute")(_view(1)))
    with app.test_request_context():
        (meta,) = lib.names.MetaLimit("1/hour").bind(limiter)
        identifiers = ("127.0.0.1", "meta")
        seen = [limiter.limiter.test(meta.limit, *identifiers)]
        limiter.limiter.hit(meta.limit, *identifiers)
        seen.append(limiter.limiter.test(meta.limit, *identifiers))
        times(2, app)
        assert not limiter.limiter.test(meta.limit, *identifiers)
        limiter.limiter.clear(meta.limit, *identifiers)
        seen.append(limiter.limiter.test(meta.limit, *identifiers))
    return " | ".join(map(str, seen))


def a_meta_limit_cleared_by_its_key(lib: Library) -> str:
    app, limiter = lib.shop(meta_limits=["1/hour"])
    app.get("/", endpoint="index")(limiter.limit("1/minute")(_view(1)))

    @app.errorhandler(429)
    def refused(error: Any) -> Any:
        if "clear" in request.args:
            limiter.storage.clear(limiter.current_limit.key)
        return error.description, 429

    seen = times(3, app)
    lib.advance(61)
    return seen + " | " + times(2, app, "/?clear")


def the_end_of_a_meta_limit(lib: Library) -> str:
    app, limiter = lib.shop(meta_limits=["2/minute"])
    app.get("/", endpoint="index")(limiter.limit("1/second")(_view(1)))
    client, seen = app.test_client(), []
    for pause in (0, 20, 1, 38, 2, 20):
        lib.advance(pause)
        seen.append(times(2, client))
    return " | ".join(seen)


def refusals_while_a_meta_limit_holds(lib: Library) -> str:
    app, limiter = lib.shop(meta_limits=["2/hour"])
    app.get("/", endpoint="index")(limiter.limit("1/hour", meta_limits=["1/hour"])(_view(1)))
    app.get("/other", endpoint="other")(_view(2))
    return times(3, app) + " | " + times(1, app, "/other")


def when_to_come_again_after_the_last_strike(lib: Library) -> str:
    app, limiter = lib.shop(meta_limits=["1/minute"], headers_enabled=True)
    app.get("/", endpoint="index")(limiter.limit("1/second")(_view(1)))
    client = app.test_client()
    return " ".join(client.get("/").headers["Retry-After"] for _ in range(3))


def meta_limits_of_a_blueprint(lib: Library) -> str:
    app, shop = lib.app(), Blueprint("shop", __name__)
    limiter = lib.limiter(app)
    shop.get("/", endpoint="index")(_view(1))
    limiter.limit("1/second", meta_limits=["1/hour"])(shop)
    app.register_blueprint(shop)
    seen = [times(2, app)]
    lib.advance(1)
    return " | ".join([*seen, times(1, app)])


def meta_limits_by_method(lib: Library) -> str:
    app, limiter = lib.shop(meta_limits=[lib.names.MetaLimit("1/hour", per_method=True)])
    view = limiter.limit("1/second")(_view(1))
    app.route("/", endpoint="index", methods=["GET", "POST"])(view)
    client, seen = app.test_client(), []
    for method in ("GET", "GET", "POST"):
        seen.append(times(2, client, method=method))
        lib.advance(1)
    return " | ".join(seen)


def who_is_filtered_after_a_meta_limit(lib: Library) -> str:
    app, limiter = lib.shop(meta_limits=["1/hour"])
    limiter.request_filter(lambda: "free" in request.args)
    app.get("/", endpoint="index")(limiter.limit("1/minute")(_view(1)))
    seen = [times(2, app), times(1, app, "/?free")]
    limiter.enabled = False
    return " | ".join([*seen, times(1, app)])


def a_meta_limit_of_thousands(lib: Library) -> str:
    try:
        lib.names.MetaLimit("1001/day")
    except ValueError as error:
        return str(error)
    return "none"


# Header fields


NAMES = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "Retry-After")


def _fields(lib: Library, response: Any, names: tuple[str, ...] = NAMES) -> str:
    told = []
    for name in names:
        value = response.headers.get(name)
        if name.endswith("Reset") and value:
            value = f"+{int(value) - int(lib._now)}"
        told.append(str(value))
    return " ".join(told)


def no_header_fields_by_default(lib: Library) -> str:
    app, limiter = lib.shop()
    app.get("/")(limiter.limit("1/minute")(_view(1)))
    client = app.test_client()
    return " | ".join(_fields(lib, client.get("/"), (*NAMES[:3], "RateLimit", "RateLimit-Policy")) for _ in range(2))


def retry_after_without_header_fields(lib: Library) -> str:
    app, limiter = lib.shop()
    app.get("/")(limiter.limit("1/minute")(_view(1)))
    client = app.test_client()
    return " | ".join(str(client.get("/").headers.get("Retry-After")) for _ in range(2))


def caching_of_a_refusal(lib: Library) -> str:
    app, limiter = lib.shop()
    app.get("/")(limiter.limit("1/minute")(_view(1)))
    client = app.test_client()
    return str([client.get("/") for _ in range(2)][-1].headers.get("Cache-Control"))


def header_fields(lib: Library) -> str:
    app, limiter = lib.shop(headers_enabled=True, application_limits=["60/minute"])
    app.get("/")(limiter.limit("2/minute; 9/hour")(_view(1)))
    app.get("/app")(_view(2))
    client = app.test_client()
    seen = [_fields(lib, client.get("/"))]
    lib.advance(20)
    seen += [_fields(lib, client.get("/")) for _ in range(2)]
    return " | ".join([*seen, _fields(lib, client.get("/app")), _fields(lib, client.get("/nowhere"))])


def header_fields_of_shared_limits(lib: Library) -> str:
    app, limiter = lib.shop(headers_enabled=True)
    app.get("/")(limiter.shared_limit("9/minute", "x")(limiter.limit("20/hour")(_view(1))))
    return _fields(lib, app.test_client().get("/"))


def header_names(lib: Library) -> str:
    app = lib.app(RATELIMIT_HEADER_RESET="X-Reset")
    names = lib.names.HeaderNames
    mapping = {names.LIMIT: "X-Limit", names.REMAINING: "X-Left", names.RETRY_AFTER: "X-Wait"}
    limiter = lib.limiter(app, headers_enabled=True, header_name_mapping=mapping)
    app.get("/")(limiter.limit("2/minute")(_view(1)))
    return _fields(lib, app.test_client().get("/"), ("X-Limit", "X-Left", "X-Reset", "X-Wait"))


def header_names_by_setting(lib: Library) -> str:
    app = lib.app(
        RATELIMIT_HEADERS_ENABLED=True,
        RATELIMIT_HEADER_LIMIT="X-Limit",
        RATELIMIT_HEADER_REMAINING="X-Left",
        RATELIMIT_HEADER_RETRY_AFTER="X-Wait",
        RATELIMIT_HEADER_RETRY_AFTER_VALUE="http-date",
    )
    limiter = lib.limiter(app)
    app.get("/")(limiter.limit("2/minute")(_view(1)))
    return _fields(lib, app.test_client().get("/"), ("X-Limit", "X-Left", "X-RateLimit-Reset", "X-Wait"))


def retry_after_as_a_date(lib: Library) -> str:
    app, limiter = lib.shop(headers_enabled=True, retry_after="http-date")
    app.get("/")(limiter.limit("1/minute")(_view(1)))
    client = app.test_client()
    return " | ".join(client.get("/").headers["Retry-After"] for _ in range(2))


def a_retry_after_of_the_view(lib: Library) -> str:
    app, limiter = lib.shop(headers_enabled=True)

    @app.get("/")
    @limiter.limit("9/minute")
    def index() -> Any:
        return "", {"Retry-After": request.args["value"]}

    client = app.test_client()
    values = ("1000", "5", "Sun, 06 Nov 2033 01:01:01 GMT")
    return " | ".join(client.get(f"/?value={value}").headers["Retry-After"] for value in values)


def header_fields_after_a_slow_view(lib: Library) -> str:
    app, limiter = lib.shop(headers_enabled=True)

    @app.get("/")
    @limiter.limit("2/second")
    def index() -> str:
        lib.advance(2)
        return "ok"

    return _fields(lib, app.test_client().get("/"), ("X-RateLimit-Remaining",))


def header_fields_of_a_moving_window(lib: Library) -> str:
    return _fields_by(lib, "moving-window")


def header_fields_of_the_sliding_window_counter(lib: Library) -> str:
    return _fields_by(lib, "sliding-window-counter")


def _fields_by(lib: Library, strategy: str) -> str:
    app, limiter = lib.shop(headers_enabled=True, strategy=strategy)
    app.get("/")(limiter.limit("2/minute")(_view(1)))
    client, seen = app.test_client(), []
    for _ in range(3):
        seen.append(_fields(lib, client.get("/")))
        lib.advance(10)
    return " | ".join(seen)


# Strategies


def _strategy(lib: Library, strategy: str, steps: tuple[tuple[float, int], ...]) -> str:
    app, limiter = lib.shop(strategy=strategy)
    app.get("/")(limiter.limit("4/minute")(_view(1)))
    client, seen = app.test_client(), []
    for seconds, number in steps:
        lib.advance(seconds)
        seen.append(times(number, client))
    return " | ".join(seen)


def fixed_window(lib: Library) -> str:
    return _strategy(lib, "fixed-window", ((0, 1), (50, 4), (10, 5)))


def moving_window(lib: Library) -> str:
    return _strategy(lib, "moving-window", ((0, 2), (50, 3), (10.5, 3), (49, 2), (1, 2)))


def moving_window_at_its_edge(lib: Library) -> str:
    return _strategy(lib, "moving-window", ((0, 4), (60, 1)))


def sliding_window_counter(lib: Library) -> str:
    return _strategy(lib, "sliding-window-counter", ((0, 4), (1, 1), (150, 2)))


def windows_of_the_sliding_window_counter(lib: Library) -> str:
    return _strategy(lib, "sliding-window-counter", ((45, 4), (30, 3), (30, 3)))


def a_strategy_that_there_is_not(lib: Library) -> str:
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


def a_storage_that_there_is_not(lib: Library) -> str:
    return _raised(lib, RATELIMIT_STORAGE_URI="tape://")


def storage_of_an_app(lib: Library) -> str:
    app, limiter = lib.shop()
    app.get("/")(limiter.limit("1/minute")(_view(1)))
    seen = f"{limiter.storage.check()} " + times(2, app)
    limiter.storage.reset()
    return seen + " | " + times(1, app)


def no_storage_named(lib: Library) -> str:
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
    app, limiter = lib.shop(default_limits=["1/minute"], key_prefix="p")
    app.get("/")(_view(1))
    seen = times(2, app)
    limiter.reset()
    return seen + " | " + times(1, app) + " | " + "; ".join(lib.logged("INFO")[-1:])


def limits_checked_by_hand(lib: Library) -> str:
    app, limiter = lib.shop(strategy="moving-window")
    (single,) = limiter.limit("3/minute")
    item = single.limit
    with app.test_request_context():
        hand = limiter.limiter
        told = [hand.hit(item, "ann", "mail"), hand.hit(item, "ann", "mail", cost=2), hand.hit(item, "ann", "mail")]
        told += [hand.test(item, "ann", "mail"), hand.test(item, "bob", "mail", cost=3), hand.test(item, "bob", cost=4)]
        stats = hand.get_window_stats(item, "ann", "mail")
        told += [stats.remaining, round(stats.reset_time - lib._now)]
        hand.clear(item, "ann", "mail")
        told += [hand.get_window_stats(item, "ann", "mail")[1]]
    return str(told)


# Of the current request


def counters_of_the_app(lib: Library) -> str:
    app, limiter = lib.shop()
    store, told = limiter.storage, list[Any]()
    with app.app_context():
        told += [store.get("mail"), store.incr("mail", 60), store.incr("mail", 60), store.incr("mail", 60, amount=3)]
        told += [store.get("mail"), round(store.get_expiry("mail") - lib._now), store.incr("post", 5000)]
        store.clear("mail")
        told += [store.get("mail"), store.get("post"), limiter.limiter.storage.get("post"), store.incr("mail", 7)]
        lib.advance(7)
        told += [store.get("mail"), store.incr("mail", 60), store.get("mail"), store.get("post")]
    return str(told)


def quotas_by_the_key_of_a_limit(lib: Library) -> str:
    app, seen = lib.app(), []
    limiter = lib.limiter(app, key_prefix="p", key_func=by_header(), default_limits=["2/minute"])
    app.get("/", endpoint="index")(_view(1))

    @app.after_request
    def note(response: Response) -> Response:
        limit = limiter.current_limit
        seen.append(f"{limiter.storage.get(limit.key)} of {limit.limit.amount}")
        if "clear" in request.args:
            limiter.limiter.storage.clear(limit.key)
        return response

    return times(2, app, headers={"X-Key": "ann"}) + f" {seen} " + times(2, app, "/?clear") + " " + times(1, app)


def current_limits(lib: Library) -> str:
    (app, limiter), told = lib.shop(), []

    def tell() -> str:
        shown = limiter.current_limit
        told.append(" ".join([str(shown and shown.limit), *(_stand(lib, each) for each in limiter.current_limits)]))
        return "ok"

    app.get("/")(limiter.limit("3/minute;2/hour")(limiter.shared_limit("5/second", "x")(tell)))
    app.get("/free", endpoint="free")(lambda: tell())
    client = app.test_client()
    codes(*(client.get(path) for path in ("/", "/", "/free")))
    return " | ".join(told)


def _stand(lib: Library, limit: Any) -> str:
    seconds = limit.reset_at - int(lib._now)
    return f"({limit.limit}: {limit.remaining} {seconds} {limit.breached} {limit.shared})"


def current_limits_of_a_refusal(lib: Library) -> str:
    (app, limiter), told = lib.shop(), []
    app.get("/")(limiter.limit("9/minute;1/hour")(_view(1)))

    @app.after_request
    def tell(response: Response) -> Response:
        told.append(" ".join(_stand(lib, each) for each in limiter.current_limits))
        return response

    times(2, app)
    return told[-1]


def what_a_request_limit_knows(lib: Library) -> str:
    app, limiter = lib.shop(key_prefix="p")
    told: list[Any] = []

    @app.get("/", endpoint="index")
    @limiter.limit("3/minute")
    def index() -> str:
        limit = limiter.current_limit
        told.extend([limit.key, limit.request_args, limit.window.remaining, round(limit.window.reset_time - lib._now)])
        told.extend([limit.limit.amount, limit.extension.limiter is not None, limit.limiter is not None])
        told.append(limiter.limiter.get_window_stats(limit.limit, *limit.request_args).remaining)
        return "ok"

    app.test_client().get("/")
    return str(told)


def context_of_the_request(lib: Library) -> str:
    app, limiter = lib.shop()
    app.get("/")(limiter.limit("3/minute")(lambda: str(limiter.context.view_rate_limit.remaining)))

    @app.after_request
    def note(response: Response) -> Response:
        response.headers["X-Limits"] = str(len(limiter.context.view_rate_limits))
        return response

    response = app.test_client().get("/")
    return response.text + response.headers["X-Limits"]


def identify_request(lib: Library) -> str:
    app, limiter = lib.shop(request_identifier=lambda: request.path)
    app.get("/<part>")(limiter.limit("1/minute")(lambda part: limiter.identify_request()))
    client = app.test_client()
    seen = client.get("/a").text + " " + client.get("/b").text + " " + times(1, client, "/a")
    plain = lib.limiter(lib.app())
    with lib.app().test_request_context():
        unknown = lib.names.Limiter(lib.util.get_remote_address).identify_request()
    assert plain is not None
    return f"{seen} {unknown!r}"


# Apps


def init_app(lib: Library) -> str:
    limiter = lib.names.Limiter(lib.util.get_remote_address, default_limits=["1/minute"], storage_uri="memory://")
    seen = [str(limiter.initialized)]
    view = limiter.limit("2/minute")(_view(1))
    for name in ("first", "second"):
        app = lib.app(name)
        limiter.init_app(app)
        lib.freeze(app)
        app.get("/own", endpoint=f"{name}_own")(view)
        app.get("/", endpoint=f"{name}_index")(_view(2))
        seen.append(times(2, app) + " " + times(3, app, "/own"))
    seen.append(f"{limiter.initialized} {limiter.enabled} {limiter in app.extensions['limiter']}")
    return " | ".join(seen)


def a_limiter_of_the_current_app(lib: Library) -> str:
    limiter = lib.names.Limiter(lib.util.get_remote_address, app=current_app, storage_uri="memory://")
    app = lib.app()
    with app.app_context():
        limiter.init_app(current_app)
    app.get("/")(limiter.limit("1/minute")(_view(1)))
    return times(2, app)


def a_limiter_that_no_app_has(lib: Library) -> str:
    app = lib.app()
    limiter = lib.names.Limiter(lib.util.get_remote_address, default_limits=["1/minute"])
    app.get("/")(limiter.limit("1/minute")(_view(1)))
    return times(2, app)


def switched_off(lib: Library) -> str:
    seen = []
    switches: list[tuple[dict[str, Any], dict[str, Any]]]
    switches = [({"RATELIMIT_ENABLED": False}, {}), ({}, {"enabled": False})]
    for config, options in switches:
        app = lib.app(**config, RATELIMIT_STORAGE_URI="tape://")
        limiter = lib.limiter(app, default_limits=["1/minute"], **options)
        app.get("/")(limiter.limit("1/minute")(_view(1)))
        seen.append(f"{times(2, app)} {limiter.enabled} {limiter.initialized}")
    return " | ".join(seen)


def switched_off_and_on(lib: Library) -> str:
    app, limiter = lib.shop(headers_enabled=True, application_limits=["5/minute"])
    app.get("/")(limiter.limit("1/minute")(_view(1)))
    client = app.test_client()
    limiter.enabled = False
    response = client.get("/")
    seen = f"{times(1, client)} {response.headers.get('X-RateLimit-Limit')}"
    limiter.enabled = True
    return seen + " | " + times(2, client)


def two_limiters(lib: Library) -> str:
    app = lib.app()
    first = lib.limiter(app, key_prefix="a", default_limits=["3/hour"], headers_enabled=True)
    second = lib.limiter(app, key_prefix="b", default_limits=["2/minute"])
    app.get("/")(_view(1))
    app.get("/own")(first.limit("1/minute")(second.limit("9/minute")(_view(2))))
    seen = times(3, app)
    lib.advance(61)
    return seen + " | " + times(2, app) + " | " + times(2, app, "/own")


def two_limiters_without_prefix(lib: Library) -> str:
    app = lib.app()
    first, second = lib.limiter(app), lib.limiter(app)
    app.get("/")(first.limit("2/minute")(second.limit("2/minute")(_view(1))))
    return times(3, app)


def settings(lib: Library) -> str:
    app = lib.app(
        RATELIMIT_DEFAULT="2/minute;3/hour",
        RATELIMIT_DEFAULTS_PER_METHOD=True,
        RATELIMIT_DEFAULTS_COST=1,
        RATELIMIT_DEFAULTS_EXEMPT_WHEN=lambda: "free" in request.args,
        RATELIMIT_DEFAULTS_DEDUCT_WHEN=lambda response: "not" not in request.args,
        RATELIMIT_APPLICATION="6/minute",
        RATELIMIT_APPLICATION_PER_METHOD=True,
        RATELIMIT_APPLICATION_COST=lambda: 1,
        RATELIMIT_APPLICATION_EXEMPT_WHEN=lambda: "free" in request.args,
        RATELIMIT_APPLICATION_DEDUCT_WHEN=lambda response: True,
        RATELIMIT_KEY_PREFIX="p",
        RATELIMIT_STRATEGY="moving-window",
        RATELIMIT_STORAGE_URI="memory://",
        RATELIMIT_STORAGE_OPTIONS={},
        RATELIMIT_SWALLOW_ERRORS=False,
        RATELIMIT_FAIL_ON_FIRST_BREACH=True,
        RATELIMIT_IN_MEMORY_FALLBACK_ENABLED=True,
    )
    lib.limiter(app)
    app.route("/", methods=["GET", "POST"])(_view(1))
    seen = times(2, app, "/?free") + " | " + times(2, app, "/?not") + " | " + times(3, app)
    return seen + " | " + times(3, app, method="POST")


def settings_of_reactions(lib: Library) -> str:
    app = lib.app(
        RATELIMIT_DEFAULT="1/second",
        RATELIMIT_META="1/minute",
        RATELIMIT_ON_BREACH_CALLBACK=lambda limit: make_response("breach", 429),
        RATELIMIT_ON_META_BREACH_CALLBACK=lambda limit: make_response("meta", 429),
        RATELIMIT_REQUEST_IDENTIFIER=lambda: "everywhere",
    )
    lib.limiter(app)
    app.get("/a", endpoint="a")(_view(1))
    app.get("/b", endpoint="b")(_view(2))
    client = app.test_client()
    return " ".join(client.get(path).text for path in ("/a", "/b", "/b"))


def arguments_go_before_settings(lib: Library) -> str:
    app = lib.app(RATELIMIT_DEFAULT="9/minute", RATELIMIT_HEADERS_ENABLED=True, RATELIMIT_STRATEGY="moving-window")
    lib.limiter(app, default_limits=["1/minute"], headers_enabled=False, strategy="fixed-window")
    app.get("/")(_view(1))
    client = app.test_client()
    return times(2, client) + f" {client.get('/').headers.get('X-RateLimit-Limit')}"


def swallow_errors(lib: Library) -> str:
    seen = []
    for swallow in (False, True):
        app, limiter = lib.shop(swallow_errors=swallow)
        app.get("/")(limiter.limit("1/minute", key_func=lambda: str(1 / 0))(_view(1)))
        seen.append(times(2, app))
    return " | ".join(seen) + f" | {len(lib.logged('ERROR'))} errors logged"


def outside_of_a_request(lib: Library) -> str:
    app, limiter = lib.shop()
    try:
        with app.app_context():
            limiter.limit("1/minute")(_view(1))()
    except RuntimeError:
        return "RuntimeError"
    return "passed"


# The command line


TOLD = (
    *("a: /a", "free: /free", "7 per 1 hour", "2 per 1 minute", "Exempt", "Pass (7 out of 7", "Fail (0 out of 2"),
    *("2 per 1 minute (POST): Pass (2", "not found", "matched", "RATELIMIT_STRATEGY", "No Flask-Limiter"),
)


def _run(lib: Library, app: flask.Flask, *arguments: str, wanted: tuple[str, ...] = TOLD) -> str:
    commands: Any = __import__(f"{lib.name}.commands", fromlist=["cli"])
    output = app.test_cli_runner().invoke(commands.cli, arguments).output
    return f"{arguments[0]}: " + ", ".join(text for text in wanted if text in output)


def flask_limiter_command(lib: Library) -> str:
    app, limiter = lib.shop(default_limits=["7/hour"])
    app.get("/a", endpoint="a")(_view(1))
    app.route("/b", endpoint="b", methods=["GET", "POST"])(limiter.limit("2/minute", per_method=True)(_view(2)))
    app.get("/free", endpoint="free")(limiter.exempt(_view(3)))
    times(2, app, "/b")
    asked = [
        ["limits"],
        ["limits", "--key", "127.0.0.1"],
        ["limits", "--endpoint", "a"],
        ["limits", "--endpoint", "no"],
    ]
    asked += [["limits", "--path", "/no"], ["limits", "--path", "/a"]]
    seen = [_run(lib, app, *arguments) for arguments in asked]
    seen.append(_run(lib, app, "config", wanted=("RATELIMIT_STRATEGY", "7 per 1 hour", "7/hour")).partition(",")[0])
    seen.append(_run(lib, app, "clear", "--key", "127.0.0.1", "-y", wanted=("7 per 1 hour: Cleared", "2 per 1 minute")))
    return " | ".join([*seen, times(1, app, "/b"), _run(lib, lib.app(), "limits")])


def limits_of_the_application_on_the_command_line(lib: Library) -> str:
    app = lib.app()
    lib.limiter(app, default_limits=["7/hour"], application_limits=["50/day"])
    app.get("/a", endpoint="a")(_view(1))
    wanted = ("50 per 1 day",)
    clear = ("clear", "--key", "127.0.0.1", "-y")
    seen = [_run(lib, app, "limits", wanted=wanted), _run(lib, app, "limits", "--endpoint", "a", wanted=wanted)]
    return " | ".join([*seen, _run(lib, app, *clear, wanted=wanted)])


# Outages


def _outage(lib: Library, **options: Any) -> str:
    app = lib.app(MULTILIMIT_WORKERS=1)
    nobody = "redis://127.0.0.1:1"
    limiter = lib.names.Limiter(lib.util.get_remote_address, app=app, storage_uri=nobody, **options)
    app.get("/")(limiter.limit("2/minute")(_view(1)))
    return times(3, app)


def an_outage(lib: Library) -> str:
    return _outage(lib)


def an_outage_with_swallow_errors(lib: Library) -> str:
    return _outage(lib, swallow_errors=True)


def a_refused_client_during_an_outage(lib: Library) -> str:
    app = lib.app()
    with Server(next(iter(find_binaries().values()))) as server:
        uri = server.url.replace("unix:", "redis+unix:")
        limiter = lib.names.Limiter(lib.util.get_remote_address, app=app, storage_uri=uri, swallow_errors=True)
        app.get("/")(limiter.limit("1/hour")(_view(1)))
        seen = times(2, app)
    return seen + " | " + times(1, app)


def an_outage_with_a_fallback(lib: Library) -> str:
    return _outage(lib, in_memory_fallback_enabled=True)


def an_outage_with_limits_for_it(lib: Library) -> str:
    seen = [_outage(lib, in_memory_fallback=["1/minute"])]
    app = lib.app(RATELIMIT_IN_MEMORY_FALLBACK="1/minute", RATELIMIT_STORAGE_URI="redis://127.0.0.1:1")
    limiter = lib.names.Limiter(lib.util.get_remote_address, app=app, storage_options={"socket_timeout": 1})
    app.get("/")(limiter.limit("2/minute")(_view(1)))
    return " | ".join([*seen, times(2, app)])


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
