"""Calendars follow the server's clock, even if the clocks of workers are wrong."""

from typing import Any

import pytest
import redis

from flask_multilimit.engine import Calendar, Limiter, RedisStorage, Rule, StorageError, hits_for
from flask_multilimit.engine.storage.redis.compiled import COMPILE_AFTER, compiled, shape_of
from flask_multilimit.engine.storage.redis.scripts import script
from support.clock import SECOND
from support.servers import Server

pytestmark = pytest.mark.usefixtures("redis_client")

DAY = 86_400 * SECOND
RULES = [Calendar(100, "month", timezone="Europe/Berlin", anchor=15), Calendar(50, "hour"), Rule(60, 1000)]
OFF = [0, 5 * 60 * SECOND, -5 * 60 * SECOND, 7 * 3_600 * SECOND, -26 * 3_600 * SECOND, 40 * DAY, -40 * DAY, 3_000 * DAY]


def worker(server: Server, off: int) -> RedisStorage:
    """The storage of a process whose clock is that much ahead of the server's."""
    storage = RedisStorage(server.client())
    storage._ahead = off
    return storage


def scripts_run(client: redis.Redis) -> int:
    """How many scripts the server has run."""
    stats: Any = client.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("eval", "evalsha"))


@pytest.mark.parametrize("off", OFF)
def test_worker_with_a_wrong_clock_gives_the_same_answers(server: Server, off: int) -> None:
    wrong, right = Limiter(worker(server, off)), Limiter(worker(server, 0))
    hits = hits_for(RULES, scope="api", subject="user:ada")
    for used in range(1, 2 * COMPILE_AFTER + 5, 2):  # it is compiled meanwhile
        first, second = wrong.check(hits), right.check(hits)
        assert [status.remaining for status in first.statuses] == [100 - used, 50 - used, 1000 - used]
        assert [status.remaining for status in second.statuses] == [99 - used, 49 - used, 999 - used]
        for here, there in zip(first.statuses[:2], second.statuses[:2], strict=True):
            assert first.at + here.reset_after * SECOND == pytest.approx(second.at + there.reset_after * SECOND, abs=2)

    wrong.settle(first, 0)
    assert wrong.peek(hits).statuses[0].remaining == right.peek(hits).statuses[0].remaining == 100 - used
    later = wrong.check_many([hits, hits_for(RULES, scope="api", subject="user:bo")])
    assert [decision.remaining for decision in later] == [50 - used - 1, 49]


@pytest.mark.parametrize("off", [40 * DAY, -40 * DAY])
def test_worker_with_a_wrong_clock_repeats_only_its_first_check(
    server: Server, redis_client: redis.Redis, off: int
) -> None:
    limiter = Limiter(worker(server, off))
    limiter.check(hits_for(RULES, scope="api", subject="user:warm"))
    limiter.storage._ahead = off  # type: ignore[attr-defined]
    before = scripts_run(redis_client)
    for number in range(40):
        limiter.check(hits_for(RULES, scope="api", subject=f"user:s{number % 3}"))

    assert scripts_run(redis_client) - before in {41, 42}, (
        "one more for the time, and perhaps one for a compiled script"
    )


@pytest.mark.parametrize("ask", ["check", "peek", "check_many", "repeat", "settle"])
def test_every_command_is_repeated_with_boundaries_around_the_server_time(server: Server, ask: str) -> None:
    limiter = Limiter(worker(server, 0))
    hits = hits_for(RULES[:1], scope="api", subject="user:ada")
    decision = limiter.check(hits)
    limiter.storage._ahead = 400 * DAY  # type: ignore[attr-defined]
    if ask == "settle":
        limiter.settle(decision, 7)
        assert limiter.peek(hits).remaining == 93
        return
    calls = {
        "check": lambda: limiter.check(hits),
        "peek": lambda: limiter.peek(hits),
        "check_many": lambda: limiter.check_many([hits])[0],
        "repeat": lambda: limiter.check(hits, check_id=decision.id),
    }
    assert calls[ask]().remaining == (99 if ask == "peek" else 98)


def test_implausible_server_time_is_a_storage_error(server: Server) -> None:
    storage = RedisStorage(server.client())
    hits = hits_for(RULES[:1], scope="api", subject="user:ada")
    for lie in (-1, 10**19, 2**63):
        with pytest.raises(StorageError):
            storage._is_outside(hits, [lie])
    with pytest.raises(StorageError):
        storage._is_outside(hits, [b"x"])


def test_scripts_of_plans_without_calendars_contain_no_calendar_code() -> None:
    hits = hits_for([Rule(60, 5), Rule(1, 2, algorithm="fixed_window")], scope="api")
    shape = shape_of(hits)
    assert shape is not None
    for text in (script("check", frozenset({"sliding_window", "fixed_window"})).text, compiled(shape).text):
        assert "calendar" not in text
        assert "bounds" not in text


def test_calendars_of_all_zones_and_anchors_share_one_shape() -> None:
    calendars = [Calendar(5, "month", timezone=zone, anchor=day) for zone in ("UTC", "Asia/Tokyo") for day in (1, 31)]
    assert len({shape_of(hits_for(each, scope="api")) for each in calendars}) == 1
