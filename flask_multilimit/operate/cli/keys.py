"""``flask multilimit keys``: the keys in storage."""

from __future__ import annotations

import math

import click

from ...insight.keys import Key, keys, prefixes_of, stored_keys
from .. import console
from .base import as_json, command, current_gate, for_people, require_shared_storage, write, write_json


@command("keys", short_help="List the keys in storage.")
@click.option(
    "--prefix", metavar="TEXT", help="List keys that begin with this; default: every prefix that the app uses."
)
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="Maximum number of keys to list."
)
@as_json
def keys_command(prefix: str | None, limit: int, as_json: bool) -> None:
    """List the keys in storage, with the units used and the time until they expire.

    This uses SCAN, which does not block the server. USED is "?" when the rule of a key is unknown (it was changed, or
    is not declared on a view) and its algorithm does not count units.
    """
    with for_people():
        gate = current_gate()
        require_shared_storage(gate)
        prefixes = prefixes_of(gate) if prefix is None else (prefix,)
        stored = stored_keys(gate, prefixes, limit + 1)
        found = keys(gate, stored[:limit])
    truncated = len(stored) > limit
    if as_json:
        write_json(prefixes=prefixes, keys=found, truncated=truncated)
        return
    write(_lines(found, prefixes, truncated=truncated))


def _lines(found: list[Key], prefixes: tuple[str, ...], *, truncated: bool) -> list[str]:
    if not found:
        return [f"No key begins with {' or '.join(prefixes)}"]
    rows = [
        (
            "?" if key.used is None else str(key.used) if key.quota is None else f"{key.used} of {key.quota}",
            "never" if key.ttl is None else console.duration(math.ceil(key.ttl)),
            key.key,
        )
        for key in found
    ]
    lines = console.columns(rows, headings=("USED", "EXPIRES IN", "KEY"), whole=True)
    more = " There are more; see --limit." if truncated else ""
    lines += ["", f"{console.plural(len(found), 'key')}.{more}"]
    for_ever = [key for key in found if key.ttl is None]
    if for_ever:
        lines += console.paragraph(f"{len(for_ever)} without a TTL: these are not ours, because ours all have one.")
    return lines
