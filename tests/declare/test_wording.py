"""What is wrong in data names the file, the path, the value and the remedy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from flask_multilimit import ConfigurationError
from flask_multilimit.declare.data import read_limits

if TYPE_CHECKING:
    from pathlib import Path

WRONG: list[tuple[Any, str]] = [
    ({"limits": {"api.*": "3/mnute"}}, """limits."api.*"='3/mnute': .*unknown unit 'mnute'.*did you mean 'minute'"""),
    (
        {"limits": {"a": ["3/minute", {"rules": [{"cont": 3}]}]}},
        r"limits.a\[1\].rules\[0\].cont: .*did you mean 'count'",
    ),
    ({"limits": {"a": {"rules": {"count": 0}}}}, r"limits.a.rules.count=0: .*greater than or equal to 1"),
    (
        {"limits": {"a": {"rules": {"count": 5, "time": 60, "timeout": 30}}}},
        r"limits.a.rules={.*}: time and timeout: give one of them: time for a rate, or timeout",
    ),
    (
        {"limits": {"a": {"rules": [{"count": 5, "timeout": 30, "algorithm": "gcra"}]}}},
        r"limits.a.rules\[0\]={.*}: timeout is for what runs at once, not for gcra; leave one of them out",
    ),
    ({"limits": {"a": {"rules": {"count": 5, "timeout": 30, "burst": 2}}}}, "rules=.*burst is taken by .*leave it out"),
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
    ({"limits": {"a": {"key": "{}"}}}, "limits.a.key='{}': 1 to 32 printable ASCII characters, no blanks, no braces$"),
    ({"limits": {"a": {"name": "a b"}}}, "limits.a.name='a b': 1 to 20 characters, a letter and then"),
    ({"limits": {"a": {"rules": {"count": "5"}}}}, "limits.a.rules.count='5': give a whole number$"),
    ({"limits": {"a": {"shadow": "yes"}}}, "limits.a.shadow='yes': give true or false$"),
    ({"limits": {"a": {"type": "ipp"}}}, "limits.a.type='ipp': unknown type 'ipp'; did you mean 'ip'"),
    ({"limits": {"a": {"type": "nosuch:thing"}}}, "limits.a=.*'nosuch:thing' cannot be imported"),
    ({"limits": {"a": {"type": "sys:path"}}}, "'sys:path' is not a callable"),
    ({"limits": {"a": {"charge_when": [99]}}}, r"limits.a.charge_when\[0\]=99"),
    ({"limits": {"a": {"charge_when": ["6xx"]}}}, r"limits.a.charge_when\[0\]='6xx'"),
    ({"limits": {"a": {"exempt": ["10.0.0"]}}}, "limits.a.exempt=.*network '10.0.0'"),
    ({"limits": {"a": {"exempt": ["::1"], "exempt_when": "sys:exit"}}}, "give one of them"),
    ({"limits": {"a": {"cost": -1}}}, "limits.a.cost=-1"),
    ({"limits": {"a": {"methods": "POST"}}}, "limits.a.methods='POST': give a list"),
    ({"limits": {"a": []}}, r"limits.a=\[\]: give at least one"),
    ({"limits": {"a": 5}}, "limits.a=5: give text such as"),
    ({"limits": "5/minute"}, "limits='5/minute'"),
    ({"application_limits": "off"}, "application_limits='off'"),
    ({"default_limit": "5/minute"}, "default_limit: is not an option; did you mean 'default_limits'"),
    ({"deny": [5]}, r"deny\[0\]=5"),
    ({"limits": {"a": {"type": "ip", "ban": {"after": 0}}}}, "limits.a.ban.after=0: .*greater than or equal to 1"),
    ({"limits": {"a": {"type": "ip", "ban": {"tim": 60}}}}, "limits.a.ban.tim: is not an option; did you mean 'time'"),
    ({"limits": {"a": {"type": "ip", "ban": {"time": 9, "most": 5}}}}, "limits.a.ban=.*: most=5.* is less than time=9"),
    ({"limits": {"a": {"type": "ip", "ban": 3}}}, "limits.a.ban=3"),
    ({"limits": {"a": {"ban": {}}}}, "limits.a=.*: ban: a limiter of type DEFAULT has everyone as one subject"),
]


@pytest.mark.parametrize(("written", "message"), WRONG)
def test_a_mistake_in_a_file_names_the_file_the_path_the_value_and_the_remedy(
    written: Any, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "limits.json"
    file.write_text(json.dumps(written))

    with pytest.raises(ConfigurationError, match=f"^limits.json: .*{message}"):
        read_limits(file)
