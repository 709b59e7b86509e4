"""Overrides change limits while the app runs: used units stay used, and an invalid override is an error."""

import asyncio
import gc
import json
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import Mock

import pytest
from flask import Flask, request

from control.conftest import Shop, SkewedStore, shop_on
from flask_multilimit import (
    IP,
    USER,
    Ban,
    Concurrent,
    ConfigurationError,
    MultiLimit,
    RateLimitExceeded,
    Reserve,
    Rule,
    exempt,
    rate_limiter,
)
from flask_multilimit.control.entries import Override
from flask_multilimit.declare.limiter import Declaration
from flask_multilimit.engine.slots import KEEPER
from flask_multilimit.insight.changes import entries
from flask_multilimit.plan.overrides import MOST_UNFIT, fitting
from flask_multilimit.serve.gate import gate_of
from flask_multilimit.usage import Usage
from support.asking import ask, policy, statuses, view
from support.doubles import OwnStorage
from support.waiting import until


def overridden(
    app: Flask, limiter: Callable[..., Any] | None, view: Callable[[], Any], /, where: str | None = "show", **given: Any
) -> None:
    """Serve ``view`` at /, with an override of its limits."""
    multilimit = MultiLimit(app)
    app.add_url_rule("/", "show", view if limiter is None else limiter(view))
    with app.app_context():
        multilimit.control.override(where, lasting=True, **given)


@pytest.mark.parametrize("where", ["show", "a function that nobody has called"])
@pytest.mark.parametrize(
    "given",
    [
        {"limit": {"rules": "2 at once"}},
        {"who": "203.0.113.7", "rules": "2 at once"},
        {"rule": "ip-60s", "rules": "2 at once"},
        {"limiter": "ip", "rules": "2 at once"},
    ],
    ids=["added", "of a subject", "of a rule by request", "of a limiter"],
)
def test_override_that_needs_slots_is_an_error_if_the_storage_keeps_none(where: str, given: dict[str, Any]) -> None:
    app = Flask(__name__)
    multilimit = MultiLimit(app, storage=OwnStorage())
    app.get("/", endpoint="show")(rate_limiter(type=IP, rules=lambda: "9/minute", fallback="1/minute")(view()))

    with app.app_context(), pytest.raises(ConfigurationError, match="a OwnStorage keeps no slots"):
        multilimit.control.override(where, lasting=True, force=True, **given)


def test_misplaced_limiter_is_an_error_also_if_overrides_are_in_force_before_the_first_request(app: Flask) -> None:
    overridden(app, rate_limiter(rules="9/minute"), view(), times=2)
    rate_limiter(rules="1/minute")(app.get("/open")(view()))

    with pytest.raises(ConfigurationError, match=r"@rate_limiter stands above @app\.route"):
        ask(app)


USER_42, ODD = {"path": "/mine", "user": "42"}, f"*{'0a' * 20}"
CHANGES: dict[str, tuple[str | None, dict[str, Any], dict[str, str], int, dict[str, str]]] = {
    "user with an odd id": (None, {"who": f"user:{ODD}", "rules": "1/minute"}, {"path": "/mine", "user": ODD}, 1, {}),
    "part with an odd id": (None, {"who": f"user:{ODD}", "rules": "1/minute"}, {"path": "/both", "user": ODD}, 1, {}),
    "algorithm of a rule": ("show", {"rule": "ip-60s", "rules": {"algorithm": "gcra", "burst": 1}}, {}, 1, {}),
    "count and time of a rule": ("bucket", {"rule": "ip-60s", "rules": "20/minute"}, {"path": "/bucket"}, 3, {}),
    "count and burst of a rule": (None, {"who": "198.51.100.7", "times": 2}, {"path": "/bucket"}, 6, {}),
    "dynamic rule": ("tier", {"rule": "tier-60s", "rules": "3/minute"}, {"path": "/tier"}, 3, {}),
    "limiters of a type": ("api.mine", {"limiter": "user", "rules": "1/minute"}, USER_42, 1, {}),
    "limiter with dynamic rules": ("tier", {"limiter": "tier", "times": 2}, {"path": "/tier"}, 4, {}),
    "fixed rules for dynamic ones": ("tier", {"limiter": "tier", "rules": "3/minute"}, {"path": "/tier"}, 3, {}),
    "added limiter": ("open", {"limit": {"type": "ip", "rules": "1/minute"}}, {"path": "/open"}, 1, {}),
    "user": (None, {"who": "user:42", "times": 2}, USER_42, 4, {"path": "/mine", "user": "7"}),
    "user of a combined type": (None, {"who": "user:42", "times": 2}, {"path": "/both", "user": "42"}, 4, {}),
    "user at an endpoint": (
        *("api.mine", {"who": "user:42", "rules": "3/minute"}),
        *(USER_42, 3, {"path": "/both", "user": "42"}),
    ),
    "network": (None, {"who": "203.0.113.0/24", "times": 2}, {"ip": "203.0.113.9"}, 4, {"ip": "203.0.114.9"}),
    "IPv4-mapped address of a network": (
        *(None, {"who": "203.0.113.0/24", "times": 2}),
        *({"ip": "::ffff:203.0.113.9"}, 4, {"ip": "::ffff:203.0.114.9"}),
    ),
    "IPv6 network": (None, {"who": "2001:db8::/32", "times": 2}, {"ip": "2001:db8:1::7"}, 4, {"ip": "2001:db9::7"}),
    "address of a user who is not logged in": (
        *(None, {"who": "203.0.113.9", "times": 2}, {"path": "/mine", "ip": "203.0.113.9"}),
        *(4, {"path": "/mine", "ip": "203.0.113.8"}),
    ),
    "network, but not a user in it": (
        *(None, {"who": "203.0.113.0/24", "times": 2}, {"path": "/mine", "ip": "203.0.113.9"}),
        *(4, {"path": "/mine", "ip": "203.0.113.9", "user": "7"}),
    ),
    "address with dynamic rules": (None, {"who": "198.51.100.7", "times": 2}, {"path": "/tier"}, 4, {}),
}
"""The endpoint, the change, a client whose limit it changes, its new count, and a client whose limit stays."""


