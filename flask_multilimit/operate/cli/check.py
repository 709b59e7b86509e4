"""``flask multilimit check``: shows where a subject stands."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from ...declare.subjects import subjects_given
from ...engine import BanStatus, Decision, RuleStatus
from ...engine.hits import BanHit
from ...plan.endpoint import Applied
from ...plan.standings import Standing
from ...serve.access import Listed
from ...serve.gate import AppGate
from .. import console
from ..standing import listed_of, standings_of
from ..words import rule_as_json, rule_text
from .applied import by_request_of, owner_of, subject_of
from .base import as_json, bare_limiter, command, current_gate, for_people, require_shared_storage, write, write_json
from .who import options_for, require_counted, who_options


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
        require_counted(gate, given)
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
        """The names of limiters whose rules depend on the request."""
        return by_request_of(self.applied)


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
        title = console.style(f"{endpoint} {', '.join(answer.methods)}", bold=True)
        lines += ["", f"{title}  {_verdict(answer)}"]
        if answer.listed is not None:
            lines += ["", *console.paragraph(_told_of(answer.listed, limited=answer.decision is not None))]
        if answer.decision is not None:
            headings = ("NAME", "SUBJECT", "RULE", "LEFT", "REFUSED FOR", "RESETS IN")
            rows = [_row(status, subject_of(status.hit, answer.applied)) for status in answer.decision.statuses]
            rows += [
                _row_of_ban(ban, subject_of(ban.hit, answer.applied)) for ban in answer.decision.bans if not ban.holds
            ]
            lines += ["", *console.columns(rows, headings=headings)]
        if answer.waits_for_slot:
            lines += ["", *console.paragraph(_WAITS_FOR_SLOT)]
        if answer.not_asked:
            options = ", ".join(f"{name} ({options_for(parts)})" for name, parts in answer.not_asked.items())
            lines += ["", *console.paragraph(f"Not checked, because no subject is given: {options}.")]
        if answer.by_request:
            lines += ["", *console.paragraph(_BY_REQUEST.format(names=", ".join(answer.by_request)))]
    return lines[1:]


_WAITS_FOR_SLOT = "Nobody knows when: a slot is free as soon as a request that holds one ends."


_BY_REQUEST = (
    "Not checked, because they depend on the request: the rules of {names}. If their callable takes the subject, they "
    "are known here."
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
        return console.style(f"a request would pass{reservation}", fg="green")
    status = "" if answer.listed is None else f" with {answer.listed.status}"
    return console.style(f"a request would be refused{status}, {_how_long(answer, wait)}", fg="red")


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
    owner = owner_of(status.hit, applied)
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
    owner = owner_of(ban.hit, applied)
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
