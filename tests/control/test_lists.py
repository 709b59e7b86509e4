"""Subjects and networks are allowed, denied and banned while the app runs."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from flask import Flask

from control.conftest import Shop, SkewedStore, shop_on
from flask_multilimit import ConfigurationError, MultiLimit
from flask_multilimit.control import document
from flask_multilimit.control.control import NeedsForce
from flask_multilimit.control.entries import Listing, are_half, entry_from
from flask_multilimit.control.store import StoreInStorage
from flask_multilimit.declare.addresses import Network, Who
from flask_multilimit.declare.subjects import Subject
from flask_multilimit.engine import StorageError
from flask_multilimit.serve.access import AccessLists, Listed, listing_resolver
from support.doubles import raising
from support.waiting import until


def test_allowed_network_is_not_limited(shop: Shop) -> None:
    shop.control.allow("198.51.100.0/24", lasting=True)
    assert shop.statuses(4) == [200] * 4
    assert shop.statuses(3, ip="198.51.101.1") == [200, 200, 429]


@pytest.mark.parametrize("user", ["mallory", f"*{'0a' * 20}", '[["user", "ann"], ["ip", "203.0.113.9"]]'])
def test_denied_user_is_refused_at_an_unlimited_endpoint(shop: Shop, user: str) -> None:
    shop.control.deny(f"user:{user}", lasting=True)
    assert shop.statuses(1, "/open", user=user) == [403]
    assert shop.statuses(1, "/open", user="you") == [200]


@pytest.mark.parametrize("named", ["user:{}", "user:text:{}"])
def test_entry_about_a_user_with_an_odd_id_is_not_about_one_that_chose_how_it_is_listed(shop: Shop, named: str) -> None:
    user = f"*{'0a' * 20}"
    shop.control.deny(named.format(user), lasting=True)
    assert [shop.statuses(1, "/open", user=each) for each in (user, f"text:{user}")] == [[403], [200]]


def test_denied_client_gets_the_status_of_its_entry(shop: Shop) -> None:
    shop.control.deny("198.51.100.7", status=429, lasting=True)
    answer = shop.ask("/open")
    assert (answer.status_code, answer.headers.get("Retry-After")) == (429, None)


def test_banned_client_gets_429_with_the_end_of_the_ban(shop: Shop) -> None:
    shop.control.ban("198.51.100.7", for_=90)
    answer = shop.ask("/open")
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "90")
    assert answer.get_json(force=True)["detail"] == "You are temporarily banned."


class TestExpiredEntries:
    """An entry that has ended stays in the lists until a process reads the document again."""

    @pytest.mark.parametrize(
        ("ended", "others"),
        [
            (("ban", "203.0.113.9"), [("deny", "203.0.113.0/24")]),
            (("ban", "203.0.113.0/24"), [("deny", "203.0.113.0/24")]),
            (("ban", "203.0.113.9"), [("ban", "203.0.113.0/25"), ("deny", "203.0.113.0/24")]),
            (("ban", "2001:db8::/64"), [("deny", "2001:db8::/32")]),
            (("ban", "user:evil"), [("deny", "user:evil")]),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("declared", [True, False])
    def test_expired_ban_does_not_hide_another_refusal(
        self, ended: tuple[str, str], others: list[tuple[str, str]], declared: bool
    ) -> None:
        clock, (_, last) = [100.0], others[-1]
        in_settings = [Listed(Who.parse(last), "deny", "deny")] if declared else []
        live = [*others[: -1 if declared else None], ended]
        lists = AccessLists(
            in_settings,
            [listing(*each, until=200.0 if each is ended else None) for each in live],
            resolve=listing_resolver(lambda: clock[0], 403),
        )
        address = "2001:db8::7" if ":db8:" in last else "203.0.113.9"

        def found() -> Listed:
            listed = lists.of_client(address, lambda name: [Subject(name, "evil")])
            assert listed is not None
            return listed

        assert found().ends_in == 100
        clock[0] = 200.0
        assert (found().action, str(found().who)) == ("deny", others[0][1])


@pytest.mark.parametrize(
    ("entries", "deciding"),
    [
        ([("ban", "203.0.113.9", 1.0)], None),
        ([("allow", "203.0.113.9", 1.0), ("deny", "203.0.113.0/24", None)], "203.0.113.0/24"),
        ([("deny", "user:evil", None), ("deny", "tenant:evil", 1.0)], "user:evil"),
        ([("deny", "user:evil", None), ("deny", "203.0.113.0/24", None)], "203.0.113.0/24"),
    ],
    ids=["ended ban alone", "ended allow entry", "ended denial of another subject", "address before user"],
)
def test_entry_in_force_about_a_client_decides(
    entries: list[tuple[str, str, float | None]], deciding: str | None
) -> None:
    live = [listing(kind, who, until=until) for kind, who, until in entries]
    lists = AccessLists(live=live, resolve=listing_resolver(lambda: 1.0, 403))

    found = lists.of_client("203.0.113.9", lambda name: [Subject(name, "evil")])

    assert (found and (found.action, str(found.who))) == (deciding and ("deny", deciding))


def listing(kind: str, who: str, *, until: float | None) -> Listing:
    given = {"id": "0" * 8, "since": 0.0, "kind": kind, "who": who, "until": 1e9 if kind == "ban" else None}
    given |= {} if until is None else {"until": until}
    entry = entry_from({name: value for name, value in given.items() if value is not None})
    assert isinstance(entry, Listing)
    return entry


@pytest.mark.parametrize("author", ["ann", ""])
@pytest.mark.parametrize("longer", ["deny", "ban"])
def test_ban_that_would_shorten_a_refusal_needs_force(shop: Shop, longer: str, author: str) -> None:
    if longer == "deny":
        shop.control.deny("198.51.100.7", lasting=True, author=author)
    else:
        shop.control.ban("198.51.100.7", for_="2h", author=author)

    by = " by ann" if author else ""
    with pytest.raises(NeedsForce, match=f"would end earlier than {longer} 198.51.100.7{by}, which it replaces"):
        shop.control.ban("198.51.100.7", for_="1h")
    assert [(each.kind, each.author) for each in shop.control.entries()] == [(longer, author)]
    shop.control.ban("198.51.100.7", for_="3d", force=longer == "deny")
    shop.control.deny("198.51.100.7", lasting=True)
    shop.control.allow("198.51.100.7", for_="1h")


def test_ban_of_an_allowed_client_needs_no_force(shop: Shop) -> None:
    shop.control.allow("198.51.100.7", lasting=True)
    shop.control.ban("198.51.100.7", for_="1h")
    assert shop.statuses(1, "/open") == [429]


def test_ban_ended_by_a_clock_ahead_applies_again_when_the_clock_is_right() -> None:
    shop, store = shop_on("memory://"), SkewedStore()
    follower = shop.follower
    follower.store = store
    shop.control.ban("198.51.100.7", for_="15m")

    def answered(expected: int) -> bool:
        follower.look()
        return shop.statuses(1, "/open") == [expected]

    for ahead, status in ((0, 429), (3600, 200), (0, 429)):
        store.ahead = ahead
        until(partial(answered, status))


def test_beginning_and_end_of_an_entry_are_by_the_clock_of_the_storage() -> None:
    shop = shop_on("memory://")
    shop.follower.store = store = SkewedStore()
    store.ahead = 3600

    entry = shop.control.ban("198.51.100.7", for_="15m")

    assert entry.since > time.time() + 3000
    assert entry.until == entry.since + 900


def test_subject_is_on_one_list_at_a_time(shop: Shop) -> None:
    shop.control.deny("198.51.100.7", lasting=True)
    shop.control.allow("198.51.100.7", lasting=True)
    assert [str(each) for each in shop.control.entries()] == ["allow 198.51.100.7"]


def test_undone_entry_is_the_only_one_with_its_id(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100,000 entries, two would often have the same random id, and be undone together."""
    ids = iter(["11111111", "11111111", "22222222"])
    monkeypatch.setattr(document, "token_hex", lambda _: next(ids))
    first = shop.control.deny("user:mallory", lasting=True)
    second = shop.control.deny("user:eve", lasting=True)

    assert shop.control.undo(second.id) == second

    assert shop.control.entries() == (first,)


