"""A Grafana dashboard and Prometheus alert rules, ready to import."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from .metrics import NAMESPACE, check_namespace

_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH = 24


class Query(NamedTuple):
    """The lines of one query in a panel."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """One panel of the dashboard."""

    title: str
    unit: str
    columns: int
    """Its width; a row has 24 columns."""
    text: str
    """Its description."""
    is_number: bool = False
    """Whether it shows one number, the present value, and no lines."""


def _number(title: str, unit: str, text: str) -> Panel:
    """A panel with one number, a sixth of a row wide."""
    return Panel(title, unit, _WIDTH // 6, text, is_number=True)


def _total(matcher: str) -> str:
    """The checks per second at all selected endpoints together, 0 if nothing was counted."""
    return f"({_rate('', 'checks_total', matcher)} or vector(0))"


def _rate(by: str, metric: str, *matchers: str) -> str:
    """The rate per second at the selected endpoints, by the labels ``by``."""
    selector = ", ".join(('endpoint=~"$endpoint"', *matchers))
    return f"sum by ({by}) (rate(multilimit_{metric}{{{selector}}}[$__rate_interval]))"


_WAS_REFUSED = 'outcome="refused"'
_HAS_PASSED = 'outcome=~"allowed|waited|shadowed|allow_listed"'
_REFUSED = _rate("endpoint", "checks_total", _WAS_REFUSED)
_PASSED = _rate("endpoint", "checks_total", _HAS_PASSED)
_ALL = _rate("endpoint", "checks_total")
_TURNED_AWAY = _rate("outcome", "checks_total", 'outcome=~"banned|denied|unanswered"')
_RULE = "endpoint, rule"
_NAME_OF_RULE = "{{endpoint}} {{rule}}"
_TIMES = "histogram_quantile({}, sum by (le) (rate(multilimit_check_seconds_bucket[$__rate_interval])))"

NUMBERS = {
    _number("Passed a second", "reqps", "Requests that were admitted."): _total(_HAS_PASSED),
    _number("Refused a second", "reqps", "Refused by a rule."): _total(_WAS_REFUSED),
    _number("Share refused now", "percentunit", "Of all checks."): (
        f"{_total(_WAS_REFUSED)} / {_rate('', 'checks_total')}"
    ),
    _number("Bans", "short", "In force now, including bans by hand."): (
        '(sum(max by (app, endpoint, rule) (multilimit_bans_in_force{endpoint=~"$endpoint"})) or vector(0))'
        ' + (sum(max by (app) (multilimit_control_entries{kind="ban"})) or vector(0))'
    ),
    _number("Slow checks", "s", "95 of 100 checks take at most this long, without the time that requests wait."): (
        _TIMES.format(0.95)
    ),
    _number("Storage", "bool_yes_no", "Whether every process gets answers."): "min(multilimit_storage_up)",
}
"""The first row: people on call look here first."""

PANELS = {
    **{panel: (Query(expression, panel.title),) for panel, expression in NUMBERS.items()},
    Panel("Refused per second", "reqps", 8, "Refused by a rule."): (Query(_REFUSED, "{{endpoint}}"),),
    Panel("Passed per second", "reqps", 8, "Requests that were admitted."): (Query(_PASSED, "{{endpoint}}"),),
    Panel("Share refused", "percentunit", 8, "Of all checks."): (Query(f"{_REFUSED} / {_ALL}", "{{endpoint}}"),),
    Panel("Rules that refuse", "reqps", 12, "A request may be refused by several rules."): (
        Query(f"topk(20, {_rate(_RULE, 'refusals_total')})", _NAME_OF_RULE),
    ),
    Panel("Near the limit", "reqps", 12, "Requests that pass and leave less than 20 % of a quota."): (
        Query(f"topk(20, {_rate(_RULE, 'near_limit_total')})", _NAME_OF_RULE),
    ),
    Panel(
        "Share of the most refused subject", "percentunit", 12, "Near 100 %: one client is refused, and no others."
    ): (Query('max by (endpoint) (multilimit_top_subject_share{endpoint=~"$endpoint"})', "{{endpoint}}"),),
    Panel("Units settled per second", "short", 12, "How far real costs were above or below their estimates."): (
        Query(_rate("direction, " + _RULE, "settled_units_total"), _NAME_OF_RULE + " {{direction}}"),
    ),
    Panel("Shadows that would refuse", "reqps", 12, "What a limit on trial would do."): (
        Query(_rate(_RULE, "shadow_refusals_total"), _NAME_OF_RULE),
    ),
    Panel("Who decides", "reqps", 12, "local and allow: the storage is down."): (
        Query(_rate("decided_by", "checks_total"), "{{decided_by}}"),
    ),
    Panel("Time of a check", "s", 12, "Without the time that requests wait for their turn."): tuple(
        Query(_TIMES.format(share), f"{share:.0%}") for share in (0.5, 0.95, 0.99)
    ),
    Panel(
        "Turned away by lists, bans and outages", "reqps", 12, "unanswered: an error, as no limit could be checked."
    ): (Query(_TURNED_AWAY, "{{outcome}}"),),
    Panel("Bans started per minute", "short", 12, "By limiters; each ends by itself."): (
        Query(f"60 * {_rate(_RULE, 'bans_total')}", _NAME_OF_RULE),
    ),
    Panel("Bans in force", "short", 12, "By limiters, which end by themselves, and by hand."): (
        Query('max by (endpoint, rule) (multilimit_bans_in_force{endpoint=~"$endpoint"})', _NAME_OF_RULE),
        Query('max by (app) (multilimit_control_entries{kind="ban"})', "{{app}} by hand"),
    ),
    Panel(
        "Changes at run time", "short", 12, "How often limits and lists were changed, and how old this knowledge is."
    ): (
        Query("min by (app) (multilimit_control_version)", "{{app}} version"),
        Query("max by (app) (multilimit_control_age_seconds)", "{{app}} seconds since the last look"),
        Query("sum by (app) (max by (app, kind) (multilimit_control_entries))", "{{app}} entries in force"),
    ),
    Panel("Storage up", "bool_yes_no", 6, "1: every process gets answers."): (
        Query("min by (app) (multilimit_storage_up)", "{{app}}"),
    ),
    Panel("Processes by state of the breaker", "short", 6, "open: they do not ask the storage."): (
        Query("sum by (app, state) (multilimit_storage_breaker)", "{{app}} {{state}}"),
    ),
    Panel("Held by processes", "short", 12, "Charges and keys of an outage, and leases."): (
        Query("sum by (app) (multilimit_pending_charges)", "{{app}} pending charges"),
        Query("sum by (app) (multilimit_fallback_keys)", "{{app}} fallback keys"),
        Query("sum by (app) (multilimit_leases)", "{{app}} leases"),
    ),
}


def alerts(namespace: str = NAMESPACE, endpoints: Sequence[str] = ()) -> str:
    """The alert rules as a YAML file; with ``endpoints``, only for those."""
    text = _in_namespace(files(__package__).joinpath("alerts.yml").read_text(encoding="utf-8"), namespace)
    if endpoints:
        names = "|".join(re.sub(r"([^\w/-])", r"\\\1", name) for name in endpoints)
        matcher = f"endpoint=~{json.dumps(names, ensure_ascii=False)}"
        by_endpoint = f"({namespace}_(?:checks|bans)_total)"
        text = re.sub(by_endpoint + "{", lambda match: f"{match[1]}{{{matcher}, ", text)
        text = re.sub(by_endpoint + r"\[", lambda match: f"{match[1]}{{{matcher}}}[", text)
    return text


def dashboard(endpoints: Sequence[str] = (), *, namespace: str = NAMESPACE, title: str = "Rate limits") -> str:
    """The dashboard as JSON for Grafana. Its menu offers ``endpoints``, or without these, all that Prometheus knows."""
    datasource = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    board = {
        "title": title,
        "uid": None,
        "tags": ["flask-multilimit"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [datasource, _endpoint_variable(endpoints, namespace)]},
        "panels": list(_panels(namespace)),
    }
    return json.dumps(board, indent=2, ensure_ascii=False) + "\n"


def _panels(namespace: str) -> Iterator[dict[str, Any]]:
    x, y, below = 0, 0, 0
    for number, (panel, queries) in enumerate(PANELS.items(), 1):
        height = 4 if panel.is_number else 8
        if x + panel.columns > _WIDTH:
            x, y = 0, below
        yield {
            "id": number,
            "gridPos": {"x": x, "y": y, "w": panel.columns, "h": height},
            "type": "stat" if panel.is_number else "timeseries",
            "title": panel.title,
            "description": panel.text,
            "datasource": _DATASOURCE,
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "targets": [
                {
                    "refId": "ABC"[place],
                    "datasource": _DATASOURCE,
                    "expr": _in_namespace(expression, namespace),
                    "legendFormat": legend,
                }
                for place, (expression, legend) in enumerate(queries)
            ],
        }
        x, below = x + panel.columns, y + height


def _endpoint_variable(endpoints: Sequence[str], namespace: str) -> dict[str, Any]:
    everything = {"text": "All", "value": "$__all", "selected": True}
    common = {"name": "endpoint", "label": "Endpoint", "includeAll": True, "multi": True, "allValue": ".*"}
    common |= {"current": everything}
    if not endpoints:
        query = _in_namespace("label_values(multilimit_checks_total, endpoint)", namespace)
        return {**common, "type": "query", "datasource": _DATASOURCE, "query": query, "refresh": 2}
    options = [everything, *({"text": name, "value": name, "selected": False} for name in endpoints)]
    query = ",".join(name.replace(",", "\\,") for name in endpoints)
    return {**common, "type": "custom", "query": query, "options": options}


def _in_namespace(text: str, namespace: str) -> str:
    """``text`` with the names of metrics in ``namespace``. Raises :class:`ConfigurationError`."""
    check_namespace(namespace)
    return re.sub(rf"\b{NAMESPACE}_(?=[a-z])", f"{namespace}_", text)
