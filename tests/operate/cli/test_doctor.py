"""flask multilimit doctor: what is wrong, with its remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flask_multilimit.engine.storage.redis.failures import RIGHTS, RIGHTS_OF_OPERATORS, RIGHTS_OF_WORKERS
from operate.cli.conftest import SHOP, Command, Run
from support.sentinel import SERVICE, SentinelServer
from support.servers import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from flask.testing import FlaskClient

    from support.servers import Binary

PASSWORD = "hunter2"


@pytest.fixture(scope="module")
def strict_server(server_binaries: dict[str, Binary]) -> Iterator[Server]:
    """One with a password."""
    with Server(next(iter(server_binaries.values())), tcp=True, options=["--requirepass", PASSWORD]) as server:
        yield server


def with_password(server: Server, password: str = PASSWORD, *, user: str = "") -> str:
    return server.tcp_url.replace("redis://", f"redis://{user}:{password}@")


def finding(run: Run, name: str) -> dict[str, str]:
    (found,) = (found for found in run.json["findings"] if found["name"] == name)
    assert isinstance(found, dict)
    return found


def test_a_healthy_server(on_server: Command, server: Server) -> None:
    run = on_server("doctor")

    assert run.code == 0
    kind, version = server.binary.name.split("-", 1)
    told = " ".join(run.out.split())  # where a line ends depends on how long the path of the socket is
    assert f"ok storage {kind.capitalize()} {version} at unix://" in told
    assert "ok script Loads and runs: 7 rules checked, charged and reset," in told
    assert run.out.endswith("\nNo problems found.\n")
    assert server.client().dbsize() == 0


def test_doctor_prints_json(on_server: Command) -> None:
    run = on_server("doctor", "--json")

    assert run.json["schema"] == 2
    assert run.json["healthy"] is True
    assert [found["name"] for found in run.json["findings"]] == [
        "declarations",
        "addresses",
        "users",
        "traffic",
        "control",
        "storage",
        "latency",
        "clock",
        "eviction",
        "lazy freeing",
        "persistence",
        "script",
    ]
    assert all(set(found) == {"name", "level", "text", "remedy"} for found in run.json["findings"])


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, "ok       traffic        Counted in each process"),
        ({"FLASK_MULTILIMIT_TRAFFIC": "false"}, "hint     traffic        MULTILIMIT_TRAFFIC is False"),
        ({"UWSGI_PROCESSES": "4"}, "warning  traffic        uWSGI seems to run no threads"),
        ({"UWSGI_PROCESSES": "4", "UWSGI_ENABLE_THREADS": "1"}, "ok       traffic        Counted"),
        ({"UWSGI_ENABLE_THREADS": "false"}, "warning  traffic        uWSGI seems to run no threads"),
    ],
)
def test_whether_traffic_is_counted(on_server: Command, environment: dict[str, str], told: str) -> None:
    on_server.environment.update(environment)

    assert told in on_server("doctor").out


def test_no_server_is_wrong(tmp_path: Path) -> None:
    run = Command(SHOP, f"unix://{tmp_path}/none")("doctor")

    assert run.code == 1
    assert "WRONG    storage        No answer from" in run.out
    assert "> Start the server, or correct the storage URI." in run.out
    assert run.out.endswith("\n1 problem found.\n")


def test_a_password_is_never_shown(strict_server: Server) -> None:
    right = Command(SHOP, with_password(strict_server))
    wrong = Command(SHOP, with_password(strict_server, "hunter2but-wrong"))
    in_query = Command(SHOP, f"{strict_server.tcp_url}?password={PASSWORD}")
    nonsense = Command(SHOP, f"http://u:{PASSWORD}@h/?password={PASSWORD}")

    runs = [right("doctor"), in_query("doctor"), wrong("doctor"), wrong("keys")]
    nonsense_run = nonsense("doctor", crash=True)

    assert [run.code for run in runs] == [0, 0, 1, 1]
    assert "The user or the password in the storage URI is wrong." in " ".join(runs[2].out.split())
    for run in (*runs, nonsense_run):
        assert PASSWORD not in run.out + run.err


def test_a_user_that_may_not_run_scripts(strict_server: Server) -> None:
    with strict_server.client(password=PASSWORD) as client:
        client.acl_setuser("reader", enabled=True, passwords=["+pw"], categories=["+@all", "-@scripting"], keys=["*"])

    run = Command(SHOP, with_password(strict_server, "pw", user="reader"))("doctor", "--json")

    assert run.code == 1
    found = finding(run, "script")
    assert found["level"] == "wrong"
    assert "The server's user needs the right +eval" in found["remedy"]


@pytest.fixture
def as_limiter(strict_server: Server) -> Callable[[str], Command]:
    """The commands, as a user of the server with these rights."""

    def as_limiter(rights: str) -> Command:
        with strict_server.client(password=PASSWORD) as client:
            acl = ["SETUSER", "limiter", "reset", "on", ">pw", "~rate_limit:*", *rights.split()]
            client.execute_command("ACL", *acl)
        return Command(SHOP, with_password(strict_server, "pw", user="limiter"))

    return as_limiter


def test_a_user_that_may_only_limit_is_none_the_worse(as_limiter: Callable[[str], Command]) -> None:
    run = as_limiter(RIGHTS)("doctor", "--json")

    assert run.code == 0
    assert finding(run, "script")["level"] == "ok"
    assert finding(run, "storage")["level"] == "hint"
    assert "does not let this user look at it" in finding(run, "storage")["text"]
    assert "+ping +info +config|get" in finding(run, "storage")["remedy"]


def test_a_user_that_may_not_follow_changes_is_told_what_it_needs(as_limiter: Callable[[str], Command]) -> None:
    found = finding(as_limiter(RIGHTS)("doctor", "--json"), "control")

    assert (found["level"], "may not read changes" in found["text"]) == ("hint", True)
    assert RIGHTS_OF_WORKERS in found["remedy"]
    assert finding(as_limiter(f"{RIGHTS} {RIGHTS_OF_WORKERS}")("doctor", "--json"), "control")["level"] == "ok"


@pytest.mark.parametrize("right", ["hget", "hset", "xadd", "xrevrange", "scan", "pttl", "info"])
def test_a_right_that_some_tool_lacks_is_named_with_what_it_is_for(
    as_limiter: Callable[[str], Command], right: str
) -> None:
    run = as_limiter(f"{RIGHTS} {RIGHTS_OF_WORKERS} {RIGHTS_OF_OPERATORS} -{right}")("doctor", "--json")

    assert f"The server's user lacks +{right}: to " in finding(run, "rights")["text"]


def test_who_lacks_no_right_is_told_of_none(as_limiter: Callable[[str], Command]) -> None:
    run = as_limiter(f"{RIGHTS} {RIGHTS_OF_WORKERS} {RIGHTS_OF_OPERATORS}")("doctor", "--json")

    assert run.code == 0
    assert "rights" not in run.out


def test_with_the_rights_that_this_names_all_is_looked_at(as_limiter: Callable[[str], Command]) -> None:
    run = as_limiter(f"{RIGHTS} +ping +info +config|get")("doctor", "--json")

    assert run.code == 0
    assert finding(run, "storage")["level"] == "ok"
    assert finding(run, "latency")


def test_a_mistake_is_told_with_its_remedy(as_limiter: Callable[[str], Command]) -> None:
    run = as_limiter(RIGHTS)("keys")

    assert run.code == 1
    assert "the rate limit storage refused a command" in run.err
    assert run.err.rstrip().endswith("(the server's user needs the right +scan)")


def test_top_needs_no_right_to_list_keys(as_limiter: Callable[[str], Command]) -> None:
    run = as_limiter(f"{RIGHTS} {RIGHTS_OF_WORKERS}")("top", "--once")

    assert run.code == 0
    assert "Slots in use are not known" in run.err
    assert "+scan" in run.err


@pytest.mark.parametrize(
    ("policy", "level", "text"),
    [
        ("allkeys-lru", "warning", "every key may be dropped"),
        ("volatile-ttl", "warning", "every key with a TTL, as all of ours have, may be dropped"),
        ("noeviction", "ok", "refuses to charge rather than forget"),
    ],
)
def test_doctor_names_a_server_that_evicts(strict_server: Server, policy: str, level: str, text: str) -> None:
    with strict_server.client(password=PASSWORD) as client:
        client.config_set("maxmemory", "50mb")
        client.config_set("maxmemory-policy", policy)

    run = Command(SHOP, with_password(strict_server))("doctor", "--json")

    assert run.code == 0
    assert finding(run, "eviction")["level"] == level
    assert text in finding(run, "eviction")["text"]


def test_doctor_names_a_replica(server_binaries: dict[str, Binary], server: Server) -> None:
    binary = next(iter(server_binaries.values()))
    host, port = server.tcp_url.removeprefix("redis://").split(":")
    with Server(binary, options=["--replicaof", host, port]) as replica:
        run = Command(SHOP, replica.url)("doctor", "--json")

    assert run.code == 1
    assert finding(run, "role")["level"] == "wrong"
    assert "primary" in finding(run, "role")["remedy"]


def test_doctor_names_limits_without_a_share_in_an_outage(on_server: Command) -> None:
    on_server.environment["FLASK_MULTILIMIT_WORKERS"] = "30"

    found = finding(on_server("doctor", "--json"), "shares")

    assert found["level"] == "hint"
    assert "ip-60s at login (2 per 60s)" in found["text"]
    on_server.environment["FLASK_MULTILIMIT_WORKERS"] = "1"
    assert not [each for each in on_server("doctor", "--json").json["findings"] if each["name"] == "shares"]


def test_memory_with_several_workers(on_memory: Command) -> None:
    alone = on_memory("doctor", "--json")
    on_memory.environment["WEB_CONCURRENCY"] = "4"
    several = on_memory("doctor", "--json")

    assert finding(alone, "storage")["level"] == "hint"
    assert finding(several, "storage")["level"] == "warning"
    assert "each of them admits the whole of every limit" in finding(several, "storage")["text"]
    assert several.code == 0


def test_a_platform_with_a_proxy_and_no_proxyfix(on_memory: Command) -> None:
    on_memory.environment["DYNO"] = "web.1"

    found = finding(on_memory("doctor", "--json"), "addresses")

    assert found["level"] == "warning"
    assert "DYNO (Heroku) is set" in found["text"]
    assert "ProxyFix(app.wsgi_app, x_for=1)" in found["remedy"]


APP = """
from flask import Flask
from flask_multilimit import IP, USER, MultiLimit, rate_limiter
from werkzeug.middleware.proxy_fix import ProxyFix

