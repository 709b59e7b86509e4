"""``flask multilimit doctor``: finds problems, and says how to fix them."""

from __future__ import annotations

from typing import Any

import click

from ...insight.doctor import Finding, Level, examine
from ...insight.text import plural
from .. import console
from . import command, current_gate, show, wants_json


@command("doctor", short_help="Find problems, and say how to fix them.")
def doctor_command() -> None:
    """Find problems with limits and storage, and say how to fix them. The exit code is 1 if something is wrong."""
    findings = []
    for finding in examine(current_gate()):
        findings.append(finding)
        if not wants_json():
            console.write(_finding_lines(finding))
    wrong = sum(finding.level == "wrong" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    show(lambda: ["", _summary(wrong, warnings)], healthy=not wrong, findings=findings)
    if wrong:
        raise click.exceptions.Exit(1)


_STYLES: dict[Level, dict[str, Any]] = {
    "ok": {"fg": "green"},
    "hint": {"fg": "cyan"},
    "warning": {"fg": "yellow", "bold": True},
    "wrong": {"fg": "red", "bold": True},
}
_INDENT = 24
"""Columns that the mark and the name of a finding take."""


def _finding_lines(finding: Finding) -> list[str]:
    mark = "WRONG" if finding.level == "wrong" else finding.level
    lines = console.paragraph(finding.text, indent=_INDENT, first="\0" * _INDENT)
    lines[0] = (
        console.style(f"{mark:<9}", **_STYLES[finding.level]) + f"{finding.name:<{_INDENT - 9}}" + lines[0].lstrip("\0")
    )
    if finding.remedy and finding.level != "ok":
        lines += console.paragraph(finding.remedy, indent=_INDENT + 2, first=" " * _INDENT + "> ")
    return lines


def _summary(wrong: int, warnings: int) -> str:
    if wrong:
        return console.style(f"{plural(wrong, 'problem')} found.", fg="red", bold=True)
    if warnings:
        return console.style(f"No problems found, {plural(warnings, 'warning')}.", fg="yellow", bold=True)
    return console.style("No problems found.", fg="green", bold=True)
