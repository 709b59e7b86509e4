"""Limits written as data say what decorators say."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Any

import jsonschema
import pytest

from flask_multilimit import Ban, Concurrent, Rule
from flask_multilimit.config import Settings
from flask_multilimit.declare.data import (
    LimitsFile,
    WrittenBan,
    WrittenLimiter,
    WrittenRule,
    json_schema,
    limiter_options,
)
from flask_multilimit.declare.limiter import OPTIONS, Declaration
from flask_multilimit.engine.algorithms import ALGORITHMS


def tier() -> str:
    return "5/minute"


def tenant() -> str:
    return "acme"


RULES: list[tuple[Any, list[Rule]]] = [
    ("5/minute", [Rule(60, 5)]),
    ("5/minute; 100/hour", [Rule(60, 5), Rule(3600, 100)]),
    ({"count": 5, "time": 0.5}, [Rule(0.5, 5)]),
    (
        ["5/minute", {"count": 9, "algorithm": "gcra", "burst": 3}],
        [Rule(60, 5), Rule(60, 9, algorithm="gcra", burst=3)],
    ),
    ({"count": 9, "algorithm": "leaky_bucket", "max_delay": 2}, [Rule(60, 9, algorithm="leaky_bucket", max_delay=2)]),
    ({"count": 90, "lease": 5, "name": "much"}, [Rule(60, 90, lease=5, name="much")]),
    *[({"count": 9, "algorithm": name}, [Rule(60, 9, algorithm=name)]) for name in ALGORITHMS if name != "concurrency"],
    ("5 at once", [Concurrent(5)]),
    ({"count": 5, "timeout": 30}, [Concurrent(5, timeout=30)]),
    (["5/minute", {"count": 5, "timeout": 1.5, "name": "slots"}], [Rule(60, 5), Concurrent(5, 1.5, name="slots")]),
    ({"count": 5, "timeout": 30, "algorithm": "concurrency"}, [Concurrent(5, timeout=30)]),
    ({"count": 5, "time": 30, "algorithm": "concurrency"}, [Concurrent(5, timeout=30)]),
    ({"count": 5, "time": 30, "timeout": None}, [Rule(30, 5)]),
]


@pytest.mark.parametrize(("written", "rules"), RULES)
def test_every_rule_can_be_written(written: Any, rules: list[Rule]) -> None:
    declared = Declaration.of("here", limiter_options("here", {"rules": written}))

    assert declared.rules == tuple(rules)


@pytest.mark.parametrize(
    ("written", "type_name"),
    [
        ("ip", "ip"),
        ("User", "user"),
        ("global", "default"),
        ("user+ip", "user+ip"),
        (["user", "ip"], "user+ip"),
        ("header:X-Api-Key", "x-api-key"),
        ("test_data:tenant", "tenant"),
        (["ip", "test_data:tenant"], "tenant"),
    ],
)
def test_every_type_can_be_written(
    written: Any, type_name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setitem(sys.modules, "test_data", sys.modules[__name__])
    monkeypatch.syspath_prepend(request.path.parent)

    assert Declaration.of("here", limiter_options("here", {"type": written})).type_name == type_name


def test_data_has_every_option_of_a_decorator_and_the_fields_of_a_rule() -> None:
    assert set(WrittenLimiter.model_fields) == {*OPTIONS, "exempt"}
    assert set(WrittenRule.model_fields) == {*Rule.__match_args__, "timeout", "per", "timezone", "anchor"}
    assert {name: field.default for name, field in WrittenBan.model_fields.items()} == {
        field.name: field.default for field in fields(Ban)
    }
    assert {name: field.default for name, field in WrittenRule.model_fields.items()} == {
        **{field.name: field.default for field in fields(Rule) if field.init},
        **dict.fromkeys(("timeout", "per", "timezone", "anchor")),
    }


@pytest.mark.parametrize(
    ("written", "ban"),
    [
        ({}, Ban()),
        ({"after": 5, "within": 60}, Ban(after=5, within=60)),
        ({"time": 0.5, "factor": 1.5, "most": 7.25}, Ban(time=0.5, factor=1.5, most=7.25)),
    ],
)
def test_every_ban_can_be_written(written: dict[str, Any], ban: Ban) -> None:
    declared = Declaration.of("here", limiter_options("here", {"type": "ip", "ban": written}))

    assert declared.ban == ban


def test_a_file_has_every_setting_of_limits() -> None:
    of_file = set(LimitsFile.model_fields) - {"schema_"}

    assert of_file < set(Settings.model_fields)
    assert {name for name in Settings.model_fields if name.endswith("limits")} < of_file


class TestSchema:
    VALIDATOR = jsonschema.Draft202012Validator(json_schema())

    def test_the_schema_is_valid_json_schema(self) -> None:
        self.VALIDATOR.check_schema(json_schema())

    @pytest.mark.parametrize("written", [written for written, _ in RULES])
    def test_takes_whatever_can_be_written(self, written: Any) -> None:
        self.VALIDATOR.validate({"limits": {"a": {"rules": written, "type": "ip", "charge_when": [401, "5xx"]}}})

    @pytest.mark.parametrize(
        "written",
        [
            {"limits": {"a": {"typ": "ip"}}},
            {"limits": {"a": {"rules": [{"count": 0}]}}},
            {"limits": {"a": {"rules": {"algorithm": "bucket"}}}},
            {"limits": {"a": {"rules": {"timeout": 30, "time": 60}}}},
            {"limits": {"a": {"rules": {"timeout": 30, "algorithm": "gcra"}}}},
            {"limits": {"a": {"rules": {"timeout": 0.5}}}},
            {"limits": {"a": []}},
            {"limits": {"a": {"charge_when": [99]}}},
            {"nonsense": 1},
        ],
    )
    def test_refuses_what_is_wrong(self, written: Any) -> None:
        assert not self.VALIDATOR.is_valid(written)

    def test_describes_every_option(self) -> None:
        definitions = json_schema()["$defs"]

        assert all("description" in option for option in definitions["WrittenLimiter"]["properties"].values())
        assert all("description" in option for option in definitions["WrittenRule"]["properties"].values())
