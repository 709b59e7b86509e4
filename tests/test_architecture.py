"""The directions of imports: CONTRIBUTING.md, "House rules". A room imports only from the lines above its own."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import flask_multilimit
from support.folders import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(flask_multilimit.__file__).parent
NAME = PACKAGE.name

# Each folder, and its rooms (files and folders) in the order of what they may import: a room imports from those on the
# lines above its own, and from no other room of its folder. A folder is one room of the folder it lies in.
HOUSE: dict[str, tuple[set[str], ...]] = {
    "": (
        {"engine"},
        {"observe"},
        {"config", "signals"},
        {"declare"},
        {"control"},
        {"plan"},
        {"serve"},
        {"operate"},
        {"following", "recording", "simulation", "testing"},
        {"extension"},
        {"dashboard"},
        {"compat"},
    ),
    "compat": ({"flask_limiter"},),
    "compat/flask_limiter": (
        {"constants", "contrib", "given", "items", "util"},
        {"declared"},
        {"errors", "registry", "storage"},
        {"requests", "settings"},
        {"differences", "headers", "stops"},
        {"in_force"},
        {"phase"},
        {"command_line"},
        {"limiter"},
        {"listing"},
        {"commands", "migrate"},
    ),
    "compat/flask_limiter/contrib": ({"util"},),
    "declare": (
        {"addresses", "file", "reserve", "unwrap"},
        {"networks", "subjects"},
        {"holding", "limiter", "mistakes", "who"},
        {"callables", "checks", "dynamic", "releasing"},
        {"advice"},
        {"data", "decorators"},
        {"schema", "wording"},
        {"validation"},
        {"reading"},
    ),
    "control": ({"kinds", "store"}, {"controls"}, {"document", "preview"}, {"reading"}, {"watch"}, {"control"}),
    "plan": (
        {"overrides", "sources", "views"},
        {"endpoint", "revised"},
        {"checks"},
        {"plans"},
        {"differences", "standings"},
    ),
    "observe": (
        {"beat", "events", "namespace"},
        {"boards", "traffic"},
        {"tallying"},
        {"metrics"},
        {"prometheus", "opentelemetry"},
    ),
    "observe/traffic": (
        {"heaviest", "counts"},
        {"buckets", "counting"},
        {"flushing", "log", "reading"},
        {"bans", "observer"},
    ),
    "serve": (
        {"access", "audience", "bans", "headers", "messages", "record", "trial", "workers"},
        {"in_force", "refusal", "slots"},
        {"access_check", "error_handlers", "settle", "startup"},
        {"verdict"},
        {"gate"},
        {"here", "steer"},
    ),
    "operate": (
        {"console"},
        {"simulate"},
        {"listing", "standing", "top"},
        {"doctor", "everywhere", "slots", "words"},
        {"cli", "dashboard"},
        {"command_line"},
    ),
    "operate/doctor": (
        {"findings"},
        {"app", "control", "script", "server", "traffic"},
        {"storage"},
        {"examination"},
    ),
    "operate/dashboard": (
        {"answers", "bodies", "chinese", "drawing", "hour", "numbers", "paging", "who"},
        {"messages"},
        {"visit"},
        {"security"},
        {"desk", "shell"},
        {"entries", "evidence", "now", "whatif"},
        {"changes", "limits"},
        {"subject"},
        {"pages", "whatif_page"},
        {"api"},
        {"blueprint"},
    ),
    "operate/simulate": (
        {"arrivals", "clients", "logs", "timeline", "usage"},
        {"held", "newest", "report", "routes", "suggest", "who"},
        {"lists", "page", "picture", "watching"},
        {"asking"},
        {"findings", "remembered"},
        {"replay"},
        {"whatif"},
    ),
    "operate/simulate/page": ({"document"}, {"peaks", "replayed"}),
    "operate/simulate/logs": (
        {"logged"},
        {"times", "words"},
        {"json_lines", "recorded", "text", "w3c"},
        {"formats"},
        {"reading"},
    ),
    "operate/cli": (
        {"applied", "base", "logs"},
        {"config", "control", "doctor", "grafana", "top", "who"},
        {"alerts", "check", "keys", "limits", "reset", "schema", "simulate", "suggest"},
    ),
    "engine": (
        {"errors", "algorithms", "clock", "forks", "records", "reply", "threads"},
        {"rules", "keys"},
        {"bans", "key_parts"},
        {"hits"},
        {"decision"},
        {"storage"},
        {"slots"},
        {"limiter"},
    ),
    "engine/algorithms": (
        {"base"},
        {"rate"},
        {"fixed_window", "gcra", "leaky_bucket", "sliding_window", "sliding_window_counter", "token_bucket"},
        {"ban", "concurrency"},
    ),
    "engine/storage": (
        {"addresses", "base", "evaluate", "tallies"},
        {"memory", "together"},
        {"layers", "redis"},
        {"cluster", "local"},
        {"schemes"},
    ),
    "engine/storage/layers": ({"deny_cache", "guard", "leases"}, {"stack"}),
    "engine/storage/layers/guard": (
        {"breaker", "fallback", "policy", "workers"},
        {"health", "pending", "probe"},
        {"report"},
        {"outage"},
        {"recovery"},
        {"guard"},
    ),
    "engine/storage/redis": (
        {"announced", "failures", "lua", "scripts", "tls"},
        {"inline"},
        {"compiled", "deadline"},
        {"shapes"},
        {"uri"},
        {"sentinel"},
        {"wire", "tallies"},
        {"storage"},
    ),
    "engine/storage/cluster": ({"nodes"}, {"slots"}, {"groups", "servers"}, {"all_or_nothing"}, {"storage"}),
    "engine/storage/local": ({"supervisor"}, {"server"}, {"storage"}),
}

LOADED_WHEN_CALLED = {"compat/flask_limiter/command_line.py": {"commands", "migrate"}}
"""By file, rooms below its own, which it loads when somebody calls a command: commands need the Limiter, and it adds
them to its app."""

COMPUTED = {
    "__init__.py",
    "compat/__init__.py",
    "declare/callables.py",
    "declare/reading.py",
    "engine/storage/__init__.py",
    "operate/command_line.py",
    "operate/simulate/logs/reading.py",
}
"""Files that load modules by names that they compute, from a table of theirs or from what a developer has written."""

FOREIGN_TO_THE_ENGINE = {"pydantic", "redis", "hiredis", "typing_extensions"}
"""What the engine needs from outside the standard library: all of it, so no Flask. The last comes with pydantic, and is
for type checkers."""


@cache
def rooms_of(folder: Path) -> set[str]:
    files = {path.stem for path in folder.glob("*.py") if path.stem != "__init__"}
    return files | {path.parent.name for path in folder.glob("*/__init__.py")}


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
    found.update(resolve_name(name, ".".join(package)) for each in loads_of(path) if (name := known_of(each)))
    return found


def loads_of(path: Path) -> Iterator[ast.expr]:
    """The name of each module that the file loads by a call."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {"import_module", "__import__"}:
            yield node.args[0]


