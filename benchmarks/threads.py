"""Decisions a second of one process with several threads, under three rules; wherever the system lets them run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from .contenders import OURS, REGISTERED, Calls, guarded, limits_library, ours_of, script_by_redis_py
from .measure import Call, Variant
from .results import Figure, median_of
from .setting import Setting

PART = "threads"
THREADS = (1, 4, 8)
RULES = "3 rules"
SECONDS = 0.3


def measure(setting: Setting) -> Iterator[Figure]:
    with setting.server() as server:
        url = server.tcp_url
        calls: Calls = ours_of(guarded(url)) | script_by_redis_py(url) | limits_library(url)
        asked = {who: calls[Variant(who, RULES)] for who in (OURS, REGISTERED, "limits moving window")}
        rates: dict[Variant, list[float]] = {Variant(who, case_of(number)): [] for who in asked for number in THREADS}
        for _ in range(setting.rounds(20)):
            for number in THREADS:
                for who, call in asked.items():
                    rates[Variant(who, case_of(number))].append(rate_of(call, number))
    for (who, case), each in rates.items():
        base = rates[Variant(REGISTERED, case)]
        yield median_of(PART, who, case, "decisions a second", each)
        yield median_of(PART, who, case, "times register_script", (a / b for a, b in zip(each, base, strict=True)))


def rate_of(call: Call, threads: int, seconds: float = SECONDS) -> float:
    """Calls a second by so many threads at once."""
    counts: list[int] = []
    ready = threading.Barrier(threads)

    def keep_calling() -> None:
        call()
        ready.wait()
        end, count = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            call()
            count += 1
        counts.append(count)

    running = [threading.Thread(target=keep_calling) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if len(counts) < threads:
        raise RuntimeError(f"{threads - len(counts)} of {threads} threads have failed")
    return sum(counts) / seconds


def case_of(number: int) -> str:
    return "1 thread" if number == 1 else f"{number} threads"
