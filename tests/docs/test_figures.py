"""The figures of the documentation are those of one run of the benchmarks, and nobody's hand has been at them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest

from support.folders import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from support.servers import Server

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


def test_the_server_time_of_a_decision_is_that_of_its_commands(
    benchmarks: Any, server: Server, redis_client: redis.Redis
) -> None:
    capacity, contenders = benchmarks("capacity"), benchmarks("contenders")
    limiter = contenders.guarded(server.url)
    ten = contenders.ours_of(limiter)[contenders.OURS, "10 rules"]

    of_ping, of_ten = (capacity._time_of_commands(redis_client, call) for call in (redis_client.ping, ten))

    assert 0 <= of_ping < of_ten
    limiter.close()
    redis_client.flushall()


def test_the_servers_of_the_machine_are_found_by_kind(benchmarks: Any) -> None:
    kinds = ("Redis 6", "Redis 7", "Redis 8", "Valkey 8", "Valkey 9", "Garnet 1")
    found = benchmarks("setting").servers(kinds)

    assert found
    assert "Garnet 1" not in found
    assert all(server.binary.name.startswith(kind.lower().replace(" ", "-")) for kind, server in found.items())


def test_commands_and_bytes_are_counted(benchmarks: Any, server: Server, redis_client: redis.Redis) -> None:
    contenders = benchmarks("contenders")
    limiter = contenders.guarded(server.url)
    plain = contenders.four_calls(server.url)["four redis-py calls a rule, not atomic", "3 rules"]
    ours = contenders.ours_of(limiter)[contenders.OURS, "3 rules"]
    plain()
    ours()

    assert benchmarks("server").commands_of(redis_client, plain) == 12
    assert benchmarks("server").commands_of(redis_client, ours) == 1
    assert 300 < benchmarks("server").bytes_of(redis_client, plain) < 3000
    limiter.close()
    redis_client.flushall()


def test_a_known_refusal_asks_no_server(benchmarks: Any, server: Server, redis_client: redis.Redis) -> None:
    refusals = benchmarks("refusals")
    calls = refusals.refused_by_us(server.url)

    def twice(call: Callable[[], bool]) -> Callable[[], list[bool]]:
        return lambda: [call(), call()]

    asked = {
        who: benchmarks("server").commands_of(redis_client, twice(calls[who, "3 rules"]))
        for who in (refusals.OURS, refusals.ASKED)
    }

    assert asked == {refusals.OURS: 1, refusals.ASKED: 2}
    assert not any(call() for call in calls.values())
