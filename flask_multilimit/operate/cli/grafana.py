"""``flask multilimit grafana``: a dashboard to import."""

from __future__ import annotations

from collections.abc import Callable

import click

from ...observe.boards import dashboard
from ...observe.metrics import NAMESPACE
from ...serve.gate import AppGate
from .. import console
from ..listing import endpoints_of
from .base import command, current_gate, for_people

namespace_option: Callable[[Callable[..., None]], Callable[..., None]] = click.option(
    "--namespace",
    default=NAMESPACE,
    show_default=True,
    metavar="NAME",
    help="The prefix of the metrics: PrometheusMetrics(namespace=NAME).",
)


@command("grafana", short_help="Print a Grafana dashboard.")
@namespace_option
def grafana_command(namespace: str) -> None:
    """Print a Grafana dashboard of the metrics of PrometheusMetrics, with the app's limited endpoints to choose from.

    Save it, and import it in Grafana under Dashboards > New > Import.
    """
    with for_people():
        gate = current_gate()
        board = dashboard(limited_endpoints(gate), namespace=namespace, title=f"Rate limits of {gate.app.name}")
    console.write(board.rstrip("\n").split("\n"))


def limited_endpoints(gate: AppGate) -> list[str]:
    """Their names, each once."""
    return list(dict.fromkeys(endpoint.name for endpoint in endpoints_of(gate) if endpoint.limiters))
