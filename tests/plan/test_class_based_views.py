"""Class-based views: Flask's own, and those of flask-restful, flask-restx, flask-smorest and flask-admin."""

# mypy: disable-error-code="untyped-decorator"
import functools
import warnings
from collections.abc import Callable
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest
from flask import Flask
from flask.views import MethodView, View

from flask_multilimit import MultiLimit, rate_limiter
from flask_multilimit.serve.gate import gate_of
from support.asking import ask, policy, statuses
from support.doubles import RecordingStorage

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # these packages use deprecated functions
    import flask_admin
    import flask_restful
    import flask_restx
    import flask_smorest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:(flask_|apispec|webargs|marshmallow|jsonschema).*")


@pytest.fixture
def app(app: Flask, storage: RecordingStorage) -> Flask:
    MultiLimit(app, storage=storage, default_limits="90/hour")
    return app


class TestFlask:
    @pytest.mark.parametrize("init_every_request", [True, False])
    def test_each_method_of_a_method_view_has_its_own_limits(
        self, app: Flask, storage: RecordingStorage, init_every_request: bool
    ) -> None:
        class Items(MethodView):
            def get(self) -> str:
                return "got"

            @rate_limiter(rules="1/minute")
            def post(self) -> str:
                return "made"

            @rate_limiter(rules="2/second", with_defaults=True)
            def delete(self) -> str:
                return "gone"

            @rate_limiter(rules="1/day")
            def head(self) -> str:
                return ""

        Items.init_every_request = init_every_request
        app.add_url_rule("/", view_func=Items.as_view("items"))

        assert statuses(app, "/", "/", method="POST") == [200, 429]
        assert [*statuses(app, "/"), *statuses(app, "/", method="DELETE"), *statuses(app, "/", method="HEAD")] == [
            200
        ] * 3
        assert storage.windows == [[60], [60], [3600], [3600, 1], [86400]]
        assert storage.keys_asked[0] == ["rate_limit:{items}:POST:default::sliding_window:60000"]
        assert storage.keys_asked[4] == ["rate_limit:{items}:HEAD:default::sliding_window:86400000"]

    @pytest.mark.parametrize("every_request", [True, False])
    def test_limiters_on_class_dispatch_and_method_are_one_check(
        self, app: Flask, storage: RecordingStorage, every_request: bool
    ) -> None:
        class Items(MethodView):
            init_every_request = every_request
            decorators: ClassVar[list[Any]] = [rate_limiter(rules="9/hour"), rate_limiter(rules="2/minute")]

            @rate_limiter(rules="3 per 2 minutes")
            def dispatch_request(self, **arguments: Any) -> Any:
                return super().dispatch_request(**arguments)

            @rate_limiter(rules="4 per 3 minutes")
            def get(self) -> str:
                return "got"

            def post(self) -> str:
                return "made"

        app.add_url_rule("/", view_func=Items.as_view("items"))

        assert statuses(app, "/", "/", "/") == [200, 200, 429]
        assert storage.windows == [[60, 3600, 120, 180]] * 3
        assert statuses(app, "/", method="POST") == [429]

    def test_inherited_method_has_a_quota_for_each_endpoint(self, app: Flask, storage: RecordingStorage) -> None:
        class Base(MethodView):
            @rate_limiter(rules="1/minute")
            def get(self) -> str:
                return "ok"

        class One(Base): ...

        class Two(Base): ...

        app.add_url_rule("/one", view_func=One.as_view("one"))
        app.add_url_rule("/two", view_func=Two.as_view("two"))

        assert statuses(app, "/one", "/two") == [200, 200]
        assert [keys[0].split(":default")[0] for keys in storage.keys_asked] == [
            "rate_limit:{one}:GET",
            "rate_limit:{two}:GET",
        ]

    @pytest.mark.parametrize("name", ["items", "things"])
    def test_limiter_in_decorators_names_the_as_view_call(self, app: Flask, name: str) -> None:
        class Items(MethodView):
            decorators: ClassVar = [rate_limiter(rules="10/minute")]

            def get(self) -> str:
                return "got"

        app.add_url_rule("/items", view_func=Items.as_view(name))

        plan = gate_of(app).plans.of_endpoint(name, "GET")

        assert [limiter.declaration.where for limiter in plan.limiters] == [f"{__name__}:View.as_view({name!r})"]

    def test_bound_method_can_be_a_limited_view(self, app: Flask, storage: RecordingStorage) -> None:
        class Pages:
            @rate_limiter(rules="1/minute")
            def show(self) -> str:
                return "page"

        app.add_url_rule("/page", "page", Pages().show)

        assert statuses(app, "/page", "/page") == [200, 429]
        assert storage.keys_asked[0] == ["rate_limit:{page}:default::sliding_window:60000"]

    def test_method_named_get_of_a_plain_view_is_no_request_method(self, app: Flask, storage: RecordingStorage) -> None:
        class Page(View):
            def get(self) -> str:
                return "a helper"

            @rate_limiter(rules="1/minute")
            def dispatch_request(self) -> str:
                return self.get()

        app.add_url_rule("/", view_func=Page.as_view("page"))

        assert statuses(app, "/", "/") == [200, 429]
        assert storage.keys_asked[0] == ["rate_limit:{page}:default::sliding_window:60000"]


