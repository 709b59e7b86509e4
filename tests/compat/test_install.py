"""``install()``: frameworks that import Flask-Limiter find the bridge."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def run(code: str) -> str:
    """What ``code`` prints in a process of its own."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


INSTALL = "from flask_multilimit.compat import install; install(); "


@pytest.mark.parametrize(
    "statement",
    [
        "from flask_limiter import Limiter as found",
        "import flask_limiter; found = flask_limiter.Limiter",
        "from flask_limiter.util import get_remote_address as found",
        "from flask_limiter.constants import ConfigVars as found",
        "from flask_limiter.errors import RateLimitExceeded as found",
        "from flask_limiter.contrib.util import get_remote_address_cloudflare as found",
        "from flask_limiter.wrappers import RequestLimit as found",
        "import flask_limiter.commands; found = flask_limiter.commands.cli",
    ],
)
def test_imports_of_flask_limiter_find_the_bridge_after_install(statement: str) -> None:
    assert run(f"{INSTALL}{statement}; print(found.__module__)").startswith("flask_multilimit.compat.flask_limiter")


def test_each_module_is_the_same_object_under_both_import_names() -> None:
    code = (
        "from importlib import import_module as load; from pkgutil import walk_packages; "
        "ours = load('flask_multilimit.compat.flask_limiter'); start = ours.__name__ + '.'; "
        "names = [name.removeprefix(start) for _, name, _ in walk_packages(ours.__path__, start)]; "
        "other = [name for name in names if load('flask_limiter.' + name) is not load(start + name)]; "
        "print('wrappers' in names, other)"
    )

    assert run(INSTALL + code) == "True []"


def test_a_second_install_changes_nothing() -> None:
    assert run(f"{INSTALL}install(); import flask_limiter; print(flask_limiter.__name__)").endswith("flask_limiter")


@pytest.mark.parametrize(
    "before",
    [
        "import flask_limiter",
        "from flask_limiter import Limiter",
        "from flask_limiter.util import get_remote_address",
        "limiter = __import__('flask_limiter').Limiter(lambda: '')",
    ],
)
def test_install_is_an_error_once_a_module_has_imported_flask_limiter(before: str) -> None:
    assert "__main__ has imported flask_limiter already" in run(f"{before}; {INSTALL}")


def test_plugin_loaded_by_the_flask_command_does_not_prevent_install() -> None:
    """Only its group of commands refers to the plugin."""
    plugins = "from importlib.metadata import entry_points; plugins = entry_points(group='flask.commands')"
    loaded = "group = {each.name: each.load() for each in plugins if each.value.startswith('flask_limiter')}"

    told = run(f"{plugins}; {loaded}; {INSTALL}from flask_limiter import Limiter; print(*group, Limiter.__module__)")

    assert told.startswith("limiter flask_multilimit.compat.flask_limiter")


def test_commands_run_although_a_flask_plugin_imports_flask_limiter(tmp_path: Path) -> None:
    """As the documentation shows for Flask-AppBuilder."""
    app = "from flask import Flask; from flask_limiter import Limiter; app = Flask('shop'); Limiter(str, app=app)"
    (tmp_path / "shop.py").write_text(INSTALL + app)
    (tmp_path / "flask_on_bridge.py").write_text(f"{INSTALL}from flask.cli import main; main()")
    command = [sys.executable, "flask_on_bridge.py", "--app", "shop", "multilimit", "limits"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert "WITHOUT LIMITS: 1 endpoint" in done.stdout, done.stderr


@pytest.mark.parametrize("before", ["", "__import__('flask_limiter.commands'); "], ids=["not loaded", "loaded before"])
def test_private_modules_of_flask_limiter_are_not_found_after_install(before: str) -> None:
    assert "No module named 'flask_limiter._extension'" in run(f"{before}{INSTALL}import flask_limiter._extension")
