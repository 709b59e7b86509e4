"""``flask multilimit config``: the settings in force; ``schema``, ``alerts``, ``grafana``: files for other programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import click

from ...config import PREFIX
from ...declare.data import json_schema
from ...engine.errors import brief
from ...engine.storage.addresses import redacted
from ...insight.limits import places_of
from ...observe.boards import alerts, dashboard
from ...observe.metrics import NAMESPACE
from ...serve.gate import AppGate
from .. import console
from . import command, current_gate, show

ENVIRONMENT = "FLASK_"
"""The prefix that ``app.config.from_prefixed_env()`` reads."""


class Setting(NamedTuple):
    """One setting in force."""

    name: str
    value: str
    source: str
    """Where it comes from."""


@command("config", short_help="Show the settings in force, and where each comes from.")
def config_command() -> None:
    """Show the settings in force, and where each comes from. Passwords are hidden."""
    gate = current_gate()
    found = [_setting(gate, field) for field in type(gate.settings).model_fields]
    show(
        lambda: console.columns(found, headings=("SETTING", "VALUE", "FROM")),
        settings=[setting._asdict() for setting in found],
    )


def _setting(gate: AppGate, field: str) -> Setting:
    settings, storage = gate.settings, gate.given_storage
    name, value, source = PREFIX + field.upper(), getattr(settings, field), "default"
    if field == "storage_uri" and storage is not None:
        shown = redacted(storage) if isinstance(storage, str) else f"a {type(storage).__name__}"
        return Setting(name, shown, "MultiLimit(storage=...)")
    if field in settings.model_fields_set:
        source = f"environment ({ENVIRONMENT}{name})" if ENVIRONMENT + name in os.environ else "app.config"
    shown = redacted(value) if field == "storage_uri" else brief(value)
    return Setting(name, shown, source)


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
