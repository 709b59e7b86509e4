"""flask multilimit limits: who is limited by what, and where that comes from."""

from pathlib import Path

import pytest

from operate.cli.conftest import SHOP, Command

SCREEN = """\
    NAME             TYPE     RULE             ALGORITHM       OPTIONS

api.items  POST /api/items/new
           GET /api/items
  from MULTILIMIT_APPLICATION_LIMITS
    application-60s  default  5000 per minute  sliding_window  scope application
  from blueprint "api"
    user-3600s       user     10 per hour      sliding_window  waits 500 ms
  from MULTILIMIT_LIMITS["api.*"]
    ip-60s           ip       100 per minute   sliding_window
  from shop:items
    default-3600s    default  1000 per hour    sliding_window  lease 2; only
                                                               POST; cost 2

api.search  GET /api/search/<path:query>
  from MULTILIMIT_APPLICATION_LIMITS
    application-60s  default  5000 per minute  sliding_window  scope application
  from blueprint "api"
    user-3600s       user     10 per hour      sliding_window  waits 500 ms
  from MULTILIMIT_LIMITS["api.*"]
    ip-60s           ip       100 per minute   sliding_window
  from shop:search
    user-ip-3600s    user+ip  30 per hour      token_bucket    SHADOW: never
                                                               refuses; burst 5
    api_key          api_key  by request

login  GET, POST /login
  from MULTILIMIT_APPLICATION_LIMITS
    application-60s  default  5000 per minute  sliding_window  scope application
  from shop:login
    ip-60s           ip       2 per minute     sliding_window  only POST

secret  POST /secret
  from MULTILIMIT_APPLICATION_LIMITS
    application-60s  default  5000 per minute  sliding_window  scope application
  from shop:secret
    ip-60s           ip       1 per minute     sliding_window  bans for 60 min,
                                                               x 2 up to 24 h
                                                               after 2 refusals
                                                               in 10 min

send  POST /send
  from MULTILIMIT_APPLICATION_LIMITS
    application-60s  default  5000 per minute  sliding_window  scope application
  from shop:send
    ip-60s           ip       1 per minute     sliding_window

update  GET /update
  from MULTILIMIT_APPLICATION_LIMITS
    application-60s  default  5000 per minute  sliding_window  scope application
  from shop:update
    ip-20s           ip       3 per 20 s       sliding_window
    ip-3600s         ip       10 per hour      sliding_window
    default-86400s   default  1000 per day     sliding_window  charge_when

unmatched  requests that match no route (404) or no method of it (405)
  from MULTILIMIT_APPLICATION_LIMITS
    application-60s  default  5000 per minute  sliding_window  scope application
  from MULTILIMIT_UNMATCHED_LIMITS
    ip-60s           ip       20 per minute    sliding_window

WITHOUT LIMITS: 2 endpoints
  health  GET  /health                  exempt
  static  GET  /static/<path:filename>  exempt
"""


def test_limits_command_lists_every_endpoint_with_and_without_limits(on_memory: Command) -> None:
    run = on_memory("limits")
    assert run.code == 0
    assert run.out == SCREEN


def test_limits_json_has_unmatched_requests_apart_and_marks_exempt_endpoints(on_memory: Command) -> None:
    listed = on_memory("limits", "--json").json

    endpoints = {endpoint["endpoint"]: endpoint for endpoint in listed["endpoints"]}
    assert sorted(endpoints) == ["api.items", "api.search", "health", "login", "secret", "send", "static", "update"]
    assert [name for name, endpoint in endpoints.items() if endpoint["exempt"]] == ["health", "static"]
    assert endpoints["update"]["routes"] == [{"path": "/update", "methods": ["GET"]}]
    by_request = endpoints["api.search"]["limits"][-1]
    assert (by_request["by_request"], by_request["count"]) == (True, None)
    assert [limit["from"] for limit in listed["unmatched"]] == [
        "MULTILIMIT_APPLICATION_LIMITS",
        "MULTILIMIT_UNMATCHED_LIMITS",
    ]


def test_limits_json_shows_the_numbers_of_a_ban(on_memory: Command) -> None:
    (endpoint,) = on_memory("limits", "--json", "--endpoint", "secret").json["endpoints"]
    assert endpoint["limits"][-1]["ban"] == {"after": 2, "within": 600, "time": 3600, "factor": 2, "most": 86_400}