@pytest.mark.parametrize("network", ["0.0.0.0/0", "::/0", "::ffff:0:0/96", "128.0.0.0/7"])
def test_entry_about_a_huge_network_needs_force(shop: Shop, network: str) -> None:
    with pytest.raises(NeedsForce, match="would refuse"):
        shop.control.deny(network, lasting=True)
    with pytest.raises(NeedsForce, match="would exempt"):
        shop.control.allow(network, lasting=True)
    assert not shop.denies()

    shop.control.deny(network, lasting=True, force=True)
    assert len(shop.control.entries()) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda control: control.ban("198.51.100.7", lasting=True), "a ban needs an end"),
        (lambda control: control.deny("everyone", lasting=True), "who='everyone': give a network"),
        (lambda control: control.deny("tenant:a", lasting=True), "no limiter of this app has a type called 'tenant'"),
        (lambda control: control.deny("::1", lasting=True, status=404), "status=404"),
        (lambda control: control.preview({"kind": "allow", "who": "::1", "status": 403}, lasting=True), "is for deny"),
        (lambda control: control.deny("::1", for_="soon"), "write a time as"),
        (lambda control: control.deny("::1", for_="\N{SUPERSCRIPT TWO}"), "write a time as"),
        (lambda control: control.deny("::1", for_="9" * 5000), "write a time as"),
        (lambda control: control.deny("::1", for_="1 0s"), "write a time as"),
        (lambda control: control.deny("::1", for_="2 fortnights"), "write a time as"),
        (lambda control: control.deny("::1", for_=""), "write a time as"),
        (lambda control: control.deny("::1", for_="1h" + " " * 20_000), "write a time as"),
        (lambda control: control.deny("::1", for_=0), "1 second to 400 days"),
        (lambda control: control.deny("::1", for_=10**5000), "1 second to 400 days"),
        (lambda control: control.deny("::1", lasting=True, reason="x" * 501), "reason="),
        (
            lambda control: control.undo("12345678"),
            "no entry has the id '12345678', or it was replaced or undone; those in force: there are none",
        ),
        (lambda control: control.undo("12345678", reason="\ud800"), "reason=.*give text"),
        (lambda control: control.undo("12345678", author=5), "author=5: give text"),
        (lambda control: control.import_entries('{"format": 1, "entries": []}', reason=5), "reason=5: give text"),
        (lambda control: control.import_entries('{"format": 1, "entries": []}', author="\ud800"), "author=.*give text"),
    ],
)
def test_invalid_change_of_a_list_is_an_error_and_not_stored(
    shop: Shop, change: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        change(shop.control)
    assert shop.control.entries() == ()


def test_error_about_an_unknown_id_needs_no_history(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreInStorage, "history", raising(StorageError("no permission for xrevrange")))
    for act in (shop.control.undo, shop.control.entry):
        with pytest.raises(ConfigurationError, match="no entry has the id '12345678'"):
            act("12345678")


def test_error_about_an_unknown_id_names_the_first_20_in_force(shop: Shop) -> None:
    ids = [shop.control.deny(f"10.0.0.{n}", lasting=True).id for n in range(21)]
    with pytest.raises(ConfigurationError, match=f"those in force: {', '.join(ids[:20])}$"):
        shop.control.undo("1" * 7)


@pytest.mark.parametrize(("version", "largest", "smallest"), [(4, 2, 24), (6, 5, 48)])
def test_networks_that_add_up_to_half_of_all_addresses_are_half(version: int, largest: int, smallest: int) -> None:
    networks, first = list[Network](), 0
    for prefixlen in (*range(largest, smallest + 1), smallest):
        networks.append(Network(version, first, prefixlen))
        first += networks[-1].num_addresses

    assert are_half(networks, version)
    assert not are_half([*networks[:-1], Network(10 - version, 0, 0)], version)


def test_misspelled_argument_is_an_error_of_the_method_that_was_called(shop: Shop) -> None:
    control: Any = shop.control
    with pytest.raises(TypeError, match=r"Control\.ban\(\) got an unexpected .* 'resaon'; did you mean 'reason'\?"):
        control.ban("198.51.100.7", for_=60, resaon="spam")
    with pytest.raises(TypeError, match=r"Control\.preview\(\) got an unexpected .* 'for_ever'"):
        control.preview({"kind": "deny", "who": "::1"}, for_ever=True)


def test_listing_a_user_without_a_user_loader_is_an_error(multilimit: MultiLimit, app: Flask) -> None:
    app.add_url_rule("/", "index", lambda: "ok")
    with app.app_context(), pytest.raises(ConfigurationError, match="no limiter of this app has a type called 'user'"):
        multilimit.control.allow("user:42", lasting=True)
    assert app.test_client().get("/").status_code == 200


def test_user_in_a_list_setting_without_a_user_loader_is_an_error(app: Flask) -> None:
    app.config["MULTILIMIT_ALLOW"] = ["user:42"]
    multilimit = MultiLimit(app)
    with pytest.raises(ConfigurationError, match=r'^MULTILIMIT_ALLOW: "user:42": type=.* needs to know the user'):
        multilimit.validate(app)
