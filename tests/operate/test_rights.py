"""The rights of the two server users in the documentation are sufficient, on a real server."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask

from flask_multilimit.engine.storage.redis.failures import RIGHTS, RIGHTS_OF_OPERATORS, RIGHTS_OF_WORKERS
from operate.cli.conftest import SHOP, Command
from operate.dashboard.conftest import ROOT, browser_of, made
from support.changes import control_of
from support.folders import DOCS
from support.servers import Binary, Server
from support.waiting import until

pytestmark = pytest.mark.slow

WORKER = f"{RIGHTS} {RIGHTS_OF_WORKERS}"
OPERATOR = f"{WORKER} {RIGHTS_OF_OPERATORS}"
CLIENT = "203.0.113.7"

COMMANDS = [
    "bans",
    "ban 203.0.113.9 --for 1h --yes",
    "check update --ip 203.0.113.7",
    "config",
    "deny 203.0.113.8 --lasting --yes",
    "doctor",
    "entries",
    "history",
    "keys",
    "limits",
    "reset update --ip 203.0.113.7 --yes",
    "reset --ip 203.0.113.7 --all --yes",
    "set update ip-20s 50/minute --lasting --yes",
    "top --once",
    "unban 203.0.113.9 --yes",
    "why 203.0.113.7",
]
PAGES = ["", "limits", "lists", "history", f"subject?who={CLIENT}", "change?endpoint=show", "api/now", "api/lists"]


@pytest.fixture(scope="module")
def server(server_binaries: dict[str, Binary]) -> Iterator[Server]:
    with Server(next(iter(server_binaries.values())), tcp=True) as server:
        yield server


@pytest.fixture
def admin(server: Server) -> Any:
    client = server.client()
    client.flushall()
    acl(client, "LOG", "RESET")
    return client


def acl(client: Any, *arguments: str) -> Any:
    return client.execute_command("ACL", *arguments)


def refused_commands(client: Any) -> list[Any]:
    """The commands that the server refused, except the greeting of redis-py, which is optional."""
    return [each["object"] for each in client.acl_log() if each["object"] != "client|setinfo"]


def uri_of(server: Server, client: Any, name: str, rights: str) -> str:
    acl(client, "SETUSER", name, "reset", "on", ">secret", "~rate_limit:*", *rights.split())
    return server.tcp_url.replace("://", f"://{name}:secret@", 1)


def served(app: Flask) -> Flask:
    browser = app.test_client()
    assert [browser.get("/", environ_base={"REMOTE_ADDR": CLIENT}).status_code for _ in range(3)] == [200, 200, 429]
    return app


def test_worker_user_may_do_everything_a_worker_does(server: Server, admin: Any) -> None:
    app = served(made(uri_of(server, admin, "worker", WORKER)))
    until(lambda: any("traffic" in key for key in map(str, admin.keys())))
    control_of(app).deny("198.51.100.1", lasting=True)
    assert refused_commands(admin) == []

    server.kill()
    server.restart()
    again: Any = server.client()
    uri_of(server, again, "worker", WORKER)

    until(lambda: again.exists("rate_limit:{control}:document"))


def test_worker_user_may_reset_a_subject_everywhere_with_the_rights_that_the_page_adds(
    server: Server, admin: Any
) -> None:
    (further,) = re.findall(
        r"and `(.*)`,\s+if they \[reset a subject", (DOCS / "how-to" / "redis-access.md").read_text()
    )
    app = served(made(uri_of(server, admin, "worker", f"{WORKER} {further}")))
    with app.app_context():
        assert app.extensions["multilimit"].reset(subject=f"ip:{CLIENT}", reach="everywhere") > 0
    assert refused_commands(admin) == []


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_operator_user_may_run_every_command(server: Server, admin: Any, command: str) -> None:
    run = Command(SHOP, uri_of(server, admin, "operator", OPERATOR))
    done = run(*command.split())
    assert (done.code, refused_commands(admin)) == (0, []), done.err


def test_operator_user_may_see_every_page_and_change_limits(server: Server, admin: Any) -> None:
    app = served(made(uri_of(server, admin, "operator", OPERATOR)))
    ada = browser_of("ada", app)

    assert {page: ada.get(ROOT + page).status_code for page in PAGES} == dict.fromkeys(PAGES, 200)
    control_of(app).deny("198.51.100.1", lasting=True)
    assert "198.51.100.1" in ada.get(ROOT + "history").text
    assert refused_commands(admin) == []


def test_page_that_lacks_a_right_does_not_say_storage_is_down(server: Server, admin: Any) -> None:
    app = served(made(uri_of(server, admin, "worker", f"{WORKER} -xrevrange")))

    page = browser_of("ada", app).get(f"{ROOT}history").text

    assert "xrevrange" in page
    assert "does not answer" not in page
    assert "Meanwhile" not in page


def test_command_names_the_right_it_lacks(server: Server, admin: Any) -> None:
    run = Command(SHOP, uri_of(server, admin, "worker", RIGHTS))("keys")
    assert run.code == 1
    assert "the rate limit storage refused a command" in run.err
    assert run.err.rstrip().endswith("(the server's user needs the right +scan)")


def test_top_works_without_the_right_to_list_keys(server: Server, admin: Any) -> None:
    run = Command(SHOP, uri_of(server, admin, "worker", WORKER))("top", "--once")
    assert run.code == 0
    assert "Slots in use are not known" in run.err
    assert "+scan" in run.err
