"""Whose quota a check counts in whose `subject=` names somebody: that of the client which a request would count."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from flask import Flask, request

from flask_multilimit import IP, USER, ConfigurationError, LimitType, MultiLimit, rate_limiter
from flask_multilimit.engine import Limiter, hits_for
from flask_multilimit.testing import exhaust
from support.asking import statuses, view
from support.doubles import RecordingStorage

KEY = "rate_limit:{{view}}:{}:sliding_window:60000"


def key_of_header() -> str | None:
    return request.headers.get("X-Key")


def _plan_of_the_customer_of_header() -> str | None:
    return request.headers.get("X-Plan")


@pytest.fixture
def multilimit(app: Flask, storage: RecordingStorage) -> MultiLimit:
    return MultiLimit(app, storage=storage, user_loader=lambda: request.headers.get("X-User"))


@pytest.fixture
def check(app: Flask, multilimit: MultiLimit) -> Callable[..., bool]:
    def check(subject: Any, **options: Any) -> bool:
        with app.app_context():
            return multilimit.check("1/minute", scope="view", subject=subject, **options).allowed

    return check


HEADERS = {"X-User": "ann", "X-Key": "key-0", "X-Plan": "gold"}


@pytest.mark.parametrize(
    ("options", "headers", "subject"),
    [
        ({}, {}, "everyone"),
        ({"type": USER}, HEADERS, "user:ann"),
        ({"type": USER}, {"X-User": "42"}, f"user:{42}"),
        ({"type": USER}, {"X-User": str(UUID(int=5))}, f"user:{UUID(int=5)}"),
        ({"type": USER}, {"X-User": "ip:2001:db8::7"}, "user:ip:2001:db8::7"),
        ({"type": USER}, {"X-User": 'a+b "c"'}, 'user:a+b "c"'),
        ({"type": USER}, {}, "anonymous:2001:db8::1"),
        ({"type": IP}, {}, "ip:2001:db8::ffff"),
        ({"type": IP}, {}, "ip:2001:DB8:0::/64"),
        ({"type": IP}, {}, "ip:2001:db8::7/128"),
        ({"type": key_of_header, "name": "api_key"}, HEADERS, "api_key:key-0"),
        ({"type": key_of_header, "name": "api_key"}, {"X-Key": ""}, "api_key:"),
        ({"type": "header:X-Key"}, HEADERS, "x-key:key-0"),
        ({"type": (USER, IP)}, HEADERS, ["user:ann", "ip:2001:db8::2"]),
        ({"type": (USER, IP)}, {"X-User": 'a", "b'}, ['user:a", "b', "ip:2001:db8::2"]),
        ({"type": (USER, IP)}, {}, ["anonymous:2001:db8::1", "ip:2001:db8::1"]),
        ({"type": (IP, key_of_header), "name": "api_key"}, HEADERS, ["ip:2001:db8::1", "api_key:key-0"]),
    ],
)
def test_check_of_a_given_subject_shares_the_quota_of_its_requests(
    app: Flask, check: Callable[..., bool], options: Any, headers: Any, subject: Any
) -> None:
    app.add_url_rule("/", "view", rate_limiter(rules="1/minute", **options)(view()))
    assert statuses(app, "/", headers=headers, environ_base={"REMOTE_ADDR": "2001:db8::1"}) == [200]
    assert not check(subject)


def test_parts_of_several_own_types_need_the_name_of_their_limiter(app: Flask, check: Callable[..., bool]) -> None:
    together = rate_limiter(type=(key_of_header, _plan_of_the_customer_of_header), name="key_plan", rules="1/minute")
    app.add_url_rule("/", "view", together(view()))
    assert statuses(app, "/", headers=HEADERS) == [200]
    subject = ["key_of_header:key-0", "_plan_of_the_customer_of_header:gold"]

    assert not check(subject, name="key_plan")

    with pytest.raises(ConfigurationError, match=r'limiter on "view": .*a type of your own needs a name'):
        check(subject)


@pytest.mark.parametrize(
    ("type_", "subject"),
    [
        ((USER, IP), ["ip:2001:db8::2", "user:ann"]),
        ((IP, USER), {"ip:2001:db8::2", "user:ann"}),
        ((USER, IP), ["ip:2001:db8::2", "anonymous:2001:db8::2"]),
        ((IP, key_of_header), ["api_key:key-0", "ip:2001:db8::2"]),
        ((IP,), "ip:2001:db8::2"),
        ((key_of_header,), ["api_key:key-0"]),
    ],
)
def test_check_of_given_parts_in_any_order_shares_the_quota_of_an_endpoint(
    app: Flask, check: Callable[..., bool], type_: Any, subject: Any
) -> None:
    name = "api_key" if key_of_header in type_ else None
    app.add_url_rule("/", "page", rate_limiter(rules="1/minute", type=type_, name=name, scope="view")(view()))
    headers = {key: value for key, value in HEADERS.items() if key != "X-User" or "anonymous" not in str(subject)}

    assert check(subject)

    assert statuses(app, "/", headers=headers, environ_base={"REMOTE_ADDR": "2001:db8::1"}) == [429]


def test_parts_in_an_order_that_a_limiter_of_the_scope_has_keep_it(app: Flask, check: Callable[..., bool]) -> None:
    for place, type_ in (("a", (USER, IP)), ("b", (IP, USER))):
        app.add_url_rule(f"/{place}", place, rate_limiter(rules="1/minute", type=type_, scope="view")(view()))

    assert check(["user:ann", "ip:192.0.2.1"])
    assert check(["ip:192.0.2.1", "user:ann"])
    assert not check(["user:ann", "ip:192.0.2.1"])


def test_order_of_parts_is_that_of_the_limiter_with_the_name_that_is_given(
    app: Flask, check: Callable[..., bool]
) -> None:
    functions = (key_of_header, _plan_of_the_customer_of_header)
    for name, type_ in (("one", functions), ("two", functions[::-1])):
        app.add_url_rule(f"/{name}", name, rate_limiter(rules="1/minute", type=type_, name=name, scope="view")(view()))

    subject = ["key_of_header:key-0", "_plan_of_the_customer_of_header:gold"]
    assert [check(subject, name=name) for name in ("one", "two")] == [True, True]

    assert statuses(app, "/one", "/two", headers=HEADERS) == [429, 429]


def test_subject_that_its_scope_counts_in_part_with_another_is_no_error(app: Flask, check: Callable[..., bool]) -> None:
    app.add_url_rule("/", "page", rate_limiter(rules="1/minute", type=(USER, IP), scope="view")(view()))
    assert check(["user:ann", "api_key:key-0"])


def test_both_of_two_names_that_differ_in_spelling_alone_are_known(app: Flask, check: Callable[..., bool]) -> None:
    for name in ("api_key", "api-key"):
        limiter = rate_limiter(rules="1/minute", type=key_of_header, name=name, scope="view")
        app.add_url_rule(f"/{name}", name, limiter(view()))

    assert [check("api_key:key-0"), check("api-key:key-0")] == [True, True]


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ("api_key:key-0", '"page" counts api_key only together with ip; give subject=\\["ip:...", "api_key:..."], or'),
        ("ip:192.0.2.1", '"page" counts ip only together with api_key; give subject='),
    ],
)
def test_part_of_a_subject_that_its_scope_counts_only_as_a_whole_is_an_error(
    app: Flask, check: Callable[..., bool], storage: RecordingStorage, subject: str, message: str
) -> None:
    together = rate_limiter(type=(IP, key_of_header), name="api_key", rules="1/minute", scope="view")
    app.add_url_rule("/", "page", together(view()))

    with pytest.raises(ConfigurationError, match=f'limiter on "view": {message}'):
        check(subject)

    assert storage.checks == []
    assert check("user:ann")
    assert check(subject, key="other:")


def test_part_of_a_subject_that_its_scope_also_counts_alone_is_no_error(app: Flask, check: Callable[..., bool]) -> None:
    for place, type_ in (("together", (USER, IP)), ("alone", IP)):
        app.add_url_rule(f"/{place}", place, rate_limiter(rules="1/minute", type=type_, scope="view")(view()))

    assert check("ip:192.0.2.1")

    assert statuses(app, "/together", environ_base={"REMOTE_ADDR": "192.0.2.1"}) == [200]
    assert statuses(app, "/alone", environ_base={"REMOTE_ADDR": "192.0.2.1"}) == [429]


@pytest.mark.parametrize("subject", ["X-Key:key-0", "x_key:key-0", ["X-KEY:key-0", "user:ann"]])
def test_other_spelling_of_a_type_that_its_scope_counts_is_an_error(
    app: Flask, check: Callable[..., bool], storage: RecordingStorage, subject: Any
) -> None:
    app.add_url_rule("/", "view", rate_limiter(type="header:X-Key", rules="1/minute")(view()))

    with pytest.raises(ConfigurationError, match=r'no limiter of its scope counts .*; did you mean "x-key:\.\.\."'):
        check(subject)

    assert storage.checks == []
    assert check("x-key:key-0")
    assert check("y-key:key-0")


@pytest.mark.parametrize(
    "by", [{"type": key_of_header}, {"subject": 'api_key:[["ip", "192.0.2.1"], ["api_key", "a"]]'}]
)
def test_check_never_counts_a_chosen_value_as_a_subject_of_several_types(
    app: Flask, multilimit: MultiLimit, storage: RecordingStorage, by: Any
) -> None:
    together = rate_limiter(type=(IP, key_of_header), name="api_key", rules="1/minute", scope="view")
    app.add_url_rule("/", "page", together(view()))

    with app.test_request_context(headers={"X-Key": '[["ip", "192.0.2.1"], ["api_key", "a"]]'}):
        app.preprocess_request()
        with pytest.raises(ConfigurationError, match=r'limiter on "view": .* together'):
            multilimit.check("1/minute", scope="view", **({"name": "api_key"} | by))

    assert storage.checks == []


def test_name_names_the_rules_of_a_check_but_not_its_subject(
    app: Flask, multilimit: MultiLimit, storage: RecordingStorage
) -> None:
    with app.app_context():
        decision = multilimit.check("1/minute", scope="view", subject="user:ann", name="mail")
    assert [status.name for status in decision.statuses] == ["mail-60s"]
    assert storage.keys_asked == [[KEY.format("user:ann")]]


@pytest.mark.parametrize("chosen", ["ip:192.0.2.1", "everyone", "user:bob", "bob,ip:192.0.2.1", '[["user", "bob"]]'])
def test_value_that_a_client_chooses_never_names_another_subject(
    check: Callable[..., bool], storage: RecordingStorage, chosen: str
) -> None:
    assert check(f"user:{chosen}")
    assert check(["user:bob", f"recipient:{chosen}"])

    for subject in ("ip:192.0.2.1", "everyone", "user:bob", ["user:bob", "ip:192.0.2.1"]):
        assert check(subject)
    assert [key.split("}:")[1].split(":")[0] for (key,) in storage.keys_asked[:2]] == ["user", "recipient"]


@pytest.mark.parametrize(
    "subject",
    [
        *("", "42", ":42", 42, True, b"user:42", UUID(int=5), [], ["42"]),
        *("::1", "2001:db8::7", "fe80::1", "fd12:0:0:0:0:0:0:7", "cafe::1%eth0", "fe80::/64", "::ffff:192.0.2.1"),
        *("default:42", "global:", "everyone:", "Everyone", "User:42", "IP:192.0.2.1"),
    ],
)
def test_given_subject_without_a_type_is_an_error_that_shows_the_form(
    check: Callable[..., bool], storage: RecordingStorage, subject: Any
) -> None:
    with pytest.raises(ConfigurationError, match='give TYPE:VALUE, such as "user:42"'):
        check(subject)
    with pytest.raises(ConfigurationError, match='give TYPE:VALUE, such as "user:42"'):
        hits_for("1/minute", scope="view", subject=subject)

    assert storage.checks == []


@pytest.mark.parametrize("subject", ["cafe:1", "add:2:3", "faced:a::b", "facade::1", "ip:fe80::1"])
def test_subject_whose_type_looks_like_a_part_of_an_address_has_its_quota(
    check: Callable[..., bool], subject: str
) -> None:
    assert check(subject)
    assert hits_for("1/minute", scope="view", subject=subject)


@pytest.mark.parametrize(
    "subject",
    ["LimitType.USER:42", "header:X-Key:key-0", 'user+ip:[["user", "42"]]'],
)
def test_given_subject_of_a_type_that_no_limiter_can_have_is_an_error(
    check: Callable[..., bool], storage: RecordingStorage, subject: str
) -> None:
    with pytest.raises(ConfigurationError, match=r'limiter on "view": subject .*: its type is none of "ip", "user"'):
        check(subject)
    assert storage.checks == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": USER, "subject": "42"}, 'give TYPE:VALUE, such as "user:42"'),
        ({"type": USER, "subject": "user:42"}, "type= asks the current request, .*: leave one of them out"),
        ({"type": key_of_header, "name": "api_key", "subject": "api_key:x"}, "leave one of them out"),
        ({"name": "mail", "subject": "api_key:x"}, "name='mail': .*: give \"mail:...\""),
        ({"subject": ["user:42", "user:43"]}, "name one user at a time"),
        ({"subject": ["everyone", "user:42"]}, "leave out DEFAULT, which means everyone"),
    ],
)
def test_given_subject_that_contradicts_itself_is_an_error(
    app: Flask, multilimit: MultiLimit, storage: RecordingStorage, options: Any, message: str
) -> None:
    with app.app_context():
        for ask_for in (multilimit.check, lambda *given, **more: multilimit.limit(*given, **more).__enter__()):
            with pytest.raises(ConfigurationError, match=message):
                ask_for("1/minute", scope="view", **options)

    assert storage.checks == []


NETWORKS = ["ip:192.0.2.0/24", "ip:2001:db8::/48", "anonymous:192.0.2.0/24", ["user:ann", "ip:192.0.2.0/24"]]
MISSPELLED = ["ip:192.0.2", "ip:192.0.2.256", "ip:192.0.2.1/33", "ip: 192.0.2.1", "ip:2001:db8", "anonymous:192.0.2"]


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        *((subject, "count as one client; give one of them") for subject in NETWORKS),
        *((subject, f"'{subject}': write it as \"203.0.113.7\"") for subject in MISSPELLED),
    ],
)
def test_network_of_several_clients_and_misspelled_address_are_no_subjects(
    app: Flask, multilimit: MultiLimit, storage: RecordingStorage, subject: Any, message: str
) -> None:
    app.add_url_rule("/", "view", rate_limiter(type=IP, rules="1/minute")(view()))

    with app.app_context():
        for ask in (
            lambda: multilimit.check("1/minute", scope="mail", subject=subject),
            lambda: multilimit.peek("view", subject),
            lambda: multilimit.reset("view", subject),
            lambda: multilimit.reset(subject=subject, reach="everywhere"),
            lambda: multilimit.standing(subject=subject),
            lambda: exhaust(app, "view", subject),
        ):
            with pytest.raises(ConfigurationError, match=message):
                ask()

    assert storage.checks == []


@pytest.mark.parametrize("peer", ["", "localhost", "unix:"])
def test_name_of_a_peer_that_is_no_address_is_a_subject(app: Flask, check: Callable[..., bool], peer: str) -> None:
    app.add_url_rule("/", "view", rate_limiter(type=IP, rules="1/minute")(view()))
    assert statuses(app, "/", environ_base={"REMOTE_ADDR": peer}) == [200]
    assert not check(f"ip:{peer}")


@pytest.mark.usefixtures("multilimit")
@pytest.mark.parametrize(("type_", "subject"), [(USER, "user:a:b"), (IP, "ip:2001:db8::/64")])
def test_engine_counts_a_subject_as_a_view_does(
    app: Flask, storage: RecordingStorage, type_: LimitType, subject: str
) -> None:
    app.add_url_rule("/", "view", rate_limiter(type=type_, rules="1/minute")(view()))
    assert statuses(app, "/", headers={"X-User": "a:b"}, environ_base={"REMOTE_ADDR": "2001:db8::1"}) == [200]
    assert not Limiter(storage).check(hits_for("1/minute", scope="view", subject=subject)).allowed
