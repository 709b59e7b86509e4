"""The figures of the documentation come from one run of the benchmarks, without edits by hand."""

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


def test_pages_show_the_measured_figures(benchmarks: Any, pages: dict[str, str]) -> None:
    results = benchmarks("results").Results.from_json(FIGURES.read_text(encoding="utf-8"))
    assert {page: benchmarks("page").filled(text, results) for page, text in pages.items()} == pages


def test_every_table_is_shown_on_one_page(benchmarks: Any, pages: dict[str, str]) -> None:
    shown = [found["name"] for text in pages.values() for found in benchmarks("page").BLOCK.finditer(text)]
    assert sorted(shown) == sorted(["machine", *(table.name for table in benchmarks("tables").TABLES)])


def test_figures_cover_every_table_and_survive_json(benchmarks: Any) -> None:
    results = benchmarks("results").Results.from_json(FIGURES.read_text(encoding="utf-8"))
    assert results.parts == {table.part for table in benchmarks("tables").TABLES}
    assert results.from_json(results.to_json()) == results


def test_every_part_can_be_measured_alone(benchmarks: Any) -> None:
    assert set(benchmarks("__main__").PARTS) == {table.part for table in benchmarks("tables").TABLES}


def test_new_measurement_of_a_part_keeps_other_parts(benchmarks: Any) -> None:
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


def test_table_says_which_library_is_faster(benchmarks: Any) -> None:
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


def test_memory_part_measures_every_case(benchmarks: Any) -> None:
    figures = list(benchmarks("in_memory").measure(benchmarks("setting").Setting(quick=True)))
    cases = ("1 rule", "3 rules", "10 rules")
    assert {figure.case for figure in figures} == {*cases, *(f"{case}, few units" for case in cases)}
    assert all(0 < figure.low <= figure.value <= figure.high for figure in figures)


@pytest.mark.parametrize("who", ["flask_multilimit", "the bridge from it"])
def test_programs_that_import_us_run(benchmarks: Any, who: str) -> None:
    startup = benchmarks("startup")
    assert startup._run(startup.PROGRAMS[who]).cpu > 0
