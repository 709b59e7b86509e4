"""The edges of the arithmetic: the shortest and longest windows, counts of 1 and 10**9, and what 10**9 operations
would add up to."""

import random
from fractions import Fraction
from importlib.resources import files
from math import ceil

import pytest
import redis

from engine.algorithms.test_oracles import Model, assert_answers_as_the_oracles
from flask_multilimit.engine import ConfigurationError, Rule
from flask_multilimit.engine.reply import RESET_AFTER
from support.bench import Bench, hits

pytestmark = pytest.mark.slow

LONGEST = 400 * 86_400
PRIME = 999_999_937
"""The largest prime below 10**9: a unit takes no whole number of anything."""
RATE = ["token_bucket", "leaky_bucket", "gcra"]


QUEUES = [
    *(
        (Rule(window, count, algorithm="leaky_bucket", max_delay=min(window * 5, LONGEST)), [1, count // 3 or 1, count])
        for window in (0.001, LONGEST)
        for count in (1, PRIME, 10**9)
    ),
    (Rule(1, 10**9, algorithm="leaky_bucket", max_delay=9), [10**9]),  # the longest there can be
    (Rule(0.001, 10**9, algorithm="leaky_bucket", burst=10**9, max_delay=LONGEST), [10**9, 10**6]),
]


@pytest.mark.parametrize(("rule", "costs"), QUEUES, ids=str)
def test_queues_of_extreme_windows_and_delays_are_exact(bench: Bench, rule: Rule, costs: list[int]) -> None:
    model, third = Model(), rule.window_ms * 333

    for gap in (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, third, 1, 3 * third, 1, 1):
        bench.clock.now += gap
        for cost in costs:
            assert_answers_as_the_oracles(bench, model, hits(rule, cost=cost))


@pytest.mark.parametrize(("count", "max_delay"), [(10**9, 9.001), (10**9, LONGEST), (26_000, LONGEST)])
def test_a_queue_too_long_for_exact_arithmetic_is_an_error(count: int, max_delay: float) -> None:
    time = 1 if count == 10**9 else 0.001
    with pytest.raises(ConfigurationError, match=r"units wait, and a queue holds at most 10000000000; shorten it"):
        Rule(time, count, algorithm="leaky_bucket", max_delay=max_delay)


# Rounding


@pytest.mark.parametrize("algorithm", RATE)
@pytest.mark.parametrize("window", [0.001, 1, LONGEST])
def test_billion_units_charged_in_a_thousand_checks_add_up_without_rounding(
    bench: Bench, algorithm: str, window: float
) -> None:
    """State is an instant in whole 1 / count of a microsecond, so that n charges are always exactly n intervals."""
    rule = Rule(window, PRIME, algorithm=algorithm, burst=PRIME)
    cost, remaining = PRIME // 1000, PRIME
    while remaining >= cost:
        decision = bench.limiter.check(hits(rule, cost=cost))
        remaining -= cost
        assert decision.allowed
        exact = Fraction((PRIME - remaining) * rule.window_ms * 1000, PRIME)
        assert (decision.remaining, decision.reply[RESET_AFTER]) == (remaining, ceil(exact))

    last = bench.limiter.check(hits(rule, cost=remaining))

    assert (last.allowed, last.remaining, last.reply[RESET_AFTER]) == (True, 0, rule.window_ms * 1000)


# span.lua, which the Lua twins use


def test_span_divides_exactly_when_the_product_exceeds_the_precision_of_doubles(redis_client: redis.Redis) -> None:
    cases = [*edges_of_span(), *random_spans(20_000)]

    for at in range(0, len(cases), 1000):
        some = cases[at : at + 1000]
        replies = redis_client.eval(SPAN, 0, *[number for case in some for number in case])
        assert isinstance(replies, list)
        assert [tuple(map(int, reply.split())) for reply in replies] == [divmod(n * a, b) for n, a, b in some]


SPAN = (
    files("flask_multilimit.engine.algorithms").joinpath("span.lua").read_text()
    + """
local replies = {}
for i = 1, #ARGV, 3 do
  local whole, rest = span(tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]))
  replies[#replies + 1] = string.format('%.0f %.0f', whole, rest)
end
return replies
"""
)

MOST_UNITS = 2**35 - 1
MOST_TIME = 2**45 - 1
MOST_RESULT = 2**53


def edges_of_span() -> list[tuple[int, int, int]]:
    """Where a product is just below and just above 2**53, and where every operand is as large as can be."""
    units = [0, 1, 2, 127, 128, 129, PRIME, 10**9, 10**10, MOST_UNITS]
    times = [0, 1, 1000, 2**26, 2**27 - 1, 86_400 * 10**6, LONGEST * 10**6 - 1, LONGEST * 10**6, MOST_TIME]
    divisors = [1, 2, 1000, PRIME, 10**9, MOST_UNITS, LONGEST * 10**6, MOST_TIME]
    around = [(2**53 // a + d, a, b) for a in times if a > 2**18 for d in (-1, 0, 1) for b in divisors]
    every = [(n, a, b) for n in units for a in times for b in divisors]
    return [case for case in every + around if is_within_span(*case)]


def is_within_span(n: int, a: int, b: int) -> bool:
    return n <= MOST_UNITS and n * a // b < MOST_RESULT


def random_spans(many: int) -> list[tuple[int, int, int]]:
    """Operands of every size; seeded, so that failures are reproducible."""
    chance = random.Random(20_261_121)
    found: list[tuple[int, int, int]] = []
    while len(found) < many:
        n = chance.getrandbits(chance.randint(1, 35))
        a = chance.getrandbits(chance.randint(1, 45))
        b = chance.getrandbits(chance.randint(1, 45)) or 1
        if is_within_span(n, a, b):
            found.append((n, a, b))
    return found
