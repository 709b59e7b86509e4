"""The most frequent keys of many: exact while there is room, never overcounted, and the frequent ones are found."""

import random
from collections import Counter
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flask_multilimit.observe.traffic.counting import Heaviest


def heaviest_of(keys: list[int], capacity: int) -> Heaviest[int]:
    heaviest: Heaviest[int] = Heaviest(capacity)
    for key in keys:
        heaviest.add(key)
    return heaviest


@given(st.lists(st.integers(0, 9)))
def test_heaviest_counts_are_exact_while_there_is_room(keys: list[int]) -> None:
    assert heaviest_of(keys, 10) == Counter(keys)


@given(st.lists(st.integers(0, 60), max_size=400), st.integers(1, 20))
def test_heaviest_never_overcounts_and_misses_no_frequent_subject(keys: list[int], capacity: int) -> None:
    told, exact = heaviest_of(keys, capacity), Counter(keys)
    assert all(0 < amount <= exact[key] for key, amount in told.items())
    frequent = {key for key, amount in exact.items() if amount > len(keys) / capacity}
    assert frequent <= set(told)


@given(st.lists(st.integers(), max_size=300), st.integers(1, 20))
def test_heaviest_keeps_no_more_than_twice_its_capacity(keys: list[int], capacity: int) -> None:
    assert len(heaviest_of(keys, capacity)) <= 2 * capacity


@pytest.mark.parametrize("exponent", [1.0, 1.2])
def test_top_20_of_a_zipf_stream_are_found(exponent: float) -> None:
    shares = list(accumulate(1 / rank**exponent for rank in range(1, 100_001)))
    stream = random.Random(7).choices(range(100_000), cum_weights=shares, k=100_000)
    told, exact = heaviest_of(stream, 1024).most_common(20), Counter(stream)
    assert len({key for key, _ in told} & {key for key, _ in exact.most_common(20)}) >= 19


def test_frequent_subject_that_comes_late_is_found() -> None:
    assert heaviest_of([*range(10), *[99] * 10], 3).most_common(1) == [(99, 10)]
