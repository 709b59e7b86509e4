"""Options of a limiter: cost, exemption, scope, key prefix, name."""

from enum import Enum
from itertools import chain, repeat
from typing import Any

import pytest
from flask import Flask, request
from flask.testing import FlaskClient

from flask_multilimit import ConfigurationError, LimitType, MultiLimit, Rule, rate_limiter
from support.asking import limit
from support.doubles import RecordingStorage, raising


@pytest.mark.parametrize(
    "options",
    [
        {"wait": 3600, "rules": Rule(60, 5, algorithm="leaky_bucket", max_delay=3600)},
        {"cost": 20, "rules": Rule(1, 5, algorithm="token_bucket", burst=20)},
        {"cost": 5, "rules": "5/minute"},
    ],
    ids=["longest wait", "cost of a whole burst", "cost of a whole count"],
)
def test_largest_value_of_an_option_is_accepted(options: dict[str, Any]) -> None:
    assert callable(rate_limiter(**options)(lambda: "ok"))


def test_default_rules_are_100_in_60_seconds(limited_app: Flask, client: FlaskClient) -> None:
    limited_app.add_url_rule("/", "view", rate_limiter()(lambda: "ok"))
    assert client.get("/").headers["RateLimit-Policy"] == '"default-60s";q=100;w=60'


class TestCost:
    def test_cost_is_charged_at_each_request(self, limited_app: Flask, client: FlaskClient) -> None:
        limit(limited_app, rules="10/minute", cost=4)

        assert [client.get("/").headers["RateLimit"] for _ in range(3)] == [
            '"default-60s";r=6;t=36',
            '"default-60s";r=2;t=12',
            '"default-60s";r=2;t=60',
        ]

    def test_cost_of_a_callable_is_charged_and_0_is_never_refused(
        self, limited_app: Flask, client: FlaskClient
    ) -> None:
        limit(limited_app, rules="10/minute", cost=lambda: int(request.args["n"]))
        assert [client.get(f"/?n={cost}").status_code for cost in (0, 7, 4, 3, 1, 0)] == [200, 200, 429, 200, 429, 200]

    def test_refusal_of_a_cost_above_the_count_says_that_waiting_does_not_help(
        self, limited_app: Flask, client: FlaskClient
    ) -> None:
        limit(limited_app, rules="10/minute", cost=lambda: 11)

        response = client.get("/", headers={"Accept": "text/plain"})

        assert response.status_code == 429
        assert "Retry-After" not in response.headers
        assert response.headers["RateLimit"] == '"default-60s";r=10'
        never = "Waiting does not help: the request asks for more than the limit allows."
        assert (response.text, client.get("/").get_json()["detail"]) == (f"{never}\n", never)

    def test_refusal_beside_a_shadow_that_would_never_pass_says_when_to_try_again(
        self, limited_app: Flask, client: FlaskClient
    ) -> None:
        shadow = rate_limiter(type="ip", rules="10/minute", cost=lambda: 11, shadow=True)
        limited_app.get("/both", endpoint="both")(shadow(rate_limiter(rules="1/minute")(lambda: "ok")))
        client.get("/both")

        assert client.get("/both").get_json()["detail"] == "Too many requests. Please try again later."

    @pytest.mark.parametrize("returned", [-1, 1.0, 2.5, "1", None, True, False])
    def test_invalid_cost_of_a_callable_is_an_error_at_each_request(
        self, limited_app: Flask, client: FlaskClient, returned: Any
    ) -> None:
        costs = chain([1, 0], repeat(returned))
        limit(limited_app, rules="100/minute", cost=lambda: next(costs))
        client.get("/")
        client.get("/")

        for _ in range(2):
            with pytest.raises(ConfigurationError, match=r'"view".*cost='):
                client.get("/")


class TestExemption:
    def test_exempt_limiter_leaves_the_others_in_force(
        self, limited_app: Flask, client: FlaskClient, storage: RecordingStorage
    ) -> None:
        exempt = rate_limiter(rules="1/minute", exempt_when=lambda: True)
        limited_app.add_url_rule("/", "view", exempt(rate_limiter(rules="2/hour")(lambda: "ok")))

        assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
        assert storage.windows == [[3600]] * 3

    def test_exempt_limiter_does_not_call_its_type(self, limited_app: Flask, client: FlaskClient) -> None:
        limit(limited_app, type=raising(AssertionError), name="mine", exempt_when=lambda: True)
        assert client.get("/").status_code == 200


