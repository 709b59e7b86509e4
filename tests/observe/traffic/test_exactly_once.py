"""Whatever fails between processes and storage, each count arrives once, in its ten seconds, and bans end on time."""

import random
from collections import Counter

import pytest

from flask_multilimit.engine import StorageError
from flask_multilimit.observe.traffic import Check, Counts, TrafficReader
from flask_multilimit.observe.traffic.counts import CountedBan, bucket_at
from observe.traffic.conftest import Keeper, outbox_to

DAY = 86_400
LENGTHS = (1, 60, 600, 3600, 3601, 3 * DAY, 400 * DAY)
KEYS = {"a": ("login", "ip-ban"), "b": ("login", "ip-ban"), "c": ("signup", "user-ban")}
"""Keys of bans, each with its endpoint and rule."""


@pytest.mark.parametrize("seed", range(40))
def test_counts_and_bans_arrive_once_whatever_fails(seed: int, keeper: Keeper, reader: TrafficReader) -> None:
    draw, amounts, ends = random.Random(seed), Counter[int](), dict[str, float]()
    clocks = {behind: lambda behind=behind: keeper.now - behind for behind in (0, 1000)}
    outboxes = {behind: outbox_to(keeper, clock=clock) for behind, clock in clocks.items()}

    def count(amount: int, bans: tuple[CountedBan, ...] = ()) -> None:
        behind = draw.choice((0, 1000))
        begun = [ban._replace(began=ban.began - behind, until=ban.until - behind) for ban in bans]
        outboxes[behind].put(Counts({Check("login", "refused", "storage"): amount}, begun=begun))
        amounts[bucket_at(keeper.now)] += amount

    def begin_ban(key: str) -> None:
        ends[key] = keeper.now + draw.choice(LENGTHS)
        count(1, (CountedBan(*KEYS[key], key, keeper.now, ends[key]),))

    def send(*, fails: bool) -> None:
        keeper.error, keeper.loses_answers = StorageError("away") if fails else None, draw.random() < 0.5
        for outbox in outboxes.values():
            outbox.send()

    def lift(key: str) -> None:
        send(fails=False)  # only a ban that the storage has can be lifted
        reader.end_bans([key, "unknown"])
        ends[key] = min(ends.get(key, 0), keeper.now)

    for _ in range(60):
        keeper.now += draw.choice((0.25, 3, 17, 40))
        key = draw.choice(sorted(KEYS))
        match draw.choice(("count", "count", "send", "send", "begin", "lift")):
            case "count":
                count(draw.randint(1, 9))
            case "send":
                send(fails=draw.random() < 0.7)
            case "begin":
                begin_ban(key)
            case "lift":
                lift(key)
    send(fails=False)

    recent = reader.read()
    assert recent.checks() == tuple(amounts[bucket_at(recent.start) + place] for place in range(360))
    for wait in (0, 2, 58, 540, 3000, 2 * DAY, 2 * DAY, 400 * DAY):
        keeper.now += wait
        assert reader.bans().in_force() == Counter(KEYS[key] for key, end in ends.items() if end > keeper.now)
