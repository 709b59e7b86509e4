"""Workflows and `.ci/run` run the sessions of nox and the command of README, on every supported Python, and install the
programs that tests run."""

import os
import re
import subprocess
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from support.folders import ROOT
from support.folders import TESTS as TESTS_FOLDER

WORKFLOWS = ROOT / ".github" / "workflows"
TESTS = (WORKFLOWS / "tests.yml").read_text()
NOXFILE = (ROOT / "noxfile.py").read_text()
CI = (ROOT / ".ci" / "run").read_text()


def _listed(name: str, text: str) -> list[str]:
    """The words of the list that follows ``name``."""
    found = re.search(rf"{re.escape(name)} ?\[(.*?)\]", text, re.DOTALL)
    assert found is not None, name
    return re.findall(r"[\w.]+", found[1])


def test_every_session_of_nox_has_a_job() -> None:
    assert ["tests", *_listed("session:", TESTS)] == _listed("nox.options.sessions =", NOXFILE)


def test_every_supported_python_is_tested() -> None:
    setup = RawConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    named = re.findall(r"^Programming Language :: Python :: (3\.\d+)$", setup["metadata"]["classifiers"], re.MULTILINE)
    supported = re.search(r"^SUPPORTED=\((.*)\)$", CI, re.MULTILINE)
    assert supported is not None
    assert _listed("python:", TESTS) == _listed("PYTHONS =", NOXFILE) == supported[1].split() == named


def test_ci_runs_every_session_of_nox() -> None:
    called = {word for line in re.findall(r"(?:--sessions|for name in) ([\w ]+)", CI) for word in line.split()}
    assert set(_listed("nox.options.sessions =", NOXFILE)) <= called


def test_ci_runs_the_test_command_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = re.search(r"^\$ (pip install '.\[test\]' && pytest -n auto)$", readme, re.MULTILINE)
    assert command is not None
    assert command[1] in CI


PACKAGES = dict(re.findall(r"^    ([\w-]+):([\w-]+)$", CI, re.MULTILINE))
"""Each program that `.ci/run` installs, and the Debian package that has it."""

ASKED = {
    name for file in TESTS_FOLDER.rglob("*.py") for name in re.findall(r"\bprogram\(\"([\w-]+)\"", file.read_text())
}
"""The programs whose absence fails a test in CI."""


def _jobs(workflow: str) -> dict[str, dict[str, Any]]:
    jobs: dict[str, dict[str, Any]] = yaml.safe_load((WORKFLOWS / workflow).read_text())["jobs"]
    return jobs


def test_ci_installs_every_program_that_tests_need() -> None:
    assert ASKED
    assert set(PACKAGES) >= ASKED


@pytest.mark.parametrize(
    ("job", "condition"), [("tests", None), ("slow", None), ("checks", "matrix.session == 'oldest'")]
)
def test_job_installs_every_program_that_tests_need(job: str, condition: str | None) -> None:
    (step,) = (step for step in _jobs("tests.yml")[job]["steps"] if "apt-get install" in step.get("run", ""))
    assert step.get("if") == condition
    packages = {word for word in step["run"].rpartition("apt-get install")[2].split() if not word.startswith("-")}
    assert packages == {PACKAGES[name] for name in ASKED}


def test_release_is_published_only_after_the_tests() -> None:
    jobs = _jobs("release.yml")
    assert jobs["tests"]["uses"] == "$/.github/workflows/tests.yml"
    assert set(jobs["publish"]["needs"]) == {"tests", "build"}


@pytest.mark.parametrize(
    ("tag", "heading", "agrees"),
    [
        ("v1.2.0", "## 1.2.0 (2026-12-24)", True),
        ("v1.2.0", "## 1.2.0 (Unreleased)", False),
        ("v1.2.0", "## 1.1.0 (2026-12-24)", False),
        ("v1.2.1", "## 1.2.1 (2026-12-24)", False),
    ],
    ids=["all agree", "no date", "not in the changelog", "another version was built"],
)
def test_release_needs_agreeing_tag_version_and_changelog(tmp_path: Path, tag: str, heading: str, agrees: bool) -> None:
    (step,) = (step for step in _jobs("release.yml")["build"]["steps"] if "changelog" in step.get("name", ""))
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "flask_multilimit-1.2.0.tar.gz").touch()
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n")

    done = subprocess.run(["bash", "-e", "-c", step["run"]], cwd=tmp_path, env={**os.environ, "TAG": tag}, check=False)

    assert (done.returncode == 0) is agrees


def test_release_uses_the_tools_of_the_checks() -> None:
    tools = re.search(r"^RELEASE_TOOLS = (\[.*?^\])$", NOXFILE, re.MULTILINE | re.DOTALL)

    assert tools is not None
    installed = " ".join(re.findall(r'"(.+?)"', tools[1]))
    assert f"pip install {installed}\n" in (WORKFLOWS / "release.yml").read_text()
    assert all("==" in tool for tool in installed.split())