@pytest.mark.parametrize("below", [functools.partial, functools.cache])
def test_class_based_view_is_found_below_transparent_decorators(
    app: Flask, storage: RecordingStorage, below: Callable[..., Any]
) -> None:
    class Page(MethodView):
        @rate_limiter(rules="9/minute")
        def get(self) -> str:
            return "ok"

    app.add_url_rule("/", "page", below(Page.as_view("page")))

    assert statuses(app, "/") == [200]
    assert storage.windows == [[60]]


def test_mock_is_not_taken_for_a_class_based_view(app: Flask, storage: RecordingStorage) -> None:
    app.add_url_rule("/", "mock", MagicMock(return_value="ok"), methods=["GET"])
    assert statuses(app, "/") == [200]
    assert len(storage.windows) == 1


class TestRestful:
    @pytest.mark.parametrize("decorators", ["decorators", "method_decorators", "by method"])
    def test_limiters_on_a_resource_and_its_methods_are_one_check(
        self, app: Flask, storage: RecordingStorage, decorators: str
    ) -> None:
        limits = [rate_limiter(rules="1/second"), rate_limiter(rules="5/minute")]

        class Items(flask_restful.Resource):  # type: ignore[misc, unused-ignore]
            @rate_limiter(rules="9/hour")
            def get(self) -> dict[str, int]:
                return {"n": 1}

            def put(self) -> dict[str, int]:
                return {"n": 2}

        if decorators == "by method":
            Items.method_decorators = {"get": limits}
        else:
            setattr(Items, decorators, limits)
        flask_restful.Api(app).add_resource(Items, "/items")

        first, second = ask(app, "/items"), ask(app, "/items")
        assert (first.json, second.status_code, second.headers["Retry-After"]) == ({"n": 1}, 429, "1")
        assert statuses(app, "/items", method="PUT") == [429 if decorators == "decorators" else 200]
        assert storage.windows[:2] == [[60, 1, 3600]] * 2
        assert storage.windows[2:] == ([[3600]] if decorators == "by method" else [[60, 1]])


