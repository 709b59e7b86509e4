"""Subjects: their names, path variables, combined types, several apps and storages."""

import gc
import itertools
import tracemalloc
from collections.abc import Callable

import pytest
from flask import Flask, request
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.wrappers import Response

from flask_multilimit import ConfigurationError, LimitType, MultiLimit, rate_limiter
from flask_multilimit.declare.subjects import EVERYONE, Subject, parts_in, subjects_from
from flask_multilimit.engine import MemoryStorage
from flask_multilimit.engine.keys import RESERVED_TYPES
from support.asking import ask, statuses, view
from support.clock import Clock
from support.doubles import RecordingStorage


def api_key() -> str | None:
    return request.headers.get("X-Api-Key")


TYPES = st.from_regex(r"[G-Zg-z_<][A-Za-z0-9_<>+-]{0,30}", fullmatch=True).filter(
    lambda name: name.lower() not in RESERVED_TYPES
) | st.sampled_from(["ip", "user", "anonymous", "api_key"])


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("user:42", ("user", "42")),
        ("ip:203.0.113.7", ("ip", "203.0.113.7")),
        ("ip:2001:db8::/64", ("ip", "2001:db8::/64")),
        ("api_key:a:b", ("api_key", "a:b")),
        ("anonymous:", ("anonymous", "")),
        ("everyone", ("default", "")),
    ],
)
def test_subject_is_named_by_type_and_value(text: str, subject: tuple[str, str]) -> None:
    assert Subject.parse(text) == subject
    assert str(Subject(*subject)) == text


@given(st.builds(Subject, TYPES, st.text()))
def test_name_of_a_subject_is_parsed_as_that_subject(subject: Subject) -> None:
    assert Subject.parse(str(subject)) == subject


@pytest.mark.parametrize(
    "text",
    [
        "",
        "42",
        ":42",
        "203.0.113.7",
        "2001:db8::7",
        "fe80::1",
        "default:42",
        "User:42",
        "everyone:",
        None,
        42,
        b"user:42",
    ],
)
def test_text_that_names_no_subject_is_an_error_with_a_remedy(text: object) -> None:
    with pytest.raises(ConfigurationError, match='give TYPE:VALUE, such as "user:42"'):
        Subject.parse(text)


def test_list_of_subjects_becomes_a_dict_by_type() -> None:
    assert subjects_from("user:42") == {"user": "42"}
    assert subjects_from(["user:42", EVERYONE, "user:42"]) == {"user": "42", "default": ""}


def test_set_of_subjects_is_in_the_same_order_in_all_processes() -> None:
    names = [f"name-{each}" for each in "abcdefghijklmnopqrst"]
    assert list(subjects_from({f"{name}:42" for name in names})) == names


@pytest.mark.parametrize("subjects", [42, [], ["42"], ["user:42", "user:43"]])
def test_conflicting_or_empty_list_of_subjects_is_an_error(subjects: object) -> None:
    with pytest.raises(ConfigurationError, match="subject"):
        subjects_from(subjects)


@pytest.mark.parametrize("value", ["[" * 100_000, "[[", "[[1]]", '[["ip"]]', '[["ip", 5]]', '[["ip", "::1"], 5]', ""])
def test_value_that_is_no_list_of_parts_has_no_parts(value: str) -> None:
    assert parts_in(value) == ()


def test_each_value_of_a_path_variable_has_its_own_quota(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage)

    by_room = rate_limiter("1/minute", type=lambda: str((request.view_args or {})["room"]), name="room")
    app.add_url_rule("/<room>", "view", by_room(lambda room: room))

    assert statuses(app, "/a", "/a", "/b", "/%C3%A4%3A", "/%C3%A4%3A") == [200, 429, 200, 200, 429]


