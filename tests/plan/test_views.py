"""Where limited views may live: class-based views, blueprints, several endpoints, several apps, factories."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from flask import Blueprint, Flask, Response
from flask.views import MethodView

from flask_multilimit import ConfigurationError, LimitType, MultiLimit, rate_limiter
from flask_multilimit.engine import MemoryStorage
from flask_multilimit.serve.gate import gate_of
from support.asking import statuses
from support.doubles import OPEN, RecordingStorage

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask.testing import FlaskClient

    from support.clock import Clock


class TestClassBasedViews:
    def test_methods_have_limits_of_their_own_in_one_endpoint(
        self, limited_app: Flask, client: FlaskClient, storage: RecordingStorage
    ) -> None:
        class Items(MethodView):
            @rate_limiter(rules="10/minute")
            @rate_limiter(rules="100/hour")
            def get(self) -> str:
                return "got"

            @rate_limiter(rules="1/day")
            def post(self) -> str:
                return "made"

            def delete(self) -> str:
                return "gone"

        limited_app.add_url_rule("/items", view_func=Items.as_view("items"))

        assert [client.get("/items").text, client.head("/items").status_code] == ["got", 200]
        assert [client.post("/items").text, client.post("/items").status_code] == ["made", 429]
        assert client.delete("/items").text == "gone"
        assert storage.windows == [[60, 3600], [60, 3600], [86400], [86400]]
        assert {key.split(":default")[0] for keys in storage.keys_asked for key in keys} == {
            "rate_limit:{items}:GET",
            "rate_limit:{items}:POST",
        }

    @pytest.mark.parametrize("name", ["items", "things"])
    def test_limits_in_decorators_name_the_view_as_it_is_made(self, limited_app: Flask, name: str) -> None:
        class Items(MethodView):
            decorators: ClassVar = [rate_limiter(rules="10/minute")]

            def get(self) -> str:
                return "got"

        limited_app.add_url_rule("/items", view_func=Items.as_view(name))

        plan = gate_of(limited_app).plans.of_endpoint(name, "GET")

        assert [limiter.declaration.where for limiter in plan.limiters] == [f"{__name__}:View.as_view({name!r})"]

    def test_a_head_method_goes_by_its_own_limits(
        self, limited_app: Flask, client: FlaskClient, storage: RecordingStorage
    ) -> None:
        class Items(MethodView):
            def get(self) -> str:
                return "got"

            @rate_limiter(rules="1/minute")
            def head(self) -> str:
                return ""

        limited_app.add_url_rule("/items", view_func=Items.as_view("items"))

        assert [client.head("/items").status_code, client.head("/items").status_code] == [200, 429]
        assert client.get("/items").status_code == 200
        assert storage.keys_asked[0] == ["rate_limit:{items}:HEAD:default::sliding_window:60000"]

    def test_inherited_methods_count_by_endpoint(
        self, limited_app: Flask, client: FlaskClient, storage: RecordingStorage
    ) -> None:
        class Base(MethodView):
            @rate_limiter(rules="1/minute")
            def get(self) -> str:
                return type(self).__name__

        class One(Base): ...

        class Two(Base): ...

        limited_app.add_url_rule("/one", view_func=One.as_view("one"))
        limited_app.add_url_rule("/two", view_func=Two.as_view("two"))

        assert [client.get("/one").text, client.get("/two").text] == ["One", "Two"]
        assert [keys[0].split(":default")[0] for keys in storage.keys_asked] == [
            "rate_limit:{one}:GET",
            "rate_limit:{two}:GET",
        ]

    def test_limiters_among_the_decorators_of_the_class_cover_every_method(
        self, limited_app: Flask, client: FlaskClient, storage: RecordingStorage
    ) -> None:
        class Items(MethodView):
            decorators: ClassVar[list[Callable[..., Any]]] = [
                rate_limiter(rules="100/hour"),
                rate_limiter(rules="2/minute"),
            ]

            def get(self) -> str:
                return "got"

            def post(self) -> str:
                return "made"

        limited_app.add_url_rule("/items", view_func=Items.as_view("items"))

        assert [client.get("/items").status_code, client.post("/items").status_code] == [200, 200]
        assert client.get("/items").status_code == 429
        assert storage.windows == [[60, 3600]] * 3

    def test_a_bound_method_as_a_view(self, limited_app: Flask, client: FlaskClient, storage: RecordingStorage) -> None:
        class Pages:
            text = "page"

            @rate_limiter(rules="1/minute")
            def show(self) -> str:
                return self.text

        limited_app.add_url_rule("/page", "page", Pages().show)

        assert [client.get("/page").text, client.get("/page").status_code] == ["page", 429]
        assert storage.keys_asked[0] == ["rate_limit:{page}:default::sliding_window:60000"]


def test_one_view_under_two_endpoints_has_a_quota_under_each(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage
) -> None:
    @limited_app.get("/old", endpoint="old")
    @limited_app.get("/new", endpoint="new")
    @rate_limiter(rules="1/minute")
    def view() -> str:
        return "ok"

    assert [client.get(path).status_code for path in ("/old", "/new", "/old", "/new")] == [200, 200, 429, 429]
    assert [keys[0].split(":default")[0] for keys in storage.keys_asked[:2]] == ["rate_limit:{old}", "rate_limit:{new}"]


def test_two_paths_of_one_endpoint_share_its_quota(limited_app: Flask, client: FlaskClient) -> None:
    @limited_app.get("/old")
    @limited_app.get("/new")
    @rate_limiter(rules="1/minute")
    def view() -> str:
        return "ok"

    assert [client.get("/old").status_code, client.get("/new").status_code] == [200, 429]


def test_blueprints_count_by_their_endpoints(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage
) -> None:
    inner = Blueprint("inner", __name__, url_prefix="/inner")
    outer = Blueprint("outer", __name__, url_prefix="/outer")

    @inner.get("/")
    @rate_limiter(rules="1/minute")
    def view() -> str:
        return "ok"

    outer.register_blueprint(inner)
    limited_app.register_blueprint(inner)
    limited_app.register_blueprint(outer)

    assert [client.get(path).status_code for path in ("/inner/", "/outer/inner/", "/inner/")] == [200, 200, 429]
    assert [keys[0].split(":default")[0] for keys in storage.keys_asked[:2]] == [
        "rate_limit:{inner.view}",
        "rate_limit:{outer.inner.view}",
    ]


def test_unlimited_views_ask_no_storage(limited_app: Flask, client: FlaskClient, storage: RecordingStorage) -> None:
    @limited_app.get("/free")
    def free() -> str:
        return "ok"

    response = client.get("/free")

    assert "RateLimit" not in response.headers
    assert [client.get("/nowhere").status_code, client.post("/free").status_code] == [404, 405]
    assert storage.checks == []


def test_an_automatic_options_answer_is_not_charged(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage
) -> None:
    limited_app.add_url_rule("/", "view", rate_limiter(rules="1/minute")(lambda: "ok"))

    assert client.options("/").status_code == 200
    assert storage.checks == []


class TestApps:
    def test_apps_that_share_a_storage_share_quotas(self, clock: Clock) -> None:
        storage = MemoryStorage(clock=clock)
        statuses = []
        for _ in range(2):
            app = Flask("app")
            MultiLimit(app, storage=storage)
            app.add_url_rule("/", "view", rate_limiter(rules="1/minute")(lambda: "ok"))
            statuses.append(app.test_client().get("/").status_code)

        assert statuses == [200, 429]

    def test_a_factory_can_be_called_any_number_of_times(self) -> None:
        multilimit = MultiLimit()

        def create_app() -> Flask:
            app = Flask("app")
            multilimit.init_app(app)

            @app.get("/")
            @rate_limiter(rules="1/minute")
            def view() -> str:
                return "ok"

            return app

        for _ in range(3):
            client = create_app().test_client()
            assert [client.get("/").status_code, client.get("/").status_code] == [200, 429]

    def test_the_extension_may_come_after_the_views(self, app: Flask) -> None:
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute")(lambda: "ok"))

        MultiLimit(app)

        client = app.test_client()
        assert [client.get("/").status_code, client.get("/").status_code] == [200, 429]

    def test_an_app_takes_one_multilimit_only(self, limited_app: Flask) -> None:
        with pytest.raises(ConfigurationError, match=r"'shop' has a MultiLimit already; use that one: app\.extensions"):
            MultiLimit(limited_app)

    def test_the_extension_is_registered_with_each_app(self) -> None:
        one, other, multilimit = Flask("one"), Flask("other"), MultiLimit()

        multilimit.init_app(one)
        multilimit.init_app(other)

        assert one.extensions["multilimit"] is other.extensions["multilimit"] is multilimit

    def test_an_app_that_is_dropped_is_not_kept_by_the_extension(self) -> None:
        app, multilimit = Flask("shop"), MultiLimit()
        multilimit.init_app(app)
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute")(lambda: "ok"))
        app.test_client().get("/")

        dropped = weakref.ref(app)
        del app
        gc.collect()

        assert dropped() is None


class TestMisplacedAboveTheRoute:
    """There the route has the function without its limits; they would be silently off."""

    def test_is_an_error_at_the_first_request(self, limited_app: Flask, client: FlaskClient) -> None:
        @limited_app.get("/free")
        def free() -> str:
            return "ok"

        @rate_limiter()
        @limited_app.get("/")
        def view() -> str:
            return "ok"

        with pytest.raises(ConfigurationError, match=r'"view": @rate_limiter stands above @app\.route.*on top'):
            client.get("/free")

    def test_is_an_error_at_every_request(self, limited_app: Flask, client: FlaskClient) -> None:
        kept = rate_limiter()(limited_app.get("/")(lambda: "ok"))
        limited_app.testing = False

        assert [client.get("/").status_code for _ in range(3)] == [500] * 3
        del kept

    def test_is_an_error_also_when_nobody_keeps_the_function(self, limited_app: Flask, client: FlaskClient) -> None:
        def add_routes() -> None:
            @rate_limiter()
            @limited_app.get("/")
            def view() -> str:
                return "ok"

        add_routes()
        gc.collect()

        with pytest.raises(ConfigurationError, match="stands above"):
            client.get("/")

    def test_is_an_error_also_on_a_blueprint(self, limited_app: Flask, client: FlaskClient) -> None:
        pages = Blueprint("pages", __name__)

        @rate_limiter()
        @pages.get("/")
        def view() -> str:
            return "ok"

        limited_app.register_blueprint(pages)

        with pytest.raises(ConfigurationError, match=r'"pages\.view"'):
            client.get("/")

    def test_is_an_error_also_when_another_limiter_stands_below(self, limited_app: Flask, client: FlaskClient) -> None:
        @rate_limiter(type=LimitType.IP, rules="1/minute")
        @limited_app.get("/")
        @rate_limiter(rules="100/hour")
        def view() -> str:
            return "ok"

        with pytest.raises(ConfigurationError, match="stands above"):
            client.get("/")

    @pytest.mark.parametrize("foreign", OPEN.values(), ids=OPEN.keys())
    def test_is_an_error_also_with_another_decorator_between(
        self, limited_app: Flask, client: FlaskClient, foreign: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        @rate_limiter()
        @foreign
        @limited_app.get("/")
        def view() -> str:
            return "ok"

        with pytest.raises(ConfigurationError, match="stands above"):
            client.get("/")

    def test_is_none_when_the_limited_function_is_routed_too(self, limited_app: Flask, client: FlaskClient) -> None:
        @limited_app.get("/internal")
        def view() -> str:
            return "ok"

        limited_app.add_url_rule("/public", "public", rate_limiter(rules="1/minute")(view))

        assert [client.get("/public").status_code, client.get("/public").status_code] == [200, 429]
        assert client.get("/internal").status_code == 200

    def test_is_none_when_the_limited_function_is_a_view_of_another_app(self, clock: Clock) -> None:
        """As an application factory does that limits only in production."""

        def view() -> str:
            return "ok"

        def create_app(*, limited: bool) -> Flask:
            app = Flask("shop")
            MultiLimit(app, storage=MemoryStorage(clock=clock))
            app.add_url_rule("/", "view", rate_limiter(rules="1/minute")(view) if limited else view)
            return app

        assert statuses(create_app(limited=True), "/", "/") == [200, 429]
        gc.collect()
        assert statuses(create_app(limited=False), "/", "/") == [200, 200]


def test_a_refused_request_runs_no_code_of_the_view(limited_app: Flask, client: FlaskClient) -> None:
    ran: list[str] = []

    @limited_app.get("/")
    @rate_limiter(rules="1/minute")
    def view() -> Response:
        ran.append("view")
        return Response("ok")

    assert [client.get("/").status_code for _ in range(5)] == [200, 429, 429, 429, 429]
    assert ran == ["view"]


def test_a_view_that_fails_is_charged_and_keeps_its_header_fields(limited_app: Flask, client: FlaskClient) -> None:
    limited_app.testing = False

    @limited_app.get("/")
    @rate_limiter(rules="1/minute")
    def view() -> str:
        raise ZeroDivisionError

    first, second = client.get("/"), client.get("/")

    assert (first.status_code, first.headers["RateLimit"]) == (500, '"default-60s";r=0;t=60')
    assert second.status_code == 429
