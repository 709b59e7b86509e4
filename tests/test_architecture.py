"""The directions of imports: CONTRIBUTING.md, "House rules". Each room imports only from those named here."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import flask_multilimit

PACKAGE = Path(flask_multilimit.__file__).parent
NAME = PACKAGE.name

# Rooms in the order of the storeys: one may know those of the lines above its own, and nobody else.
# A folder is one room; its files know each other.
ENGINE = (
    {"errors", "algorithms"},
    {"rules", "keys"},
    {"decision"},
    {"storage"},
    {"limiter"},
)

# Every one of these may know the engine, too.
FACE = (
    {"subjects", "signals", "config", "messages", "wrapping", "screen"},
    {"responses", "declaration", "dynamic"},
    {"decorators"},
    {"plan", "sources"},
    {"gate"},
    {"listing", "standing"},
    {"doctor", "testing"},
    {"cli"},
    {"command_line"},
    {"extension"},
)

FOREIGN_TO_THE_ENGINE = {"pydantic", "redis", "hiredis"}
"""What the engine needs from outside the standard library: all of it, so no Flask."""


def rooms_of(folder: Path) -> dict[str, list[Path]]:
    """The files of each room; `__init__.py` only hands on what the rooms have."""
    rooms = {path.stem: [path] for path in folder.glob("*.py") if path.stem != "__init__"}
    folders = {path.parent for path in folder.glob("*/__init__.py")}
    return rooms | {path.name: sorted(path.rglob("*.py")) for path in folders}


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
    return found


def inside(imported: str, folder: Path) -> str | None:
    """The room of `folder` that an import leads to; None when it leads elsewhere, "" to the folder itself."""
    prefix = [NAME, *folder.relative_to(PACKAGE).parts]
    parts = imported.split(".")
    if parts[: len(prefix)] != prefix:
        return None
    room = parts[len(prefix)] if len(parts) > len(prefix) else ""
    return room if room in rooms_of(folder) else ""


def each_file(rooms: dict[str, list[Path]]) -> list[tuple[str, Path]]:
    return [(room, path) for room, paths in sorted(rooms.items()) for path in paths]


ENGINE_FILES = each_file(rooms_of(PACKAGE / "engine"))
FACE_FILES = each_file({room: paths for room, paths in rooms_of(PACKAGE).items() if room != "engine"})


def named(value: object) -> str:
    return value.relative_to(PACKAGE).as_posix() if isinstance(value, Path) else str(value)


def may_know(room: str, lines: tuple[set[str], ...]) -> set[str]:
    for number, line in enumerate(lines):
        if room in line:
            return set[str]().union(*lines[:number])
    raise AssertionError(f"{room} is a new room: give it a place in tests/test_architecture.py")


@pytest.mark.parametrize(("room", "path"), ENGINE_FILES, ids=named)
def test_a_room_of_the_engine_knows_only_the_rooms_before_it(room: str, path: Path) -> None:
    known = {inside(imported, PACKAGE / "engine") for imported in imports_of(path)} - {None}

    wrong = known - may_know(room, ENGINE) - {room}

    assert not wrong, f"{named(path)} must not import {wrong}: {room} may know {may_know(room, ENGINE)}"


@pytest.mark.parametrize(("room", "path"), ENGINE_FILES, ids=named)
def test_the_engine_knows_nothing_of_flask_nor_of_the_storey_above(room: str, path: Path) -> None:
    for imported in imports_of(path):
        top = imported.split(".")[0]
        assert top in {*sys.stdlib_module_names, *FOREIGN_TO_THE_ENGINE, NAME}, f"{named(path)} imports {imported}"
        assert top != NAME or imported.startswith(f"{NAME}.engine"), f"{named(path)} imports {imported} from above"
    assert room


@pytest.mark.parametrize(("room", "path"), FACE_FILES, ids=named)
def test_a_room_of_the_flask_face_knows_only_the_rooms_before_it(room: str, path: Path) -> None:
    known = {inside(imported, PACKAGE) for imported in imports_of(path)} - {None, "engine"}

    wrong = known - may_know(room, FACE) - {room}

    assert not wrong, f"{named(path)} must not import {wrong}: {room} may know {may_know(room, FACE)} and the engine"


def test_the_files_were_found() -> None:
    assert {"rules", "storage", "algorithms", "limiter"} <= {room for room, _ in ENGINE_FILES}
    assert {"plan", "extension"} <= {room for room, _ in FACE_FILES}


@pytest.mark.parametrize("path", sorted((PACKAGE / "engine" / "algorithms").glob("*.lua")), ids=named)
def test_every_lua_file_beside_the_algorithms_is_a_twin_or_included_by_one(path: Path) -> None:
    from flask_multilimit.engine.algorithms import ALGORITHMS

    included = {name for twin in ALGORITHMS.values() for name in twin.INCLUDES}

    assert path.stem in {*ALGORITHMS, *included}
