"""Whether a server checks, charges and resets quotas as it should."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from ...engine import Ban, ClusterStorage, Decision, Hit, Limiter, RedisStorage, Rule, StorageError, hits_for
from ...engine.algorithms import ALGORITHMS
from ...engine.storage import Scripted
from ...serve.gate import AppGate
from .findings import Finding, Severity, remedy_for


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
