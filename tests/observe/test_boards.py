"""The dashboard and the alert rules of the package: valid for Prometheus' own tools, with metrics that exist."""

from __future__ import annotations

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
RULES = """
rule_files: [alerts.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: 'multilimit_checks_total{endpoint="search", outcome="refused", decided_by="storage"}'
        values: '0x75 600+600x20'
      - series: 'multilimit_checks_total{endpoint="search", outcome="allowed", decided_by="storage"}'
        values: '0+600x95'
    alert_rule_test:
      - {eval_time: 70m, alertname: MultiLimitRefusalsRise, exp_alerts: []}
      - {eval_time: 70m, alertname: MultiLimitEndpointRefuses, exp_alerts: []}
      - eval_time: 92m
        alertname: MultiLimitRefusalsRise
        exp_alerts: &risen
          - exp_labels: {severity: warning}
            exp_annotations:
              summary: Refusals have risen to 10 a second
              description: >-
                More than three times as many requests are refused as in the hour before. `flask multilimit top` shows
                who is refused, where, and by which rule.
      - eval_time: 95m
        alertname: MultiLimitEndpointRefuses
        exp_alerts:
          - exp_labels: {severity: warning, endpoint: search}
            exp_annotations:
              summary: search refuses 50% of its requests, from several clients
              description: >-
                The client that is refused most is not counted. Either many call too often, or a limit is too tight for
                honest users. `flask multilimit top` shows which.
  - interval: 1m
    input_series:
      - series: 'multilimit_storage_up{app="shop", pid="1"}'
        values: '1x5 0x10'
      - series: 'multilimit_checks_total{endpoint="search", outcome="allowed", decided_by="local"}'
        values: '0x5 60+60x10'
      - series: 'multilimit_checks_total{endpoint="login", outcome="unanswered", decided_by="nobody"}'
        values: '0x5 60+60x10'
      - series: 'multilimit_bans_total{endpoint="login", rule="ip-ban"}'
        values: '0x5 60+60x10'
    alert_rule_test:
      - {eval_time: 5m, alertname: MultiLimitStorageDown, exp_alerts: []}
      - {eval_time: 5m, alertname: MultiLimitFallbackInUse, exp_alerts: []}
      - {eval_time: 5m, alertname: MultiLimitUnanswered, exp_alerts: []}
      - {eval_time: 5m, alertname: MultiLimitBanStorm, exp_alerts: []}
      - eval_time: 14m
        alertname: MultiLimitStorageDown
        exp_alerts:
          - exp_labels: {severity: critical, app: shop}
            exp_annotations:
              summary: The rate limit storage of shop does not answer
              description: >-
                For a minute, at least one process has decided without it, as MULTILIMIT_ON_STORAGE_ERROR says. `flask
                multilimit doctor` says what is wrong.
      - eval_time: 14m
        alertname: MultiLimitFallbackInUse
        exp_alerts:
          - exp_labels: {severity: warning}
            exp_annotations:
              summary: 1 checks a second are decided without the storage
              description: >-
                Each process limits on its own, or lets everything pass. See MultiLimitStorageDown, or look in the log
                for single keys that fail.
      - eval_time: 14m
        alertname: MultiLimitUnanswered
        exp_alerts:
          - exp_labels: {severity: critical, endpoint: login}
            exp_annotations:
              summary: login answers with errors because no limit can be checked
              description: The storage does not answer, and MULTILIMIT_ON_STORAGE_ERROR is deny or raise.
      - eval_time: 14m
        alertname: MultiLimitBanStorm
        exp_alerts:
          - exp_labels: {severity: warning, endpoint: login}
            exp_annotations:
              summary: login bans 60 subjects a minute
              description: >-
                Either an attack from many places, or a ban that hits honest users. `flask multilimit top` shows whom it
                hits, and `flask multilimit set` changes a limit at once.
  - interval: 1m  # one scraper, and a few who are refused beside it; at /feed, many are refused
    input_series:
      - series: 'multilimit_checks_total{endpoint="search", outcome="refused", decided_by="storage"}'
        values: '0+600x60'
      - series: 'multilimit_checks_total{endpoint="search", outcome="allowed", decided_by="storage"}'
        values: '0+600x60'
      - series: 'multilimit_top_subject_share{endpoint="search", app="shop", pid="1"}'
        values: '0.95x60'
      - series: 'multilimit_checks_total{endpoint="feed", outcome="refused", decided_by="storage"}'
        values: '0+600x60'
      - series: 'multilimit_checks_total{endpoint="feed", outcome="allowed", decided_by="storage"}'
        values: '0+600x60'
      - series: 'multilimit_top_subject_share{endpoint="feed", app="shop", pid="1"}'
        values: '0.4x60'
    alert_rule_test:
      - eval_time: 50m
        alertname: MultiLimitEndpointRefuses
        exp_alerts:
          - exp_labels: {severity: warning, endpoint: feed}
            exp_annotations:
              summary: feed refuses 30% of its requests, from several clients
              description: >-
                The client that is refused most is not counted. Either many call too often, or a limit is too tight for
                honest users. `flask multilimit top` shows which.
  - interval: 1m  # nothing was ever refused, so there is no such series, until it begins
    input_series:
      - series: 'multilimit_checks_total{endpoint="search", outcome="refused", decided_by="storage"}'
        values: '_x75 0+600x20'
      - series: 'multilimit_checks_total{endpoint="search", outcome="allowed", decided_by="storage"}'
        values: '0+600x95'
    alert_rule_test:
      - eval_time: 83m
        alertname: MultiLimitRefusalsRise
        exp_alerts: *risen
  - interval: 1m  # Prometheus is new, and knows less than the hour before
    input_series:
      - series: 'multilimit_checks_total{endpoint="search", outcome="refused", decided_by="storage"}'
        values: '0+600x90'
    alert_rule_test:
      - {eval_time: 10m, alertname: MultiLimitRefusalsRise, exp_alerts: []}
      - {eval_time: 20m, alertname: MultiLimitRefusalsRise, exp_alerts: []}
      - {eval_time: 25m, alertname: MultiLimitRefusalsRise, exp_alerts: []}
      - {eval_time: 60m, alertname: MultiLimitRefusalsRise, exp_alerts: []}
  - interval: 1m  # all of it ends after 30 minutes: 5 minutes later, nothing is said in the present tense
    input_series:
      - series: 'multilimit_checks_total{endpoint="search", outcome="refused", decided_by="local"}'
        values: '0+600x30 18000x20'
      - series: 'multilimit_checks_total{endpoint="search", outcome="unanswered", decided_by="nobody"}'
        values: '0+600x30 18000x20'
      - series: 'multilimit_checks_total{endpoint="search", outcome="allowed", decided_by="storage"}'
        values: '0+600x50'
      - series: 'multilimit_bans_total{endpoint="search", rule="ip-ban"}'
        values: '0+60x30 1800x20'
      - series: 'multilimit_storage_up{app="shop", pid="1"}'
        values: '0x30 1x20'
    alert_rule_test:
      - {eval_time: 35m, alertname: MultiLimitRefusalsRise, exp_alerts: []}
      - {eval_time: 35m, alertname: MultiLimitEndpointRefuses, exp_alerts: []}
      - {eval_time: 35m, alertname: MultiLimitStorageDown, exp_alerts: []}
      - {eval_time: 35m, alertname: MultiLimitFallbackInUse, exp_alerts: []}
      - {eval_time: 35m, alertname: MultiLimitUnanswered, exp_alerts: []}
      - {eval_time: 35m, alertname: MultiLimitBanStorm, exp_alerts: []}
"""


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


def test_alerts_fire_exactly_when_they_should(tmp_path: Path) -> None:
    (tmp_path / "alerts.yml").write_text(alerts())
    (tmp_path / "test.yml").write_text(RULES)

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