@pytest.mark.parametrize(("where", "given", "asked", "count", "other"), CHANGES.values(), ids=CHANGES)
def test_override_applies_to_its_target_only(
    shop: Shop, where: str | None, given: dict[str, Any], asked: dict[str, str], count: int, other: dict[str, str]
) -> None:
    shop.control.override(where, **given, lasting=True, force=True)
    assert shop.statuses(count + 1, **asked) == [200] * count + [429]
    if other:
        assert shop.statuses(3, **other) == [200, 200, 429]


def test_override_for_an_address_applies_to_nothing_where_all_visitors_share_a_quota() -> None:
    app = Flask(__name__)
    app.config["MULTILIMIT_ANONYMOUS_USER"] = "shared"
    multilimit = MultiLimit(app, user_loader=lambda: None)
    app.add_url_rule("/", "show", rate_limiter(type=USER, rules="2/minute")(view()))

    with app.app_context(), pytest.raises(ConfigurationError, match="no endpoint has such a limit"):
        multilimit.control.override(who="203.0.113.9", times=2, lasting=True)
    assert statuses(app, "/", "/", "/") == [200, 200, 429]


@pytest.mark.parametrize(("endpoint", "everywhere"), [("api.*", False), ("api", False), ("*", True)])
def test_override_off_stops_refusals_at_matching_endpoints(shop: Shop, endpoint: str, everywhere: bool) -> None:
    shop.control.override(endpoint, off=True, lasting=True, force=True)
    assert shop.statuses(3, **USER_42) == [200, 200, 200]
    assert shop.statuses(3) == [200, 200, 200 if everywhere else 429]


def test_override_ends_although_nobody_makes_another_change() -> None:
    shop, store = shop_on("memory://"), SkewedStore()
    follower = shop.follower
    follower.store = store
    shop.control.override("*", off=True, for_="15m", force=True)
    assert shop.statuses(3) == [200, 200, 200]

    store.ahead = 3600

    def is_limited() -> bool:
        follower.look()
        return 429 in shop.statuses(3)

    until(is_limited)


def test_override_of_the_smallest_network_decides(shop: Shop) -> None:
    shop.control.override(who="203.0.113.0/24", times=2, lasting=True)
    shop.control.override(who="203.0.113.7", times=3, lasting=True)
    assert shop.statuses(7, ip="203.0.113.7") == [200] * 6 + [429]


class TestRules:
    def test_changed_count_applies_to_used_units(self, shop: Shop) -> None:
        assert shop.statuses(3) == [200, 200, 429]

        raised = shop.control.override("show", rule="ip-60s", rules="4/minute", for_=60)
        assert shop.statuses(3) == [200, 200, 429]

        shop.control.undo(raised.id)
        assert shop.statuses(1) == [429]
        assert shop.ask().headers["RateLimit-Policy"] == '"ip-60s";q=2;w=60'

    def test_name_of_a_rule_stays_when_its_window_changes(self, shop: Shop) -> None:
        shop.control.override("show", rule="ip-60s", rules="1/hour", lasting=True, force=True)
        assert shop.ask().headers["RateLimit-Policy"] == '"ip-60s";q=1;w=3600'

    def test_one_rule_of_several_can_be_switched_off(self, shop: Shop) -> None:
        shop.control.override("api.mine", rule="user-60s", off=True, lasting=True)
        assert policy(shop.ask("/mine", user="7")) == ["user-3600s"]


class TestLimiters:
    def test_limiter_can_be_put_in_shadow_and_back(self, shop: Shop) -> None:
        trial = shop.control.override("*", limiter="ip", shadow=True, lasting=True)
        assert shop.statuses(3) == [200, 200, 200]
        shop.control.undo(trial.id)
        assert shop.statuses(1) == [429]

    def test_ban_of_an_added_limiter_ends_with_the_override(self, shop: Shop) -> None:
        limit = {"type": "ip", "rules": "1/minute", "ban": {"after": 1, "time": 600}}
        entry = shop.control.override("open", limit=limit, for_=60)

        assert shop.statuses(2, "/open") == [200, 429]
        assert shop.ask("/open").headers["Retry-After"] == "600"
        shop.control.undo(entry.id)
        assert not shop.denies()

    def test_override_of_rules_keeps_the_ban_of_the_limiter(self, app: Flask) -> None:
        limiter = rate_limiter(type=IP, rules="1/minute", ban=Ban(after=2))
        overridden(app, limiter, view(), rule="ip-60s", rules="2/minute")

        answers = [ask(app) for _ in range(4)]

        assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
        assert answers[-1].headers["Retry-After"] == "3600"

    def test_ban_ends_when_its_limiter_is_put_in_shadow(self, multilimit: MultiLimit, app: Flask) -> None:
        app.add_url_rule("/", "show", rate_limiter(type=IP, rules="1/minute", ban=Ban(after=1))(view()))
        assert [ask(app).status_code for _ in range(3)] == [200, 429, 429]

        with app.app_context():
            multilimit.control.override("show", limiter="ip", shadow=True, lasting=True)

        assert ask(app).status_code == 200


