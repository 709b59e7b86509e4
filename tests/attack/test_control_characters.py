"""Hostile names of clients, colleagues and developers: no screen, page, log or message obeys control characters."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from attack.house import House, control_characters_in, house
from flask_multilimit.compat.flask_limiter import Limiter as Bridge
from flask_multilimit.engine import ConfigurationError, StorageError
from flask_multilimit.operate.command_line import COMMANDS
from support.doubles import raising
from support.servers import Server

EVIL = "\nFORGED\r\x1b[2J\x1b[8m\x9b2J\x85FORGED\u2028FORGED\u202e\u2066\u200b"
ENDPOINT = f"pay{EVIL}"
LOG = "access.log"

ARGUMENTS: dict[str, list[tuple[str, ...]]] = {
    "alerts": [("--own",)],
    "allow": [(f"who:{EVIL}", "--reason", EVIL, "--author", EVIL, "--lasting", "--yes"), (EVIL, "--for", EVIL)],
    "ban": [(f"user:{EVIL}", "--for", "1h", "--reason", EVIL, "--yes")],
    "check": [
        (ENDPOINT, "--subject", f"said:{EVIL}", "--user", EVIL),
        (EVIL, "--ip", EVIL),
        (ENDPOINT, "--method", EVIL),
    ],
    "deny": [(f"user:{EVIL}2", "--lasting", "--reason", EVIL, "--yes"), (EVIL, "--lasting", "--yes")],
    "keys": [(), ("--prefix", EVIL)],
    "limits": [(), ("--endpoint", EVIL), ("--type", EVIL), ("--blueprint", EVIL)],
    "record": [(), ("--for", EVIL)],
    "reset": [
        ("--subject", f"said:{EVIL}", "--all", "--dry-run"),
        (ENDPOINT, "--user", EVIL, "--yes"),
        (EVIL, "--user", EVIL),
    ],
    "set": [
        (ENDPOINT, "user-60s", "9/minute", "--for", "1h", "--reason", EVIL, "--author", EVIL, "--yes"),
        (ENDPOINT, "--who", f"user:{EVIL}", "--rules", "9/minute", "--lasting", "--yes"),
        (EVIL, EVIL, EVIL, "--lasting"),
    ],
    "simulate": [(LOG,), (LOG, "--subject", f"said={EVIL}"), (EVIL,), (LOG, "--format", EVIL)],
    "suggest": [(LOG,), (LOG, "--type", EVIL), (LOG, "--endpoint", ENDPOINT)],
    "top": [("--once",)],
    "unban": [(f"user:{EVIL}3", "--yes"), (EVIL, "--dry-run")],
    "unset": [(EVIL, "--yes")],
    "why": [(f"user:{EVIL}",), (EVIL,)],
}
"""The arguments of commands; other commands get none."""


@pytest.fixture
def hostile(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """A house where every name is hostile, with traffic, bans, entries and a history."""
    made = house(server.url, ENDPOINT)
    monkeypatch.chdir(tmp_path)
    line = f'203.0.113.7 - u%s [22/Nov/2026:03:15:0%d +0000] "GET /0?x=%s HTTP/1.1" 200 1 "-" "{EVIL[:1]}"\n'
    (tmp_path / LOG).write_text("".join(line.replace("\n", "", 1) % (EVIL[1:], n, EVIL[1:]) for n in range(9)))
    for _ in range(6):
        made.client().get("/0", query_string={"said": EVIL, "user": EVIL}, headers={"User-Agent": EVIL.strip()[9:]})
    for name in ("ban", "set", "deny"):
        for arguments in ARGUMENTS[name]:
            made.command(name, *arguments)
    made.flush()
    yield made
    made.close()


def require_safe(text: str) -> None:
    assert not control_characters_in(text)
    assert not [line for line in text.splitlines() if line.startswith("FORGED")]  # a cell may be wrapped there


def test_commands_print_no_control_characters_or_forged_lines(hostile: House) -> None:
    seen = ""
    for name in COMMANDS:
        for arguments in ARGUMENTS.get(name, [()]):
            for more in ((), ("--json",)):
                output = hostile.command(name, *arguments, *more)
                assert "\x1b[8m" not in output, (name, arguments)
                require_safe(re.sub(r"\x1b\[[\d;]*m", "", output))
                seen += output

    assert seen.count("FORGED") > 50  # the hostile text was shown, escaped


def test_pages_show_no_control_characters(hostile: House) -> None:
    operator, seen = hostile.operator(), ""
    query = dict.fromkeys(("who", "endpoint", "q", "sort", "kind", "done", "undone", "minutes", "rule", "lang"), EVIL)
    for rule in hostile.app.url_map.iter_rules():
        if not rule.endpoint.startswith("multilimit.") or "GET" not in (rule.methods or ()) or rule.arguments:
            continue
        for given in ({}, query, {"who": f"user:{EVIL}"}, {"endpoint": ENDPOINT}):
            response = operator.get(rule.rule, query_string=given)
            assert response.status_code < 500, (rule.rule, given)
            page = response.get_data(as_text=True)
            assert not control_characters_in(re.sub(r"<[^>]*>", "", page))  # a new line is a space there
            seen += page

    assert seen.count("FORGED") > 10


def test_log_has_no_control_characters_or_forged_lines(hostile: House) -> None:
    from flask_multilimit.signals import limits_checked

    with limits_checked.connected_to(raising(ValueError(EVIL)), hostile.app):
        hostile.client().get("/0", query_string={"said": EVIL, "user": f"{EVIL}3"})
    hostile.flush()

    log = hostile.log.getvalue()
    require_safe(log)
    assert log.count("FORGED") > 3
    assert "ValueError" in log


def test_command_error_has_no_control_characters_or_forged_lines(hostile: House) -> None:
    fails = raising(click.ClickException(EVIL))
    hostile.app.cli.commands["multilimit"].add_command(click.command("fails")(fails))  # type: ignore[attr-defined]

    output = hostile.command("fails")

    require_safe(output)
    assert "FORGED" in output


@pytest.mark.parametrize("kind", [ConfigurationError, StorageError])
def test_exception_text_has_no_control_characters_or_forged_lines(kind: type[Exception]) -> None:
    text = str(kind(f"no limiter of {EVIL}"))
    require_safe(text)
    assert "FORGED" in text


def test_bridge_log_has_no_control_characters_or_forged_lines(caplog: pytest.LogCaptureFixture) -> None:
    from flask import Flask

    app = Flask("shop")
    limiter = Bridge(lambda: EVIL, app=app)
    app.add_url_rule("/", ENDPOINT, limiter.limit("1/minute")(lambda: "ok"))
    caplog.set_level("DEBUG")

    for _ in range(3):
        app.test_client().get("/")

    require_safe("\n".join(record.getMessage() for record in caplog.records))
    assert "FORGED" in caplog.text
