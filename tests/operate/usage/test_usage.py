"""What a client sees of its own limits, and that it sees nothing else."""

import json
import logging
import re
from datetime import datetime
from html import unescape
from typing import Any
from urllib.parse import urljoin

import jsonschema
import pytest
import redis
from flask import Blueprint, Flask, Response, abort, request

from flask_multilimit import IP, USER, Ban, Calendar, ConfigurationError, MultiLimit, Rule, rate_limiter
from flask_multilimit.engine import MemoryStorage, RedisStorage
from flask_multilimit.signals import limit_event, limits_checked
from flask_multilimit.testing import Clock
from flask_multilimit.usage import Usage
from support.asking import ask, commands, heard, made_public, statuses, view
from support.changes import control_of
from support.clock import Clock as ServerClock
from support.doubles import raising

HTML = {"Accept": "text/html"}


def shop(
    *, storage: Any = None, user: Any = None, usage: dict[str, Any] | None = None, settings: Any = (), **limits: Any
) -> Flask:
    """An app with a view below each name of ``limits``, and the page of usage."""
    app = Flask("shop")
    app.config.update(settings)
    multilimit = MultiLimit(app, storage=storage, user_loader=user)
    for name, limit in limits.items():
        app.add_url_rule(f"/{name}", name, limit(view()))
    app.register_blueprint(Usage(multilimit, **(usage or {})))
    return app


def made(**options: Any) -> Flask:
    """An app with a limit by address and one by user."""
    given = {name: options.pop(name) for name in ("storage", "usage") if name in options}
    app = shop(**given, user=lambda: request.headers.get("X-User"), settings=options)
    app.add_url_rule("/search", "api.search", rate_limiter(type=IP, rules="2/minute; 3 at once")(view()))
    app.add_url_rule("/mine", "api.mine", rate_limiter(type=USER, rules="5/minute", name="mine")(view()))
    return app


def json_of(app: Flask, **options: Any) -> Any:
    """The JSON of a client."""
    answer = ask(app, "/rate_limit", **options)
    assert answer.status_code == 200
    return json.loads(answer.text)


def remaining(app: Flask, **options: Any) -> dict[str, int]:
    """The remaining units, by the names of the limits."""
    return {name: each["remaining"] for name, each in json_of(app, **options)["resources"].items()}


@pytest.fixture
def app() -> Flask:
    return made()


