"""The page about gunicorn says how to find mistakes before a worker starts."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from docs.snippets import blocks_of
from support.folders import ROOT
from support.processes import Program
from support.waiting import until

SHOP = """
from flask import Flask
from flask_multilimit import MultiLimit

app = Flask(__name__)
MultiLimit(app, limits={"old_name": "5/minute"})
"""


DEPLOYED = """
from flask import Flask
from flask_multilimit import MultiLimit

app = Flask(__name__)
MultiLimit(app, default_limits="100/minute")
app.get("/")(lambda: "RELEASE")
"""


@pytest.mark.slow
def test_deploy_by_hup_serves_the_new_code(tmp_path: Path) -> None:
    (tmp_path / "gunicorn.conf.py").write_text(config_of_the_page(), encoding="utf-8")
    (tmp_path / "shop.py").write_text(DEPLOYED.replace("RELEASE", "first"), encoding="utf-8")
    arguments = ("gunicorn", "-b", "127.0.0.1:0", "-w", "3", "-c", f"{tmp_path}/gunicorn.conf.py", "shop:app")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    with Program(*arguments, environment={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}) as running:
        until(lambda: running.get("/").text == "first")
        (tmp_path / "shop.py").write_text(DEPLOYED.replace("RELEASE", "second"), encoding="utf-8")

        master = int(re.findall(r"\[(\d+)\] \[INFO\] Listening at", running.log)[0])
        os.kill(master, signal.SIGHUP)

        until(lambda: {reply.text for reply in running.get_all(["/"] * 12)} == {"second"})


def config_of_the_page() -> str:
    page = blocks_of(ROOT / "docs" / "how-to" / "gunicorn-and-uwsgi.md")
    (config,) = [block.text for block in page if block.caption == "gunicorn.conf.py" and block.example == "validate"]
    return config


@pytest.mark.slow
def test_gunicorn_starts_no_worker_when_a_limit_names_no_endpoint(tmp_path: Path) -> None:
    (tmp_path / "gunicorn.conf.py").write_text(config_of_the_page(), encoding="utf-8")
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
