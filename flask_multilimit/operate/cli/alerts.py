"""``flask multilimit alerts``: alert rules for Prometheus."""

from __future__ import annotations

import click

from ...observe.boards import alerts
from .. import console
from .base import command, current_gate, for_people
from .grafana import limited_endpoints, namespace_option


@command("alerts", short_help="Print alert rules for Prometheus.")
@namespace_option
@click.option("--own", is_flag=True, help="Only for the endpoints that this app limits now, and not for other apps'.")
def alerts_command(namespace: str, own: bool) -> None:
    """Print alert rules for Prometheus: refusals rise, an endpoint refuses over 5 %, the storage is away, and more.

    Save them, and name the file under rule_files in prometheus.yml.
    """
    with for_people():
        endpoints = limited_endpoints(current_gate()) if own else []
        if own and not endpoints:
            raise click.ClickException("This app limits no endpoint.")
        rules = alerts(namespace, endpoints)
    console.write(rules.rstrip("\n").split("\n"))
