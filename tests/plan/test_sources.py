"""Limits of the app, defaults, blueprints, settings and files; and exemption from them."""

import json
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from flask import Blueprint, Flask
from flask.views import MethodView, View

from flask_multilimit import ConfigurationError, LimitType, MultiLimit, Rule, exempt, rate_limiter
from flask_multilimit.plan.sources import ByName
from support.asking import ask, policy, statuses, view
from support.calls import calls_during
from support.clock import Clock
from support.doubles import RecordingStorage


def windows(storage: RecordingStorage) -> list[list[float]]:
    return [sorted(of_one) for of_one in storage.windows]


@pytest.mark.parametrize("place", ["constructor", "init_app", "setting"])
@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("limits", {"sh*": "1/minute"}),
        ("application_limits", [Rule(time=60, count=1), {"type": "ip", "rules": "5/second"}]),
        ("default_limits", "1/minute"),
        ("unmatched_limits", "1/minute"),
    ],
)
def test_limits_are_read_from_constructor_init_app_and_settings(
    app: Flask, storage: RecordingStorage, place: str, name: str, limits: Any
) -> None:
    if place == "setting":
        app.config[f"MULTILIMIT_{name.upper()}"] = limits
    multilimit = MultiLimit(storage=storage, **({name: limits} if place == "constructor" else {}))
    multilimit.init_app(app, **({name: limits} if place == "init_app" else {}))
    app.add_url_rule("/", "show", view())

    path, admitted = ("/nowhere", 404) if name == "unmatched_limits" else ("/", 200)
    assert statuses(app, path, path) == [admitted, 429]


@pytest.mark.parametrize("given", [(name for name in "a"), pytest])
def test_setting_of_limits_that_cannot_be_copied_is_an_error_that_names_it(app: Flask, given: object) -> None:
    app.config["MULTILIMIT_LIMITS"] = given
    with pytest.raises(ConfigurationError, match=r"^MULTILIMIT_LIMITS=.*: give a dict"):
        MultiLimit(app)


def test_change_of_limits_in_place_is_an_error_where_the_setting_is_a_view_of_them(app: Flask) -> None:
    limits = {"view": "5/minute"}
    app.config["MULTILIMIT_LIMITS"] = MappingProxyType(limits)
    multilimit = MultiLimit(app)
    app.add_url_rule("/", "view", view())

    limits["view"] = "6/minute"

    with app.app_context(), pytest.raises(ConfigurationError, match="MULTILIMIT_LIMITS changed"):
        multilimit.validate()


def test_limits_that_are_no_dict_are_an_error(app: Flask) -> None:
    with pytest.raises(ConfigurationError, match=r"limits=.*give a dict"):
        MultiLimit(app, limits=["1/minute"])  # type: ignore[arg-type]