app = Flask(__name__)
MultiLimit(app)
"""


def test_proxyfix_is_seen(tmp_path: Path) -> None:
    (tmp_path / "behind.py").write_text(
        f"{APP}app.wsgi_app = ProxyFix(app.wsgi_app, x_for=2)\n"
        "app.get('/')(rate_limiter(type=IP, rules='1/minute')(lambda: 'ok'))\n"
    )

    found = finding(Command(tmp_path / "behind.py", "memory://")("doctor", "--json"), "addresses")

    assert found["level"] == "ok"
    assert "from 2 proxies" in found["text"]


@pytest.mark.parametrize(("user", "level"), [(None, "warning"), ("ann", "ok")])
def test_user_limits_that_have_seen_no_user(
    on_server: Command, shop: FlaskClient, user: str | None, level: str
) -> None:
    shop.get("/api/items")
    shop.get("/api/items", headers={"X-User": user} if user else {})

    found = finding(on_server("doctor", "--json"), "users")

    assert found["level"] == level
    assert (found["remedy"] or "").startswith("If users were logged in") == (user is None)


def test_user_limits_and_no_way_to_know_the_user(tmp_path: Path) -> None:
    (tmp_path / "users.py").write_text(f"{APP}app.get('/')(rate_limiter(type=USER, rules='1/minute')(lambda: 'ok'))\n")

    run = Command(tmp_path / "users.py", "memory://")("doctor", "--json")

    assert run.code == 1
    assert "pass user_loader= to MultiLimit" in finding(run, "declarations")["text"]


def test_doctor_warns_where_limits_are_switched_off(on_memory: Command) -> None:
    on_memory.environment["FLASK_MULTILIMIT_ENABLED"] = "false"

    assert finding(on_memory("doctor", "--json"), "enabled")["level"] == "warning"


def test_endpoints_that_are_exempt_are_no_hint(on_memory: Command) -> None:
    found = finding(on_memory("doctor", "--json"), "declarations")

    assert (found["level"], found["text"]) == ("ok", "6 endpoints limited, 2 exempt, none else without limits.")


def test_a_primary_is_called_by_the_name_that_sentinels_know(server: Server) -> None:
    with SentinelServer(server.binary, server.port, quorum=2) as sentinel:
        uri = f"redis+sentinel://127.0.0.1:{sentinel.port}/{SERVICE}"

        run = Command(SHOP, uri)("doctor", "--json")

    assert run.code == 0
    assert f"at the primary of '{SERVICE}'" in finding(run, "storage")["text"]
    assert f"127.0.0.1:{sentinel.port}" in finding(run, "storage")["text"]
