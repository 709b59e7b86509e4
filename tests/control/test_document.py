"""The control document: reading and writing it, ends of entries, and broken or unsuitable content."""

import json
import math
import time
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from control.conftest import Shop, SkewedStore, shop_on
from flask_multilimit import ConfigurationError
from flask_multilimit.control import watch
from flask_multilimit.control.control import NeedsForce, seconds_of
from flask_multilimit.control.document import Document, document_from
from flask_multilimit.control.entries import entry_from
from flask_multilimit.engine import StorageError
from flask_multilimit.engine.storage.redis.failures import storage_error
from flask_multilimit.serve import applier
from flask_multilimit.serve.gate import gate_of
from flask_multilimit.signals import control_changed, control_failed
from support.doubles import raising
from support.waiting import until

KEY = "rate_limit:{control}:document"
ENTRY = {"id": "0" * 8, "since": 1.0, "kind": "deny", "who": "203.0.113.7"}
SCATTERED = {"type": "ip", "hash_tag": "subject"}
CLASH = {"kind": "override", "id": "1" * 8, "since": 1, "endpoint": "show", "limit": SCATTERED}
"""It puts the keys of an endpoint in several slots."""
OVERRIDES: list[dict[str, Any]] = [
    {"endpoint": "a", "rule": "ip-60s", "rules": "5/minute"},
    {"endpoint": "a", "rule": "ip-60s", "rules": {"count": 5, "time": 0.5, "algorithm": "gcra", "burst": 2}},
    {"endpoint": "a", "limiter": "ip", "rules": ["5/minute", {"count": 9, "lease": 3}]},
    {"endpoint": "a", "limit": {"type": "header:X-Key", "rules": "5/day", "charge_when": [401], "methods": ["POST"]}},
    {"who": "2001:db8::/32", "times": 0.5},
]


def test_error_about_many_mistakes_shows_only_the_first_ones() -> None:
    entries = [{**ENTRY, "id": f"{number}", "since": "x" * 400} for number in range(5000)]
    with pytest.raises(ConfigurationError, match=r"more mistakes$") as caught:
        document_from(json.dumps({"format": 1, "entries": entries}))
    assert len(str(caught.value)) < 10_000


@pytest.mark.parametrize("override", OVERRIDES)
def test_document_is_read_back_as_it_was_written(override: dict[str, Any]) -> None:
    entries = entry_from({**override, "kind": "override", "id": "12345678", "since": 1.5}), entry_from(ENTRY)
    document = Document(entries=entries)
    assert document_from(document.dump()) == document


@given(st.text() | st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_text_that_is_no_document_is_an_error(text: str | bytes) -> None:
    with pytest.raises(ConfigurationError, match="control document"):
        document_from(text)


@given(
    st.dictionaries(st.sampled_from([*ENTRY, "until", "rules", "times", "off"]), st.none() | st.integers() | st.text())
)
def test_random_entry_is_an_error_or_is_read_back_as_written(changed: dict[str, Any]) -> None:
    text = json.dumps({"format": 1, "entries": [{**ENTRY, **changed}]})
    try:
        document = document_from(text)
    except ConfigurationError:
        return
    assert document_from(document.dump()) == document


@pytest.mark.parametrize("change", [{"limit": {"type": "os:getcwd"}}, {"limiter": "ip", "rules": "os:getcwd"}])
def test_document_that_names_a_callable_is_an_error_and_imports_nothing(change: dict[str, Any]) -> None:
    entry = {**CLASH, "limit": None, **change}
    with pytest.raises(ConfigurationError, match="names a callable, which only settings and files can"):
        document_from(json.dumps({"format": 1, "entries": [entry]}))


@pytest.mark.parametrize(
    "changed",
    [{"since": math.nan}, {"until": math.inf}, {"id": "1" * 9}, {"id": "0000000A"}, {"author": "x" * 501}],
    ids=["no time", "infinite time", "long id", "other id", "long author"],
)
def test_entry_whose_field_has_an_unsuitable_value_is_an_error(changed: dict[str, Any]) -> None:
    (field,) = changed
    with pytest.raises(ConfigurationError, match=rf"\.{field}="):
        document_from(json.dumps({"format": 1, "entries": [{**ENTRY, **changed}]}))


def test_entry_is_in_force_until_its_end() -> None:
    short, long = (entry_from({**ENTRY, "id": str(n) * 8, "who": f"::{n}", "until": float(n)}) for n in (1, 2))
    document = Document(entries=(short, long))
    assert [len(document.at(now).entries) for now in (0.5, 1.0, 1.5, 2.0)] == [2, 1, 1, 0]
    assert document.next_end == 1.0


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        (1, 1),
        ("90s", 90),
        ("90 sec", 90),
        ("15 min", 900),
        ("2h".center(100), 7200),
        ("1d 12h", 129_600),
        ("1.5 hours", 5400),
        ("2w", 1_209_600),
        (timedelta(hours=2), 7200),
        ("400d", 34_560_000),
    ],
)
def test_duration_is_read_as_seconds(duration: Any, seconds: float) -> None:
    assert seconds_of(duration) == seconds


