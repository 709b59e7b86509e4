"""Processes and threads that are refused at random: every strike is counted once, and every ban is told as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from history import bans
from history.bans import Asked, violations
from history.broken import Defect
from history.processes import Processes, processes_on, together

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.servers import Binary, Server, Servers

pytestmark = pytest.mark.slow

PROCESSES, THREADS, TIMES = 4, 3, 150

DEFECTS = {
    "needs one strike more": Defect("strikes - past + 1 >= hit.count", "strikes - past + 1 > hit.count", "wrong"),
    "counts a repeated check again": Defect("string.find(state, id,", "string.find(state, 'nothing',", "wrong"),
    "strikes while it holds": Defect(
        "if left > 0 then\n          if", "if left > hit.most then\n          if", "wrong"
    ),
    "counts strikes for too long": Defect("> now - hit.window then", "> now - 2 * hit.window then", "wrong"),
    "forgets a strike": Defect(
        "string.sub(state or '', 24 * past + 33)", "string.sub(state or '', 24 * past + 57)", "wrong"
    ),
    "never repeats": Defect("level = math.min(level + 1, MOST_LEVEL)", "level = 0", "wrong"),
    "counts what a peek is refused": Defect("if not repeated and mode ~= 'peek' then", "if not repeated then", "wrong"),
    "counts what another limiter refuses, or nobody": Defect(
        "struck = struck or reply[3 * place + 2] ~= 0", "struck = true", "wrong"
    ),
}
"""Scripts that break the contract in one place."""


def run(processes: Processes, seed: int, defect: Defect | None = None) -> list[Asked]:
    return together(processes.start(bans.run, seed, THREADS, TIMES, defect))


@pytest.fixture(scope="module")
def steady_server(server_binaries: dict[str, Binary], servers: Servers) -> Server:
    """One whose clock does not step back on a busy machine, as that of Valkey 9.1 does: it puts replies in order."""
    names = sorted(server_binaries, key=lambda name: not name.startswith("redis"))
    return servers.running(server_binaries[names[0]])


@pytest.fixture(scope="module")
def processes(steady_server: Server) -> Iterator[Processes]:
    with processes_on(steady_server, PROCESSES) as processes:
        yield processes


@pytest.mark.parametrize("seed", range(3))
def test_every_reply_shows_the_ban_that_earlier_refusals_imply(processes: Processes, seed: int) -> None:
    history = run(processes, seed)

    assert violations(history) == []
    assert sum(asked.begun for asked in history) > 5
    assert any(asked.level > 1 for asked in history)
    assert any(asked.refused and not asked.holds for asked in history)
    assert sum(not asked.refused and not asked.holds for asked in history) > 20


@pytest.mark.parametrize("name", DEFECTS)
def test_the_checker_finds_a_broken_script(processes: Processes, name: str) -> None:
    """Not in each history: it depends on which checks meet."""
    assert any(violations(run(processes, seed, defect=DEFECTS[name])) for seed in range(1, 21))
