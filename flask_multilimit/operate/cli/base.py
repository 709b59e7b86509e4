"""What the commands share: the app's gate, and how they answer people and programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from flask import current_app
from flask.cli import with_appcontext

from ...config import PREFIX
from ...engine import Limiter, MultiLimitError, Rule, StorageError
from ...engine.errors import with_remedy
from ...engine.rules import UNITS
from ...serve.gate import AppGate, gate_of
from .. import console

SCHEMA = 1
"""Of what ``--json`` writes: docs/reference/cli.md. Fields may be added; a changed meaning is a new number."""

C = TypeVar("C", bound=Callable[..., Any])


def command(name: str, *, short_help: str) -> Callable[[Callable[..., Any]], click.Command]:
    """A command of ``flask multilimit``, which runs in the app's context."""

    def decorated(function: Callable[..., Any]) -> click.Command:
        return click.command(name, short_help=short_help)(with_appcontext(function))

    return decorated


def current_gate() -> AppGate:
    return gate_of(current_app)


def bare_limiter(gate: AppGate) -> Limiter:
    """Of the storage itself: what a process decides by itself while it fails is of no use here."""
    return Limiter(gate.limiter.storage)


@contextmanager
def for_people() -> Iterator[None]:
    """What goes wrong is told in a line, not in a traceback."""
    try:
        yield
    except MultiLimitError as error:
        raise click.ClickException(with_remedy(error) if isinstance(error, StorageError) else str(error)) from error


def write(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def write_json(**fields: Any) -> None:
    click.echo(json.dumps({"schema": SCHEMA, **fields}, indent=2, ensure_ascii=False))


as_json: Callable[[C], C] = click.option("--json", "as_json", is_flag=True, help="Write JSON, for programs.")


_UNITS: dict[float, str] = {seconds: unit for unit, seconds in UNITS.items()}


def rule_text(rule: Rule) -> str:
    return f"{rule.count} per {_UNITS.get(rule.time) or console.duration(rule.time)}"


def rule_as_json(rule: Rule | None) -> dict[str, Any]:
    return {
        field: None if rule is None else getattr(rule, field)
        for field in ("count", "time", "algorithm", "burst", "max_delay", "lease")
    }


PER_PROCESS = (
    "memory:// is in each process by itself, and this command is a process of its own: it neither sees nor changes "
    f"what the workers count. {PREFIX}STORAGE_URI names a server that all share."
)
