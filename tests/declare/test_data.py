"""Limits in data mean the same as in decorators, and an error names the file, the path, the value and the remedy."""

import json
import sys
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from flask_multilimit import Ban, Calendar, Concurrent, ConfigurationError, LimitType, Rule
from flask_multilimit.config import Settings
from flask_multilimit.declare.data import (
    CALLABLES,
    LimitsFile,
    WrittenBan,
    WrittenLimiter,
    WrittenRule,
    json_schema,
    limiter_options,
    read_limits,
    validated,
)
from flask_multilimit.declare.limiter import OPTIONS, Declaration
from flask_multilimit.declare.written import InvalidData
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
    ({"count": 5, "per": "year", "anchor": "04-06"}, [Calendar(5, "year", anchor="04-06")]),
]


@pytest.mark.parametrize(("written", "rules"), RULES, ids=[str(written) for written, _ in RULES])
def test_data_can_declare_every_kind_of_rule(written: Any, rules: list[Rule]) -> None:
    declared = Declaration.of("here", limiter_options("here", {"rules": written}))
    assert declared.rules == tuple(rules)


@pytest.mark.parametrize("rules", [rules for _, rules in RULES], ids=str)
def test_data_that_code_makes_can_contain_every_kind_of_rule_as_an_object(rules: list[Rule]) -> None:
    for given in (rules, tuple(rules), *(rules if len(rules) == 1 else ())):
        written = validated(WrittenLimiter, "an override", {"rules": given})
        read = WrittenLimiter.model_validate_json(written.model_dump_json(exclude_unset=True))
        assert read.options["rules"] == tuple(rules)


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
def test_data_can_declare_every_type(
    written: Any, type_name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setitem(sys.modules, "test_data", sys.modules[__name__])
    monkeypatch.syspath_prepend(request.path.parent)
    assert Declaration.of("here", limiter_options("here", {"type": written})).type_name == type_name


def test_given_name_replaces_that_of_a_type_written_as_text() -> None:
    assert Declaration.of("here", {"type": "header:X-Api-Key", "name": "key"}).type_name == "key"


def test_data_has_all_options_of_limiters_rules_and_bans() -> None:
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
    ids=str,
)
def test_data_can_declare_a_ban(written: dict[str, Any], ban: Ban) -> None:
    declared = Declaration.of("here", limiter_options("here", {"type": "ip", "ban": written}))
    assert declared.ban == ban


def test_file_has_every_setting_of_limits() -> None:
    of_file = set(LimitsFile.model_fields) - {"schema_"}
    assert of_file < set(Settings.model_fields)
    assert {name for name in Settings.model_fields if name.endswith("limits")} < of_file


class TestSchema:
    VALIDATOR = jsonschema.Draft202012Validator(json_schema())

    def test_schema_is_valid_json_schema(self) -> None:
        self.VALIDATOR.check_schema(json_schema())

    @pytest.mark.parametrize("written", [written for written, _ in RULES], ids=str)
    def test_schema_accepts_every_kind_of_rule(self, written: Any) -> None:
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
            {"default_limits": []},
            {"limits": {"a": {"charge_when": [99]}}},
            {"nonsense": 1},
        ],
        ids=str,
    )
    def test_schema_rejects_invalid_limits(self, written: Any) -> None:
        assert not self.VALIDATOR.is_valid(written)

    def test_schema_accepts_limits_that_are_off(self) -> None:
        self.VALIDATOR.validate({"limits": {"metrics": "off"}})

    def test_schema_describes_every_option(self) -> None:
        definitions = json_schema()["$defs"]
        assert all("description" in option for option in definitions["WrittenLimiter"]["properties"].values())
        assert all("description" in option for option in definitions["WrittenRule"]["properties"].values())


