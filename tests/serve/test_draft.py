"""The header fields of draft-ietf-httpapi-ratelimit-headers-11: their grammar, and that ``r`` and ``t`` are true."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis
from flask import Flask, Response, request
from hypothesis import given, settings
from hypothesis import strategies as st

from flask_multilimit import Concurrent, ConfigurationError, MultiLimit, Rule, rate_limiter
from flask_multilimit.engine import MemoryStorage, RedisStorage
from support.asking import read_list
from support.clock import Clock
from support.compiled import CompiledStorage

if TYPE_CHECKING:
    from flask.testing import FlaskClient
    from werkzeug.test import TestResponse

ALGORITHMS: list[dict[str, Any]] = [
    {"algorithm": "sliding_window"},
    {"algorithm": "fixed_window"},
    {"algorithm": "sliding_window_counter"},
    {"algorithm": "token_bucket"},
    {"algorithm": "leaky_bucket"},
    {"algorithm": "leaky_bucket", "max_delay": 5},
    {"algorithm": "gcra", "burst": 4},
]
RULES = st.builds(
    lambda time, count, how: Rule(time, count, **how),
    st.integers(1, 60),
    st.integers(1, 12),
    st.sampled_from(ALGORITHMS),
)


def items(response: TestResponse | Response, field: str) -> dict[str, dict[str, Any]]:
    """The members of a list of strings with parameters, as RFC 9651 reads it."""
    return dict(read_list(response.headers[field]))


def check_grammar(response: TestResponse | Response) -> None:
    """What the draft demands of the two fields."""
    policies, limits = items(response, "RateLimit-Policy"), items(response, "RateLimit")
    assert policies.keys() == limits.keys()
    for parameters in policies.values():
        assert parameters.keys() <= {"q", "qu", "w", "pk"}
        assert type(parameters["q"]) is int
        assert parameters["q"] >= 0
        assert parameters.get("w", 1) > 0
        assert type(parameters.get("qu", "requests")) is str
        assert type(parameters.get("pk", b"")) is bytes
    for name, parameters in limits.items():
        assert parameters.keys() <= {"r", "t", "pk"}
        assert type(parameters["r"]) is int
        assert parameters["r"] >= 0
        assert parameters.get("t", 1) >= 0
        assert parameters.get("pk") == policies[name].get("pk")
    if "Retry-After" in response.headers:
        assert all(limit.get("t", 0) <= int(response.headers["Retry-After"]) for limit in limits.values())


def serve(clock: Clock, *rules: Rule, config: dict[str, Any] | None = None, **options: Any) -> FlaskClient:
    app = Flask("shop")
    app.config.update(config or {})
    MultiLimit(app, storage=MemoryStorage(clock=clock))
    app.add_url_rule("/", "view", rate_limiter(rules=list(rules), **options)(lambda: "ok"))
    return app.test_client()


@settings(max_examples=150, deadline=None)
@given(
    rules=st.lists(RULES, min_size=1, max_size=3, unique_by=lambda rule: (rule.algorithm, rule.window_ms)),
    steps=st.lists(st.floats(0, 30), max_size=15),
    partition_keys=st.booleans(),
)
@pytest.mark.filterwarnings("ignore::flask_multilimit.ConfigurationWarning")
def test_every_response_follows_the_grammar_and_retry_after_is_never_earlier_than_an_effective_window(
    rules: list[Rule], steps: list[float], partition_keys: bool
) -> None:
    clock = Clock()
    config = {"SECRET_KEY": "a secret", "MULTILIMIT_PARTITION_KEYS": partition_keys}
    client = serve(clock, *rules, config=config, unit="tokens")

    for step in steps:
        check_grammar(client.get("/"))
        clock.advance(step)


@settings(max_examples=150, deadline=None)
@given(rule=RULES, steps=st.lists(st.floats(0, 20), max_size=12))
def test_a_client_that_uses_no_more_than_r_within_t_is_never_refused(rule: Rule, steps: list[float]) -> None:
    clock = Clock()
    client = serve(clock, rule)
    response = client.get("/")
    for step in steps:
        clock.advance(step)
        response = client.get("/")

    for _ in range(20):
        (limit,) = items(response, "RateLimit").values()
        if not limit["r"]:
            clock.advance(limit["t"])
        response = client.get("/")
        assert response.status_code == 200


@settings(max_examples=150, deadline=None)
@given(rule=RULES, steps=st.lists(st.floats(0, 20), max_size=12))
def test_when_nothing_is_left_t_is_the_first_second_at_which_a_request_passes(rule: Rule, steps: list[float]) -> None:
    clock = Clock()
    client = serve(clock, rule)
    response = client.get("/")
    for step in steps:
        clock.advance(step)
        response = client.get("/")
    while response.status_code == 200 and items(response, "RateLimit").popitem()[1]["r"]:
        response = client.get("/")

    (limit,) = items(response, "RateLimit").values()
    clock.advance(limit["t"] - 1)
    too_early = client.get("/").status_code
    clock.advance(1)

    assert (too_early, client.get("/").status_code) == (429, 200)


def test_a_client_that_obeys_gets_the_units_that_come_back_as_soon_as_they_do(clock: Clock) -> None:
    client = serve(clock, Rule(20, 10))
    for _ in range(5):
        client.get("/")
    clock.advance(10)
    for _ in range(4):
        response = client.get("/")

    assert items(response, "RateLimit") == {"default-20s": {"r": 1, "t": 2}}  # ten in 20 s are one in 2 s
    assert items(client.get("/"), "RateLimit") == {"default-20s": {"r": 0, "t": 10}}
    clock.advance(10)
    assert [client.get("/").status_code for _ in range(6)] == [200] * 5 + [429]


@pytest.mark.parametrize("how", ALGORITHMS, ids=lambda how: "-".join(map(str, how.values())))
@pytest.mark.parametrize("kind", [RedisStorage, CompiledStorage])
def test_a_server_tells_when_the_next_unit_comes_back_as_memory_does(
    redis_client: redis.Redis, kind: type[RedisStorage], how: dict[str, Any]
) -> None:
    answers = []
    for storage in (MemoryStorage(clock=Clock()), kind(redis_client, clock=Clock())):
        app = Flask("shop")
        MultiLimit(app, storage=storage)
        app.add_url_rule("/", "view", rate_limiter(rules=[Rule(10, 3, **how), Rule(7, 2)])(lambda: "ok"))
        client = app.test_client()
        told = []
        for step in (0, 1.5, 3, 2.5, 4):
            told.append(client.get("/").headers["RateLimit"])
            storage.clock.advance(step)  # type: ignore[union-attr]
        answers.append(told)
        storage.close()

    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("draft-11", {"r": 9, "t": 54}), ("draft-10", {"r": 9, "t": 60}), ("both", {"r": 9, "t": 54})],
)
def test_t_means_what_the_chosen_draft_says(clock: Clock, setting: str, expected: dict[str, int]) -> None:
    client = serve(clock, Rule(60, 10), config={"MULTILIMIT_HEADERS": setting})

    assert items(client.get("/"), "RateLimit")["default-60s"] == expected


def test_a_unit_that_is_not_requests_stands_in_the_policy(clock: Clock) -> None:
    client = serve(clock, Rule(60, 5000), unit="content-bytes", cost=1200)

    response = client.get("/")

    assert items(response, "RateLimit-Policy")["default-60s"] == {"q": 5000, "qu": "content-bytes", "w": 60}
    assert items(response, "RateLimit")["default-60s"]["r"] == 3800


def test_requests_in_progress_have_their_own_unit_and_no_window(clock: Clock) -> None:
    response = serve(clock, Concurrent(5)).get("/")

    assert items(response, "RateLimit-Policy") == {"default-at-once": {"q": 5, "qu": "concurrent-requests"}}
    check_grammar(response)


@pytest.mark.parametrize("unit", ["", "content bytes", 'a"b', "ü", 7, "x" * 21])
def test_a_unit_that_cannot_stand_in_a_field_is_an_error(unit: object) -> None:
    with pytest.raises(ConfigurationError, match="unit="):
        rate_limiter(unit=unit)(lambda: "ok")  # type: ignore[arg-type]


class TestPartitionKeys:
    @staticmethod
    def serve(secret: str = "a secret") -> FlaskClient:
        app = Flask("shop")
        app.config.update(SECRET_KEY=secret, MULTILIMIT_PARTITION_KEYS=True)
        MultiLimit(app)
        user = rate_limiter(type=lambda: request.headers["X-User"], name="person", rules="9/minute")
        app.add_url_rule("/", "view", user(rate_limiter(rules="99/hour")(lambda: "ok")))
        return app.test_client()

    @staticmethod
    def told(client: FlaskClient, user: str) -> dict[str, bytes]:
        response = client.get("/", headers={"X-User": user})
        check_grammar(response)
        return {name: parameters["pk"] for name, parameters in items(response, "RateLimit").items()}

    def test_are_equal_where_a_quota_is_shared_and_only_there(self) -> None:
        client = self.serve()

        ann, again, bob = self.told(client, "ann"), self.told(client, "ann"), self.told(client, "bob")

        assert ann == again
        assert ann["person-60s"] != bob["person-60s"]
        assert ann["default-3600s"] == bob["default-3600s"]

    def test_say_nothing_to_whoever_does_not_know_the_secret(self) -> None:
        keys = [self.told(self.serve(secret), "ann@shop.example") for secret in ("one", "two")]

        assert keys[0]["person-60s"] != keys[1]["person-60s"]
        assert all(len(key) == 9 for told in keys for key in told.values())
        assert not any(b"ann" in key for told in keys for key in told.values())

    def test_need_a_secret(self) -> None:
        app = Flask("shop")
        app.config["MULTILIMIT_PARTITION_KEYS"] = True

        with pytest.raises(ConfigurationError, match="MULTILIMIT_PARTITION_KEYS needs a key: set SECRET_KEY"):
            MultiLimit(app)

    def test_are_not_sent_unless_asked_for(self, clock: Clock) -> None:
        assert "pk" not in serve(clock, Rule(60, 5)).get("/").headers["RateLimit"]
