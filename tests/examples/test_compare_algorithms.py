"""The example that drives the same traffic through all six and draws it."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.folders import DOCS, EXAMPLES

EXAMPLE = EXAMPLES / "compare_algorithms.py"
PICTURE = DOCS / "_static" / "algorithms.png"
SMALL = 150_000


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), *arguments], capture_output=True, text=True, check=False
    )


def test_the_example_prints_what_each_algorithm_admits() -> None:
    result = run()

    assert result.returncode == 0, result.stderr
    names = re.findall(r'^    "(\w+)": Rule\(', EXAMPLE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(names) > 5
    assert all(name in result.stdout for name in names)


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="the picture is drawn with the extra `plot`")
def test_the_example_draws_a_picture(tmp_path: Path) -> None:
    result = run(str(tmp_path / "picture.png"))

    assert result.returncode == 0, result.stderr
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "picture.png").stat().st_size < SMALL


def test_without_matplotlib_it_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('no matplotlib')\n")
    result = subprocess.run(
        [sys.executable, str(EXAMPLE), str(tmp_path / "picture.png")],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tmp_path)},
    )

    assert result.returncode != 0
    assert "pip install 'flask-multilimit[plot]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_picture_of_the_documentation_is_there_and_small() -> None:
    assert 0 < PICTURE.stat().st_size < SMALL
