"""The clients of a replay: each is counted once."""

import random
from collections import Counter

import pytest
from flask import Flask

from flask_multilimit import IP, USER, MultiLimit, rate_limiter
from flask_multilimit.operate.simulate import replay
from flask_multilimit.simulation import LoggedRequest, Report, assert_admits, simulate


def report_of(requests: list[LoggedRequest]) -> Report:
    app = Flask("small")
    MultiLimit(app, user_loader=lambda: None)
    for name in ("a", "b"):
        app.get(f"/{name}", endpoint=name)(
            rate_limiter(type=IP, rules="3 per 5 seconds")(rate_limiter(type=USER, rules="5 per 7 seconds")(lambda: ""))
        )
    return simulate(app, requests)


def test_forgotten_client_that_returns_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgetting clients changes no verdict and no count, also for a user with several addresses."""
    draw = random.Random(7)
    requests = [
        LoggedRequest.of(
            1_795_305_600 + second // 8,
            "GET",
            draw.choice(["/a", "/b"]),
            address=f"203.0.113.{draw.randrange(30)}",
            status=200,
            user=draw.choice([None, None, "ann", "bob"]),
        )
        for second in range(4000)
    ]
    whole = report_of(requests)
    monkeypatch.setattr(replay, "REMEMBERED", 3)

    forgetful = report_of(requests)

    assert forgetful == whole
    assert whole.clients == 32
    assert whole.clients_refused > 10
    by_name = Counter(f"user {each.user}" if each.user else each.address for each in requests)
    assert {each.name: each.requests for each in whole.worst}.items() <= by_name.items()


def test_ipv6_addresses_of_one_network_are_one_client() -> None:
    report = report_of(
        [LoggedRequest.of(n, "GET", "/a", address=f"2001:db8:1:2::{n:x}", status=200) for n in range(1, 5)]
    )

    assert (report.clients, report.clients_refused) == (1, 1)
    assert [each.name for each in report.worst] == ["2001:db8:1:2::/64"]


@pytest.mark.parametrize(
    "client", ["2001:db8:1:2::1", "2001:db8:1:2::/64", "203.0.113.7", "::ffff:203.0.113.7", "user ann"]
)
def test_assert_admits_finds_a_client_in_every_spelling(client: str) -> None:
    counted = {"user ann": ("203.0.113.9", "ann")}.get(client, (client.replace("/64", "9"), None))
    report = report_of(
        [LoggedRequest.of(n, "GET", "/a", address=counted[0], user=counted[1], status=200) for n in range(8)]
    )

    assert_admits(report, clients=["2001:db8:1:3::1", "203.0.113.8", "user bob"])
    with pytest.raises(AssertionError, match="1 of the clients would be refused"):
        assert_admits(report, clients=[client, "203.0.113.8"])


def test_user_of_a_failed_login_is_no_client() -> None:
    tries = [
        LoggedRequest.of(1, "GET", "/a", address="203.0.113.7", status=status, user="ann")
        for status in [200] + 4 * [401]
    ]

    report = report_of(tries)

    assert report.clients == 2, "ann, and the client at her address"
    assert [(each.name, each.requests) for each in report.worst] == [("203.0.113.7", 4)]
