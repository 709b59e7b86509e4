"""Measures, prints, and writes down."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from . import connections, footprint, growth, in_flask, in_memory, server, startup, threads, web
from .page import STATIC, machine_of, write_pages
from .plots import draw
from .results import Figure, Results
from .setting import Setting
from .tables import TABLES, markdown

PARTS: dict[str, Callable[[Setting], Iterator[Figure]]] = {
    part.PART: part.measure
    for part in (server, in_memory, in_flask, web, threads, startup, growth, footprint, connections)
}


def run(given: argparse.Namespace) -> None:
    """What the command line asks for."""
    if given.read:
        results = Results.from_json(given.read.read_text(encoding="utf-8"))
    else:
        results = measure(Setting(quick=given.quick, pinned=not given.unpinned), given.only)
    show(results)
    if given.json:
        given.json.write_text(results.to_json(), encoding="utf-8")
    if given.page:
        write_pages(results)
    for folder in filter(None, (given.plots, STATIC if given.page else None)):
        print("\n".join(map(str, draw(results, Path(folder)))))


def measure(setting: Setting, parts: Iterable[str]) -> Results:
    machine = {**setting.machine(), "loader": web.loader()}
    figures: list[Figure] = []
    for part in parts:
        start = time.monotonic()
        figures += PARTS[part](setting)
        print(f"{part}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    return Results(machine, figures)


def show(results: Results) -> None:
    """The tables of the documentation, as far as there is something to stand in them."""
    print(machine_of(results))
    for table in TABLES:
        if table.part in results.parts:
            print(f"{table.title}:\n\n{markdown(table, results.figures)}")
