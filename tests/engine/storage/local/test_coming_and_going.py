"""Processes that come and go at random: never two servers, never an error, each unit counted once."""

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from random import Random

from engine.storage.local.places import Place, User
from engine.storage.local.users import MANY
from support.waiting import until

LANES = 3
ROUNDS = 3
"""After each, the server ends: it lingers for two seconds, so it seldom does while others come."""
VISITS = 7


def test_processes_that_come_and_go_share_one_server_and_count_exactly(place: Place) -> None:
    def lane(number: int) -> list[tuple[str, float, float, list[int]]]:
        pick = Random(number)
        return [visit(place.user(), pick) for _ in range(VISITS)]

    visits = []
    with ThreadPoolExecutor(LANES) as pool:
        for round_ in range(ROUNDS):
            seeds = range(LANES * round_, LANES * (round_ + 1))
            visits += [visit for visits in pool.map(lane, seeds) for visit in visits]
            until(place.is_deserted)

    lives = defaultdict(list)
    for server, begin, end, left in visits:
        lives[server].append((begin, end, left))
    assert len(lives) > 2, "too few ends to say anything"
    times = sorted((min(b for b, _, _ in life), max(e for _, e, _ in life)) for life in lives.values())
    assert all(end < begin for (_, end), (begin, _) in pairwise(times)), "two servers at once"
    for life in lives.values():
        left = sorted((each for _, _, seen in life for each in seen), reverse=True)
        most = MANY[0].rule.count
        assert left == list(range(most - 1, most - 1 - len(left), -1))


def visit(user: User, pick: Random) -> tuple[str, float, float, list[int]]:
    seen: tuple[str, float, float, list[int]] = user("visit", pick.random())
    if pick.random() < 0.5:
        user.kill()
    else:
        user.leave()
    return seen
