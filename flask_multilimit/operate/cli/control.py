"""``set``, ``unset``, ``allow``, ``deny``, ``ban``, ``entries``, ``history``: change limits while the app runs."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

import click
from flask import current_app

from ...config import PREFIX
from ...control.document import Preview
from ...control.entries import Listing, Override
from ...engine import ConfigurationError
from ...serve.applier import ControlApplier, applier_of
from .. import console
from .base import C, as_json, command, for_people, user_name, write, write_json

_PER_PROCESS = (
    f"{PREFIX}STORAGE_URI=memory:// is separate in each process: this command would change nothing but itself. "
    "Set a storage that the workers share: local://, or a server of Redis or Valkey"
)

_OF_NOBODY = (
    f"no process uses the server of {PREFIX}STORAGE_URI, so the change would end with this command: start the app and "
    "send it a request, or write the change into a file of limits"
)


def _applier() -> ControlApplier:
    """Raise :class:`ConfigurationError` if a change would not reach the workers."""
    applier = applier_of(current_app)
    if not applier.control.shared:
        raise ConfigurationError(_PER_PROCESS)
    if not applier.enabled:
        raise ConfigurationError(f"{PREFIX}CONTROL or {PREFIX}ENABLED is False, so no worker would learn of a change")
    return applier


def change_options(command: C) -> C:
    """The options of every change."""
    options = (
        click.option("--for", "for_", metavar="TIME", help="How long the change lasts: 90s, 15m, 2h, 1d."),
        click.option("--lasting", is_flag=True, help="Keep the change until someone undoes it."),
        click.option("--reason", default="", help="The reason, for entries and history."),
        click.option("--author", default=None, help="The author; default: the user who runs this command."),
        click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing."),
        click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
        click.option(
            "--force", is_flag=True, help="Confirm a change that locks out nearly all, or applies to nothing."
        ),
        as_json,
    )
    return functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


@command("set", short_help="Change a limit while the app runs.")
@click.argument("endpoint", required=False)
@click.argument("rule", required=False)
@click.argument("rules", required=False)
@click.option("--limiter", metavar="NAME", help="Limiters with this name or type, instead of a RULE.")
@click.option("--who", metavar="WHO", help="Limits that count a subject (user:42) or network, instead of a RULE.")
@click.option("--rules", "given_rules", metavar="TEXT", help="The new rules, for --limiter and --who.")
@click.option("--times", type=float, help="Multiply the count and the burst.")
@click.option("--shadow/--no-shadow", default=None, help="Count, but never refuse; or refuse again.")
@click.option("--off", is_flag=True, help="Switch the limits off.")
@click.option("--limit", metavar="TEXT", help="Add this limit to ENDPOINT; see --type.")
@click.option("--type", "type_", metavar="TYPE", default="default", help="The type of --limit: ip, user, default, ...")
@change_options
def set_command(
    endpoint: str | None,
    rule: str | None,
    rules: str | None,
    limiter: str | None,
    who: str | None,
    given_rules: str | None,
    times: float | None,
    shadow: bool | None,
    off: bool,
    limit: str | None,
    type_: str,
    **options: Any,
) -> None:
    """Change the limits at ENDPOINT: an endpoint, a blueprint, a pattern such as "api.*", or "*" for all.

    RULE is the name of a rule in header fields, and RULES replace it: set api.search ip-60s 200/minute --for 2h.
    Units that are used stay used.
    """
    given = {
        "kind": "override",
        "endpoint": endpoint,
        "rule": rule,
        "limiter": limiter,
        "who": who,
        "rules": rules or given_rules,
        "times": times,
        "shadow": shadow,
        "off": off,
        "limit": None if limit is None else {"type": type_, "rules": limit},
    }
    said = {
        name: value for name, value in given.items() if value is not None and (value is not False or name == "shadow")
    }
    _change(said, **options)


@command("allow", short_help="Never limit a network or a subject.")
@click.argument("who")
@change_options
def allow_command(who: str, **options: Any) -> None:
    """Never limit WHO: an address, a network, or a subject with its type, such as user:42."""
    _change({"kind": "allow", "who": who}, **options)


@command("deny", short_help="Refuse a network or a subject before any limit.")
@click.argument("who")
@click.option(
    "--status", type=click.Choice(["403", "429"]), help=f"The status of refusals; default: {PREFIX}DENY_STATUS."
)
@change_options
def deny_command(who: str, status: str | None, **options: Any) -> None:
    """Refuse WHO before any limit is checked: an address, a network, or a subject with its type, such as user:42."""
    _change({"kind": "deny", "who": who, "status": None if status is None else int(status)}, **options)


@command("ban", short_help="Refuse a network or a subject for a time, with 429.")
@click.argument("who")
@change_options
def ban_command(who: str, **options: Any) -> None:
    """Refuse WHO for a time, with 429 and Retry-After: an address, a network, or a subject such as user:42."""
    _change({"kind": "ban", "who": who}, **options)


def _change(
    given: Mapping[str, Any],
    *,
    for_: str | None,
    lasting: bool,
    reason: str,
    author: str | None,
    dry_run: bool,
    yes: bool,
    force: bool,
    as_json: bool,
) -> None:
    if (for_ is None) == (not lasting):
        raise click.UsageError("Say how long it lasts: --for 2h, or --lasting.")
    with for_people():
        control = _applier().control
        if not control.in_use:
            raise ConfigurationError(_OF_NOBODY)
        author = user_name() if author is None else author
        preview = control.preview(given, for_=for_, lasting=lasting, reason=reason, author=author)
        if not as_json:
            console.write(_preview_lines(preview), err=not dry_run)
        if not dry_run:
            _confirm(preview.warning, yes=yes, force=force)
            control.put(preview.entry, force=True)
    if as_json:
        write_json(changed=not dry_run, **_preview_as_json(preview))
    elif not dry_run:
        console.echo(f"In force within a second. To undo it: flask multilimit unset {preview.entry.id}")


def _confirm(warning: str, *, yes: bool, force: bool) -> None:
    """Ask for confirmation, twice if nearly everyone would be locked out. A script needs --force then."""
    if warning and yes and not force:
        raise ConfigurationError(f"{warning}; to do it anyway, add --force")
    if not yes:
        console.confirm("Change this?", abort=True, err=True)
        if warning and not force:
            console.confirm(f"{warning}. Really?", abort=True, err=True)


@command("unset", short_help="Undo a change.")
@click.argument("id_", metavar="ID")
@click.option("--reason", default="", help="The reason, for history.")
@click.option("--author", default=None, help="The author; default: the user who runs this command.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@as_json
def unset_command(id_: str, reason: str, author: str | None, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Undo the change with this ID, as `entries` shows it. What was declared applies again."""
    with for_people():
        applier = _applier()
        preview = applier.control.preview_undo(id_)
        if not as_json:
            console.write(_preview_lines(preview), err=not dry_run)
        if not dry_run:
            if not yes:
                console.confirm("Undo this?", abort=True, err=True)
            author = user_name() if author is None else author
            applier.control.undo(id_, reason=reason, author=author)
    if as_json:
        write_json(changed=not dry_run, **_preview_as_json(preview))
    elif not dry_run:
        console.echo("Undone in all workers within a second.")


