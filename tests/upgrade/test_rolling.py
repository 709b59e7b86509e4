"""A rolling deployment from the previous version to this one and back, on one server, under requests."""

import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from io import BytesIO
from pathlib import Path

import pytest

from support.folders import ROOT
from support.servers import Server
from upgrade.worker import COUNT

pytestmark = pytest.mark.slow

BEFORE = "608cf61af6fe"
"""The commit of the previous version."""
WORKER = Path(__file__).parent / "worker.py"
REQUESTS = 60
"""Requests of each worker to each endpoint; all workers together send more than an endpoint admits."""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the previous version."""
    archive = ["git", "archive", BEFORE, "flask_multilimit"]
    made = subprocess.run(archive, cwd=ROOT, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"this checkout has no history, so {BEFORE} cannot be had: {made.stderr.decode().strip()}")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=BytesIO(made.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def environment(version: Path, url: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(version), "SHOP_STORAGE": url, "PYTHONWARNINGS": "error"}


def run_together(versions: list[Path], url: str) -> list[dict[str, dict[str, int]]]:
    """The statuses that one worker of each version got; all start when the last one is ready."""
    command = [sys.executable, str(WORKER), url, str(REQUESTS)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    workers = [
        subprocess.Popen(command, env=environment(version, url), cwd=version, text=True, **pipes)  # type: ignore[call-overload]
        for version in versions
    ]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n", worker.stderr.read()
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    answers = []
    for worker in workers:
        out, error = worker.communicate(timeout=120)
        assert (worker.returncode, error) == (0, "")
        answers.append(json.loads(out))
    return answers


def change(version: Path, url: str, *command: str) -> None:
    flask = [sys.executable, "-m", "flask", "--app", str(WORKER), "multilimit", *command]
    made = subprocess.run(
        flask, env=environment(version, url), cwd=version, input="y", text=True, capture_output=True, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr


@pytest.mark.parametrize("direction", ["forwards", "back"])
def test_workers_of_two_versions_share_quotas_and_changes(server: Server, before: Path, direction: str) -> None:
    first, second = (before, ROOT) if direction == "forwards" else (ROOT, before)
    total: dict[str, Counter[str]] = {}
    overridden = []

    def deploy(*versions: Path) -> None:
        answers = run_together(list(versions), server.url)
        overridden.append(Counter[str]())
        for answer in answers:
            for name, statuses in answer.items():
                total.setdefault(name, Counter()).update(statuses)
            overridden[-1].update(answer["overridden"])

    deploy(first, first)
    change(first, server.url, "set", "overridden", "ip-86400s", "25/day", "--for", "1h", "--reason", "a sale")
    deploy(first, second)
    change(second, server.url, "set", "overridden", "ip-86400s", "40/day", "--for", "1h", "--reason", "a bigger sale")
    deploy(first, second)
    deploy(second, second)
    deploy(second, first)

    sent = 10 * REQUESTS
    refunded, _ = total.pop("refunded"), total.pop("overridden")
    assert total == {name: {"200": COUNT, "429": sent - COUNT} for name in total}
    assert refunded == {"200": sent}
    assert [statuses["200"] for statuses in overridden] == [10, 15, 15, 0, 0]
