"""What an app can see of its Limiter is the same on Flask-Limiter and on our bridge, except for listed differences."""

import importlib.util
import inspect
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import pytest

from flask_multilimit.compat.flask_limiter import differences
from support import flask_limiter_usages as usages
from support.limiters import OURS, THEIRS, Library, library

T = TypeVar("T")
HERE = Path(__file__).parent


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


behaviours = load("behaviours")
BEHAVIOURS: dict[str, Callable[[Library], str]] = {
    name: function
    for name, function in vars(behaviours).items()
    if isinstance(function, FunctionType) and function.__module__ == "behaviours" and not name.startswith("_")
} | usages.USAGES
SEEN: dict[str, tuple[str, str, str]] = load("seen").SEEN


def observe(name: str, behaviour: Callable[[Library], T], monkeypatch: pytest.MonkeyPatch) -> T:
    with monkeypatch.context() as patch, library(name, patch.setattr) as lib:
        return behaviour(lib)


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Flask-Limiter reads a date in GMT as one of the machine's time zone."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("utc")
@pytest.mark.filterwarnings("ignore:Using the in-memory storage:UserWarning")
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_behaviour_is_the_same_or_a_listed_difference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = (observe(library, BEHAVIOURS[name], monkeypatch) for library in (THEIRS, OURS))
    listed = SEEN.get(name)
    assert (theirs, ours) == ((listed[1], listed[2]) if listed else (theirs, theirs))
    assert listed is None or theirs != ours, "it is no difference any more: take it off the list"


def names_on_the_page() -> set[str]:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "migrate-from-flask-limiter.md"
    table = page.read_text(encoding="utf-8").partition("% differences\n")[2].partition("\n\n")[0].splitlines()[2:]
    return {line.split("|")[1].strip() for line in table}


def test_migration_page_lists_every_observed_difference() -> None:
    assert {name for name, _, _ in SEEN.values()} == names_on_the_page()
    assert set(SEEN) <= set(BEHAVIOURS)


def test_migration_page_explains_every_difference_in_the_warning() -> None:
    assert set(differences.DIFFERENCES) <= names_on_the_page()


def text_of_behaviours() -> str:
    return (HERE / "behaviours.py").read_text(encoding="utf-8") + Path(usages.__file__).read_text(encoding="utf-8")


def parameters_of_theirs() -> set[str]:
    from flask_limiter import ApplicationLimit, Limit, Limiter, MetaLimit

    functions: list[Callable[..., Any]] = [Limiter.__init__, Limiter.limit, Limiter.shared_limit, Limiter.exempt]
    functions += [Limit, ApplicationLimit, MetaLimit]
    return {name for function in functions for name in inspect.signature(function).parameters}


POSITIONAL = {"self", "obj", "limit_provider"}
INTERNAL = {"finalized"}
"""What Flask-Limiter keeps for itself."""


def test_every_parameter_of_flask_limiter_has_a_behaviour() -> None:
    text = text_of_behaviours()
    missing = {name for name in parameters_of_theirs() if not re.search(rf"\b{name}(?:=|\": )", text)}
    assert missing == POSITIONAL | INTERNAL


def test_every_setting_and_export_of_flask_limiter_has_a_behaviour() -> None:
    import flask_limiter
    from flask_limiter.constants import ConfigVars

    text = text_of_behaviours()
    settings = {value for name, value in vars(ConfigVars).items() if name.isupper()}
    unread = {ConfigVars.KEY_FUNC}

    assert settings - set(re.findall("RATELIMIT_[A-Z_]+", text)) == unread
    assert {name for name in flask_limiter.__all__ if f"names.{name}" not in text} == {"RequestLimit"}


def test_every_public_attribute_of_flask_limiter_has_a_behaviour() -> None:
    from flask_limiter import Limiter, RequestLimit

    from flask_multilimit.compat import flask_limiter as ours

    text = text_of_behaviours()
    public = {name for kind in (Limiter, RequestLimit) for name in vars(kind) if not name.startswith("_")}

    assert all(f".{name}" in text for name in public)
    assert set(__import__("flask_limiter").__all__) <= set(ours.__all__)
