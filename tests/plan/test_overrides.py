"""Overrides change rules and hits without a plan, and a preview shows the change."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from flask import Flask

from flask_multilimit import IP, Ban, Calendar, Concurrent, ConfigurationError, MultiLimit, Rule, rate_limiter
from flask_multilimit.control.entries import Override
from flask_multilimit.declare.addresses import Who
from flask_multilimit.declare.data import WrittenRule
from flask_multilimit.declare.subjects import Subject
from flask_multilimit.engine import Hits, hits_for
from flask_multilimit.engine.hits import BanHit
from flask_multilimit.plan.changes import differences
from flask_multilimit.plan.endpoint import revised
from flask_multilimit.plan.overrides import Overrides, SpecialSubjects, change_rules, fitting, merged
from flask_multilimit.serve.gate import gate_of
from plan.written import override, overrides
from support.asking import view


@pytest.mark.parametrize(
    "endpoint", ["api.v1.show", "api.v1", "api", "api.*", "*.show", "*", "api.v?.show", "api.v[12].show"]
)
def test_override_applies_to_an_endpoint_its_blueprints_and_patterns(endpoint: str) -> None:
    entry = override(endpoint, off=True)
    assert overrides(entry).at("api.v1.show").changes == (entry,)


@pytest.mark.parametrize(
    "endpoint", ["show", "v1", "ap", "api.v2.*", "api.v1.show.more", "api.v??.show", "api.v[23].show"]
)
def test_override_does_not_apply_to_other_endpoints(endpoint: str) -> None:
    assert overrides(override(endpoint, off=True)).at("api.v1.show").changes == ()


ANN, NET, SMALL = (override(who=who, times=2) for who in ("user:ann", "203.0.113.0/24", "203.0.113.7"))


@pytest.mark.parametrize(
    ("subject", "found"),
    [
        (Subject("user", "ann"), ANN),
        (Subject("user", "bob"), None),
        (Subject("tenant", "ann"), None),
        (Subject("ip", "203.0.113.9"), NET),
        (Subject("ip", "203.0.113.7"), SMALL),
        (Subject("ip", "198.51.100.7"), None),
        (Subject("user+ip", json.dumps([["user", "ann"], ["ip", "203.0.113.9"]])), ANN),
        (Subject("user+ip", json.dumps([["user", "bob"], ["ip", "203.0.113.9"]])), NET),
        (Subject("user+ip", json.dumps([["user", "bob"], ["ip", "198.51.100.7"]])), None),
        (Subject("user", json.dumps([["user", "ann"], ["ip", "203.0.113.9"]])), None),
        (Subject("user+user", json.dumps([["user", "bob"], ["user", "ann"]])), None),  # of two callables
    ],
    ids=str,
)
def test_special_subject_is_found_by_itself_its_network_or_a_part(subject: Subject, found: object) -> None:
    known = [(Who.parse(str(each.who)), each) for each in (ANN, NET, SMALL)]
    special = SpecialSubjects(known, has_parts="+" in subject.type)
    assert special.find(subject) is found


def test_overrides_of_a_rule_apply_one_after_another() -> None:
    rules = [("a", Rule(60, 10)), ("b", Rule(3600, 50))]

    doubled = change_rules(rules, override("show", rule="a", rules="20/minute"))
    halved = change_rules(doubled, override("show", limiter="ip", times=0.5))

    assert halved == (("a", Rule(60, 10)), ("b", Rule(3600, 25)))
    assert change_rules(rules, override("show", rule="a", off=True)) == tuple(rules[1:])


def test_factor_leaves_a_count_of_at_least_1_and_no_lease_above_it() -> None:
    rules = [
        ("a", Rule(60, 10, lease=5)),
        ("b", Rule(60, 10, algorithm="token_bucket", burst=3)),
        ("c", Calendar(5, "month", anchor=15)),
    ]
    changed = change_rules(rules, override("show", limiter="ip", times=0.1))
    assert changed == (
        ("a", Rule(60, 1)),
        ("b", Rule(60, 1, algorithm="token_bucket", burst=1)),
        ("c", Calendar(1, "month", anchor=15)),
    )


@pytest.mark.parametrize(
    ("rule", "written", "changed"),
    [
        (Concurrent(5, 30, name="slots"), "9 at once", Concurrent(9, 30, name="slots")),
        (Rule(30, 5, algorithm="concurrency"), "9 at once", Concurrent(9, 30)),
        (Concurrent(5, 30), "9/minute", Rule(60, 9)),
        (Rule(30, 5, algorithm="concurrency"), "9/minute", Rule(60, 9)),
        (Rule(60, 9), "5 at once", Concurrent(5)),
        (Concurrent(5, 30), WrittenRule(timeout=90), Concurrent(5, 90)),
        (Rule(60, 9), WrittenRule(count=5, timeout=90), Concurrent(5, 90)),
        (Rule(60, 9, lease=5), "5/minute", Rule(60, 5, lease=5)),
        (Rule(60, 9, lease=5), "4/minute", Rule(60, 4)),
        (Rule(60, 9, lease=5), WrittenRule(count=4), Rule(60, 4)),
        (Rule(60, 9, algorithm="token_bucket", burst=20), WrittenRule(algorithm="sliding_window"), Rule(60, 9)),
        (Rule(60, 9, lease=5, name="all"), WrittenRule(per="month"), Calendar(9, "month", name="all")),
        (Calendar(9, "month", anchor=15, name="all"), "5/minute", Rule(60, 5, name="all")),
        (Calendar(9, "month", anchor=15), WrittenRule(time=60), Rule(60, 9)),
        (
            Calendar(9, "month", timezone="Europe/Berlin", anchor=15),
            WrittenRule(count=5),
            Calendar(5, "month", timezone="Europe/Berlin", anchor=15),
        ),
        (
            Calendar(9, "month", timezone="Europe/Berlin", anchor=15),
            WrittenRule(per="week"),
            Calendar(9, "week", timezone="Europe/Berlin"),
        ),
    ],
    ids=str,
)
def test_override_keeps_fields_of_a_rule_that_it_does_not_set(
    rule: Rule, written: str | WrittenRule, changed: Rule
) -> None:
    assert merged(rule, written) == changed


@pytest.mark.parametrize(
    ("rule", "given"),
    [
        (Rule(60, 9, algorithm="token_bucket", burst=20), Rule(60, 5, algorithm="token_bucket")),
        (Rule(60, 9, algorithm="leaky_bucket", max_delay=5), Rule(60, 5, algorithm="leaky_bucket", burst=2)),
        (Rule(60, 9, lease=5), Rule(60, 9)),
        (Calendar(9, "month", timezone="Europe/Berlin", anchor=15), Calendar(5, "month")),
        (Concurrent(9, 30), Concurrent(5)),
    ],
    ids=str,
)
def test_rule_that_code_gives_keeps_nothing_of_the_one_in_whose_place_it_is(rule: Rule, given: Rule) -> None:
    assert merged(rule, WrittenRule.model_validate(given)) == given


@pytest.mark.parametrize("unfit", ["", "a", "b", "d", "ab", "bcd", "abcd"])
def test_only_overrides_that_do_not_fit_are_left_out(unfit: str) -> None:
    entries = [override(name, off=True).model_copy(update={"id": name}) for name in "abcd"]

    def make(tried: Sequence[Override]) -> None:
        if any(each.id in unfit for each in tried):
            raise ConfigurationError("does not fit")

    kept, errors = fitting(entries, make)

    assert [each.id for each in kept] == [name for name in "abcd" if name not in unfit]
    assert set(errors) == set(unfit)


def test_overrides_for_many_clients_are_tried_few_times_beside_one_for_all_that_does_not_fit() -> None:
    """Each check may try them, if its limit is known only when it is called."""
    made = [override("a", off=True), *(override(who=Who.parse(f"user:{number}"), times=2) for number in range(1000))]
    entries = [each.model_copy(update={"id": f"{number:08x}"}) for number, each in enumerate(made)]
    tried = list[int]()

    def make(some: Sequence[Override]) -> None:
        tried.append(len(some))
        if any(each.endpoint == "a" for each in some):
            raise ConfigurationError("does not fit")

    kept, _ = fitting(entries, make)

    assert len(kept) == 1000
    assert sum(tried) < 3 * len(entries)


@pytest.mark.parametrize("by_address", [True, False])
def test_clients_without_a_login_are_counted_alike_where_some_overrides_do_not_fit(by_address: bool) -> None:
    everything = Overrides([override(who=Who.parse("192.0.2.0/24"), times=2)], anonymous_by_address=by_address)
    user_limit = rate_limiter("2/minute", type="user").at("here")

    found = [each.at("show").special_for(user_limit) for each in (everything, everything.only(everything.entries))]

    assert [each is not None for each in found] == [by_address, by_address]


# Hits without a plan


def mail(rules: str = "2/minute", **options: Any) -> Hits:
    return hits_for(rules, scope="mail", subject="user:42", **options)


def present(hits: Hits | None) -> Hits:
    assert hits is not None
    return hits


def counts(hits: Hits | None) -> list[int]:
    return [hit.rule.count for hit in present(hits)]


def test_hits_without_an_override_stay_the_same_object() -> None:
    hits = mail()
    assert revised(hits, overrides(override("other", off=True))) is hits


def test_ban_watches_only_keys_that_an_override_leaves() -> None:
    hits = mail("2/minute; 50/hour", ban=Ban(after=3, within=60, time=600))
    hour, ban = present(revised(hits, overrides(override("mail", rule="user-60s", off=True))))
    assert isinstance(ban, BanHit)
    assert ban.watches == (hour.key,)


def test_check_without_an_estimate_needs_a_free_unit_under_an_override_too() -> None:
    (doubled,) = present(revised(mail(cost=0, settle=True), overrides(override("mail", times=2))))
    assert (doubled.rule.count, doubled.cost, doubled.needed) == (4, 0, 1)


def test_changed_hits_are_cached_for_the_same_overrides() -> None:
    hits, entry = mail(), override("mail", times=2)
    doubled = overrides(entry)

    first = revised(hits, doubled)

    assert revised(hits, doubled) is first
    assert revised(hits, overrides(override("mail", times=3))) is not first


def test_override_that_fits_hits_applies_beside_one_that_does_not() -> None:
    fits, clashes = (
        override("mail", rule="user-60s", times=2),
        override("mail", rule="user-3600s", rules={"timeout": 9}),
    )
    assert counts(present(revised(mail("2/minute; 3/hour"), overrides(fits, clashes)))) == [4, 3]


# Texts of a preview


def lines_before_and_after(app: Flask, **change: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The limits at the endpoint "show", before the override and after it."""
    plans = gate_of(app).plans
    plans.ensure()
    (found,) = differences(plans, plans.changed(overrides(override("show", **change))))
    assert found.endpoint == "show"
    return found.before, found.after


