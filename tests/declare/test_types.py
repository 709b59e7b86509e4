"""Types decide who shares a quota: everyone, an address, a user, or the value that a callable returns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from flask import Flask, request
from flask.testing import FlaskClient
from werkzeug.exceptions import BadRequest
from werkzeug.local import LocalProxy
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.test import create_environ

import flask_multilimit
from flask_multilimit import ConfigurationError, LimitType, MultiLimit, rate_limiter
from flask_multilimit.declare.addresses import network_of
from flask_multilimit.declare.written import ExemptNetworks
from support.asking import limit
from support.doubles import RecordingStorage, raising


def statuses(client: FlaskClient, addresses: list[str], **options: Any) -> list[int]:
    return [client.get("/", environ_base={"REMOTE_ADDR": each}, **options).status_code for each in addresses]


def types_and_subjects(storage: RecordingStorage) -> list[str]:
    """``type:subject`` in the first key of each check."""
    return [keys[0].split("}:")[1].rsplit(":", 2)[0] for keys in storage.keys_asked]


def test_package_exports_the_members_of_limit_type() -> None:
    given: list[LimitType] = [getattr(flask_multilimit, name) for name in ("DEFAULT", "GLOBAL", "IP", "USER")]
    assert given == [LimitType.DEFAULT, LimitType.DEFAULT, LimitType.IP, LimitType.USER]
    assert LimitType["GLOBAL"] is LimitType["DEFAULT"]


@pytest.mark.parametrize("options", [{}, {"type": LimitType.DEFAULT}, {"type": flask_multilimit.GLOBAL}])
def test_default_is_one_quota_for_everyone(
    limited_app: Flask, storage: RecordingStorage, options: dict[str, Any]
) -> None:
    client = limit(limited_app, **options)
    assert statuses(client, ["203.0.113.7", "2001:db8::1"]) == [200, 429]
    assert types_and_subjects(storage) == ["default:"] * 2


class TestAddresses:
    @pytest.mark.parametrize(
        ("prefix", "expected"), [(128, [200, 200, 200]), (112, [200, 200, 200]), (48, [200, 429, 429])]
    )
    def test_ipv6_prefix_setting_decides_the_network(self, app: Flask, prefix: int, expected: list[int]) -> None:
        app.config["MULTILIMIT_IPV6_PREFIX"] = prefix
        MultiLimit(app)
        client = limit(app, type=LimitType.IP)
        assert statuses(client, ["2001:db8:1:1::1", "2001:db8:1:1:1::1", "2001:db8:1:2::1"]) == expected

    @pytest.mark.parametrize(
        ("client", "spellings"),
        [
            (
                "203.0.113.7",
                "203.0.113.7 ::ffff:203.0.113.7 ::FFFF:203.0.113.7 ::ffff:cb00:7107 0:0:0:0:0:ffff:cb00:7107 "
                "203.0.113.7:50001 203.0.113.7:1 [203.0.113.7] [::ffff:203.0.113.7]:443",
            ),
            ("203.0.113.8", "::ffff:203.0.113.8"),
            (
                "2001:db8::/64",
                "2001:db8::1 2001:DB8::1 2001:db8:0:0:0:0:0:1 2001:0db8:0000:0000:0000:0000:0000:0001 2001:db8::1%eth0 "
                "[2001:db8::1]:443 [2001:db8::2] [2001:db8::3%eth0]:50001 [2001:DB8::4]:1",
            ),
        ],
    )
    def test_address_is_the_same_subject_in_every_spelling(self, client: str, spellings: str) -> None:
        """Azure's gateway and load balancers write a port into X-Forwarded-For."""
        assert {network_of(each, 64) for each in spellings.split()} == {client}

    @pytest.mark.parametrize("odd", ["[203.0.113.7", "2001:db8::1:443x", "[]:1", "", "unix:", "localhost", "x" * 999])
    def test_text_that_is_not_an_address_is_left_as_it_is(self, odd: str) -> None:
        assert network_of(odd, 64) == odd

    @pytest.mark.parametrize("odd", ["203.0.113.7:", "203.0.113.7:123456", "10.0.0.0/8", "10.0.0.300"])
    def test_text_that_only_looks_like_an_address_is_marked_as_invalid(self, odd: str) -> None:
        assert network_of(odd, 64) == f"invalid:{odd}"

    def test_requests_without_an_address_share_a_quota(self, limited_app: Flask) -> None:
        client = limit(limited_app, type=LimitType.IP)
        limited_app.wsgi_app = _without_address(limited_app.wsgi_app)  # type: ignore[method-assign]
        assert [client.get("/").status_code, client.get("/").status_code] == [200, 429]

    @pytest.mark.parametrize("field", ["X-Forwarded-For", "X-Real-IP", "Forwarded", "CF-Connecting-IP", "Client-IP"])
    def test_forwarding_header_fields_are_not_trusted(self, limited_app: Flask, field: str) -> None:
        client = limit(limited_app, type=LimitType.IP)
        responses = [client.get("/", headers={field: f"198.51.100.{number}"}) for number in range(2)]
        assert [response.status_code for response in responses] == [200, 429]

    def test_address_from_proxy_fix_is_used(self, limited_app: Flask) -> None:
        client = limit(limited_app, type=LimitType.IP)
        limited_app.wsgi_app = ProxyFix(limited_app.wsgi_app, x_for=1)  # type: ignore[method-assign]
        forwarded = ["198.51.100.1", "198.51.100.2", "203.0.113.99, 198.51.100.1:50001"]

        responses = [client.get("/", headers={"X-Forwarded-For": each}) for each in forwarded]

        assert [response.status_code for response in responses] == [200, 200, 429]

    @pytest.mark.parametrize("proxies", [1, 2])
    def test_an_open_quotation_mark_does_not_hide_the_addresses_that_proxies_append(
        self, app: Flask, proxies: int
    ) -> None:
        MultiLimit(app, allow=["127.0.0.1"])
        client = limit(app, type=LimitType.IP)
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=proxies)  # type: ignore[method-assign]
        closed, opened = ["", '"1", ', '"",'], ['"', 'x"', '"x\\"', '"1", "', '"1,', '"2,']

        responses = [
            client.get("/", headers={"X-Forwarded-For": f"{each}{', '.join(['198.51.100.1'] * proxies)}"})
            for each in closed + opened
        ]

        assert [response.status_code for response in responses] == [200, 429, 429, *[400] * len(opened)]

    @pytest.mark.parametrize("options", [{}, {"deny": ["198.51.100.1"]}], ids=["limit", "list"])
    def test_an_open_quotation_mark_chooses_no_address_in_an_event_of_flask_socketio(
        self, app: Flask, options: dict[str, Any]
    ) -> None:
        multilimit = MultiLimit(app, **options)

        with pytest.raises(BadRequest):
            _handle_event(app, lambda: multilimit.check("1/minute", scope="events", type=LimitType.IP))

    def test_an_open_quotation_mark_exempts_nobody_in_an_event_of_flask_socketio(self, app: Flask) -> None:
        with pytest.raises(BadRequest):
            _handle_event(app, ExemptNetworks(["198.51.100.1"]))


