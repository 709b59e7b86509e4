"""Which limiters count a subject at an endpoint, for which methods, and whether the endpoint is exempt."""

from collections.abc import Mapping
from typing import Any

import pytest
from flask import Flask

from flask_multilimit import IP, ConfigurationError, exempt, rate_limiter
from flask_multilimit.plan.lookups import applied_given, is_exempt, methods_for
from flask_multilimit.plan.plans import Plans
from flask_multilimit.serve.gate import gate_of
from support.asking import view

ANN = {"ip": "203.0.113.7"}


@pytest.fixture
def plans(limited_app: Flask) -> Plans:
    """The plans of an app whose log-in has two limiters by address, one of them only for POST."""

    @limited_app.route("/login", methods=["GET", "POST"])
    @rate_limiter(type=IP, rules="9/minute")
    @rate_limiter(type=IP, rules="3/hour", methods=["POST"])
    def login() -> str:
        return "ok"

    limited_app.add_url_rule("/about", "about", exempt(view()))
    return gate_of(limited_app).plans


def found(plans: Plans, method: str | None, given: Mapping[str, str] = ANN) -> list[tuple[tuple[str, ...], list[int]]]:
    """The counts that apply, for each group of methods."""
    places = applied_given(plans, "login", method, given)
    return [(each.methods, [hit.rule.count for hit in each.applied.hits]) for each in places]


def test_methods_with_the_same_limits_are_listed_together(plans: Plans) -> None:
    assert found(plans, None) == [(("GET", "HEAD"), [9]), (("OPTIONS",), []), (("POST",), [9, 3])]


@pytest.mark.parametrize("method", ["POST", "post"])
def test_method_can_be_given_in_lower_case(plans: Plans, method: str) -> None:
    assert found(plans, method) == [(("POST",), [9, 3])]


def test_limiters_of_other_types_do_not_apply_to_the_subject_but_their_types_are_listed(plans: Plans) -> None:
    (place,) = applied_given(plans, "login", "GET", {"user": "7"})
    assert (place.methods, place.applied.hits, place.types) == (("GET",), (), {"ip": ("ip",)})


@pytest.mark.parametrize(
    ("endpoint", "method", "message"),
    [
        ("logni", None, 'no endpoint is called "logni"; did you mean "login"?'),
        ("nonsense", None, "`flask routes` lists the endpoints"),
        (7, None, "endpoint=7: give the name of one"),
        ("login", "PUT", '"login" does not take PUT; its routes take GET, HEAD, OPTIONS, POST'),
        ("login", 7, "method=7: give the name of one"),
        ("orphan", None, 'no route leads to the endpoint "orphan", so nothing limits it'),
    ],
)
def test_unknown_endpoint_or_method_is_an_error(plans: Plans, endpoint: Any, method: Any, message: str) -> None:
    plans.app.view_functions["orphan"] = view()
    with pytest.raises(ConfigurationError) as raised:
        methods_for(plans, endpoint, method)
    assert message in str(raised.value)


def test_type_of_no_limiter_is_an_error(plans: Plans) -> None:
    with pytest.raises(ConfigurationError, match=r"no limiter .* a type called 'tenant'; its types are: .*ip"):
        applied_given(plans, "login", None, {"tenant": "a"})


def test_type_used_only_at_another_endpoint_is_no_error(plans: Plans) -> None:
    def tenant() -> str:
        return "a"

    plans.app.add_url_rule("/orders", "orders", rate_limiter(type=tenant, name="tenant", rules="5/minute")(view()))

    assert found(plans, "GET", {"tenant": "a"}) == [(("GET",), [])]


def test_exempt_endpoint_is_recognized(plans: Plans) -> None:
    assert {name: is_exempt(plans, name) for name in ("login", "about")} == {"login": False, "about": True}
