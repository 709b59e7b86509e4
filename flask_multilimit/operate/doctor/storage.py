"""Whether the storage keeps quotas for all who should share them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from ...config import PREFIX
from ...engine import ClusterStorage, StorageError
from ...engine.storage import LocalStorage, Scripted
from ...engine.storage.layers.guard.workers import workers_asked_for
from ...insight.limits import Place, without_share
from ...insight.workers import known_number
from ...serve.gate import AppGate
from .findings import FIX, Finding, Severity, remedy_for
from .script import examine_rights, examine_script
from .server import calendars_in, examine_server


def examine_storage(gate: AppGate, endpoints: list[Place]) -> Iterator[Finding]:
    storage = gate.limiter.storage
    try:
        clients = _clients(storage)
    except StorageError as error:
        yield Finding("storage", Severity.WRONG, f"{str(error).rstrip('.')}.", remedy_for(error, FIX))
        return
    if not clients:
        yield from _in_this_process(storage, gate.settings.memory_keys, calendars_in(endpoints))
        return
    if isinstance(storage, LocalStorage):
        yield _on_this_machine(storage, calendars_in(endpoints))
    for client in clients:
        yield from examine_server(client, gate, endpoints)
    yield from examine_script(storage, gate)
    if isinstance(storage, Scripted):
        yield from examine_rights(storage, gate)
    yield from _in_an_outage(gate)


def _in_an_outage(gate: AppGate) -> Iterator[Finding]:
    number = known_number(gate)
    refusing = without_share(gate, number) if number is not None else []
    if refusing:
        names = ", ".join(refusing[:3]) + (f" and {len(refusing) - 3} more" if len(refusing) > 3 else "")
        text = (
            f"While the storage is away, the share of each of {number} workers is 0, and everybody refused, by {names}."
        )
        yield Finding(
            "shares", Severity.HINT, text, f"Raise the count to {number}, or give the limiter on_storage_error."
        )


def _on_this_machine(storage: LocalStorage, calendars: list[str]) -> Finding:
    text = f"local://, one server for this user's processes on this machine that use {storage.directory}."
    if calendars:
        text = f"{text} It ends with the last of them, and all quotas with it, also {calendars[0]}."
        return Finding("sharing", Severity.WARNING, text, "Keep the quotas of a calendar on a server that saves them.")
    return Finding("sharing", Severity.OK, f"{text} It ends with the last of them, and all quotas with it.")


def _in_this_process(storage: Any, most_keys: int, calendars: list[str]) -> Iterator[Finding]:
    if storage.shared:
        yield Finding("storage", Severity.OK, f"{type(storage).__name__}; this command knows nothing more about it.")
        return
    text = f"memory://, in each process by itself, gone when it ends, {most_keys:,} keys at most."
    remedy = f'For several workers: {PREFIX}STORAGE_URI = "local://"; or machines: "redis://localhost:6379/0".'
    workers = workers_asked_for(os.environ)
    if workers is not None and workers.count > 1:
        asked = f"{workers.source} asks for {workers.count} workers"
        text = f"{text} {asked}: each of them admits the whole of every limit."
        yield Finding("storage", Severity.WARNING, text, remedy)
    elif calendars:
        text = f"{text} Every restart of the app begins {calendars[0]} anew."
        yield Finding("storage", Severity.WARNING, text, "Keep the quotas of a calendar on a server that saves them.")
    else:
        yield Finding("storage", Severity.HINT, text, remedy)


def _clients(storage: Any) -> list[Any]:
    """A client for each server that keeps quotas: one, or the primaries of a cluster. Raises :class:`StorageError`."""
    if isinstance(storage, ClusterStorage):
        return storage.clients
    client = getattr(storage, "client", None)
    return [] if client is None else [client]
