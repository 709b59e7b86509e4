"""Measures, prints, and saves the figures."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import (
    capacity,
    connections,
    footprint,
    growth,
    in_flask,
    in_memory,
    leases,
    local,
    observation,
    refusals,
    server,
    startup,
    threads,
    web,
)
from .page import STATIC, machine_of, write_pages
from .plots import draw
from .results import Figure, Results, differing
from .setting import Setting
from .tables import TABLES, markdown

PARTS: dict[str, Callable[[Setting], Iterator[Figure]]] = {
    part.PART: part.measure
    for part in (
        *(server, capacity, leases, refusals, in_memory, in_flask, web),
        *(threads, startup, growth, footprint, connections, local, observation),
    )
}


def run(given: argparse.Namespace) -> None:
    """Do what the command line asks for."""
    results = Results.from_json(given.read.read_text(encoding="utf-8")) if given.read else measured(given)
    show(results)
    if given.json:
        given.json.write_text(results.to_json(), encoding="utf-8")
    if given.page:
        write_pages(results)
    for folder in filter(None, (given.plots, STATIC if given.page else None)):
        print("\n".join(map(str, draw(results, Path(folder)))))


def measured(given: argparse.Namespace) -> Results:
    setting = Setting(quick=given.quick, pinned=not given.unpinned)
    machine = {**setting.machine(), "loader": web.loader()}
    earlier = to_be_kept(given.json, given.only, machine)
    results = Results(machine, list(measure(setting, given.only)))
    return results.with_other_parts_of(earlier) if earlier else results


def to_be_kept(file: Path | None, parts: Iterable[str], machine: Mapping[str, Any]) -> Results | None:
    """The results in ``file``, if only some ``parts`` are measured. Raises SystemExit if the two would not go
    together."""
    if file is None or not file.exists() or set(parts) == set(PARTS):
        return None
    earlier = Results.from_json(file.read_text(encoding="utf-8"))
    if differences := differing(machine, earlier.machine):
        raise SystemExit(
            f"{file} has figures that do not go together with those of this run, because these differ: "
            f"{', '.join(differences)}. Measure all parts (without --only), or name another file"
        )
    return earlier


def measure(setting: Setting, parts: Iterable[str]) -> Iterator[Figure]:
    for part in parts:
        start = time.monotonic()
        yield from PARTS[part](setting)
        print(f"{part}: {time.monotonic() - start:.0f} s", file=sys.stderr)


def show(results: Results) -> None:
    """Print the tables of the documentation for which there are figures."""
    print(machine_of(results))
    for table in TABLES:
        if table.part in results.parts:
            print(f"{table.title}:\n\n{markdown(table, results.figures)}")