def _handle_event(app: Flask, act: Callable[[], object]) -> None:
    """Call ``act`` as Flask-SocketIO does for a client behind a proxy: no before_request functions run."""

    def handle(environ: dict[str, Any], _: Any) -> list[bytes]:
        with app.request_context(environ):
            act()
        return []

    served: Any = ProxyFix(handle, x_for=1)
    served(create_environ(headers={"X-Forwarded-For": '"x, 198.51.100.1'}), lambda *_: None)


def _without_address(wsgi_app: Callable[..., Any]) -> Callable[..., Any]:
    def application(environ: dict[str, Any], start_response: Any) -> Any:
        environ.pop("REMOTE_ADDR", None)
        return wsgi_app(environ, start_response)

    return application


def user_of_header() -> str | None:
    return request.headers.get("X-User")


@dataclass
class ObjectId:
    """Like ``bson.ObjectId`` of MongoDB."""

    text: str

    def __str__(self) -> str:
        return self.text


def given(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage, user_loader=user_of_header)


def decorated(app: Flask, storage: RecordingStorage) -> None:
    assert MultiLimit(app, storage=storage).user_loader(user_of_header) is user_of_header


def of_flask_login(app: Flask, storage: RecordingStorage) -> None:
    use_flask_login(app)
    MultiLimit(app, storage=storage)


def of_flask_login_set_up_later(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage)
    use_flask_login(app)


