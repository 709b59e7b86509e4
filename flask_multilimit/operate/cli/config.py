"""``flask multilimit config`` shows the settings in force, ``doctor`` problems; ``schema``, ``alerts`` and ``grafana``
print files for other programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from ...config import PREFIX
from ...declare.data import json_schema
from ...engine.errors import brief
from ...engine.storage.addresses import redacted
from ...insight.doctor import Finding, Level, examine
from ...insight.limits import places_of
from ...insight.text import plural
from ...observe.boards import alerts, dashboard
from ...observe.metrics import NAMESPACE
from ...serve.gate import AppGate
from .. import console
from . import command, current_gate, show, wants_json

ENVIRONMENT = "FLASK_"
"""The prefix that ``app.config.from_prefixed_env()`` reads."""


@command("config", short_help="Show the settings in force, and where each comes from.")
def config_command() -> None:
    """Show the settings in force, and where each comes from. Passwords are hidden."""
    gate = current_gate()
    found = [_setting(gate, field) for field in type(gate.settings).model_fields]
    show(
        lambda: console.columns(found, headings=("SETTING", "VALUE", "FROM")),
        settings=[{"name": name, "value": value, "source": source} for name, value, source in found],
    )


def _setting(gate: AppGate, field: str) -> tuple[str, str, str]:
    """The name and the value of a setting, and where this comes from."""
    settings, storage = gate.settings, gate.given_storage
    name, value, source = PREFIX + field.upper(), getattr(settings, field), "default"
    if field == "storage_uri" and storage is not None:
        shown = redacted(storage) if isinstance(storage, str) else f"a {type(storage).__name__}"
        return name, shown, "MultiLimit(storage=...)"
    if field in settings.model_fields_set:
        source = f"environment ({ENVIRONMENT}{name})" if ENVIRONMENT + name in os.environ else "app.config"
    shown = redacted(value) if field == "storage_uri" else brief(value)
    return name, shown, source


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


@click.command("schema", short_help="Print the JSON Schema of a file of limits.")
def schema_command() -> None:
    """Print the JSON Schema (draft 2020-12) of the file that MULTILIMIT_FILE names, for completion in editors."""
    console.write_json(json_schema())


namespace_option: Callable[[Callable[..., None]], Callable[..., None]] = click.option(
    "--namespace",
    default=NAMESPACE,
    show_default=True,
    metavar="NAME",
    help="The prefix of the metrics: PrometheusMetrics(namespace=NAME).",
)


@command("alerts", short_help="Print alert rules for Prometheus.", json=False)
@namespace_option
@click.option("--own", is_flag=True, help="Only for the endpoints that this app limits now, and not for other apps'.")
def alerts_command(namespace: str, own: bool) -> None:
    """Print alert rules for Prometheus: refusals rise, an endpoint refuses over 5 %, the storage is down, and more.

    Save them, and name the file under rule_files in prometheus.yml.
    """
    endpoints = _limited_endpoints(current_gate()) if own else []
    if own and not endpoints:
        raise click.ClickException("This app limits no endpoint.")
    console.write(alerts(namespace, endpoints).rstrip("\n").split("\n"))


@command("grafana", short_help="Print a Grafana dashboard.", json=False)
@namespace_option
def grafana_command(namespace: str) -> None:
    """Print a Grafana dashboard of the metrics of PrometheusMetrics, with the app's limited endpoints to choose from.

    Save it, and import it in Grafana under Dashboards > New > Import.
    """
    gate = current_gate()
    board = dashboard(_limited_endpoints(gate), namespace=namespace, title=f"Rate limits of {gate.app.name}")
    console.write(board.rstrip("\n").split("\n"))


def _limited_endpoints(gate: AppGate) -> list[str]:
    """Their names, each once; with that of requests without a route, if these are limited."""
    return [place.name for place in places_of(gate) if place.limiters]
