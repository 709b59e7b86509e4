"""A preview shows what a change would do, and which field of it is invalid; a conflict or a danger stops it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis
from flask import Flask

from control.conftest import Shop, shop_on
from flask_multilimit import ConfigurationError, MultiLimit, rate_limiter
from flask_multilimit.control import Control, ControlConflict, Difference, InvalidData, NeedsForce, Preview
from flask_multilimit.control.store import StoredDocument, StoreInStorage
from flask_multilimit.engine import StorageError
from flask_multilimit.insight.changes import entries
from flask_multilimit.serve.gate import gate_of
from support.asking import view
from support.doubles import raising
from support.waiting import until

OVERRIDE = {"kind": "override", "endpoint": "show", "rule": "ip-60s", "rules": "9/minute"}


def test_preview_shows_changed_endpoints_and_changes_nothing(shop: Shop) -> None:
    preview = shop.control.preview(OVERRIDE, for_="2h", reason="campaign", author="ann")

    before, after = ("ip-60s: 2 per minute",), ("ip-60s: 9 per minute",)
    assert preview.endpoints == (Difference("show", ("GET", "HEAD"), before, after),)
    assert (preview.entry.kind, preview.entry.reason, preview.entry.author) == ("override", "campaign", "ann")
    assert preview.warning == ""
    assert shop.control.entries() == ()


def test_previewed_change_can_be_put_in_force(shop: Shop) -> None:
    preview = shop.control.preview(OVERRIDE, lasting=True)
    shop.control.put(preview.entry)
    assert shop.control.entries() == (preview.entry,)
    assert shop.statuses(3) == [200] * 3


def test_change_whose_end_passes_before_it_is_confirmed_replaces_nothing(shop: Shop) -> None:
    first = shop.control.override("show", rule="ip-60s", rules="5/minute", lasting=True)
    preview = shop.control.preview(OVERRIDE, for_=1)
    until(lambda: gate_of(shop.app).applier.time() >= (preview.entry.until or 0))

    with pytest.raises(ConfigurationError, match="its time is over"):
        shop.control.put(preview)

    assert shop.control.entries() == (first,)
    assert len(shop.control.history()) == 1


def test_preview_of_an_undo_shows_the_declared_rule(shop: Shop) -> None:
    entry = shop.control.override("show", rule="ip-60s", rules="9/minute", lasting=True)

    preview = shop.control.preview_undo(entry.id)

    shown = Difference("show", ("GET", "HEAD"), ("ip-60s: 9 per minute",), ("ip-60s: 2 per minute",))
    assert preview == Preview(entry, (shown,), warning="")
    assert shop.control.entries() == (entry,)


def test_preview_shows_a_change_for_unmatched_requests(shop: Shop) -> None:
    given = {"kind": "override", "endpoint": "unmatched", "limit": {"type": "ip", "cost": 2}}
    assert [each.endpoint for each in shop.control.preview(given, lasting=True).endpoints] == ["unmatched"]


def test_preview_of_a_list_entry_shows_no_changed_limits(shop: Shop) -> None:
    assert shop.control.preview({"kind": "deny", "who": "203.0.113.7"}, lasting=True).endpoints == ()


@pytest.mark.parametrize(
    ("given", "place", "value"),
    [
        ({**OVERRIDE, "rules": "9/mnute"}, "rules", "'9/mnute'"),
        ({**OVERRIDE, "rule": 5}, "rule", "5"),
        ({**OVERRIDE, "colour": "red"}, "colour", ""),
        ({"kind": "override", "endpoint": "show", "limit": {"rules": "9/mnute"}}, "limit.rules", "'9/mnute'"),
        ({"kind": "deny", "who": "everybody"}, "who", "'everybody'"),
        ({"kind": "deny", "who": "tenant:7"}, "who", "tenant:7"),
        ({"kind": "override", "who": "2001:db8::1/128", "times": 2.0}, "who", "2001:db8::1"),
        ({"kind": "deny"}, "who", ""),
        ({"kind": "mute", "who": "::1"}, "kind", "'mute'"),
    ],
    ids=str,
)
def test_mistake_names_field_value_and_remedy(shop: Shop, given: dict[str, Any], place: str, value: str) -> None:
    with pytest.raises(InvalidData) as caught:
        shop.control.preview(given, lasting=True)

    (mistake,) = caught.value.mistakes
    assert mistake.place == place
    assert mistake.value.startswith(value)
    assert mistake.remedy
    assert str(mistake) in str(caught.value)


@pytest.mark.parametrize("times", [{}, {"for_": "soon"}, {"for_": -1}, {"for_": "2h", "lasting": True}], ids=str)
def test_invalid_duration_names_its_field(shop: Shop, times: dict[str, Any]) -> None:
    with pytest.raises(InvalidData) as caught:
        shop.control.preview(OVERRIDE, **times)
    assert [each.place for each in caught.value.mistakes] == ["for"]


@pytest.mark.parametrize(
    "given",
    [
        {"endpoint": "show", "rule": "ip-60s", "rules": "1/day"},
        {"endpoint": "show", "limiter": "ip", "rules": "1/day"},
        {"endpoint": "*", "limiter": "user", "times": 0.001},
        {"endpoint": "show", "who": "0.0.0.0/0", "rules": "1/day"},
        {"endpoint": "show", "limit": {"type": "default", "rules": "1/day"}},
    ],
    ids=["rule", "limiter", "times", "who", "limit"],
)
def test_change_to_less_than_a_hundredth_needs_force(shop: Shop, given: dict[str, Any]) -> None:
    preview = shop.control.preview({"kind": "override", **given}, lasting=True)

    assert "less than a hundredth" in preview.warning
    with pytest.raises(NeedsForce, match="less than a hundredth"):
        shop.control.put(preview.entry)
    assert shop.control.entries() == ()
    shop.control.put(preview.entry, force=True)


def test_changes_that_together_leave_less_than_a_hundredth_of_what_is_declared_need_force(shop: Shop) -> None:
    shop.control.override("sho*", limiter="ip", rules="1 per 20 minutes", lasting=True)
    given = {"kind": "override", "endpoint": "show", "limiter": "ip", "rules": "1 per 9 hours"}
    assert "less than a hundredth" in shop.control.preview(given, lasting=True).warning


@pytest.mark.parametrize(
    ("other", "rules", "danger"),
    [("1/day", "1 per 9 hours", "less than a hundredth"), ("99999/minute", "9999/minute", "1000 times as much")],
    ids=["too little", "too much"],
)
def test_force_for_one_limit_confirms_no_danger_of_another(shop: Shop, other: str, rules: str, danger: str) -> None:
    shop.control.override("api.mine", limiter="user", rules=other, lasting=True, force=True)
    shop.control.override("sho*", limiter="ip", rules="1 per 20 minutes", lasting=True)
    given = {"kind": "override", "endpoint": "show", "limiter": "ip", "rules": rules}
    assert danger in shop.control.preview(given, lasting=True).warning


def test_limit_near_the_declared_one_needs_no_force_while_that_is_raised(shop: Shop) -> None:
    shop.control.override("show", rule="ip-60s", rules="1000/minute", lasting=True)
    given = {"kind": "override", "endpoint": "show", "limit": {"type": "ip", "rules": "1/minute"}}
    assert not shop.control.preview(given, lasting=True).warning


def test_added_shadow_refuses_nobody_and_needs_no_force_until_its_trial_ends(shop: Shop) -> None:
    limit = {"type": "default", "rules": "1/day", "shadow": True}
    shop.control.override("show", limit=limit, lasting=True)
    given = {"kind": "override", "endpoint": "show", "limiter": "default", "shadow": False}
    assert "less than a hundredth" in shop.control.preview(given, lasting=True).warning


def test_limit_beside_a_trial_is_compared_with_the_limits_that_refuse(shop: Shop) -> None:
    shop.control.override("sho*", limit={"type": "default", "rules": "1/day", "shadow": True}, lasting=True)
    given = {"kind": "override", "endpoint": "show", "limit": {"type": "user", "rules": "2/day"}}
    assert "less than a hundredth" in shop.control.preview(given, lasting=True).warning


def test_added_limit_that_is_much_larger_frees_nobody_and_needs_no_force(shop: Shop) -> None:
    limit = {"type": "default", "rules": "1000000/minute"}
    assert not shop.control.preview({"kind": "override", "endpoint": "show", "limit": limit}, lasting=True).warning


@pytest.mark.parametrize("endpoint", ["show", "api.*"])
def test_added_limit_whose_methods_no_route_takes_needs_force(shop: Shop, endpoint: str) -> None:
    given: dict[str, Any] = {"kind": "override", "endpoint": endpoint}
    limit = {"type": "ip", "rules": "5/hour", "methods": ["PUT"]}
    idle = shop.control.preview({**given, "limit": limit}, lasting=True)
    served = shop.control.preview({**given, "limit": {**limit, "methods": ["PUT", "GET"]}}, lasting=True)

    assert (served.warning, "no route takes its methods" in idle.warning) == ("", True)
    with pytest.raises(NeedsForce, match="would limit nothing"):
        shop.control.put(idle)


@pytest.mark.parametrize(("kind", "other", "effect"), [("deny", "allow", "refuse"), ("allow", "deny", "exempt")])
def test_entries_that_add_up_to_half_of_all_addresses_need_force(
    shop: Shop, kind: str, other: str, effect: str
) -> None:
    entries = [{"kind": kind, "id": f"{n:08}", "since": 1.0, "who": f"{n}.0.0.0/8"} for n in range(127)]
    shop.control.import_entries(json.dumps({"format": 1, "entries": entries}))

    with pytest.raises(NeedsForce, match=f"together with .*, it would {effect} half of all IPv4 addresses"):
        shop.control.put(shop.control.preview({"kind": kind, "who": "127.0.0.0/8"}, lasting=True))
    for each in ({"kind": other, "who": "127.0.0.0/8"}, {"kind": kind, "who": "2001::/16"}):
        assert shop.control.preview(each, lasting=True).warning == ""


@pytest.fixture
def both(on_server: str) -> tuple[Shop, Shop]:
    """Two processes of the app, each with an operator."""
    return shop_on(on_server), shop_on(on_server)


def test_change_that_a_process_has_not_applied_yet_is_not_reported_as_idle(both: tuple[Shop, Shop]) -> None:
    ann, bob = both
    ann.statuses(1)
    bob.control.override("show", rule="ip-60s", rules="50/minute", lasting=True)
    ann_gate = gate_of(ann.app)
    assert ann_gate.plans.overrides.entries == ()

    (entry,) = entries(ann_gate).entries

    assert not entry.idle


AFTER_ALL_DATES = {"id": "0" * 8, "kind": "deny", "who": "::1", "since": 1e300, "author": "ann"}
CONFLICTS: dict[str, tuple[dict[str, Any], Callable[[Control], object], str]] = {
    "same limit": (
        OVERRIDE,
        lambda ann: ann.override("show", rule="ip-60s", rules="50/minute", lasting=True, author="ann"),
        r"Now in force: ann set rule ip-60s at show: 50/minute at 20\d\d-\d\d-",
    ),
    "undo": (OVERRIDE, lambda ann: ann.undo(ann.entries()[0].id, author="ann"), "ann undo"),
    "limiter of the rule": (
        OVERRIDE,
        lambda ann: ann.override("show", limiter="ip", times=3, lasting=True, author="ann"),
        "ann set",
    ),
    "everywhere": (
        OVERRIDE,
        lambda ann: ann.override("*", off=True, lasting=True, author="ann", force=True),
        "ann set",
    ),
    "same client": (
        {"kind": "allow", "who": "203.0.113.7"},
        lambda ann: ann.ban("203.0.113.7", for_="1h", author="ann"),
        r"ann set ban 203\.0\.113\.7",
    ),
    "after all dates": (
        {"kind": "deny", "who": "::1"},
        lambda ann: ann.import_entries(json.dumps({"format": 1, "entries": [AFTER_ALL_DATES]})),
        "Now in force: ann set deny ::1 at 9999",
    ),
}
"""What an operator previews, what another one does meanwhile, and what the first one is told."""


class TestTwoOperators:
    """An operator confirms exactly the change that the preview has shown."""

    @pytest.mark.parametrize(("given", "change", "message"), CONFLICTS.values(), ids=CONFLICTS)
    def test_any_other_change_of_the_limit_or_client_is_a_conflict_that_names_it(
        self, both: tuple[Shop, Shop], given: dict[str, Any], change: Callable[[Control], object], message: str
    ) -> None:
        ann, bob = (each.control for each in both)
        ann.override("show", rule="ip-60s", rules="40/minute", lasting=True, author="ann")
        preview = bob.preview(given, lasting=True, author="bob")
        change(ann)

        with pytest.raises(ControlConflict, match=message):
            bob.put(preview)

        assert preview.entry not in bob.entries()

    def test_conflict_by_the_end_of_a_change_blames_nobody(
        self, both: tuple[Shop, Shop], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ann, bob = (each.control for each in both)
        bob.override("show", rule="ip-60s", rules="50/minute", for_=3600, author="bob")
        preview = bob.preview(OVERRIDE, lasting=True)
        ann.deny("203.0.113.7", lasting=True, author="ann")
        read = StoreInStorage.read

        def read_later(store: StoreInStorage, known: str) -> StoredDocument:
            found = read(store, known)
            return found._replace(now=found.now + 3600)

        monkeypatch.setattr(StoreInStorage, "read", read_later)
        assert not any(each.kind == "override" for each in bob.entries())

        with pytest.raises(ControlConflict, match=r"or a change ended\. The last change: ann set deny 203\.0\.113\.7"):
            bob.put(preview)

    @pytest.mark.parametrize("readable", [True, False])
    def test_conflict_with_a_change_that_the_history_does_not_show_is_an_error(
        self, both: tuple[Shop, Shop], redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, readable: bool
    ) -> None:
        ann, bob = (each.control for each in both)
        first = ann.override("show", rule="ip-60s", rules="50/minute", lasting=True)
        preview = bob.preview(OVERRIDE, lasting=True)
        ann.undo(first.id)
        redis_client.delete("rate_limit:{control}:history")
        if not readable:
            monkeypatch.setattr(StoreInStorage, "history", raising(StorageError("no permission for xrevrange")))

        with pytest.raises(ControlConflict, match=r"rule ip-60s .* or a change ended\. Look at it again"):
            bob.put(preview)

    def test_change_of_another_limit_is_no_conflict(self, both: tuple[Shop, Shop]) -> None:
        ann, bob = (each.control for each in both)
        preview = bob.preview(OVERRIDE, lasting=True)
        ann.override("tier", times=3, lasting=True)
        ann.deny("203.0.113.7", lasting=True)

        bob.put(preview)

        assert preview.entry in bob.entries()

    def test_entry_that_an_import_has_changed_under_its_id_is_a_conflict(self, both: tuple[Shop, Shop]) -> None:
        ann, bob = (each.control for each in both)
        ann.deny("203.0.113.7", lasting=True)
        preview = bob.preview({"kind": "deny", "who": "203.0.113.7", "status": 429}, lasting=True)
        (allowed,) = ann.import_entries(ann.export_entries().replace("deny", "allow"))

        with pytest.raises(ControlConflict, match=r"Now in force: somebody set allow 203\.0\.113\.7 at"):
            bob.put(preview)

        assert bob.entries() == (allowed,)

    def test_new_preview_with_the_state_seen_first_is_a_conflict(self, both: tuple[Shop, Shop]) -> None:
        ann, bob = (each.control for each in both)
        seen = bob.preview(OVERRIDE, lasting=True).seen
        assert bob.preview(OVERRIDE, lasting=True).seen == seen
        ann.override("show", rule="ip-60s", rules="50/minute", lasting=True)

        with pytest.raises(ControlConflict):
            bob.put(bob.preview(OVERRIDE, lasting=True), seen=seen)

    def test_history_names_a_replaced_change_of_an_unknown_author(self, both: tuple[Shop, Shop]) -> None:
        control = both[0].control
        for time in ("1h", "2h"):
            control.ban("203.0.113.7", for_=time)
        assert [each["replaces"] for each in control.history()] == ["ban 203.0.113.7", ""]


FREES: list[tuple[dict[str, Any], str]] = [
    ({"kind": "allow", "who": "0.0.0.0/0"}, "exempt 4294967296 addresses from all limits"),
    ({"kind": "allow", "who": "2000::/15"}, "from all limits"),
    ({"kind": "override", "endpoint": "*", "off": True}, "would leave no limit that refuses anybody"),
    ({"kind": "override", "endpoint": "**", "shadow": True}, "would leave no limit that refuses anybody"),
    ({**OVERRIDE, "rules": "2000/minute"}, "1000 times as much"),
    ({"kind": "override", "endpoint": "tier", "times": 1000}, "1000 times as much"),
    ({"kind": "override", "who": "0.0.0.0/0", "rules": "1000000/second"}, "1000 times as much"),
]


@pytest.mark.parametrize(("given", "why"), FREES, ids=str)
def test_change_that_frees_all_clients_needs_force(shop: Shop, given: dict[str, Any], why: str) -> None:
    preview = shop.control.preview(given, lasting=True)

    assert why in preview.warning
    with pytest.raises(NeedsForce, match=why):
        shop.control.put(preview)
    shop.control.put(preview, force=True)
    assert shop.control.entries() == (preview.entry,)


@pytest.mark.parametrize(
    "given",
    [
        {"kind": "allow", "who": "203.0.0.0/8"},
        {"kind": "allow", "who": "2001::/16"},
        {"kind": "allow", "who": "203.0.113.7"},
        {"kind": "override", "endpoint": "show", "off": True},
        {"kind": "override", "endpoint": "*", "limiter": "ip", "shadow": True},
        {**OVERRIDE, "rules": "1999/minute"},
        {"kind": "override", "who": "user:7", "rules": "1000000/second"},
        {"kind": "override", "who": "203.0.0.0/8", "rules": "1000000/second"},
    ],
    ids=str,
)
def test_change_that_frees_some_clients_needs_no_force(shop: Shop, given: dict[str, Any]) -> None:
    assert shop.control.preview(given, lasting=True).warning == ""


def test_change_that_leaves_less_than_a_request_costs_needs_force_once(app: Flask) -> None:
    multilimit = MultiLimit(app)
    app.add_url_rule("/", "show", rate_limiter("3/minute", cost=2)(view()))
    with app.app_context():
        control = multilimit.control
        half = control.preview({"kind": "override", "endpoint": "show", "times": 0.5}, lasting=True)
        assert "less than a hundredth" in half.warning
        control.put(half, force=True)

        other = {"kind": "override", "endpoint": "show", "limit": {"type": "ip", "rules": "9/hour"}}
        assert not control.preview(other, lasting=True).warning


def test_count_raised_in_steps_needs_force_at_1000_times_the_declared_one(shop: Shop) -> None:
    shop.control.override("show", rule="ip-60s", rules="1000/minute", lasting=True)
    assert "1000 times" in shop.control.preview({**OVERRIDE, "rules": "3000/minute"}, lasting=True).warning
