"""Whether the storage keeps quotas for all who should share them, and its scripts and rights work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from ...config import PREFIX
from ...engine import Ban, ClusterStorage, Decision, Hit, Limiter, RedisStorage, Rule, StorageError, hits_for
from ...engine.algorithms import ALGORITHMS
from ...engine.storage import LocalStorage, Scripted
from ...engine.storage.layers.guard.workers import workers_asked_for
from ...insight.limits import Place, without_share
from ...insight.workers import known_number
from ...serve.gate import AppGate
from . import FIX, Finding, Severity, remedy_for
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


def examine_script(storage: Any, gate: AppGate) -> Iterator[Finding]:
    """Check every algorithm on keys of our own, and delete them."""
    limiter = Limiter(storage if isinstance(storage, ClusterStorage) else RedisStorage(storage.client))
    rules = [Rule(60, 10, algorithm=algorithm, name=algorithm) for algorithm in ALGORITHMS]
    prefix = gate.settings.key_prefix
    hits = hits_for(rules, scope="flask_multilimit.operate.doctor", subject=uuid4().hex, prefix=prefix, ban=Ban())
    try:
        checked, peeked = limiter.check(hits), limiter.peek(hits)
        limiter.reset(hits)
        after = limiter.peek(hits)
    except StorageError as error:
        if type(error.__cause__).__name__ not in {"ConnectionError", "TimeoutError", "AuthenticationError"}:
            yield Finding("script", Severity.WRONG, str(error), remedy_for(error, _ASK_US))
        return
    if _is_right(hits, checked, peeked, after):
        text = f"Loads and runs: {len(rules)} rules checked, charged and reset, one of each algorithm, and a ban."
        yield Finding("script", Severity.OK, text)
    else:
        yield Finding("script", Severity.WRONG, "It runs, but some of what it wrote was missing afterwards.", _ASK_US)


_ASK_US = "The server may imitate Redis, or answer from a replica. Use the primary of a Redis or Valkey."


USES = {
    "hget": "to follow changes",
    "hset": "to make changes, and to put them back after a restart of the server",
    "xadd": "to make changes, and to put them back after a restart of the server",
    "xrevrange": "to show the history",
    "scan": "to list keys, bans and slots",
    "pttl": "to list keys, bans and slots",
    "info": "to tell a restart of the server from a deletion",
}
"""What each right is for that limits do not need."""
_TRY = """
local lacking, tries = {}, {
  { 'hset', 'HSET', KEYS[1], 'field', '1' }, { 'hget', 'HGET', KEYS[1], 'field' },
  { 'xadd', 'XADD', KEYS[2], '*', 'field', '1' }, { 'xrevrange', 'XREVRANGE', KEYS[2], '+', '-', 'COUNT', '1' },
  { 'pttl', 'PTTL', KEYS[1] }, { 'scan', 'SCAN', '0', 'COUNT', '1' }, { 'info', 'INFO', 'server' },
}
for _, each in ipairs(tries) do
  local reply = redis.pcall(unpack(each, 2))
  local failed = type(reply) == 'table' and reply['err'] or ''
  if string.find(failed, 'ACL failure', 1, true) or string.find(failed, "can't run this command", 1, true) then
    lacking[#lacking + 1] = each[1]
  end
end
redis.call('UNLINK', KEYS[1], KEYS[2])
return lacking
"""


def examine_rights(storage: Scripted, gate: AppGate) -> Iterator[Finding]:
    """Try what changes, commands and pages need, on keys of our own."""
    mark = uuid4().hex
    keys = [f"{gate.settings.key_prefix}{{doctor}}:{mark}:{kind}" for kind in ("hash", "stream")]
    try:
        reply = storage.run_script(_TRY, keys, [])
    except StorageError:
        return  # the script of limits has failed, too
    lacking = sorted(each.decode() if isinstance(each, bytes) else str(each) for each in reply)
    if lacking:
        uses = ", ".join(dict.fromkeys(USES.get(each, each) for each in lacking))
        text = f"The server's user lacks {' '.join(f'+{each}' for each in lacking)}: {uses}."
        yield Finding("rights", Severity.HINT, text, "Allow what this process is for: workers need +hget, at least.")


def _is_right(hits: tuple[Hit, ...], checked: Decision, peeked: Decision, after: Decision) -> bool:
    whole = [hit.rule.quota.burst for hit in hits if hit.cost]
    left = [status.remaining for status in checked.statuses]
    return (
        checked.allowed
        and left == [units - 1 for units in whole]
        and [status.remaining for status in peeked.statuses] == left
        and [status.remaining for status in after.statuses] == whole
    )
