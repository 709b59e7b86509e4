"""``flask multilimit keys``: what lies in storage."""

from __future__ import annotations

import math
from typing import Any

import click

from .. import console
from ..listing import ListedKey, describe_keys, prefixes_of, stored_keys
from .base import PER_PROCESS, as_json, command, current_gate, for_people, rule_as_json, write, write_json


@command("keys", short_help="List what lies in storage.")
@click.option("--prefix", metavar="TEXT", help="Keys that begin so; default: all prefixes that the app uses.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="So many at most.")
@as_json
def keys_command(prefix: str | None, limit: int, as_json: bool) -> None:
    """List what lies in storage, with the units used and the time until it is forgotten.

    Asks with SCAN, which does not hold the server up. USED is known for rules that an endpoint declares, and for
    those of algorithms that count; the rule is not known when it was changed, or declared on no view.
    """
    with for_people():
        gate = current_gate()
        prefixes = prefixes_of(gate) if prefix is None else (prefix,)
        stored = stored_keys(gate, prefixes, limit + 1)
        keys = describe_keys(gate, stored[:limit])
    truncated = len(stored) > limit
    if as_json:
        note = None if gate.limiter.storage.shared else PER_PROCESS
        write_json(prefixes=prefixes, keys=[_key_as_json(key) for key in keys], truncated=truncated, note=note)
        return
    write(_keys_lines(keys, prefixes, truncated=truncated))
    if not gate.limiter.storage.shared:
        write(["", *console.paragraph(PER_PROCESS)])


def _keys_lines(keys: list[ListedKey], prefixes: tuple[str, ...], *, truncated: bool) -> list[str]:
    if not keys:
        return [f"No key begins with {' or '.join(prefixes)}"]
    rows = [
        (
            "?" if key.used is None else f"{key.used} of {key.rule.quota.burst}" if key.rule else str(key.used),
            "never" if key.ttl is None else console.duration(math.ceil(key.ttl)),
            key.key,
        )
        for key in keys
    ]
    lines = console.columns(rows, headings=("USED", "GONE IN", "KEY"), whole=True)
    more = " There are more: --limit." if truncated else ""
    lines += ["", f"{console.plural(len(keys), 'key')}.{more}"]
    for_ever = [key for key in keys if key.ttl is None]
    if for_ever:
        lines += console.paragraph(f"{len(for_ever)} without a TTL: somebody else's, as each of ours has one.")
    return lines


def _key_as_json(key: ListedKey) -> dict[str, Any]:
    rule = None if key.rule is None else rule_as_json(key.rule)
    return {"key": key.key, "used": key.used, "ttl": key.ttl, "rule": rule}
