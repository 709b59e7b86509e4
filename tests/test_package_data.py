"""What users install has every file of the package: also templates, pictures, scripts. The sessions of nox look into a
wheel."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

import flask_multilimit
from support.folders import ROOT

PACKAGE = Path(flask_multilimit.__file__).parent
FILES = sorted(path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"})


def test_every_file_of_the_package_is_package_data() -> None:
    declared = ConfigParser()
    declared.read(ROOT / "setup.cfg", encoding="utf-8")
    patterns = declared["options.package_data"]["*"].split()
    packages = {folder.parent for folder in PACKAGE.rglob("__init__.py")}

    data = {found for package in packages for pattern in patterns for found in package.glob(pattern)}

    assert set(FILES) <= data, "name them in [options.package_data] of setup.cfg, as their packages see them"
    assert {"check.lua", "base.html", "dashboard.css", "slider.js", "py.typed"} <= {path.name for path in FILES}
