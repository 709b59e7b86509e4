"""Decides a check on states in Python, for storages whose atomic step is a lock or a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol
from uuid import UUID

from ..algorithms import SLIDING, Outcome, Quota, ban
from ..decision import Charge, DecidedBy, Decision, decision_of
from ..hits import PEEK_ID, Hit, PlacedBan, bans_of, memoized, new_id
from ..reply import as_allowed


class States(Protocol):
    """The state of each key, such as a ``dict``."""

    def get(self, key: str, /) -> Any:
        """The state of ``key``; ``None`` if there is none, or ``None`` was set."""

    def __setitem__(self, key: str, state: Any, /) -> None:
        """Keep ``state``, which may be ``None``."""


def decide(
    hits: tuple[Hit, ...],
    states: States,
    now: int,
    check_id: UUID | None = None,
    *,
    charging: bool = True,
    decided_by: DecidedBy = "storage",
) -> Decision:
    """Evaluate all ``hits`` at ``now`` (microseconds); charge all if all allow, else none. Sets the new states in
    ``states``. Call it within one lock or transaction for the keys of all hits.

    The arguments are those of :meth:`.Storage.check`; ``charging=False`` makes it a :meth:`.Storage.peek`.
    """
    if not charging:
        new = PEEK_ID
        reply = evaluate_and_charge(hits, states, now, new, charging=False)
    elif check_id is None:
        new = new_id()
        reply = evaluate_and_charge(hits, states, now, new, charging=True)
    else:
        new = check_id.bytes
        repeated = _is_charged(hits, states, now, new)
        reply = evaluate_and_charge(hits, states, now, new, charging=not repeated)
        reply = as_allowed(reply) if repeated else reply  # its own charge must not refuse it
    return decision_of(new, hits, reply, decided_by)


def settle(states: States, check_id: UUID, charges: Iterable[Charge], now: int) -> None:
    """Settle ``charges`` of the check ``check_id`` in ``states``, as :meth:`.Storage.settle`."""
    for hit, until, units in charges:
        state, rule = states.get(hit.key), hit.rule
        settled = rule.implementation.settle(state, rule.quota, hit.cost, units, until, now, check_id.bytes)
        if settled is not state or state is not None:
            states[hit.key] = settled


def evaluate_and_charge(
    hits: tuple[Hit, ...], states: States, now: int, check_id: bytes, *, charging: bool, stepped_back: bool = True
) -> list[int]:
    """Evaluate ``hits``, charge all if ``charging`` and every hit allows, and return the reply. ``stepped_back``:
    whether a state may be later than ``now``."""
    (steps, bans), outcomes = memoized(hits, _steps_of), []
    allowed, longest = 1, 0
    for key, quota, cost, shadow, evaluate, _, _, _, _ in steps:
        outcome = evaluate(states.get(key), quota, cost, now)
        outcomes.append(outcome)
        _, retry_after, delay, _ = outcome
        if (retry_after or delay) and not shadow:
            if retry_after:
                allowed = 0
            longest = max(longest, delay)
    reply = [now, allowed, longest]
    asking, charging = charging, charging and allowed > 0
    if bans and asking:
        _record_strikes(bans, outcomes, states, now, check_id)
    dropping = asking and stepped_back
    for step, (remaining, retry_after, _, seen) in zip(steps, outcomes, strict=True):
        key, quota, cost, _, evaluate, charge, reset_after, drop_future, slides = step
        state = states.get(key)
        if charging and cost and not retry_after:
            charged, full_after = charge(state, quota, cost, now, seen, check_id)
            states[key] = charged
            left = remaining - cost
            if slides and not left:
                left = -evaluate(charged, quota, 1, now)[1]
            reply += (left, 0, full_after)
            continue
        if dropping and state is not None:
            state = states[key] = drop_future(state, quota, now)
        reply += (remaining, retry_after, reset_after(state, quota, now, seen))
    return reply


_Step = tuple[
    str, Quota, int, bool, Callable[..., Any], Callable[..., Any], Callable[..., Any], Callable[..., Any], bool
]


def _steps_of(hits: tuple[Hit, ...]) -> tuple[tuple[_Step, ...], tuple[PlacedBan, ...]]:
    """What a check needs of each hit, looked up once, and the bans among the hits."""
    return tuple(map(_step, hits)), bans_of(hits)


def _record_strikes(
    bans: Iterable[PlacedBan], outcomes: list[Outcome], states: States, now: int, check_id: bytes
) -> None:
    """Record a strike of each ban that watches a hit that refuses, and set the outcome of the ban."""
    for place, hit, watched in bans:
        if any(outcomes[other][1] for other in watched):
            state = states[hit.key] = ban.strike(states.get(hit.key), hit.rule.quota, now, check_id)
            outcomes[place] = ban.evaluate_after_strike(state, hit.rule.quota, now, check_id)


def _step(hit: Hit) -> _Step:
    by = hit.rule.implementation
    evaluate = by.evaluate if hit.needed == hit.cost else lambda state, quota, _, now: by.evaluate(state, quota, 1, now)
    functions = evaluate, by.charge, by.reset_after, by.drop_future
    return (hit.key, hit.rule.quota, hit.cost, hit.shadow, *functions, hit.rule.algorithm in SLIDING)


def _is_charged(hits: tuple[Hit, ...], states: States, now: int, check_id: bytes) -> bool:
    return any(
        recognise(states.get(hit.key), hit.rule.quota, now, check_id)
        for hit in hits
        if hit.cost and (recognise := hit.rule.implementation.recognise) is not None
    )
