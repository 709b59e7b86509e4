"""The parts that all commands share: the app's gate, and output for people and programs."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from flask import current_app
from flask.cli import with_appcontext

from ...config import PREFIX
from ...engine import ConfigurationError, Limiter, MultiLimitError, StorageError
from ...engine.errors import with_remedy
from ...engine.storage.addresses import redacted
from ...serve.applier import applier_of
from ...serve.gate import AppGate, gate_of
from .. import console

SCHEMA = 1
"""The version of the ``--json`` output (docs/reference/cli.md). It increases when a field changes its meaning or
disappears."""

C = TypeVar("C", bound=Callable[..., Any])


def command(name: str, *, short_help: str) -> Callable[[Callable[..., Any]], click.Command]:
    """A command of ``flask multilimit``, which runs in the app's context."""

    def decorated(function: Callable[..., Any]) -> click.Command:
        return click.command(name, short_help=short_help)(with_appcontext(function))

    return decorated


def current_gate() -> AppGate:
    """The gate of the app, with the changes made while it runs."""
    applier_of(current_app).look()
    return gate_of(current_app)


def bare_limiter(gate: AppGate) -> Limiter:
    """A limiter without layers: decisions of this process in place of a failed storage are of no use here."""
    return Limiter(gate.limiter.storage)


@contextmanager
def for_people() -> Iterator[None]:
    """Show errors as one line instead of a traceback."""
    try:
        yield
    except MultiLimitError as error:
        raise click.ClickException(with_remedy(error) if isinstance(error, StorageError) else str(error)) from error


write = console.write


def write_json(**fields: Any) -> None:
    console.write_json({"schema": SCHEMA, **fields})


def user_name() -> str:
    """The name of the user who runs this; in a container there may be none."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return ""


as_json: Callable[[C], C] = click.option("--json", "as_json", is_flag=True, help="Write JSON for programs.")


def require_shared_storage(gate: AppGate) -> None:
    """Raise :class:`ConfigurationError` if the quotas are in the memory of other processes."""
    if not gate.limiter.storage.shared and not gate.startup.checked:
        raise ConfigurationError(
            f"{PREFIX}STORAGE_URI={redacted(gate.settings.storage_uri)} keeps quotas in the memory of each worker "
            "process, where this command can neither see nor change them; to share them, use local:// or a server of "
            "Redis or Valkey"
        )
