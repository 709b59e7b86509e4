"""What if: replay the requests of logs through limits, and let the data choose the counts.

For notebooks, scripts and tests; on the command line it is ``flask multilimit simulate`` and ``suggest``.
"""

from __future__ import annotations

from collections.abc import Iterable

from .declare.addresses import network_of
from .engine import ConfigurationError
from .engine.errors import brief, check_iterable, check_text
from .operate.simulate.logged import LoggedRequest
from .operate.simulate.questions import share_from, simulate
from .operate.simulate.questions import suggest_limits as suggest
from .operate.simulate.reading import Logs, read_logs
from .operate.simulate.report import Report
from .operate.simulate.suggest import Choice, Refused, Suggestion

__all__ = [
    "Choice",
    "LoggedRequest",
    "Logs",
    "Refused",
    "Report",
    "Suggestion",
    "assert_admits",
    "read_logs",
    "simulate",
    "suggest",
]


def assert_admits(report: Report, *, refuse_at_most: float | str = 0.0, clients: Iterable[str] | None = None) -> None:
    """Raise AssertionError, for a test of your own, when ``report`` refuses more than a share of the requests.

    :param refuse_at_most: share of the requests, 0 to 1, or text such as ``"0.1%"``.
    :param clients: look only at these: none of them may be refused. A client is ``user ID``, or an address.
    """
    if not isinstance(report, Report):
        raise ConfigurationError(f"report={brief(report)}: give what simulate(...) returns")
    most = share_from(refuse_at_most)
    if clients is not None:
        check_iterable("clients", clients)
        refused = sorted(client for client in clients if _possible_names(client) & report.refused_names)
        if refused:
            raise AssertionError(f"{len(refused)} of the clients would be refused: {', '.join(refused[:10])}")
        return
    if report.share_refused > most:
        worst = "".join(f"\n  {each.name}: {each.refused} of {each.requests}" for each in report.worst)
        rules = "".join(f"\n  {rule.name} ({rule.text}): {rule.refused}" for rule in report.rules if rule.refused)
        raise AssertionError(
            f"{report.refused} of {report.requests} requests would be refused ({report.share_refused:.2%}), at most "
            f"{float(most):.2%} may be.\nBy rule:{rules}\nWorst:{worst}"
        )


def _possible_names(client: str) -> set[str]:
    """The names that a report may give to ``client``: an IPv6 address counts as a network, whose length the app
    sets."""
    check_text("clients", client)
    return {network_of(client, length) for length in range(1, 129)}
