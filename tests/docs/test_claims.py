"""What pages say about their examples is true."""

import asyncio
import contextlib
import io
import json
import re
import warnings
from collections.abc import Callable
from difflib import ndiff
from typing import Any

import pytest
import redis
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.exceptions import HTTPException

import flask_multilimit
from docs.snippets import blocks_of
from flask_multilimit import (
    IP,
    AccessDenied,
    ConfigurationWarning,
    MultiLimit,
    RateLimitExceeded,
    Rule,
    StorageUnavailable,
    rate_limiter,
)
from support.asking import ask
from support.folders import ROOT
from support.servers import Server
from support.tls import Certificates, tls_server

Run = Callable[..., dict[str, Any]]


def statuses(app: Flask, path: str, times: int, **options: Any) -> list[int]:
    client = app.test_client()
    return [client.open(path, **options).status_code for _ in range(times)]


def from_address(address: str) -> dict[str, Any]:
    return {"environ_base": {"REMOTE_ADDR": address}}


def _keys(client: redis.Redis) -> list[str]:
    found: Any = client.keys()
    return sorted(key.decode() for key in found)


def _members(client: redis.Redis) -> dict[str, Any]:
    return {key: client.zrange(key, 0, -1, withscores=True) for key in _keys(client)}


class TestCheck:
    def test_stored_keys_are_those_of_the_page(self, run: Run, redis_client: redis.Redis) -> None:
        page = (ROOT / "docs/explanation/check.md").read_text()
        shown = re.search(r"% keys: update\n```text\n(.*?)```", page, re.DOTALL)
        app = run("docs/explanation/check.md", "update")["app"]

        statuses(app, "/update", 1, **from_address("203.0.113.7"))

        assert shown is not None
        assert _keys(redis_client) == sorted(shown[1].split())

    def test_refusal_writes_nothing(self, run: Run, redis_client: redis.Redis) -> None:
        app = run("docs/explanation/check.md", "update")["app"]
        statuses(app, "/update", 5, **from_address("203.0.113.7"))
        before = _members(redis_client)

        assert statuses(app, "/update", 1, **from_address("203.0.113.7")) == [429]

        assert _members(redis_client) == before
        assert [len(members) for members in before.values()] == [5, 5, 5]

    def test_warning_reads_as_shown(self) -> None:
        page = (ROOT / "docs/explanation/check.md").read_text()
        shown = re.search(r"% warning: idle\n```text\nConfigurationWarning: (.*?)```", page, re.DOTALL)

        def update() -> None: ...

        update.__module__, update.__qualname__ = "app", "update"
        with pytest.warns(ConfigurationWarning) as warned:
            rate_limiter(type=IP, rules=[Rule(50, 100), Rule(20, 10)])(update)

        assert shown is not None
        assert str(warned[0].message).split() == shown[1].split()

    def test_rules_that_the_page_recommends_do_not_warn(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rate_limiter(type=IP, rules="10 per 20 seconds; 100/hour")(lambda: None)


class TestReadme:
    def test_stacked_limits_refuse_with_their_message(self, run: Run) -> None:
        app = run("README.md", "stacking")["app"]
        assert statuses(app, "/messages", 6, method="POST") == [201] * 5 + [429]
        assert app.test_client().post("/messages").get_json()["detail"] == "Slow down, please."


class TestTutorial:
    def test_error_handler_answers_as_shown(self, run: Run) -> None:
        client = run("docs/tutorial.md", "handler")["app"].test_client()
        *_, answer = [client.get("/quote") for _ in range(4)]
        assert answer.get_json()["error"] == "You are fast. Please slow down."
        assert 9 < answer.get_json()["wait"] <= 10

    def test_stored_keys_are_those_of_the_page(self, run: Run, redis_client: redis.Redis) -> None:
        statuses(run("docs/tutorial.md", "server")["app"], "/quote", 1)
        page = (ROOT / "docs/tutorial.md").read_text()
        assert all(key in page for key in _keys(redis_client))
        assert redis_client.dbsize() == 2

    def test_use_of_a_server_adds_one_line(self) -> None:
        blocks = {block.example: block.text for block in blocks_of(ROOT / "docs/tutorial.md") if block.caption}
        lines = ndiff(blocks["handler"].splitlines(), blocks["server"].splitlines())
        changed = [line for line in lines if not line.startswith("  ")]
        assert changed == ['+ app.config["MULTILIMIT_STORAGE_URI"] = "redis://localhost:6379/0"']


class TestRedis:
    def test_server_accepts_the_certificate_of_the_page(
        self, server: Server, run: Run, certificates: Certificates
    ) -> None:
        uri = run("docs/how-to/redis-access.md", "tls")["app"].config["MULTILIMIT_STORAGE_URI"]
        with tls_server(server.binary, certificates) as (_, port):
            storage = flask_multilimit.engine.storage_from_uri(uri.replace(":6380", f":{port}"), timeout=10)
            with contextlib.closing(flask_multilimit.engine.Limiter(storage)) as limiter:
                assert limiter.check(flask_multilimit.engine.hits_for("2/minute", scope="tls")).allowed

    def test_request_gets_503_when_server_fails(self, run: Run, caplog: pytest.LogCaptureFixture) -> None:
        app = run("docs/how-to/redis.md", "failing")["app"]
        answer = app.test_client().get("/")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert "index" in caplog.text


class TestProxies:
    def test_last_forwarded_address_is_the_client(self, run: Run) -> None:
        app = run("docs/how-to/proxies.md", "proxy")["app"]
        forwarded = [{"X-Forwarded-For": f"198.51.100.{n}, 203.0.113.7"} for n in range(3)]
        assert [statuses(app, "/", 1, headers=headers)[0] for headers in forwarded] == [200, 200, 429]
        assert statuses(app, "/", 1, headers={"X-Forwarded-For": "203.0.113.8"}) == [200]

    def test_ipv6_addresses_of_one_network_share_a_quota(self, run: Run) -> None:
        app = run("docs/how-to/proxies.md", "proxy")["app"]
        same = ["2001:db8:1:2::1", "2001:db8:1:2:ffff::7", "2001:db8:1:2::3"]
        assert [statuses(app, "/", 1, **from_address(address))[0] for address in same] == [200, 200, 429]
        assert statuses(app, "/", 1, **from_address("::ffff:203.0.113.7")) == [200]

    def test_requests_without_the_cdn_field_share_one_quota(self, run: Run) -> None:
        app = run("docs/how-to/proxies.md", "cdn")["app"]
        assert statuses(app, "/", 101)[-1] == 429
        assert statuses(app, "/", 1, headers={"Cf-Connecting-Ip": "203.0.113.7"}) == [200]

    def test_ipv6_network_is_one_client_behind_a_cdn(self, run: Run) -> None:
        app = run("docs/how-to/proxies.md", "cdn")["app"]
        for number in range(100):
            statuses(app, "/", 1, headers={"Cf-Connecting-Ip": f"2001:db8:1:2::{number:x}"})
        assert statuses(app, "/", 1, headers={"Cf-Connecting-Ip": "2001:db8:1:2:ffff::7"}) == [429]


class TestUsers:
    def test_user_of_a_session_has_own_quota(self, run: Run) -> None:
        client = run("docs/how-to/users.md", "loader")["app"].test_client()
        anonymous = [client.get("/inbox").status_code for _ in range(4)]
        with client.session_transaction() as session:
            session["user_id"] = 7
        assert anonymous == [200, 200, 200, 429]
        assert client.get("/inbox").status_code == 200

    def test_user_of_flask_login_has_own_quota(self, run: Run) -> None:
        app = run("docs/how-to/users.md", "flask-login")["app"]
        ann, bob = app.test_client(), app.test_client()
        ann.post("/login/ann")
        bob.post("/login/bob")
        assert [ann.get("/inbox").status_code for _ in range(4)] == [200, 200, 200, 429]
        assert bob.get("/inbox").status_code == 200

    def test_user_of_a_token_has_own_quota(self, run: Run) -> None:
        app = run("docs/how-to/users.md", "token")["app"]
        ann, bob = ({"Authorization": f"Bearer token-of-{name}"} for name in ("ann", "bob"))
        assert statuses(app, "/inbox", 4, headers=ann) == [200, 200, 200, 429]
        assert statuses(app, "/inbox", 1, headers=bob) == [200]
        assert statuses(app, "/inbox", 1, headers={"Authorization": "Bearer forged"}) == [401]

    def test_known_user_is_exempt(self, run: Run) -> None:
        app = run("docs/how-to/users.md", "exempt")["app"]
        assert statuses(app, "/search", 3) == [200, 200, 429]
        assert statuses(app, "/search", 5, headers={"X-User": "ann"}) == [200] * 5


class TestManyEndpoints:
    PAGE = "docs/how-to/many-endpoints.md"

    def test_limits_of_a_blueprint_apply_to_its_views(self, run: Run) -> None:
        app = run(self.PAGE, "blueprint")["app"]
        assert statuses(app, "/api/users", 4) == [200, 200, 200, 429]
        assert statuses(app, "/api/export", 2) == [200, 429]

    def test_application_default_and_unmatched_limits_apply(self, run: Run) -> None:
        app = run(self.PAGE, "app")["app"]
        assert statuses(app, "/", 3) == [200, 200, 429]
        assert statuses(app, "/news", 4) == [200, 200, 200, 429]  # with the 2 above, 5 requests of the app
        assert statuses(app, "/nowhere", 4, **from_address("203.0.113.7")) == [404, 404, 404, 429]

    def test_limits_of_the_configuration_apply(self, run: Run) -> None:
        app = run(self.PAGE, "configuration")["app"]
        assert statuses(app, "/search", 3) == [200, 200, 429]
        assert statuses(app, "/admin/users", 21)[-1] == 429
        assert "RateLimit" not in app.test_client().get("/health").headers

    def test_exempt_view_is_not_limited(self, run: Run) -> None:
        assert statuses(run(self.PAGE, "exempt")["app"], "/health", 3) == [200] * 3


class TestWhatCounts:
    PAGE = "docs/how-to/what-counts.md"

    def test_each_method_has_its_own_limit(self, run: Run) -> None:
        app = run(self.PAGE, "methods")["app"]
        assert statuses(app, "/notes", 2, method="POST") == [200, 429]
        assert statuses(app, "/notes", 5) == [200] * 4 + [429]

    def test_request_is_charged_its_cost(self, run: Run) -> None:
        client = run(self.PAGE, "cost")["app"].test_client()
        pages = [4, 7, 6, 1]
        assert [client.get(f"/render?pages={n}").status_code for n in pages] == [200, 429, 200, 429]

    def test_cost_above_the_count_has_no_retry_after(self, run: Run) -> None:
        answer = run(self.PAGE, "cost")["app"].test_client().get("/render?pages=11")
        assert answer.status_code == 429
        assert "Retry-After" not in answer.headers

    def test_exempt_network_is_not_limited(self, run: Run) -> None:
        app = run(self.PAGE, "exempt")["app"]
        assert statuses(app, "/", 3, **from_address("10.0.0.7")) == [200] * 3
        assert statuses(app, "/", 2) == [200, 429]

    def test_each_address_has_a_quota_for_each_document(self, run: Run) -> None:
        app = run(self.PAGE, "together")["app"]
        assert statuses(app, "/documents/a", 2) == [200, 429]
        assert statuses(app, "/documents/b", 1) == [200]
        assert statuses(app, "/documents/a", 1, **from_address("203.0.113.7")) == [200]

    def test_hidden_limiter_does_not_replace_default_limits(self, run: Run) -> None:
        app = run(self.PAGE, "decorators")["app"]
        fields = {path: app.test_client().get(path).headers["RateLimit-Policy"] for path in ("/wrapped", "/hidden")}
        assert fields == {
            "/wrapped": '"application-60s";q=1000;w=60, "ip-60s";q=5;w=60',
            "/hidden": '"application-60s";q=1000;w=60, "default-60s";q=20;w=60, "ip-60s";q=5;w=60',
        }
        assert [statuses(app, "/wrapped", 5)[-1], statuses(app, "/hidden", 5)[-1]] == [429, 429]


class TestLoginProtection:
    PAGE = "docs/how-to/login-protection.md"

    def test_only_failures_count(self, run: Run) -> None:
        client = run(self.PAGE, "login")["app"].test_client()
        right, wrong = ({"account": "ann", "password": password} for password in ("correct-horse", "guess"))
        assert [client.post("/login", data=right).status_code for _ in range(8)] == [200] * 8
        assert [client.post("/login", data=wrong).status_code for _ in range(6)] == [401] * 5 + [429]

    def test_many_machines_cannot_guess_one_account(self, run: Run) -> None:
        app = run(self.PAGE, "login")["app"]
        machines = [from_address(f"203.0.113.{n}") for n in range(6)]
        tried = [app.test_client().post("/login", data={"account": "Ann"}, **machine) for machine in machines]
        assert [answer.status_code for answer in tried] == [401] * 5 + [429]

    def test_only_failures_of_a_form_count_even_of_a_client_that_is_logged_in(self, run: Run) -> None:
        client = run(self.PAGE, "form")["app"].test_client()
        right, wrong = ({"account": "ann", "password": password} for password in ("correct-horse", "guess"))
        assert [client.post("/login", data=right).status_code for _ in range(21)] == [302] * 21
        assert [client.post("/login", data=wrong).status_code for _ in range(21)] == [200] * 20 + [429]
        assert client.get("/login").status_code == 200

    def test_right_guess_that_is_refused_before_the_view_begins_no_session(self, run: Run) -> None:
        app = run(self.PAGE, "basic")["app"]

        def get(password: str) -> tuple[int, bool]:
            response = app.test_client().get("/", auth=("ann", password))
            return response.status_code, "Set-Cookie" in response.headers

        assert [get("correct-horse") for _ in range(21)] == [(200, True)] * 21
        assert [get("guess") for _ in range(20)] == [(401, False)] * 20
        assert get("correct-horse") == (429, False)


class TestDynamicRules:
    def test_customers_have_the_rules_of_their_plans(self, run: Run) -> None:
        namespace = run("docs/how-to/dynamic-rules.md", "plans")
        app, ann, bob = namespace["app"], {"X-Api-Key": "key-of-ann"}, {"X-Api-Key": "key-of-bob"}
        assert statuses(app, "/items", 4, headers=ann) == [200, 200, 200, 429]
        assert statuses(app, "/items", 31, headers=bob) == [200] * 30 + [429]
        assert statuses(app, "/items", 1, headers={"X-Api-Key": "new-key-of-ann"}) == [429]
        assert statuses(app, "/items", 1, headers={"X-Api-Key": "invented"}) == [401]
        namespace["CUSTOMERS"]["ann"] = "gold"
        assert statuses(app, "/items", 28, headers=ann) == [200] * 27 + [429]
        with app.app_context():
            decision = app.extensions["multilimit"].peek("items", "customer:bob")
        assert [hit.rule.count for hit in decision.hits] == [30, 5000]


class TestShadow:
    def test_limit_in_shadow_refuses_nothing(self, run: Run, caplog: pytest.LogCaptureFixture) -> None:
        app = run("docs/how-to/shadow.md", "shadow")["app"]
        assert statuses(app, "/search", 3) == [200] * 3
        assert caplog.messages == ["trial-10s would have refused at search"] * 2
        assert "trial" not in app.test_client().get("/search").headers["RateLimit"]


class TestResponses:
    PAGE = "docs/how-to/responses.md"

    @pytest.mark.parametrize(
        ("accept", "kind"),
        [
            ("*/*", "application/problem+json"),
            ("application/json", "application/problem+json"),
            ("text/html,application/xhtml+xml,*/*;q=0.8", "text/html"),
            ("text/plain", "text/plain"),
        ],
    )
    def test_body_follows_the_accept_field(self, run: Run, accept: str, kind: str) -> None:
        app = run(self.PAGE, "body")["app"]
        statuses(app, "/", 2)
        assert app.test_client().get("/", headers={"Accept": accept}).mimetype == kind

    def test_body_shows_the_message(self, run: Run) -> None:
        client = run(self.PAGE, "message")["app"].test_client()
        client.get("/")
        assert client.get("/").get_json(force=True)["detail"] == "Come back in 10 s."

    def test_error_handler_names_the_refusing_rule(self, run: Run) -> None:
        client = run(self.PAGE, "handler")["app"].test_client()
        client.get("/")
        answer = client.get("/")
        assert "Refused by ip-60s." in answer.text
        assert answer.headers["Retry-After"] == "60"

    @pytest.mark.parametrize(
        ("settings", "status"),
        [
            ({}, 429),
            ({"MULTILIMIT_DENY": ["127.0.0.1"]}, 403),
            ({"MULTILIMIT_STORAGE_URI": "redis://127.0.0.1:1", "MULTILIMIT_ON_STORAGE_ERROR": "deny"}, 503),
        ],
    )
    def test_handler_of_all_exceptions_gets_no_refusal_if_those_of_the_page_are_registered(
        self, settings: dict[str, Any], status: int
    ) -> None:
        sentences = next(part for part in (ROOT / self.PAGE).read_text().split("\n\n") if "`Exception`" in part)
        app = Flask(__name__)
        app.config.from_mapping(settings)
        app.register_error_handler(Exception, lambda _: ("broken", 500))
        refusals: list[type[HTTPException]] = [RateLimitExceeded, AccessDenied, StorageUnavailable]
        for refusal in refusals:
            if refusal.__name__ in sentences:
                app.register_error_handler(refusal, refusal.get_response)
        MultiLimit(app, unmatched_limits="1/minute")

        assert statuses(app, "/", 2)[-1] == status

    def test_problem_of_an_error_handler_has_more_members(self, run: Run) -> None:
        client = run(self.PAGE, "problem")["app"].test_client()
        client.get("/")
        answer = client.get("/")
        assert answer.mimetype == "application/problem+json"
        assert answer.get_json()["instance"] == "/"

    def test_on_rejected_redirects(self, run: Run) -> None:
        client = run(self.PAGE, "on-rejected")["app"].test_client()
        client.get("/download")
        assert client.get("/download").location == "/waiting-room"

    def test_uploads_count_every_byte(self, run: Run) -> None:
        app: Flask = run(self.PAGE, "unit")["app"]
        assert statuses(app, "/upload", 3, method="POST", data=b"x" * 400_000) == [200, 200, 429]

        chunked = {"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"}
        body: Any = {"input_stream": io.BytesIO(b"x" * 400_000), "environ_overrides": chunked}
        assert statuses(app, "/upload", 1, method="POST", **body) == [411]

    def test_cors_exposes_the_header_fields(self, run: Run) -> None:
        client = run(self.PAGE, "cors")["app"].test_client()
        preflight = client.options("/")
        client.get("/")
        refused = client.get("/")
        assert (preflight.status_code, refused.status_code) == (200, 429)
        exposed = refused.headers["Access-Control-Expose-Headers"].split(", ")
        assert all(name in refused.headers for name in exposed)


class TestLogging:
    PAGE = "docs/how-to/logging-rejections.md"

    def test_rejection_is_logged_as_shown(self, run: Run, caplog: pytest.LogCaptureFixture) -> None:
        statuses(run(self.PAGE, "log")["app"], "/quote", 2)
        line = r"rate limit: quote refused by ip-60s, retry in \d\d\.\d s, check [0-9a-f-]{36}"
        assert re.fullmatch(line, caplog.messages[0])
        assert re.search(line, (ROOT / self.PAGE).read_text())

    def test_subjects_are_logged_as_pseudonyms(self, run: Run, caplog: pytest.LogCaptureFixture) -> None:
        statuses(run(self.PAGE, "pseudonyms")["app"], "/quote", 2)
        line = r"rate limit: quote refused for ip=[0-9a-f]{12}"
        assert re.fullmatch(line, caplog.messages[0])
        assert re.search(line, (ROOT / self.PAGE).read_text())


class TestServices:
    PAGE = "docs/how-to/services.md"

    def test_view_answers_202_when_service_is_over_its_limit(self, run: Run) -> None:
        app = run(self.PAGE, "service")["app"]
        assert statuses(app, "/invite/ann", 4, method="POST") == [200, 200, 202, 202]

    def test_functions_of_one_scope_share_a_quota(self, run: Run) -> None:
        namespace = run(self.PAGE, "scope")
        with namespace["app"].app_context():
            namespace["send_mail"]("ann")
            namespace["send_text"]("ann")
            with pytest.raises(flask_multilimit.RateLimitExceeded):
                namespace["send_mail"]("ann")

    def test_limited_method_raises_when_refused(self, run: Run) -> None:
        namespace = run(self.PAGE, "scope")
        with namespace["app"].app_context():
            namespace["Exporter"]().export()
            with pytest.raises(flask_multilimit.RateLimitExceeded):
                namespace["Exporter"]().export()

    def test_error_handler_limits_missing_items_only(self, run: Run) -> None:
        app = run(self.PAGE, "error-handler")["app"]
        assert statuses(app, "/wp-login.php", 9) == [404] * 9
        assert statuses(app, "/items/2", 2) == [404, 429]
        assert statuses(app, "/items/1", 1) == [200]

    def test_command_says_when_it_runs_too_soon(self, run: Run) -> None:
        runner = run(self.PAGE, "command")["app"].test_cli_runner()
        assert runner.invoke(args=["rebuild"]).output == "rebuilt\n"
        assert runner.invoke(args=["rebuild"]).output == "too soon, wait 60 s\n"


class TestLimitsInViews:
    def test_limits_inside_a_view_apply(self, run: Run) -> None:
        client = run("docs/how-to/limits-in-views.md", "inside")["app"].test_client()
        mails = [client.post("/mail", data={"to": "ann"}).status_code for _ in range(3)]
        assert mails == [200, 200, 429]
        assert client.post("/mail", data={"to": "bob"}).status_code == 200
        reports = [client.post("/report").text for _ in range(2)]
        assert reports == ["a new report", "the old report; a new one in 10 s"]


class TestEngine:
    def test_engine_limits_a_function(self, run: Run) -> None:
        send = run("docs/how-to/without-flask.md")["send"]
        assert [send("m", "ann")[:4] for _ in range(3)] == ["sent", "sent", "wait"]

    def test_async_view_is_limited(self, run: Run) -> None:
        assert statuses(run("docs/how-to/async.md", "view")["app"], "/ask", 3) == [200, 200, 429]

    def test_async_function_is_limited_through_a_thread(self, run: Run) -> None:
        allowed = run("docs/how-to/async.md", "thread")["allowed"]

        async def three() -> list[bool]:
            return [await allowed("ann") for _ in range(3)]

        assert asyncio.run(three()) == [True, True, False]


class TestOwnAlgorithm:
    PAGE = "docs/how-to/own-algorithm.md"

    def test_example_test_of_the_page_passes(self, run: Run, redis_client: redis.Redis) -> None:
        run(self.PAGE)["test_the_twins_agree"](redis_client)

    def test_own_algorithm_admits_three_requests(self, run: Run) -> None:
        app = run(self.PAGE)["app"]
        assert statuses(app, "/reset-password", 4, method="POST") == [200, 200, 200, 429]


class TestCustomers:
    PAGE = "docs/how-to/customers.md"

    def test_browser_gets_a_page(self, run: Run) -> None:
        app = run(self.PAGE)["app"]
        assert "<meter" in ask(app, "/rate_limit", headers={"Accept": "text/html", "X-User": "ada"}).text

    def test_client_sees_the_chosen_limits_with_labels(self, run: Run) -> None:
        app = run(self.PAGE, "labels")["app"]
        found = json.loads(ask(app, "/account/limits").text)["resources"]
        assert {name: each["label"] for name, each in found.items()} == {"api.search:ip-86400s": "Searches per day"}

    def test_page_of_the_app_shows_remaining_units(self, run: Run) -> None:
        app = run(self.PAGE, "own-page")["app"]
        statuses(app, "/search", 1)
        assert ask(app, "/account").text == "<p>ip-86400s: 999 left</p>"

    def test_blueprint_can_be_limited(self, run: Run) -> None:
        app = run(self.PAGE, "limited")["app"]
        assert ask(app, "/rate_limit").headers["RateLimit-Policy"] == '"ip-60s";q=60;w=60'

    def test_customers_are_warned_when_four_fifths_are_used(self, run: Run) -> None:
        found = run(self.PAGE, "warn")
        statuses(found["app"], "/search", 7, headers={"X-User": "bob"})
        statuses(found["app"], "/search", 8, headers={"X-User": "ada"})
        assert found["warned"] == {"ada"}

    def test_support_page_uses_the_plan_of_the_customer(self, run: Run) -> None:
        app = run(self.PAGE, "support")["app"]
        statuses(app, "/search", 1, headers={"X-User": "bob"})
        assert json.loads(ask(app, "/support/bob").text)["left"] == {"50 per day": 49}
        assert json.loads(ask(app, "/support/ada").text)["left"] == {"1000 per day": 1000}


class TestDashboard:
    PAGE = "docs/how-to/dashboard.md"

    def test_flask_login_lets_operators_in(self, run: Run) -> None:
        app = run(self.PAGE, "flask-login")["app"]

        for user, status in ((None, 403), ("bob", 403), ("ann", 200)):
            client = app.test_client()
            with client.session_transaction() as session:
                session["_user_id"] = user
            assert client.get("/multilimit/").status_code == status, user

    @pytest.mark.parametrize(
        ("credentials", "status"),
        [
            (None, 401),
            (("ann", "wrong"), 401),
            (("bob", "for this example only"), 401),
            (("ann", "for this example only"), 200),
        ],
        ids=["no credentials", "wrong password", "no operator", "right password"],
    )
    def test_http_basic_admits_only_the_operators_password(
        self, run: Run, credentials: tuple[str, str] | None, status: int
    ) -> None:
        app = run(self.PAGE, "basic")["app"]
        answer = app.test_client().get("/limits/", auth=credentials)
        assert answer.status_code == status
        assert ("WWW-Authenticate" in answer.headers) == (status == 401)

    def test_visitor_without_the_right_to_change_sees_no_forms(self, run: Run) -> None:
        app = run(self.PAGE, "may-change")["app"]
        page = app.test_client().get("/limits/lists").text
        assert "on call" in page
        assert 'method="post"' not in page


class TestRealCost:
    PAGE = "docs/how-to/real-cost.md"

    def left(self, client: FlaskClient, endpoint: str, **headers: str) -> tuple[int, int]:
        """The remaining units and the debt."""
        app = client.application
        with app.test_request_context(headers=headers, environ_base={"REMOTE_ADDR": "127.0.0.1"}):
            *_, last = app.extensions["multilimit"].peek(endpoint).statuses
        return last.remaining, last.debt

    def test_chat_is_charged_the_tokens_of_its_response(self, run: Run) -> None:
        client = run(self.PAGE, "chat")["app"].test_client()
        client.post("/chat", json={"prompt": "x" * 400}, headers={"X-Api-Key": "k-ada"})
        assert self.left(client, "chat", **{"X-Api-Key": "k-ada"}) == (100_000 - 1200, 0)

    def test_header_field_with_the_cost_is_hidden_from_clients(self, run: Run) -> None:
        client = run(self.PAGE, "header")["app"].test_client()
        response = client.get("/graphql")
        assert "X-Points" not in response.headers
        assert self.left(client, "graphql") == (1000 - 34, 0)

    def test_stream_is_charged_when_it_is_closed(self, run: Run) -> None:
        app = run(self.PAGE, "stream")["app"]
        app.testing = True  # settles a stream before it is closed, not in the background
        client = app.test_client()

        response = client.post("/stream")
        before = self.left(client, "stream")
        response.get_data()
        response.close()

        assert (before, self.left(client, "stream")) == ((5000 - 200, 0), (5000 - 9, 0))

    @pytest.mark.parametrize(
        ("query", "points"),
        [
            ("{ books(first: 3) { title } }", 1 + 3),
            ("{ books(first: 10) { title likeIt { title } } }", 1 + 10 * 2 + 20),
            ("{ nothing }", 1),
            ("{ books(first: 500) { title likeIt { likeIt { likeIt { title } } } } }", 1 + 100 * (2 + 2 + 4 + 8)),
        ],
    )
    def test_graphql_query_is_charged_a_point_for_each_field(self, run: Run, query: str, points: int) -> None:
        pytest.importorskip("graphql")
        client = run(self.PAGE, "graphql")["app"].test_client()

        statuses = [client.post("/graphql", json={"query": query}).status_code]

        assert self.left(client, "query") == (max(1000 - points, 0), max(points - 1000, 0))
        statuses.append(client.post("/graphql", json={"query": query}).status_code)
        assert statuses == [200, 429 if points > 980 else 200]
