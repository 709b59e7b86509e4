"""The parts that all commands share: the app's gate, the options that name a client, output for people and programs."""

from __future__ import annotations

import functools
import getpass
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv6Network, ip_address
from typing import Any, TypeVar, cast

import click
from flask import current_app
from flask.cli import with_appcontext

from ...config import PREFIX
from ...declare.addresses import without_port
from ...declare.subjects import EVERYONE, subjects_from
from ...engine import ConfigurationError, MultiLimitError
from ...engine.errors import brief, message_of, with_remedy
from ...engine.storage.addresses import redacted
from ...engine.text import unquoted
from ...insight.changes import are_changes_known
from ...insight.values import as_json
from ...serve.gate import AppGate, gate_of
from .. import console

SCHEMA = 2
"""The version of ``--json`` (docs/reference/cli.md). It increases when a field changes its meaning or disappears."""

C = TypeVar("C", bound=Callable[..., Any])


def command(name: str, *, short_help: str, json: bool = True) -> Callable[[Callable[..., Any]], click.Command]:
    """A command of ``flask multilimit``, which runs in the app's context. Its errors are one line without a traceback.
    ``json``: it has the option ``--json``, which :func:`show` obeys."""

    def decorated(function: Callable[..., Any]) -> click.Command:
        made = click.command(name, short_help=short_help)(with_appcontext(_for_people()(function)))
        if json:
            made.params.append(_json_option)
        return made

    return decorated


@contextmanager
def _for_people() -> Iterator[None]:
    try:
        yield
    except MultiLimitError as error:
        raise click.ClickException(with_remedy(error)) from error


def current_gate(*, warn: bool = False) -> AppGate:
    """The gate of the app, with the changes made while it runs; with ``warn``, it says if these are not known."""
    gate = gate_of(current_app)
    gate.applier.look()
    if warn and not are_changes_known(gate):
        console.echo("The storage does not answer: changes made at run time are not known.", err=True)
    return gate


def show(lines: Callable[[], Iterable[str]], value: object = None, **fields: Any) -> None:
    """Write what a command found: ``lines`` for people; with ``--json``, the fields of a value of insight, and
    ``fields``, whose values may be such values too."""
    if not wants_json():
        console.write(lines())
        return
    whole = {} if value is None else as_json(value)
    console.write_json({"schema": SCHEMA, **whole, **{name: _plain(each) for name, each in fields.items()}})


def wants_json() -> bool:
    """Whether the command that runs was given ``--json``."""
    return bool(click.get_current_context().meta.get(_JSON))


def _note_json(context: click.Context, parameter: click.Parameter, given: bool) -> None:  # noqa: ARG001
    context.meta[_JSON] = given


_JSON = f"{__name__}.json"
_json_option = click.Option(
    ["--json"], is_flag=True, expose_value=False, callback=_note_json, help="Write JSON for programs."
)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return as_json(value) if hasattr(value, "__dataclass_fields__") else value


def user_name() -> str:
    """The name of the user who runs this; in a container there may be none."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return ""


def decorate(command: C, *options: Callable[[Any], Any]) -> C:
    """The command with ``options``, in their order."""
    return functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


def gathered(name: str, kind: type[Any], *options: Callable[[Any], Any]) -> Callable[[C], C]:
    """Options that a command gets as one argument: a ``kind``, whose fields they are."""

    def decorated(command: C) -> C:
        @functools.wraps(command)
        def with_one_argument(**given: Any) -> Any:
            return command(**{name: kind(**{each: given.pop(each) for each in kind.__slots__})}, **given)

        return decorate(cast("C", with_one_argument), *options)

    return decorated


def pairs_option(name: str, metavar: str, text: str, *parameters: str) -> Callable[[C], C]:
    """An option that can be given several times, each time as ``NAME=VALUE``."""

    def pairs(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
        found = {}
        for given in value:
            key, equals, text = given.partition("=")
            if not (key and equals and text):
                raise click.BadParameter(f"{brief(given)}: write {metavar}", context, parameter)
            found[key] = text
        return found

    return click.option(name, *parameters, multiple=True, callback=pairs, metavar=metavar, help=text)


@dataclass(frozen=True, slots=True)
class ActionOptions:
    """How to change something: the values of :func:`action_options`."""

    reason: str
    author: str
    dry_run: bool
    yes: bool


action_options: Callable[[C], C] = gathered(
    "action",
    ActionOptions,
    click.option("--reason", default="", help="The reason, for the history."),
    click.option("--author", default=user_name, help="The author; default: the user who runs this command."),
    click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing."),
    click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
)
"""The options of every command that changes something, which gets them as ``action``."""


def shared_gate() -> AppGate:
    """The gate of the app, if commands can see its quotas. Raises :class:`ConfigurationError`."""
    gate = current_gate()
    require_shared_storage(gate)
    return gate


def require_shared_storage(gate: AppGate) -> None:
    """Raise :class:`ConfigurationError` if quotas and changes are in the memory of other processes."""
    if not gate.limiter.storage.shared and not gate.startup.checked:
        raise ConfigurationError(
            f"{PREFIX}STORAGE_URI={redacted(gate.settings.storage_uri)} keeps quotas in the memory of each worker "
            "process, bans and other changes too: this command can neither see nor change them; to share them, use "
            "local:// or a Redis or Valkey server"
        )


# The options that name a client


def client_options(command: C) -> C:
    return decorate(
        command,
        click.option("--method", type=str.upper, metavar="METHOD", help="Only this request method; default: all."),
        click.option(
            "--ip",
            callback=_address,
            metavar="ADDRESS",
            help="A client address, or an IPv6 network that counts as one.",
        ),
        click.option("--user", metavar="ID", type=unquoted, help="A user, by the id that the user_loader returns."),
        click.option(
            "--subject",
            "subjects",
            multiple=True,
            callback=_subjects,
            metavar="TYPE:VALUE",
            help="A subject of any type, by the name of its limiter; anonymous:ADDRESS for a client without a login.",
        ),
    )


def options_for(parts: Sequence[str]) -> str:
    """The options that give a subject of these parts."""
    options = {"ip": "--ip", "user": "--user", EVERYONE.type: "--everyone"}
    return " and ".join(options.get(part) or f"--subject {part}:..." for part in parts)


def _subjects(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    try:
        return subjects_from([*map(unquoted, value)]) if value else {}
    except ConfigurationError as error:
        raise click.BadParameter(message_of(error), context, parameter) from None


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    try:
        if value and "/" in value:
            return str(IPv6Network(value))
        return value and str(ip_address(without_port(value)))
    except ValueError:
        raise click.BadParameter(f"{brief(value)} is not an IP address", context, parameter) from None
