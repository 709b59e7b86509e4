"""What a check leaves on a server, for how long, and how many commands it takes."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from flask_multilimit.engine import Hit, Limiter, RedisStorage
from flask_multilimit.engine.algorithms.sliding_window import TRIM
from support.asking import commands
from support.bench import dies_at, exhaust, hits, rule
from support.rates import RATES
from support.servers import Server
from support.waiting import until

GONE = -2
OLD = 100_000


def fill(client: redis.Redis, key: str, many: int, first: int, last: int) -> None:
    """With entries evenly spread over the instants from ``first`` to ``last``."""
    for start in range(0, many, 5000):
        batch = range(start, min(start + 5000, many))
        client.zadd(key, {f"{n:016}": first + (last - first) * n // many for n in batch})
    client.expire(key, 600)


def test_clock_of_the_application_has_no_effect_on_a_check(
    served: Limiter, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    actual = time.time
    before = server_microseconds(client)
    monkeypatch.setattr(time, "time", lambda: actual() - 30)

    decision = served.check(hits())

    assert before <= decision.at <= server_microseconds(client)


# Time to live


@pytest.mark.parametrize("window", [0.001, 0.05, 60, 400 * 86_400])
def test_every_key_expires_within_two_windows(
    served: Limiter, client: redis.Redis, algorithm: str, window: float
) -> None:
    plan = hits([rule(algorithm, window), rule(algorithm, 2 * window if window < 60 else 120)])
    for action in (served.check, served.check, served.peek, lambda plan: served.refund(served.check(plan))):
        action(plan)

        for hit in plan:
            left = client.pttl(hit.key)
            assert left == GONE or 0 <= left <= 2 * hit.rule.window_ms


def test_key_that_expires_while_keys_are_listed_is_not_said_to_last_forever(server: Server) -> None:
    first, second = hits("5/minute; 9/hour")

    class Late(redis.Redis):
        def pipeline(self, *arguments: Any, **options: Any) -> Any:
            self.delete(first.key)
            return super().pipeline(*arguments, **options)

    with Late(unix_socket_path=server.url.removeprefix("unix://")) as client:
        storage = RedisStorage(client)
        storage.check((first, second))

        assert [stored.key for stored in storage.keys("")] == [second.key]


def end_of_millisecond(milliseconds: int) -> int:
    """In microseconds; a key exists up to the end of the millisecond in which it expires."""
    return (milliseconds + 1) * 1000


def test_key_does_not_expire_before_the_units_in_it(served: Limiter, client: redis.Redis, algorithm: str) -> None:
    plan = hits(rule(algorithm, 0.02, 1000))
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        decision = served.check(plan)

        expires_at = dies_at(client, plan[0].key)
        whole = decision.at + round(decision.reset_after * 1_000_000)
        assert not decision.allowed or expires_at == GONE or end_of_millisecond(expires_at) >= whole


def test_refund_of_a_sliding_window_does_not_let_other_units_expire_early(served: Limiter, client: redis.Redis) -> None:
    """Without its refund, the first unit would have expired before the last came, and the key would live longer."""
    plan = hits(rule("sliding_window", 0.2, 10))
    first = served.check(plan)
    wait_until(client, first.at + 100_000)
    served.check(plan)
    served.refund(first)
    wait_until(client, first.at + 250_000)

    last = served.check(plan)

    expires_at = dies_at(client, plan[0].key)
    is_late = server_microseconds(client) >= last.at + 200_000  # then the key may be gone
    assert is_late or end_of_millisecond(expires_at) >= last.at + 200_000


def wait_until(client: redis.Redis, instant: int) -> None:
    """By the server's clock, in microseconds."""
    while server_microseconds(client) < instant:
        time.sleep(0.005)


def test_no_key_is_left_when_windows_have_passed(served: Limiter, client: redis.Redis, algorithm: str) -> None:
    rules = [rule(algorithm, 0.1, 3), rule(algorithm, 0.2, 5)]
    for n in range(50):
        exhaust(served, hits(rules, subject=f"subject {n}"), most=5000)
    served.refund(served.check(hits(rules, subject="refunded")))

    until(lambda: client.dbsize() == 0)


# One command


def commands_during(client: redis.Redis, action: Callable[[], object]) -> list[str]:
    with commands(client) as seen:
        action()
    return seen


def ten_rules(count: int) -> tuple[Hit, ...]:
    names = list(RATES)
    return tuple(hit for n in range(10) for hit in hits(rule(names[n % len(names)], 60 + n, count)))


def test_each_operation_on_ten_rules_is_one_command(served: Limiter, client: redis.Redis) -> None:
    plan, few = ten_rules(9), ten_rules(3)
    decision = served.check(plan)
    served.refund(served.check(plan))

    assert commands_during(client, lambda: served.check(plan)) == ["EVALSHA"]
    assert commands_during(client, lambda: served.check(few)) == ["EVALSHA"], "a refused check, too"
    assert commands_during(client, lambda: served.peek(plan)) == ["EVALSHA"]
    assert commands_during(client, lambda: served.check(plan, check_id=decision.id)) == ["EVALSHA"]
    assert commands_during(client, lambda: served.refund(decision)) == ["EVALSHA"]
    assert len(commands_during(client, lambda: served.reset(plan))) == 1


def test_check_writes_no_keys_but_those_of_its_hits(served: Limiter, client: redis.Redis) -> None:
    plan = ten_rules(3)
    exhaust(served, plan)
    assert set(client.scan_iter()) == {hit.key.encode() for hit in plan}


def test_sliding_window_keeps_one_entry_per_admitted_unit(served: Limiter, client: redis.Redis) -> None:
    plan = hits("3/minute; 100/hour")
    exhaust(served, plan)
    assert not served.check(plan).allowed
    assert [client.zcard(hit.key) for hit in plan] == [3, 3]


def test_scripts_are_loaded_again_when_the_server_has_lost_them(served: Limiter, client: redis.Redis) -> None:
    plan = ten_rules(9)
    decision = served.check(plan)
    actions: list[Callable[[], object]] = [
        lambda: served.check(plan),
        lambda: served.peek(plan),
        lambda: served.check(plan, check_id=decision.id),
        lambda: served.refund(decision),
    ]
    for action in actions:
        client.script_flush()
        assert commands_during(client, action) == ["EVALSHA", "EVAL"]

    assert served.peek(plan).remaining == 8


# Trimming


def test_check_drops_a_bounded_number_of_future_sliding_window_entries(served: Limiter, client: redis.Redis) -> None:
    plan = hits("5/minute")
    key, now = plan[0].key, server_microseconds(client)
    fill(client, key, OLD, now + 600 * 1_000_000, now + 3600 * 1_000_000)

    decision = served.check(plan)

    assert (decision.allowed, decision.remaining, decision.reset_after) == (True, 4, 60)
    assert OLD + 1 - TRIM - 1 <= client.zcard(key) < OLD + 1


def server_microseconds(client: redis.Redis) -> int:
    seconds, rest = client.time()
    return int(seconds) * 1_000_000 + int(rest)
