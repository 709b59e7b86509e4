"""``flask multilimit doctor``: finds problems, and says how to fix them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from ...engine import ConfigurationError
from ...insight.limits import places_of
from ...insight.text import plural
from ...serve.gate import AppGate
from .. import console
from ..doctor import Finding, Severity
from ..doctor.app import examine_app, examine_control, examine_traffic
from ..doctor.storage import examine_storage
from .base import as_json, command, current_gate, write_json


@command("doctor", short_help="Find problems, and say how to fix them.")
@as_json
def doctor_command(as_json: bool) -> None:
    """Find problems with limits and storage, and say how to fix them. The exit code is 1 if something is wrong."""
    findings = []
    for finding in examine(current_gate()):
        findings.append(finding)
        if not as_json:
            console.write(_finding_lines(finding))
    wrong = sum(finding.severity is Severity.WRONG for finding in findings)
    warnings = sum(finding.severity is Severity.WARNING for finding in findings)
    if as_json:
        write_json(healthy=not wrong, findings=[_finding_as_json(finding) for finding in findings])
    else:
        console.write(["", _summary(wrong, warnings)])
    if wrong:
        raise click.exceptions.Exit(1)


def examine(gate: AppGate) -> Iterator[Finding]:
    """Look at everything, in the order in which problems are best fixed."""
    try:
        endpoints = [place for place in places_of(gate) if place.is_endpoint]
    except ConfigurationError as error:
        endpoints = []
        yield Finding("declarations", Severity.WRONG, str(error), "Correct it. Until then, requests fail.")
    else:
        yield from examine_app(gate, endpoints)
    yield examine_traffic(gate)
    yield from examine_control(gate)
    yield from examine_storage(gate, endpoints)


_MARKS: dict[Severity, tuple[str, dict[str, Any]]] = {
    Severity.OK: ("ok", {"fg": "green"}),
    Severity.HINT: ("hint", {"fg": "cyan"}),
    Severity.WARNING: ("warning", {"fg": "yellow", "bold": True}),
    Severity.WRONG: ("WRONG", {"fg": "red", "bold": True}),
}
_BESIDE = 24
"""Columns that the mark and the name of a finding take."""


def _finding_lines(finding: Finding) -> list[str]:
    text, style = _MARKS[finding.severity]
    lines = console.paragraph(finding.text, indent=_BESIDE, first="\0" * _BESIDE)
    lines[0] = console.style(f"{text:<9}", **style) + f"{finding.name:<{_BESIDE - 9}}" + lines[0].lstrip("\0")
    if finding.remedy and finding.severity is not Severity.OK:
        lines += console.paragraph(finding.remedy, indent=_BESIDE + 2, first=" " * _BESIDE + "> ")
    return lines


def _summary(wrong: int, warnings: int) -> str:
    if wrong:
        return console.style(f"{plural(wrong, 'problem')} found.", fg="red", bold=True)
    if warnings:
        return console.style(f"No problems found, {plural(warnings, 'warning')}.", fg="yellow", bold=True)
    return console.style("No problems found.", fg="green", bold=True)


def _finding_as_json(finding: Finding) -> dict[str, Any]:
    return {
        "name": finding.name,
        "level": finding.severity.value,
        "text": finding.text,
        "remedy": finding.remedy or None,
    }
