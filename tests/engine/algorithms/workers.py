"""What the processes of the concurrency tests run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from flask_multilimit.engine import Limiter, Rule, hits_for, storage_from_uri
from flask_multilimit.engine.reply import DELAY

QUEUE = Rule(1, 1000, algorithm="leaky_bucket", max_delay=60)

DAY = 86_400
LEVELS = [
    ("user", Rule(DAY, 400, algorithm="token_bucket")),
    ("ip", Rule(DAY, 300)),
    ("default", Rule(DAY, 350, algorithm="sliding_window_counter")),
    ("project", Rule(DAY, 500, algorithm="fixed_window")),
    ("region", Rule(DAY, 450, algorithm="gcra", burst=450)),
    ("tenant", Rule(DAY, 320, algorithm="leaky_bucket")),
]
"""Every algorithm, each for a subject of another type; none gives a unit back while a test lasts."""

TIGHTEST = min(rule.count for _, rule in LEVELS)

mixed = tuple(hit for type_, rule in LEVELS for hit in hits_for(rule, scope="mixed", subject="ada", type=type_))


def patient(url: str) -> Limiter:
    """What is measured here is not how fast a busy machine answers."""
    return Limiter(storage_from_uri(url, timeout=30))


def queue_up(url: str, times: int) -> list[tuple[int, int]]:
    """The instant of arrival and the delay of each request, in microseconds."""
    limiter = patient(url)
    decisions = [limiter.check(hits_for(QUEUE, scope="queue")) for _ in range(times)]
    limiter.close()
    return [(decision.at, decision.reply[DELAY]) for decision in decisions]


def check_mixed(url: str, threads: int, times: int) -> list[bool]:
    """Whether each of the checks was allowed."""
    limiter = patient(url)
    with ThreadPoolExecutor(threads) as pool:
        allowed = list(pool.map(lambda _: limiter.check(mixed).allowed, range(threads * times)))
    limiter.close()
    return allowed
