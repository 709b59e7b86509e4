"""The directions in which the package may import."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

import flask_multilimit
import flask_multilimit.control
import flask_multilimit.engine
import flask_multilimit.engine.text
import flask_multilimit.signals

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flask_multilimit"
NAME = PACKAGE.name

FLOORS = (
    {"engine"},
    {"observe"},
    {"config", "signals"},
    {"declare"},
    {"control"},
    {"plan"},
    {"serve"},
    {"insight"},
    {"operate"},
    {"following", "recording", "simulation", "testing"},
    {"extension"},
    {"dashboard", "usage"},
    {"compat"},
)
"""A floor imports from the floors before it, and from itself."""

STORAGES = (
    {"base"},
    {"memory"},
    {"layers", "redis"},
    {"cluster", "local"},
    {"schemes"},
)
"""The same, for those rooms of ``engine/storage`` whose direction matters."""

PUBLIC = (
    flask_multilimit,
    flask_multilimit.engine,
    flask_multilimit.engine.text,
    flask_multilimit.control,
    flask_multilimit.signals,
)

FACES = {"control/__init__.py": {"following"}}
"""A public face may name rooms of later floors, which it imports on first use."""

FOREIGN_TO_THE_ENGINE = {"redis", "hiredis"}
"""What the engine needs from outside the standard library: all of it, so no Flask."""


@cache
def imports_of(path: Path) -> set[str]:
    """Everything the file imports, wherever in it, by its full dotted name."""
    package = [NAME, *path.relative_to(PACKAGE).parent.parts]
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *(node.module or "").split(".")] if node.module else base
            # `from . import x` names the module x; `from .x import y` the module x, and y perhaps a module in it.
            found.update(".".join([*module, alias.name]) for alias in node.names)
    found.update(resolve_name(name, ".".join(package)) for name in loads_of(path))
    return found


def loads_of(path: Path) -> Iterator[str]:
    """What the file loads by a call: of ``import_module(f".cli.{name}")``, the part that stands there, ``.cli``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {"import_module", "__import__"}:
            name = node.args[0]
            begin = name.values[0] if isinstance(name, ast.JoinedStr) else name
            known = str(begin.value) if isinstance(begin, ast.Constant) else ""
            if module := known if begin is name else known.rpartition(".")[0]:
                yield module


@cache
def files_imported_by(path: Path) -> set[Path]:
    """The files of the package that the file imports: for ``a.b.name``, ``a/b/name.py``, or else ``a/b.py``."""
    found = {file_of(each.split(".")) for each in imports_of(path)}
    return {each for each in found if each is not None and each != path}


def file_of(parts: list[str]) -> Path | None:
    while parts and parts[0] == NAME:
        folder = PACKAGE.joinpath(*parts[1:])
        for path in (folder.with_suffix(".py"), folder / "__init__.py"):
            if path.is_file() and path.parent != PACKAGE.parent:
                return path
        parts = parts[:-1]
    return None


def named(value: object) -> str:
    return value.relative_to(PACKAGE).as_posix() if isinstance(value, Path) else str(value)


def room_of(path: Path, folder: Path) -> str:
    return path.relative_to(folder).parts[0].removesuffix(".py")


def later_rooms(path: Path, folder: Path, floors: tuple[set[str], ...]) -> set[str]:
    """The rooms of ``folder`` that the file imports although their floor comes after its own, or is beside it."""
    number = floor_of(room_of(path, folder), floors)
    rooms = {room_of(each, folder) for each in files_imported_by(path) if folder in each.parents}
    return {
        room
        for room in rooms - {room_of(path, folder)}
        if (other := floor_of(room, floors)) is not None and number is not None and other >= number
    }


def floor_of(room: str, floors: tuple[set[str], ...]) -> int | None:
    return next((number for number, floor in enumerate(floors) if room in floor), None)


FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = [path for path in FILES if path != PACKAGE / "__init__.py"]
STORAGE = PACKAGE / "engine" / "storage"


def test_every_room_of_the_package_has_a_floor() -> None:
    assert {room_of(path, PACKAGE) for path in ROOMS} <= set[str]().union(*FLOORS)


@pytest.mark.parametrize("path", ROOMS, ids=named)
def test_file_imports_only_from_lower_floors(path: Path) -> None:
    assert later_rooms(path, PACKAGE, FLOORS) == FACES.get(named(path), set())


@pytest.mark.parametrize("path", sorted(STORAGE.rglob("*.py")), ids=named)
def test_storage_imports_only_from_lower_storages(path: Path) -> None:
    if path.parent != STORAGE or path.name != "__init__.py":
        assert later_rooms(path, STORAGE, STORAGES) == set()


def test_files_have_no_circular_imports() -> None:
    graph = {path: files_imported_by(path) for path in FILES if path.name != "__init__.py"}

    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(map(named, error.args[1])))


@pytest.mark.parametrize("path", [path for path in FILES if room_of(path, PACKAGE) == "engine"], ids=named)
def test_engine_does_not_import_flask(path: Path) -> None:
    tops = {imported.split(".")[0] for imported in imports_of(path)}
    assert tops <= {*sys.stdlib_module_names, *FOREIGN_TO_THE_ENGINE, NAME}


def test_import_without_an_app_needs_no_pydantic() -> None:
    """Most of the time of an import would be that of pydantic. A worker that runs tasks has no settings to validate."""
    code = "import sys, flask_multilimit.engine; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", [path for path in FILES if room_of(path, PACKAGE) == "compat"], ids=named)
def test_bridges_import_only_public_names(path: Path) -> None:
    public = {f"{module.__name__}.{name}" for module in PUBLIC for name in module.__all__}
    ours = {each for each in imports_of(path) if each.split(".")[0] == NAME}
    assert {each for each in ours - public if not each.startswith(f"{NAME}.compat")} <= {f"{NAME}.testing.reset"}


def test_package_exports_at_most_thirty_names() -> None:
    assert len(flask_multilimit.__all__) <= 30


def test_public_name_is_exported_by_one_module() -> None:
    exported = [name for module in PUBLIC if module is not flask_multilimit.engine for name in module.__all__]
    assert len(exported) == len(set(exported))


@pytest.mark.parametrize("path", sorted((PACKAGE / "engine" / "algorithms").glob("*.lua")), ids=named)
def test_lua_file_belongs_to_an_algorithm(path: Path) -> None:
    from flask_multilimit.engine.algorithms import ALGORITHMS, BAN, CALENDAR

    included = {name for twin in ALGORITHMS.values() for name in twin.INCLUDES}
    assert path.stem in {*ALGORITHMS, BAN, CALENDAR, *included}


def test_contributing_lists_the_floors_in_the_same_order() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^  \| (`.*?`) \| ", page, re.MULTILINE)
    assert [set(re.findall(r"`(\w+)/?`", row)) for row in rows] == list(FLOORS)