def test_limit_in_json_has_exactly_these_fields(on_memory: Command) -> None:
    (endpoint,) = (each for each in on_memory("limits", "--json").json["endpoints"] if each["endpoint"] == "api.items")

    unset = ("declared", "traffic", "burst", "max_delay", "per", "timezone", "anchor", "ban", "key")
    no = ("changed", "shadow", "exempt_when", "charge_when", "by_request", "reserve")
    assert endpoint["limits"][-1] == {
        **dict.fromkeys(unset),
        **dict.fromkeys(no, False),
        "limiter": "default",
        "parts": ["default"],
        "text": "1000 per hour",
        "options": ["lease 2", "only POST", "cost 2"],
        "entries": [],
        "entries_in_all": 0,
        "name": "default-3600s",
        "count": 1000,
        "time": 3600,
        "algorithm": "sliding_window",
        "lease": 2,
        "type": "default",
        "from": "shop:items",
        "scope": "api.items",
        "hash_tag": "scope",
        "methods": ["POST"],
        "cost": 2,
        "wait": 0,
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--endpoint", "update"], ["update"]),
        (["--endpoint", "api.*"], ["api.items", "api.search"]),
        (["--path", "/api/items*"], ["api.items"]),
        (["--blueprint", "api"], ["api.items", "api.search"]),
        (["--unlimited"], ["health", "static"]),
        (["--unlimited", "--path", "/he*"], ["health"]),
        (["--type", "user"], ["api.items", "api.search"]),
        (["--type", "USER+ip"], ["api.search"]),
        (["--type", "ip+user"], ["api.search"]),
        (["--type", "Global", "--endpoint", "send"], ["send"]),
        (["--type", "api_key", "--endpoint", "api.*"], ["api.search"]),
        (["--endpoint", "nothing"], []),
    ],
)
def test_limits_can_be_filtered(on_memory: Command, arguments: list[str], expected: list[str]) -> None:
    listed = on_memory("limits", *arguments, "--json").json
    assert [endpoint["endpoint"] for endpoint in listed["endpoints"]] == expected
    assert listed["unmatched"] == []


def test_type_filter_shows_only_limits_that_count_that_type(on_memory: Command) -> None:
    listed = on_memory("limits", "--type", "ip", "--json").json
    limits = [limit for endpoint in listed["endpoints"] for limit in (*endpoint["limits"], *listed["unmatched"])]
    assert {limit["type"] for limit in limits} == {"ip", "user+ip"}
    assert all(endpoint["limits"] for endpoint in listed["endpoints"])


def test_type_filter_finds_parts_of_combined_types(tmp_path: Path) -> None:
    app = tmp_path / "documents.py"
    app.write_text(
        "from flask import Flask\nfrom flask_multilimit import IP, MultiLimit, rate_limiter\napp = Flask('documents')\n"
        "MultiLimit(app)\ndef document(): return ''\ndef page(): return ''\n"
        "@app.get('/one')\n@rate_limiter(type=(IP, document), name='reads')\ndef one(): return ''\n"
        "@app.get('/two')\n@rate_limiter(type=(document, page), name='turns')\ndef two(): return ''\n"
    )
    on_documents = Command(app, "memory://")

    def found(type_name: str) -> list[str]:
        listed = on_documents("limits", "--type", type_name, "--json").json
        return [each["endpoint"] for each in listed["endpoints"]]

    assert (found("ip"), found("ip+reads"), found("page"), found("turns")) == (["one"], ["one"], ["two"], ["two"])


def test_unknown_type_is_an_error_and_unused_type_matches_nothing(on_memory: Command) -> None:
    run = on_memory("limits", "--type", "api_kye")

    assert run.code == 1
    assert 'no limiter has the type "api_kye"; known are api_key, default, ip, user' in run.err_on_one_line
    assert on_memory("limits", "--type", "user", "--endpoint", "send").out == "No endpoint matches.\n"
    assert on_memory("limits", "--type", "ip", "--unlimited").code == 2


def test_limits_command_says_when_nothing_matches(on_memory: Command) -> None:
    assert on_memory("limits", "--endpoint", "nothing").out == "No endpoint matches.\n"
    assert 'no blueprint is called "apis"; the app has api' in on_memory("limits", "--blueprint", "apis").err


def test_limits_command_uses_a_wider_screen(on_memory: Command) -> None:
    assert "SHADOW: never refuses; burst 5\n" in on_memory("limits", columns=132).out


@pytest.mark.slow
def test_wrong_declaration_is_an_error_without_traceback(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "from flask import Flask\n"
        "from flask_multilimit import MultiLimit, USER, rate_limiter\n"
        "app = Flask(__name__)\n"
        "MultiLimit(app)\n"
        "app.get('/')(rate_limiter(type=USER, rules='1/minute')(lambda: 'ok'))\n"
    )
    run = Command(tmp_path / "wrong.py", "memory://").alone("limits")

    assert run.code == 1
    assert "Traceback" not in run.err
    assert "type=LimitType.USER needs to know the user; pass user_loader=" in run.err


def test_limits_command_lists_endpoints_with_the_same_limits_together(tmp_path: Path) -> None:
    app = tmp_path / "pages.py"
    app.write_text(
        "from flask import Flask\nfrom flask_multilimit import IP, Ban, MultiLimit, rate_limiter\n"
        "app = Flask('pages')\napp.config['MULTILIMIT_DEFAULT_LIMITS'] = ['200/minute', '2000/hour']\nMultiLimit(app)\n"
        "for number in range(50): app.add_url_rule(f'/{number}', f'a.page.of.a.long.name.{number}', lambda: '')\n"
        "@app.get('/login')\n"
        "@rate_limiter(type=IP, rules='10/minute', scope='authentication', ban=Ban(after=20), cost=2)\n"
        "def login(): return ''\n",
    )

    shown = Command(app, "memory://")("limits").out

    assert shown.count("default-60s") == shown.count("default-3600s") == 1
    assert len(shown.splitlines()) < 80
    assert {"authentication;", "sliding_window", "ip-60s"} <= set(shown.split())


def test_limits_say_that_changes_are_not_known_while_the_storage_is_down(tmp_path: Path) -> None:
    run = Command(SHOP, f"unix://{tmp_path}/none")("limits")

    assert run.code == 0
    assert "changes made at run time are not known" in run.err_on_one_line
