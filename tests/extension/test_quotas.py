"""`peek`, `reset` and `refund` of the extension, and `check_many` of the engine."""

from typing import Any, ClassVar

import pytest
import redis
from flask import Flask, request
from flask.views import MethodView
from redis import ConnectionPool, Redis, UnixDomainSocketConnection

from flask_multilimit import ConfigurationError, LimitType, MultiLimit, current_decision, rate_limiter
from flask_multilimit.engine import Limiter, RedisStorage, hits_for
from flask_multilimit.serve.gate import gate_of
from support.asking import ask, commands, statuses, view
from support.servers import Server


class CountingConnection(UnixDomainSocketConnection):
    """Records each write (`w`) and read (`r`)."""

    turns: ClassVar[list[str]] = []

    def send_packed_command(self, *arguments: Any, **options: Any) -> Any:
        self.turns.append("w")
        return super().send_packed_command(*arguments, **options)  # type: ignore[no-untyped-call]

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        self.turns.append("r")
        return super().read_response(*arguments, **options)


@pytest.fixture
def multilimit(app: Flask, any_storage: Any) -> MultiLimit:
    multilimit = MultiLimit(app, storage=any_storage, user_loader=lambda: request.headers.get("X-User"))
    by_user = rate_limiter(type=LimitType.USER, rules="5/hour")
    by_ip = rate_limiter(type=LimitType.IP, rules="5/minute")
    by_key = rate_limiter(type=lambda: request.headers.get("X-Key"), name="api_key", rules="5 per 2 hours")
    app.add_url_rule("/login", "login", by_user(by_ip(view())), methods=["POST"])
    app.add_url_rule("/key", "key", by_key(rate_limiter(rules="50/hour")(view())))
    return multilimit


def remaining(decision: Any) -> dict[str, int]:
    return {status.name: status.remaining for status in decision.statuses}


class TestPeek:
    def test_peek_shows_what_a_subject_has_left_at_an_endpoint(self, app: Flask, multilimit: MultiLimit) -> None:
        statuses(app, "/login", "/login", method="POST", headers={"X-User": "ann"})

        with app.app_context():
            assert remaining(multilimit.peek("login", "user:ann")) == {"user-3600s": 3}
            assert remaining(multilimit.peek("login", "user:bob")) == {"user-3600s": 5}
            assert remaining(multilimit.peek("login", "ip:127.0.0.1")) == {"ip-60s": 3}
            assert remaining(multilimit.peek("login", ["ip:127.0.0.1", "user:bob"])) == {"user-3600s": 5, "ip-60s": 3}
            assert multilimit.peek("login", "everyone").statuses == ()

    def test_peek_finds_custom_types_by_name(self, app: Flask, multilimit: MultiLimit) -> None:
        statuses(app, "/key", headers={"X-Key": "k1"})
        with app.app_context():
            assert remaining(multilimit.peek("key", "api_key:k1")) == {"api_key-7200s": 4}
            assert remaining(multilimit.peek("key", "everyone")) == {"default-3600s": 49}

    def test_peek_in_a_view_shows_the_quota_of_its_request(self, app: Flask, multilimit: MultiLimit) -> None:
        def look() -> Any:
            return remaining(multilimit.peek())

        app.add_url_rule("/look", "look", rate_limiter(type=LimitType.IP, rules="5/minute")(look))

        assert [ask(app, "/look").json for _ in range(2)] == [{"ip-60s": 4}, {"ip-60s": 3}]

    def test_peek_shows_limits_of_all_methods_or_of_one(self, app: Flask, multilimit: MultiLimit) -> None:
        class Items(MethodView):
            @rate_limiter(type=LimitType.IP, rules="5/minute")
            def post(self) -> str:
                return "made"

            @rate_limiter(type=LimitType.IP, rules="7/hour", methods=["PUT"])
            def put(self) -> str:
                return "put"

        app.add_url_rule("/items", view_func=Items.as_view("items"))

        with app.app_context():
            assert remaining(multilimit.peek("items", "ip:127.0.0.1")) == {"ip-60s": 5, "ip-3600s": 7}
            assert remaining(multilimit.peek("items", "ip:127.0.0.1", method="PUT")) == {"ip-3600s": 7}

    def test_peek_is_one_command(self, app: Flask, multilimit: MultiLimit, redis_client: redis.Redis) -> None:
        statuses(app, "/login", method="POST", headers={"X-User": "ann"})
        on_server = isinstance(gate_of(app).limiter.storage, RedisStorage)
        with commands(redis_client) as seen, app.app_context():
            multilimit.peek("login", ["user:ann", "ip:127.0.0.1"])

        assert seen == (["EVALSHA"] if on_server else [])

    def test_peek_for_a_subject_calls_no_cost_of_a_request(self, app: Flask, multilimit: MultiLimit) -> None:
        limits = rate_limiter(type=LimitType.IP, rules="2/minute", cost=lambda: int(request.args["units"]))
        app.add_url_rule("/priced", "priced", limits(view()))
        with app.app_context():
            assert multilimit.peek("priced", "ip:203.0.113.7").remaining == 2


