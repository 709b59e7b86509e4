"""A table for each algorithm, worked out by hand from its definition: at `time`, a request of `cost` is answered
(allowed, remaining, retry_after, reset_after). Times are seconds after the first line; the reasoning is beside it.
"""

from math import inf
from typing import NamedTuple

import pytest

from flask_multilimit.engine import Rule
from support.bench import Bench, hits
from support.clock import microseconds

US = 0.000_001


class Line(NamedTuple):
    time: float
    cost: int
    allowed: bool
    remaining: int
    retry_after: float
    reset_after: float
    delay: float = 0


# At most 3 units in any 10 s: a unit charged at s counts at t while t - 10 < s <= t.
SLIDING_WINDOW = [
    Line(0, 1, True, 2, 0, 10),
    Line(4, 1, True, 1, 0, 10),
    Line(9, 2, False, 1, 1, 5),  # two of three used; the one of 0 leaves at 10; the newest, of 4, at 14
    Line(9, 1, True, 0, 0, 10),
    Line(10 - US, 1, False, 0, US, 9 + US),
    Line(10, 1, True, 0, 0, 10),  # 4, 9, 10
    Line(10, 2, False, 0, 9, 10),  # of 4 and 9 both must leave: 19
    Line(19, 3, False, 2, 1, 1),  # only that of 10 is left
    Line(20, 3, True, 0, 0, 10),
    Line(25, 4, False, 0, inf, 5),
]

# INCR on a key that begins with the first hit and expires a window later. 3 units in 10 s.
FIXED_WINDOW = [
    Line(0, 1, True, 2, 0, 10),  # the window is 0..10
    Line(4, 1, True, 1, 0, 6),
    Line(9, 2, False, 1, 1, 1),
    Line(10 - US, 1, True, 0, 0, US),
    Line(10 - US, 1, False, 0, US, US),
    Line(10, 3, True, 0, 0, 10),  # another window begins: 4 units within a microsecond
    Line(12, 1, False, 0, 8, 8),
    Line(25, 1, True, 2, 0, 10),  # that of 10 ended at 20; this request begins one, 25..35
    Line(26, 4, False, 2, inf, 9),
    Line(35, 1, True, 2, 0, 10),
]

# The example of Cloudflare's "How we built rate limiting capable of scaling to millions of domains" (2017): 50 a
# minute; 42 in the minute before, 18 in this one, 15 s into it: 42 * ((60 - 15) / 60) + 18 = 49.5.
SLIDING_WINDOW_COUNTER = [
    Line(0, 42, True, 8, 0, 120),  # counts until it is the minute before, and then until that has passed
    Line(60, 18, False, 8, 14.285715, 60),  # 42 x (60 - e) / 60 <= 32 from e = 100 / 7 on
    Line(70, 15, True, 0, 0, 110),  # 42 x 50 / 60 = 35, and 35 + 15 = 50
    Line(74, 2, True, 0, 0, 106),  # 42 x 46 / 60 = 32.2, and 32.2 + 17 = 49.2
    Line(75, 1, True, 0, 0, 105),  # 49.5, as in the article
    Line(75, 1, False, 0, 0.714286, 105),  # 42 x (60 - e) / 60 <= 31 from e = 15 + 5 / 7 on
    Line(119, 33, False, 31, 4.333_334, 61),  # 18.7 used; in the next minute 18 x (60 - e) / 60 <= 17 from 3 + 1 / 3 on
    Line(180 + 40, 50, True, 0, 0, 120),  # after two minutes without a charge all is forgotten
    Line(230, 51, False, 0, inf, 110),
]

# Tanenbaum, "Computer Networks", 5.4: 5 tokens when full, 2 new ones a second.
TOKEN_BUCKET = [
    Line(0, 5, True, 0, 0, 2.5),
    Line(0, 1, False, 0, 0.5, 2.5),
    Line(0.5 - US, 1, False, 0, US, 2 + US),
    Line(0.5, 1, True, 0, 0, 2.5),
    Line(1, 2, False, 1, 0.5, 2),  # 1 token
    Line(1.75, 2, True, 0, 0, 2.25),  # 2.5 tokens, 0.5 of which stay
    Line(1.75, 1, False, 0, 0.25, 2.25),
    Line(60, 6, False, 5, inf, 0),  # full, never more
    Line(60, 3, True, 2, 0, 1.5),
]

# The same with thirds, which no decimal holds: 1 token, 3 a second. Rounded up: a microsecond earlier is refused.
TOKEN_BUCKET_OF_THIRDS = [
    Line(0, 1, True, 0, 0, 0.333_334),
    Line(0, 1, False, 0, 0.333_334, 0.333_334),
    Line(0.333_333, 1, False, 0, US, US),
    Line(0.333_334, 1, True, 0, 0, 0.333_334),  # 2/3 us later than full, and a full bucket takes no more
    Line(0.333_334, 1, False, 0, 0.333_334, 0.333_334),
    Line(0.5, 1, False, 0, 0.166_668, 0.166_668),
]

# Two tokens at 3 a second, so that nothing is lost over the rim: the third third comes exactly at 1 s.
TOKEN_BUCKET_THIRDS_ADD_UP = [
    Line(0, 2, True, 0, 0, 0.666_667),
    Line(0.333_334, 1, True, 0, 0, 0.666_666),  # whole at 1/3 + 2/3 exactly
    Line(0.666_667, 1, True, 0, 0, 0.666_667),  # whole at 4/3 = 1.333333...
    Line(1 - US, 1, False, 0, US, 0.333_335),
    Line(1, 1, True, 0, 0, 0.666_667),
]

