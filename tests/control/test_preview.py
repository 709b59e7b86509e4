"""What a change would do is shown before it is made, and what is wrong in it beside its field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from flask_multilimit import ConfigurationError
from flask_multilimit.control import Difference, InvalidData, NeedsForce

if TYPE_CHECKING:
    from control.conftest import Shop

OVERRIDE = {"kind": "override", "endpoint": "show", "rule": "ip-60s", "rules": "9/minute"}


def test_a_preview_tells_which_endpoints_change_and_changes_nothing(shop: Shop) -> None:
    preview = shop.control.preview(OVERRIDE, for_="2h", reason="campaign", author="ann")

    before, after = ("ip-60s: 2 per 60s",), ("ip-60s: 9 per 60s",)
    assert preview.endpoints == (Difference("show", ("GET", "HEAD"), before, after),)
    assert (preview.entry.kind, preview.entry.reason, preview.entry.author) == ("override", "campaign", "ann")
    assert preview.warning == ""
    assert shop.control.entries() == ()


def test_what_was_previewed_is_put_in_force(shop: Shop) -> None:
    preview = shop.control.preview(OVERRIDE, lasting=True)
    shop.control.put(preview.entry)

    assert shop.control.entries() == (preview.entry,)
    assert shop.statuses(3) == [200] * 3


def test_what_an_undo_would_do(shop: Shop) -> None:
    entry = shop.control.override("show", rule="ip-60s", rules="9/minute", lasting=True)

    preview = shop.control.preview_undo(entry.id)

    assert preview.entry == entry
    assert [each.after for each in preview.endpoints] == [("ip-60s: 2 per 60s",)]
    assert shop.control.entries() == (entry,)


def test_a_change_for_requests_that_match_no_route_shows(shop: Shop) -> None:
    given = {"kind": "override", "endpoint": "unmatched", "limit": {"type": "ip", "cost": 2}}

    assert [each.endpoint for each in shop.control.preview(given, lasting=True).endpoints] == ["unmatched"]


def test_lists_change_no_limits(shop: Shop) -> None:
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
        ({"kind": "deny"}, "who", "{"),
        ({"kind": "mute", "who": "::1"}, "kind", "'mute'"),
    ],
)
def test_what_is_wrong_names_the_field_the_value_and_the_remedy(
    shop: Shop, given: dict[str, Any], place: str, value: str
) -> None:
    with pytest.raises(InvalidData) as caught:
        shop.control.preview(given, lasting=True)

    (mistake,) = caught.value.mistakes
    assert mistake.place == place
    assert mistake.value.startswith(value)
    assert mistake.remedy
    assert str(mistake) in str(caught.value)


@pytest.mark.parametrize("times", [{}, {"for_": "soon"}, {"for_": -1}, {"for_": "2h", "lasting": True}])
def test_so_does_a_wrong_time(shop: Shop, times: dict[str, Any]) -> None:
    with pytest.raises(InvalidData) as caught:
        shop.control.preview(OVERRIDE, **times)

    assert [each.place for each in caught.value.mistakes] == ["for"]


def test_what_does_not_fit_the_app_is_an_error_too(shop: Shop) -> None:
    clash = {"kind": "override", "endpoint": "show", "limit": {"type": "ip", "cost": 2}}

    with pytest.raises(ConfigurationError, match="would share one key"):
        shop.control.preview(clash, lasting=True)


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
def test_less_than_a_hundredth_is_warned_of_however_it_is_said(shop: Shop, given: dict[str, Any]) -> None:
    preview = shop.control.preview({"kind": "override", **given}, lasting=True)

    assert "less than a hundredth" in preview.warning
    with pytest.raises(NeedsForce, match="less than a hundredth"):
        shop.control.put(preview.entry)
    assert shop.control.entries() == ()
    shop.control.put(preview.entry, force=True)


def test_half_of_all_addresses_in_parts_is_warned_of(shop: Shop) -> None:
    for first in range(0, 127):
        shop.control.deny(f"{first}.0.0.0/8", lasting=True)

    with pytest.raises(NeedsForce, match="half of all IPv4 addresses"):
        shop.control.deny("127.0.0.0/8", lasting=True)
    shop.control.deny("127.0.0.1", lasting=True)
    shop.control.deny("2001:db8::/32", lasting=True)