class TestApplicationLimits:
    def test_application_limits_are_one_quota_and_one_check_with_view_limits(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        MultiLimit(app, storage=storage, application_limits=rate_limiter(type=LimitType.IP, rules="2/minute"))
        app.add_url_rule("/a", "a", view())
        app.add_url_rule("/b", "b", rate_limiter(rules="5/second")(view()))

        assert statuses(app, "/a", "/b", "/a", "/b") == [200, 200, 429, 429]
        assert storage.keys_asked[1] == [
            "rate_limit:{application}:ip:127.0.0.1:sliding_window:60000",
            "rate_limit:{b}:default::sliding_window:1000",
        ]

    def test_application_limits_with_a_scope_are_shared_by_two_apps(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        limits = rate_limiter(rules="2/minute", scope="company")
        other = Flask("other")
        for each in (app, other):
            MultiLimit(each, storage=storage, application_limits=limits)
            each.add_url_rule("/", "view", view())

        assert [*statuses(app, "/"), *statuses(other, "/", "/")] == [200, 200, 429]

    def test_application_limits_of_all_three_places_apply_together(self, app: Flask, storage: RecordingStorage) -> None:
        app.config["MULTILIMIT_APPLICATION_LIMITS"] = "30/minute"
        MultiLimit(storage=storage, application_limits="20/second").init_app(app, application_limits="100/hour")
        app.add_url_rule("/", "view", view())

        ask(app)

        assert windows(storage) == [[1, 60, 3600]]

    def test_application_limits_given_to_init_app_apply_to_that_app_only(self, storage: RecordingStorage) -> None:
        multilimit = MultiLimit(storage=storage)
        limited, free = Flask("limited"), Flask("free")
        multilimit.init_app(limited, application_limits="1/minute")
        multilimit.init_app(free)
        for each in (limited, free):
            each.add_url_rule("/", "view", view())

        assert statuses(limited, "/", "/") == [200, 429]
        assert statuses(free, "/", "/") == [200, 200]


class TestDefaultLimits:
    def test_default_limits_join_a_view_with_defaults_in_one_check(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage, default_limits="100/hour")
        app.add_url_rule("/", "view", rate_limiter(rules="2/minute", with_defaults=True)(view()))
        ask(app)
        assert windows(storage) == [[60, 3600]]

    def test_default_limits_apply_to_methods_without_a_limiter(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage, default_limits="100/hour")
        app.add_url_rule("/", "view", rate_limiter(rules="2/minute", methods=["POST"])(view()), methods=["GET", "POST"])

        ask(app)
        ask(app, method="POST")

        assert windows(storage) == [[3600], [60]]

    def test_limit_on_trial_does_not_replace_default_limits(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage, default_limits="100/hour")
        app.add_url_rule("/", "view", rate_limiter(rules="2/minute", shadow=True)(view()))
        ask(app)
        assert windows(storage) == [[60, 3600]]

    def test_default_limits_apply_to_static_files_unless_exempt(
        self, storage: RecordingStorage, tmp_path: Path
    ) -> None:
        (tmp_path / "a.txt").write_text("a")
        app = Flask("shop", static_folder=str(tmp_path), static_url_path="/static")
        for name in ("docs", "free"):
            app.register_blueprint(
                Blueprint(name, "shop", static_folder=str(tmp_path), static_url_path="/static", url_prefix=f"/{name}")
            )
        app.config["MULTILIMIT_EXEMPT"] = ["free.static"]
        MultiLimit(app, storage=storage, default_limits="1/minute")

        for folder, again in (("", 429), ("/docs", 429), ("/free", 200)):
            with ask(app, f"{folder}/static/a.txt") as first, ask(app, f"{folder}/static/a.txt") as second:
                assert [first.status_code, second.status_code] == [200, again], folder

    def test_default_limits_apply_to_a_view_named_static(self, storage: RecordingStorage) -> None:
        app = Flask("shop", static_folder=None)
        MultiLimit(app, storage=storage, default_limits="1/minute")
        app.add_url_rule("/static", "static", view())
        assert statuses(app, "/static", "/static") == [200, 429]


class TestBlueprintLimits:
    @pytest.mark.parametrize(("scope", "second"), [(None, 200), ("api", 429)])
    @pytest.mark.parametrize("late", [False, True])
    def test_blueprint_limit_counts_by_endpoint_or_by_scope(
        self, app: Flask, storage: RecordingStorage, scope: str | None, second: int, late: bool
    ) -> None:
        """The limit can be added before or after the registration of the blueprint."""
        api, limit = Blueprint("api", "api"), rate_limiter(rules="1/minute", scope=scope)
        if not late:
            limit(api)
        api.add_url_rule("/a", "a", view())
        api.add_url_rule("/b", "b", view())
        MultiLimit(app, storage=storage)
        app.register_blueprint(api)
        app.add_url_rule("/", "outside", view())
        if late:
            limit(api)

        assert statuses(app, "/a", "/b", "/a", "/", "/") == [200, second, 429, 200, 200]

    def test_limits_of_nested_blueprints_and_the_view_are_one_check(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        outer, inner = Blueprint("outer", "outer", url_prefix="/o"), Blueprint("inner", "inner", url_prefix="/i")
        rate_limiter(rules="5/hour")(outer)
        rate_limiter(rules="4/minute")(inner)
        inner.add_url_rule("/", "view", rate_limiter(rules="3/second")(view()))
        outer.register_blueprint(inner)
        outer.add_url_rule("/", "view", view())
        MultiLimit(app, storage=storage)
        app.register_blueprint(outer)

        ask(app, "/o/i/")
        ask(app, "/o/")

        assert storage.windows == [[3600, 60, 1], [3600]]
        assert storage.keys_asked[0][0].startswith("rate_limit:{outer.inner.view}:")

    def test_blueprint_limits_apply_in_every_app_under_every_name(self, storage: RecordingStorage) -> None:
        api = rate_limiter(rules="1/minute")(Blueprint("api", "api"))
        api.add_url_rule("/", "view", view())
        for name in ("one", "two"):
            app = Flask(name)
            MultiLimit(app, storage=storage)
            app.register_blueprint(api, name=f"{name}_api", url_prefix="/api")

            assert statuses(app, "/api/", "/api/") == [200, 429]

    def test_blueprint_limits_replace_default_limits_unless_with_defaults(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        MultiLimit(app, storage=storage, default_limits="100/hour")
        for name, with_defaults in (("strict", False), ("both", True)):
            blueprint = Blueprint(name, name)
            rate_limiter(rules="1/minute", with_defaults=with_defaults)(blueprint)
            blueprint.add_url_rule(f"/{name}", "view", view())
            app.register_blueprint(blueprint)

        ask(app, "/strict")
        ask(app, "/both")

        assert windows(storage) == [[60], [60, 3600]]


class TestConfiguredLimits:
    @pytest.fixture
    def shop(self, app: Flask) -> Flask:
        """Endpoints: index, api.items, api.search, api.admin.users."""
        api, admin = Blueprint("api", "api", url_prefix="/api"), Blueprint("admin", "admin", url_prefix="/admin")
        api.add_url_rule("/items", "items", view(), methods=["GET", "POST"])
        api.add_url_rule("/search", "search", rate_limiter(rules="10/second")(view()))
        admin.add_url_rule("/users", "users", view())
        api.register_blueprint(admin)
        app.register_blueprint(api)
        app.add_url_rule("/", "index", view())
        return app

    @pytest.mark.parametrize(
        ("limits", "expected"),
        [
            ({"index": "5/minute"}, {"/": [60]}),
            ({"api.items": "5/minute"}, {"/api/items": [60]}),
            ({"api": "5/minute"}, {"/api/items": [60], "/api/search": [1, 60], "/api/admin/users": [60]}),
            ({"api.admin": "5/minute"}, {"/api/admin/users": [60]}),
            ({"*.users": "5/minute"}, {"/api/admin/users": [60]}),
            ({"api.[is]*": "5/minute"}, {"/api/items": [60], "/api/search": [1, 60]}),
            ({"api.[i]tems": "5/minute"}, {"/api/items": [60]}),
            ({"api.?tems": "5/minute"}, {"/api/items": [60]}),
            ({"*": "5/minute", "index": "90/hour"}, {"/": [60, 3600], "/api/items": [60], "/api/search": [1, 60]}),
            ({"index": ["5/minute", {"type": "ip", "rules": "1/second"}]}, {"/": [1, 60]}),
            ({"index": "5/minute; 50/hour"}, {"/": [60, 3600]}),
            ({"api.items": {"rules": "5/minute", "methods": ["POST"]}}, {}),
        ],
        ids=str,
    )
    def test_limits_in_settings_name_endpoints_blueprints_and_patterns(
        self, shop: Flask, storage: RecordingStorage, limits: dict[str, Any], expected: dict[str, list[int]]
    ) -> None:
        shop.config["MULTILIMIT_LIMITS"] = limits
        MultiLimit(shop, storage=storage)

        for path in ("/", "/api/items", "/api/search", "/api/admin/users"):
            ask(shop, path)
            own = [1] if path == "/api/search" else []
            unnamed = [60] if "*" in limits else []
            found = windows(storage)[-1] if storage.checks else []
            storage.checks.clear()
            assert found == expected.get(path, own or unnamed), path

    @pytest.mark.parametrize("names", [("index", "*"), ("*", "index")])
    def test_limits_in_settings_keep_their_order(
        self, shop: Flask, storage: RecordingStorage, names: tuple[str, str]
    ) -> None:
        shop.config["MULTILIMIT_LIMITS"] = dict(zip(names, ("5/minute", "9/hour"), strict=True))
        MultiLimit(shop, storage=storage)
        ask(shop)
        assert [hit.rule.count for hit in storage.checks[0]] == [5, 9]

    def test_limits_are_read_from_the_environment_as_json(
        self, shop: Flask, storage: RecordingStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FLASK_MULTILIMIT_LIMITS", '{"api.*": {"type": "user+ip", "rules": "5/minute"}}')
        shop.config.from_prefixed_env()
        MultiLimit(shop, storage=storage, user_loader=lambda: "ann")

        ask(shop, "/api/items")

        assert [hit.name for hit in storage.checks[0]] == ["user-ip-60s"]

    @pytest.mark.parametrize("setting", ["LIMITS", "EXEMPT"])
    def test_each_further_name_costs_the_start_as_much_as_the_first_ones(self, setting: str) -> None:
        def calls_to_plan(number: int) -> int:
            app, names = Flask("shop"), [f"view-{each}" for each in range(number)]
            app.config[f"MULTILIMIT_{setting}"] = dict.fromkeys(names, "5/minute") if setting == "LIMITS" else names
            multilimit = MultiLimit(app)
            for name in names:
                app.add_url_rule(f"/{name}", name, view())
            return len(calls_during(lambda: multilimit.validate(app)))

        assert calls_to_plan(90) < 3.5 * calls_to_plan(30)

    @pytest.mark.parametrize("setting", ["LIMITS", "EXEMPT"])
    def test_setting_for_an_unknown_endpoint_is_an_error(self, shop: Flask, setting: str) -> None:
        shop.config[f"MULTILIMIT_{setting}"] = {"api.itmes": "5/minute"} if setting == "LIMITS" else ["api.itmes"]
        MultiLimit(shop)
        with pytest.raises(ConfigurationError, match=rf'MULTILIMIT_{setting}.*: .*"api.itmes"'):
            ask(shop)


class TestExemption:
    @pytest.fixture
    def limited(self, app: Flask, storage: RecordingStorage) -> Callable[[Any, Any], Flask]:
        """An app with limits of all four levels for one view, with windows of 86400, 3600, 60 and 1 second."""

        def make(function: Any, blueprint_exempt: Any = None) -> Flask:
            api = Blueprint("api", "api")
            rate_limiter(rules="100/hour", with_defaults=True)(api)
            if blueprint_exempt:
                blueprint_exempt(api)
            api.add_url_rule("/", "view", function)
            app.config["MULTILIMIT_LIMITS"] = {"api.view": {"rules": "100/minute", "with_defaults": True}}
            MultiLimit(app, storage=storage, application_limits="100/day", default_limits="100/second")
            app.register_blueprint(api)
            return app

        return make

    @pytest.mark.parametrize(
        ("levels", "expected"),
        [
            ((), [1, 60, 3600, 86400]),
            (("application",), [1, 60, 3600]),
            (("blueprint",), [1, 60, 86400]),
            (("configuration",), [1, 3600, 86400]),
            (("default",), [60, 3600, 86400]),
            (("default", "blueprint"), [60, 86400]),
        ],
        ids=str,
    )
    def test_exempt_removes_limits_of_the_named_levels(
        self, limited: Callable[..., Flask], storage: RecordingStorage, levels: Any, expected: list[int]
    ) -> None:
        ask(limited(exempt(*levels)(view()) if levels else view()))
        assert windows(storage) == [expected]

    @pytest.mark.parametrize("order", ["above", "below"])
    def test_exempt_view_keeps_its_own_limits(
        self, limited: Callable[..., Flask], storage: RecordingStorage, order: str
    ) -> None:
        limit = rate_limiter(rules="9 per 2 seconds")
        ask(limited(exempt(limit(view())) if order == "above" else limit(exempt(view()))))
        assert windows(storage) == [[2]], "without a level, the view is exempt from all other limits"

    def test_exempt_blueprint_keeps_its_own_limits(
        self, limited: Callable[..., Flask], storage: RecordingStorage
    ) -> None:
        ask(limited(view(), exempt))
        assert windows(storage) == [[3600]]

    def test_exempt_nested_blueprint_has_no_limits_of_outer_blueprints(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        outer, inner = Blueprint("outer", "outer"), Blueprint("inner", "inner", url_prefix="/i")
        rate_limiter(rules="100/hour")(outer)
        exempt("blueprint")(rate_limiter(rules="100/minute")(inner))
        inner.add_url_rule("/", "view", view())
        outer.register_blueprint(inner)
        outer.add_url_rule("/", "view", view())
        MultiLimit(app, storage=storage)
        app.register_blueprint(outer)

        ask(app, "/i/")
        ask(app, "/")

        assert windows(storage) == [[60], [3600]]

    def test_exempt_setting_leaves_only_limits_of_the_view(
        self, app: Flask, limited: Callable[..., Flask], storage: RecordingStorage
    ) -> None:
        app.config["MULTILIMIT_EXEMPT"] = ["api"]
        ask(limited(rate_limiter(rules="9 per 2 seconds")(view())))
        assert windows(storage) == [[2]]

    def test_exempt_applies_to_a_view_class_or_to_one_method(self, app: Flask, storage: RecordingStorage) -> None:
        @exempt
        class Health(View):
            def dispatch_request(self) -> str:
                return "ok"

        class Deeper(Health):
            pass

        class Items(MethodView):
            @exempt("default")
            def get(self) -> str:
                return "got"

            def post(self) -> str:
                return "made"

        class Free(Items):
            decorators = [exempt]  # noqa: RUF012 - as in the documentation of Flask

        MultiLimit(app, storage=storage, default_limits="1/minute")
        for view_class in (Health, Deeper, Items, Free):
            app.add_url_rule(f"/{view_class.__name__}", view_func=view_class.as_view(view_class.__name__))

        assert statuses(app, *["/Health", "/Deeper", "/Items"] * 2) == [200] * 6
        assert statuses(app, *["/Items", "/Free"] * 2, method="POST") == [200, 200, 429, 200]


def test_limits_of_every_level_are_one_check_all_or_nothing(
    app: Flask, storage: RecordingStorage, clock: Clock
) -> None:
    api = rate_limiter(rules="3/hour")(Blueprint("api", "api"))
    api.add_url_rule("/", "view", rate_limiter(rules="1/second", with_defaults=True)(view()))
    app.config["MULTILIMIT_LIMITS"] = {"api.view": "4 per 2 hours"}
    MultiLimit(app, storage=storage, application_limits="5/day", default_limits="2/minute")
    app.register_blueprint(api)

    assert statuses(app, "/", "/", "/") == [200, 429, 429]
    assert len(storage.checks) == 2, "the third is refused by the deny cache"
    assert storage.other_calls == []
    clock.advance(1)
    remaining = [item.split("r=")[1][0] for item in ask(app).headers["RateLimit"].split(", ")]
    assert remaining == ["3", "1", "2", "0", "0"]


@pytest.mark.parametrize("name", ["application", "unmatched"])
def test_endpoint_named_like_a_built_in_scope_has_its_own_key(app: Flask, storage: RecordingStorage, name: str) -> None:
    MultiLimit(
        app,
        storage=storage,
        application_limits="9/hour",
        unmatched_limits="2/minute",
        default_limits="2 per 60 seconds",
    )
    app.add_url_rule("/form", name, view())

    assert statuses(app, "/form", "/nowhere", "/form", "/nowhere", "/form", "/nowhere") == [
        200,
        404,
        200,
        404,
        429,
        429,
    ]
    own, elsewhere = storage.keys_asked[0][-1], storage.keys_asked[1][-1]
    assert (own, elsewhere) == (
        f"rate_limit:{{endpoint%3A{name}}}:default::sliding_window:60000",
        "rate_limit:{unmatched}:default::sliding_window:60000",
    )


# MULTILIMIT_FILE


@pytest.fixture
def file(app: Flask, tmp_path: Path) -> Path:
    app.root_path = str(tmp_path)
    app.config["MULTILIMIT_FILE"] = "limits.json"
    return tmp_path / "limits.json"


def test_limits_of_a_file_apply_together_with_others(app: Flask, storage: RecordingStorage, file: Path) -> None:
    file.write_text('{"limits": {"sh*": {"type": "ip", "rules": "2/minute"}}, "application_limits": "9/hour"}')
    app.config["MULTILIMIT_APPLICATION_LIMITS"] = "8/second"
    MultiLimit(app, storage=storage)
    app.add_url_rule("/", "show", rate_limiter(rules="7/day")(view()))

    assert policy(ask(app)) == ["application-1s", "application-3600s", "ip-60s", "default-86400s"]


def test_off_in_a_file_exempts_an_endpoint(app: Flask, storage: RecordingStorage, file: Path) -> None:
    file.write_text('{"limits": {"health": "off"}, "default_limits": "1/minute"}')
    MultiLimit(app, storage=storage)
    app.add_url_rule("/health", "health", view())
    app.add_url_rule("/", "show", view())

    assert statuses(app, "/health", "/health", "/", "/") == [200, 200, 200, 429]


def test_file_can_declare_statuses_networks_and_header_types(app: Flask, storage: RecordingStorage, file: Path) -> None:
    show = {"rules": "1/minute", "charge_when": [401, "5xx"], "exempt": ["10.0.0.0/8"], "type": "header:X-Key"}
    file.write_text(json.dumps({"limits": {"show": show}}))
    MultiLimit(app, storage=storage)
    answers = iter([200, 404, 401, 401, 401, 401, 401])
    app.add_url_rule("/", "show", lambda: ("", next(answers)))

    assert statuses(app, "/", "/", "/", "/", headers={"X-Key": "a"}) == [200, 404, 401, 429]
    assert statuses(app, "/", headers={"X-Key": "b"}) == [401]
    assert statuses(app, "/", "/") == [401, 429]
    assert statuses(app, "/", headers={"X-Key": "a"}, environ_base={"REMOTE_ADDR": "10.1.2.3"}) == [401]


def test_unknown_endpoint_in_a_file_is_an_error_that_names_the_file(app: Flask, file: Path) -> None:
    file.write_text('{"limits": {"shwo": "1/minute"}}')
    MultiLimit(app)
    app.add_url_rule("/", "show", view())

    with pytest.raises(ConfigurationError, match=r'limits.json: limits\["shwo"\]: no endpoint'):
        ask(app)


def test_invalid_limit_in_a_file_is_an_error_that_names_the_setting_and_the_file(app: Flask, file: Path) -> None:
    file.write_text('{"limits": {"show": "1/mnute"}}')
    with pytest.raises(ConfigurationError, match=r"^MULTILIMIT_FILE: limits.json: limits.show='1/mnute'"):
        MultiLimit(app)


def test_missing_file_is_an_error_that_names_the_setting_and_the_file(app: Flask, file: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"^MULTILIMIT_FILE: {file}: cannot be read: No such file"):
        MultiLimit(app)


def test_names_and_patterns_near_an_endpoint_keep_their_order() -> None:
    for names in permutations(["api.*", "api.pay", "api", "other"]):
        declared = ByName((name, place) for place, name in enumerate(names))
        assert declared.near("api.pay") == [each for each in declared if each[0] != "other"]
