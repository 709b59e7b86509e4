"""Changes limits while the app runs: ``set``, ``unset``, lists, bans, ``entries`` and ``history``."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO

import click
from flask import current_app

from ...config import PREFIX
from ...control.control import Preview
from ...control.entries import Listing, Override
from ...control.store import MOST_ENTRIES
from ...control.watch import LONGEST_COPY
from ...declare.addresses import Who
from ...engine import ConfigurationError
from ...engine.rules import rules_in
from ...engine.text import quoted
from ...insight.bans import BanInForce, Lifted, add_to_history, bans, unban
from ...insight.changes import Entry, PastChange, entries, history
from ...insight.clients import client_from
from ...insight.impact import Impact, impact
from ...insight.standing import refusing_lists
from ...insight.text import duration, local_time, plural
from ...serve.applier import ControlApplier
from ...serve.gate import gate_of
from .. import console
from . import ActionOptions, C, action_options, command, gathered, shared_gate, show, user_name, wants_json

_NOT_IN_USE = (
    f"no process uses the server of {PREFIX}STORAGE_URI, so the change would be lost when this command ends: start the "
    "app and send it a request, or write the change into a file of limits"
)
MOST_SHOWN = 10
"""The most entries that an error names, and the most endpoints that a preview lists: what it is stays on the screen."""


def _applier(*, changes: bool = False) -> ControlApplier:
    """The applier of the app, with the newest changes. Raises :class:`ConfigurationError` if a change would not reach
    the workers; of a command that ``changes`` something, also if no process uses the server."""
    applier = gate_of(current_app).applier
    if not applier.control.shared:
        kind, needed = type(shared_gate().limiter.storage).__name__, "local://, or a Redis or Valkey server"
        raise ConfigurationError(f"a {kind} cannot keep changes made while the app runs: they need {needed}")
    if not applier.enabled:
        raise ConfigurationError(f"{PREFIX}CONTROL or {PREFIX}ENABLED is False, so workers do not follow changes")
    if changes and not applier.control.in_use:  # this process would be the first to use it
        raise ConfigurationError(_NOT_IN_USE)
    applier.look()
    return applier


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """How to put something in force: the values of :func:`change_options`."""

    for_: str | None
    lasting: bool
    force: bool
    action: ActionOptions


def change_options(force: str, *, lasting: bool = True) -> Callable[[C], C]:
    """The options of every change, which a command gets as ``change``. ``force``: what it confirms."""
    return gathered(
        "change",
        ChangeOptions,
        click.option("--for", "for_", metavar="TIME", help="How long the change lasts: 90s, 15m, 2h, 1d."),
        click.option("--lasting", is_flag=True, hidden=not lasting, help="Keep the change until someone undoes it."),
        click.option("--force", is_flag=True, help=f"Confirm a change that {force}."),
        action_options,
    )


@command("set", short_help="Change a limit while the app runs.")
@click.argument("endpoint", required=False)
@click.argument("rule", required=False)
@click.argument("new_rules", metavar="[RULES]", required=False)
@click.option("--limiter", metavar="NAME", help="Limiters with this name or type, instead of a RULE.")
@click.option("--who", metavar="WHO", help="Limits that count a subject (user:42) or network, instead of a RULE.")
@click.option("--rules", metavar="TEXT", help="The new rules, for --limiter and --who.")
@click.option("--times", type=float, help="Multiply the count and the burst.")
@click.option("--shadow/--no-shadow", default=None, help="Count, but never refuse; or refuse again.")
@click.option("--off", is_flag=True, help="Switch the limits off.")
@click.option("--limit", metavar="TEXT", help="Add this limit to ENDPOINT; see --type.")
@click.option("--type", "type_", metavar="TYPE", help="The type of --limit: ip, user, ...; default: default.")
@change_options("locks out or exempts nearly everybody, or applies to nothing")
def set_command(
    change: ChangeOptions, new_rules: str | None, limit: str | None, type_: str | None, **given: Any
) -> None:
    """Change the limits at ENDPOINT: an endpoint, a blueprint, a pattern such as "api.*", or "*" for all.

    RULE is the name of a rule in header fields, and RULES replace it: set api.search ip-60s 200/minute --for 2h.
    Units that are used stay used, unless the window, the calendar or the algorithm changes.
    """
    if new_rules and given["rules"]:
        raise click.UsageError("RULES and --rules: give only one of them.")
    given["rules"] = new_rules or given["rules"]
    if limit is not None:
        shadow = {"shadow": True} if given.pop("shadow") else {}
        given["limit"] = {"type": type_ or "default", "rules": limit, **shadow}
    said = {name for name, value in given.items() if value is not None and (value or name != "off")}
    if said - {"limiter", "who"} == {"endpoint", "rule"} and _are_rules(given["rule"]):
        new, command = shlex.quote(given["rule"]), f"flask multilimit set {shlex.quote(given['endpoint'])}"
        remedy = (
            f"To replace a rule: {command} RULE {new}. To add a limit: {command} --limit {new} "
            f"--type {type_ or 'default'}. `flask multilimit limits` lists the rules"
        )
        if said & {"limiter", "who"}:
            remedy = f"With --limiter or --who, write --rules {new}"
        raise click.UsageError(f"{new} is where the name of a RULE belongs. {remedy}")
    if type_ is not None and limit is None:
        raise click.UsageError("--type is for --limit. To change the limiters of a type, name it with --limiter.")
    _change({"kind": "override", **given}, change)


def _are_rules(text: str) -> bool:
    try:
        return bool(rules_in(text))
    except ConfigurationError:
        return False


@command("allow", short_help="Never limit a network or a subject.")
@click.argument("who")
@change_options("exempts nearly everybody")
def allow_command(who: str, change: ChangeOptions) -> None:
    """Never limit WHO: an address, a network, or a subject with its type, such as user:42."""
    _change({"kind": "allow", "who": who}, change)


@command("deny", short_help="Refuse a network or a subject before any limit.")
@click.argument("who")
@click.option(
    "--status", type=click.Choice(["403", "429"]), help=f"The status of refusals; default: {PREFIX}DENY_STATUS."
)
@change_options("locks out nearly everybody, or ends before the one that it replaces")
def deny_command(who: str, status: str | None, change: ChangeOptions) -> None:
    """Refuse WHO before any limit is checked: an address, a network, or a subject with its type, such as user:42."""
    _change({"kind": "deny", "who": who, "status": None if status is None else int(status)}, change)


@command("ban", short_help="Refuse a network or a subject for a time, with 429.")
@click.argument("who")
@change_options("locks out nearly everybody, or ends before the one that it replaces", lasting=False)
def ban_command(who: str, change: ChangeOptions) -> None:
    """Refuse WHO for a time, with 429 and Retry-After: an address, a network, or a subject such as user:42."""
    _change({"kind": "ban", "who": who}, change)


def _change(given: Mapping[str, Any], change: ChangeOptions) -> None:
    if (change.for_ is None) == (not change.lasting):
        or_lasting = "" if given["kind"] == "ban" else ", or --lasting"
        raise click.UsageError(f"Say how long it lasts: --for 2h{or_lasting}.")
    applier, action = _applier(changes=True), change.action
    control = applier.control
    preview = control.preview(
        given, for_=change.for_, lasting=change.lasting, reason=action.reason, author=action.author
    )

    def put() -> None:
        _confirm(preview.warning, yes=action.yes, force=change.force)
        control.put(preview, force=True)

    undo = f"To undo it: flask multilimit unset {preview.entry.id}"
    _carry_out(preview, put, action, f"In force within a second. {undo}")


def _carry_out(preview: Preview, change: Callable[[], None], action: ActionOptions, done: str) -> None:
    """Show what a change would do, and make it, which may ask first."""
    gate = gate_of(current_app)
    found = impact(gate, preview)
    if not wants_json():
        console.write(_impact_lines(found, gate.applier.time()), err=not action.dry_run)
    if not action.dry_run:
        change()
    show(lambda: [] if action.dry_run else [done], found, changed=not action.dry_run)


def _confirm(warning: str, *, yes: bool, force: bool) -> None:
    """Ask for confirmation, twice if nearly everyone would be locked out. A script needs --force then."""
    if warning and yes and not force:
        raise ConfigurationError(f"{warning}; to do it anyway, add --force")
    if not yes:
        console.confirm("Change this?")
        if warning and not force:
            console.confirm(f"{warning}. Really?")


@command("unset", short_help="Undo a change.")
@click.argument("what", metavar="ID | ENDPOINT [RULE] | WHO", nargs=-1)
@click.option("--limiter", metavar="NAME", help="The limiters that `set` was given, instead of a RULE.")
@click.option("--who", metavar="WHO", help="The subject or network that `set` was given.")
@action_options
def unset_command(what: tuple[str, ...], limiter: str | None, who: str | None, action: ActionOptions) -> None:
    """Undo the change with this ID, as `entries` shows it; or name what was changed as for `set`, `allow`, `deny` or
    `ban`. What was declared applies again."""
    if len(what) > 2 or not (what or who):
        raise click.UsageError("Give an ID, or what was changed: ENDPOINT RULE, or WHO.")
    applier = _applier()
    id_ = _id_of(applier.control.entries(), what, limiter=limiter, who=who)

    def undo() -> None:
        if not action.yes:
            console.confirm("Undo this?")
        applier.control.undo(id_, reason=action.reason, author=action.author)

    _carry_out(applier.control.preview_undo(id_), undo, action, "Undone in all workers within a second.")


def _id_of(in_force: Sequence[Override | Listing], what: Sequence[str], *, limiter: str | None, who: str | None) -> str:
    """The id of the entry that ``what`` and the options name. Raises :class:`ConfigurationError` unless it is one."""
    first, second = (*what, None, None)[:2]
    if limiter is None and who is None and second is None and any(each.id == first for each in in_force):
        return str(first)
    given = {(first, second, limiter, None if who is None else Who.parse(who))}
    with suppress(ConfigurationError):  # it may be an endpoint
        given.add((None, None, None, Who.parse(first)))
    names = ("endpoint", "rule", "limiter", "who")
    found = [each for each in in_force if tuple(getattr(each, name, None) for name in names) in given]
    if len(found) == 1:
        return found[0].id
    named = " ".join(part for part in (*what, limiter, who) if part)
    if not in_force:
        raise ConfigurationError(f"{named}: nothing is changed, so there is nothing to undo")
    near = found or [each for each in in_force if first and getattr(each, "endpoint", None) == first] or in_force
    shown = "; ".join(f"{each.id}: {each}" for each in near[:MOST_SHOWN])
    many = f"{len(found)} changes in force fit" if found else "no change in force fits"
    raise ConfigurationError(f"{named}: {many} that. Give the ID of one: {shown}")


@command("unban", short_help="Lift every ban of a client.")
@click.argument("who")
@action_options
def unban_command(who: str, action: ActionOptions) -> None:
    """Lift every ban of WHO, everywhere: those set by people, and those started by limiters.

    WHO is an address, or a subject with its type, such as user:42. Quotas stay as they are; see `reset`.
    """
    gate = shared_gate()
    client = client_from(gate, who)
    found = unban(gate, client, dry_run=True)
    if not (action.dry_run or action.yes or not (found.entries or found.keys)):
        console.write(_lifted_lines(found, "Lift"), err=True)
        console.confirm("Lift them?")
    if not action.dry_run:
        reason, author = action.reason, action.author
        found = unban(gate, client, reason=reason, author=author)
        if found.keys and (problem := add_to_history(gate, "unban", quoted(found.who), reason=reason, author=author)):
            console.echo(f"Lifted, but the history does not show it: {problem}", err=True)
    left = [each for each in refusing_lists(gate, client) if each not in found.entries]
    show(
        lambda: _lifted_lines(found, "Would lift" if action.dry_run else "Lifted", left),
        found,
        left=left,
        changed=not action.dry_run and bool(found.entries or found.keys),
    )


def _lifted_lines(found: Lifted, done: str, left: Sequence[str] = ()) -> list[str]:
    others = [f"Still in force: {', '.join(left)}."] if left else []
    if not (found.entries or found.keys):
        return [f"Nothing to lift: no ban of {quoted(found.who)} is in force.", *others]
    begun = [f"{plural(len(found.keys), 'ban')} started by limiters"] if found.keys else []
    return [f"{done}: {', '.join([*found.entries, *begun])}.", *others]


@command("bans", short_help="List every ban in force.")
def bans_command() -> None:
    """List every ban in force: those set by people, and those started by limiters.

    Bans by limiters are found in the counted traffic, which shows them a second after they began at the latest; with
    MULTILIMIT_TRAFFIC=False, by SCAN.
    """
    found = bans(shared_gate())
    show(lambda: _ban_lines(found), bans=found)


def _ban_lines(found: Sequence[BanInForce]) -> list[str]:
    if not found:
        return ["Nobody is banned."]
    rows = [
        (
            quoted(each.who),
            each.by,
            each.endpoint,
            local_time(each.since),
            duration(each.ends_in),
            str(each.level or ""),
            each.reason,
        )
        for each in found
    ]
    return console.columns(rows, headings=("WHO", "BY", "ENDPOINT", "SINCE", "ENDS IN", "REPETITION", "REASON"))


@command("entries", short_help="List the changes in force.")
@click.option(
    "--export", "export", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True), help="Write them to FILE."
)
@click.option("--import", "imported", metavar="FILE", type=click.File("rb"), help="Put the entries of FILE in force.")
@click.option("--reason", default="", help="The reason for the import, for the history.")
@click.option("--force", is_flag=True, help="Confirm an import that locks out or exempts nearly everybody.")
def entries_command(export: str | None, imported: BinaryIO | None, reason: str, force: bool) -> None:
    """List the overrides, allow and deny entries and bans in force; or export them, or import entries from a file.

    An entry of the file replaces the one for the same limit or client; all others stay.
    """
    if export is not None and imported is not None:
        raise click.UsageError("--export and --import: give only one of them.")
    if imported is None and (reason or force):
        raise click.UsageError(f"{'--reason' if reason else '--force'} is for --import.")
    applier = _applier(changes=imported is not None)
    if export is not None:
        _export(applier.control.export_entries() + "\n", export)
        return
    if imported is not None:
        _import(applier, imported, reason=reason, force=force)
        return
    found = entries(gate_of(current_app), rows=MOST_ENTRIES)
    if found.problem:
        raise ConfigurationError(found.problem)
    show(lambda: _entry_lines(found.entries, applier.time()), entries=found.entries, declared=found.declared)


def _entry_lines(found: Sequence[Entry], now: float) -> list[str]:
    if not found:
        return ["No changes: all limits are as declared."]
    rows = [
        (each.id, f"{each.text}{_does_not_apply(each)}", _left(each.until, now), each.author, each.reason)
        for each in reversed(found)
    ]
    return console.columns(rows, headings=("ID", "CHANGE", "ENDS IN", "BY", "REASON"))


def _export(text: str, file: str) -> None:
    """Write ``text`` to ``file``. If that fails, the file keeps its content. Nobody else than before can read it."""
    if file == "-":
        console.write_text(text)
        return
    path, temporary = Path(file), None
    try:
        if path.is_file() or not path.exists():  # anything else, such as a pipe, cannot be replaced
            temporary = path.resolve().with_name(f"{path.name}.{token_hex(4)}")
        if temporary is not None and path.exists():
            temporary.touch(path.stat().st_mode & 0o777 | 0o200)
        (temporary or path).write_text(text, encoding="utf-8")
        if temporary is not None:
            temporary.replace(path.resolve())
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error
    finally:
        if temporary is not None:
            with suppress(OSError):  # there may be none
                temporary.unlink()
    console.echo(f"Exported to {file}.", err=True)


def _import(applier: ControlApplier, file: BinaryIO, *, reason: str, force: bool) -> None:
    try:
        made = applier.control.import_entries(file.read(LONGEST_COPY), reason=reason, author=user_name(), force=force)
    except ConfigurationError as error:
        raise ConfigurationError(f"{file.name}: {error}") from error
    done = f"In force within a second: {plural(len(made), 'entry', 'entries')} of {file.name}."
    console.echo(done if made else f"Nothing to import: {file.name} has no entries, or all have ended.", err=True)
    show(list, imported=len(made), changed=bool(made))


@command("history", short_help="List the latest changes and resets.")
@click.option(
    "--most", type=click.IntRange(1, 1000), default=20, show_default=True, help="Maximum number of changes to list."
)
def history_command(most: int) -> None:
    """List the latest changes and resets, the newest first, with who made them and why."""
    _applier()
    found = history(gate_of(current_app), most=most, rows=most)
    if found.problem:
        raise ConfigurationError(found.problem)
    show(lambda: _history_lines(found.changes), changes=found.changes)


def _history_lines(changes: Sequence[PastChange]) -> list[str]:
    if not changes:
        return ["Nothing has been changed yet."]
    rows = []
    for each in changes:
        replaced = f", in place of {each.replaces}" if each.replaces else ""
        in_force, change = each.id if each.in_force else "", f"{each.what} {each.entry}{replaced}"
        rows.append((local_time(each.at), each.author, change, in_force, each.reason))
    return console.columns(rows, headings=("WHEN", "BY", "CHANGE", "IN FORCE", "REASON"))


def _impact_lines(found: Impact, now: float) -> list[str]:
    entry = found.entry
    until = "permanently" if entry.until is None else f"for {_left(entry.until, now)}"
    lines = console.paragraph(f"{entry.text}, {until}", indent=2, first="")
    if found.replaces is not None:
        by = f", by {found.replaces.author}" if found.replaces.author else ""
        lines += console.paragraph(f"in place of {found.replaces.text} ({found.replaces.id}{by})", indent=4, first="  ")
    if entry.kind == "override" and not found.endpoints:
        lines.append("  No limit of a view changes.")
    for each in found.endpoints[:MOST_SHOWN]:
        lines += console.paragraph(f"{each.endpoint}  {', '.join(each.methods)}", indent=4, first="  ")
        for sign, texts in (("-", each.before), ("+", each.after)):
            lines += [line for text in texts for line in console.paragraph(text, indent=6, first=f"    {sign} ")]
    if len(found.endpoints) > MOST_SHOWN:
        lines.append(f"  and {len(found.endpoints) - MOST_SHOWN} more; see --dry-run --json")
    for text in found.notes:
        lines += console.paragraph(text, indent=2)
    if found.warning:
        lines += console.paragraph(f"Beware: {found.warning}.", indent=2)
    return lines


def _does_not_apply(entry: Entry) -> str:
    if entry.left_out:
        return " (left out: does not fit the limits of the app)"
    return " (matches nothing in the app)" if entry.idle else ""


def _left(until: float | None, now: float) -> str:
    return duration(None if until is None else max(until - now, 0))
