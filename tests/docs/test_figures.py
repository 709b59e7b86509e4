"""The figures of the documentation are those of one run of the benchmarks, and nobody's hand has been at them."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from support.folders import ROOT

FIGURES = ROOT / "benchmarks" / "figures.json"


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its modules, by name."""
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: importlib.import_module(f"benchmarks.{name}")


@pytest.fixture
def pages(benchmarks: Any) -> dict[str, str]:
    return {str(page): page.read_text(encoding="utf-8") for page in benchmarks("page").PAGES}


def test_the_pages_say_what_was_measured(benchmarks: Any, pages: dict[str, str]) -> None:
    results = benchmarks("results").Results.from_json(FIGURES.read_text(encoding="utf-8"))
    assert {page: benchmarks("page").filled(text, results) for page, text in pages.items()} == pages


def test_nothing_is_measured_that_no_page_shows(benchmarks: Any, pages: dict[str, str]) -> None:
    shown = [found["name"] for text in pages.values() for found in benchmarks("page").BLOCK.finditer(text)]
    assert sorted(shown) == sorted(["machine", *(table.name for table in benchmarks("tables").TABLES)])


def test_every_table_has_a_figure_of_ours(benchmarks: Any) -> None:
    results = benchmarks("results").Results.from_json(FIGURES.read_text(encoding="utf-8"))
    assert results.parts == {table.part for table in benchmarks("tables").TABLES}
    assert results.from_json(results.to_json()) == results


def test_every_part_can_be_measured_alone(benchmarks: Any) -> None:
    assert set(benchmarks("__main__").PARTS) == {table.part for table in benchmarks("tables").TABLES}


def test_a_part_that_is_measured_anew_leaves_the_others_as_they_were(benchmarks: Any) -> None:
    results, figure = benchmarks("results").Results, benchmarks("results").Figure
    earlier = results(
        {"load": 2.0, "date": "2026-01-01", "cores": 2},
        [figure("web", "we", "then", "µs", 1.0), figure("memory", "we", "then", "µs", 2.0)],
    )
    now = results({"load": 1.0, "date": "2026-01-02", "cores": 2}, [figure("web", "we", "now", "µs", 3.0)])

    merged = now.with_other_parts_of(earlier)

    assert [(each.part, each.case) for each in merged.figures] == [("web", "now"), ("memory", "then")]
    assert merged.machine == {"load": 2.0, "date": "2026-01-02", "cores": 2}
    assert benchmarks("results").differing(now.machine, earlier.machine) == []
    assert benchmarks("results").differing(now.machine, {**earlier.machine, "cores": 4}) == ["cores"]


def test_the_figures_say_which_library_is_faster(benchmarks: Any) -> None:
    table = next(table for table in benchmarks("tables").TABLES if table.name == "memory")
    figure, ours = benchmarks("results").Figure, benchmarks("contenders").OURS
    figures = [
        figure("memory", who, case, "µs", value)
        for case, mine, other in (("1 rule", 2.0, 1.5), ("3 rules", 3.0, 30.0))
        for who, value in ((ours, mine), ("them", other))
    ]

    text = benchmarks("tables").markdown(table, figures)

    assert "| them | **1.5** | 30 |" in text
    assert "| **3** |" in text
    assert "Ahead of us: them (1 rule: 1.5 to our 2)." in text


def test_a_part_gives_figures(benchmarks: Any) -> None:
    figures = list(benchmarks("in_memory").measure(benchmarks("setting").Setting(quick=True)))

    cases = ("1 rule", "3 rules", "10 rules")
    assert {figure.case for figure in figures} == {*cases, *(f"{case}, few units" for case in cases)}
    assert all(0 < figure.low <= figure.value <= figure.high for figure in figures)
