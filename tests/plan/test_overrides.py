"""Which overrides apply to a scope and to a subject, and what they make of rules."""

from __future__ import annotations

import json

import pytest

from flask_multilimit import Concurrent, Rule
from flask_multilimit.declare.addresses import Who
from flask_multilimit.declare.data import WrittenRule
from flask_multilimit.declare.subjects import Subject
from flask_multilimit.plan.overrides import SpecialSubjects, change_rules, merged
from plan.written import override, overrides


@pytest.mark.parametrize("endpoint", ["api.v1.show", "api.v1", "api", "api.*", "*.show", "*"])
def test_an_override_applies_to_an_endpoint_a_blueprint_around_it_and_a_pattern(endpoint: str) -> None:
    entry = override(endpoint, off=True)

    assert overrides(entry).at("api.v1.show").changes == (entry,)


@pytest.mark.parametrize("endpoint", ["show", "v1", "ap", "api.v2.*", "api.v1.show.more"])
def test_an_override_applies_to_no_other_endpoint(endpoint: str) -> None:
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
    ],
)
def test_a_subject_is_found_by_itself_its_network_or_a_part_of_it(subject: Subject, found: object) -> None:
    special = SpecialSubjects((Who.parse(str(each.who)), each) for each in (ANN, NET, SMALL))

    assert special.find(subject) is found


def test_overrides_of_a_rule_apply_one_after_the_other() -> None:
    rules = [("a", Rule(60, 10)), ("b", Rule(3600, 50))]

    changed = change_rules(
        rules,
        [override("show", rule="a", rules="20/minute"), override("show", limiter="ip", times=0.5)],
    )

    assert changed == (("a", Rule(60, 10)), ("b", Rule(3600, 25)))
    assert change_rules(rules, [override("show", rule="a", off=True)]) == tuple(rules[1:])


def test_a_factor_leaves_at_least_one_and_no_lease_above_the_count() -> None:
    rules = [("a", Rule(60, 10, lease=5)), ("b", Rule(60, 10, algorithm="token_bucket", burst=3))]

    changed = change_rules(rules, [override("show", limiter="ip", times=0.1)])

    assert changed == (("a", Rule(60, 1)), ("b", Rule(60, 1, algorithm="token_bucket", burst=1)))


def test_text_changes_the_slots_and_leaves_the_timeout() -> None:
    changed = merged(Concurrent(5, 30, name="slots"), "9 at once")

    assert changed == Concurrent(9, 30, name="slots")


def test_a_rule_holds_slots_by_its_algorithm_whoever_made_it() -> None:
    slots = Rule(30, 5, algorithm="concurrency")

    assert merged(slots, "9 at once") == Concurrent(9, 30)
    assert merged(slots, "9/minute") == Rule(60, 9)


def test_a_table_changes_the_timeout() -> None:
    assert merged(Concurrent(5, 30), WrittenRule(timeout=90)) == Concurrent(5, 90)
    assert merged(Rule(60, 9), WrittenRule(count=5, timeout=90)) == Concurrent(5, 90)


def test_a_rate_may_take_the_place_of_slots_and_the_other_way_round() -> None:
    assert merged(Concurrent(5, 30), "9/minute") == Rule(60, 9)
    assert merged(Rule(60, 9), "5 at once") == Concurrent(5)