@pytest.mark.parametrize(
    "written",
    [
        *({option: "module:tier"} for option in ("type", "rules", "settle", *CALLABLES)),
        *({"type": type_} for type_ in ("ip+module:tier", " module:tier", ["ip", "header:X + module:tier"])),
        {"reserve": {"parts": {"critical": 0.2}, "priority": "module:tier"}},
    ],
    ids=str,
)
def test_override_that_names_a_callable_is_an_error(written: dict[str, Any]) -> None:
    option = next(iter(written))
    with pytest.raises(ConfigurationError, match=f"{option}.*=.*names a callable, which only settings and files can"):
        validated(WrittenLimiter, "an override", written, imports=False)


@pytest.mark.parametrize(
    ("written", "mistake"),
    [
        ({"rules": {"per": "month", "anchor": 1.5}}, "rules.anchor=1.5: give the number of a day, such as 15, or"),
        ({"reserve": {"parts": {"critical": 0.2}}}, "reserve.priority: is missing; give it"),
        ({"rules": {"per": "day", "timezone": "\ud800"}}, r"rules.timezone='\ud800': give valid Unicode"),
    ],
    ids=str,
)
def test_mistake_in_data_has_its_own_path_and_value(written: dict[str, Any], mistake: str) -> None:
    with pytest.raises(InvalidData) as raised:
        validated(WrittenLimiter, "limits.json", written)
    assert [str(each).startswith(mistake) for each in raised.value.mistakes] == [True], raised.value


@pytest.mark.parametrize("module", ["colorsys", "header"])
def test_override_never_imports_a_module(module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "header.py").write_text("from colorsys import rgb_to_hsv")
    texts = (f"{module}:rgb_to_hsv", f"ip+{module}:rgb_to_hsv", f"{module}:rgb_to_hsv.x ")
    for option in WrittenLimiter.model_fields:
        for given in (*texts, *([text] for text in texts), *({"priority": text} for text in texts)):
            with suppress(ConfigurationError):
                validated(WrittenLimiter, "an override", {option: given}, imports=False)

    assert module not in sys.modules


def test_data_can_contain_python_objects() -> None:
    rules = [Rule(60, 5), {"count": 7, "time": 5}, "9/hour"]
    written = {"type": LimitType.IP, "rules": rules, "charge_when": [401], "ban": {"after": 5}}
    declared = Declaration.of("here", limiter_options("here", written))
    assert (declared.type, declared.ban) == (LimitType.IP, Ban(after=5))
    assert declared.rules == (Rule(60, 5), Rule(5, 7), Rule(3600, 9))
    assert callable(declared.charge_when)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("name", ["limits.json", "limits.toml"])
def test_toml_and_json_files_give_the_same_limits(name: str, encoding: str, tmp_path: Path) -> None:
    texts = {
        "limits.json": '{"limits": {"api.*": [{"type": "ip", "rules": "5/day"}],"health": "off"}, "deny": ["::1"]}',
        "limits.toml": 'deny = ["::1"]\n[limits]\nhealth = "off"\n[[limits."api.*"]]\ntype = "ip"\nrules = "5/day"',
    }
    file = tmp_path / name
    file.write_text(texts[name], encoding=encoding)

    read = read_limits(file)

    assert read.limits == {"api.*": (WrittenLimiter(type="ip", rules="5/day"),), "health": "off"}
    assert read.deny == ("::1",)


