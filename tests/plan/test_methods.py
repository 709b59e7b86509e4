"""Limiters for different request methods have separate quotas."""

from typing import Any, get_args

import pytest
from flask import Blueprint, Flask
from flask.views import MethodView

from flask_multilimit import ConfigurationError, MultiLimit, exempt, rate_limiter
from flask_multilimit.engine.keys import MAX_KEY, MAX_PREFIX, HashTag, stem_of, stem_of_subject
from support.asking import ask, statuses, view
from support.doubles import RecordingStorage

BOTH = ["GET", "POST"]
BY_METHOD = [{"rules": "10/minute", "methods": ["GET"]}, {"rules": "1/minute", "methods": ["POST"]}]


def get_and_post(app: Flask, times: int = 10) -> list[int]:
    """The status of the last of ``times`` GETs, and of one POST."""
    return [statuses(app, *["/"] * times)[-1], ask(app, method="POST").status_code]


@pytest.mark.parametrize(
    ("other", "key"), [({"rules": "10/minute", "methods": ["GET"]}, "{login}:GET"), ({"rules": "11/minute"}, "{login}")]
)
def test_limiter_for_post_has_a_quota_beside_one_for_get_or_for_all_methods(
    app: Flask, storage: RecordingStorage, other: dict[str, Any], key: str
) -> None:
    MultiLimit(app, storage=storage)
    for_post = rate_limiter(rules="1/minute", methods=["POST"])
    app.add_url_rule("/", "login", rate_limiter(**other)(for_post(view())), methods=BOTH)

    assert get_and_post(app) == [200, 200]
    assert statuses(app, "/") == [429]
    assert ask(app, method="POST").status_code == 429
    assert storage.keys_asked[0] == [f"rate_limit:{key}:default::sliding_window:60000"]


@pytest.mark.parametrize(
    ("setting", "limits"),
    [
        ("LIMITS", {"view": BY_METHOD}),
        ("LIMITS", dict(zip(("view", "vi*"), BY_METHOD, strict=True))),
        ("APPLICATION_LIMITS", BY_METHOD),
    ],
    ids=["one endpoint", "endpoint and pattern", "application"],
)
def test_limits_in_settings_can_differ_by_method(
    app: Flask, storage: RecordingStorage, setting: str, limits: Any
) -> None:
    app.config[f"MULTILIMIT_{setting}"] = limits
    MultiLimit(app, storage=storage)
    app.add_url_rule("/", "view", view(), methods=BOTH)
    assert get_and_post(app) == [200, 200]


def test_blueprint_limit_for_get_leaves_post_to_the_default_limit(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage, default_limits="1/minute")
    blueprint = rate_limiter(rules="10/minute", methods=["GET"])(Blueprint("pages", __name__))
    blueprint.add_url_rule("/", "view", view(), methods=BOTH)
    app.register_blueprint(blueprint)

    assert get_and_post(app) == [200, 200]


def test_one_function_for_get_and_post_has_one_quota(limited_app: Flask) -> None:
    class Items(MethodView):
        @rate_limiter(rules="2/minute")
        def get(self) -> str:
            return "ok"

        post = get

    limited_app.add_url_rule("/", view_func=Items.as_view("items"))

    assert get_and_post(limited_app, 2) == [200, 429]


def test_explicit_scope_is_shared_by_all_methods(limited_app: Flask) -> None:
    for name, method in (("read", "GET"), ("write", "POST")):
        limiter = rate_limiter(rules="3/minute", methods=[method], scope="notes")
        limited_app.add_url_rule("/", name, limiter(view()), methods=[method])
    assert get_and_post(limited_app, 3) == [200, 429]


def test_limiters_of_different_methods_with_one_key_are_an_error(app: Flask, storage: RecordingStorage) -> None:
    """The default limit applies to GET alone, which is exempt from the limit of the blueprint."""
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


def test_key_with_many_methods_stays_within_the_maximum_length() -> None:
    for tag in get_args(HashTag):
        stem = stem_of("p" * MAX_PREFIX, "s" * 56, tag, "DELETE+GET+PATCH+POST+PUT")
        key = stem_of_subject(stem, "t" * 20, "u" * 48, tag) + "sliding_window_counter:34560000000"

        assert len(key) <= MAX_KEY
    assert stem_of("rate_limit:", "login", "scope", "DELETE+PATCH") == "rate_limit:{login}:DELETE+PATCH:"


def test_keys_command_shows_the_rule_of_a_key_with_a_method(app: Flask) -> None:
    MultiLimit(app)
    app.get("/", endpoint="view")(rate_limiter(rules="5/minute", methods=["GET"])(view()))
    ask(app)

    listed = app.test_cli_runner().invoke(args=["multilimit", "keys"])

    assert "1 of 5" in listed.output
