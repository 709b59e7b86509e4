"""How the cost of a decision grows with the units in the window, with the number of rules, and with expired units."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

from flask_multilimit import Rule
from flask_multilimit.engine import Limiter, RedisStorage, hits_for

from .contenders import NUMBERS, OURS, case_of, guarded, limits_library, ours_of
from .measure import Call, Variant, figures_of, in_turn
from .results import Figure, median_of
from .setting import Setting

PART = "growth"
SIZES = (10, 1_000, 100_000, 1_000_000)
AT_ONCE = 10_000
"""Units in one check that fills a window."""
DAY = 86_400
LIMITS = "limits moving window"
ROUNDS, WARM, BLOCK = 20, 1, 4
"""Few calls, because each adds a unit."""
CALLS = 300


def measure(setting: Setting) -> Iterator[Figure]:
    yield from _by_entries(setting)
    yield from _by_rules(setting)
    yield from _by_expired(setting)


def sizes(setting: Setting) -> tuple[int, ...]:
    return SIZES[:-1] if setting.quick else SIZES


def _by_entries(setting: Setting) -> Iterator[Figure]:
    with setting.server_on_one_core() as server:
        calls: dict[Variant, Call] = {}
        for size in sizes(setting):
            calls[Variant(OURS, case_with(size))] = _ours_with(guarded(server.tcp_url), size)
            for who, call in _limits_with(server.tcp_url, size).items():
                calls[Variant(who, case_with(size))] = call
        samples = in_turn(calls, rounds=ROUNDS, server=server.pid, warm=WARM, block=BLOCK)
    yield from figures_of(PART, samples)
    for (who, case), taken in samples.items():
        base = samples[Variant(who, case_with(SIZES[0]))]
        ratios = [large.wall / small.wall for large, small in zip(taken, base, strict=True)]
        yield median_of(PART, who, case, f"times that of {SIZES[0]}", ratios)


def _ours_with(limiter: Limiter, size: int) -> Call:
    rule = Rule(DAY, 10 * SIZES[-1])
    for units in _portions(size):
        limiter.check(hits_for(rule, scope=f"live-{size}", cost=units))
    hits = hits_for(rule, scope=f"live-{size}")
    return lambda: limiter.check(hits)


def _limits_with(url: str, size: int) -> dict[str, Call]:
    """As Flask-Limiter asks, without header fields and with them; with them, it also asks how much is left."""
    from limits import RateLimitItemPerDay  # noqa: PLC0415 - a peer
    from limits.storage import RedisStorage as LimitsStorage  # noqa: PLC0415
    from limits.strategies import MovingWindowRateLimiter  # noqa: PLC0415

    strategy = MovingWindowRateLimiter(LimitsStorage(url))
    item = RateLimitItemPerDay(10 * SIZES[-1])
    for who in (LIMITS, f"{LIMITS}, and how much is left"):
        for units in _portions(size):
            strategy.hit(item, who, f"live-{size}", cost=units)

    def both(who: str = f"{LIMITS}, and how much is left") -> None:
        strategy.hit(item, who, f"live-{size}")
        strategy.get_window_stats(item, who, f"live-{size}")

    return {LIMITS: lambda: strategy.hit(item, LIMITS, f"live-{size}"), f"{LIMITS}, and how much is left": both}


def _by_rules(setting: Setting) -> Iterator[Figure]:
    """The time of scripts as the server reports it."""
    with setting.server_on_one_core() as server:
        client = server.client()
        calls = ours_of(guarded(server.tcp_url)) | limits_library(server.tcp_url)
        for who in (OURS, LIMITS):
            by_number: dict[int, list[float]] = {number: [] for number in NUMBERS}
            for _ in range(setting.rounds(40)):
                for number, taken in by_number.items():
                    taken.append(_script_time(client, calls[Variant(who, case_of(number))], CALLS // 10))
            for number, taken in by_number.items():
                yield median_of(PART, who, case_of(number), "script µs", taken)
            first, last = NUMBERS[0], NUMBERS[-1]
            more = [(b - a) / (last - first) for a, b in zip(by_number[first], by_number[last], strict=True)]
            yield median_of(PART, who, "one rule more", "script µs", more)


def _by_expired(setting: Setting) -> Iterator[Figure]:
    """Decisions that find a whole window expired, by a simulated clock. Each drops so little of it that the others find
    nearly as much. Also the time to drop all of it at once."""
    size = sizes(setting)[-1]
    case = f"{size:,} expired"
    with setting.server_on_one_core() as server:
        client = server.client(socket_timeout=60)
        clock = _Clock()
        limiter = Limiter(RedisStorage(client, clock=clock))
        ours: list[float] = []
        plain: list[float] = []
        for number in range(1 if setting.quick else 3):
            rule, scope = Rule(DAY, 10 * SIZES[-1]), f"expired-{number}"
            for units in _portions(size):
                limiter.check(hits_for(rule, scope=scope, cost=units))
            (hit,) = hits_for(rule, scope=scope)
            client.copy(hit.key, "a copy")
            clock.now += 2 * DAY * 1_000_000
            check = partial(limiter.check, [hit])
            ours += [_script_time(client, check, 1) / 1000 for _ in range(CALLS // 10)]
            before = _microseconds(client, "zremrangebyscore")
            client.zremrangebyscore("a copy", "-inf", "+inf")
            plain.append((_microseconds(client, "zremrangebyscore") - before) / 1000)
            client.flushall()
    yield median_of(PART, OURS, case, "server ms", ours)
    yield Figure(PART, "ZREMRANGEBYSCORE of all", case, "server ms", statistics.median(plain))


def _portions(size: int) -> list[int]:
    return [min(AT_ONCE, size - start) for start in range(0, size, AT_ONCE)]


def _script_time(client: Any, call: Call, calls: int) -> float:
    before = _microseconds(client, "evalsha")
    for _ in range(calls):
        call()
    return (_microseconds(client, "evalsha") - before) / calls


def _microseconds(client: Any, command: str) -> int:
    """Microseconds that the server has spent on ``command`` since it was started."""
    stats = client.info("commandstats").get(f"cmdstat_{command}")
    return int(stats["usec"]) if stats else 0


def case_with(size: int) -> str:
    return f"{size:,} entries"


class _Clock:
    now = 1_750_000_003_141_592

    def __call__(self) -> int:
        return self.now