@pytest.mark.parametrize("shadow", [False, True])
def test_preview_shows_a_ban_after_its_rules(app: Flask, *, shadow: bool) -> None:
    MultiLimit(app)
    ban = Ban(after=3, within=600, time=3600)
    app.add_url_rule("/", "show", rate_limiter(type=IP, rules="2/minute", ban=ban, shadow=shadow)(view()))

    before, after = lines_before_and_after(app, limiter="ip", off=True)

    end = " (shadow)" if shadow else ""
    assert before == (f"ip-60s: 2 per minute{end}", f"ip-ban: {ban}{end}")
    assert after == ()


def test_preview_shows_overrides_of_dynamic_rules(app: Flask) -> None:
    MultiLimit(app)
    app.add_url_rule("/", "show", rate_limiter(type=IP, rules=lambda: "2/minute", name="tier")(view()))

    before, after = lines_before_and_after(app, limiter="tier", times=2)

    assert before == ("tier: rules by request",)
    assert after == ("tier: rules by request (limiter tier at show: 2 times the count)",)


def test_preview_of_a_change_for_one_subject_names_each_limiter_that_counts_it(app: Flask) -> None:
    MultiLimit(app)
    limited = rate_limiter(type=IP, rules="5/minute", name="calls")(view())
    app.add_url_rule("/", "show", rate_limiter(type=IP, rules="20/hour", name="units")(limited))

    _, after = lines_before_and_after(app, who="203.0.113.7", times=2)

    own = [line for line in after if "203.0.113.7" in line]
    assert sorted(line.split()[0] for line in own) == ["calls", "units"]


class GrowsWhileRead(dict[Any, Any]):
    """A dict to which another thread adds a key whenever this one reads an item."""

    def items(self) -> Any:
        for item in super().items():
            self[len(self)] = {}
            yield item


def test_overrides_apply_while_another_thread_calls_a_function_for_the_first_time(app: Flask) -> None:
    multilimit = MultiLimit(app)
    send = rate_limiter("1/minute")(view())
    with app.app_context():
        send()
        services = vars(gate_of(app).plans._services)
        services["data"] = GrowsWhileRead(services["data"])

        multilimit.control.override("*", times=2, lasting=True, force=True)

        send()
