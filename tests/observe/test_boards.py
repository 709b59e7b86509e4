"""The dashboard and the alert rules of the package: valid for Prometheus' own tools, with metrics that exist."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client import CollectorRegistry

from flask_multilimit import ConfigurationError
from flask_multilimit.observe.boards import PANELS, alerts, dashboard
from flask_multilimit.observe.prometheus import PrometheusMetrics
from support.folders import DOCS
from support.processes import program

REGISTRY = CollectorRegistry()
PrometheusMetrics(registry=REGISTRY)
METRICS = {metric.name for metric in REGISTRY.collect()}
SERIES = {name for metric in METRICS for name in (metric, f"{metric}_total", f"{metric}_bucket")}
RISEN = {"RefusalsRise": "Refusals have risen to 10 a second"}
ALL = {"EndpointRefuses search": "search refuses 100% of its requests, from several clients"}
DOWN = {
    "StorageDown shop": "The rate limit storage of shop does not answer",
    "FallbackInUse": "1 checks a second are decided without the storage",
    "Unanswered login": "login answers with errors because no limit can be checked",
    "BanStorm login": "login bans 60 subjects a minute",
}
SCENARIOS: dict[str, tuple[dict[str, str], dict[int, dict[str, str]]]] = {
    "refusals rise": (
        {"search refused storage": "0x75 600+600x20", "search allowed storage": "0+600x95"},
        {70: {}, 92: {**RISEN, "EndpointRefuses search": "search refuses 50% of its requests, from several clients"}},
    ),
    "a storage fails": (
        {
            "up": "1x5 0x10",
            "search allowed local": "0x5 60+60x10",
            "login unanswered nobody": "0x5 60+60x10",
            "bans login": "0x5 60+60x10",
        },
        {5: {}, 14: DOWN},
    ),
    "one scraper, and a few who are refused beside it; at feed, many are refused": (
        {
            "search refused storage": "0+600x60",
            "search allowed storage": "0+600x60",
            "share search": "0.95x60",
            "feed refused storage": "0+600x60",
            "feed allowed storage": "0+600x60",
            "share feed": "0.4x60",
        },
        {50: {"EndpointRefuses feed": "feed refuses 30% of its requests, from several clients"}},
    ),
    "nothing was ever refused, so there is no such series, until it begins": (
        {"search refused storage": "_x75 0+600x20", "search allowed storage": "0+600x95"},
        {83: RISEN},
    ),
    "Prometheus is new, and knows less than the hour before": (
        {"search refused storage": "0+600x90"},
        {10: {}, **dict.fromkeys((20, 25, 60), ALL)},
    ),
    "all of it ends after 30 minutes: 5 minutes later, nothing is said in the present tense": (
        {
            "search refused local": "0+600x30 18000x20",
            "search unanswered nobody": "0+600x30 18000x20",
            "search allowed storage": "0+600x50",
            "bans search": "0+60x30 1800x20",
            "up": "0x30 1x20",
        },
        {35: {}},
    ),
}
"""Series, one value a minute; and by minute, the alerts that fire then and no others, each with its summary."""


def series_of(words: str) -> str:
    match words.split():
        case ["up"]:
            return 'multilimit_storage_up{app="shop", pid="1"}'
        case ["bans", endpoint]:
            return f'multilimit_bans_total{{endpoint="{endpoint}", rule="ip-ban"}}'
        case ["share", endpoint]:
            return f'multilimit_top_subject_share{{endpoint="{endpoint}", app="shop", pid="1"}}'
        case [endpoint, outcome, decider]:
            return f'multilimit_checks_total{{endpoint="{endpoint}", outcome="{outcome}", decided_by="{decider}"}}'
    raise ValueError(words)


def expected_of(rule: dict[str, Any], firing: dict[str, str]) -> list[dict[str, Any]]:
    """What promtool expects of one rule, when these alerts fire and no others."""
    found = []
    for words, summary in firing.items():
        name, *place = words.split()
        if rule["alert"] == f"MultiLimit{name}":
            labels = {"app" if each == "shop" else "endpoint": each for each in place}
            annotations = {**rule["annotations"], "summary": summary}
            found.append({"exp_labels": {**rule["labels"], **labels}, "exp_annotations": annotations})
    return found


def promtool(*arguments: object) -> str:
    run = subprocess.run([program("promtool"), *map(str, arguments)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


def rules_in(text: str) -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(text)["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def expect_valid(text: str, folder: Path) -> None:
    (folder / "alerts.yml").write_text(text, encoding="utf-8")

    assert f" {len(rules_in(alerts()))} rules found" in promtool("check", "rules", folder / "alerts.yml")


def test_alert_rules_are_valid(tmp_path: Path) -> None:
    expect_valid(alerts(), tmp_path)


@pytest.mark.parametrize(("series", "firing"), SCENARIOS.values(), ids=SCENARIOS)
def test_alerts_fire_exactly_when_they_should(
    tmp_path: Path, series: dict[str, str], firing: dict[int, dict[str, str]]
) -> None:
    expected = [
        {"eval_time": f"{minute}m", "alertname": rule["alert"], "exp_alerts": expected_of(rule, alerts_then)}
        for minute, alerts_then in firing.items()
        for rule in rules_in(alerts())
    ]
    test = {
        "interval": "1m",
        "input_series": [{"series": series_of(words), "values": values} for words, values in series.items()],
        "alert_rule_test": expected,
    }
    rules = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "alerts.yml").write_text(alerts())
    (tmp_path / "test.yml").write_text(yaml.safe_dump(rules))

    assert "SUCCESS" in promtool("test", "rules", tmp_path / "test.yml")


@pytest.mark.parametrize("text", [alerts(), dashboard()], ids=["alerts", "dashboard"])
def test_boards_query_only_existing_metrics(text: str) -> None:
    asked = set(re.findall(r"\bmultilimit_[a-z_]+", text)) - {"multilimit_top"}
    assert asked
    assert asked <= SERIES


def test_every_query_of_the_dashboard_is_valid(tmp_path: Path) -> None:
    asked = [query.expression for queries in PANELS.values() for query in queries]
    rules = [{"record": f"r:{n}", "expr": each.replace("$__rate_interval", "1m")} for n, each in enumerate(asked)]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert f" {len(asked)} rules found" in promtool("check", "rules", tmp_path / "queries.yml")


def test_dashboard_shows_every_metric_but_refunds() -> None:
    assert {name for name in METRICS if name not in dashboard()} == {"multilimit_refunds"}


def test_every_alert_is_documented() -> None:
    page = (DOCS / "how-to" / "prometheus.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(MultiLimit\w+)`", page, re.MULTILINE) == [rule["alert"] for rule in rules_in(alerts())]


def test_alerts_for_chosen_endpoints_match_only_those(tmp_path: Path) -> None:
    text = alerts(endpoints=["search", "api.login", "(unmatched)"])

    expect_valid(text, tmp_path)
    asked = re.findall(r"(?:checks|bans)_total\S*", "".join(rule["expr"] for rule in rules_in(text)))
    assert len(asked) > 5
    assert all(r'endpoint=~"search|api\\.login|\\(unmatched\\)"' in each for each in asked)


def test_alerts_and_dashboard_accept_any_endpoint_name(tmp_path: Path) -> None:
    names = [
        'a"b',
        "x #y",
        "c: d",
        "back\\slash",
        "multilimit_checks_total",
        "grüße",
        "a.b",
        "a|b",
        "new\nline",
        "{}[]",
    ]
    text = alerts("shop", names)

    expect_valid(text, tmp_path)
    expressions = "".join(rule["expr"] for rule in rules_in(text))
    matchers = {json.loads(found) for found in re.findall(r'endpoint=~("(?:[^"\\]|\\.)*")', expressions)}
    (matcher,) = matchers
    assert all(re.fullmatch(matcher, name) for name in names)
    assert not re.fullmatch(matcher, "aXb")
    board = json.loads(dashboard(names, namespace="shop"))
    assert [option["value"] for option in board["templating"]["list"][1]["options"]][1:] == names


@pytest.mark.parametrize("namespace", ["shop-limits", "", "a b"])
def test_invalid_namespace_of_metrics_is_an_error(namespace: str) -> None:
    for print_them in (alerts, lambda given: dashboard(namespace=given)):
        with pytest.raises(ConfigurationError, match="give a letter"):
            print_them(namespace)


def test_namespace_renames_every_metric_of_a_board() -> None:
    for text in (alerts("shop_limits"), dashboard(namespace="shop_limits")):
        assert "multilimit_" not in text
        assert "shop_limits_checks_total" in text
    assert yaml.safe_load(alerts("shop"))["groups"][0]["name"] == "multilimit"


def test_dashboard_offers_a_choice_of_endpoints() -> None:
    of_app, known = json.loads(dashboard(["search", "login"])), json.loads(dashboard())
    assert [option["value"] for option in of_app["templating"]["list"][1]["options"]] == ["$__all", "search", "login"]
    assert known["templating"]["list"][1]["query"] == "label_values(multilimit_checks_total, endpoint)"


def test_first_row_of_the_dashboard_has_single_numbers() -> None:
    panels = json.loads(dashboard())["panels"]
    first = [panel for panel in panels if panel["gridPos"]["y"] == 0]

    assert len(first) == 6
    assert sum(panel["gridPos"]["w"] for panel in first) == 24
    assert {panel["type"] for panel in first} == {"stat"}
    assert {panel["type"] for panel in panels if panel not in first} == {"timeseries"}


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in json.loads(dashboard())["panels"]]

    assert len(places) == len(PANELS)
    assert all(place["x"] + place["w"] <= 24 for place in places)
    taken = [(x, y) for place in places for x in _span(place, "x", "w") for y in _span(place, "y", "h")]
    assert len(set(taken)) == len(taken)


def _span(place: dict[str, int], begin: str, length: str) -> range:
    return range(place[begin], place[begin] + place[length])
