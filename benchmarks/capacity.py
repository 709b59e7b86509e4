"""What a decision costs the server, whose capacity does not grow with the number of workers, for each kind of server
on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from .contenders import PING, Calls, guarded, limits_library, ours_of, pyrate, throttled, yardsticks
from .measure import Call, Samples, in_turn, pinned
from .results import Figure, median_of
from .setting import Setting, servers

PART = "capacity"
SERVERS = ("Redis 7", "Redis 8", "Valkey 9")
"""Kinds of servers, and their major versions. Those that are not on the machine are left out."""
CALLS = 200
"""The time of commands is added up over so many calls."""
PASSES = 5
"""The fastest of so many passes counts, because disturbances can only add time."""
SCRIPTS = {"cmdstat_eval", "cmdstat_evalsha"}
"""The time of a script includes that of the commands that it calls."""
OVERHEAD = {"cmdstat_config|resetstat", "cmdstat_info"}


def case_on(server: str, case: str) -> str:
    return f"{server}, {case}"


def measure(setting: Setting) -> Iterator[Figure]:
    for kind, server_of_kind in servers(SERVERS).items():
        with server_of_kind as server, pinned(server.pid), ExitStack() as stack:
            variants = _variants(server.tcp_url, stack)
            samples = in_turn(variants, rounds=setting.rounds(30), server=server.pid)
            yield from _sustained(kind, samples)
            for (who, case), call in variants.items():
                yield Figure(PART, who, case_on(kind, case), "server µs", _server_time(server.client(), call))


def _variants(url: str, stack: ExitStack) -> Calls:
    ours = guarded(url)
    stack.callback(ours.close)
    return yardsticks(url) | ours_of(ours) | limits_library(url) | throttled(url) | pyrate(url, stack)


def _sustained(kind: str, samples: Samples) -> Iterator[Figure]:
    """Decisions that fill one core of the server, by the CPU time of each, including the network's part."""
    for variant, taken in samples.items():
        case = case_on(kind, variant.case)
        if variant.case != PING.case:
            rates = (1e6 / each.server_cpu for each in taken if each.server_cpu)
            yield median_of(PART, variant.who, case, "decisions a second", rates)
        yield median_of(PART, variant.who, case, "µs", (each.wall for each in taken))


def _server_time(client: Any, call: Call) -> float:
    """Microseconds that the server spends in the commands of one decision."""
    return round(min(_time_of_commands(client, call) for _ in range(PASSES)), 2)


def _time_of_commands(client: Any, call: Call) -> float:
    client.config_resetstat()
    for _ in range(CALLS):
        call()
    stats = {name: each for name, each in client.info("commandstats").items() if name not in OVERHEAD}
    scripts = {name: each for name, each in stats.items() if name in SCRIPTS}
    return float(sum(each["usec"] for each in (scripts or stats).values()) / CALLS)
