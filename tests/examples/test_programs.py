"""The other examples, run as their first lines say."""

from __future__ import annotations

import re
import subprocess
import sys
from hashlib import blake2b
from typing import TYPE_CHECKING

import pytest

from support.folders import ROOT
from support.processes import EXAMPLES, flask_run

if TYPE_CHECKING:
    from support.servers import Server


def test_every_example_tells_how_to_run_it() -> None:
    for example in EXAMPLES.glob("*.py"):
        command = rf"^    (flask --app examples/{example.stem} run|python examples/{example.name})"
        assert re.search(command, example.read_text(), re.MULTILINE), example


def rejection(**environment: str) -> str:
    """The line that ``log_rejections`` writes for the third request."""
    given = {f"FLASK_REJECTIONS_{name.upper()}": value for name, value in environment.items()}
    with flask_run("log_rejections", environment=given) as program:
        assert [program.get().status for _ in range(3)] == [200, 200, 429]
        (line,) = (line for line in program.log.splitlines() if " rejections refused " in line)
    return line


def test_rejections_are_logged_under_pseudonyms_that_a_key_decides() -> None:
    line = rejection(key="of this test")

    expected = blake2b(b"127.0.0.1", key=b"of this test", digest_size=6).hexdigest()
    assert re.search(
        rf"endpoint=index rules=ip-60s retry_after=(60|59)\.\d+ subjects=ip:{expected} check=[\w-]+$", line
    )
    assert "127.0.0.1" not in line


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, r"ip:[0-9a-f]{12}"),
        ({"subjects": "none"}, r"ip:-"),
        ({"subjects": "plain"}, r"ip:'127\.0\.0\.1'"),
    ],
    ids=["default", "none", "plain"],
)
def test_how_subjects_are_logged_is_a_choice(environment: dict[str, str], expected: str) -> None:
    assert re.search(f" subjects={expected} check=", rejection(**environment))


def run_service(*arguments: str) -> list[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / "service_without_flask.py"), *arguments]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return finished.stdout.splitlines()


def test_the_service_limits_without_flask(server: Server) -> None:
    expected = [
        "ann: allowed, 2 left",
        "ann: allowed, 1 left",
        "bob: allowed, 2 left",
        "ann: allowed, 0 left",
        "ann: refused, try again in 60 s",
    ]

    assert run_service() == expected
    with server.client() as client:
        client.flushall()
    assert run_service(server.url) == expected


def test_the_service_uses_nothing_of_flask() -> None:
    source = (EXAMPLES / "service_without_flask.py").read_text()

    imported = re.findall(r"^(?:from|import) (\S+)", source, re.MULTILINE)
    assert set(imported) == {"__future__", "sys", "flask_multilimit.engine"}