class Tokens(dict[str, str]):
    """A callable object, which is false while it is empty. Returns what the token of the request stands for."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __call__(self, *_: object) -> str | None:
        return self.get(request.args.get("token", ""))


class Ada(Tokens):
    def __call__(self, *_: object) -> str:
        return "ada"


class TestCallableThatIsFalse:
    def test_exemption_of_one_client_does_not_exempt_another_behind_the_same_address(
        self, limited_app: Flask, client: FlaskClient
    ) -> None:
        staff: Any = Tokens()
        limited_app.get("/", endpoint="view")(
            rate_limiter("1/minute", type="ip", exempt_when=staff)(rate_limiter("100/hour", type="ip")(lambda: "ok"))
        )
        client.get("/", environ_base={"REMOTE_ADDR": "192.0.2.1"})
        staff["t"] = "ada"

        assert [client.get(path).status_code for path in ("/?token=t", "/?token=t", "/", "/")] == [200, 200, 200, 429]

    def test_user_loader_is_asked(self) -> None:
        app, tokens = Flask(__name__), Tokens()
        MultiLimit(app, user_loader=tokens)
        limit(app, type="user")
        client = app.test_client()

        assert [client.get("/").status_code for _ in range(2)] == [200, 429]
        tokens["t"] = "ada"
        assert [client.get("/?token=t").status_code for _ in range(2)] == [200, 429]

    def test_on_rejected_of_a_limiter_comes_before_that_of_the_app(self) -> None:
        app = Flask(__name__)
        MultiLimit(app, on_rejected=lambda _: "of the app")
        limit(app, on_rejected=Ada())
        client = app.test_client()

        assert [client.get("/").text for _ in range(2)] == ["ok", "ada"]

    def test_lists_ask_the_type_that_counts_at_the_endpoint(self) -> None:
        app = Flask(__name__)
        MultiLimit(app, deny=["key:ada"])
        limit(app, "/other", type=lambda: "guest", name="key")
        limit(app, "/denied", type=Ada(), name="key")

        assert app.test_client().get("/denied").status_code == 403


class TestScope:
    def test_endpoints_with_one_scope_share_a_quota(
        self, limited_app: Flask, client: FlaskClient, storage: RecordingStorage
    ) -> None:
        limit(limited_app, "/one", scope="search")
        limit(limited_app, "/two", scope="search")
        limit(limited_app, "/three")

        assert [client.get(path).status_code for path in ("/one", "/two", "/three")] == [200, 429, 200]
        assert storage.keys_asked[0] == ["rate_limit:{search}:default::sliding_window:60000"]

    def test_scope_of_any_content_stays_in_one_cluster_slot(
        self, limited_app: Flask, client: FlaskClient, storage: RecordingStorage
    ) -> None:
        limit(limited_app, "/one", scope="a}{b:c d\n\0é" * 100)
        client.get("/one")
        assert storage.keys_asked[0][0].startswith("rate_limit:{*")
        assert [storage.keys_asked[0][0].count(brace) for brace in "{}"] == [1, 1]


class TestKey:
    def test_members_of_an_enum_count_as_their_text(self, app: Flask, storage: RecordingStorage) -> None:
        class Word(str, Enum):
            KEY = "my:"
            SCOPE = "mail"
            NAME = "account"
            RULE = "few"
            UNIT = "mails"

        MultiLimit(app, storage=storage)
        words = {"key": Word.KEY, "scope": Word.SCOPE, "name": Word.NAME, "unit": Word.UNIT}
        limit(app, type=lambda: "ann", rules=Rule(60, 5, name=Word.RULE), **words)

        response = app.test_client().get("/")

        (hit,) = storage.checks[0]
        assert hit.key == "my:{mail}:account:ann:sliding_window:60000"
        assert response.headers["RateLimit-Policy"] == '"few";q=5;qu="mails";w=60'

    def test_key_of_a_limiter_overrides_the_setting(self, app: Flask, storage: RecordingStorage) -> None:
        app.config["MULTILIMIT_KEY_PREFIX"] = "shop:"
        MultiLimit(app, storage=storage)
        limit(app, "/one")
        limit(app, "/two", key="mine:")

        for path in ("/one", "/two"):
            app.test_client().get(path)

        assert [key for (key,) in storage.keys_asked] == [
            "shop:{one}:default::sliding_window:60000",
            "mine:{two}:default::sliding_window:60000",
        ]


class TestNames:
    def test_name_of_a_limiter_is_part_of_the_names_of_its_rules(self, limited_app: Flask, client: FlaskClient) -> None:
        limit(limited_app, type=LimitType.IP, name="login", rules="5/minute; 20/hour")
        assert client.get("/").headers["RateLimit-Policy"] == '"login-60s";q=5;w=60, "login-3600s";q=20;w=3600'

    def test_name_does_not_change_the_key_of_a_limit_type(
        self, limited_app: Flask, client: FlaskClient, storage: RecordingStorage
    ) -> None:
        limit(limited_app, type=LimitType.IP, name="login")
        client.get("/")
        assert storage.keys_asked == [["rate_limit:{view}:ip:127.0.0.1:sliding_window:60000"]]
