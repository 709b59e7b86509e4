"""Writes the figures into the documentation: tables between markers, and plots beside it.

A page has `<!-- figures: NAME -->` before a table and `<!-- end of figures -->` after it; the text between is replaced.
The name `machine` stands for the description of the machine. Tables of parts that were not measured stay.
"""

from __future__ import annotations

import re

from .environment import ROOT
from .results import Results
from .tables import TABLES, markdown

PAGES = tuple(
    ROOT / "docs" / page
    for page in (
        *("explanation/algorithms.md", "explanation/capacity.md", "explanation/deny-cache.md"),
        *("explanation/performance.md", "explanation/performance-flask.md"),
        *("how-to/leases.md", "how-to/local.md", "how-to/redis.md"),
    )
)
STATIC = ROOT / "docs" / "_static"
BLOCK = re.compile(r"(<!-- figures: (?P<name>[\w-]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def write_pages(results: Results) -> None:
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), results), encoding="utf-8")


def filled(page: str, results: Results) -> str:
    """The text of a ``page`` with the figures that ``results`` has for it. Raises KeyError for an unknown marker."""
    texts = {table.name: markdown(table, results.figures) for table in TABLES}
    texts["machine"] = machine_of(results)
    parts = {table.name: table.part for table in TABLES}

    def fill(found: re.Match[str]) -> str:
        name = found["name"]
        text = texts[name]
        return f"{found[1]}\n{text}\n{found[3]}" if parts.get(name) in {None, *results.parts} else found[0]

    return BLOCK.sub(fill, page)


def machine_of(results: Results) -> str:
    """The machine on which the figures were taken, as text."""
    machine = results.machine
    kind, _, version = machine["server"].partition("-")
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    core = "client and server on one core where nothing else is said" if machine["pinned"] else "on whatever core"
    text = (
        f"Taken on {machine['date']}: {kind.capitalize()} {version} on {machine['system']}, {machine['cores']} cores"
        f" ({machine['processor']}; load before the run {machine['load']}); {core}; the load on gunicorn from"
        f" {machine['loader']}. Python {machine['python']}, {versions}."
    )
    if machine["quick"]:
        text += " It was a quick run (`--quick`): enough to see that all works, and not for more."
    return f"{text}\n"
