"""Runs the tests of a project without the extension and, beside that, with it, and compares the result of each test.

usage: python same_results.py FOLDER [ARGUMENTS OF PYTEST]
"""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE, STDOUT
from xml.etree import ElementTree

HERE = Path(__file__).parent
FEWEST = 50
"""Tests that a suite has at least: fewer, and it was not found."""


def main() -> None:
    folder, *arguments = sys.argv[1:]
    with ThreadPoolExecutor() as runs:
        without, with_limits = runs.map(results, [folder] * 2, [arguments, ["-p", "multilimit_everywhere", *arguments]])
    differing = sorted(name for name in without | with_limits if without.get(name) != with_limits.get(name))
    for name in differing:
        sys.stdout.write(f"{name}: {without.get(name)} without the extension, {with_limits.get(name)} with it\n")
    passed = sum(result == "passed" for result in without.values())
    sys.stdout.write(f"{len(without)} tests, {passed} passed without the extension; with it, {len(differing)} differ\n")
    sys.exit(1 if differing or passed < FEWEST else 0)


def results(folder: str, arguments: list[str]) -> dict[str, str]:
    """The outcome of each test, in a copy of the ``folder``."""
    with tempfile.TemporaryDirectory() as temporary:
        report, copy = Path(temporary, "report.xml"), shutil.copytree(folder, Path(temporary, "project"))
        command = [sys.executable, "-m", "pytest", "-q", "--disable-warnings", f"--junitxml={report}", *arguments]
        path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        environment = {**os.environ, "PYTHONPATH": path}
        run = subprocess.run(command, cwd=copy, env=environment, stdout=PIPE, stderr=STDOUT, text=True, check=False)
        sys.stdout.write(run.stdout)
        if not report.exists():
            sys.exit(f"pytest ended with {run.returncode} and left no report")
        cases = list(ElementTree.parse(report).iter("testcase"))
    if "multilimit_everywhere" in arguments and run.returncode and not any(map(_failed, cases)):
        sys.exit("no request was checked")
    return {f"{case.get('classname')}::{case.get('name')}": _result(case) for case in cases}


def _failed(case: ElementTree.Element) -> bool:
    return _result(case) in {"failure", "error"}


def _result(case: ElementTree.Element) -> str:
    return next((child.tag for child in case if child.tag in {"failure", "error", "skipped"}), "passed")


if __name__ == "__main__":
    main()