class TestJson:
    def test_json_has_limit_used_remaining_and_reset(self, app: Flask) -> None:
        assert statuses(app, "/search") == [200]

        found = json_of(app)["resources"]["api.search:ip-60s"]

        assert (found["limit"], found["used"], found["remaining"]) == (2, 1, 1)
        assert found["reset"] == pytest.approx(json_of(app)["at"] + 60, abs=5)
        assert found["policy"] == "ip-60s"  # as in the header field

    def test_json_fits_its_linked_schema(self, app: Flask) -> None:
        statuses(app, "/search", "/mine")

        answer = ask(app, "/rate_limit")

        schema = json.loads(ask(app, answer.headers["Link"].partition(">")[0].lstrip("<")).text)
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(json.loads(answer.text), schema)
        assert {"limit", "remaining", "reset"} <= set(schema["$defs"]["Quota"]["properties"])

    def test_answers_are_never_cached(self, app: Flask) -> None:
        for method in ("GET", "HEAD", "OPTIONS"):
            answer = ask(app, "/rate_limit", method=method)
            assert answer.status_code == 200
            assert answer.headers["Cache-Control"] == "no-store"

    def test_shared_quota_is_listed_once(self) -> None:
        limit = rate_limiter(type=IP, rules="4/minute", scope="both")
        app = shop(settings={"MULTILIMIT_APPLICATION_LIMITS": "9/minute"}, one=limit, two=limit)
        statuses(app, "/one", "/two")
        assert remaining(app) == {"application:application-60s": 7, "both:ip-60s": 2}

    def test_quotas_of_one_limiter_at_two_endpoints_are_listed_both(self) -> None:
        app = shop(settings={"MULTILIMIT_DEFAULT_LIMITS": "5/minute"}, a=lambda each: each, b=lambda each: each)
        statuses(app, "/a")
        assert remaining(app) == {"a:default-60s": 4, "b:default-60s": 5}

    def test_limiters_with_one_type_and_two_names_have_two_quotas(self) -> None:
        def tenant() -> str:
            return "acme"

        limits: dict[str, Any] = {
            name: rate_limiter(type=tenant, name=name, rules="5/minute", scope="all") for name in ("a", "b")
        }
        app = shop(**limits)
        statuses(app, "/a", "/a")
        assert remaining(app) == {"all:a-60s": 3, "all:b-60s": 5}

    def test_limits_of_two_methods_have_two_names(self) -> None:
        app = shop()
        both = rate_limiter(rules="7/minute", methods=["GET"])(rate_limiter(rules="2/minute", methods=["POST"])(view()))
        app.add_url_rule("/", "both", both, methods=["GET", "POST"])
        assert remaining(app) == {"GET both:default-60s": 7, "POST both:default-60s-2": 2}

    def test_shadow_limits_are_hidden_unless_headers_show_them(self) -> None:
        shadow = rate_limiter(rules="1/minute", shadow=True)
        hidden, told = (shop(settings={"MULTILIMIT_SHADOW_HEADERS": told}, show=shadow) for told in (False, True))
        assert remaining(hidden) == {}
        assert remaining(told) == {"show:default-60s": 1}

    @pytest.mark.parametrize(
        ("chosen", "expected"),
        [
            ({"endpoints": ["api.m*"]}, {"mine-60s": "mine-60s"}),
            ({"limits": ["mine"]}, {"mine-60s": "mine-60s"}),
            ({"limits": {"ip-60s": "Searches", "mine": "Calls"}}, {"ip-60s": "Searches", "mine-60s": "Calls"}),
        ],
        ids=["endpoints", "limits", "labels"],
    )
    def test_json_has_only_chosen_limits_and_labels(self, chosen: dict[str, Any], expected: dict[str, str]) -> None:
        found = json_of(made(usage=chosen))["resources"].values()
        assert {each["policy"]: each["label"] for each in found} == expected

    def test_label_of_a_shared_quota_is_that_of_the_chosen_limiter(self) -> None:
        wide = rate_limiter(type=IP, rules=lambda: "10/minute", name="wide", scope="calls")
        strict = rate_limiter(type=IP, rules="5/minute", name="strict", scope="calls")
        (found,) = json_of(shop(a=wide, b=strict, usage={"limits": {"strict": "Calls"}}))["resources"].values()
        assert (found["label"], found["limit"]) == ("Calls", 5)

    def test_label_may_be_a_lazy_text_for_each_client(self) -> None:
        class Lazy:
            def __str__(self) -> str:
                return request.headers["X-User"]

        app = made(usage={"limits": {"mine": Lazy()}})

        for user in ("ann", "bob"):
            found = json_of(app, headers={"X-User": user})["resources"]["api.mine:mine-60s"]
            assert found["label"] == user

    @pytest.mark.parametrize("chosen", [{"endpoints": ["nothing"]}, {"limits": ["nothing"]}])
    def test_unknown_chosen_name_is_an_error(self, chosen: dict[str, Any]) -> None:
        app = made(usage=chosen)
        app.testing = True
        with pytest.raises(ConfigurationError, match='is called "nothing"'):
            ask(app, "/rate_limit")

    @pytest.mark.parametrize("change", [{"off": True}, {"limit": {"rules": "7/minute", "name": "extra"}}], ids=str)
    def test_name_of_a_limit_that_an_operator_switches_off_or_adds_is_known(self, change: dict[str, Any]) -> None:
        app = made(usage={"limits": ["mine" if "off" in change else "extra"]})
        control_of(app).override("api.mine", lasting=True, force=True, **change)
        assert len(remaining(app)) == ("limit" in change)

    def test_name_may_be_one_that_only_rules_by_request_have(self) -> None:
        by_request = rate_limiter(rules=lambda: Rule(60, 5, name="gold"))
        assert remaining(shop(view=by_request, usage={"limits": ["silver"]})) == {}

    def test_unit_is_the_one_of_the_header_fields(self) -> None:
        tokens = rate_limiter(rules="900/minute", cost=30, unit="tokens")
        app = shop(chat=tokens, slow=rate_limiter(rules="2 at once"))

        found = json_of(app)["resources"].values()

        assert [each["unit"] for each in found] == ["tokens", "concurrent-requests"]
        assert "900 in 60 s · tokens" in ask(app, "/rate_limit", headers=HTML).text
        assert 'q=900;qu="tokens"' in ask(app, "/chat").headers["RateLimit-Policy"]

    def test_limit_of_a_bucket_comes_back_within_its_window(self) -> None:
        """Its rate is 10 a minute, and 30 are its burst: "30 in 60 s" would be three times as much."""
        rules = [Rule(60, 10, algorithm="token_bucket", burst=30), Rule(30, 10, algorithm="gcra"), Rule(0.3, 7)]
        queue = Rule(60, 60, algorithm="leaky_bucket", max_delay=2)
        app = shop(search=rate_limiter(type=IP, rules=[*rules, queue]))

        found = json_of(app)["resources"].values()

        assert [(each["limit"], each["window"]) for each in found] == [(30, 180), (1, 3), (7, 0.3), (3, 3)]
        assert [(each["remaining"], each["used"]) for each in found] == [(each["limit"], 0) for each in found]
        assert "30 in 3 min" in ask(app, "/rate_limit", headers=HTML).text

    def test_static_files_are_left_out_unless_named(self) -> None:
        settings = {"MULTILIMIT_DEFAULT_LIMITS": "9/minute"}
        choices: list[dict[str, Any]] = [{}, {"endpoints": ["static"]}]
        found = [list(remaining(shop(usage=chosen, settings=settings, home=lambda home: home))) for chosen in choices]
        assert found == [["home:default-60s"], ["static:default-60s"]]