EMPTY = [("toml", b""), ("toml", b" \n"), ("toml", b"# limits\n"), ("json", b""), ("json", b"\n"), ("json", b"{}")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("limits.json", b"{", "is not valid JSON"),
        ("limits.toml", b"[", "is not valid TOML"),
        ("limits.toml", b"\xff", "is not valid TOML"),
        ("limits.json", b"[" * 100_000, "is not valid JSON"),
        ("limits.toml", b"a = " + b"[" * 100_000, "is not valid TOML"),
        ("limits.json", b"[]", "limits.json: "),
        ("limits.json", b'{"limits": {"a": "1/day", "a": "9/day"}}', "limits.json: 'a' is given twice; join them"),
        ("limits.json", b'{"limits": {"a": "1/day"}, "limits": {}}', "limits.json: 'limits' is given twice; join"),
        ("limits.toml", b'[limits]\na = "1/day"\na = "9/day"', "is not valid TOML"),
        *((f"limits.{suffix}", text, f"limits.{suffix}: is empty; write limits") for suffix, text in EMPTY),
        ("limits.yaml", b"", "ends in .json or .toml"),
        ("limits.toml", None, r"limits\.toml: cannot be read: No such file"),
    ],
)
def test_file_that_cannot_be_read_is_an_error(name: str, content: bytes | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ConfigurationError, match=message):
        read_limits(file)


