"""What users install has every file of the package: also templates, pictures, scripts. The sessions of nox look into a
wheel."""

import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import flask_multilimit
from support.folders import ROOT
from support.servers import Server

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


FROM_AN_ARCHIVE = """
import sys

archive, uri = sys.argv[1:]
sys.path.insert(0, archive)

from flask import Flask

from flask_multilimit import MultiLimit, rate_limiter
from flask_multilimit.dashboard import Dashboard

assert MultiLimit.__init__.__code__.co_filename.startswith(archive)

app = Flask(__name__)
app.config.update(MULTILIMIT_STORAGE_URI=uri, MULTILIMIT_STORAGE_TIMEOUT=10)
app.register_blueprint(Dashboard(MultiLimit(app), authorize=lambda: "me", url_prefix="/limits"))


@app.get("/")
@rate_limiter("2/minute", type="ip")
def view():
    return ""


client = app.test_client()
pages = "", "limits", "lists", "subject?who=127.0.0.1", "history", "static/dashboard.css"
print([client.get("/").status_code for _ in range(3)], {client.get(f"/limits/{page}").status_code for page in pages})
"""


def test_package_works_from_a_zip_archive(server: Server, tmp_path: Path) -> None:
    """As a zipapp, which is not unpacked."""
    archive = shutil.make_archive(str(tmp_path / "app"), "zip", PACKAGE.parent, PACKAGE.name)

    command = [sys.executable, "-c", FROM_AN_ARCHIVE, archive, server.url]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.stdout == "[200, 200, 429] {200}\n", done.stderr