class TestCombinedTypes:
    @pytest.fixture
    def get(self, app: Flask, storage: RecordingStorage) -> Callable[[str | None, str], int]:
        MultiLimit(app, storage=storage, user_loader=lambda: request.headers.get("X-User"))
        pairs = rate_limiter(type=(LimitType.USER, LimitType.IP), rules="1/minute")
        app.add_url_rule("/", "view", pairs(view()))

        def get(user: str | None, address: str) -> int:
            headers = {} if user is None else {"X-User": user}
            return ask(app, headers=headers, environ_base={"REMOTE_ADDR": address}).status_code

        return get

    def test_combined_types_are_one_subject(
        self, get: Callable[[str | None, str], int], storage: RecordingStorage
    ) -> None:
        ann_here, ann_there, bob_here = ("ann", "192.0.2.1"), ("ann", "192.0.2.2"), ("bob", "192.0.2.1")
        assert [get(*each) for each in (ann_here, ann_there, bob_here, ann_here)] == [200, 200, 200, 429]
        assert all(len(hits) == 1 for hits in storage.checks)
        assert storage.keys_asked[0][0].split("}:")[1].startswith("user+ip:")

    def test_different_parts_never_share_a_quota(self, get: Callable[[str | None, str], int]) -> None:
        users = ["a", "b", 'a", "192.0.2.1', "a+b", "a:192.0.2.1", None, "192.0.2.1", '["user","a"]']
        addresses = ["192.0.2.1", "192.0.2.2", "2001:db8::1", ""]

        for pair in itertools.product(users, addresses):
            assert get(*pair) == 200, pair
        for pair in itertools.product(users, addresses):
            assert get(*pair) == 429, pair

    def test_combined_types_can_include_a_custom_type(self, limited_app: Flask) -> None:
        together = rate_limiter(type=(api_key, LimitType.IP), name="key_ip", rules="1/minute")
        limited_app.add_url_rule("/", "view", together(view()))

        assert statuses(limited_app, "/", "/", headers={"X-Api-Key": "k1"}) == [200, 429]
        assert statuses(limited_app, "/", headers={"X-Api-Key": "k2"}) == [200]
        assert statuses(limited_app, "/", "/") == [200, 200], "the custom type returns None: the limiter does not apply"


class TestAppsAndStorages:
    def test_one_extension_serves_several_apps_with_their_own_settings(self, clock: Clock) -> None:
        multilimit, apps = MultiLimit(storage=MemoryStorage(clock=clock)), [Flask("one"), Flask("two")]
        for count, app in enumerate(apps, 1):
            app.config |= {"MULTILIMIT_DEFAULT_LIMITS": f"{count}/minute", "MULTILIMIT_KEY_PREFIX": f"{app.name}:"}
            multilimit.init_app(app)
            app.add_url_rule("/", "view", view())

        assert statuses(apps[0], "/", "/") == [200, 429]
        assert statuses(apps[1], "/", "/", "/") == [200, 200, 429]

    def test_request_forwarded_to_another_app_is_limited_by_both(self, clock: Clock) -> None:
        outer, inner = Flask("outer"), Flask("inner")
        kept = MemoryStorage(clock=clock)
        MultiLimit(outer, storage=MemoryStorage(clock=clock))
        MultiLimit(inner, storage=kept)
        inner.config["TESTING"] = True
        count_failures = rate_limiter(rules="1/minute", charge_when=lambda response: response.status_code >= 400)

        outer.add_url_rule("/", "view", count_failures(lambda: Response.from_app(inner, request.environ)))
        inner.add_url_rule("/", "view", rate_limiter(rules="2/hour", name="inside")(lambda: ("no", 400)))

        assert statuses(outer, "/", "/") == [400, 429]
        assert len(kept) == 1


def test_long_subjects_of_clients_are_not_kept_in_memory(app: Flask) -> None:
    app.config["MULTILIMIT_TRAFFIC"] = False  # it keeps subjects until the next flush
    MultiLimit(app)
    limiter = rate_limiter(type=api_key, name="api_key", rules="9/minute")
    app.add_url_rule("/", "view", limiter(view()))
    ask(app, headers={"X-Api-Key": "short"})

    tracemalloc.start()
    for number in range(20):
        ask(app, headers={"X-Api-Key": str(number % 10) * 100_000})
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert kept < 500_000