def known_of(name: ast.expr) -> str:
    """As much of a module's name as stands in the code: of ``f".cli.{name}"``, ``.cli``."""
    if isinstance(name, ast.Constant):
        return str(name.value)
    begin = name.values[0] if isinstance(name, ast.JoinedStr) else None
    return str(begin.value).rpartition(".")[0] if isinstance(begin, ast.Constant) else ""


def names_from(folder: Path, path: Path) -> set[str]:
    """What the file imports from the folder: names of its rooms, or what its `__init__.py` exports."""
    prefix = [NAME, *folder.relative_to(PACKAGE).parts]
    imported = [each.split(".") for each in imports_of(path)]
    return {parts[len(prefix)] for parts in imported if parts[: len(prefix)] == prefix and len(parts) > len(prefix)}


def above(folder: str, room: str) -> set[str]:
    lines = HOUSE[folder]
    (number,) = (number for number, line in enumerate(lines) if room in line)
    return set[str]().union(*lines[:number])


def named(value: object) -> str:
    return value.relative_to(PACKAGE).as_posix() or "." if isinstance(value, Path) else str(value)


FILES = sorted(PACKAGE.rglob("*.py"))
ENGINE_FILES = sorted((PACKAGE / "engine").rglob("*.py"))
COMPAT_FILES = sorted((PACKAGE / "compat").rglob("*.py"))
FOLDERS = sorted({path.parent for path in PACKAGE.rglob("__init__.py")})


