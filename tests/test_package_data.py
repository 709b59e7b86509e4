"""What users install has every file of the package: also templates, pictures, scripts. The sessions of nox look into a
wheel."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

import pytest

import flask_multilimit
from support.folders import ROOT

PACKAGE = Path(flask_multilimit.__file__).parent
FILES = sorted(path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"})


@pytest.fixture(scope="module")
def patterns() -> list[str]:
    declared = ConfigParser()
    declared.read(ROOT / "setup.cfg", encoding="utf-8")
    return declared["options.package_data"]["*"].split()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_file_is_package_data(path: Path, patterns: list[str]) -> None:
    package = next(folder for folder in path.parents if (folder / "__init__.py").exists())

    data = {found for pattern in patterns for found in package.glob(pattern)}

    assert path in data, f"name it in [options.package_data] of setup.cfg, as {package.relative_to(ROOT)} sees it"


def test_the_files_were_found() -> None:
    names = {path.name for path in FILES}
    assert {"check.lua", "base.html", "dashboard.css", "slider.js", "py.typed"} <= names