WRONG: list[tuple[Any, str]] = [
    ({"limits": {"api.*": "3/mnute"}}, """limits."api.*"='3/mnute': .*unknown unit 'mnute'.*did you mean 'minute'"""),
    (
        {"limits": {"a": ["3/minute", {"rules": [{"cont": 3}]}]}},
        r"limits.a\[1\].rules\[0\].cont: .*did you mean 'count'",
    ),
    ({"limits": {"a": {"rules": {"count": 0}}}}, r"limits.a.rules.count=0: .*greater than or equal to 1"),
    (
        {"limits": {"a": {"rules": {"count": 5, "time": 60, "timeout": 30}}}},
        r"limits.a.rules={.*}: time and timeout: give only one of them: time for a rate, timeout",
    ),
    (
        {"limits": {"a": {"rules": [{"count": 5, "timeout": 30, "algorithm": "gcra"}]}}},
        r"limits.a.rules\[0\]={.*}: timeout is for concurrency limits, not for gcra; leave one of them out",
    ),
    ({"limits": {"a": {"rules": {"count": 5, "timeout": 30, "burst": 2}}}}, r"rules={.*}: Rule\(.*burst works with"),
    ({"limits": {"a": {"rules": {"count": 5, "timeout": 0.5}}}}, "limits.a.rules.timeout=0.5: .*greater than or equal"),
    ({"limits": {"a": {"rules": {"count": 5, "timeout": "30"}}}}, "limits.a.rules.timeout='30': give a number$"),
    ({"limits": {"a": {"timeout": 30}}}, 'limits.a.timeout: .*it is one of a rule: "rules": {"timeout": ...}'),
    ({"limits": {"a": {"typ": "ip"}}}, "limits.a.typ: is not an option; did you mean 'type'"),
    (
        {"limits": {"a": {"algorithm": "gcra"}}},
        'limits.a.algorithm: .*it is one of a rule: "rules": {"algorithm": ...}',
    ),
    (
        {"default_limits": {"count": 5, "time": 60}},
        'default_limits.count: .*"rules": {"count": .*"rules": {"time": ...}',
    ),
    ({"limits": {"a": {"after": 3}}}, 'limits.a.after: is not an option; it is one of a ban: "ban": {"after": ...}'),
    (
        {"limits": {"a": {"rules": [{"type": "ip"}]}}},
        r"rules\[0\].type: .*it is one of a limiter: put it beside rules$",
    ),
    ({"limits": {"a": {"ban": {"cost": 2}}}}, "ban.cost: is not an option; it is one of a limiter: put it beside ban$"),
    ({"limits": {"rules": {"algorithm": "gcra"}}}, 'limits.rules.algorithm: .*it is one of a rule: "rules": {"alg'),
    ({"type": "ip"}, 'type: is not an option; it is one of a limiter: "default_limits": {"type": ...}'),
    ({"limits": {"a": {"pear": 60}}}, "limits.a.pear: is not an option$"),
    ({"limits": {"a": {"cost": "5"}}}, "limits.a.cost='5': give a whole number, 0 or more, or \"module:function\"$"),
    ({"limits": {"a": {"charge_when": "6xx"}}}, r"charge_when='6xx': give statuses such as \[401, 403\] or \"4xx\""),
    ({"limits": {"a": {"on_rejected": "refuse"}}}, "on_rejected='refuse': name a callable as \"module:function\"$"),
    ({"limits": {"a": {"key": "{}"}}}, "limits.a.key='{}': 1 to 32 printable ASCII characters, no spaces or braces$"),
    ({"limits": {"a": {"name": "a b"}}}, "limits.a.name='a b': 1 to 20 characters, a letter and then"),
    ({"limits": {"a": {"rules": {"count": "5"}}}}, "limits.a.rules.count='5': give a whole number$"),
    ({"limits": {"a": {"shadow": "yes"}}}, "limits.a.shadow='yes': give true or false$"),
    ({"limits": {"a": {"type": "ipp"}}}, "limits.a.type='ipp': unknown type 'ipp'; did you mean 'ip'"),
    ({"limits": {"a": {"type": "nosuch:thing"}}}, "limits.a=.*type='nosuch:thing': cannot be imported"),
    ({"limits": {"a": {"type": "sys:path"}}}, "type='sys:path': is not a callable"),
    ({"limits": {"a": {"charge_when": [99]}}}, r"limits.a.charge_when\[0\]=99"),
    ({"limits": {"a": {"charge_when": ["6xx"]}}}, r"limits.a.charge_when\[0\]='6xx'"),
    ({"limits": {"a": {"exempt": ["10.0.0"]}}}, "limits.a.exempt=.*network '10.0.0'"),
    ({"limits": {"a": {"exempt": ["::1"], "exempt_when": "sys:exit"}}}, "give only one of them"),
    ({"limits": {"a": {"cost": -1}}}, "limits.a.cost=-1"),
    ({"limits": {"a": {"methods": "POST"}}}, "limits.a.methods='POST': give a list"),
    ({"limits": {"a": []}}, r"limits.a=\[\]: give at least one"),
    ({"limits": {"a": {}}}, r"limits.a={}: give at least one option"),
    ({"default_limits": {}}, r"default_limits={}: give at least one option"),
    ({"application_limits": []}, r"application_limits=\[\]: give at least one"),
    ({"default_limits": []}, r"default_limits=\[\]: give at least one"),
    ({"unmatched_limits": []}, r"unmatched_limits=\[\]: give at least one"),
    ({"limits": {"a": 5}}, "limits.a=5: give text such as"),
    ({"limits": "5/minute"}, "limits='5/minute'"),
    ({"application_limits": "off"}, "application_limits='off'"),
    ({"default_limit": "5/minute"}, "default_limit: is not an option; did you mean 'default_limits'"),
    ({"deny": [5]}, r"deny\[0\]=5"),
    ({"limits": {"a": {"type": "ip", "ban": {"after": 0}}}}, "limits.a.ban.after=0: .*greater than or equal to 1"),
    ({"limits": {"a": {"type": "ip", "ban": {"tim": 60}}}}, "limits.a.ban.tim: is not an option; did you mean 'time'"),
    ({"limits": {"a": {"type": "ip", "ban": {"time": 9, "most": 5}}}}, "limits.a.ban=.*: most=5.* is less than time=9"),
    ({"limits": {"a": {"type": "ip", "ban": 3}}}, "limits.a.ban=3"),
    ({"limits": {"a": {"ban": {}}}}, "limits.a=.*: ban: a limiter of type DEFAULT counts everyone as one subject"),
]


@pytest.mark.parametrize(("written", "message"), WRONG)
def test_error_in_a_file_names_file_path_value_and_remedy(written: Any, message: str, tmp_path: Path) -> None:
    file = tmp_path / "limits.json"
    file.write_text(json.dumps(written))
    with pytest.raises(ConfigurationError, match=f"^limits.json: .*{message}"):
        read_limits(file)