@pytest.mark.parametrize("folder", FOLDERS, ids=named)
def test_each_room_has_a_place_and_each_place_a_room(folder: Path) -> None:
    lines = HOUSE.get(folder.relative_to(PACKAGE).as_posix().removeprefix("."), ())

    placed = [room for line in lines for room in line]

    assert sorted(placed) == sorted(rooms_of(folder)), "a new room needs a place in HOUSE, and in CONTRIBUTING.md"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_room_imports_only_from_the_lines_above_its_own(path: Path) -> None:
    inner = path.parent if path.stem == "__init__" else path.with_suffix("")
    for folder in inner.relative_to(PACKAGE).parents:
        room = inner.relative_to(PACKAGE / folder).parts[0]
        known = names_from(PACKAGE / folder, path) & rooms_of(PACKAGE / folder) - {room}
        place = folder.as_posix().removeprefix(".")

        loaded = LOADED_WHEN_CALLED.get(named(path), set()) if folder == path.relative_to(PACKAGE).parent else set()
        assert loaded <= known, f"{named(path)} no longer loads {loaded - known}"

        wrong = known - loaded - above(place, room)

        assert not wrong, f"{named(path)} must not import {wrong}: {room} may import from {above(place, room)}"


def test_only_tables_and_developers_name_modules_that_the_code_does_not() -> None:
    computing = {named(path) for path in FILES if any(not isinstance(each, ast.Constant) for each in loads_of(path))}

    assert computing == COMPUTED


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_room_imports_rooms_and_not_what_the_folder_around_it_exports(path: Path) -> None:
    """An `__init__.py` may import every room of its folder, so what it exports hides where an arrow leads. Only bridges
    import from the package as users do."""
    for folder in path.relative_to(PACKAGE).parents:
        if folder == Path() and path in COMPAT_FILES:
            continue

        exported = names_from(PACKAGE / folder, path) - rooms_of(PACKAGE / folder)

        assert not exported, f"{named(path)} imports {exported} from the folder around it: name the room"


@pytest.mark.parametrize("path", ENGINE_FILES, ids=named)
def test_the_engine_knows_nothing_of_flask_nor_of_the_floors_above(path: Path) -> None:
    for imported in imports_of(path):
        top = imported.split(".")[0]
        assert top in {*sys.stdlib_module_names, *FOREIGN_TO_THE_ENGINE, NAME}, f"{named(path)} imports {imported}"
        assert top != NAME or imported.startswith(f"{NAME}.engine"), f"{named(path)} imports {imported} from above"


@pytest.mark.parametrize("path", COMPAT_FILES, ids=named)
def test_bridges_stand_on_public_names_alone(path: Path) -> None:
    public = {f"{NAME}.{name}" for name in flask_multilimit.__all__} | {f"{NAME}.testing.reset"}
    inside = {each for each in imports_of(path) if each.startswith(f"{NAME}.compat")}

    foreign = {each for each in imports_of(path) if each.split(".")[0] == NAME} - inside

    assert foreign <= public


def test_the_files_were_found() -> None:
    assert {"engine/limiter.py", "plan/endpoint.py", "extension.py"} <= set(map(named, FILES))


@pytest.mark.parametrize("path", sorted((PACKAGE / "engine" / "algorithms").glob("*.lua")), ids=named)
def test_every_lua_file_beside_the_algorithms_is_a_twin_or_included_by_one(path: Path) -> None:
    from flask_multilimit.engine.algorithms import ALGORITHMS, BAN

    included = {name for twin in ALGORITHMS.values() for name in twin.INCLUDES}

    assert path.stem in {*ALGORITHMS, BAN, *included}


def test_contributing_lists_the_floors_in_the_same_order() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^  \| (`.*?`) \| ", page, re.MULTILINE)

    assert [set(re.findall(r"`(\w+)/?`", row)) for row in rows] == list(HOUSE[""])
