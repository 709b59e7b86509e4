"""Pictures are drawn of any traffic, without a warning."""

import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from flask import Flask

from flask_multilimit import IP, ConfigurationError, MultiLimit, rate_limiter
from flask_multilimit.operate.simulate.picture import draw, draw_reports
from flask_multilimit.operate.simulate.suggest import Arrivals, suggest_for, traffic_of, windows_of
from flask_multilimit.simulation import LoggedRequest, simulate

SECOND = 1_000_000
BEGIN_AND_SIZE = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


def size_of(picture: Path) -> tuple[int, int]:
    found = picture.read_bytes()
    assert found.startswith(BEGIN_AND_SIZE)
    return int.from_bytes(found[16:20], "big"), int.from_bytes(found[20:24], "big")


def draw_peaks(path: Path, peaks: Sequence[int], windows: Sequence[float] = (60,)) -> None:
    arrivals = Arrivals("ip")
    for number, peak in enumerate(peaks):
        for _ in range(peak):
            arrivals.add(str(number), 0)
    traffic = traffic_of(arrivals, windows_of(windows))
    draw(suggest_for(traffic, Fraction(1, 100)), traffic, path)


@pytest.fixture
def app() -> Flask:
    app = Flask("shop")
    MultiLimit(app)

    @app.get("/<int:number>")
    @rate_limiter(type=IP, rules=["2/second", "3/minute"])
    def update(number: int) -> str:
        return f"{number}"

    return app


@pytest.mark.parametrize("peaks", [[1], [7, 7, 7], [1, 2, 3, 40, 5000]])
def test_picture_of_peaks_is_drawn_for_any_clients(tmp_path: Path, peaks: list[int]) -> None:
    pytest.importorskip("matplotlib")
    draw_peaks(tmp_path / "one", peaks)
    draw_peaks(tmp_path / "two", peaks, (1, 60))

    (width, height), (same, higher) = size_of(tmp_path / "one"), size_of(tmp_path / "two")
    assert (same, higher) == (width, 2 * height)


@pytest.mark.parametrize("many", [0, 1, 50])
def test_picture_of_reports_is_drawn_for_any_requests(app: Flask, tmp_path: Path, many: int) -> None:
    pytest.importorskip("matplotlib")
    requests = [
        LoggedRequest(number * SECOND // 10, "GET", f"/{number}", address="a", status=(200, 500, 0)[number % 3])
        for number in range(many)
    ]
    report = simulate(app, requests)

    draw_reports([("in force", report)], tmp_path / "one")
    draw_reports([("in force", report), ("other", report)], tmp_path / "two")

    (width, height), (same, higher) = size_of(tmp_path / "one"), size_of(tmp_path / "two")
    assert same == width
    assert abs(higher - 2 * height) <= 1


def test_error_names_the_extra_when_matplotlib_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'flask-multilimit\[plot\]'"):
        draw_peaks(tmp_path / "picture", [1])
    assert not (tmp_path / "picture").exists()
