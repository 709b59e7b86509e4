"""Numbers become paths of SVG."""

import re

import pytest

from flask_multilimit.operate.dashboard.drawing import axis_top, draw, group_rates


@pytest.mark.parametrize(
    ("most", "top"), [(0, 1), (0.004, 0.005), (0.99, 2), (1, 2), (1.9, 2), (3, 5), (7, 10), (99, 200), (4900, 5000)]
)
def test_upper_edge_is_a_round_number_above_all_values(most: float, top: float) -> None:
    assert axis_top(most) == pytest.approx(top)


def test_groups_stay_the_same_as_time_passes() -> None:
    series = list(range(13))
    now = group_rates(series, 112, slices=3)
    later = group_rates([*series[1:], 99], 113, slices=3)
    assert now[1:-1] == later[1 : len(now) - 1]


def test_unfinished_slice_is_left_out() -> None:
    assert group_rates([30, 30, 1], 101, slices=1) == [3, 3]


def test_areas_are_stacked_below_the_upper_edge() -> None:
    found = draw([1, 1], [0, 1], [0, 0], [0, 0], size=(10, 100))
    tops = [re.findall(r"[\d.]+,([\d.]+)", area)[:2] for area in (found.passed, found.refused)]

    assert found.top == 5
    assert tops == [["80.0", "80.0"], ["80.0", "60.0"]], "a fifth of the height for each request per second"
    assert (found.other, found.near) == ("", "")


def test_nothing_is_drawn_without_traffic() -> None:
    assert draw([0, 0], [0, 0], [0, 0], [0, 0])[2:] == ("", "", "", "", 1.0)