class TestAsking:
    def test_usage_charges_nothing_and_sends_no_signals(self, app: Flask) -> None:
        assert statuses(app, "/search", "/search", "/search") == [200, 200, 429]
        before = json_of(app)["resources"]["api.search:ip-60s"]
        with heard(app, limits_checked, limit_event) as seen:
            client = app.test_client()
            assert {client.get("/rate_limit").status_code for _ in range(200)} == {200}
        after = json_of(app)["resources"]["api.search:ip-60s"]

        assert seen == []
        assert 0 < after["retry_after"] <= before["retry_after"]
        assert "RateLimit" not in ask(app, "/rate_limit").headers

    def test_usage_needs_one_storage_command(self, redis_client: redis.Redis, clock: ServerClock) -> None:
        app = made(storage=RedisStorage(redis_client, clock=clock))
        ask(app, "/rate_limit")

        with commands(redis_client) as seen:
            ask(app, "/rate_limit")

        assert seen == ["EVALSHA"]
        assert redis_client.keys("*{api*") == []

    def test_usage_is_limited_only_by_limits_of_its_blueprint(self) -> None:
        found = []
        for limited in (False, True):
            app = Flask("shop")
            multilimit = MultiLimit(app, default_limits="1/minute", application_limits="1/minute")
            usage = Usage(multilimit)
            if limited:
                rate_limiter(type=IP, rules="2/minute")(usage)
            app.register_blueprint(usage, url_prefix="/v1/limits")
            found.append(statuses(app, *["/v1/limits"] * 3))

        assert found == [[200, 200, 200], [200, 200, 429]]

    def test_limits_of_a_parent_blueprint_do_not_apply_to_usage(self) -> None:
        app, parent = Flask("shop"), Blueprint("v1", __name__, url_prefix="/v1")
        multilimit = MultiLimit(app)
        rate_limiter(rules="1/minute")(parent)
        parent.register_blueprint(Usage(multilimit))
        app.register_blueprint(parent)

        answers = [ask(app, "/v1/rate_limit", environ_overrides={"SCRIPT_NAME": "/shop"}) for _ in range(3)]

        assert [each.status_code for each in answers] == [200, 200, 200]
        assert answers[0].headers["Link"] == '</shop/v1/rate_limit/schema.json>; rel="describedby"'

    def test_usage_works_below_a_prefix_or_subdomain_of_customers(self) -> None:
        app = Flask("shop", subdomain_matching=True)
        app.config["SERVER_NAME"] = "shop.test"
        multilimit = MultiLimit(app)
        customer = lambda: (request.view_args or {})["customer"]  # noqa: E731
        limit = rate_limiter(type=customer, name="customer", rules="3/minute")
        app.add_url_rule("/<customer>/search", "search", limit(view()))
        app.register_blueprint(Usage(multilimit, url_prefix="/<customer>/limits"))
        app.register_blueprint(Usage(multilimit, name="tenant"), subdomain="<customer>")
        statuses(app, "/ann/search")

        for place, customer_left in (("http://shop.test/ann/limits", 2), ("http://bob.shop.test/rate_limit", 3)):
            answer = app.test_client().get(place)
            assert json.loads(answer.text)["resources"]["search:customer-60s"]["remaining"] == customer_left
            schema = answer.headers["Link"].partition(">")[0].lstrip("<")
            assert json.loads(app.test_client().get(urljoin(place, schema)).text)["title"] == "Quotas"

    def test_callable_of_rules_is_called_once_for_100_endpoints(self) -> None:
        calls = []

        def plan(user: str) -> str:
            calls.append(user)
            return "5/minute" if user == "ada" else "2/minute"

        limits: dict[str, Any] = {f"e{number}": rate_limiter(type=USER, rules=plan) for number in range(100)}
        app = shop(user=lambda: request.headers["X-User"], **limits)

        found = remaining(app, headers={"X-User": "ada"})

        assert (len(found), set(found.values()), calls) == (100, {5}, ["ada"])