class TestUsers:
    @pytest.mark.parametrize(
        "set_up",
        [given, decorated, of_flask_login, of_flask_login_set_up_later],
        ids=["option", "decorator", "flask-login", "flask-login set up later"],
    )
    def test_user_comes_from_a_user_loader_or_flask_login(
        self, app: Flask, storage: RecordingStorage, set_up: Callable[[Flask, RecordingStorage], None]
    ) -> None:
        set_up(app, storage)
        client = limit(app, type=LimitType.USER)

        responses = [client.get("/", headers={"X-User": name}) for name in ("ann", "bob", "ann", "")]

        assert [response.status_code for response in responses] == [200, 200, 429, 200]
        assert types_and_subjects(storage) == ["user:ann", "user:bob", "user:ann", "anonymous:127.0.0.1"]

    def test_user_loader_overrides_flask_login(self, app: Flask, storage: RecordingStorage) -> None:
        use_flask_login(app)
        MultiLimit(app, storage=storage, user_loader=lambda: "loaded")
        client = limit(app, type=LimitType.USER)

        client.get("/", headers={"X-User": "ann"})

        assert types_and_subjects(storage) == ["user:loaded"]

    @pytest.mark.parametrize(
        ("login", "subject"),
        [
            ({"prefix": "staff-"}, "user:staff-7"),
            ({"id_": lambda _: ""}, "anonymous:127.0.0.1"),
            ({"id_": lambda _: None, "has_uniquifier": True}, "anonymous:127.0.0.1"),
        ],
        ids=["id of its own", "empty id", "no id"],
    )
    def test_user_of_flask_login_is_named_by_get_id_and_without_an_id_limited_by_address(
        self, app: Flask, storage: RecordingStorage, login: dict[str, Any], subject: str
    ) -> None:
        use_flask_login(app, **login)
        MultiLimit(app, storage=storage)
        client = limit(app, type=LimitType.USER)

        assert client.get("/", headers={"X-User": "7", "X-Token": "any"}).status_code == 200
        assert types_and_subjects(storage) == [subject]

    @pytest.mark.parametrize("id_", [str, ObjectId])
    def test_new_flask_security_token_is_still_the_same_user(
        self, app: Flask, storage: RecordingStorage, id_: Callable[[str], object]
    ) -> None:
        use_flask_login(app, has_uniquifier=True, id_=id_)
        MultiLimit(app, storage=storage)
        client = limit(app, type=LimitType.USER)

        responses = [client.get("/", headers={"X-User": "7", "X-Token": token}) for token in ("before", "after")]

        assert [response.status_code for response in responses] == [200, 429]
        assert types_and_subjects(storage) == ["user:7", "user:7"]

    def test_limit_by_user_without_a_user_loader_is_an_error_in_a_function(self, limited_app: Flask) -> None:
        with limited_app.app_context(), pytest.raises(ConfigurationError, match="user_loader"):
            rate_limiter(type=LimitType.USER)(lambda: None)()

    @pytest.mark.parametrize(
        ("returned", "expected"),
        [
            ("ann", "user:ann"),
            (7, "user:7"),
            (0, "user:0"),
            (-1, "user:-1"),
            (UUID(int=1), "user:00000000-0000-0000-0000-000000000001"),
            ("a:b{c}", "user:a%3Ab%7Bc%7D"),
            (None, "anonymous:203.0.113.7"),
            ("", "anonymous:203.0.113.7"),
        ],
    )
    def test_user_ids_can_be_text_integers_and_uuids(
        self, app: Flask, storage: RecordingStorage, returned: object, expected: str
    ) -> None:
        MultiLimit(app, storage=storage, user_loader=lambda: returned)
        client = limit(app, type=LimitType.USER)
        assert statuses(client, ["203.0.113.7"]) == [200]
        assert types_and_subjects(storage) == [expected]

    def test_local_proxy_of_a_user_is_resolved_at_each_request(self, app: Flask, storage: RecordingStorage) -> None:
        current: Any = LocalProxy(user_of_header)
        MultiLimit(app, storage=storage, user_loader=lambda: current)
        client = limit(app, type=LimitType.USER)

        responses = [client.get("/", headers={"X-User": name}) for name in ("ann", "bob", "ann")]
        assert [response.status_code for response in responses] == [200, 200, 429]
        assert client.get("/").status_code == 200

        assert types_and_subjects(storage) == ["user:ann", "user:bob", "user:ann", "anonymous:127.0.0.1"]

    @pytest.mark.parametrize("returned", [b"ann", 1.5, True, False, object(), ["ann"], ("ann",), {}])
    def test_user_id_of_another_type_is_an_error(self, app: Flask, returned: object) -> None:
        MultiLimit(app, user_loader=lambda: returned)
        client = limit(app, type=LimitType.USER)
        with pytest.raises(ConfigurationError, match=r"user_loader returned .*: return a str, an int, a UUID, or None"):
            client.get("/")


