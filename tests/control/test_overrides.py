"""Limits are changed while the app runs; what is used stays used; what could not be declared cannot be set."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from flask import Flask

from flask_multilimit import IP, Ban, Concurrent, ConfigurationError, MultiLimit, Reserve, Rule, rate_limiter
from flask_multilimit.engine.slots import KEEPER
from flask_multilimit.usage import Usage
from support.asking import ask, policy, view

if TYPE_CHECKING:
    from collections.abc import Callable

    from control.conftest import Shop


def overridden(
    app: Flask, limiter: Callable[..., Any] | None, view: Callable[[], Any], /, where: str | None = "show", **given: Any
) -> None:
    """Serve / by a view whose limits are changed at once."""
    multilimit = MultiLimit(app)
    app.add_url_rule("/", "show", view if limiter is None else limiter(view))
    with app.app_context():
        multilimit.control.override(where, lasting=True, **given)


USER_42 = {"path": "/mine", "user": "42"}
CHANGES: dict[str, tuple[str | None, dict[str, Any], dict[str, str], int, dict[str, str]]] = {
    "the algorithm of a rule": ("show", {"rule": "ip-60s", "rules": {"algorithm": "gcra", "burst": 1}}, {}, 1, {}),
    "a rule by request": ("tier", {"rule": "tier-60s", "rules": "3/minute"}, {"path": "/tier"}, 3, {}),
    "limiters of a type": ("api.mine", {"limiter": "user", "rules": "1/minute"}, USER_42, 1, {}),
    "limiters by request": ("tier", {"limiter": "tier", "times": 2}, {"path": "/tier"}, 4, {}),
    "one more limiter": ("open", {"limit": {"type": "ip", "rules": "1/minute"}}, {"path": "/open"}, 1, {}),
    "a user": (None, {"who": "user:42", "times": 2}, USER_42, 4, {"path": "/mine", "user": "7"}),
    "a user and an address": (None, {"who": "user:42", "times": 2}, {"path": "/both", "user": "42"}, 4, {}),
    "a user at an endpoint": (
        *("api.mine", {"who": "user:42", "rules": "3/minute"}),
        *(USER_42, 3, {"path": "/both", "user": "42"}),
    ),
    "a network": (None, {"who": "203.0.113.0/24", "times": 2}, {"ip": "203.0.113.9"}, 4, {"ip": "203.0.114.9"}),
    "a mapped address of a network": (
        *(None, {"who": "203.0.113.0/24", "times": 2}),
        *({"ip": "::ffff:203.0.113.9"}, 4, {"ip": "::ffff:203.0.114.9"}),
    ),
    "a network of IPv6": (
        None,
        {"who": "2001:db8::/32", "times": 2},
        {"ip": "2001:db8:1::7"},
        4,
        {"ip": "2001:db9::7"},
    ),
    "an address whose rules go by request": (None, {"who": "198.51.100.7", "times": 2}, {"path": "/tier"}, 4, {}),
}
"""Where, what, who is asked for, how many pass in a minute; and for whom nothing has changed."""


@pytest.mark.parametrize(("where", "given", "asked", "count", "other"), CHANGES.values(), ids=CHANGES)
def test_a_change_holds_where_it_says_and_nowhere_else(
    shop: Shop, where: str | None, given: dict[str, Any], asked: dict[str, str], count: int, other: dict[str, str]
) -> None:
    shop.control.override(where, **given, lasting=True, force=True)

    assert shop.statuses(count + 1, **asked) == [200] * count + [429]
    if other:
        assert shop.statuses(3, **other) == [200, 200, 429]


@pytest.mark.parametrize(("endpoint", "everywhere"), [("api.*", False), ("api", False), ("*", True)])
def test_limits_that_are_off_refuse_nobody(shop: Shop, endpoint: str, everywhere: bool) -> None:
    shop.control.override(endpoint, off=True, lasting=True, force=True)

    assert shop.statuses(3, **USER_42) == [200, 200, 200]
    assert shop.statuses(3) == [200, 200, 200 if everywhere else 429]


def test_the_smallest_network_decides(shop: Shop) -> None:
    shop.control.override(who="203.0.113.0/24", times=2, lasting=True)
    shop.control.override(who="203.0.113.7", times=3, lasting=True)

    assert shop.statuses(7, ip="203.0.113.7") == [200] * 6 + [429]


class TestRules:
    def test_a_changed_count_applies_to_what_is_used_already(self, shop: Shop) -> None:
        assert shop.statuses(3) == [200, 200, 429]

        raised = shop.control.override("show", rule="ip-60s", rules="4/minute", for_=60)
        assert shop.statuses(3) == [200, 200, 429]

        shop.control.undo(raised.id)
        assert shop.statuses(1) == [429]
        assert shop.ask().headers["RateLimit-Policy"] == '"ip-60s";q=2;w=60'

    def test_text_changes_count_and_time_only(self, app: Flask) -> None:
        limiter = rate_limiter(type=IP, rules=Rule(60, 10, algorithm="token_bucket", burst=3))
        overridden(app, limiter, view(), rule="ip-60s", rules="20/minute")

        answers = [ask(app) for _ in range(4)]

        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert policy(answers[0]) == ["ip-60s"]

    def test_a_factor_multiplies_the_burst_too(self, app: Flask) -> None:
        limiter = rate_limiter(type=IP, rules=Rule(60, 10, algorithm="token_bucket", burst=3))
        overridden(app, limiter, view(), where=None, who="127.0.0.1", times=2)

        assert [ask(app).status_code for _ in range(7)] == [200] * 6 + [429]

    def test_the_name_stays_when_the_window_changes(self, shop: Shop) -> None:
        shop.control.override("show", rule="ip-60s", rules="1/hour", lasting=True, force=True)

        assert shop.ask().headers["RateLimit-Policy"] == '"ip-60s";q=1;w=3600'

    def test_one_rule_of_several_can_be_switched_off(self, shop: Shop) -> None:
        shop.control.override("api.mine", rule="user-60s", off=True, lasting=True)

        assert policy(shop.ask("/mine", user="7")) == ["user-3600s"]


class TestLimiters:
    def test_go_to_shadow_and_back(self, shop: Shop) -> None:
        trial = shop.control.override("*", limiter="ip", shadow=True, lasting=True)
        assert shop.statuses(3) == [200, 200, 200]

        shop.control.undo(trial.id)
        assert shop.statuses(1) == [429]

    def test_with_a_ban_at_night_and_the_ban_ends_with_it(self, shop: Shop) -> None:
        limit = {"type": "ip", "rules": "1/minute", "ban": {"after": 1, "time": 600}}
        entry = shop.control.override("open", limit=limit, for_=60)

        assert shop.statuses(2, "/open") == [200, 429]
        assert shop.ask("/open").headers["Retry-After"] == "600"
        shop.control.undo(entry.id)
        assert shop.statuses(1, "/open") == [200]

    def test_of_other_rules_keep_the_ban_of_the_limiter(self, app: Flask) -> None:
        limiter = rate_limiter(type=IP, rules="1/minute", ban=Ban(after=2))
        overridden(app, limiter, view(), rule="ip-60s", rules="2/minute")

        answers = [ask(app) for _ in range(4)]

        assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
        assert answers[-1].headers["Retry-After"] == "3600"

    def test_to_shadow_takes_a_ban_along(self, app: Flask) -> None:
        multilimit = MultiLimit(app)
        app.add_url_rule("/", "show", rate_limiter(type=IP, rules="1/minute", ban=Ban(after=1))(view()))
        assert [ask(app).status_code for _ in range(3)] == [200, 429, 429]

        with app.app_context():
            multilimit.control.override("show", limiter="ip", shadow=True, lasting=True)

        assert ask(app).status_code == 200


def test_a_limiter_that_is_off_leaves_the_customers_page_that_names_it_to_the_others() -> None:
    app = Flask("shop")
    multilimit = MultiLimit(app)
    for name in ("search", "mine"):
        app.add_url_rule(f"/{name}", name, rate_limiter(type=IP, rules="2/minute", name=name)(view()))
    app.register_blueprint(Usage(multilimit, limits=["search", "mine"]))

    with app.app_context():
        multilimit.control.override("mine", limiter="mine", off=True, author="ann", reason="an incident", for_=60)

    answer = ask(app, "/rate_limit")
    assert answer.status_code == 200
    assert "search:search-60s" in answer.text
    assert "mine:" not in answer.text


class TestWhatElseIsLimited:
    def test_a_check_in_a_view_by_its_scope(self, shop: Shop) -> None:
        shop.control.override("mail", rule="default-60s", rules="3/minute", lasting=True, force=True)
        with shop.app.app_context():
            allowed = [shop.multilimit.check("2/minute", scope="mail").allowed for _ in range(4)]

        assert allowed == [True, True, True, False]

    def test_a_service_function(self, shop: Shop) -> None:
        @rate_limiter(rules="1/minute")
        def send() -> str:
            return "sent"

        where = f"{__name__}:{send.__qualname__}"
        with shop.app.app_context():
            shop.control.override(where, off=True, lasting=True, force=True)
            assert [send() for _ in range(3)] == ["sent"] * 3

    @pytest.mark.parametrize("place", ["MULTILIMIT_DEFAULT_LIMITS", "MULTILIMIT_APPLICATION_LIMITS"])
    def test_limits_of_settings(self, app: Flask, place: str) -> None:
        app.config[place] = [{"type": "ip", "rules": "1/minute", "name": "each"}]
        overridden(app, None, view(), where="*", rule="each-60s", rules="2/minute")

        assert [ask(app).status_code for _ in range(3)] == [200, 200, 429]


BRINGS_SLOTS = [
    {"rule": "default-60s", "rules": "2 at once"},
    {"limiter": "default", "rules": {"count": 2, "timeout": 30}},
    {"limit": {"rules": "2 at once"}},
]


class TestSlotsThatAChangeBrings:
    @pytest.mark.parametrize("given", BRINGS_SLOTS, ids=str)
    def test_a_service_function_gives_them_back_when_it_ends(self, shop: Shop, given: dict[str, Any]) -> None:
        @rate_limiter(rules="100/minute")
        def send() -> int:
            return len(KEEPER)

        with shop.app.app_context():
            assert send() == 0
            shop.control.override(f"{__name__}:{send.__qualname__}", **given, lasting=True, force=True)

            assert [send() for _ in range(5)] == [1] * 5
        assert len(KEEPER) == 0

    def test_an_async_function_gives_them_back_when_it_ends(self, shop: Shop) -> None:
        @rate_limiter(rules="100/minute")
        async def send() -> int:
            return len(KEEPER)

        with shop.app.app_context():
            assert asyncio.run(send()) == 0
            where = f"{__name__}:{send.__qualname__}"
            shop.control.override(where, limiter="default", rules="2 at once", lasting=True, force=True)

            assert [asyncio.run(send()) for _ in range(5)] == [1] * 5
        assert len(KEEPER) == 0

    def test_a_view_holds_them_until_its_response_is_closed(self, shop: Shop) -> None:
        shop.control.override("show", rule="ip-60s", rules="1 at once", lasting=True, force=True)

        with shop.app.test_client().get("/") as first:
            assert first.status_code == 200
            assert shop.statuses(1, ip="127.0.0.1") == [429]
        assert shop.statuses(1, ip="127.0.0.1") == [200]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"endpoint": "show", "rule": "ip-60s", "rules": "2/mnute"}, "rules='2/mnute': .*did you mean 'minute'"),
    ({"endpoint": "show", "rule": "ip-60s", "rules": {"count": 0}}, "rules.count=0"),
    ({"endpoint": "show", "rule": "ip-60s", "rules": {"burst": 5}}, "burst works with"),
    (
        {"endpoint": "shwo", "rule": "ip-60s", "rules": "2/second"},
        "such a limit; the nearest name is show",
    ),
    (
        {"endpoint": "show", "rule": "ip-61s", "rules": "2/second"},
        "such a limit; the rules of show are ip-60s",
    ),
    (
        {"endpoint": "jobs", "rule": "ip-60s", "rules": "2/second"},
        "such a limit; `flask multilimit limits`",
    ),
    ({"endpoint": "show", "limit": {"type": "ip", "hash_tag": "subject"}}, "keys in several slots"),
    (
        {"endpoint": "show", "limit": {"type": f"{__name__}:view"}},
        "names a callable, which only settings and files can",
    ),
    ({"endpoint": "show", "limit": {"typ": "ip"}}, "limit.typ: is not an option; did you mean 'type'"),
    ({"endpoint": "show", "rules": "9/minute"}, "rules: name what they replace"),
    ({"endpoint": "show", "rule": "ip-60s"}, "nothing given"),
    ({"endpoint": "show", "rule": "ip-60s", "limiter": "ip", "off": True}, "rule and limiter: give only one of them"),
    ({"endpoint": "show", "rule": "ip-60s", "shadow": True}, "shadow does not apply to a rule"),
    ({"rule": "ip-60s", "rules": "9/minute"}, "endpoint: give one"),
    ({"who": "user:42", "times": 0}, "times=0"),
    ({"who": "nobody", "times": 2}, "give a network"),
    ({"who": "tenant:a", "times": 2}, "no limiter of this app has a type called 'tenant'"),
    ({"who": "2001:db8::1", "times": 2}, "give 2001:db8::/64"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_an_override_that_could_not_be_declared_is_an_error(shop: Shop, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        shop.control.override(**given, lasting=True)

    assert shop.control.entries() == ()
    assert shop.control.history() == []


def test_an_import_that_gives_a_name_twice_is_an_error_and_changes_nothing(shop: Shop) -> None:
    shop.control.deny("203.0.113.7", lasting=True)
    exported = shop.control.export_entries()
    shop.control.undo(shop.control.entries()[0].id)

    with pytest.raises(ConfigurationError, match="'entries' is given twice; join them, or keep one"):
        shop.control.import_entries(exported.rstrip().removesuffix("}") + ', "entries": []}')

    assert shop.control.entries() == ()


@pytest.mark.parametrize(
    ("options", "rules", "told"),
    [
        ({"charge_when": lambda _: False}, "1 at once", "charge_when has no effect on a Concurrent rule"),
        (
            {"reserve": Reserve({"critical": 0.2}, lambda: None)},
            {"algorithm": "gcra", "count": 10, "time": 60},
            "not with gcra",
        ),
    ],
)
@pytest.mark.parametrize("declared", ["10/minute", lambda: "10/minute"], ids=["declared", "by request"])
@pytest.mark.parametrize("about", [{"rule": "ip-60s"}, {"who": "127.0.0.1"}], ids=["everybody", "one subject"])
def test_rules_that_do_not_go_with_the_options_of_their_limiter_cannot_be_set(
    app: Flask, options: Any, rules: Any, told: str, declared: Any, about: Any
) -> None:
    multilimit = MultiLimit(app)
    app.add_url_rule("/", "show", rate_limiter(type=IP, rules=declared, **options)(view()))

    with app.app_context(), pytest.raises(ConfigurationError, match=told):
        multilimit.control.override("show", rules=rules, lasting=True, force=True, **about)
    assert ask(app).status_code == 200


def test_a_second_override_of_a_rule_replaces_the_first(shop: Shop) -> None:
    for count in (3, 4):
        shop.control.override("show", rule="ip-60s", rules=f"{count}/minute", lasting=True)

    (entry,) = shop.control.entries()
    assert str(entry) == "rule ip-60s at show: 4/minute"
    assert shop.statuses(5) == [200, 200, 200, 200, 429]


def test_an_additional_limiter_and_a_change_of_the_declared_ones_do_not_replace_each_other(shop: Shop) -> None:
    shop.control.override("show", times=2, lasting=True)
    shop.control.override("show", limit={"type": "ip", "rules": "1/minute"}, lasting=True)

    assert len(shop.control.entries()) == 2
    assert shop.statuses(3) == [200, 200, 429]  # the factor applies to the additional limiter too


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"limit": "9/hour"}, "at show: new default limit 9/hour"),
        ({"limit": {"type": "ip", "rules": "9/hour"}}, "at show: new ip limit 9/hour"),
        (
            {"limit": {"rules": "9/hour", "name": "x"}},
            'at show: new limit {"rules": "9/hour", "name": "x"}',
        ),
        ({"limiter": "ip", "times": 1.5}, "limiter ip at show: 1.5 times the count"),
        ({"limiter": "ip", "rules": {"count": 9}}, 'limiter ip at show: {"count": 9}'),
    ],
)
def test_an_entry_in_words(shop: Shop, given: dict[str, Any], text: str) -> None:
    assert str(shop.control.override("show", lasting=True, **given)) == text


class TestBesideTheView:
    """What an override makes of a decorator's limiter is still the decorator's."""

    def test_a_request_that_ends_before_its_view_is_not_charged_by_it(self, app: Flask) -> None:
        overridden(app, rate_limiter(rules="1/minute"), view(), limiter="default", rules="1/hour", force=True)
        answers = iter(["early", "early", None])
        app.before_request(lambda: next(answers, None))

        assert [ask(app).status_code for _ in range(4)] == [200, 200, 200, 429]


class TestConcurrency:
    def test_text_leaves_the_slots_in_use_of_a_limit_as_data(self, app: Flask) -> None:
        app.config["MULTILIMIT_LIMITS"] = {"show": {"rules": {"count": 2, "timeout": 30, "name": "slots"}}}
        multilimit = MultiLimit(app)
        app.add_url_rule("/", "show", lambda: iter("abc"))
        client = app.test_client()
        held = [client.get("/") for _ in range(2)]

        with app.app_context():
            multilimit.control.override("show", rule="slots", rules="1 at once", lasting=True)

        assert [client.get("/").status_code for _ in range(2)] == [429, 429]
        for response in held:
            response.close()

    def test_a_timeout_does_not_make_slots_of_the_count_of_a_rate(self, shop: Shop) -> None:
        with pytest.raises(ConfigurationError, match=r"timeout is for .*, and 2 per 60s is a rate; give a count"):
            shop.control.override("show", rule="ip-60s", rules={"timeout": 30}, lasting=True)

    def test_slots_can_be_multiplied(self, app: Flask) -> None:
        overridden(app, rate_limiter(rules=[Concurrent(1)]), view(), limiter="default", times=3)

        assert [ask(app).status_code for _ in range(3)] == [200] * 3
