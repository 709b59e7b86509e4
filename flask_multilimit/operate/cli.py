"""``flask multilimit``: who is limited by what, where a subject stands, what lies in storage, and what is wrong."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any, TypeVar

import click
from flask import current_app
from flask.cli import AppGroup

from ..config import PREFIX
from ..declare.subjects import EVERYONE, Subject, subjects_given
from ..engine import Decision, Hit, Limiter, MultiLimitError, Rule, RuleStatus, StorageError
from ..engine.errors import with_remedy
from ..engine.rules import UNITS
from ..plan.endpoint import Applied, hits_of
from ..serve.gate import AppGate, gate_of
from . import console
from .doctor import Finding, Severity, examine
from .listing import (
    ListedEndpoint,
    ListedKey,
    ListedLimiter,
    describe_keys,
    endpoints_of,
    prefixes_of,
    stored_keys,
    unmatched_of,
)
from .standing import method_of, plan_of, standing_of, type_names_of

SCHEMA = 1
"""Of what ``--json`` writes: docs/reference/cli.md. Fields may be added; a changed meaning is a new number."""

C = TypeVar("C", bound=Callable[..., Any])

multilimit: AppGroup = AppGroup("multilimit")


# What the commands share


def _gate() -> AppGate:
    return gate_of(current_app)


def _limiter(gate: AppGate) -> Limiter:
    """Of the storage itself: what a process decides by itself while it fails is of no use here."""
    return Limiter(gate.limiter.storage)


@contextmanager
def _for_people() -> Any:
    """What goes wrong is told in a line, not in a traceback."""
    try:
        yield
    except MultiLimitError as error:
        raise click.ClickException(with_remedy(error) if isinstance(error, StorageError) else str(error)) from error


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _print_json(**fields: Any) -> None:
    click.echo(json.dumps({"schema": SCHEMA, **fields}, indent=2, ensure_ascii=False))


as_json: Callable[[C], C] = click.option("--json", "as_json", is_flag=True, help="Write JSON, for programs.")


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


# limits


@multilimit.command("limits", short_help="List every endpoint with its limits.")
@as_json
def limits_command(as_json: bool) -> None:
    """List every endpoint with its limits, and where each comes from.

    Functions that are no views are not listed: what limits them is known when they are called.
    """
    with _for_people():
        endpoints, unmatched = endpoints_of(_gate()), unmatched_of(_gate())
    if as_json:
        _print_json(
            endpoints=[_endpoint_as_json(endpoint) for endpoint in endpoints],
            unmatched=[row for listed in unmatched for row in _limits_as_json(listed)],
        )
        return
    _print(_limits_lines(endpoints, unmatched))


def _limits_lines(endpoints: list[ListedEndpoint], unmatched: tuple[ListedLimiter, ...]) -> list[str]:
    limited = [endpoint for endpoint in endpoints if endpoint.limiters]
    listed = [each for endpoint in limited for each in endpoint.limiters] + list(unmatched)
    titles = ("NAME", "TYPE", "RULE", "ALGORITHM", "OPTIONS")
    rows = [row for each in listed for row in _rows(each)]
    sizes = console.sizes_of([titles, *rows], indent=4)
    lines = [click.style(line, dim=True) for line in console.aligned([titles], sizes, 4)] if rows else []
    for endpoint in limited:
        lines += ["", *_routes(endpoint), *_by_origin(endpoint.limiters, sizes)]
    if unmatched:
        title = click.style("no route", bold=True)
        lines += ["", f"{title}  requests that match none (404), or not its methods (405)"]
        lines += _by_origin(unmatched, sizes)
    bare = [endpoint for endpoint in endpoints if not endpoint.limiters]
    if bare:
        lines += ["", click.style(f"WITHOUT LIMITS: {console.plural(len(bare), 'endpoint')}", fg="yellow", bold=True)]
        routes = [
            (endpoint.name, ", ".join(route.methods), route.path) for endpoint in bare for route in endpoint.routes
        ]
        lines += console.columns(routes, indent=2)
    return lines[1:] if lines and not lines[0] else lines


def _routes(endpoint: ListedEndpoint) -> list[str]:
    name = click.style(endpoint.name, bold=True)
    routes = [f"{', '.join(route.methods)} {route.path}" for route in endpoint.routes]
    return [f"{name}  {routes[0]}", *(f"{' ' * len(endpoint.name)}  {route}" for route in routes[1:])]


def _by_origin(listed: Iterable[ListedLimiter], sizes: list[int]) -> list[str]:
    lines, origin = [], None
    for each in listed:
        if each.planned.declaration.where != origin:
            origin = each.planned.declaration.where
            lines.append(click.style(f"  from {origin}", fg="cyan"))
        lines += console.aligned(_rows(each), sizes, 4)
    return lines


def _rows(listed: ListedLimiter) -> list[tuple[str, str, str, str, str]]:
    declared = listed.planned.declaration
    options = "; ".join(_options(listed))
    if listed.planned.dynamic is not None:
        return [(declared.name or declared.type_name, declared.type_name, "by request", "", options)]
    return [
        (
            name,
            declared.type_name,
            _rule_text(rule),
            rule.algorithm,
            "; ".join(filter(None, (_parameters(rule), options))),
        )
        for name, rule in listed.planned.rules
    ]


_UNITS: dict[float, str] = {seconds: unit for unit, seconds in UNITS.items()}


def _rule_text(rule: Rule) -> str:
    return f"{rule.count} per {_UNITS.get(rule.time) or console.duration(rule.time)}"


def _parameters(rule: Rule) -> str:
    burst = f"burst {rule.quota.burst}" if rule.burst is not None else ""
    delay = f"queue {console.duration(rule.max_delay)}" if rule.max_delay else ""
    lease = f"lease {rule.lease}" if rule.lease is not None else ""
    return "; ".join(filter(None, (burst, delay, lease)))


def _options(listed: ListedLimiter) -> list[str]:
    declared = listed.planned.declaration
    conditions = [name for name in ("exempt_when", "charge_when", "on_rejected") if getattr(declared, name)]
    options = [
        ("SHADOW: never refuses", declared.shadow),
        (f"only {', '.join(listed.methods or ())}", listed.methods is not None),
        (f"scope {declared.scope}", declared.scope is not None),
        ("slot by subject", declared.hash_tag == "subject"),
        ("cost by request" if callable(declared.cost) else f"cost {declared.cost}", declared.cost != 1),
        (f"waits {console.duration(declared.wait)}", declared.wait),
        (", ".join(conditions), conditions),
        (f"key {declared.key}", declared.key is not None),
    ]
    return [text for text, holds in options if holds]


def _endpoint_as_json(endpoint: ListedEndpoint) -> dict[str, Any]:
    return {
        "endpoint": endpoint.name,
        "routes": [{"path": route.path, "methods": list(route.methods)} for route in endpoint.routes],
        "limits": [row for listed in endpoint.limiters for row in _limits_as_json(listed)],
    }


def _limits_as_json(listed: ListedLimiter) -> list[dict[str, Any]]:
    declared = listed.planned.declaration
    of_limiter = {
        "type": declared.type_name,
        "from": declared.where,
        "scope": listed.scope,
        "hash_tag": declared.hash_tag,
        "methods": None if listed.methods is None else list(listed.methods),
        "cost": None if callable(declared.cost) else declared.cost,
        "shadow": declared.shadow,
        "wait": declared.wait,
        "exempt_when": declared.exempt_when is not None,
        "charge_when": declared.charge_when is not None,
        "key": declared.key,
        "by_request": listed.planned.dynamic is not None,
    }
    if listed.planned.dynamic is not None:
        return [{"name": declared.name or declared.type_name, **_rule_as_json(None), **of_limiter}]
    return [{"name": name, **_rule_as_json(rule), **of_limiter} for name, rule in listed.planned.rules]


def _rule_as_json(rule: Rule | None) -> dict[str, Any]:
    return {
        field: None if rule is None else getattr(rule, field)
        for field in ("count", "time", "algorithm", "burst", "max_delay", "lease")
    }


# check


@multilimit.command("check", short_help="Show where a subject stands at an endpoint.")
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
    with _for_people():
        gate = _gate()
        applied = standing_of(gate, endpoint, method, given)
        limited_by = type_names_of(plan_of(gate, endpoint, method))
        hits = hits_of(applied)
        decision = _limiter(gate).peek(hits) if hits else None
        method = method or method_of(gate, endpoint)
    not_asked = [name for name in limited_by if name not in {each.declaration.type_name for each in applied}]
    if as_json:
        _print_json(**_standing_as_json(endpoint, method, decision, applied, not_asked))
        return
    _print(_standing_lines(endpoint, method, decision, applied, not_asked))


def _standing_lines(
    endpoint: str, method: str, decision: Decision | None, applied: Sequence[Applied], not_asked: list[str]
) -> list[str]:
    title = click.style(f"{endpoint} {method}", bold=True)
    lines = [f"{title}  {_verdict(decision, not_asked)}"]
    if decision is not None:
        headings = ("NAME", "SUBJECT", "RULE", "LEFT", "REFUSED FOR", "WHOLE IN")
        rows = [_standing_row(status, _subject_of(status.hit, applied)) for status in decision.statuses]
        lines += ["", *console.columns(rows, headings=headings)]
    if not_asked:
        options = ", ".join(f"{name} ({_option_for(name)})" for name in not_asked)
        lines += ["", *console.paragraph(f"Not asked, as nobody is given: {options}.")]
    return lines


def _verdict(decision: Decision | None, not_asked: list[str]) -> str:
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
    return (status.name, subject, _rule_text(status.rule), str(status.remaining), refused + shadow or "-", whole)


def _subject_of(hit: Hit, applied: Sequence[Applied]) -> str:
    subject = next(each.subject for each in applied if hit in each.hits)
    return "everyone" if subject == EVERYONE else _readable(subject)


def _readable(subject: Subject) -> str:
    if "+" in subject.type:  # several together, as JSON
        return " + ".join(_readable(Subject(*part)) for part in json.loads(subject.value))
    return subject.value or "(empty)"


def _option_for(type_name: str) -> str:
    return {"ip": "--ip", "user": "--user"}.get(type_name) or (
        "all of its parts" if "+" in type_name else f"--subject {type_name}=..."
    )


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
        **_rule_as_json(status.rule),
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


@multilimit.command("reset", short_help="Make the quotas of a subject whole again.")
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
    with _for_people():
        gate = _gate()
        applied = standing_of(gate, endpoint, method, given)
        hits = hits_of(applied)
        if not hits:
            limited_by = ", ".join(type_names_of(plan_of(gate, endpoint, method))) or "none"
            raise click.ClickException(
                f'No limit at "{endpoint}" counts {" or ".join(given)}. Types that limit it: {limited_by}.'
            )
        if not yes:
            rows = [(hit.name, _subject_of(hit, applied), _rule_text(hit.rule)) for hit in hits]
            click.echo("\n".join(console.columns(rows, indent=2)), err=True)
            click.confirm(f"Make {console.plural(len(hits), 'quota')} whole again?", abort=True, err=True)
        gate.limiter.reset(hits)
    if as_json:
        _print_json(endpoint=endpoint, reset=[{"name": hit.name, "key": hit.key} for hit in hits])
        return
    click.echo(f"Whole again: {', '.join(hit.name for hit in hits)}.")
    if not gate.limiter.storage.shared:
        _print(console.paragraph(_PER_PROCESS))


_PER_PROCESS = (
    "memory:// is in each process by itself, and this command is a process of its own: it neither sees nor changes "
    f"what the workers count. {PREFIX}STORAGE_URI names a server that all share."
)


# keys


@multilimit.command("keys", short_help="List what lies in storage.")
@click.option("--prefix", metavar="TEXT", help="Keys that begin so; default: all prefixes that the app uses.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="So many at most.")
@as_json
def keys_command(prefix: str | None, limit: int, as_json: bool) -> None:
    """List what lies in storage, with the units used and the time until it is forgotten.

    Asks with SCAN, which does not hold the server up. USED is known for rules that an endpoint declares, and for
    those of algorithms that count; the rule is not known when it was changed, or declared on no view.
    """
    with _for_people():
        gate = _gate()
        prefixes = prefixes_of(gate) if prefix is None else (prefix,)
        stored = stored_keys(gate, prefixes, limit + 1)
        keys = describe_keys(gate, stored[:limit])
    truncated = len(stored) > limit
    if as_json:
        note = None if gate.limiter.storage.shared else _PER_PROCESS
        _print_json(prefixes=prefixes, keys=[_key_as_json(key) for key in keys], truncated=truncated, note=note)
        return
    _print(_keys_lines(keys, prefixes, truncated=truncated))
    if not gate.limiter.storage.shared:
        _print(["", *console.paragraph(_PER_PROCESS)])


def _keys_lines(keys: list[ListedKey], prefixes: tuple[str, ...], *, truncated: bool) -> list[str]:
    if not keys:
        return [f"No key begins with {' or '.join(prefixes)}"]
    rows = [
        (
            "?" if key.used is None else f"{key.used} of {key.rule.quota.burst}" if key.rule else str(key.used),
            "never" if key.ttl is None else console.duration(math.ceil(key.ttl)),
            key.key,
        )
        for key in keys
    ]
    lines = console.columns(rows, headings=("USED", "GONE IN", "KEY"), whole=True)
    more = " There are more: --limit." if truncated else ""
    lines += ["", f"{console.plural(len(keys), 'key')}.{more}"]
    for_ever = [key for key in keys if key.ttl is None]
    if for_ever:
        lines += console.paragraph(f"{len(for_ever)} without a TTL: somebody else's, as each of ours has one.")
    return lines


def _key_as_json(key: ListedKey) -> dict[str, Any]:
    rule = None if key.rule is None else _rule_as_json(key.rule)
    return {"key": key.key, "used": key.used, "ttl": key.ttl, "rule": rule}


# doctor


@multilimit.command("doctor", short_help="Look for what is wrong, with its remedy.")
@as_json
def doctor_command(as_json: bool) -> None:
    """Look for what is wrong with limits and storage, and tell the remedy. Exit code 1 when something is wrong."""
    findings = []
    for finding in examine(_gate()):
        findings.append(finding)
        if not as_json:
            _print(_finding_lines(finding))
    wrong = sum(finding.level is Severity.WRONG for finding in findings)
    warnings = sum(finding.level is Severity.WARNING for finding in findings)
    if as_json:
        _print_json(healthy=not wrong, findings=[_finding_as_json(finding) for finding in findings])
    else:
        _print(["", _summary(wrong, warnings)])
    if wrong:
        raise click.exceptions.Exit(1)


_MARKS: dict[Severity, tuple[str, dict[str, Any]]] = {
    Severity.OK: ("ok", {"fg": "green"}),
    Severity.HINT: ("hint", {"fg": "cyan"}),
    Severity.WARNING: ("warning", {"fg": "yellow", "bold": True}),
    Severity.WRONG: ("WRONG", {"fg": "red", "bold": True}),
}
_BESIDE = 24
"""Columns that the mark and the name of a finding take."""


def _finding_lines(finding: Finding) -> list[str]:
    text, style = _MARKS[finding.level]
    lines = console.paragraph(finding.text, indent=_BESIDE, first="\0" * _BESIDE)
    lines[0] = click.style(f"{text:<9}", **style) + f"{finding.name:<{_BESIDE - 9}}" + lines[0].lstrip("\0")
    if finding.remedy and finding.level is not Severity.OK:
        lines += console.paragraph(finding.remedy, indent=_BESIDE + 2, first=" " * _BESIDE + "> ")
    return lines


def _summary(wrong: int, warnings: int) -> str:
    if wrong:
        return click.style(f"{console.plural(wrong, 'thing')} wrong.", fg="red", bold=True)
    if warnings:
        return click.style(f"Nothing wrong, {console.plural(warnings, 'warning')}.", fg="yellow", bold=True)
    return click.style("All is well.", fg="green", bold=True)


def _finding_as_json(finding: Finding) -> dict[str, Any]:
    return {"name": finding.name, "level": finding.level.value, "text": finding.text, "remedy": finding.remedy or None}