class TestRecursiveSubjects:
    """Without these errors, each call would end with a RecursionError and be repeated, for hours."""

    @pytest.mark.parametrize("lookup_fails_quietly", [False, True])
    def test_user_loader_that_calls_a_function_limited_by_user_is_an_error(
        self, app: Flask, lookup_fails_quietly: bool
    ) -> None:
        errors: list[Exception] = []

        @rate_limiter(type=LimitType.USER, rules="5/minute")
        def load() -> str:
            return "ann"

        def user() -> str | None:
            try:
                return load()
            except ConfigurationError as error:
                errors.append(error)
                if lookup_fails_quietly:
                    return None
                raise

        MultiLimit(app, user_loader=user)
        client = limit(app, type=LimitType.USER)

        if lookup_fails_quietly:
            assert [client.get("/").status_code for _ in range(2)] == [200, 429]
        else:
            with pytest.raises(ConfigurationError):
                client.get("/")
        assert all("user_loader calls itself" in str(error) and "LimitType.IP" in str(error) for error in errors)
        assert len(errors) >= 1

    def test_callable_type_that_checks_its_own_limit_is_an_error(self, app: Flask) -> None:
        def api_key() -> str:
            multilimit.check("1/minute", scope="keys", type=api_key, name="api_key")
            return "key"

        multilimit = MultiLimit(app)
        client = limit(app, type=api_key, name="api_key")

        with pytest.raises(ConfigurationError, match="the type 'api_key' calls itself"):
            client.get("/")


class TestAnonymousUsers:
    @pytest.mark.parametrize(("setting", "expected"), [("ip", [200, 200, 429]), ("shared", [200, 429, 429])])
    def test_anonymous_users_are_limited_by_address_or_together_if_configured(
        self, app: Flask, setting: str, expected: list[int]
    ) -> None:
        app.config["MULTILIMIT_ANONYMOUS_USER"] = setting
        MultiLimit(app, user_loader=lambda: None)
        client = limit(app, type=LimitType.USER)
        assert statuses(client, ["203.0.113.7", "203.0.113.8", "203.0.113.7"]) == expected

    @pytest.mark.parametrize("setting", ["ip", "shared"])
    @pytest.mark.parametrize("user", ["203.0.113.7", "anonymous", "anonymous:203.0.113.7", "ip:203.0.113.7", ":"])
    def test_anonymous_users_never_share_a_quota_with_a_user(self, app: Flask, setting: str, user: str) -> None:
        app.config["MULTILIMIT_ANONYMOUS_USER"] = setting
        MultiLimit(app, user_loader=user_of_header)
        client = limit(app, type=LimitType.USER)

        assert statuses(client, ["203.0.113.7"]) == [200]
        assert statuses(client, ["203.0.113.7"], headers={"X-User": user}) == [200]
        assert statuses(client, ["203.0.113.7"]) == [429]


def use_flask_login(
    app: Flask, *, has_uniquifier: bool = False, id_: Callable[[str], object] = str, prefix: str = ""
) -> None:
    from flask_login import LoginManager, UserMixin

    class User(UserMixin):  # type: ignore[misc]  # flask-login has no types
        def __init__(self, name: str) -> None:
            self.id = id_(name)
            if has_uniquifier:
                self.fs_uniquifier = request.headers["X-Token"]

        def get_id(self) -> str:
            return prefix + str(getattr(self, "fs_uniquifier", self.id))

    manager = LoginManager(app)
    app.secret_key = "only for this test"

    @manager.request_loader  # type: ignore[untyped-decorator]
    def load(request: Any) -> User | None:
        name = request.headers.get("X-User")
        return User(name) if name else None


def api_key() -> str | None:
    return request.headers.get("X-API-Key")


