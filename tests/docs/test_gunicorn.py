"""The page about gunicorn says how to find mistakes before a worker starts."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from docs.snippets import blocks_of
from support.folders import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SHOP = """
from flask import Flask
from flask_multilimit import MultiLimit

app = Flask(__name__)
MultiLimit(app, limits={"old_name": "5/minute"})
"""


@pytest.mark.slow
def test_gunicorn_starts_no_worker_with_a_limit_of_a_name_that_is_gone(tmp_path: Path) -> None:
    page = blocks_of(ROOT / "docs" / "how-to" / "gunicorn-and-uwsgi.md")
    (config,) = [block.text for block in page if block.caption == "gunicorn.conf.py" and block.example == "validate"]
    (tmp_path / "gunicorn.conf.py").write_text(config, encoding="utf-8")
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")

    ran = subprocess.run(
        [sys.executable, "-m", "gunicorn", "--bind", f"unix:{tmp_path}/socket", "shop:app"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert ran.returncode != 0
    assert 'ConfigurationError: limits["old_name"]: no endpoint or blueprint is called "old_name"' in ran.stderr
    assert "Booting worker" not in ran.stderr