@pytest.mark.parametrize("given", [{"shadow": True}, {"off": True}])
def test_change_of_one_limiter_adds_and_removes_no_other(app: Flask, given: dict[str, Any]) -> None:
    """A default limit, which may be stricter, refuses nobody whom an operator wants to pass."""
    by_address = rate_limiter(type=IP, rules="2/minute")
    multilimit = MultiLimit(app, default_limits="1/hour", application_limits="4/hour", unmatched_limits=by_address)
    app.add_url_rule("/", "view", by_address(view()))

    with app.app_context():
        for endpoint in ("view", "unmatched"):
            multilimit.control.override(endpoint, limiter="ip", lasting=True, **given)

    assert statuses(app, "/", "/", "/", "/no", "/no", "/") == [200, 200, 200, 404, 429, 429]


def test_usage_page_omits_a_limiter_that_is_off() -> None:
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


def test_type_is_known_while_its_only_limiter_is_off(multilimit: MultiLimit, app: Flask) -> None:
    keyed = rate_limiter(type=lambda: request.headers.get("X-Key"), name="api_key", rules="1/minute")
    app.add_url_rule("/", "show", keyed(view()))
    assert statuses(app, *["/"] * 2, headers={"X-Key": "key-0"}) == [200, 429]

    with app.app_context():
        multilimit.control.override("show", off=True, for_=60, force=True)

        assert multilimit.peek("show", subject="api_key:key-0").allowed
        assert multilimit.standing(subject="api_key:key-0").state == "unlimited"
        assert multilimit.reset("show", subject="api_key:key-0") == 1


