"""The log of the tutorial is what its script makes, and every session of the tutorial answers what the page says."""

import gzip
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.snippets import Block, blocks_of
from support.folders import DOCS, EXAMPLES, ROOT

FOLDER = EXAMPLES / "what_if"
PAGE = DOCS / "choose-a-limit.md"
PICTURES = ("what-if-peaks.png", "what-if-slider.png")
SMALL = 200_000

SESSIONS = [block for block in blocks_of(PAGE) if block.text.startswith("$ flask --app app ")]


def test_script_writes_the_log_of_the_tutorial(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(FOLDER / "make_log.py"), str(tmp_path / "access.log.gz")], check=True)
    written = gzip.decompress((tmp_path / "access.log.gz").read_bytes())
    assert written == gzip.decompress((FOLDER / "access.log.gz").read_bytes())


@pytest.mark.parametrize("name", ["guessed.json", "chosen.json"])
def test_page_shows_the_limits_files(name: str) -> None:
    shown = [json.loads(block.text) for block in blocks_of(PAGE) if block.language == "json"]
    assert json.loads((FOLDER / name).read_text()) in shown


def test_tutorial_page_has_four_sessions() -> None:
    assert len(SESSIONS) == 4


@pytest.mark.parametrize("session", SESSIONS, ids=str)
def test_session_prints_the_output_of_the_page(tmp_path: Path, session: Block) -> None:
    pytest.importorskip("matplotlib", reason="one session draws")
    command, _, expected = session.text.removeprefix("$ ").partition("\n")
    folder = shutil.copytree(FOLDER, tmp_path / "what_if")
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT)}

    run = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    begin, cut, end = expected.partition("\n...\n")
    assert run.returncode == 0, run.stderr
    if cut:
        assert (run.stdout[: len(begin)], run.stdout[-len(end) :]) == (begin, end)
    else:
        assert run.stdout == expected


@pytest.mark.parametrize("name", PICTURES)
def test_picture_of_the_page_exists_and_is_small(name: str) -> None:
    assert name in PAGE.read_text(encoding="utf-8")
    assert 0 < (DOCS / "_static" / name).stat().st_size < SMALL