# Turner (1986): the bucket holds 4, a unit leaks in 2 s.
LEAKY_METER = [
    Line(0, 3, True, 1, 0, 6),
    Line(1, 2, False, 1, 1, 5),  # 2.5 in it; 2 more fit when 2 are in it, at 2
    Line(2, 2, True, 0, 0, 8),  # 2 + 2
    Line(3, 1, False, 0, 1, 7),
    Line(5, 1, True, 0, 0, 7),  # 2.5 + 1
    Line(12, 5, False, 4, inf, 0),
    Line(100, 4, True, 0, 0, 8),
]

# The same bucket as a queue, drained at one in 2 s, in which no request waits longer than 5 s. The default burst is
# what drains in 5 s and count more: 2 + 1.
LEAKY_QUEUE = [
    Line(0, 1, True, 2, 0, 2, 0),  # served at 0
    Line(0, 1, True, 1, 0, 4, 2),  # at 2
    Line(0, 1, True, 0, 0, 6, 4),  # at 4
    Line(0, 1, False, 0, 2, 6),  # the next turn is at 6, and three units are all it holds, until 2
    Line(1, 1, False, 0, 1, 5),
    Line(2, 1, True, 0, 0, 6, 4),  # at 6
    Line(7, 1, True, 1, 0, 3, 1),  # at 8
    Line(20, 1, True, 2, 0, 2, 0),  # the queue is empty
    Line(20, 4, False, 2, inf, 2),
]

# A queue in which the wait is the narrower bound: 10 units, 4 a second, at most half a second.
LEAKY_QUEUE_BOUND_BY_ITS_DELAY = [
    Line(0, 1, True, 2, 0, 0.25, 0),
    Line(0, 1, True, 1, 0, 0.5, 0.25),
    Line(0, 5, True, 0, 0, 1.75, 0.5),  # its turn is in time, however long it then takes
    Line(0, 1, False, 0, 1.25, 1.75),  # 1.75 less 0.5
    Line(1.25 - US, 1, False, 0, US, 0.5 + US),
    Line(1.25, 1, True, 0, 0, 0.75, 0.5),
]

# ITU-T I.371, Annex A: increment T = 10, limit 10 (burst 2): at TAT - 10 or later a cell conforms; TAT = max + 10.
GCRA = [
    Line(0, 1, True, 1, 0, 10),  # TAT 10
    Line(1, 1, True, 0, 0, 19),  # 1 >= 0; TAT 20
    Line(5, 1, False, 0, 5, 15),  # 5 < 10
    Line(10 - US, 1, False, 0, US, 10 + US),
    Line(10, 1, True, 0, 0, 20),  # TAT 30
    Line(35, 1, True, 1, 0, 10),  # late: TAT 45
    Line(40, 2, False, 1, 5, 5),  # the second of them would be at 40 < 55 - 10
    Line(45, 2, True, 0, 0, 20),
    Line(45, 3, False, 0, inf, 20),
]

# The default burst is 1: 6 a minute are one every 10 s.
GCRA_EVENLY_SPACED = [
    Line(0, 1, True, 0, 0, 10),
    Line(9, 1, False, 0, 1, 1),
    Line(10, 1, True, 0, 0, 10),
    Line(25, 1, True, 0, 0, 10),
    Line(30, 1, False, 0, 5, 5),
    Line(60, 2, False, 1, inf, 0),
]

TABLES = {
    "sliding_window": (Rule(10, 3), SLIDING_WINDOW),
    "fixed_window": (Rule(10, 3, algorithm="fixed_window"), FIXED_WINDOW),
    "sliding_window_counter": (Rule(60, 50, algorithm="sliding_window_counter"), SLIDING_WINDOW_COUNTER),
    "token_bucket": (Rule(1, 2, algorithm="token_bucket", burst=5), TOKEN_BUCKET),
    "token_bucket of thirds": (Rule(1, 3, algorithm="token_bucket", burst=1), TOKEN_BUCKET_OF_THIRDS),
    "token_bucket, thirds add up": (Rule(1, 3, algorithm="token_bucket", burst=2), TOKEN_BUCKET_THIRDS_ADD_UP),
    "leaky_bucket as a meter": (Rule(2, 1, algorithm="leaky_bucket", burst=4), LEAKY_METER),
    "leaky_bucket as a queue": (Rule(2, 1, algorithm="leaky_bucket", max_delay=5), LEAKY_QUEUE),
    "leaky_bucket bound by its delay": (
        Rule(1, 4, algorithm="leaky_bucket", burst=10, max_delay=0.5),
        LEAKY_QUEUE_BOUND_BY_ITS_DELAY,
    ),
    "gcra": (Rule(10, 1, algorithm="gcra", burst=2), GCRA),
    "gcra, evenly spaced": (Rule(60, 6, algorithm="gcra"), GCRA_EVENLY_SPACED),
}


@pytest.mark.parametrize("name", TABLES)
def test_algorithm_answers_as_worked_out_by_hand_from_its_definition(bench: Bench, name: str) -> None:
    rule, table = TABLES[name]
    start = bench.clock.now

    for line in table:
        bench.clock.now = start + microseconds(line.time)
        peeked = bench.limiter.peek(hits(rule, cost=line.cost))
        decision = bench.limiter.check(hits(rule, cost=line.cost))
        (status,) = decision.statuses
        answered = (line.time, line.cost, status.allowed, status.remaining, status.retry_after, status.reset_after)
        assert (*answered, decision.delay) == pytest.approx(tuple(line), abs=US / 2), line
        assert (peeked.allowed, peeked.retry_after, peeked.delay) == (line.allowed, decision.retry_after, line.delay)