@command("entries", short_help="List the changes in force.")
@as_json
def entries_command(as_json: bool) -> None:
    """List the overrides, allow and deny entries and bans in force."""
    with for_people():
        applier = _applier()
        entries, idle = applier.control.entries(), applier.control.idle()
    if as_json:
        write_json(entries=[{**_entry_as_json(each), "idle": each.id in idle} for each in entries])
        return
    if not entries:
        write(["Nothing is changed: all limits are as declared."])
        return
    rows = [
        (
            each.id,
            f"{each}{' (matches nothing in the app)' if each.id in idle else ''}",
            _until(each),
            each.author,
            each.reason,
        )
        for each in entries
    ]
    write(console.columns(rows, headings=("ID", "CHANGE", "ENDS IN", "BY", "REASON")))


@command("history", short_help="List the latest changes and resets.")
@click.option(
    "--most", type=click.IntRange(1, 1000), default=20, show_default=True, help="Maximum number of changes to list."
)
@as_json
def history_command(most: int, as_json: bool) -> None:
    """List the latest changes and resets, the newest first, with who made them and why."""
    with for_people():
        changes = _applier().control.history(most)
    if as_json:
        write_json(changes=list(changes))
        return
    if not changes:
        write(["Nothing has been changed yet."])
        return
    rows = [(_date(each["at"]), each["author"], f"{each['what']} {each['entry']}", each["reason"]) for each in changes]
    write(console.columns(rows, headings=("WHEN (UTC)", "BY", "CHANGE", "REASON")))


def _preview_lines(preview: Preview) -> list[str]:
    lines = console.paragraph(f"{preview.entry}, {_until(preview.entry, 'for ')}", indent=2, first="")
    if preview.replaces is not None:
        lines += console.paragraph(f"in place of {preview.replaces} ({preview.replaces.id})", indent=4, first="  ")
    for each in preview.endpoints:
        lines += console.paragraph(f"{each.endpoint}  {', '.join(each.methods)}", indent=4, first="  ")
        lines += [f"    - {text}" for text in each.before if text not in each.after]
        lines += [f"    + {text}" for text in each.after if text not in each.before]
    if preview.warning:
        lines += console.paragraph(f"Beware: {preview.warning}.", indent=2)
    return lines


def _until(entry: Override | Listing, before: str = "") -> str:
    if entry.until is None:
        return "lasting"
    return before + console.duration(max(entry.until - time.time(), 0))


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _entry_as_json(entry: Override | Listing) -> dict[str, Any]:
    return entry.model_dump(mode="json", exclude_unset=True)


def _preview_as_json(preview: Preview) -> dict[str, Any]:
    return {
        "entry": _entry_as_json(preview.entry),
        "endpoints": [asdict(each) for each in preview.endpoints],
        "replaces": None if preview.replaces is None else _entry_as_json(preview.replaces),
        "warning": preview.warning,
    }
