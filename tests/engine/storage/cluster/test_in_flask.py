"""An app on a cluster: limits of the app and of endpoints, hash tags, outages and commands."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask
from redis.crc import key_slot

from flask_multilimit import IP, USER, ConfigurationError, MultiLimit, current_decision, rate_limiter, testing
from flask_multilimit.engine import ClusterStorage
from flask_multilimit.engine.keys import probe_key, without_subject
from flask_multilimit.serve.gate import gate_of
from operate.cli.conftest import SHOP, Command, Run
from support.cluster import Cluster


@pytest.fixture
def make(cluster: Cluster) -> Iterator[Callable[..., Flask]]:
    """An app on the cluster, which is empty: 10 a minute for all of it, 3 for each address at each of two endpoints."""
    made: list[Flask] = []

    def make(options: dict[str, Any] | None = None, **settings: object) -> Flask:
        app = Flask("shop")
        app.config.update(
            {
                "TESTING": True,
                "MULTILIMIT_STORAGE_URI": cluster.uri,
                "MULTILIMIT_STORAGE_TIMEOUT": 5,
                "MULTILIMIT_APPLICATION_LIMITS": "10/minute",
                "MULTILIMIT_WORKERS": 1,
                "MULTILIMIT_TRAFFIC": False,  # tests list all keys, and a slow machine would send counts meanwhile
                "MULTILIMIT_CONTROL": False,
            },
            **{f"MULTILIMIT_{name}": value for name, value in settings.items()},
        )
        MultiLimit(app, user_loader=lambda: None)
        made.append(app)
        for name in ("shop", "update"):
            limited = rate_limiter(type=IP, rules="3/minute; 30/hour", **(options or {}))
            app.add_url_rule(f"/{name}", name, limited(lambda: str(current_decision.remaining)))
        return app

    yield make
    for app in made:
        gate_of(app).limiter.close()


def get(app: Flask, path: str, address: str = "203.0.113.7") -> Any:
    return app.test_client().get(path, environ_base={"REMOTE_ADDR": address})


def test_test_kit_freezes_exhausts_and_resets_quotas_on_a_cluster(make: Callable[..., Flask]) -> None:
    app = make()
    with testing.freeze(app) as clock:
        refusal = testing.exhaust(app, "shop", "ip:203.0.113.7")
        assert get(app, "/shop").status_code == 429
        clock.advance(refusal.retry_after)
        assert get(app, "/shop").status_code == 200
        testing.reset(app)
        assert get(app, "/shop").text == "2"
    storage = gate_of(app).limiter.storage
    assert isinstance(storage, ClusterStorage)
    assert storage.keys("rate_limit:") == []


# Hash tags


def test_hash_tag_subject_gives_each_address_its_own_hash_slot(make: Callable[..., Flask], cluster: Cluster) -> None:
    app = make({"hash_tag": "subject"}, APPLICATION_LIMITS={"type": "ip", "rules": "4/minute", "hash_tag": "subject"})
    addresses = [f"203.0.113.{n}" for n in range(20)]

    statuses = {address: [get(app, "/shop", address).status_code for _ in range(5)] for address in addresses}
    elsewhere = [get(app, "/update", addresses[0]).status_code for _ in range(3)]

    assert list(statuses.values()) == [[200] * 3 + [429] * 2] * 20
    assert elsewhere == [200, 429, 429]
    keys = cluster.keys()
    assert "rate_limit:shop:ip:{203.0.113.7}:sliding_window:60000" in keys
    assert len({key_slot(key.encode()) for key in keys}) == 20
    assert len({cluster.owner(key) for key in keys}) == 3


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        ({"type": USER, "rules": "9/minute", "hash_tag": "subject"}, "counts another type"),
        ({"type": (USER, IP), "rules": "9/minute", "hash_tag": "subject"}, "counts another type"),
        ({"rules": "9/minute", "hash_tag": "subject"}, "counts another type"),
        ({"type": IP, "rules": "9/day"}, 'has hash_tag="scope"'),
    ],
    ids=str,
)
def test_limits_of_an_endpoint_in_several_hash_slots_are_an_error(
    make: Callable[..., Flask], other: dict[str, Any], differs: str
) -> None:
    app = make({"hash_tag": "subject"}, LIMITS={"shop": other})

    with pytest.raises(ConfigurationError, match=differs) as caught:
        get(app, "/update")

    assert str(caught.value).startswith('limiter on "shop": ')
    assert "give one of them a scope" in str(caught.value)


def test_limit_with_its_own_scope_may_be_in_another_hash_slot(make: Callable[..., Flask]) -> None:
    app = make({"hash_tag": "subject"}, LIMITS={"shop": {"rules": "2/minute", "scope": "both"}})
    assert [get(app, "/shop").status_code for _ in range(3)] == [200, 200, 429]


# What people and logs are shown


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("rate_limit:{api}:ip:203.0.113.7:sliding_window:1000", "rate_limit:{api}"),
        ("rate_limit:api:ip:{203.0.113.7}:sliding_window:1000", "rate_limit:api:ip"),
        ("p:{*}:user::gcra:1000", "p:{*}"),
        ("p:api:user+ip:{*}:gcra:1000", "p:api:user+ip"),
        ("not one of our keys", "not one of our keys"),
    ],
)
def test_probe_key_shares_a_hash_slot_and_the_shown_key_has_no_subject(key: str, place: str) -> None:
    assert without_subject(key) == place
    assert "{" not in key or key_slot(probe_key(key, "fixed_window").encode()) == key_slot(key.encode())


def test_failure_in_the_hash_slot_of_a_subject_is_logged_without_it_and_recovers(
    make: Callable[..., Flask], cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    app = make({"hash_tag": "subject"}, APPLICATION_LIMITS=(), STORAGE_TIMEOUT=0.3)
    health = gate_of(app).limiter.health
    get(app, "/shop")
    owner = cluster.owner("rate_limit:shop:ip:{203.0.113.7}:sliding_window:60000")
    owner.suspend()
    try:
        get(app, "/shop")
        assert health().state == "failed"
    finally:
        owner.resume()
    cluster.until(lambda: health().state == "working", "recovery")

    assert "(key rate_limit:shop:ip)" in caplog.text
    assert "203.0.113.7" not in caplog.text


def command(uri: str, *arguments: str) -> Run:
    run = Command(SHOP, uri)
    run.environment["FLASK_MULTILIMIT_STORAGE_TIMEOUT"] = "5"
    run.environment["FLASK_MULTILIMIT_LIMITS"] = json.dumps(
        {"api.*": {"type": "ip", "rules": "100/minute", "hash_tag": "subject", "scope": "api"}}
    )
    return run(*arguments, columns=200)


def test_commands_work_on_a_cluster(cluster: Cluster) -> None:
    address = cluster.uri
    listed = command(address, "limits", "--json").json
    screen = command(address, "limits").out
    standing = command(address, "check", "api.items", "--ip", "203.0.113.7", "--json").json
    doctor = command(address, "doctor", "--json").json

    tags = {limit["scope"]: limit["hash_tag"] for each in listed["endpoints"] for limit in each["limits"]}
    assert (tags["application"], tags["api"]) == ("scope", "subject")
    assert "slot by subject" in screen
    keys = {rule["key"] for request in standing["requests"] for rule in request["rules"]}
    assert "rate_limit:api:ip:{203.0.113.7}:sliding_window:60000" in keys
    assert doctor["healthy"]
    assert [finding["name"] for finding in doctor["findings"]].count("storage") == 3
    assert "script" in {finding["name"] for finding in doctor["findings"]}


def test_keys_command_lists_keys_of_both_hash_tags_with_their_rules(
    cluster: Cluster, make: Callable[..., Flask]
) -> None:
    app = make({"hash_tag": "subject"})
    get(app, "/shop")
    runner = app.test_cli_runner()

    listed = json.loads(runner.invoke(args=["multilimit", "keys", "--json"]).output)["keys"]

    assert [key["key"] for key in listed] == cluster.keys()
    assert {key["key"]: (key["used"], (key["rule"] or {}).get("count")) for key in listed} == {
        "rate_limit:shop:ip:{203.0.113.7}:sliding_window:3600000": (1, 30),
        "rate_limit:shop:ip:{203.0.113.7}:sliding_window:60000": (1, 3),
        "rate_limit:{application}:default::sliding_window:60000": (1, 10),
    }


def test_doctor_reports_an_unreachable_cluster_with_a_remedy() -> None:
    found = command("redis+cluster://127.0.0.1:1", "doctor", "--json").json
    (storage,) = (finding for finding in found["findings"] if finding["name"] == "storage")
    assert not found["healthy"]
    assert storage["remedy"]