class TestCustomTypes:
    def test_each_subject_has_its_own_quota(self, limited_app: Flask, storage: RecordingStorage) -> None:
        client = limit(limited_app, type=api_key, name="api_key")

        responses = [client.get("/", headers={"X-API-Key": key}) for key in ("a", "b", "a")]

        assert [response.status_code for response in responses] == [200, 200, 429]
        assert types_and_subjects(storage) == ["api_key:a", "api_key:b", "api_key:a"]
        assert responses[0].headers["RateLimit"] == '"api_key-60s";r=0;t=60'

    def test_none_means_that_only_this_limiter_does_not_apply(
        self, limited_app: Flask, client: FlaskClient, storage: RecordingStorage
    ) -> None:
        by_key = rate_limiter(type=api_key, name="api_key")
        limited_app.add_url_rule("/", "view", by_key(rate_limiter(rules="1/hour")(lambda: "ok")))
        limited_app.add_url_rule("/free", "free", by_key(lambda: "ok"))

        assert [client.get("/").status_code for _ in range(2)] == [200, 429]
        assert storage.windows == [[3600], [3600]]
        assert "RateLimit" not in client.get("/free").headers
        assert len(storage.checks) == 2

    def test_empty_text_is_one_shared_subject(self, limited_app: Flask) -> None:
        client = limit(limited_app, type=lambda: "", name="tenant")
        assert statuses(client, ["203.0.113.7", "203.0.113.8"]) == [200, 429]

    @pytest.mark.parametrize(
        "subjects",
        [
            ["a", "A", "a ", " a", "a\0", "\0a", "a\n", "á", "a\u0301", "\udcff", "\ud800"],
            ["{a}", "a}", "%7Ba%7D", "a:b", "a%3Ab", "*", "", ":", "::"],
            ["x" * 47, "x" * 48, "x" * 49, "x" * 10_000, "x" * 10_000 + "y", "é" * 24, "é" * 25],
        ],
        ids=["spelling", "punctuation", "length"],
    )
    def test_subjects_of_any_content_and_length_have_separate_quotas(
        self, limited_app: Flask, storage: RecordingStorage, subjects: list[str]
    ) -> None:
        waiting = [*subjects, *subjects]
        client = limit(limited_app, type=lambda: waiting.pop(0), name="tenant")

        assert [client.get("/").status_code for _ in subjects] == [200] * len(subjects)
        assert [client.get("/").status_code for _ in subjects] == [429] * len(subjects)
        keys = {keys[0] for keys in storage.keys_asked}
        assert all(key.startswith("rate_limit:{view}:tenant:") and key.isascii() for key in keys)
        assert max(map(len, keys)) <= 200

    @pytest.mark.parametrize("returned", [b"a", 1.5, True, object(), ["a"], {"a"}])
    def test_subject_of_another_type_is_an_error(self, limited_app: Flask, returned: Any) -> None:
        client = limit(limited_app, type=lambda: returned, name="tenant")
        with pytest.raises(ConfigurationError, match=r"'tenant' returned .*: return a str, an int, a UUID, or None"):
            client.get("/")

    def test_callable_runs_once_for_each_check(self, limited_app: Flask, client: FlaskClient) -> None:
        asked = []

        def tenant() -> str:
            asked.append(1)
            return "a"

        outer, inner = (rate_limiter(rules, type=tenant, name="tenant") for rules in ("10/minute; 100/hour", "9/day"))
        limited_app.add_url_rule("/", "view", outer(inner(lambda: "ok")))

        client.get("/")

        assert len(asked) == 1

    def test_one_callable_under_two_names_is_two_types(
        self, limited_app: Flask, client: FlaskClient, storage: RecordingStorage
    ) -> None:
        outer, inner = (rate_limiter("10/minute", type=api_key, name=name) for name in ("key", "again"))
        limited_app.add_url_rule("/", "view", outer(inner(lambda: "ok")))

        assert client.get("/", headers={"X-API-Key": "a"}).status_code == 200
        assert storage.keys_asked == [
            ["rate_limit:{view}:key:a:sliding_window:60000", "rate_limit:{view}:again:a:sliding_window:60000"]
        ]

    def test_unhashable_callable_object_can_be_a_type(self, limited_app: Flask, storage: RecordingStorage) -> None:
        @dataclass
        class ByField:
            field: str

            def __call__(self) -> str | None:
                return request.headers.get(self.field)

        client = limit(limited_app, type=ByField("X-Tenant"), name="tenant")

        client.get("/", headers={"X-Tenant": "a"})

        assert types_and_subjects(storage) == ["tenant:a"]

    def test_exception_of_the_callable_reaches_the_app(self, limited_app: Flask, storage: RecordingStorage) -> None:
        tenant = raising(LookupError("no tenant"))
        client = limit(limited_app, type=tenant, name="tenant")

        with pytest.raises(LookupError, match="no tenant"):
            client.get("/")
        assert storage.checks == []
