"""Limiters of one subject that differ only in the count have one key: the stricter decides. A shadow has its own."""

from typing import Any

import pytest
from flask import Blueprint, Flask
from flask.views import MethodView

from flask_multilimit import IP, ConfigurationWarning, MultiLimit, Rule, rate_limiter
from support.asking import ask, policy, statuses, view
from support.changes import control_of
from support.doubles import RecordingStorage

STRICT: dict[str, Any] = {"type": IP, "rules": "2/minute"}
LOOSE: dict[str, Any] = {"type": IP, "rules": "60/minute"}


def at_a_blueprint(app: Flask, storage: RecordingStorage) -> None:
    shop = rate_limiter(**LOOSE)(Blueprint("shop", "shop"))
    shop.add_url_rule("/", "view", rate_limiter(**STRICT)(view()))
    app.register_blueprint(shop)
    MultiLimit(app, storage=storage)


def at_nested_blueprints(app: Flask, storage: RecordingStorage) -> None:
    outer, inner = rate_limiter(**STRICT)(Blueprint("outer", "outer")), rate_limiter(**LOOSE)(Blueprint("in", "in"))
    inner.add_url_rule("/", "view", view())
    outer.register_blueprint(inner)
    app.register_blueprint(outer)
    MultiLimit(app, storage=storage)


def at_the_defaults(app: Flask, storage: RecordingStorage) -> None:
    app.add_url_rule("/", "view", rate_limiter(**STRICT, with_defaults=True)(view()))
    MultiLimit(app, storage=storage, default_limits=rate_limiter(**LOOSE))


def in_the_settings(app: Flask, storage: RecordingStorage) -> None:
    app.config["MULTILIMIT_LIMITS"] = {"*": {"type": "ip", "rules": "60/minute"}}
    app.add_url_rule("/", "view", rate_limiter(**STRICT)(view()))
    MultiLimit(app, storage=storage)


def on_one_view(app: Flask, storage: RecordingStorage) -> None:
    below = rate_limiter(**STRICT)(view())
    with pytest.warns(ConfigurationWarning, match=r"Rule\(60 per minute\) of the ip limiter .* can never refuse"):
        app.add_url_rule("/", "view", rate_limiter(**LOOSE)(below))
    MultiLimit(app, storage=storage)


def in_one_limiter(app: Flask, storage: RecordingStorage) -> None:
    with pytest.warns(ConfigurationWarning, match=r"Rule\(60 per minute\) of the ip limiter .* can never refuse"):
        app.add_url_rule("/", "view", rate_limiter(type=IP, rules="60/minute; 2/minute")(view()))
    MultiLimit(app, storage=storage)


PLACES = [at_a_blueprint, at_nested_blueprints, at_the_defaults, in_the_settings, on_one_view, in_one_limiter]


@pytest.mark.parametrize("place", PLACES)
def test_stricter_of_two_counts_decides_with_one_hit(app: Flask, storage: RecordingStorage, place: Any) -> None:
    place(app, storage)
    assert statuses(app, "/", "/", "/") == [200, 200, 429]
    assert [[hit.rule.count for hit in hits] for hits in storage.checks] == [[2]] * 3


@pytest.mark.parametrize("algorithm", ["sliding_window", "fixed_window", "token_bucket", "leaky_bucket", "gcra"])
def test_stricter_count_decides_with_every_algorithm(app: Flask, storage: RecordingStorage, algorithm: str) -> None:
    MultiLimit(app, storage=storage)
    strict, loose = (rate_limiter(rules=Rule(60, count, algorithm=algorithm)) for count in (1, 50))
    with pytest.warns(ConfigurationWarning, match="can never refuse"):
        app.add_url_rule("/", "view", loose(strict(view())))

    assert statuses(app, "/", "/") == [200, 429]
    assert [[hit.rule.count for hit in hits] for hits in storage.checks] == [[1]] * 2


def test_warning_about_two_equal_rules_names_one_of_them() -> None:
    with pytest.warns(ConfigurationWarning, match="can never refuse") as told:
        rate_limiter(type=IP, rules="5/minute")(rate_limiter(type=IP, rules="5/minute")(view()))
    assert len(told) == 1


