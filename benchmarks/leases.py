"""What a lease saves under a limit that everyone shares, and how many units it leaves unused in return."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from flask_multilimit import Rule
from flask_multilimit.engine import GuardedStorage, LeasingStorage, Limiter, hits_for, storage_from_uri

from .contenders import COUNT, OURS, PATIENCE, case_of
from .measure import Call, Variant, in_turn
from .results import Figure, median_of
from .server import commands_of
from .setting import Setting

PART = "leases"
LEASES = (0, 10, 100, 1000)
"""Units of a lease; 0 is no lease."""
NUMBERS = (1, 3)
"""Numbers of rules, all with the lease."""
CHECKS = 2000
"""Checks of a block, in which even the largest lease asks twice. As many come before it, so that a lease reaches its
size."""
COMMANDS = 20_000
"""Commands are counted over so many checks, including the first ones of a process."""
PROCESSES = 8
SHARED = Rule(3600, 60_000, lease=100)
"""The rule that all processes use up together."""


def measure(setting: Setting) -> Iterator[Figure]:
    with setting.server_on_one_core() as server:
        variants = {
            Variant(who_with(lease), case_of(number)): _check(_process(server.tcp_url), lease, number)
            for number in NUMBERS
            for lease in LEASES
        }
        samples = in_turn(variants, rounds=setting.rounds(20), server=server.pid, warm=CHECKS, block=CHECKS)
        for (who, case), taken in samples.items():
            both = list(zip(taken, samples[Variant(who_with(0), case)], strict=True))
            yield median_of(PART, who, case, "times no lease", (ours.wall / plain.wall for ours, plain in both))
            yield median_of(PART, who, case, "times no lease, CPU", (ours.cpu / plain.cpu for ours, plain in both))
            yield median_of(PART, who, case, "µs", (each.wall for each in taken))
        client = server.client()
        for lease in LEASES:
            call = _check(_process(server.tcp_url), lease, NUMBERS[0])
            sent = commands_of(client, lambda call=call: _repeat(call, COMMANDS))  # type: ignore[misc]
            yield Figure(PART, who_with(lease), case_of(NUMBERS[0]), f"commands for {COMMANDS:,} checks", sent)
        yield from _left_over(client, server.tcp_url)


def _left_over(client: Any, url: str) -> Iterator[Figure]:
    """Units left at the first refusal: if all processes have the same load, and if all but one have just taken units in
    advance and have no requests for them."""
    for who, others_wait in ((EVEN, False), (WORST, True)):
        client.flushall()
        limiters = [_process(url) for _ in range(PROCESSES)]
        if others_wait:
            spent = sum(_until_it_holds_most(limiter, client) for limiter in limiters[1:])
            admitted = spent + _until_refused(limiters[:1])
        else:
            admitted = _until_refused(limiters)
        yield Figure(PART, who, SHARED_CASE, "admitted", admitted)
        yield Figure(PART, who, SHARED_CASE, "left over", SHARED.count - admitted)
        yield Figure(PART, who, SHARED_CASE, "at most", (PROCESSES - 1) * (SHARED.lease or 0))


def _until_refused(limiters: list[Limiter]) -> int:
    """Ask ``limiters`` in turn until one refuses. Return how many checks passed."""
    for admitted, limiter in enumerate(itertools.cycle(limiters)):
        if not limiter.check(SHARED_HITS).allowed:
            return admitted
    raise AssertionError


def _until_it_holds_most(limiter: Limiter, client: Any) -> int:
    """Check until a whole lease has been taken, of which one unit is spent. Return how many checks passed."""
    server = Limiter(client)
    for passed in itertools.count(1):
        before = server.peek(SHARED_HITS).remaining
        limiter.check(SHARED_HITS)
        if before - server.peek(SHARED_HITS).remaining == SHARED.lease:
            return passed
    raise AssertionError


def _process(url: str) -> Limiter:
    """The limiter of a process in Flask. Each limiter has a lease of its own, as each process does."""
    return Limiter(LeasingStorage(GuardedStorage(storage_from_uri(url, timeout=PATIENCE), on_error="raise")))


def _check(limiter: Limiter, lease: int, number: int) -> Call:
    rules = [Rule(600 + i, COUNT + i, lease=lease or None) for i in range(number)]
    hits = hits_for(rules, scope=f"lease-{lease}-{number}")
    return lambda: limiter.check(hits)


def _repeat(call: Call, times: int) -> None:
    for _ in range(times):
        call()


def who_with(lease: int) -> str:
    return f"{OURS}, lease={lease}" if lease else f"{OURS}, no lease"


SHARED_HITS = hits_for(SHARED, scope="shared")
SHARED_CASE = f"{PROCESSES} processes, count={SHARED.count:,}, lease={SHARED.lease}"
EVEN = "requests for all processes alike"
WORST = "requests for one, just after the others have taken theirs"
