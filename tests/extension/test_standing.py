"""``multilimit.standing``: how much a client has left and what refuses it, for support pages."""

from dataclasses import FrozenInstanceError
from ipaddress import ip_address
from typing import Any

import pytest
from flask import Flask, request

from flask_multilimit import IP, USER, ConfigurationError, MultiLimit, rate_limiter
from flask_multilimit.engine import StorageError
from support.asking import pass_a_second, statuses, view

PLANS = {"ada": "10/minute", "bob": "2/minute"}


def plan(user: str | None) -> str:
    return PLANS.get(str(user), "1/minute")


def app_with_limits(*, storage: Any = None) -> tuple[Flask, MultiLimit]:
    app = Flask("shop")
    multilimit = MultiLimit(app, storage=storage, user_loader=lambda: request.headers.get("X-User"))
    keyed = rate_limiter(type=lambda: request.headers.get("X-Key"), name="api_key", rules="5/minute")(view())
    app.add_url_rule("/mine", "mine", rate_limiter(type=USER, rules=plan)(view()))
    app.add_url_rule("/here", "here", rate_limiter(type=IP, rules="3/minute")(view()))
    app.add_url_rule("/both", "both", rate_limiter(type=(USER, IP), rules="4/minute")(view()))
    app.add_url_rule("/keyed", "keyed", keyed)
    return app, multilimit


def left(app: Flask, multilimit: MultiLimit, **who: Any) -> dict[str, int]:
    with app.app_context():
        found = multilimit.standing(**who)
    return {each.endpoint: rule.remaining for each in found.requests for rule in each.rules}


def test_standing_uses_the_dynamic_rules_of_the_user() -> None:
    app, multilimit = app_with_limits()
    statuses(app, "/mine", "/mine", "/mine", headers={"X-User": "ada"})
    statuses(app, "/mine", "/mine", "/mine", headers={"X-User": "bob"})

    pass_a_second(app)

    with app.app_context():
        ada, bob, new = (multilimit.standing(user=name) for name in ("ada", "bob", "new"))

    assert [each.requests[0].rules[0].count for each in (ada, bob, new)] == [10, 2, 1]
    assert [each.state for each in (ada, bob, new)] == ["passes", "refused", "passes"]
    assert [each.refused for each in bob.refusals] == [1]
    assert ada.requests[0].rules[0].remaining == 7


def test_standing_finds_a_client_by_address_key_or_several_subjects() -> None:
    app, multilimit = app_with_limits()
    statuses(app, "/here", "/both", "/keyed", headers={"X-User": "ada", "X-Key": "key-0"})

    assert left(app, multilimit, ip=ip_address("127.0.0.1")) == {"both": 4, "here": 2, "mine": 1}
    assert left(app, multilimit, subject="api_key:key-0") == {"keyed": 4}
    assert left(app, multilimit, user="ada", ip="127.0.0.1") == {"both": 3, "here": 2, "mine": 10}
    assert left(app, multilimit, user="ada", subject=["api_key:key-0", "ip:127.0.0.1"])["keyed"] == 4
    assert left(app, multilimit, ip="127.0.0.1", endpoint="here", method="GET") == {"here": 2}


def test_standing_charges_nothing_and_is_immutable() -> None:
    app, multilimit = app_with_limits()
    assert left(app, multilimit, user="ada") == left(app, multilimit, user="ada") == {"mine": 10}
    with app.app_context(), pytest.raises(FrozenInstanceError):
        multilimit.standing(user="ada").state = "passes"  # type: ignore[misc]


def test_standing_ignores_the_user_of_the_current_request() -> None:
    app, multilimit = app_with_limits()
    statuses(app, "/mine", headers={"X-User": "ada"})

    with app.test_request_context("/mine", headers={"X-User": "bob"}):
        found = multilimit.standing(user="ada")

    assert found.requests[0].rules[0].remaining == 9


@pytest.mark.parametrize(
    ("who", "message"),
    [
        ({}, "whose"),
        ({"subject": "apikey:key-0"}, "no limiter of this app has a type called 'apikey'"),
        ({"subject": "key-0"}, "TYPE:VALUE"),
        ({"user": 1.5}, "user=1.5"),
        ({"user": "ada", "endpoint": "nothing"}, 'no endpoint is called "nothing"'),
        ({"user": "ada", "method": "GET"}, "name an endpoint"),
    ],
    ids=["no subject", "unknown type", "no type", "user id", "unknown endpoint", "method without endpoint"],
)
def test_invalid_arguments_of_standing_are_an_error(who: dict[str, Any], message: str) -> None:
    app, multilimit = app_with_limits()
    with app.app_context(), pytest.raises(ConfigurationError, match=message):
        multilimit.standing(**who)


def test_standing_is_unknown_when_storage_is_down() -> None:
    app, multilimit = app_with_limits(storage="redis://127.0.0.1:1/0")

    with app.app_context():
        found = multilimit.standing(user="ada")
        with pytest.raises(StorageError):
            multilimit.standing(user="ada", endpoint="mine")

    assert (found.state, found.requests) == ("unknown", ())
    assert "gave no answer" in found.problem
