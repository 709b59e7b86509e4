"""``flask multilimit check`` and ``reset``: show where a subject stands, and give it a fresh start."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Network, ip_address
from typing import Any

import click

from ...declare.addresses import network_of, without_port
from ...declare.subjects import EVERYONE, LimitType, Subject, subjects_given
from ...engine import BanStatus, ConfigurationError, Decision, Hit, RuleStatus, StorageError
from ...engine.hits import BanHit
from ...plan.endpoint import Applied, hits_of
from ...plan.standings import Standing
from ...serve.access import Listed
from ...serve.gate import AppGate
from ...serve.steer import steering_of
from .. import console
from ..everywhere import all_keys, forget, keys_of
from ..standing import listed_of, require_limiters, standings_of
from ..words import rule_as_json, rule_text
from .base import (
    C,
    as_json,
    bare_limiter,
    command,
    current_gate,
    for_people,
    require_shared_storage,
    user_name,
    write,
    write_json,
)

MOST_SHOWN = 20
"""The most keys that are listed before they are reset."""


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    try:
        if value and "/" in value:
            return str(IPv6Network(value))
        return value and str(ip_address(without_port(value)))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not an IP address", context, parameter) from None


def _require_counted(gate: AppGate, given: Mapping[str, str]) -> None:
    """Raise an error for a network that limits do not count as one client."""
    network, prefix = given.get(LimitType.IP.value, ""), gate.settings.ipv6_prefix
    if "/" in network and network_of(network.partition("/")[0], prefix) != network:
        raise ConfigurationError(
            f"--ip {network}: IPv6 addresses of one /{prefix} count as one client; give one of them"
        )


def _subjects(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    subjects = {}
    for given in value:
        type_name, equals, subject = given.partition("=")
        if not (type_name and equals):
            raise click.BadParameter(f"{given!r}: write TYPE=VALUE, such as api_key=abc", context, parameter)
        subjects[type_name] = subject
    return subjects


def who_options(command: C) -> C:
    """The options that name the subject."""
    options = (
        click.option("--method", type=str.upper, metavar="METHOD", help="Only this request method; default: all."),
        click.option(
            "--ip",
            callback=_address,
            metavar="ADDRESS",
            help="A client address, or an IPv6 network that counts as one.",
        ),
        click.option("--user", metavar="ID", help="A user, by the id that the user_loader returns."),
        click.option(
            "--subject",
            "subjects",
            multiple=True,
            callback=_subjects,
            metavar="TYPE=VALUE",
            help="A subject of any type, by the name of its limiter; anonymous=ADDRESS for a client without a login.",
        ),
    )
    return functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


@command("check", short_help="Show where a subject stands at an endpoint.")
@click.argument("endpoint")
@who_options
@as_json
def check_command(
    endpoint: str,
    method: str | None,
    ip: str | None,
    user: str | None,
    subjects: dict[str, str],
    as_json: bool,
) -> None:
    """Show where a subject stands at ENDPOINT, and whether its requests would pass. Charges nothing.

    Allow and deny lists decide first. Quotas that everyone shares are always included, because they decide too. This
    command makes no request: it assumes that every limiter applies, and that a cost which depends on the request is 1.
    """
    given = subjects_given(ip=ip, user=user, everyone=True, subjects=subjects)
    with for_people():
        gate = current_gate()
        _require_counted(gate, given)
        standings = standings_of(gate, endpoint, method, given)
        require_shared_storage(gate)
        listed = listed_of(gate, given)
        answers = [_asked(gate, standing, listed) for standing in standings if _is_of_interest(standing, standings)]
    if as_json:
        _print_answers_as_json(endpoint, method, answers, listed)
        return
    write(_lines(endpoint, answers))


@dataclass(frozen=True, slots=True)
class _Answer:
    """How a request would be answered."""

    methods: tuple[str, ...]
    applied: Sequence[Applied]
    listed: Listed | None
    """The entry of a list that decides, whatever the limits say."""
    decision: Decision | None
    """The decision of the limits; ``None`` if no limiter counts the subjects."""
    not_asked: Mapping[str, tuple[str, ...]]
    """Types of limiters whose subject is not given, and the names of their parts."""

    @property
    def allowed(self) -> bool | None:
        """Whether a request would pass; ``None`` if nothing decides about it."""
        if self.listed is not None:
            return self.listed.action == "allow"
        return None if self.decision is None else self.decision.allowed

    @property
    def retry_after(self) -> float | None:
        """Seconds for which requests are refused; infinity if waiting does not help, or :attr:`waits_for_slot`;
        ``None`` as for ``allowed``."""
        if self.listed is not None:
            return 0 if self.allowed else math.inf if self.listed.ends_in is None else self.listed.ends_in
        return None if self.decision is None else self.decision.retry_after

    @property
    def waits_for_slot(self) -> bool:
        """Whether requests are refused until other work ends, at a time that is not known."""
        return self.listed is None and self.decision is not None and self.decision.waits_for_slot

    @property
    def by_request(self) -> list[str]:
        """The limiters whose rules depend on the request."""
        return _by_request(self.applied)


def _by_request(applied: Iterable[Applied]) -> list[str]:
    declarations = [each.declaration for each in applied if callable(each.declaration.rules)]
    return [declared.name or declared.type_name for declared in declarations]


def _asked(gate: AppGate, standing: Standing, listed: Listed | None) -> _Answer:
    hits = standing.applied.hits
    decision = bare_limiter(gate).peek(hits) if hits else None
    given = {each.declaration.type_name for each in standing.applied}
    not_asked = {name: parts for name, parts in standing.types.items() if name not in given}
    return _Answer(_shown(standing.methods), standing.applied, listed, decision, not_asked)


def _is_of_interest(standing: Standing, standings: list[Standing]) -> bool:
    """Whether it has limits, or is the only one: Flask adds OPTIONS to every route."""
    return bool(standing.types) or set(standing.methods) != {"OPTIONS"} or len(standings) == 1


def _shown(methods: tuple[str, ...]) -> tuple[str, ...]:
    """``methods`` without HEAD if there is GET, and without OPTIONS if there is any other."""
    hidden = {"HEAD", "OPTIONS"} if "GET" in methods else {"OPTIONS"}
    return tuple(method for method in methods if method not in hidden) or methods


def _lines(endpoint: str, answers: list[_Answer]) -> list[str]:
    lines = []
    for answer in answers:
        title = click.style(f"{endpoint} {', '.join(answer.methods)}", bold=True)
        lines += ["", f"{title}  {_verdict(answer)}"]
        if answer.listed is not None:
            lines += ["", *console.paragraph(_told_of(answer.listed, limited=answer.decision is not None))]
        if answer.decision is not None:
            headings = ("NAME", "SUBJECT", "RULE", "LEFT", "REFUSED FOR", "RESETS IN")
            rows = [_row(status, _subject_of(status.hit, answer.applied)) for status in answer.decision.statuses]
            rows += [
                _row_of_ban(ban, _subject_of(ban.hit, answer.applied)) for ban in answer.decision.bans if not ban.holds
            ]
            lines += ["", *console.columns(rows, headings=headings)]
        if answer.waits_for_slot:
            lines += ["", *console.paragraph(_WAITS_FOR_SLOT)]
        if answer.not_asked:
            options = ", ".join(f"{name} ({_options_for(parts)})" for name, parts in answer.not_asked.items())
            lines += ["", *console.paragraph(f"Not checked, because no subject is given: {options}.")]
        if answer.by_request:
            lines += ["", *console.paragraph(_BY_REQUEST.format(names=", ".join(answer.by_request)))]
    return lines[1:]


_WAITS_FOR_SLOT = "Nobody knows when: a slot is free as soon as a request that holds one ends."


_BY_REQUEST = (
    "The rules of {names} depend on the request. This command makes no request, so it shows what the callable returns "
    "without one; a real request may have other rules."
)


_OTHER_RULES = (
    "The rules of {names} depend on the request. This command makes no request, so it looks at the rules that the "
    "callable returns without one. With --all in place of the endpoint, quotas of other rules are reset, too."
)


def _told_of(listed: Listed, *, limited: bool) -> str:
    did = "banned" if listed.banned else "allowed" if listed.action == "allow" else "denied"
    below = " Without this entry, the limits below would decide." if limited else ""
    return f"{listed.who} is {did} ({listed.where}), and lists come before limits.{below}"


def _verdict(answer: _Answer) -> str:
    wait = answer.retry_after
    if answer.allowed is None or wait is None:
        return _why_nothing_decides(answer)
    if answer.allowed:
        reservation = ", as far as checked" if answer.listed is None and (answer.not_asked or answer.by_request) else ""
        return click.style(f"a request would pass{reservation}", fg="green")
    status = "" if answer.listed is None else f" with {answer.listed.status}"
    return click.style(f"a request would be refused{status}, {_how_long(answer, wait)}", fg="red")


def _how_long(answer: _Answer, wait: float) -> str:
    if math.isfinite(wait):
        return f"for {console.duration(wait)}"
    if answer.decision is None or not answer.waits_for_slot:
        return "and waiting does not help"
    certain = answer.decision.refused_for
    at_least = f"for at least {console.duration(certain)}, and " if certain else ""
    return f"{at_least}until a slot is free"


def _why_nothing_decides(answer: _Answer) -> str:
    if answer.by_request:
        return "no limit now, as far as checked"
    return "no limit checked" if answer.not_asked else "has no limits"


def _row(status: RuleStatus, subject: str) -> tuple[str, ...]:
    refused = "" if status.allowed else "not known" if status.waits_for_slot else console.duration(status.retry_after)
    shadow = " (shadow)" if status.hit.shadow and refused else ""
    resets = console.duration(status.reset_after) if status.reset_after else "-"
    return (status.name, subject, rule_text(status.rule), str(status.remaining), refused + shadow or "-", resets)


def _row_of_ban(ban: BanStatus, subject: str) -> tuple[str, ...]:
    resets = console.duration(ban.reset_after) if ban.reset_after else "-"
    left = console.plural(ban.strikes_left, "refusal")
    return (ban.name, subject, rule_text(ban.hit.rule), left, "-", resets)


def _subject_of(hit: Hit, applied: Iterable[Applied]) -> str:
    owner = _owner(hit, applied)
    if isinstance(owner.declaration.type, tuple):  # several together, as JSON
        return " + ".join(_readable(Subject(*part)) for part in json.loads(owner.subject.value))
    return _readable(owner.subject)


def _owner(hit: Hit, applied: Iterable[Applied]) -> Applied:
    """The limiter that asks for ``hit``."""
    return next(each for each in applied if hit in each.hits)


def _readable(subject: Subject) -> str:
    return "everyone" if subject == EVERYONE else subject.value or "(empty)"


def _options_for(parts: Sequence[str]) -> str:
    options = {"ip": "--ip", "user": "--user", EVERYONE.type: "--everyone"}
    return " and ".join(options.get(part) or f"--subject {part}=..." for part in parts)


def _print_answers_as_json(endpoint: str, method: str | None, answers: list[_Answer], listed: Listed | None) -> None:
    decided = [answer.allowed for answer in answers if answer.allowed is not None]
    waits = [answer.retry_after for answer in answers if answer.retry_after is not None]
    endless = [answer for answer in answers if answer.retry_after == math.inf]
    write_json(
        endpoint=endpoint,
        method=method,
        allowed=all(decided) if decided else None,
        retry_after=_finite(max(waits)) if waits else None,
        waits_for_slot=bool(endless) and all(answer.waits_for_slot for answer in endless),
        listed=None if listed is None else _listed_as_json(listed),
        requests=[_answer_as_json(answer) for answer in answers],
    )


def _listed_as_json(listed: Listed) -> dict[str, Any]:
    return {
        "who": str(listed.who),
        "action": "ban" if listed.banned else listed.action,
        "from": listed.where,
        "status": None if listed.action == "allow" else listed.status,
        "ends_in": listed.ends_in,
    }


def _answer_as_json(answer: _Answer) -> dict[str, Any]:
    decision, wait = answer.decision, answer.retry_after
    return {
        "methods": list(answer.methods),
        "allowed": answer.allowed,
        "retry_after": None if wait is None else _finite(wait),
        "waits_for_slot": answer.waits_for_slot,
        "rules": [] if decision is None else [_status_as_json(each, answer.applied) for each in _of_rules(decision)],
        "bans": [] if decision is None else [_ban_as_json(each, answer.applied) for each in decision.bans],
        "not_asked": list(answer.not_asked),
    }


def _status_as_json(status: RuleStatus, applied: Iterable[Applied]) -> dict[str, Any]:
    owner = _owner(status.hit, applied)
    return {
        "name": status.name,
        "type": owner.subject.type,
        "subject": owner.subject.value,
        **rule_as_json(status.rule),
        "cost": status.hit.cost,
        "shadow": status.hit.shadow,
        "by_request": callable(owner.declaration.rules),
        "allowed": status.allowed,
        "remaining": status.remaining,
        "retry_after": _finite(status.retry_after),
        "waits_for_slot": status.waits_for_slot,
        "reset_after": status.reset_after,
        "key": status.hit.key,
    }


def _of_rules(decision: Decision) -> list[RuleStatus]:
    return [status for status in decision.statuses if not isinstance(status.hit, BanHit)]


def _ban_as_json(ban: BanStatus, applied: Iterable[Applied]) -> dict[str, Any]:
    owner = _owner(ban.hit, applied)
    return {
        "name": ban.name,
        "type": owner.subject.type,
        "subject": owner.subject.value,
        "shadow": ban.hit.shadow,
        "holds": ban.holds,
        "level": ban.level,
        "strikes_left": ban.strikes_left,
        "retry_after": ban.retry_after,
        "reset_after": ban.reset_after,
        "key": ban.hit.key,
    }


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


# reset


@command("reset", short_help="Reset the quotas of a subject.")
@click.argument("endpoint", required=False)
@who_options
@click.option("--everyone", is_flag=True, help="The quotas that everyone shares (type DEFAULT).")
@click.option("--all", "everywhere", is_flag=True, help="At all endpoints, in functions and in checks.")
@click.option("--everything", is_flag=True, help="All quotas of all subjects.")
@click.option("--reason", default="", help="The reason, for the history.")
@click.option("--author", default=None, help="The author; default: the user who runs this command.")
@click.option("--dry-run", is_flag=True, help="Show what would be reset, and reset nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@as_json
def reset_command(
    endpoint: str | None,
    method: str | None,
    ip: str | None,
    user: str | None,
    everyone: bool,
    subjects: dict[str, str],
    everywhere: bool,
    everything: bool,
    reason: str,
    author: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Reset the quotas of a subject at ENDPOINT, at once and for every worker; with --all, everywhere.

    Quotas that everyone shares are reset only with --everyone, or with --everything. The history shows who reset
    what, and why.
    """
    given = subjects_given(ip=ip, user=user, everyone=everyone, subjects=subjects)
    _require_one_place(endpoint, method, given, everywhere=everywhere, everything=everything)
    what = f"{_somebody(given)} {_place(endpoint, method)}" if given else "all quotas of all subjects"
    answer = _Reset(what, reason=reason, author=author, dry_run=dry_run, yes=yes, as_json=as_json)
    with for_people():
        gate = current_gate()
        _require_counted(gate, given)
        if endpoint is not None:
            answer.at(gate, endpoint, method, given)
        else:
            require_shared_storage(gate)
            answer.of_keys(gate, all_keys(gate) if everything else keys_of(gate, given))


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