def test_limiters_with_equal_charge_when_are_one_limiter(app: Flask, storage: RecordingStorage) -> None:
    app.config["MULTILIMIT_LIMITS"] = {"*": {"type": "ip", "rules": "9/minute", "charge_when": "4xx"}}
    app.add_url_rule("/", "view", rate_limiter(type=IP, rules="2/minute", charge_when="4xx")(view()))
    MultiLimit(app, storage=storage)

    assert statuses(app, "/", "/", "/") == [200] * 3
    assert storage.other_calls == ["settle"] * 3


@pytest.mark.parametrize("dynamic", ["1/minute", "9/minute"])
def test_refund_of_dynamic_rules_leaves_the_charge_of_a_fixed_rule(limited_app: Flask, dynamic: str) -> None:
    failures = rate_limiter(type=IP, rules=lambda: dynamic, charge_when="4xx")
    limited_app.add_url_rule("/", "view", failures(rate_limiter(**STRICT)(view())))
    assert statuses(limited_app, "/", "/", "/")[-1] == 429


class TestOverrides:
    """Each of the two rules is changed by its name; then the stricter decides again, and used units still count."""

    @pytest.mark.parametrize(
        ("change", "answers", "name"),
        [
            ({"rule": "ip-60s", "rules": "1/minute"}, [429, 429], "ip-60s"),
            ({"rule": "ip-60s", "rules": "90/minute"}, [200, 429], "ip-60s-2"),
            ({"rule": "ip-60s", "off": True}, [200, 429], "ip-60s-2"),
            ({"rule": "ip-60s-2", "rules": "3/minute"}, [200, 200], "ip-60s-2"),
            ({"rule": "ip-60s-2", "rules": "90/minute"}, [200, 200], "ip-60s"),
            ({"rule": "ip-60s-2", "off": True}, [200, 200], "ip-60s"),
            ({"limiter": "ip", "times": 2}, [200, 200], "ip-60s-2"),
            ({"limit": {"type": "ip", "rules": "1/minute"}}, [429, 429], "ip-60s-3"),
        ],
        ids=str,
    )
    def test_override_of_one_rule_leaves_the_other_in_force(
        self, app: Flask, storage: RecordingStorage, change: dict[str, Any], answers: list[int], name: str
    ) -> None:
        at_a_blueprint(app, storage)
        assert statuses(app, "/") == [200]
        control_of(app).override("shop.view", **change, lasting=True, force=True)

        assert statuses(app, "/", "/") == answers
        assert policy(ask(app)) == [name]

    def test_override_to_shadow_applies_to_all_limiters_with_the_name(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        at_a_blueprint(app, storage)
        control_of(app).override("shop.view", limiter="ip", shadow=True, lasting=True, force=True)
        assert statuses(app, "/", "/", "/") == [200] * 3


class TestAddedLimit:
    """A limit added at run time has no scope; one with other options than a declared limit has a key of its own."""

    @pytest.mark.parametrize(
        ("limit", "answers"),
        [
            ({"type": "ip", "rules": "2/minute"}, [200, 200, 429]),
            ({"type": "ip", "rules": "2/minute", "charge_when": [401]}, [200, 200, 200]),
            ({"type": "ip", "rules": "2/minute", "ban": {"after": 1, "within": 60, "time": 60}}, [200, 200, 429]),
            ({"type": "ip", "rules": [{"time": 60, "count": 2, "lease": 2}]}, [200, 200, 429]),
        ],
        ids=str,
    )
    def test_added_limit_with_another_cost_has_its_own_key(
        self, limited_app: Flask, storage: RecordingStorage, limit: dict[str, Any], answers: list[int]
    ) -> None:
        limited_app.add_url_rule("/", "view", rate_limiter(type=IP, rules="6/minute", cost=2)(view()))
        control_of(limited_app).override("view", limit=limit, lasting=True, force=True)

        assert statuses(limited_app, "/", "/", "/") == answers
        assert {key for key in storage.keys_asked[0] if ":ban:" not in key} == {
            "rate_limit:{view}:ip:127.0.0.1:sliding_window:60000",
            "rate_limit:{view}:+ADDED:ip:127.0.0.1:sliding_window:60000",
        }


class TestShadow:
    def test_shadow_beside_a_real_limit_has_its_own_key(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage)
        trial = rate_limiter(type=IP, rules="1/minute", name="trial", shadow=True)
        app.add_url_rule("/", "view", trial(rate_limiter(type=IP, rules="3/minute")(view())))

        assert statuses(app, "/", "/", "/", "/") == [200, 200, 200, 429]
        assert storage.keys_asked[0] == [
            "rate_limit:{view}:+SHADOW:ip:127.0.0.1:sliding_window:60000",
            "rate_limit:{view}:ip:127.0.0.1:sliding_window:60000",
        ]

    def test_shadow_without_a_real_limit_has_the_usual_key(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage)
        trial = rate_limiter(type=IP, rules="1/minute", shadow=True)
        app.add_url_rule("/", "view", trial(rate_limiter(type=IP, rules="3/hour")(view())))

        ask(app)

        assert storage.keys_asked[0][0] == "rate_limit:{view}:ip:127.0.0.1:sliding_window:60000"

    def test_two_shadows_with_one_window_count_separately(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage)
        limited = view()
        for count in (1, 2):
            limited = rate_limiter(rules=Rule(60, count, name=f"trial-{count}"), shadow=True)(limited)
        app.add_url_rule("/", "view", limited)

        statuses(app, "/", "/", "/")

        with app.app_context():
            left = {
                each.name: each.remaining for each in app.extensions["multilimit"].peek("view", "everyone").statuses
            }
        assert left == {"trial-1": 0, "trial-2": 0}
        assert len(set(storage.keys_asked[0])) == 2


class TestNames:
    @pytest.mark.parametrize("scoped_first", [True, False])
    def test_names_of_rules_that_differ_only_in_scope_contain_the_scope(
        self, limited_app: Flask, scoped_first: bool
    ) -> None:
        scoped, plain = rate_limiter(**LOOSE, scope="feed"), rate_limiter(**STRICT)
        limited_app.add_url_rule("/", "view", scoped(plain(view())) if scoped_first else plain(scoped(view())))
        assert sorted(policy(ask(limited_app))) == ["feed:ip-60s", "ip-60s"]

    def test_names_of_declared_rules_stay_when_an_override_adds_a_limit(self, limited_app: Flask) -> None:
        limited_app.add_url_rule("/", "view", rate_limiter(**LOOSE, scope="feed")(view()))
        control_of(limited_app).override("view", limit={"type": "ip", "rules": "9/minute"}, lasting=True)
        assert policy(ask(limited_app)) == ["ip-60s", "ip-60s-2"]

    @pytest.mark.parametrize("post_first", [True, False])
    def test_names_of_rules_are_the_same_for_all_methods(self, limited_app: Flask, post_first: bool) -> None:
        both, post = rate_limiter(**LOOSE), rate_limiter(**STRICT, methods=["POST"])
        limited = post(both(view())) if post_first else both(post(view()))
        limited_app.add_url_rule("/", "view", limited, methods=["GET", "POST"])

        assert ask(limited_app).headers["RateLimit-Policy"] == '"ip-60s";q=60;w=60'
        policies = ask(limited_app, method="POST").headers["RateLimit-Policy"].split(", ")
        assert set(policies) == {'"ip-60s";q=60;w=60', '"ip-60s-2";q=2;w=60'}

    def test_names_with_a_scope_are_the_same_for_all_methods_of_a_class(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        class Notes(MethodView):
            def get(self) -> str:
                return "ok"

            @rate_limiter(**STRICT)
            def post(self) -> str:
                return "ok"

        MultiLimit(app, storage=storage)
        shop = rate_limiter(**LOOSE, scope="shop")(Blueprint("shop", "shop"))
        shop.add_url_rule("/", view_func=Notes.as_view("notes"))
        app.register_blueprint(shop)

        assert policy(ask(app)) == ["shop:ip-60s"]
        assert sorted(policy(ask(app, method="POST"))) == ["ip-60s", "shop:ip-60s"]
