"""top, config, schema, alerts and grafana on the command line."""

import json
import logging
import os
import pty
import select
import time
from pathlib import Path

import pytest
import redis
from flask import Flask, request
from flask_babel.speaklater import LazyString

from flask_multilimit import MultiLimit
from flask_multilimit.declare.data import json_schema
from flask_multilimit.engine import RedisStorage
from flask_multilimit.engine.storage import MemoryStorage
from flask_multilimit.observe.boards import alerts
from flask_multilimit.observe.traffic import Check, Counts, Refused, RuleCount
from flask_multilimit.observe.traffic.flushing import Outbox
from operate.cli.conftest import SHOP, Command
from support.waiting import PATIENCE


@pytest.fixture
def some_traffic(redis_client: redis.Redis) -> None:
    outbox = Outbox(RedisStorage(redis_client), "rate_limit:", logger=logging.getLogger("test"))
    outbox.put(
        Counts(
            {Check("search", "refused", "storage"): 30, Check("search", "allowed", "storage"): 10},
            {RuleCount("search", "ip-60s", "refuses"): 30},
            {Refused("search", "ip-60s", "ip", "203.0.113.7"): 30},
        )
    )
    outbox.send()


@pytest.mark.usefixtures("some_traffic")
def test_top_once_prints_one_screen(on_server: Command) -> None:
    out = on_server("top", "--once").out
    assert "(75.0%)" in out
    assert "30       203.0.113.7  ip-60s  search" in out


@pytest.mark.usefixtures("some_traffic")
def test_top_prints_json(on_server: Command) -> None:
    told = on_server("top", "--json", "--minutes", "1").json
    assert told["schema"] == 2
    assert told["subjects"][0]["refused"] == 30
    assert told["seconds"] <= 60


def test_top_says_when_there_were_no_checks(on_server: Command) -> None:
    assert "No checks in this time." in on_server("top", "--once").out


def test_top_is_an_error_when_traffic_is_switched_off(on_server: Command) -> None:
    on_server.environment["FLASK_MULTILIMIT_TRAFFIC"] = "false"
    run = on_server("top")
    assert run.code == 1
    assert "MULTILIMIT_TRAFFIC is False: nothing is counted." in run.err


def test_top_is_an_error_without_a_server(tmp_path: Path) -> None:
    run = Command(SHOP, f"unix://{tmp_path}/none")("top", "--once")
    assert run.code == 1
    assert "gave no answer" in run.err


@pytest.mark.slow
@pytest.mark.usefixtures("some_traffic")
def test_top_refreshes_until_q_is_pressed(on_server: Command) -> None:
    main, terminal = pty.openpty()
    process = on_server.started("top", stdin=terminal, stdout=terminal, stderr=terminal)
    shown = b""
    deadline = time.monotonic() + PATIENCE
    while shown.count(b"q: quit") < 2 and time.monotonic() < deadline:
        if select.select([main], [], [], 0.1)[0]:
            shown += os.read(main, 65536)
    os.write(main, b"q")

    assert process.wait(PATIENCE) == 0
    assert shown.count(b"203.0.113.7") >= 2
    os.close(main)
    os.close(terminal)


def test_config_command_shows_the_source_of_each_setting(on_server: Command) -> None:
    found = {each["name"]: each for each in on_server("config", "--json").json["settings"]}
    assert found["MULTILIMIT_STORAGE_URI"]["source"] == "environment (FLASK_MULTILIMIT_STORAGE_URI)"
    assert found["MULTILIMIT_TRAFFIC"] == {"name": "MULTILIMIT_TRAFFIC", "value": "True", "source": "default"}
    assert "MULTILIMIT_TRAFFIC" in on_server("config").out


def test_config_command_hides_passwords() -> None:
    run = Command(SHOP, "redis://user:s3cret@localhost:1/0")("config")
    assert "s3cret" not in run.out
    assert "redis://" in run.out


def test_config_command_shows_a_given_storage_in_place_of_its_uri_alone(app: Flask) -> None:
    MultiLimit(app, storage=MemoryStorage())
    told = app.test_cli_runner().invoke(args=["multilimit", "config"]).output.splitlines()
    assert [line.split()[0] for line in told if "MemoryStorage" in line] == ["MULTILIMIT_STORAGE_URI"]


def test_config_command_shows_a_lazy_translation_that_needs_a_request(app: Flask) -> None:
    app.config["MULTILIMIT_MESSAGE"] = LazyString(lambda: request.path)
    MultiLimit(app)
    shown = app.test_cli_runner().invoke(args=["multilimit", "config"])
    assert "a LazyString" in shown.output, shown


def test_alerts_command_prints_rules_with_the_given_namespace(on_server: Command) -> None:
    assert on_server("alerts", "--namespace", "shop", columns=200).out == alerts("shop")


def test_alerts_and_grafana_commands_include_unmatched_requests(app: Flask) -> None:
    app.config["MULTILIMIT_UNMATCHED_LIMITS"] = "10/minute"
    MultiLimit(app)
    run = app.test_cli_runner().invoke

    assert 'endpoint=~"unmatched"' in run(args=["multilimit", "alerts", "--own"]).output
    assert '"value": "unmatched"' in run(args=["multilimit", "grafana"]).output


def test_grafana_command_prints_a_dashboard_of_the_limited_endpoints(on_server: Command) -> None:
    board = json.loads(on_server("grafana", columns=300).out)
    endpoints = [option["value"] for option in board["templating"]["list"][1]["options"]]
    assert len(endpoints) > 1
    assert board["title"].startswith("Rate limits of ")


def test_schema_command_prints_json_schema_of_a_limits_file(app: Flask) -> None:
    MultiLimit(app)
    result = app.test_cli_runner().invoke(args=["multilimit", "schema"])
    assert (result.exit_code, json.loads(result.output)) == (0, json_schema())
