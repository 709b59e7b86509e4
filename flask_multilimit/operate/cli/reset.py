"""``flask multilimit reset``: gives a subject a fresh start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import click

from ...declare.subjects import EVERYONE, LimitType, subjects_given
from ...engine import ConfigurationError
from ...insight.bans import note
from ...insight.clients import Client, asked_at, require_limiters
from ...insight.keys import all_keys, keys_of
from ...insight.standing import BanStanding, RuleStanding, standing
from ...serve.gate import AppGate
from .. import console
from .base import (
    action_options,
    as_json,
    client_options,
    command,
    current_gate,
    for_people,
    options_for,
    require_counted,
    require_shared_storage,
    write,
    write_json,
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
    author: str,
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
        require_counted(gate, given)
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
    author: str
    dry_run: bool
    yes: bool
    as_json: bool

    def at(self, gate: AppGate, endpoint: str, method: str | None, given: Mapping[str, str]) -> None:
        require_limiters("reset", endpoint, asked_at(gate, endpoint, method, given), given, spelled=options_for)
        require_shared_storage(gate)
        requests = standing(gate, Client(given), endpoint=endpoint, method=method).requests
        by_request = ", ".join(dict.fromkeys(name for each in requests for name in each.by_request))
        quotas: dict[str, RuleStanding | BanStanding] = {}
        for each in requests:
            quotas |= {rule.key: rule for rule in each.rules} | {ban.key: ban for ban in each.bans}
        if not quotas:
            raise ConfigurationError(
                f'reset: the rules of {by_request} at "{endpoint}" depend on the request and are not known '
                "here, so nothing was reset; --all in place of the endpoint resets whatever is used"
            )
        rows = [(each.name, each.shown, each.text) for each in quotas.values()]
        self._ask(console.columns(rows, indent=2), len(quotas))
        used = [each for each in quotas.values() if _is_used(each)]
        full = [each for each in quotas.values() if not _is_used(each)]
        if not self.dry_run:
            gate.reset(list(quotas))
            if used:
                self._note(gate)
        if self.as_json:
            found = {"reset": list(map(_as_json, used)), "full_already": list(map(_as_json, full))}
            write_json(endpoint=endpoint, changed=not self.dry_run, **found)
            return
        for said, some in ((self._said, used), ("Full already", full)):
            if some:
                console.echo(f"{said}: {', '.join(each.name for each in some)}.")
        if by_request:
            write(console.paragraph(_OTHER_RULES.format(names=by_request)))

    def of_keys(self, gate: AppGate, keys: list[str]) -> None:
        lines = [f"  {key}" for key in keys[:MOST_SHOWN]]
        more = [f"  and {len(keys) - MOST_SHOWN} more"] if len(keys) > MOST_SHOWN else []
        if keys:
            self._ask([*lines, *more], len(keys))
        if not self.dry_run:
            gate.reset(keys)
            if keys:
                self._note(gate)
        if self.as_json:
            write_json(endpoint=None, changed=not self.dry_run, keys=keys)
        elif not keys:
            console.echo("Nothing to reset: nothing is used.")
        else:
            console.echo(f"{self._said}: {console.plural(len(keys), 'quota')}.")

    def _note(self, gate: AppGate) -> None:
        """Add a line to the history, if there is one."""
        if problem := note(gate, "reset", self.what, reason=self.reason, author=self.author):
            console.echo(f"Reset, but the history does not show it: {problem}", err=True)

    @property
    def _said(self) -> str:
        return "Would reset" if self.dry_run else "Reset"

    def _ask(self, lines: Iterable[str], quotas: int) -> None:
        if self.as_json and (self.yes or self.dry_run):
            return
        if self.dry_run or not self.yes:
            console.write(lines, err=not self.dry_run)
        if not (self.dry_run or self.yes):
            console.confirm(f"Reset {console.plural(quotas, 'quota')}?", abort=True, err=True)


_OTHER_RULES = (
    "Not reset, because they depend on the request: the rules of {names}. With --all in place of the endpoint, their "
    "quotas are reset, too."
)


def _is_used(quota: RuleStanding | BanStanding) -> bool:
    return bool(quota.reset_after or (isinstance(quota, RuleStanding) and quota.used))


def _as_json(quota: RuleStanding | BanStanding) -> dict[str, str]:
    return {"name": quota.name, "key": quota.key}
