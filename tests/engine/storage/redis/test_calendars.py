"""Calendars follow the server's clock, even if the clocks of workers are wrong."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from flask_multilimit.engine import Calendar, Limiter, RedisStorage, Rule, StorageError, hits_for
from flask_multilimit.engine.storage.redis import storage as storage_module
from flask_multilimit.engine.storage.redis.compiled import COMPILE_AFTER, compiled, shape_of
from flask_multilimit.engine.storage.redis.scripts import script
from support.bench import bare
from support.clock import SECOND
from support.liar import Liar
from support.servers import Server

pytestmark = pytest.mark.usefixtures("redis_client")

DAY = 86_400 * SECOND
RULES = [Calendar(100, "month", timezone="Europe/Berlin", anchor=15), Calendar(50, "hour"), Rule(60, 1000)]
OFF = [0, 5 * 60 * SECOND, -5 * 60 * SECOND, 7 * 3_600 * SECOND, -26 * 3_600 * SECOND, 40 * DAY, -40 * DAY, 3_000 * DAY]


@contextmanager
def wrong_clock(off: int) -> Iterator[None]:
    """Meanwhile the clock of this process is that much ahead of the server's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage_module, "time_ns", lambda: time.time_ns() + 1000 * off)
        yield


def scripts_run(client: redis.Redis) -> int:
    """How many scripts the server has run."""
    stats: Any = client.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("eval", "evalsha"))


@pytest.mark.parametrize("off", OFF)
def test_worker_with_a_wrong_clock_gives_the_same_answers(server: Server, off: int) -> None:
    wrong, right = (Limiter(RedisStorage(server.client())) for _ in range(2))
    hits = hits_for(RULES, scope="api", subject="user:ada")
    for used in range(1, 2 * COMPILE_AFTER + 5, 2):  # it is compiled meanwhile
        with wrong_clock(off):
            first = wrong.check(hits)
        second = right.check(hits)
        assert [status.remaining for status in first.statuses] == [100 - used, 50 - used, 1000 - used]
        assert [status.remaining for status in second.statuses] == [99 - used, 49 - used, 999 - used]
        for here, there in zip(first.statuses[:2], second.statuses[:2], strict=True):
            assert first.at + here.reset_after * SECOND == pytest.approx(second.at + there.reset_after * SECOND, abs=2)

    with wrong_clock(off):
        wrong.settle(first, 0)
        assert wrong.peek(hits).statuses[0].remaining == right.peek(hits).statuses[0].remaining == 100 - used
        later = wrong.check_many([hits, hits_for(RULES, scope="api", subject="user:bo")])
    assert [decision.remaining for decision in later] == [50 - used - 1, 49]


@pytest.mark.parametrize("off", [40 * DAY, -40 * DAY])
def test_worker_with_a_wrong_clock_repeats_only_its_first_check(
    server: Server, redis_client: redis.Redis, off: int
) -> None:
    limiter = Limiter(RedisStorage(server.client()))
    limiter.check(hits_for(RULES, scope="api", subject="user:warm"))
    before = scripts_run(redis_client)
    with wrong_clock(off):
        for number in range(40):
            limiter.check(hits_for(RULES, scope="api", subject=f"user:s{number % 3}"))

    assert scripts_run(redis_client) - before in {41, 42}, (
        "one more for the time, and perhaps one for a compiled script"
    )


@pytest.mark.parametrize("ask", ["check", "peek", "check_many", "repeat", "settle"])
def test_every_command_is_repeated_with_boundaries_around_the_server_time(server: Server, ask: str) -> None:
    limiter = Limiter(RedisStorage(server.client()))
    hits = hits_for(RULES[:1], scope="api", subject="user:ada")
    decision = limiter.check(hits)
    if ask == "settle":
        with wrong_clock(400 * DAY):
            limiter.settle(decision, 7)
        assert limiter.peek(hits).remaining == 93
        return
    calls = {
        "check": lambda: limiter.check(hits),
        "peek": lambda: limiter.peek(hits),
        "check_many": lambda: limiter.check_many([hits])[0],
        "repeat": lambda: limiter.check(hits, check_id=decision.id),
    }
    with wrong_clock(400 * DAY):
        assert calls[ask]().remaining == (99 if ask == "peek" else 98)


@pytest.mark.parametrize("lie", [b":-1", b":%d" % 2**62, b":%d" % 10**19, b"$1\r\nx"])
def test_implausible_server_time_is_a_storage_error(lie: bytes) -> None:
    def answers(data: bytes) -> Iterator[bytes]:
        yield b"+OK\r\n" * data.count(b"CLIENT") or b"*1\r\n" + lie + b"\r\n"

    with Liar(answers) as liar:
        limiter = bare(liar.url, timeout=30)
        with pytest.raises(StorageError):
            limiter.check(hits_for(RULES[:1], scope="api", subject="user:ada"))
        limiter.close()


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
