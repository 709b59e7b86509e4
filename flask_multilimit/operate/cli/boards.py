"""``flask multilimit alerts`` and ``grafana``: what to give to Prometheus and Grafana."""

from __future__ import annotations

from collections.abc import Callable

import click

from ...insight.limits import places_of
from ...observe.boards import alerts, dashboard
from ...observe.metrics import NAMESPACE
from ...serve.gate import AppGate
from .. import console
from .base import command, current_gate, for_people

namespace_option: Callable[[Callable[..., None]], Callable[..., None]] = click.option(
    "--namespace",
    default=NAMESPACE,
    show_default=True,
    metavar="NAME",
    help="The prefix of the metrics: PrometheusMetrics(namespace=NAME).",
)


@command("alerts", short_help="Print alert rules for Prometheus.")
@namespace_option
@click.option("--own", is_flag=True, help="Only for the endpoints that this app limits now, and not for other apps'.")
def alerts_command(namespace: str, own: bool) -> None:
    """Print alert rules for Prometheus: refusals rise, an endpoint refuses over 5 %, the storage is away, and more.

    Save them, and name the file under rule_files in prometheus.yml.
    """
    with for_people():
        endpoints = _limited_endpoints(current_gate()) if own else []
        if own and not endpoints:
            raise click.ClickException("This app limits no endpoint.")
        rules = alerts(namespace, endpoints)
    console.write(rules.rstrip("\n").split("\n"))


@command("grafana", short_help="Print a Grafana dashboard.")
@namespace_option
def grafana_command(namespace: str) -> None:
    """Print a Grafana dashboard of the metrics of PrometheusMetrics, with the app's limited endpoints to choose from.

    Save it, and import it in Grafana under Dashboards > New > Import.
    """
    with for_people():
        gate = current_gate()
        board = dashboard(_limited_endpoints(gate), namespace=namespace, title=f"Rate limits of {gate.app.name}")
    console.write(board.rstrip("\n").split("\n"))


def _limited_endpoints(gate: AppGate) -> list[str]:
    """Their names, each once."""
    return [place.name for place in places_of(gate) if place.is_endpoint and place.limiters]