@pytest.mark.parametrize("question", ["usage", "peek", "standing"])
def test_usage_peek_and_standing_do_not_change_the_last_good_rules(question: str) -> None:
    """The last good rules come from a check, not from a question at another endpoint."""
    app, failing = Flask("shop"), list[bool]()

    def rules() -> str:
        if failing:
            raise LookupError("the database is away")
        return "1/minute" if request.endpoint == "mine" else "1000/minute"

    multilimit = MultiLimit(app, user_loader=lambda: "ada")
    app.add_url_rule("/mine", "mine", rate_limiter(type=USER, rules=rules)(view()))
    app.add_url_rule("/peek", "peek", lambda: str(multilimit.peek("mine").remaining))
    app.add_url_rule("/standing", "standing", lambda: multilimit.standing(user="ada").state)
    app.register_blueprint(Usage(multilimit, url_prefix="/usage"))
    assert statuses(app, "/mine", f"/{question}") == [200, 200]

    failing.append(True)

    assert statuses(app, "/mine") == [429]


class TestPrivacy:
    def test_request_cannot_ask_for_quotas_of_another_client(self, app: Flask) -> None:
        statuses(app, "/search", "/search", environ_base={"REMOTE_ADDR": "203.0.113.7"})
        statuses(app, "/mine", "/mine", headers={"X-User": "ada"})
        other = "203.0.113.7"
        fields = ("X-Forwarded-For", "Forwarded", "X-Real-IP", "X-Client-IP", "True-Client-IP", "CF-Connecting-IP")
        hostile: list[dict[str, Any]] = [
            *({"headers": {field: f"for={other}" if field == "Forwarded" else other}} for field in fields),
            *(
                {"query_string": {name: value}}
                for name in ("user", "ip", "subject", "who", "type", "value", "client", "endpoint", "key")
                for value in (other, "ada", "user:ada", f"ip:{other}")
            ),
            {"headers": {"Cookie": "user=ada; ip=203.0.113.7; multilimit_browser=ada; session=ada"}},
            {"json": {"user": "ada", "ip": other}},
            {"data": {"user": "ada"}},
            {"headers": {"Authorization": "Basic YWRhOnNlY3JldA=="}},
        ]

        for asked in hostile:
            assert remaining(app, **asked) == {
                "api.search:ip-60s": 2,
                "api.search:ip-at-once": 3,
                "api.mine:mine-60s": 5,
            }
            page = ask(app, "/rate_limit", **{**asked, "headers": {**asked.get("headers", {}), **HTML}}).text
            page = re.sub('href="[?][^"]*"', "", page)  # the other language of what was asked
            assert other not in page
            assert "ada" not in page

    def test_answer_has_no_keys_subjects_or_operators(self, app: Flask) -> None:
        control_of(app).override(
            "api.mine", rule="mine-60s", rules="4/minute", author="ann", reason="a secret", for_=60
        )
        statuses(app, "/mine", headers={"X-User": "a-user-with-a-name"})

        answer = ask(app, "/rate_limit", headers={"X-User": "a-user-with-a-name"})

        assert json.loads(answer.text)["resources"]["api.mine:mine-60s"]["limit"] == 4
        for secret in ("a-user-with-a-name", "ann", "a secret", "rate_limit:", "127.0.0.1"):
            assert secret not in answer.text

    @pytest.mark.parametrize(
        "user", ["", "a" * 100_000, "\u2028\x1b[2J", "user:ada", "{control}", "*", "../", "\udcff", '["x"]', "42\n43"]
    )
    def test_hostile_subject_sees_only_its_own_quota(self, user: str) -> None:
        app = shop(user=lambda: user, mine=rate_limiter(type=USER, rules="5/minute"))
        statuses(app, "/mine")
        assert list(remaining(app).values()) == [4]