class TestRestx:
    def test_limiters_on_namespace_resource_and_method_are_one_check(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        api = flask_restx.Api(app)
        namespace = flask_restx.Namespace("shop", decorators=[rate_limiter(rules="9/hour", with_defaults=False)])

        @namespace.route("/items")
        class Items(flask_restx.Resource):  # type: ignore[misc, unused-ignore]
            method_decorators: ClassVar[list[Any]] = [rate_limiter(rules="5/minute")]

            @rate_limiter(rules="1/second")
            def get(self) -> dict[str, int]:
                return {"n": 1}

        @api.route("/things")
        class Things(flask_restx.Resource):  # type: ignore[misc, unused-ignore]
            @rate_limiter(rules="1/minute")
            def get(self) -> dict[str, int]:
                return {"n": 2}

            def post(self) -> dict[str, int]:
                return {"n": 3}

        api.add_namespace(namespace, "/shop")

        first, second = ask(app, "/shop/items"), ask(app, "/shop/items")
        assert (first.json, second.status_code, second.headers["Retry-After"]) == ({"n": 1}, 429, "1")
        assert storage.windows == [[3600, 60, 1]] * 2
        assert statuses(app, "/things", "/things") == [200, 429]
        assert statuses(app, "/things", method="POST") == [200]
        assert storage.windows[-1] == [3600]


class TestSmorest:
    @pytest.fixture
    def api(self, app: Flask) -> Any:
        app.config |= {"API_TITLE": "shop", "API_VERSION": "1", "OPENAPI_VERSION": "3.0.3"}
        return flask_smorest.Api(app)

    def test_limited_functions_and_methods_work_with_smorest_decorators(
        self, app: Flask, api: Any, storage: RecordingStorage
    ) -> None:
        shop = flask_smorest.Blueprint("shop", "shop", url_prefix="/shop")

        @shop.route("/items")
        class Items(MethodView):
            @shop.response(200)
            @rate_limiter(rules="1/minute")
            def get(self) -> dict[str, int]:
                return {"n": 1}

            @rate_limiter(rules="1/second")
            @shop.response(201)
            def post(self) -> dict[str, int]:
                return {"n": 2}

        @shop.route("/hello")
        @shop.response(200)
        @rate_limiter(rules="1/minute")
        def hello() -> dict[str, int]:
            return {"n": 3}

        api.register_blueprint(shop)

        assert statuses(app, "/shop/items", "/shop/items", "/shop/hello", "/shop/hello") == [200, 429, 200, 429]
        assert statuses(app, "/shop/items", "/shop/items", method="POST") == [201, 429]
        assert storage.windows == [[60]] * 4 + [[1]] * 2

    def test_smorest_blueprint_can_be_limited(self, app: Flask, api: Any, storage: RecordingStorage) -> None:
        shop = rate_limiter(rules="1/minute")(flask_smorest.Blueprint("shop", "shop", url_prefix="/shop"))

        @shop.route("/hello")
        @shop.response(200)
        def hello() -> dict[str, int]:
            return {"n": 3}

        api.register_blueprint(shop)

        refused = [ask(app, "/shop/hello") for _ in range(2)][1]
        assert (refused.status_code, refused.headers["Retry-After"], policy(refused)) == (429, "60", ["default-60s"])
        assert storage.windows == [[60]] * 2


class TestAdmin:
    class Reports(flask_admin.BaseView):  # type: ignore[misc, unused-ignore]
        @flask_admin.expose("/")
        def index(self) -> str:
            return "reports"

        @flask_admin.expose("/export", methods=["GET", "POST"])
        @rate_limiter(rules="1/minute")
        def export(self) -> str:
            return "exported"

    def test_exposed_methods_are_limited_separately(self, app: Flask, storage: RecordingStorage) -> None:
        flask_admin.Admin(app, name="shop").add_view(self.Reports(endpoint="reports"))
        assert statuses(app, "/admin/reports/export", "/admin/reports/export") == [200, 429]
        assert statuses(app, "/admin/reports/", "/admin/reports/") == [200, 200]
        assert storage.windows == [[60], [60], [3600], [3600]]

    def test_limits_in_settings_apply_to_an_admin_view(self, storage: RecordingStorage) -> None:
        app = Flask("shop")
        app.config["MULTILIMIT_LIMITS"] = {"reports": "1 per 2 minutes"}
        MultiLimit(app, storage=storage)
        flask_admin.Admin(app, name="shop").add_view(self.Reports(name="Again", endpoint="reports"))

        assert statuses(app, "/admin/reports/", "/admin/reports/") == [200, 429]