class TestOtherLimits:
    def test_override_applies_to_a_check_by_its_scope(self, shop: Shop) -> None:
        shop.control.override("mail", rule="default-60s", rules="3/minute", lasting=True, force=True)
        with shop.app.app_context():
            allowed = [shop.multilimit.check("2/minute", scope="mail").allowed for _ in range(4)]
        assert allowed == [True, True, True, False]

    def test_override_applies_to_a_limited_function(self, shop: Shop) -> None:
        @rate_limiter(rules="1/minute")
        def send() -> str:
            return "sent"

        where = f"{__name__}:{send.__qualname__}"
        with shop.app.app_context():
            shop.control.override(where, off=True, lasting=True, force=True)
            assert [send() for _ in range(3)] == ["sent"] * 3

    def test_limit_added_to_a_function_for_one_method_counts_no_other(self, shop: Shop) -> None:
        @rate_limiter(rules="100/minute")
        def send() -> str:
            return "sent"

        shop.app.add_url_rule("/send", "send", lambda: send(), methods=["GET", "POST", "PURGE"])  # noqa: PLW0108
        limit = {"rules": "1/minute", "methods": ["post", "PURGE"]}
        shop.control.override(f"{__name__}:{send.__qualname__}", limit=limit, lasting=True, force=True)

        methods = ["GET", "POST", "GET", "GET", "PURGE"]
        assert [ask(shop.app, "/send", method=each).status_code for each in methods] == [200, 200, 200, 200, 429]

    def test_check_admits_when_its_scope_is_off(self, shop: Shop) -> None:
        shop.control.override("mail", off=True, lasting=True, force=True)
        with shop.app.app_context():
            allowed = [shop.multilimit.check("1/minute", scope="mail").allowed for _ in range(3)]
            with shop.multilimit.limit("1/minute", scope="mail", subject="user:42") as decision:
                allowed.append(decision.allowed)

        assert allowed == [True] * 4

    def test_limit_added_everywhere_limits_no_tasks_and_checks(self, shop: Shop) -> None:
        @rate_limiter(rules="2/minute")
        def send() -> str:
            return "sent"

        shop.control.override("*", limit={"type": "ip", "rules": "1/minute"}, lasting=True)
        with shop.app.app_context():
            assert [send() for _ in range(2)] == ["sent"] * 2
            assert shop.multilimit.check("2/minute", scope="mail").allowed
            decisions = [shop.multilimit.check("2/minute", scope="m", subject="user:42") for _ in range(3)]

        assert [each.allowed for each in decisions] == [True, True, False]

    def test_function_and_check_keep_their_limits_where_overrides_do_not_fit(
        self, shop: Shop, caplog: pytest.LogCaptureFixture
    ) -> None:
        @rate_limiter(rules="2/minute", reserve=Reserve({"critical": 0.5}, lambda: "critical"))
        def send() -> bool:
            return True

        with shop.app.app_context():
            rules = {"algorithm": "gcra", "count": 9, "time": 60}
            shop.control.override("*", limiter="default", rules=rules, lasting=True, force=True)
            assert [send(), send()] == [True, True]
            with pytest.raises(RateLimitExceeded):
                send()
            reserve = Reserve({"critical": 0.5}, lambda: None)
            for _ in range(2):
                with shop.multilimit.limit("4/minute", scope="mail", reserve=reserve):
                    pass
            with pytest.raises(RateLimitExceeded), shop.multilimit.limit("4/minute", scope="mail", reserve=reserve):
                pass

        ignored = [each for each in caplog.messages if "do not fit its checks" in each]
        assert len(ignored) == 2
        assert "reserve works with" in ignored[0]

    def test_override_applies_at_endpoints_although_it_does_not_fit_a_function_that_was_called(
        self, shop: Shop
    ) -> None:
        send = rate_limiter(rules="2/minute", type=IP, charge_when=lambda _: True)(view())
        shop.app.add_url_rule("/send", "send", lambda: send())  # noqa: PLW0108
        assert shop.statuses(1, "/send") == [200]

        shop.control.override("*", limiter="ip", rules="1/minute; 5 at once", lasting=True, force=True)

        assert shop.statuses(2) == [200, 429]
        assert shop.statuses(2, "/send") == [200, 429]

    def test_override_that_does_not_fit_the_function_that_it_names_is_an_error_where_that_was_called(
        self, shop: Shop
    ) -> None:
        send = rate_limiter(rules="2/minute", type=IP)(view())
        shop.app.add_url_rule("/send", "send", lambda: send())  # noqa: PLW0108
        assert shop.statuses(1, "/send") == [200]

        with pytest.raises(ConfigurationError, match="timeout is for concurrency limits"):
            shop.control.override(
                f"{send.__module__}:{send.__qualname__}", rule="ip-60s", rules={"timeout": 9}, lasting=True
            )

    def test_override_of_a_function_stays_in_force_beside_one_that_does_not_fit(self, shop: Shop) -> None:
        @rate_limiter(rules="9/minute", type=IP, charge_when=lambda _: True)
        def send() -> str:
            return "sent"

        shop.app.add_url_rule("/send", "send", lambda: send())  # noqa: PLW0108
        where = f"{__name__}:{send.__qualname__}"
        shop.control.override(where, limiter="ip", rules="1/minute", lasting=True, force=True)
        shop.control.override("*", limiter="ip", rules="9/minute; 5 at once", lasting=True, force=True)

        assert shop.statuses(2, "/send") == [200, 429]

    def test_override_of_a_function_beside_one_that_does_not_fit_is_not_called_idle(self, shop: Shop) -> None:
        send = rate_limiter(rules="2/minute; 9/hour", type=IP)(view())
        shop.app.add_url_rule("/send", "send", lambda: send())  # noqa: PLW0108
        where = f"{send.__module__}:{send.__qualname__}"
        shop.control.override(where, rule="ip-60s", rules={"timeout": 9}, lasting=True, force=True)
        fits = shop.control.override(where, rule="ip-3600s", rules="1/hour", lasting=True, force=True)

        assert shop.statuses(2, "/send") == [200, 429]
        assert not {each.id: each.idle for each in entries(gate_of(shop.app)).entries}[fits.id]

    def test_which_overrides_do_not_fit_a_check_is_found_out_once_for_each_kind_of_check(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With 990 clients that have rules of their own, it took 33 ms in each check."""
        found = Mock(wraps=fitting)
        monkeypatch.setattr("flask_multilimit.plan.overrides.fitting", found)
        for who, rules in (
            ("user:1", "4/minute"),
            ("user:2", Rule(60, 4, algorithm="gcra", burst=4)),
            ("user:3", Rule(60, 4, lease=2)),
        ):
            shop.control.override("mail", who=who, rules=rules, lasting=True, force=True)

        def left(who: str, **options: Any) -> int:
            with shop.multilimit.limit("9/minute", scope="mail", subject=who, **options) as decision:
                return decision.remaining

        reserve = Reserve({"critical": 0.5}, lambda: "critical")
        with shop.app.test_request_context():
            assert [left(f"user:{number}", reserve=reserve, cost=0) for number in (1, 2, 3, 2)] == [4, 9, 4, 9]
            assert found.call_count == 1
            assert [left(f"user:{number}", settle=lambda _: 1, cost=0) for number in (1, 2, 3, 3)] == [4, 4, 9, 9]
            assert found.call_count == 2
            assert [left(f"user:{number}", cost=0) for number in (1, 2, 3)] == [4, 4, 4]
            assert left("user:3", reserve=reserve, cost=0) == left("user:2", settle=lambda _: 1, cost=0) == 4
        assert found.call_count == 2

    def test_overrides_of_many_clients_that_do_not_fit_a_check_are_each_tried_without_those_of_others(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With 495 clients of each kind, the second check took 2.7 s, and kept 25 MB."""
        many, tried, check_rules = 20, list[Rule](), Declaration.check_rules
        for rules in (Rule(60, 4), Rule(60, 4, algorithm="gcra", burst=4)):
            for number in range(many):
                who = f"user:{rules.algorithm}{number}"
                shop.control.override("mail", who=who, rules=rules, lasting=True, force=True)

        def check(declaration: Declaration, rules: Iterable[Rule]) -> None:
            tried.extend(rules := list(rules))
            check_rules(declaration, rules)

        reserve = Reserve({"critical": 0.5}, lambda: "critical")
        with shop.app.test_request_context():
            monkeypatch.setattr(Declaration, "check_rules", check)
            for _ in range(2):
                tried.clear()
                with shop.multilimit.limit("9/minute", scope="mail", subject="user:gcra1", reserve=reserve):
                    pass

        assert len(tried) <= 10 * many

    def test_overrides_that_fit_no_check_are_not_logged_for_ever(
        self, shop: Shop, caplog: pytest.LogCaptureFixture
    ) -> None:
        reserve = Reserve({"critical": 0.5}, lambda: None)
        with shop.app.app_context():
            rules = {"algorithm": "gcra", "count": 9, "time": 60}
            shop.control.override("mail:*", limiter="default", rules=rules, lasting=True, force=True)
            for number in range(MOST_UNFIT + 50):
                with shop.multilimit.limit("4/minute", scope=f"mail:{number}", reserve=reserve):
                    pass

        assert len([each for each in caplog.messages if "do not fit its checks" in each]) == MOST_UNFIT

    @pytest.mark.parametrize("place", ["MULTILIMIT_DEFAULT_LIMITS", "MULTILIMIT_APPLICATION_LIMITS"])
    def test_override_applies_to_limits_of_settings(self, app: Flask, place: str) -> None:
        app.config[place] = [{"type": "ip", "rules": "1/minute", "name": "each"}]
        overridden(app, None, view(), where="*", rule="each-60s", rules="2/minute")
        assert [ask(app).status_code for _ in range(3)] == [200, 200, 429]


def test_override_of_several_parts_does_not_apply_to_a_part_that_looks_like_them(shop: Shop) -> None:
    page = lambda: request.args["page"]  # noqa: E731
    shop.app.add_url_rule("/page", "page", rate_limiter(type=(IP, page), name="page", rules="1/minute")(view()))
    whole = json.dumps([["ip", "198.51.100.7"], ["page", "a"]])
    shop.control.override(who=f"page:{whole}", times=2, lasting=True)

    assert shop.statuses(3, "/page?page=a") == [200, 200, 429]
    assert shop.statuses(2, f"/page?page={whole}", ip="203.0.113.7") == [200, 429]


@pytest.mark.parametrize("who", ["198.51.100.0/24", "page:a"])
def test_override_of_a_subject_applies_where_it_is_part_of_an_own_type(shop: Shop, who: str) -> None:
    page = lambda: request.args["page"]  # noqa: E731
    shop.app.add_url_rule("/page", "page", rate_limiter(type=(IP, page), name="page", rules="1/minute")(view()))
    shop.app.add_url_rule("/single", "single", rate_limiter(type=page, name="single", rules="1/minute")(view()))
    shop.app.add_url_rule("/one", "one", rate_limiter(type=(IP,), rules="1/minute")(view()))
    shop.control.override(who=who, times=2, lasting=True)

    assert shop.statuses(3, "/page?page=a") == [200, 200, 429]
    assert shop.statuses(2, "/page?page=a", ip="203.0.113.7") == ([200, 429] if who != "page:a" else [200, 200])
    assert shop.statuses(2, "/one") == ([200, 429] if who == "page:a" else [200, 200])
    looks_like_parts = json.dumps([["ip", "198.51.100.7"], ["page", "a"]])
    assert shop.statuses(2, f"/single?page={looks_like_parts}", ip="203.0.113.7") == [200, 429]
    assert shop.statuses(2, f"/page?page={looks_like_parts}", ip="203.0.113.7") == [200, 429]


def test_rules_by_request_that_an_override_does_not_fit_stay_and_follow_the_others(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.app.add_url_rule("/plan", "plan", rate_limiter(type=IP, name="ip", rules=lambda: "4/minute")(view()))
    shop.control.override("plan", rule="ip-60s", rules={"timeout": 5}, lasting=True)
    shop.control.override("plan", limiter="ip", times=0.5, lasting=True)

    assert shop.statuses(3, "/plan") == [200, 200, 429]
    assert caplog.text.count("returned stays, as rule ip-60s at plan") == 1


def test_function_first_called_while_overrides_apply_keeps_its_last_good_rules_when_they_change(shop: Shop) -> None:
    given: list[str] = ["5/minute"]
    by_request = rate_limiter(type=lambda: "a", name="task", rules=lambda subject: given[0])  # noqa: ARG005
    task: Callable[[], str] = by_request(lambda: "done")
    shop.control.override("show", times=2, lasting=True)
    with shop.app.app_context():
        task()

    shop.control.override("show", times=3, lasting=True)
    gc.collect()
    given.clear()

    with shop.app.app_context():
        assert task() == "done"


ADDS_SLOTS = [
    {"rule": "default-60s", "rules": "2 at once"},
    {"limiter": "default", "rules": {"count": 2, "timeout": 30}},
    {"limit": {"rules": "2 at once"}},
]


class TestAddedConcurrentRules:
    @pytest.mark.parametrize("given", ADDS_SLOTS, ids=str)
    def test_function_releases_added_slots_when_it_ends(self, shop: Shop, given: dict[str, Any]) -> None:
        @rate_limiter(rules="100/minute")
        def send() -> int:
            return len(KEEPER)

        with shop.app.app_context():
            assert send() == 0
            shop.control.override(f"{__name__}:{send.__qualname__}", **given, lasting=True, force=True)

            assert [send() for _ in range(5)] == [1] * 5
        assert len(KEEPER) == 0

    def test_async_function_releases_added_slots_when_it_ends(self, shop: Shop) -> None:
        @rate_limiter(rules="100/minute")
        async def send() -> int:
            return len(KEEPER)

        with shop.app.app_context():
            assert asyncio.run(send()) == 0
            where = f"{__name__}:{send.__qualname__}"
            shop.control.override(where, limiter="default", rules="2 at once", lasting=True, force=True)

            assert [asyncio.run(send()) for _ in range(5)] == [1] * 5
        assert len(KEEPER) == 0

    def test_view_holds_added_slots_until_its_response_is_closed(self, shop: Shop) -> None:
        shop.control.override("show", rule="ip-60s", rules="1 at once", lasting=True, force=True)

        with shop.app.test_client().get("/") as first:
            assert first.status_code == 200
            assert shop.statuses(1, ip="127.0.0.1") == [429]
        assert shop.statuses(1, ip="127.0.0.1") == [200]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"endpoint": "show", "rule": "ip-60s", "rules": "2/mnute"}, "rules='2/mnute': .*did you mean 'minute'"),
    ({"endpoint": "show", "rule": "ip-60s", "rules": {"count": 0}}, "rules.count=0"),
    ({"endpoint": "show", "rule": "ip-60s", "rules": {"burst": 5}}, "burst works with"),
    ({"endpoint": "shwo", "rule": "ip-60s", "rules": "2/second"}, "such a limit; the nearest name is show"),
    (
        {"endpoint": "show", "rule": "ip-61s", "rules": "2/second"},
        r"such a limit; the rules of show are ip-60s\. A function",
    ),
    ({"endpoint": "jobs", "rule": "ip-60s", "rules": "2/second"}, "such a limit; `flask multilimit limits`"),
    ({"endpoint": "show", "limit": {"type": "ip", "hash_tag": "subject"}}, "keys in several slots"),
    (
        {"endpoint": "show", "limit": {"type": f"{__name__}:view"}},
        "names a callable, which only settings and files can",
    ),
    ({"endpoint": "show", "limit": {"typ": "ip"}}, "limit.typ: is not an option; did you mean 'type'"),
    ({"endpoint": "show", "rules": "9/minute"}, "rules: name what they replace"),
    ({"endpoint": "show", "rule": "ip-60s", "rules": ["9/minute", "9/hour"]}, "rules: one rule replaces a rule"),
    ({"endpoint": "show", "rule": "ip-60s", "rules": "9/minute; 9/hour"}, "rules: one rule replaces a rule"),
    ({"endpoint": "show", "rule": "ip-60s"}, "nothing given"),
    ({"endpoint": "show", "rule": "ip-60s", "limiter": "ip", "off": True}, "rule and limiter: give only one of them"),
    ({"endpoint": "show", "rule": "ip-60s", "shadow": True}, "apply to a rule: give off or rules or times"),
    ({"rule": "ip-60s", "rules": "9/minute"}, "endpoint: give one"),
    ({"who": "user:42", "times": 0}, "times=0"),
    ({"who": "user:42", "times": 1000.5}, "times=1000.5"),
    ({"who": "nobody", "times": 2}, "give a network"),
    ({"who": "tenant:a", "times": 2}, "no limiter of this app has a type called 'tenant'"),
    ({"who": "2001:db8::1", "times": 2}, "give 2001:db8::/64"),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=str)
