"""``flask multilimit reset`` and ``keys``: gives a subject a fresh start, and lists the quotas in storage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import click

from ...declare.subjects import Subject, subjects_given
from ...engine import ConfigurationError, Hit
from ...engine.errors import brief
from ...engine.text import is_storable, quoted
from ...insight.bans import add_to_history, used_keys
from ...insight.clients import applied_at, require_limiters
from ...insight.keys import Key, all_keys, keys, keys_of, prefixes_of, stored_keys
from ...insight.limits import checked_by_extensions
from ...insight.text import duration, plural, rule_text, shown_subject
from ...serve.gate import AppGate
from .. import console
from . import (
    ActionOptions,
    action_options,
    client_options,
    command,
    current_gate,
    options_for,
    require_shared_storage,
    shared_gate,
    show,
    wants_json,
)

MOST_SHOWN = 20
"""The most keys that are listed before they are reset."""


@command("reset", short_help="Reset the quotas of a subject.")
@click.argument("endpoint", required=False)
@client_options
@click.option("--everyone", is_flag=True, help="The quotas that everyone shares (type DEFAULT).")
@click.option("--all", "everywhere", is_flag=True, help="At all endpoints, in functions and in checks.")
@click.option("--everything", is_flag=True, help="All quotas of all subjects.")
@action_options
def reset_command(
    endpoint: str | None,
    method: str | None,
    ip: str | None,
    user: str | None,
    everyone: bool,
    subjects: dict[str, str],
    everywhere: bool,
    everything: bool,
    action: ActionOptions,
) -> None:
    """Reset the quotas of a subject at ENDPOINT, at once and for every worker; with --all, everywhere.

    Quotas that everyone shares are reset only with --everyone, or with --everything. The history shows who reset
    what, and why.
    """
    given = subjects_given(ip=ip, user=user, everyone=everyone, subjects=subjects)
    _require_one_place(endpoint, method, given, everywhere=everywhere, everything=everything)
    whose = " + ".join(quoted(str(Subject(*each)).removeprefix("ip:")) for each in given.items())
    where = "everywhere" if endpoint is None else f"at {endpoint}"
    where += "" if method is None else f" ({method})"
    what = f"{whose} {where}" if given else "all quotas of all subjects"
    gate = current_gate()
    gate.subjects.require_clients(given)
    if endpoint is not None:
        _reset_at(gate, endpoint, method, given, what, action)
    else:
        require_shared_storage(gate)
        _reset_keys(gate, all_keys(gate) if everything else keys_of(gate, given), what, action)


def _require_one_place(
    endpoint: str | None, method: str | None, given: Mapping[str, str], *, everywhere: bool, everything: bool
) -> None:
    if sum((endpoint is not None, everywhere, everything)) != 1:
        raise click.UsageError("Say where: an ENDPOINT, or --all; or --everything.")
    if everything and given:
        raise click.UsageError("--everything resets all subjects; for one of them, use --all.")
    if not everything and not given:
        raise click.UsageError("Say whose quotas: --ip, --user, --subject or --everyone.")
    if endpoint is None and method is not None:
        raise click.UsageError("--method is for an ENDPOINT.")


def _reset_at(
    gate: AppGate, endpoint: str, method: str | None, given: Mapping[str, str], what: str, action: ActionOptions
) -> None:
    try:
        places = applied_at(gate, endpoint, method, given, declared=True)
    except ConfigurationError as error:
        if endpoint in gate.app.view_functions:
            raise
        raise ConfigurationError(f"{error}; for a function or a check, give --all in place of it") from None
    if checked_by_extensions(gate, endpoint) and not any(each.types for each in places):
        raise ConfigurationError(
            f'reset: only another extension checks limits at "{endpoint}"; `flask limiter clear` resets those of '
            "Flask-Limiter"
        )
    require_limiters("reset", endpoint, places, given, method, spelled=options_for)
    require_shared_storage(gate)
    by_request = ", ".join(dict.fromkeys(name for each in places for name in each.applied.unknown))
    owners = {key: owner for each in places for key, owner in each.applied.owners.items()}
    hits = dict[str, Hit]()
    for hit in (hit for each in places for hit in each.applied.hits):
        hits.setdefault(hit.key, hit)  # of two rules with one key, the one in force comes before the one declared
    if not hits:
        raise ConfigurationError(
            f'reset: the rules of {by_request} at "{endpoint}" depend on the request and are not known '
            "here, so nothing was reset; --all in place of the endpoint resets whatever is used"
        )
    rows = [
        (hit.name, shown_subject(gate.plans, *owners[key].subject), rule_text(hit.rule)) for key, hit in hits.items()
    ]
    to_reset = used_keys(gate, hits.values())
    used = [hit for key, hit in hits.items() if key in to_reset]
    full = [hit for key, hit in hits.items() if key not in to_reset]
    _reset(gate, list(hits), console.columns(rows, indent=2), what if used else "", action)
    show(
        lambda: _reset_lines(used, full, by_request, action),
        endpoint=endpoint,
        changed=not action.dry_run and bool(used),
        reset=[{"name": each.name, "key": each.key} for each in used],
        full_already=[{"name": each.name, "key": each.key} for each in full],
    )


def _reset_lines(used: Sequence[Hit], full: Sequence[Hit], by_request: str, action: ActionOptions) -> list[str]:
    names = dict.fromkeys(each.name for each in used)
    full_names = dict.fromkeys(each.name for each in full if each.name not in names)
    lines = [f"{_done_text(action)}: {', '.join(names)}."] if names else []
    lines += [f"Full already: {', '.join(full_names)}."] if full_names else []
    return lines + (console.paragraph(_OTHER_RULES.format(names=by_request)) if by_request else [])


def _reset_keys(gate: AppGate, found: list[str], what: str, action: ActionOptions) -> None:
    lines = [f"  {key}" for key in found[:MOST_SHOWN]]
    more = [f"  and {len(found) - MOST_SHOWN} more"] if len(found) > MOST_SHOWN else []
    if found:
        _reset(gate, found, [*lines, *more], what, action)
    done = f"{_done_text(action)}: {plural(len(found), 'quota')}." if found else "Nothing to reset: nothing is used."
    show(lambda: [done], endpoint=None, changed=not action.dry_run and bool(found), keys=found)


def _reset(gate: AppGate, found: list[str], shown: Iterable[str], what: str, action: ActionOptions) -> None:
    """Reset these keys. The history then shows ``what`` they are, unless that is empty, because nothing was used."""
    if action.dry_run:
        if not wants_json():
            console.write(shown)
        return
    if not action.yes:
        console.write(shown, err=True)
        console.confirm(f"Reset {plural(len(found), 'quota')}?")
    gate.reset(found)
    if what and (problem := add_to_history(gate, "reset", what, reason=action.reason, author=action.author)):
        console.echo(f"Reset, but the history does not show it: {problem}", err=True)


def _done_text(action: ActionOptions) -> str:
    return "Would reset" if action.dry_run else "Reset"


_OTHER_RULES = (
    "Not reset, because they depend on the request: the rules of {names}. With --all in place of the endpoint, their "
    "quotas are reset, too."
)


def _storable(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    if text is not None and not is_storable(text):
        raise click.BadParameter(f"{brief(text)} is not valid Unicode", context, option)
    return text


@command("keys", short_help="List the keys in storage.")
@click.option(
    "--prefix",
    metavar="TEXT",
    callback=_storable,
    help="List keys that begin with this; default: every prefix that the app uses.",
)
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="Maximum number of keys to list."
)
def keys_command(prefix: str | None, limit: int) -> None:
    """List the keys in storage, with the units used and the time until they expire.

    This uses SCAN, which does not block the server. USED is "?" when the rule of a key is unknown (it was changed, or
    is not declared on a view) and its algorithm does not count units.
    """
    gate = shared_gate()
    prefixes = prefixes_of(gate) if prefix is None else (prefix,)
    stored = stored_keys(gate, prefixes, limit + 1)
    found, truncated = keys(gate, stored[:limit]), len(stored) > limit
    lines = partial(_key_lines, found, prefixes, truncated=truncated)
    show(lines, prefixes=prefixes, keys=found, truncated=truncated)


def _key_lines(found: list[Key], prefixes: tuple[str, ...], *, truncated: bool) -> list[str]:
    if not found:
        return [f"No key begins with {' or '.join(prefixes)}"]
    rows = [(_used_text(key), "never" if key.ttl is None else duration(math.ceil(key.ttl)), key.key) for key in found]
    lines = console.columns(rows, headings=("USED", "EXPIRES IN", "KEY"), whole=True)
    more = " There are more; see --limit." if truncated else ""
    lines += ["", f"{plural(len(found), 'key')}.{more}"]
    for_ever = [key for key in found if key.ttl is None]
    if for_ever:
        lines += console.paragraph(f"Without a TTL, so not ours, which all have one: {len(for_ever)}.")
    return lines


def _used_text(key: Key) -> str:
    if key.used is None:
        return "?"
    return str(key.used) if key.quota is None else f"{key.used} of {key.quota}"
