"""``flask multilimit check`` and ``reset``: where a subject stands, and a fresh start for it."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Collection, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

import click

from ...declare.subjects import EVERYONE, Subject, subjects_given
from ...engine import Decision, Hit, RuleStatus
from ...plan.endpoint import Applied, hits_of
from .. import console
from ..standing import method_of, plan_of, standing_of, types_of
from .base import (
    PER_PROCESS,
    C,
    as_json,
    bare_limiter,
    command,
    current_gate,
    for_people,
    rule_as_json,
    rule_text,
    write,
    write_json,
)


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    try:
        return value and str(ip_address(value))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not an IP address", context, parameter) from None


def _subjects(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    subjects = {}
    for given in value:
        type_name, equals, subject = given.partition("=")
        if not (type_name and equals):
            raise click.BadParameter(f"{given!r}: write TYPE=VALUE, such as api_key=abc", context, parameter)
        subjects[type_name] = subject
    return subjects


def subject_options(command: C) -> C:
    """Those that say where, and who."""
    options = (
        click.argument("endpoint"),
        click.option("--method", type=str.upper, help="Request method; default GET, or the first the endpoint takes."),
        click.option("--ip", callback=_address, metavar="ADDRESS", help="Who: a client address."),
        click.option("--user", metavar="ID", help="Who: a user, by the id that the user_loader returns."),
        click.option("--everyone", is_flag=True, help="Who: all together, the quotas of type DEFAULT."),
        click.option(
            "--subject",
            "subjects",
            multiple=True,
            callback=_subjects,
            metavar="TYPE=VALUE",
            help="Who: a subject of any type, by the name of the limiter; anonymous=ADDRESS for who is not logged in.",
        ),
    )
    return functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


@command("check", short_help="Show where a subject stands at an endpoint.")
@subject_options
@as_json
def check_command(
    endpoint: str,
    method: str | None,
    ip: str | None,
    user: str | None,
    everyone: bool,
    subjects: dict[str, str],
    as_json: bool,
) -> None:
    """Show where a subject stands at ENDPOINT, and whether its request would pass. Charges nothing.

    What everyone shares is always looked at, for it decides too. Whether a limiter is exempt, and a cost that
    depends on the request, cannot be known here: it is taken to apply, at a cost of 1.
    """
    del everyone  # always
    given = subjects_given(ip=ip, user=user, everyone=True, subjects=subjects)
    with for_people():
        gate = current_gate()
        applied = standing_of(gate, endpoint, method, given)
        limited_by = types_of(plan_of(gate, endpoint, method))
        hits = hits_of(applied)
        decision = bare_limiter(gate).peek(hits) if hits else None
        method = method or method_of(gate, endpoint)
    asked = {each.declaration.type_name for each in applied}
    not_asked = {name: parts for name, parts in limited_by.items() if name not in asked}
    if as_json:
        write_json(**_standing_as_json(endpoint, method, decision, applied, list(not_asked)))
        return
    write(_standing_lines(endpoint, method, decision, applied, not_asked))


def _standing_lines(
    endpoint: str,
    method: str,
    decision: Decision | None,
    applied: Sequence[Applied],
    not_asked: Mapping[str, tuple[str, ...]],
) -> list[str]:
    title = click.style(f"{endpoint} {method}", bold=True)
    lines = [f"{title}  {_verdict(decision, not_asked)}"]
    if decision is not None:
        headings = ("NAME", "SUBJECT", "RULE", "LEFT", "REFUSED FOR", "WHOLE IN")
        rows = [_standing_row(status, _subject_of(status.hit, applied)) for status in decision.statuses]
        lines += ["", *console.columns(rows, headings=headings)]
    if not_asked:
        options = ", ".join(f"{name} ({_options_for(parts)})" for name, parts in not_asked.items())
        lines += ["", *console.paragraph(f"Not asked, as nobody is given: {options}.")]
    return lines


def _verdict(decision: Decision | None, not_asked: Collection[str]) -> str:
    if decision is None:
        return "none of its limits counts these subjects" if not_asked else "has no limits"
    if decision.allowed:
        return click.style("a request would pass" + (", as far as asked" if not_asked else ""), fg="green")
    wait = decision.retry_after
    text = "whatever the wait" if math.isinf(wait) else f"for {console.duration(wait)}"
    return click.style(f"a request would be refused, {text}", fg="red")


def _standing_row(status: RuleStatus, subject: str) -> tuple[str, ...]:
    refused = "" if status.allowed else console.duration(status.retry_after)
    shadow = " (shadow)" if status.hit.shadow and refused else ""
    whole = console.duration(status.reset_after) if status.reset_after else "now"
    return (status.name, subject, rule_text(status.rule), str(status.remaining), refused + shadow or "-", whole)


def _subject_of(hit: Hit, applied: Sequence[Applied]) -> str:
    found = next(each for each in applied if hit in each.hits)
    if isinstance(found.declaration.type, tuple):  # several together, as JSON
        return " + ".join(_readable(Subject(*part)) for part in json.loads(found.subject.value))
    return _readable(found.subject)


def _readable(subject: Subject) -> str:
    return "everyone" if subject == EVERYONE else subject.value or "(empty)"


def _options_for(parts: Sequence[str]) -> str:
    options = {"ip": "--ip", "user": "--user", EVERYONE.type: "--everyone"}
    return " and ".join(options.get(part) or f"--subject {part}=..." for part in parts)


def _standing_as_json(
    endpoint: str, method: str, decision: Decision | None, applied: Sequence[Applied], not_asked: list[str]
) -> dict[str, Any]:
    return {
        "endpoint": endpoint,
        "method": method,
        "allowed": None if decision is None else decision.allowed,
        "retry_after": None if decision is None else _finite(decision.retry_after),
        "rules": [] if decision is None else [_status_as_json(each, applied) for each in decision.statuses],
        "not_asked": not_asked,
    }


def _status_as_json(status: RuleStatus, applied: Sequence[Applied]) -> dict[str, Any]:
    subject = next(each.subject for each in applied if status.hit in each.hits)
    return {
        "name": status.name,
        "type": subject.type,
        "subject": subject.value,
        **rule_as_json(status.rule),
        "cost": status.hit.cost,
        "shadow": status.hit.shadow,
        "allowed": status.allowed,
        "remaining": status.remaining,
        "retry_after": _finite(status.retry_after),
        "reset_after": status.reset_after,
        "key": status.hit.key,
    }


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


# reset


@command("reset", short_help="Make the quotas of a subject whole again.")
@subject_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
def reset_command(
    endpoint: str,
    method: str | None,
    ip: str | None,
    user: str | None,
    everyone: bool,
    subjects: dict[str, str],
    yes: bool,
    as_json: bool,
) -> None:
    """Make the quotas of a subject at ENDPOINT whole again, at once and for every worker.

    What everyone shares is reset only with --everyone.
    """
    given = subjects_given(ip=ip, user=user, everyone=everyone, subjects=subjects)
    if not given:
        raise click.UsageError("Say whose quotas: --ip, --user, --subject or --everyone.")
    with for_people():
        gate = current_gate()
        applied = standing_of(gate, endpoint, method, given)
        hits = hits_of(applied)
        if not hits:
            limited_by = types_of(plan_of(gate, endpoint, method)).items()
            types = ", ".join(f"{name} ({_options_for(parts)})" for name, parts in limited_by) or "none"
            raise click.ClickException(
                f'No limit at "{endpoint}" counts {" and ".join(given)}. It is limited by: {types}.'
            )
        if not yes:
            rows = [(hit.name, _subject_of(hit, applied), rule_text(hit.rule)) for hit in hits]
            click.echo("\n".join(console.columns(rows, indent=2)), err=True)
            click.confirm(f"Make {console.plural(len(hits), 'quota')} whole again?", abort=True, err=True)
        used, whole = _used_and_whole(bare_limiter(gate).peek(hits))
        gate.limiter.reset(hits)
    if as_json:
        write_json(endpoint=endpoint, reset=list(map(_hit_as_json, used)), whole_already=list(map(_hit_as_json, whole)))
        return
    for said, found in (("Whole again", used), ("Whole already, nothing was counted", whole)):
        if found:
            click.echo(f"{said}: {', '.join(hit.name for hit in found)}.")
    if not gate.limiter.storage.shared:
        write(console.paragraph(PER_PROCESS))


def _used_and_whole(decision: Decision) -> tuple[list[Hit], list[Hit]]:
    """The quotas of which something was used, and those of which nothing was."""
    statuses = decision.statuses
    used = [each.hit for each in statuses if each.reset_after or each.remaining < each.rule.quota.burst]
    return used, [each.hit for each in statuses if each.hit not in used]


def _hit_as_json(hit: Hit) -> dict[str, str]:
    return {"name": hit.name, "key": hit.key}
