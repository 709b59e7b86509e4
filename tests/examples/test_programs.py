"""The other examples, run as their first lines say."""

import json
import re
import subprocess
import sys
import time
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.folders import DOCS, EXAMPLES, ROOT
from support.processes import flask_run
from support.servers import Server


def test_every_example_says_how_to_run_it() -> None:
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


def test_rejections_are_logged_under_keyed_pseudonyms() -> None:
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
def test_setting_chooses_how_subjects_are_logged(environment: dict[str, str], expected: str) -> None:
    assert re.search(f" subjects={expected} check=", rejection(**environment))


def run_service(*arguments: str) -> list[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / "service_without_flask.py"), *arguments]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return finished.stdout.splitlines()


def test_service_is_limited_without_flask(server: Server) -> None:
    expected = [
        "ann: allowed, 2 left",
        "ann: allowed, 1 left",
        "bob: allowed, 2 left",
        "ann: allowed, 0 left",
        "ann: refused, try again in 60 s",
    ]

    assert run_service() == expected
    assert run_service(server.url) == expected


def test_service_imports_nothing_of_flask() -> None:
    source = (EXAMPLES / "service_without_flask.py").read_text()
    imported = re.findall(r"^(?:from|import) (\S+)", source, re.MULTILINE)
    assert set(imported) == {"__future__", "sys", "flask_multilimit.engine"}


# All algorithms beside each other

COMPARISON = EXAMPLES / "compare_algorithms.py"
PICTURE = DOCS / "_static" / "algorithms.png"
SMALL = 150_000


def compare(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(COMPARISON), *arguments], capture_output=True, text=True, check=False
    )


def test_comparison_prints_every_algorithm() -> None:
    result = compare()

    assert result.returncode == 0, result.stderr
    names = re.findall(r'^    "(\w+)": Rule\(', COMPARISON.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(names) > 5
    assert all(name in result.stdout for name in names)


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="the picture is drawn with the extra `plot`")
def test_comparison_draws_a_picture(tmp_path: Path) -> None:
    result = compare(str(tmp_path / "picture.png"))
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "picture.png").stat().st_size < SMALL


def test_comparison_names_the_extra_when_matplotlib_is_missing(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('no matplotlib')\n")
    result = subprocess.run(
        [sys.executable, str(COMPARISON), str(tmp_path / "picture.png")],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tmp_path)},
    )

    assert result.returncode != 0
    assert "pip install 'flask-multilimit[plot]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_picture_of_the_documentation_exists_and_is_small() -> None:
    assert 0 < PICTURE.stat().st_size < SMALL


# The dashboard

PATIENCE = 60.0
"""Seconds, as long as a newcomer should wait at most."""


def test_dashboard_example_shows_traffic_within_a_minute() -> None:
    deadline = time.monotonic() + PATIENCE
    with flask_run("dashboard") as served:
        assert "/multilimit/" in served.get("/").text
        while True:
            now = json.loads(served.get("/multilimit/api/now").text)
            replayed = json.loads(served.get("/multilimit/api/what-if").text or "null")
            if now["totals"]["refused"]["amount"] and now["subjects"] and replayed and replayed["clients"] > 1:
                break
            assert time.monotonic() < deadline, now["totals"]
            time.sleep(0.5)

        for page in ("", "limits", "subject?who=203.0.113.66", "lists", "history", "what-if"):
            assert served.get(f"/multilimit/{page}").status == 200