def test_invalid_override_is_an_error_and_not_stored(shop: Shop, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        shop.control.override(**given, lasting=True)
    assert shop.control.entries() == ()
    assert shop.control.history() == []


def test_import_with_a_duplicate_json_key_is_an_error_and_changes_nothing(shop: Shop) -> None:
    shop.control.deny("203.0.113.7", lasting=True)
    exported = shop.control.export_entries()
    shop.control.undo(shop.control.entries()[0].id)

    with pytest.raises(ConfigurationError, match="'entries' is given twice; join them, or keep one"):
        shop.control.import_entries(exported.rstrip().removesuffix("}") + ', "entries": []}')

    assert shop.control.entries() == ()


@pytest.mark.parametrize(
    ("options", "rules", "message"),
    [
        ({"charge_when": lambda _: False}, "1 at once", "charge_when has no effect on a Concurrent rule"),
        (
            {"reserve": Reserve({"critical": 0.2}, lambda: None)},
            {"algorithm": "gcra", "count": 10, "time": 60},
            "not with gcra",
        ),
    ],
)
@pytest.mark.parametrize("declared", ["10/minute", lambda: "10/minute"], ids=["fixed rules", "dynamic rules"])
@pytest.mark.parametrize("about", [{"rule": "ip-60s"}, {"who": "127.0.0.1"}], ids=["rule", "subject"])
def test_override_with_rules_that_conflict_with_limiter_options_is_an_error(
    multilimit: MultiLimit, app: Flask, options: Any, rules: Any, message: str, declared: Any, about: Any
) -> None:
    app.add_url_rule("/", "show", rate_limiter(type=IP, rules=declared, **options)(view()))
    with app.app_context(), pytest.raises(ConfigurationError, match=f'limiter on ".+": .*{message}'):
        multilimit.control.override("show", rules=rules, lasting=True, force=True, **about)
    assert ask(app).status_code == 200


@pytest.mark.parametrize("about", [{"limiter": "ip"}, {"who": "127.0.0.1"}], ids=["limiter", "subject"])
def test_override_by_an_algorithm_that_cannot_take_the_cost_is_an_error(
    multilimit: MultiLimit, app: Flask, about: Any
) -> None:
    declared = rate_limiter(Rule(60, 100_000, algorithm="fixed_window"), type=IP, cost=20_000)
    app.add_url_rule("/", "show", declared(view()))

    with app.app_context(), pytest.raises(ConfigurationError, match="sliding_window takes at most 10000 units"):
        multilimit.control.override("show", rules="100000/minute", lasting=True, force=True, **about)
    assert ask(app).status_code == 200


@pytest.mark.parametrize(("endpoint", "expected"), [("*", [200, 200]), ("show", [200, 429])])
def test_added_limiter_applies_to_an_exempt_endpoint_only_if_it_names_it(
    app: Flask, endpoint: str, expected: list[int]
) -> None:
    overridden(app, exempt, view(), endpoint, limit="1/minute")
    assert statuses(app, "/", "/") == expected


def test_second_override_of_a_rule_replaces_the_first(shop: Shop) -> None:
    for count in (3, 4):
        shop.control.override("show", rule="ip-60s", rules=f"{count}/minute", lasting=True)

    (entry,) = shop.control.entries()
    assert str(entry) == "rule ip-60s at show: 4/minute"
    assert (entry.author, entry.reason) == ("", "")
    assert shop.statuses(5) == [200, 200, 200, 200, 429]


@pytest.mark.parametrize("places", [("show", "*"), ("*", "show")])
def test_later_of_two_overrides_of_a_rule_decides(shop: Shop, places: tuple[str, str]) -> None:
    for place, count in zip(places, (3, 4), strict=True):
        shop.control.override(place, rule="ip-60s", rules=f"{count}/minute", lasting=True)
    assert shop.statuses(5) == [200, 200, 200, 200, 429]


def test_imported_override_applies_after_those_in_force(shop: Shop) -> None:
    shop.control.override("show", rule="ip-60s", rules="3/minute", lasting=True)
    written = {"kind": "override", "id": "1" * 8, "since": 1, "endpoint": "*", "rule": "ip-60s", "rules": "4/minute"}
    shop.control.import_entries(json.dumps({"format": 1, "entries": [written]}))
    assert shop.statuses(5) == [200, 200, 200, 200, 429]


def test_import_of_rules_for_many_clients_compares_no_entry_with_all_others_at_each_limit(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"kind": "override", "since": 1, "rules": "4/minute"}
    many = [{**own, "id": f"{number:08}", "who": f"user:{number}"} for number in range(100)]
    compared, equal = Mock(return_value=None), Override.__eq__
    monkeypatch.setattr(Override, "__eq__", lambda self, other: compared() or equal(self, other))

    shop.control.import_entries(json.dumps({"format": 1, "entries": many}))

    assert len(shop.control.entries()) == 100
    assert compared.call_count < 100 * 100


@pytest.mark.parametrize("who", ["user:42", "198.51.100.0/24"])
def test_later_of_two_overrides_of_a_subject_decides(shop: Shop, who: str) -> None:
    for place, times in (("api.both", 3), (None, 2)):
        shop.control.override(place, who=who, times=times, lasting=True)
    assert shop.statuses(5, "/both", user="42") == [200, 200, 200, 200, 429]


def test_override_that_matches_is_not_reported_as_idle(shop: Shop) -> None:
    shop.control.override("show", limit="9/minute", lasting=True)
    shop.control.override("show", rule="ip-60s", rules="1/minute", lasting=True)
    shop.control.override("api", limiter="user", times=2, lasting=True)
    shop.control.override("tier", rule="tier-60s", times=2, lasting=True)
    gone = shop.control.override("show", limiter="user", times=2, lasting=True, force=True)
    assert idle(shop) == {gone.id}


def test_override_that_another_one_hides_is_not_reported_as_idle(shop: Shop) -> None:
    shop.control.override("show", limiter="ip", off=True, lasting=True, force=True)
    shop.control.override("show", rule="ip-60s", times=2, lasting=True, force=True)
    assert idle(shop) == set()


def idle(shop: Shop) -> set[str]:
    """The ids of the overrides that apply to nothing: they are the same wherever somebody asks."""
    found = shop.control.idle()
    assert {each.id for each in entries(gate_of(shop.app)).entries if each.idle} == found
    return found


def test_entries_are_listed_although_a_declaration_has_a_mistake(on_server: str) -> None:
    entry = shop_on(on_server).control.override("show", rule="ip-60s", times=2, lasting=True)
    wrong = shop_on(on_server)
    in_two_slots = [rate_limiter(type=IP, rules="2/minute", hash_tag=tag) for tag in ("scope", "subject")]
    wrong.app.add_url_rule("/wrong", "wrong", in_two_slots[0](in_two_slots[1](view())))

    assert [(each.id, each.idle) for each in entries(gate_of(wrong.app)).entries] == [(entry.id, False)]


def test_entries_have_the_rules_of_an_override_as_they_were_given(shop: Shop) -> None:
    rules = {"count": 5, "algorithm": "token_bucket", "burst": None}
    shop.control.override("show", rule="ip-60s", rules=rules, lasting=True)
    assert [each.rules for each in entries(gate_of(shop.app)).entries] == [rules]


def test_override_of_a_limit_of_an_extension_is_not_idle(shop: Shop) -> None:
    mails = rate_limiter("5/hour", type=lambda: "ann", name="plan")
    shop.app.extensions["multilimit"].add_listing(lambda _, at: {"mails": [mails] if at == "show" else []})
    shop.control.override("show", rule="plan-3600s", rules="9/hour", lasting=True, force=True)
    gone = shop.control.override("show", rule="gone-60s", rules="9/hour", lasting=True, force=True)

    assert idle(shop) == {gone.id}


def test_override_of_what_another_one_has_made_is_neither_idle_nor_an_error(shop: Shop) -> None:
    slots: Any = [{"count": 5, "algorithm": "concurrency", "name": "ip-60s"}]
    shop.control.override("show", limiter="ip", rules=slots, lasting=True, force=True)
    shop.control.override("show", rule="ip-60s", rules={"timeout": 9}, lasting=True, force=True)

    assert idle(shop) == set()


def test_changes_of_different_limits_are_separate_entries_whatever_blanks_their_names_have(shop: Shop) -> None:
    shop.app.add_url_rule("/", "show   user:x", view())
    shop.control.override("show", who="user:x   ", times=2, lasting=True, force=True)
    shop.control.override("show   user:x", off=True, lasting=True, force=True)
    assert [str(each) for each in shop.control.entries()] == [
        '"user:x   " at show: 2 times the count',
        "at show   user:x: off",
    ]


def test_added_limiter_and_factor_at_one_endpoint_are_separate_entries(shop: Shop) -> None:
    shop.control.override("show", times=2, lasting=True)
    shop.control.override("show", limit={"type": "ip", "rules": "1/minute"}, lasting=True)
    assert len(shop.control.entries()) == 2


@pytest.mark.parametrize("change", [{"times": 2}, {"off": True}, {"shadow": True}, {"limiter": "ip", "shadow": True}])
def test_added_limiter_is_changed_by_later_changes_alone(shop: Shop, change: dict[str, Any]) -> None:
    shop.control.override("show", lasting=True, **change)
    shop.control.override("show", limit={"type": "ip", "rules": "1/minute"}, lasting=True)

    assert shop.statuses(2) == [200, 429]
    shop.control.override("show", lasting=True, **change)
    assert shop.statuses(1) == [200]


@pytest.mark.parametrize(
    ("rules", "ban"), [("1/minute", {"after": 2}), (Rule(60, 1), Ban(after=2))], ids=["as data", "as objects"]
)
def test_added_limiter_may_ban(shop: Shop, rules: Any, ban: Any) -> None:
    shop.control.override("show", limit={"type": "ip", "rules": rules, "ban": ban}, lasting=True)
    (entry,) = shop.control.entries()
    assert entry.kind == "override"
    assert entry.limit is not None
    assert (entry.limit.options["rules"], entry.limit.options["ban"]) == ((Rule(60, 1),), Ban(after=2))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"limit": "9/hour"}, "at show: new default limit 9/hour"),
        ({"limit": {"type": "ip", "rules": "9/hour"}}, "at show: new ip limit 9/hour"),
        ({"limit": {"rules": "9/hour", "message": "Ä"}}, 'at show: new limit {"rules": "9/hour", "message": "Ä"}'),
        (
            {"limit": {"type": ["user", "ip"], "rules": "9/hour"}},
            'at show: new limit {"type": ["user", "ip"], "rules": "9/hour"}',
        ),
        ({"limit": {"rules": ["9/hour"]}}, 'at show: new limit {"rules": ["9/hour"]}'),
        ({"limiter": "ip", "times": 1.5}, "limiter ip at show: 1.5 times the count"),
        ({"limiter": "ip", "rules": {"count": 9}}, 'limiter ip at show: {"count": 9}'),
        (
            {"limiter": "ip", "rules": Concurrent(9)},
            'limiter ip at show: {"count": 9, "algorithm": "concurrency", "timeout": 60.0}',
        ),
        ({"limiter": "ip", "rules": ["9/hour", {"count": 9}]}, 'limiter ip at show: ["9/hour", {"count": 9}]'),
        ({"endpoint": "*", "limiter": "ip", "shadow": True}, "limiter ip everywhere: shadow"),
        ({"limiter": "ip", "shadow": False}, "limiter ip at show: no shadow"),
        ({"rule": "ip-60s", "off": True}, "rule ip-60s at show: off"),
        ({"endpoint": None, "who": "user:42", "times": 2}, "user:42: 2 times the count"),
        ({"endpoint": "api.mine", "who": "user:42", "times": 2}, "user:42 at api.mine: 2 times the count"),
    ],
    ids=str,
)
def test_override_is_shown_as_text(shop: Shop, given: dict[str, Any], text: str) -> None:
    assert str(shop.control.override(**{"endpoint": "show", **given}, lasting=True, force=True)) == text


def test_overridden_limiter_of_a_view_is_not_charged_when_before_request_answers(app: Flask) -> None:
    overridden(app, rate_limiter(rules="1/minute"), view(), limiter="default", rules="1/hour", force=True)
    answers = iter(["early", "early", None])
    app.before_request(lambda: next(answers, None))
    assert [ask(app).status_code for _ in range(4)] == [200, 200, 200, 429]


class TestConcurrency:
    def test_override_as_text_counts_slots_already_in_use(self, app: Flask) -> None:
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

    def test_timeout_for_a_rate_without_a_count_is_an_error(self, shop: Shop) -> None:
        with pytest.raises(ConfigurationError, match=r"timeout is for .*, and 2 per minute is a rate; give a count"):
            shop.control.override("show", rule="ip-60s", rules={"timeout": 30}, lasting=True)

    def test_factor_multiplies_slots(self, app: Flask) -> None:
        overridden(app, rate_limiter(rules=[Concurrent(1)]), view(), limiter="default", times=3)
        assert [ask(app).status_code for _ in range(3)] == [200] * 3
