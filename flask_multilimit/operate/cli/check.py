"""``flask multilimit check`` and ``why``: where a client stands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from ...declare.subjects import subjects_given
from ...engine.text import quoted
from ...insight.bans import BegunBan
from ...insight.clients import client_from, client_with
from ...insight.past import Past, PastRefusals, instant_of, standing_at
from ...insight.standing import OF_OTHERS, BanStanding, ListStanding, RequestStanding, RuleStanding, Standing, standing
from ...insight.text import duration, local_time, plural
from ...insight.traffic import looking
from .. import console
from . import client_options, command, current_gate, options_for, require_shared_storage, shared_gate, show

MOST_SHOWN = 10
"""The most endpoints, and the most lines about refusals, that `why` shows."""


@command("check", short_help="Show where a subject stands at an endpoint.")
@click.argument("endpoint")
@client_options
def check_command(
    endpoint: str, method: str | None, ip: str | None, user: str | None, subjects: dict[str, str]
) -> None:
    """Show where a subject stands at ENDPOINT, and whether its requests would pass. Charges nothing.

    ENDPOINT may be "unmatched": requests without a route. Allow and deny lists decide first. Quotas that everyone
    shares are always included, because they decide too. This command makes no request: it assumes that every limiter
    applies, and that a cost which depends on the request is 1.
    """
    given, gate = subjects_given(ip=ip, user=user, everyone=True, subjects=subjects), current_gate()
    gate.subjects.require_clients(given)
    found = standing(gate, client_with(gate, given), endpoint=endpoint, method=method)
    require_shared_storage(gate)
    show(lambda: _check_lines(found), found)


@command("why", short_help="Show why a client is refused, and what lifts it.")
@click.argument("who")
@click.option("--endpoint", metavar="ENDPOINT", help='Only there; "unmatched": requests without a route.')
@click.option("--at", metavar="TIME", help="An earlier time: 5m (ago), 03:12, or ISO 8601.")
def why_command(who: str, endpoint: str | None, at: str | None) -> None:
    """Show why WHO is refused, and what lifts it: lists, bans, limits, and what was refused in the last hour.

    WHO is an address, a network, or a subject with its type, such as user:42. A value alone is enough if only
    one type can have it. Charges nothing.

    With --at, show where WHO stood at a time of the last hour, as far as the counted traffic shows: which bans
    held, when they began and ended, and what was being refused.
    """
    gate = shared_gate()
    client = client_from(gate, who)
    instant = None if at is None else instant_of(at, gate.applier.time())
    with looking(gate, patient=True) as memory:
        if instant is None:
            now = standing(gate, client, memory, endpoint=endpoint)
            show(lambda: _why_lines(now), now)
        else:
            past = standing_at(gate, client, memory, instant, endpoint=endpoint)
            show(lambda: _past_lines(past), past)


# What check shows


def _check_lines(found: Standing) -> list[str]:
    lines: list[str] = []
    others = found.verdict.template == OF_OTHERS
    for each in found.requests:
        title = console.style(f"{each.endpoint} {', '.join(each.methods)}", bold=True)
        lines += ["", f"{title}  {_verdict(each, found.listed, others=others)}"]
        if found.listed is not None:
            lines += ["", *console.paragraph(_list_text(found.listed, limited=bool(each.rules or each.bans)))]
        lines += _table(each)
        if found.listed is None and each.waits_for_slot:
            unknown = "Nobody knows when: a slot becomes free when a request that holds one ends."
            lines += ["", *console.paragraph(unknown)]
        if each.not_asked:
            options = ", ".join(f"{name} ({options_for(parts)})" for name, parts in each.not_asked.items())
            lines += ["", *console.paragraph(f"Not checked, because no subject is given for: {options}.")]
        if each.by_request:
            lines += ["", *console.paragraph(_BY_REQUEST.format(names=", ".join(each.by_request)))]
    if others or not found.requests:
        lines += ["", *console.paragraph(found.verdict)]
    return lines[1:]


def _table(request: RequestStanding) -> list[str]:
    rows = [_row(each) for each in request.rules] + [_row_of_ban(each) for each in request.bans]
    return console.table(rows, ("NAME", "SUBJECT", "RULE", "LEFT", "REFUSED FOR", "RESETS IN"))


_BY_REQUEST = (
    "Not checked, because they depend on the request: the rules of {names}. If their callable takes the subject, and "
    "does not fail, they are known here."
)


def _list_text(listed: ListStanding, *, limited: bool) -> str:
    state = {"ban": "banned", "allow": "allowed", "deny": "denied"}[listed.action]
    below = " Without this entry, the limits below would decide." if limited else ""
    return f"{quoted(listed.who)} is {state} ({listed.where}), and lists come before limits.{below}"


def _verdict(request: RequestStanding, listed: ListStanding | None, *, others: bool = False) -> str:
    """``others``: whether another extension checks limits there, which are not known here."""
    if listed is not None:
        if listed.action == "allow":
            return console.style("a request would pass", fg="green")
        how_long = "and waiting does not help" if listed.ends_in is None else f"for {duration(listed.ends_in)}"
        return console.style(f"a request would be refused with {listed.status}, {how_long}", fg="red")
    if request.allowed is None:
        if request.by_request:
            return "no limit now, as far as checked"
        return "no limit checked" if request.not_asked or others else "no limit applies"
    if request.allowed:
        reservation = ", as far as checked" if request.not_asked or request.by_request or others else ""
        return console.style(f"a request would pass{reservation}", fg="green")
    return console.style(f"a request would be refused, {_how_long(request)}", fg="red")


def _how_long(request: RequestStanding) -> str:
    if request.retry_after is not None:
        return f"for {duration(request.retry_after)}"
    if not request.waits_for_slot:
        return "and waiting does not help"
    at_least = f"for at least {duration(request.refused_for)}, and " if request.refused_for else ""
    return f"{at_least}until a slot is free"


def _row(rule: RuleStanding) -> tuple[str, ...]:
    refused = "" if rule.allowed else "not known" if rule.waits_for_slot else duration(rule.retry_after)
    shadow = " (shadow)" if rule.shadow and refused else ""
    left = f"{rule.debt:,} over" if rule.debt else str(rule.remaining)
    return (rule.name, rule.shown, rule.text, left, refused + shadow or "-", _resets(rule.reset_after))


def _row_of_ban(ban: BanStanding) -> tuple[str, ...]:
    left = "" if ban.holds else plural(ban.strikes_left, "refusal")
    refused = f"{duration(ban.retry_after)}{' (shadow)' if ban.shadow else ''}" if ban.holds else "-"
    return (ban.name, ban.shown, ban.text, left, refused, _resets(ban.reset_after))


def _resets(seconds: float) -> str:
    return duration(seconds) if seconds else "-"


# What why shows


def _why_lines(found: Standing) -> list[str]:
    counted = f"  (counted by: {', '.join(found.types)})" if found.types else ""
    color = {"banned": "red", "denied": "red", "refused": "red", "unknown": "yellow"}.get(found.state, "green")
    lines = [f"{console.style(quoted(found.who) or found.shown, bold=True)}{counted}"]
    lines += [console.style(line, fg=color) for line in console.paragraph(found.verdict)]
    rows = [(each.id, each.text, each.author, each.reason) for each in found.entries]
    lines += console.table(rows, ("ENTRY", "CHANGE", "BY", "REASON"))
    touched = [each for each in found.requests if each.matters]
    for each in touched[:MOST_SHOWN]:
        title = console.style(f"{each.endpoint} {', '.join(each.methods)}", bold=True)
        lines += ["", f"{title}  {_verdict(each, found.listed)}", *_table(each)[1:]]
    if len(touched) > MOST_SHOWN:
        lines += ["", f"Used at {len(touched) - MOST_SHOWN} more; see --json."]
    lines += [*_bans(found.elsewhere), *_refusals(found)]
    if found.untouched:
        lines += ["", f"{plural(found.untouched, 'other endpoint')}: nothing is used."]
    if found.problem:
        lines += ["", *console.paragraph(found.problem)]
    if found.lift:  # as a shell reads them, which knows none of the escapes that a screen shows
        lines += ["", "To let it pass:", *(f"  {shlex.join(map(quoted, shlex.split(each)))}" for each in found.lift)]
    return lines


def _past_lines(found: Past) -> list[str]:
    color = "green" if found.state == "passes" else "red"
    lines = [console.style(quoted(found.who) or found.shown, bold=True)]
    lines += [console.style(line, fg=color) for line in console.paragraph(found.verdict)]
    return [*lines, *_bans(found.bans), *_refusals(found)]


def _bans(bans: Sequence[BegunBan]) -> list[str]:
    rows = [(each.by, each.endpoint, local_time(each.began), local_time(each.ended)) for each in bans]
    return console.table(rows, ("BAN", "ENDPOINT", "BEGAN", "ENDS"))


def _refusals(found: Standing | Past) -> list[str]:
    several = any(each.shown != found.shown for each in found.refusals)
    headings = ("REFUSED", *(("SUBJECT",) if several else ()), "ENDPOINT", "RULE", "SINCE", "LAST")
    rows = []
    for each in found.refusals[:MOST_SHOWN]:
        # Those since SINCE; refused are all of the hour.
        latest = each.refused if isinstance(each, PastRefusals) else each.latest
        number = str(latest) if latest == each.refused else f"{latest} of {each.refused}"
        who = (each.shown,) if several else ()
        rows.append((number, *who, each.endpoint, each.rule, local_time(each.since), local_time(each.until)))
    return console.table(rows, headings)
