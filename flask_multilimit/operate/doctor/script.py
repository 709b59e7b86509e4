"""Whether a server checks, charges and resets quotas as it should."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from ...engine import Ban, ClusterStorage, Decision, Hit, Limiter, RedisStorage, Rule, StorageError, hits_for
from ...engine.algorithms import ALGORITHMS
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


def _is_right(hits: tuple[Hit, ...], checked: Decision, peeked: Decision, after: Decision) -> bool:
    whole = [hit.rule.quota.burst for hit in hits if hit.cost]
    left = [status.remaining for status in checked.statuses]
    return (
        checked.allowed
        and left == [units - 1 for units in whole]
        and [status.remaining for status in peeked.statuses] == left
        and [status.remaining for status in after.statuses] == whole
    )