def _somebody(given: Mapping[str, str]) -> str:
    return " + ".join(
        "everyone" if name == EVERYONE.type else value if name == LimitType.IP.value else f"{name}:{value}"
        for name, value in given.items()
    )


def _place(endpoint: str | None, method: str | None) -> str:
    return "everywhere" if endpoint is None else f"at {endpoint}" if method is None else f"at {endpoint} ({method})"


@dataclass(frozen=True, slots=True)
class _Reset:
    """How one command resets, and what it prints."""

    what: str
    """The description for the history."""
    reason: str
    author: str | None
    dry_run: bool
    yes: bool
    as_json: bool

    def at(self, gate: AppGate, endpoint: str, method: str | None, given: Mapping[str, str]) -> None:
        standings = standings_of(gate, endpoint, method, given)
        require_limiters("reset", endpoint, standings, given, spelled=_options_for)
        require_shared_storage(gate)
        applied = [each for standing in standings for each in standing.applied]
        hits = hits_of(applied)
        by_request = ", ".join(dict.fromkeys(_by_request(applied)))
        if not hits:
            raise ConfigurationError(
                f'reset: the rules of {by_request} at "{endpoint}" depend on the request, and without one there are '
                "none, so nothing was reset; --all in place of the endpoint resets whatever is used"
            )
        rows = [(hit.name, _subject_of(hit, applied), rule_text(hit.rule)) for hit in hits]
        self._ask(console.columns(rows, indent=2), len(hits))
        used, full = _used_and_full(bare_limiter(gate).peek(hits))
        if not self.dry_run:
            gate.limiter.reset(hits)
            if used:
                self._note(gate)
        if self.as_json:
            found = {
                "reset": [_hit_as_json(each) for each in used],
                "full_already": [_hit_as_json(each) for each in full],
            }
            write_json(endpoint=endpoint, changed=not self.dry_run, **found)
            return
        for said, some in ((self._said, used), ("Full already", full)):
            if some:
                click.echo(f"{said}: {', '.join(hit.name for hit in some)}.")
        if by_request:
            write(console.paragraph(_OTHER_RULES.format(names=by_request)))

    def of_keys(self, gate: AppGate, keys: list[str]) -> None:
        lines = [f"  {key}" for key in keys[:MOST_SHOWN]]
        more = [f"  and {len(keys) - MOST_SHOWN} more"] if len(keys) > MOST_SHOWN else []
        if keys:
            self._ask([*lines, *more], len(keys))
        if not self.dry_run:
            forget(gate, keys)
            if keys:
                self._note(gate)
        if self.as_json:
            write_json(endpoint=None, changed=not self.dry_run, keys=keys)
        elif not keys:
            click.echo("Nothing to reset: nothing is used.")
        else:
            click.echo(f"{self._said}: {console.plural(len(keys), 'quota')}.")

    def _note(self, gate: AppGate) -> None:
        """Add a line to the history, if there is one."""
        steering = steering_of(gate.app)
        if not steering.enabled:
            return
        author = user_name() if self.author is None else self.author
        try:
            steering.control.note("reset", self.what, reason=self.reason, author=author)
        except (ConfigurationError, StorageError) as error:
            click.echo(f"Reset, but the history does not show it: {error}", err=True)

    @property
    def _said(self) -> str:
        return "Would reset" if self.dry_run else "Reset"

    def _ask(self, lines: Iterable[str], quotas: int) -> None:
        if self.as_json and (self.yes or self.dry_run):
            return
        if self.dry_run or not self.yes:
            click.echo("\n".join(lines), err=not self.dry_run)
        if not (self.dry_run or self.yes):
            click.confirm(f"Reset {console.plural(quotas, 'quota')}?", abort=True, err=True)


def _used_and_full(decision: Decision) -> tuple[list[Hit], list[Hit]]:
    """The quotas that were used, and those that were not."""
    statuses = decision.statuses
    used: list[Hit] = [each.hit for each in statuses if each.reset_after or each.remaining < each.rule.quota.burst]
    used += [ban.hit for ban in decision.bans if ban.reset_after and ban.hit not in used]
    return used, [hit for hit in decision.hits if hit not in used]


def _hit_as_json(hit: Hit) -> dict[str, str]:
    return {"name": hit.name, "key": hit.key}