class TestReset:
    def test_reset_restores_the_quota_of_one_subject_only(self, app: Flask, multilimit: MultiLimit) -> None:
        ann, bob = {"X-User": "ann"}, {"X-User": "bob"}
        for user in (ann, bob):
            statuses(
                app, *["/login"] * 3, method="POST", headers=user, environ_base={"REMOTE_ADDR": f"192.0.2.{len(user)}"}
            )

        with app.app_context():
            multilimit.reset("login", "user:ann")

            assert remaining(multilimit.peek("login", "user:ann")) == {"user-3600s": 5}
            assert remaining(multilimit.peek("login", "user:bob")) == {"user-3600s": 3}
            assert remaining(multilimit.peek("login", "ip:192.0.2.1")) == {"ip-60s": 0}

    def test_reset_in_a_view_leaves_the_quota_shared_by_everyone(self, app: Flask, multilimit: MultiLimit) -> None:
        def forgive() -> Any:
            multilimit.reset()
            return remaining(multilimit.peek())

        limits = rate_limiter(type=LimitType.IP, rules="5/minute")
        app.add_url_rule("/forgive", "forgive", limits(rate_limiter(rules="50/hour")(forgive)))

        assert ask(app, "/forgive").json == {"ip-60s": 5, "default-3600s": 49}

    def test_reset_of_everyone_restores_the_shared_quota(self, app: Flask, multilimit: MultiLimit) -> None:
        statuses(app, "/key")
        with app.app_context():
            multilimit.reset("key", "everyone")
            assert remaining(multilimit.peek("key", "everyone")) == {"default-3600s": 50}


class TestRefund:
    def test_refund_in_a_view_returns_what_the_request_was_charged(self, app: Flask, multilimit: MultiLimit) -> None:
        def free() -> str:
            multilimit.refund(current_decision)
            return "free"

        limits = rate_limiter(type=LimitType.IP, rules="2/minute", cost=2)
        app.add_url_rule("/free", "free", limits(rate_limiter(rules="1/hour")(free)))

        assert statuses(app, *["/free"] * 3) == [200] * 3


class TestCheckMany:
    def test_check_many_decides_each_check_in_order(self, any_storage: Any) -> None:
        limiter = Limiter(any_storage)
        batch = [hits_for("2/minute; 9/hour", scope="mail", subject=f"user:{user}") for user in "aababa"]
        assert [decision.allowed for decision in limiter.check_many(batch)] == [True, True, True, False, True, False]

    def test_check_many_of_no_checks_is_an_empty_list(self, any_storage: Any) -> None:
        assert Limiter(any_storage).check_many([]) == []

    def test_check_many_is_one_round_trip(self, server: Server, redis_client: redis.Redis) -> None:
        """The whole pipeline is written before the first reply is read."""
        pool = ConnectionPool(connection_class=CountingConnection, path=server.url.removeprefix("unix://"))
        limiter = Limiter(RedisStorage(Redis(connection_pool=pool)))
        batch = [hits_for("2/minute", scope="mail", subject=f"user:{n}") for n in range(100)]
        limiter.peek(batch[0])  # connects
        CountingConnection.turns.clear()

        decisions = limiter.check_many(batch)

        assert all(decision.allowed for decision in decisions)
        assert "".join(CountingConnection.turns).lstrip("w").strip("r") == ""
        pool.disconnect()
        assert redis_client.dbsize() == 100

    def test_check_many_with_a_check_without_hits_is_an_error(self, any_storage: Any) -> None:
        with pytest.raises(ConfigurationError, match="no hits"):
            Limiter(any_storage).check_many([hits_for("1/minute", scope="a"), ()])