@pytest.mark.parametrize(
    "duration",
    ["", "h", "2", "90", "2 fortnights", "2h!", "-2h", "1e3s", 0.5, True, float("nan"), "400d 1s", None],
)
def test_value_that_is_no_duration_is_an_error(duration: Any) -> None:
    with pytest.raises(ConfigurationError):
        seconds_of(duration)


class TestDocumentOnServer:
    @pytest.fixture
    def shop(self, on_server: str) -> Shop:
        return shop_on(on_server)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "is not JSON"),
            ('{"format": 2, "entries": [], "new": 1}', "written by a newer version"),
            ('{"format": 1, "entries": [{"kind": "deny"}]}', "is missing"),
            (
                '{"format": 1, "entries": [' + json.dumps({**ENTRY, "kind": "override", "who": None}) + "]}",
                "nothing given",
            ),
        ],
    )
    def test_broken_document_changes_nothing_and_is_reported_once(
        self, shop: Shop, redis_client: redis.Redis, text: str, message: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        shop.control.deny("198.51.100.7", lasting=True)
        signals: list[str] = []
        redis_client.hset(KEY, mapping={"stamp": "9-broken", "document": text})

        with control_failed.connected_to(lambda _, error: signals.append(str(error)), shop.app):
            for _ in range(3):
                shop.follower.look()

        assert shop.statuses(1) == [403]
        assert [message in each for each in signals] == [True]
        assert len([each for each in caplog.records if message in each.getMessage()]) == 1
        with pytest.raises(ConfigurationError, match=message):
            shop.control.allow("198.51.100.7", lasting=True)

    def test_worker_does_not_announce_the_version_of_a_document_that_it_cannot_read(
        self, shop: Shop, redis_client: redis.Redis
    ) -> None:
        shop.control.deny("198.51.100.7", lasting=True)
        before: Any = redis_client.hgetall(KEY)
        redis_client.hset(KEY, mapping={"stamp": "2-newer", "document": '{"format": 2}'})

        shop.follower.look()
        assert shop.follower.version == 1

        redis_client.hset(KEY, mapping=before)
        shop.follower.look()
        assert shop.control.problem is None
        assert shop.denies()

    @pytest.mark.parametrize(
        "document",
        [{"entries": [ENTRY]}, {"entries": [ENTRY, CLASH]}, {"format": 99}],
        ids=["all apply", "one does not fit the app", "it cannot be read"],
    )
    def test_problem_of_the_storage_ends_with_it_and_that_of_the_document_remains(
        self, shop: Shop, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, document: dict[str, Any]
    ) -> None:
        redis_client.hset(KEY, mapping={"stamp": "9-a", "document": json.dumps({"format": 1, **document})})
        shop.follower.look()
        problem = str(shop.control.problem)
        with monkeypatch.context() as patched:
            patched.setattr(shop.follower.store, "read", raising(StorageError("this user has no permission")))
            shop.follower.look()
            assert "permission" in str(shop.control.problem)

        shop.follower.look()

        assert str(shop.control.problem) == problem

    def test_broken_document_is_parsed_once(
        self, shop: Shop, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watch, "document_from", parse := Mock(wraps=document_from))
        redis_client.hset(KEY, mapping={"stamp": "9-broken", "document": "{"})

        for _ in range(3):
            shop.follower.look()

        assert parse.call_count == 1

    def test_server_that_loads_its_data_is_not_reported_as_a_broken_document(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        read = raising(storage_error(redis.BusyLoadingError("Redis is loading the dataset in memory")))
        shop.control.deny("198.51.100.7", lasting=True)
        monkeypatch.setattr(shop.follower.store, "read", read)

        shop.follower.look()

        assert (shop.statuses(1), shop.follower.problem, caplog.records) == ([403], None, [])

    def test_valid_document_after_a_broken_one_is_in_force(self, shop: Shop, redis_client: redis.Redis) -> None:
        redis_client.hset(KEY, mapping={"stamp": "9-broken", "document": "{"})
        shop.follower.look()
        redis_client.delete(KEY)
        shop.control.deny("198.51.100.7", lasting=True)

        assert shop.statuses(1) == [403]
        assert shop.control.problem is None

    @pytest.mark.parametrize("place", range(4))
    def test_entry_that_does_not_fit_the_app_is_left_out_and_others_apply(
        self, shop: Shop, redis_client: redis.Redis, place: int
    ) -> None:
        given: list[dict[str, Any]] = [
            {"endpoint": "show", "rule": "ip-60s", "rules": "1/minute"},
            {"endpoint": "tier", "off": True},
            {"endpoint": "open", "limit": {"type": "ip", "rules": "1/minute"}},
        ]
        fits = [{"kind": "override", "id": f"{n:08}", "since": 1, **each} for n, each in enumerate(given)]
        text = json.dumps({"format": 1, "entries": [*fits[:place], CLASH, *fits[place:], ENTRY]})
        redis_client.hset(KEY, mapping={"stamp": "9-clash", "document": text})

        assert [shop.statuses(3, path) for path in ("/", "/tier", "/open")] == [
            [200, 429, 429],
            [200] * 3,
            [200, 429, 429],
        ]
        assert shop.statuses(1, ip="203.0.113.7") == [403]
        assert "left out, as it does not fit the limits of this app: at show: new limit" in str(shop.control.problem)
        assert "keys in several slots" in str(shop.control.unfit()["1" * 8])

    def test_change_of_lists_does_not_try_again_what_does_not_fit_the_app(
        self, shop: Shop, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        redis_client.hset(KEY, mapping={"stamp": "9-clash", "document": json.dumps({"format": 1, "entries": [CLASH]})})
        shop.follower.look()
        monkeypatch.setattr(applier, "fitting", lambda *_: pytest.fail("tried again, which may take seconds"))

        shop.control.deny("198.51.100.7", lasting=True)

        assert shop.denies()
        assert "several slots" in str(shop.control.problem)
        assert gate_of(shop.app).applier.unfit.keys() == {"1" * 8}

    def test_entry_that_does_not_fit_the_app_does_not_prevent_other_changes(
        self, shop: Shop, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        redis_client.hset(KEY, mapping={"stamp": "9-clash", "document": json.dumps({"format": 1, "entries": [CLASH]})})

        shop.control.override("show", rule="ip-60s", rules="1/minute", lasting=True)
        assert shop.statuses(2) == [200, 429]
        state = gate_of(shop.app).applier.state()
        assert state is not None
        assert state.entries["override"] == 1
        assert shop.control.idle() == set()
        shown = shop.app.test_cli_runner().invoke(args=["multilimit", "entries", "--json"]).stdout
        assert [each["id"] for each in json.loads(shown)["entries"] if each["left_out"]] == ["1" * 8]
        assert len([each for each in caplog.records if "several slots" in each.getMessage()]) == 1
        with pytest.raises(ConfigurationError, match="several slots"):
            shop.control.override("show", limit=SCATTERED, lasting=True)
        shop.control.undo("1" * 8)
        assert shop.control.problem is None

    def test_override_of_a_removed_endpoint_does_nothing(self, shop: Shop, redis_client: redis.Redis) -> None:
        gone = {"kind": "override", "id": "1" * 8, "since": 1, "endpoint": "gone", "off": True}
        redis_client.hset(KEY, mapping={"stamp": "9-gone", "document": json.dumps({"format": 1, "entries": [gone]})})

        assert shop.statuses(3) == [200, 200, 429]
        assert shop.control.problem is None
        assert shop.control.idle() == {"1" * 8}

    def test_imported_entry_gets_another_id_when_its_id_is_taken(self, shop: Shop) -> None:
        denied = shop.control.deny("203.0.113.9", lasting=True)
        text = shop.control.export_entries().replace("203.0.113.9", "203.0.113.10")

        (imported,) = shop.control.import_entries(text)
        shop.control.undo(denied.id)

        assert [(str(each), each.id) for each in shop.control.entries()] == [("deny 203.0.113.10", imported.id)]

    def test_import_needs_force_if_any_entry_needs_it(self, shop: Shop) -> None:
        text = json.dumps({"format": 1, "entries": [ENTRY, {**ENTRY, "id": "1" * 8, "who": "0.0.0.0/0"}]})
        with pytest.raises(NeedsForce, match=r"0\.0\.0\.0/0"):
            shop.control.import_entries(text)
        assert shop.control.entries() == ()

    def test_imported_entry_keeps_its_id_when_it_replaces_itself(self, shop: Shop) -> None:
        denied = shop.control.deny("203.0.113.9", lasting=True)
        (imported,) = shop.control.import_entries(shop.control.export_entries())
        assert imported.id == denied.id

    def test_import_leaves_out_entries_that_have_ended(self, shop: Shop) -> None:
        text = json.dumps({"format": 1, "entries": [ENTRY, {**ENTRY, "id": "1" * 8, "who": "::1", "until": 2.0}]})
        imported = shop.control.import_entries(text)
        assert [str(each) for each in imported] == ["deny 203.0.113.7"]
        assert shop.control.history(1)[0]["entry"] == "entries: 1"

    @pytest.mark.parametrize(("second", "same"), [({"who": "203.0.113.9"}, "id"), ({"id": "1" * 8}, "limit or client")])
    def test_import_with_a_duplicate_id_or_target_is_an_error(
        self, shop: Shop, second: dict[str, Any], same: str
    ) -> None:
        text = json.dumps({"format": 1, "entries": [ENTRY, {**ENTRY, **second}]})
        with pytest.raises(ConfigurationError, match=f"entries with the same {same}: deny 203.0.113.7"):
            shop.control.import_entries(text)
        assert shop.control.entries() == ()

    def test_key_of_another_redis_type_is_reported_and_limits_still_work(
        self, shop: Shop, redis_client: redis.Redis
    ) -> None:
        redis_client.set(KEY, "mine")
        assert shop.statuses(3) == [200, 200, 429]
        assert "WRONGTYPE" in str(shop.control.problem)

    def test_history_shows_time_author_change_and_reason(self, shop: Shop) -> None:
        made = shop.control.deny("::1", lasting=True, author="eve", reason="scans")
        shop.control.undo(made.id, author="adam", reason="was us")

        history = shop.control.history()

        assert [(each["author"], each["what"], each["entry"], each["reason"]) for each in history] == [
            ("adam", "undo", "deny ::1", "was us"),
            ("eve", "set", "deny ::1", "scans"),
        ]
        assert history[0]["at"] >= history[1]["at"] > made.since - 1

    def test_at_most_100000_entries_are_accepted(self, shop: Shop, redis_client: redis.Redis) -> None:
        entries = [{**ENTRY, "id": f"{n:08x}", "who": f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}"} for n in range(100_000)]
        text = json.dumps({"format": 1, "entries": entries})
        redis_client.hset(KEY, mapping={"stamp": "9-long", "document": text})

        assert shop.statuses(2, "/open", ip="10.1.2.3") == [403, 403]
        with pytest.raises(ConfigurationError, match="100000 entries"):
            shop.control.deny("192.0.2.1", lasting=True)
        with pytest.raises(ConfigurationError, match=r"entries=.*100000"):
            document_from(json.dumps({"format": 1, "entries": [*entries, {**ENTRY, "id": "ffffffff"}]}))

    def test_at_most_1000_overrides_are_accepted(self, shop: Shop, redis_client: redis.Redis) -> None:
        override = {"kind": "override", "since": 1.0, "times": 2.0}
        entries = [{**override, "id": f"{n:08x}", "who": f"10.{n >> 8}.{n & 255}.0/24"} for n in range(1000)]
        text = json.dumps({"format": 1, "entries": entries})
        redis_client.hset(KEY, mapping={"stamp": "9-long", "document": text})

        assert shop.statuses(5, ip="10.1.2.3") == [200, 200, 200, 200, 429]
        with pytest.raises(ConfigurationError, match="1000 overrides"):
            shop.control.override(who="192.0.2.1", times=2.0, lasting=True)
        one_more = {**override, "id": "ffffffff", "who": "::1"}
        with pytest.raises(ConfigurationError, match="has 1000 overrides: undo some, or give patterns"):
            shop.control.import_entries(json.dumps({"format": 1, "entries": [one_more]}))
        with pytest.raises(ConfigurationError, match="more than 1000 overrides"):
            document_from(json.dumps({"format": 1, "entries": [*entries, one_more]}))


def test_many_entries_that_end_one_after_another_are_not_processed_at_each_look() -> None:
    shop, store = shop_on("memory://"), SkewedStore()
    follower = shop.follower
    follower.store = store
    ends = [time.time() + 60 + n for n in range(1000)]
    entries = [
        {**ENTRY, "id": f"{n:08x}", "who": f"10.0.{n >> 8}.{n & 255}", "until": end} for n, end in enumerate(ends)
    ]
    shop.control.import_entries(json.dumps({"format": 1, "entries": entries}))
    processed: list[int] = []

    def look() -> bool:
        follower.look()
        return processed != []

    with control_changed.connected_to(lambda _, entries: processed.append(len(entries)), shop.app):
        for ended in range(1, 101):
            store.ahead = 60 + ended
            look()

        assert len(processed) < 50
        until(look)


def test_end_of_one_of_several_entries_is_applied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PRUNING_PAUSE", 0)
    shop, store = shop_on("memory://"), SkewedStore()
    follower = shop.follower
    follower.store = store
    shop.control.ban("10.0.0.1", for_="15m")
    shop.control.ban("10.0.0.2", for_="2h")
    applied: list[int] = []

    with control_changed.connected_to(lambda _, entries: applied.append(len(entries)), shop.app):
        store.ahead = 3600
        for _ in range(3):
            follower.look()

    assert applied == [1]
