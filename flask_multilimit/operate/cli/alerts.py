"""``flask multilimit alerts``: alert rules for Prometheus."""

from __future__ import annotations

import click

from ...observe.boards import alerts
from .base import command
from .grafana import _namespace_option


@command("alerts", short_help="Print alert rules for Prometheus.")
@_namespace_option
def alerts_command(namespace: str) -> None:
    """Print alert rules for Prometheus: refusals rise, an endpoint refuses over 5 %, the storage is away, and more.

    Save them, and name the file under rule_files in prometheus.yml.
    """
    click.echo(alerts(namespace), nl=False)
