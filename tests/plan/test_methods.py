"""Limiters of different request methods: requests that can never meet have quotas of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import pytest
from flask import Blueprint, Flask
from flask.views import MethodView

from flask_multilimit import ConfigurationError, MultiLimit, exempt, rate_limiter
from flask_multilimit.engine.keys import MAX_KEY, MAX_PREFIX, HashTag, stem_of, stem_of_subject
from support.asking import ask, statuses, view

if TYPE_CHECKING:
    from support.doubles import RecordingStorage

BOTH = ["GET", "POST"]
BY_METHOD = [{"rules": "10/minute", "methods": ["GET"]}, {"rules": "1/minute", "methods": ["POST"]}]


def get_and_post(app: Flask, times: int = 10) -> list[int]:
    """The statuses of that many GETs, the last of them, and of one POST."""
    return [statuses(app, *["/"] * times)[-1], ask(app, method="POST").status_code]


def test_a_view_may_have_limits_of_one_window_for_each_method(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage)

    @app.route("/", methods=BOTH)
    @rate_limiter(rules="10/minute", methods=["GET"])
    @rate_limiter(rules="1/minute", methods=["POST"])
    def login() -> str:
        return "ok"

    assert get_and_post(app) == [200, 200]
    assert statuses(app, "/") == [429]
    assert ask(app, method="POST").status_code == 429
    assert storage.keys_asked[0] == ["rate_limit:{login}:GET:default::sliding_window:60000"]


def test_a_limiter_of_all_methods_counts_beside_one_of_some(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage)

    @app.route("/", methods=BOTH)
    @rate_limiter(rules="11/minute")
    @rate_limiter(rules="1/minute", methods=["POST"])
    def login() -> str:
        return "ok"

    assert get_and_post(app) == [200, 200]
    assert statuses(app, "/") == [429]


@pytest.mark.parametrize(
    ("setting", "limits"),
    [
        ("LIMITS", {"view": BY_METHOD}),
        ("LIMITS", dict(zip(("view", "vi*"), BY_METHOD, strict=True))),
        ("APPLICATION_LIMITS", BY_METHOD),
    ],
)
def test_limits_in_the_settings_may_differ_by_method(
    app: Flask, storage: RecordingStorage, setting: str, limits: Any
) -> None:
    app.config[f"MULTILIMIT_{setting}"] = limits
    MultiLimit(app, storage=storage)
    app.add_url_rule("/", "view", view(), methods=BOTH)

    assert get_and_post(app) == [200, 200]


def test_limits_of_a_blueprint_and_a_default_may_differ_by_method(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage, default_limits="1/minute")
    blueprint = rate_limiter(rules="10/minute", methods=["GET"])(Blueprint("pages", __name__))
    blueprint.add_url_rule("/", "view", view(), methods=BOTH)
    app.register_blueprint(blueprint)

    assert get_and_post(app) == [200, 200]


def test_one_function_that_serves_two_methods_is_one_limiter(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage)

    class Items(MethodView):
        @rate_limiter(rules="2/minute")
        def get(self) -> str:
            return "ok"

        post = get

    app.add_url_rule("/", view_func=Items.as_view("items"))

    assert get_and_post(app, 2) == [200, 429]


def test_a_scope_that_is_named_is_shared_whatever_the_methods(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage)
    for name, method in (("read", "GET"), ("write", "POST")):
        limiter = rate_limiter(rules="3/minute", methods=[method], scope="notes")
        app.add_url_rule("/", name, limiter(view()), methods=[method])

    assert get_and_post(app, 3) == [200, 429]


def test_limiters_of_different_methods_that_would_share_a_counter_are_an_error(
    app: Flask, storage: RecordingStorage
) -> None:
    """The default applies to GET alone, as the blueprint does not limit it."""
    multilimit = MultiLimit(app, storage=storage, default_limits="5/minute")
    blueprint = rate_limiter(rules="9/minute")(Blueprint("pages", __name__))

    class Items(MethodView):
        @exempt("blueprint")
        def get(self) -> str:
            return "ok"

        def post(self) -> str:
            return "made"

    blueprint.add_url_rule("/", view_func=Items.as_view("items"))
    app.register_blueprint(blueprint)

    with pytest.raises(ConfigurationError) as caught:
        multilimit.validate(app)

    assert "both would count in one key; give one of them methods= or a scope" in str(caught.value)


def test_keys_stay_short_whatever_the_methods() -> None:
    for tag in get_args(HashTag):
        stem = stem_of("p" * MAX_PREFIX, "s" * 56, tag, "DELETE+GET+PATCH+POST+PUT")
        key = stem_of_subject(stem, "t" * 20, "u" * 48, tag) + "sliding_window_counter:34560000000"

        assert len(key) <= MAX_KEY
    assert stem_of("rate_limit:", "login", "scope", "DELETE+PATCH") == "rate_limit:{login}:DELETE+PATCH:"


def test_the_list_of_keys_knows_their_rules(app: Flask) -> None:
    MultiLimit(app)
    app.get("/", endpoint="view")(rate_limiter(rules="5/minute", methods=["GET"])(view()))
    ask(app)

    listed = app.test_cli_runner().invoke(args=["multilimit", "keys"])

    assert "1 of 5" in listed.output