class TestSubjects:
    def test_type_without_a_subject_is_left_out_and_one_that_aborts_is_named(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = shop(
            a=rate_limiter(type=lambda: None, name="none", rules="1/minute"),
            b=rate_limiter(type=lambda: request.headers.get("X-Key") or abort(401), name="key", rules="1/minute"),
            c=rate_limiter(type=IP, rules="1/minute"),
        )

        answer = ask(app, "/rate_limit")

        assert list(json.loads(answer.text)["resources"]) == ["c:ip-60s"]
        assert json.loads(answer.text)["unknown"] == ["b:key"]
        assert not caplog.records, "an answer to the client is no failure"
        assert remaining(app, headers={"X-Key": "k"}) == {"b:key-60s": 1, "c:ip-60s": 1}

    def test_language_link_keeps_the_subject(self) -> None:
        limit = rate_limiter(type=lambda: request.args.get("key"), name="key", rules="7/minute")
        app = shop(calls=limit)
        statuses(app, "/calls?key=a%26b")
        page = ask(app, "/rate_limit?lang=en&key=a%26b&key=c", headers=HTML).text

        (link,) = re.findall('href="([?][^"]*)"', page)

        assert unescape(link) == "?key=a%26b&key=c&lang=zh"
        assert "剩余 6" in ask(app, f"/rate_limit{unescape(link)}", headers=HTML).text

    def test_failing_rules_are_named_and_others_are_shown(self, caplog: pytest.LogCaptureFixture) -> None:
        calls = []

        def plan() -> str:
            calls.append(1)
            raise LookupError("the database is away")

        planned = rate_limiter(type=USER, name="plan", rules=plan)
        app = shop(user=lambda: "ada", a=planned, b=planned, c=rate_limiter(type=IP, rules="1/minute"))

        answer = ask(app, "/rate_limit")

        assert (json.loads(answer.text)["unknown"], list(json.loads(answer.text)["resources"])) == (
            ["a:plan", "b:plan"],
            ["c:ip-60s"],
        )
        assert len(calls) == 1
        assert "database" not in answer.text
        assert "database" in caplog.text

    def test_fallback_for_failing_rules_is_shown_for_its_own_limiter_alone(self) -> None:
        plan = raising(LookupError)
        with_fallback = rate_limiter(type=IP, rules=plan, fallback="10/minute", name="first")
        found = json_of(shop(a=with_fallback, b=rate_limiter(type=IP, rules=plan, name="second")))

        assert list(found["resources"]) == ["a:first-60s"]
        assert found["unknown"] == ["b:second"]

    def test_last_good_rules_are_shown_for_their_own_limiter_alone(self) -> None:
        plans = {"a": "10/minute", "b": "100/minute"}
        planned = rate_limiter(type=USER, rules=lambda: plans[str(request.endpoint)])
        app = shop(user=lambda: "ada", a=planned, b=planned)
        statuses(app, "/a", "/b")

        assert remaining(app) == {"a:user-60s": 9, "b:user-60s": 99}

    @pytest.mark.parametrize("given", [[], ["5/minute"]])
    def test_generator_of_rules_is_shown_for_each_limiter(self, given: list[str]) -> None:
        planned = rate_limiter(type=IP, rules=lambda: iter(given))
        answer = json_of(shop(a=planned, b=planned))
        assert [len(answer["unknown"]), len(answer["resources"])] == ([0, 2] if given else [2, 0])

    def test_failing_user_loader_shows_no_quota(self, caplog: pytest.LogCaptureFixture) -> None:
        app = shop(user=raising(LookupError("the database is away")), a=rate_limiter(type=USER, rules="1/minute"))
        assert json_of(app)["unknown"] == ["a:user"]
        assert [each.levelno for each in caplog.records] == [logging.ERROR]
        assert "the database is away" in caplog.text

    def test_client_that_makes_a_type_fail_at_each_request_is_logged_once_a_minute(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        limit = rate_limiter(type=lambda: int(request.args["key"]), name="key", rules="1/minute")
        app = shop(a=limit, b=limit)
        for number in range(5):
            ask(app, f"/rate_limit?key=no-number-{number}")
        assert len(caplog.records) == 1


class TestBansListsAndOutages:
    def test_banned_client_sees_how_long_the_ban_lasts(self) -> None:
        app = shop(login=rate_limiter(type=IP, rules="1/minute", ban=Ban(after=1, time=300)))
        statuses(app, "/login", "/login")

        answer = json_of(app)
        (ban,) = answer["bans"]

        assert ban["scope"] == "login"
        assert ban["retry_after"] == pytest.approx(300, abs=5)
        assert ban["until"] == pytest.approx(answer["at"] + 300, abs=5)
        assert "You are banned from login" in ask(app, "/rate_limit", headers=HTML).text

    @pytest.mark.parametrize(
        ("ban", "shadow", "wait"),
        [(300, False, 300), (30, False, 60), (300, True, 60)],
        ids=["long", "short", "shadow"],
    )
    def test_quota_of_a_banned_client_says_when_both_rule_and_ban_let_it_pass(
        self, ban: int, wait: int, *, shadow: bool
    ) -> None:
        banning = rate_limiter(type=IP, rules="1/minute", ban=Ban(after=1, time=ban), shadow=shadow)
        settings = {"MULTILIMIT_SHADOW_HEADERS": True}
        app = shop(settings=settings, login=banning, search=rate_limiter(type=IP, rules="1/minute"))
        statuses(app, "/login", "/login", "/search")

        answer = json_of(app)

        waits = {each["scope"]: each["retry_after"] for each in answer["resources"].values()}
        assert waits == {"login": pytest.approx(wait, abs=5), "search": pytest.approx(60, abs=5)}
        assert [each["scope"] for each in answer["bans"]] == ["login"] * (not shadow)

    def test_wait_for_a_slot_is_not_known(self) -> None:
        app = shop()
        in_view = rate_limiter(type=IP, rules="1 at once")(lambda: app.test_client().get("/rate_limit").get_json())
        app.add_url_rule("/slow", "slow", in_view)

        (slots,) = ask(app, "/slow").get_json()["resources"].values()

        assert (slots["remaining"], slots["retry_after"]) == (0, None)

    def test_client_banned_or_denied_by_a_list_is_refused(self, app: Flask) -> None:
        control_of(app).ban("127.0.0.1", for_=60)
        assert statuses(app, "/rate_limit") == [429]

        denied = made(MULTILIMIT_DENY=["10.0.0.0/8", "user:eve"])
        assert statuses(denied, "/rate_limit", headers={"X-User": "eve"}) == [403]
        assert statuses(denied, "/rate_limit", environ_base={"REMOTE_ADDR": "10.1.2.3"}) == [403]
        assert statuses(denied, "/rate_limit") == [200]

    def test_allowed_client_and_disabled_app_show_no_limits(self) -> None:
        allowed, disabled = made(MULTILIMIT_ALLOW=["127.0.0.1"]), made(MULTILIMIT_ENABLED=False)

        for app, state in ((allowed, "allowed"), (disabled, "disabled")):
            answer = json_of(app)
            assert (answer["state"], answer["resources"], answer["estimated"]) == (state, {}, False)
            assert "No limits apply to you now" in ask(app, "/rate_limit", headers=HTML).text

    def test_numbers_are_marked_as_estimates_in_an_outage(self) -> None:
        app = made(storage="redis://127.0.0.1:1/0", MULTILIMIT_WORKERS=2)
        assert statuses(app, "/mine") == [200]

        answer = json_of(app)

        assert answer["estimated"]
        assert {each["used"] for each in answer["resources"].values()} == {None}
        assert "These are estimates" in ask(app, "/rate_limit", headers=HTML).text

    def test_page_shows_no_number_of_requests_in_progress_in_an_outage(self) -> None:
        app = shop(storage="redis://127.0.0.1:1/0", settings={"MULTILIMIT_WORKERS": 1})
        inside = rate_limiter(rules="2 at once")(lambda: app.test_client().get("/rate_limit", headers=HTML).text)
        app.add_url_rule("/", "slow", inside)

        page = ask(app).text

        assert "1 left" in page
        assert "in progress" not in page

    def test_limits_that_let_everything_pass_in_an_outage_are_not_known(self) -> None:
        app = Flask("shop")
        limits = MultiLimit(app, storage="redis://127.0.0.1:1/0", application_limits="9/hour")
        ban = Ban(after=2, within=60, time=600)
        passing = rate_limiter(type=IP, rules="5/minute", on_storage_error="allow", name="mild", ban=ban)
        app.add_url_rule("/mine", "mine", passing(view()))
        app.register_blueprint(Usage(limits))

        answer = json_of(app)

        assert (list(answer["resources"]), answer["unknown"]) == (["application:application-3600s"], ["mine:mild"])
        assert (answer["estimated"], answer["bans"]) == (True, [])

    def test_limits_are_not_known_in_an_outage_if_the_app_lets_everything_pass(self) -> None:
        answer = json_of(made(storage="redis://127.0.0.1:1/0", MULTILIMIT_ON_STORAGE_ERROR="allow"))
        assert (answer["resources"], answer["unknown"]) == ({}, ["api.mine:mine", "api.search:ip"])

    def test_usage_answers_503_when_an_outage_denies(self) -> None:
        app = made(storage="redis://127.0.0.1:1/0", MULTILIMIT_ON_STORAGE_ERROR="deny")
        answer = ask(app, "/rate_limit")
        assert (answer.status_code, answer.headers["Cache-Control"]) == (503, "no-store")
        assert answer.headers["Retry-After"] == "1"

    def test_wrong_multilimit_that_comes_after_the_page_is_an_error_at_its_first_request(self) -> None:
        app = Flask("shop")
        app.testing = True
        app.register_blueprint(Usage(MultiLimit(), url_prefix="/usage"))
        MultiLimit(app)

        with pytest.raises(ConfigurationError, match="its Usage was given"):
            app.test_client().get("/usage")

    def test_wrong_multilimit_or_url_prefix_is_an_error(self) -> None:
        app = made()
        with pytest.raises(ConfigurationError, match="its Usage was given"):
            app.register_blueprint(Usage(MultiLimit(), name="other"))
        with pytest.raises(ConfigurationError, match="give the MultiLimit"):
            Usage(app)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="url_prefix"):
            Usage(MultiLimit(), url_prefix="limits")


class TestPage:
    @pytest.mark.parametrize(
        ("accept", "expected"),
        [
            ("*/*", "application/json"),
            ("text/html,application/xhtml+xml,*/*;q=0.8", "text/html"),
            ("application/json", "application/json"),
            ("text/html;q=0.1,application/json", "application/json"),
            ("text/html" + ",x/y" * 500, "application/json"),
            ("nonsense", "application/json"),
        ],
    )
    def test_page_is_served_to_clients_that_prefer_html(self, app: Flask, accept: str, expected: str) -> None:
        assert ask(app, "/rate_limit", headers={"Accept": accept}).mimetype == expected

    def test_page_has_no_scripts_and_loads_nothing(self, app: Flask) -> None:
        answer = ask(app, "/rate_limit", headers=HTML)

        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "script" not in answer.text
        assert "Set-Cookie" not in answer.headers

    def test_sites_that_the_app_allows_may_read_it_but_no_cache_may_store_it(self, app: Flask) -> None:
        @app.after_request
        def share(response: Response) -> Response:  # as Flask-CORS does
            response.headers["Access-Control-Allow-Origin"] = "https://shop.example"
            response.headers["CDN-Cache-Control"] = "max-age=60"
            return made_public(response)

        answer = ask(app, "/rate_limit")

        assert answer.headers["Access-Control-Allow-Origin"] == "https://shop.example"
        assert answer.headers.getlist("Cache-Control") == ["no-store"]
        assert "CDN-Cache-Control" not in answer.headers

    def test_page_escapes_labels_and_queries(self) -> None:
        evil = "<script>alert(1)</script>\u202e"
        app = made(usage={"limits": {"mine": evil}})

        page = ask(app, "/rate_limit", headers=HTML, query_string={"lang": evil}).text

        assert "<script>" not in page
        assert "\u202e" not in page
        assert "&lt;script&gt;" in page

    def test_name_from_right_to_left_is_apart_from_the_count(self) -> None:
        limits: dict[str, Any] = {"שלום": rate_limiter(type=IP, rules="3/minute")}
        app = shop(**limits)
        assert "<bdi>שלום</bdi> · 3 in 60 s" in ask(app, "/rate_limit", headers=HTML).text

    def test_label_is_written_in_its_own_direction(self) -> None:
        app = made(usage={"limits": {"mine": "שלום (API)"}})
        assert "<h2><bdi>שלום (API)</bdi></h2>" in ask(app, "/rate_limit", headers=HTML).text

    def test_page_folds_unused_limits(self, app: Flask) -> None:
        assert "<details>" not in ask(app, "/rate_limit", headers=HTML).text
        statuses(app, "/search")
        page = ask(app, "/rate_limit", headers=HTML).text
        assert page.index("1 left") < page.index("<details>") < page.index("5 left")

    @pytest.mark.parametrize(("rules", "cost"), [(0, 1), ("10/minute", 11)])
    def test_page_says_that_a_limit_never_lets_the_client_pass(self, rules: Any, cost: int) -> None:
        app = shop(search=rate_limiter(rules=lambda: rules, cost=cost))
        page = ask(app, "/rate_limit", headers=HTML).text
        assert "This limit lets none of your requests pass." in page
        assert "when another has finished" not in page

    def test_quotas_can_be_used_by_a_page_of_the_app(self, app: Flask) -> None:
        usage = app.blueprints["usage"]
        assert isinstance(usage, Usage)

        with app.test_request_context("/"):
            found = usage.quotas()

        assert found.resources["api.search:ip-60s"].remaining == 2
        assert found.state == "limited"


class TestCalendar:
    @pytest.mark.parametrize(
        ("now", "end", "english", "chinese"),
        [
            ("2026-11-23T12:00+01:00", "2026-12-15T00:00+01:00", "15 December, 00:00", "12 月 15 日 00:00"),
            (
                "2026-12-20T12:00+01:00",
                "2027-01-15T00:00+01:00",
                "15 January 2027, 00:00",
                "2027 年 1 月 15 日 00:00",
            ),
            ("2026-03-20T12:00+01:00", "2026-04-15T00:00+02:00", "15 April, 00:00", "4 月 15 日 00:00"),
        ],
        ids=["this year", "next year", "over summer time"],
    )
    def test_page_shows_the_local_end_of_a_calendar_period(
        self, now: str, end: str, english: str, chinese: str
    ) -> None:
        """By the clock of the storage, not of this machine."""
        storage = MemoryStorage(clock=Clock(datetime.fromisoformat(now).timestamp()))
        rules = [Calendar(10_000, "month", timezone="Europe/Berlin", anchor=15), Calendar(500, "hour")]
        app = shop(storage=storage, search=rate_limiter(type=IP, rules=rules))
        statuses(app, "/search")

        found = json_of(app)["resources"]["search:ip-month"]
        page, translated = (ask(app, f"/rate_limit?lang={lang}", headers=HTML).text for lang in ("en", "zh"))

        assert (found["used"], found["period"], found["timezone"]) == (1, "month", "Europe/Berlin")
        assert found["window"] is None
        assert found["reset"] == datetime.fromisoformat(end).timestamp()
        assert f'<time datetime="{end[:16]}:00{end[16:]}">' in page
        assert f"resets on {english} in Berlin</time>" in page
        assert "10,000 in each month" in page
        assert "resets in 60 min" in page, "the hour"
        assert chinese in translated

    def test_page_says_the_offset_of_a_zone_whose_name_has_the_opposite_sign(self) -> None:
        storage = MemoryStorage(clock=Clock(datetime(2026, 11, 23).timestamp()))
        app = shop(storage=storage, search=rate_limiter(rules=Calendar(10, "month", timezone="Etc/GMT+5")))
        statuses(app, "/search")
        assert "resets on 1 December, 00:00 in UTC-05:00</time>" in ask(app, "/rate_limit", headers=HTML).text
