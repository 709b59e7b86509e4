"""flask multilimit check and reset: where a subject stands, and how to let it go."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from flask.testing import FlaskClient

    from operate.cli.conftest import Command

ADDRESS = {"REMOTE_ADDR": "203.0.113.7"}


def call(shop: FlaskClient, path: str, times: int = 1) -> list[int]:
    return [shop.get(path, environ_base=ADDRESS).status_code for _ in range(times)]


def passes_within_seconds(shop: FlaskClient, path: str) -> None:
    deadline = time.monotonic() + 10
    while call(shop, path) != [200]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_check_tells_what_is_left_and_that_a_request_would_pass(on_server: Command, shop: FlaskClient) -> None:
    call(shop, "/update", 2)

    run = on_server("check", "update", "--ip", "203.0.113.7")

    assert run.code == 0
    assert run.out.startswith("update GET  a request would pass\n")
    assert "ip-20s           203.0.113.7  3 per 20 s       1 " in run.out
    assert "default-86400s   everyone     1000 per day     998 " in run.out


def test_check_tells_who_refuses_and_for_how_long(on_server: Command, shop: FlaskClient) -> None:
    assert call(shop, "/update", 4) == [200, 200, 200, 429]

    run = on_server("check", "update", "--ip", "203.0.113.7")
    answer = on_server("check", "update", "--ip", "203.0.113.7", "--json").json

    assert "update GET  a request would be refused, for " in run.out
    assert answer["allowed"] is False
    assert 0 < answer["retry_after"] <= 20
    (refusing,) = (rule for rule in answer["rules"] if not rule["allowed"])
    assert refusing == {
        "name": "ip-20s",
        "type": "ip",
        "subject": "203.0.113.7",
        "count": 3,
        "time": 20,
        "algorithm": "sliding_window",
        "burst": None,
        "max_delay": None,
        "lease": None,
        "cost": 1,
        "shadow": False,
        "allowed": False,
        "remaining": 0,
        "retry_after": answer["retry_after"],
        "reset_after": refusing["reset_after"],
        "key": "rate_limit:{update}:ip:203.0.113.7:sliding_window:20000",
    }


def test_check_charges_nothing(on_server: Command, shop: FlaskClient) -> None:
    for _ in range(2):
        answer = on_server("check", "update", "--ip", "203.0.113.7", "--json").json
        assert [rule["remaining"] for rule in answer["rules"]] == [5000, 3, 10, 1000]
    assert call(shop, "/update", 3) == [200, 200, 200]


def test_check_names_the_limits_whose_subject_is_not_given(on_server: Command) -> None:
    run = on_server("check", "api.search", "--ip", "203.0.113.7")

    assert "would pass, as far as asked" in run.out
    assert "user (--user), user+ip (--user and --ip), api_key\n(--subject api_key=...)." in run.out


def test_check_knows_types_of_ones_own_and_several_together(on_server: Command, shop: FlaskClient) -> None:
    shop.get("/api/search/x", environ_base=ADDRESS, headers={"X-User": "ann", "X-Api-Key": "abc"})

    arguments = ("--user", "ann", "--ip", "203.0.113.7", "--subject", "api_key=abc")
    answer = on_server("check", "api.search", *arguments, "--json").json
    run = on_server("check", "api.search", *arguments)

    left = {rule["name"]: rule["remaining"] for rule in answer["rules"]}
    assert left == {
        "application-60s": 4999,
        "user-3600s": 9,
        "ip-60s": 99,
        "user-ip-3600s": 4,
        "api_key-3600s": 4,
    }
    assert answer["not_asked"] == []
    assert "ann + 203.0.113.7" in run.out


def test_check_knows_who_is_not_logged_in(on_server: Command, shop: FlaskClient) -> None:
    call(shop, "/api/items")

    answer = on_server("check", "api.items", "--subject", "anonymous=203.0.113.7", "--json").json

    assert {rule["name"]: rule["remaining"] for rule in answer["rules"]}["user-3600s"] == 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "updaet"), 'no endpoint is called "updaet"; did you mean "update"?'),
        (("check", "update", "--ip", "localhost"), "'localhost' is not an IP address"),
        (("check", "update", "--subject", "api_key"), "'api_key': write TYPE=VALUE"),
        (("reset", "update", "--yes"), "Say whose quotas: --ip, --user, --subject or --everyone."),
        (
            ("reset", "update", "--user", "ann", "--yes"),
            'No limit at "update" counts user. It is limited by: default (--everyone), ip',
        ),
    ],
)
def test_what_makes_no_sense_is_told_in_a_line(on_memory: Command, arguments: tuple[str, ...], message: str) -> None:
    run = on_memory(*arguments)

    assert run.code != 0
    assert message in run.err
    assert run.out == ""


def test_a_view_without_limits_says_so(on_memory: Command) -> None:
    assert on_memory("check", "health").out == "health GET  has no limits\n"


def test_a_view_that_takes_no_get_is_asked_by_its_own_method(on_memory: Command) -> None:
    assert on_memory("check", "send", "--ip", "203.0.113.7", "--json").json["method"] == "POST"


def test_reset_asks_and_then_the_next_request_passes(on_server: Command, shop: FlaskClient) -> None:
    assert call(shop, "/update", 4)[-1] == 429

    run = on_server("reset", "update", "--ip", "203.0.113.7", answer="y\n")

    assert run.code == 0
    assert "Make 2 quotas whole again? [y/N]" in run.err
    assert run.out == "Whole again: ip-20s, ip-3600s.\n"
    passes_within_seconds(shop, "/update")  # a process believes its last refusal for one


def test_reset_does_nothing_without_a_yes(on_server: Command, shop: FlaskClient) -> None:
    assert call(shop, "/update", 4)[-1] == 429

    run = on_server("reset", "update", "--ip", "203.0.113.7", answer="n\n")

    assert run.code == 1
    assert call(shop, "/update") == [429]


def test_reset_takes_what_everyone_shares_only_when_told(on_server: Command, shop: FlaskClient) -> None:
    call(shop, "/update", 3)
    on_server("reset", "update", "--ip", "203.0.113.7", "--yes")
    before = on_server("check", "update", "--json").json

    reset = on_server("reset", "update", "--everyone", "--yes", "--json").json
    after = on_server("check", "update", "--json").json

    assert [rule["remaining"] for rule in before["rules"]] == [4997, 997]
    assert [rule["name"] for rule in reset["reset"]] == ["application-60s", "default-86400s"]
    assert [rule["remaining"] for rule in after["rules"]] == [5000, 1000]


def test_reset_of_memory_says_that_the_workers_do_not_notice(on_memory: Command) -> None:
    run = on_memory("reset", "update", "--ip", "203.0.113.7", "--yes")

    assert "memory:// is in each process by itself" in run.out
