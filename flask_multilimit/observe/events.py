"""Events, one for the outcome of each check, and the observers that get them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import lt
from typing import Literal, NamedTuple, Protocol, get_args, runtime_checkable

from ..engine import Decision, Health, Hit
from ..engine.hits import BanHit, memoized
from ..engine.keys import name_of_id
from ..engine.reply import ALLOWED, REMAININGS, RETRY_AFTERS

Outcome = Literal[
    "allowed", "waited", "shadowed", "allow_listed", "refused", "banned", "denied", "unanswered", "refunded", "settled"
]
"""The outcome of one check:

- ``allowed``: every limit allows.
- ``waited``: allowed, after the request slept.
- ``shadowed``: allowed, and a limiter with ``shadow=True`` would have refused.
- ``allow_listed``: an allow entry lets the subject pass a view with limits, which were not checked.
- ``refused``: at least one rule refuses.
- ``banned``: a ban holds; also when it began with this check.
- ``denied``: a deny entry refuses the subject; no limits were checked.
- ``unanswered``: the storage did not answer, and the client got a 503 or the caller an exception.
- ``refunded``: the charge of an earlier check was refunded. This follows that check's own outcome.
- ``settled``: the charge of an earlier check was settled. This follows that check's own outcome.
"""
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
PASSED: frozenset[Outcome] = frozenset({"allowed", "waited", "shadowed", "allow_listed"})
"""Outcomes after which the request continues."""
TURNED_AWAY: frozenset[Outcome] = frozenset({"refused", "banned", "denied", "unanswered"})
"""Outcomes that end the request."""
AFTERWARDS: frozenset[Outcome] = frozenset({"refunded", "settled"})
"""Outcomes of a charge, after the outcome of its check was reported."""
NOT_CHECKED: frozenset[Outcome] = frozenset({"allow_listed", "denied", *AFTERWARDS})
"""Outcomes without a check of limits."""
OTHERS = "(others)"
"""The name for endpoints and rules that are unknown, or too many to count separately."""
BREAKER_STATES = ("closed", "half-open", "open")
"""The values of :attr:`Health.breaker`."""
SLEPT_SECONDS = 0.001
"""A shorter sleep does not count as waiting."""
NEAR_LIMIT = 0.8
"""A rule is near its limit if more than this part of its quota is used."""
QUIET_SECONDS = 60.0
"""The shortest time between two log lines about the same thing."""


class Counted(Protocol):
    """A limiter that applies to a request."""

    @property
    def subject(self) -> tuple[str, str]:
        """The type of the subject and its value."""

    @property
    def hits(self) -> tuple[Hit, ...]:
        """Its hits."""


class ByList(NamedTuple):
    """In place of a limiter: a subject that a list denies."""

    subject: tuple[str, str]
    hits: tuple[Hit, ...] = ()


class Refusal(NamedTuple):
    """One rule that refuses one subject."""

    rule: str
    """The name of the rule, as header fields show it."""
    type: str
    """The type of the subject."""
    subject: str
    """Personal data."""


class Settled(NamedTuple):
    """The settlement of what one rule charged."""

    rule: str
    """The name of the rule, as header fields show it."""
    estimate: int
    """The units that the check has charged."""
    units: int
    """The units that they were settled at."""


class Event(NamedTuple):
    """One outcome of one check. Its first three fields are labels: endpoints and names, never subjects."""

    endpoint: str
    """The endpoint; for a service function its qualified name; for ``multilimit.check`` the scope."""
    outcome: Outcome
    decided_by: str
    """``decision.decided_by``; ``list`` if an allow or deny entry decided, ``nobody`` if the storage did not answer."""
    decision: Decision | None
    """``None`` if no limit was checked, or the storage did not answer. Of a settlement, its ``settled`` has only what
    this settlement changed."""
    seconds: float
    """Seconds that the check took, without the time for which the request slept."""
    waited: float
    """Seconds for which the request slept."""
    applied: Sequence[Counted]
    """The limiters that were checked; if a list denies, the denied subject instead."""
    error: Exception | None
    """Why the storage did not answer."""

    @property
    def passed(self) -> bool:
        """Whether the request continues."""
        return self.outcome in PASSED

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of all rules that refuse; if the outcome is ``shadowed``, of those that would refuse."""
        shadows = self.outcome == "shadowed"
        return tuple(hit.name for hit in refusing_hits(self.decision) if hit.shadow is shadows)

    @property
    def shadowed_rules(self) -> tuple[str, ...]:
        """The names of all rules that would refuse if they were not shadows, whatever the outcome."""
        return tuple(hit.name for hit in refusing_hits(self.decision) if hit.shadow)

    @property
    def settled(self) -> tuple[Settled, ...]:
        """What each charge was settled at, if the outcome is ``settled`` or ``refunded``."""
        return settled_by(self.decision) if self.outcome in AFTERWARDS else ()

    @property
    def subjects(self) -> dict[str, str]:
        """The subjects of :attr:`applied`, by type, as the app knows them. Personal data."""
        return {name: name_of_id(name, value) for name, value in (each.subject for each in self.applied)}

    @property
    def refusals(self) -> list[Refusal]:
        """Each rule that refuses, with the subject that it refuses."""
        return refusals_of(self.decision, self.applied)


class Observer(Protocol):
    """Any callable that takes an event. It runs while the request waits, so it must be fast."""

    def __call__(self, event: Event, /) -> object:
        """Handle ``event``. An exception is logged, at most once a minute, and the request goes on."""


class ControlState(NamedTuple):
    """What a process knows about the changes made while the app runs."""

    version: int
    """The version of the control document in this process: the number of changes so far."""
    age: float
    """Seconds since the storage last answered whether there is a newer one."""
    entries: Mapping[str, int]
    """The number of entries in force, by kind: ``override``, ``allow``, ``deny``, ``ban``."""


class ObservedApp(Protocol):
    """What an observer can ask of an app."""

    @property
    def name(self) -> str: ...

    def health(self) -> Health:
        """The state of the storage as far as this process knows, without asking it."""

    def leases(self) -> int:
        """The number of quotas of which this process holds leases."""

    def control(self) -> ControlState | None:
        """The changes made while the app runs; ``None`` if it takes none."""

    def bans(self) -> Mapping[tuple[str, str], int] | None:
        """The number of bans in force that limiters began, in any process, by endpoint and name of the ban. Each
        process asks the storage every few seconds. ``None`` if the storage keeps no traffic."""

    def top_shares(self) -> Mapping[str, float]:
        """By endpoint, the share of its most refused subject in the refusals of the last minutes, in any process.
        Known if :meth:`bans` are, after the first refusal."""

    def every_second(self, task: Callable[[], bool], /) -> None:
        """Run ``task`` about once a second, while there are events or it returns true because there is more to do."""


@runtime_checkable
class Attached(Protocol):
    """An observer that wants to know which apps it observes."""

    def attach(self, watched: ObservedApp, /) -> None:
        """Called once per app, when the app is initialised. An exception stops the start."""


def outcome_of(decision: Decision, waited: float) -> Outcome:
    """The outcome of a check that was decided by the storage, or by this process in its place."""
    reply = decision.reply
    if not reply[ALLOWED]:
        return "refused" if decision.ban is None else "banned"
    if waited >= SLEPT_SECONDS:
        return "waited"
    return "shadowed" if any(reply[RETRY_AFTERS]) else "allowed"


def refusing_hits(decision: Decision | None) -> list[Hit]:
    """The hits that refuse, and shadows that would."""
    if decision is None:
        return []
    return [hit for hit, wait in zip(decision.hits, decision.reply[RETRY_AFTERS], strict=True) if wait]


def refusals_of(decision: Decision | None, applied: Iterable[Counted]) -> list[Refusal]:
    """Each rule of the limiters ``applied`` that refuses, with the subject that it refuses."""
    refusing = {hit.key: hit.name for hit in refusing_hits(decision) if not hit.shadow}  # of two rules, the stricter
    refusals: dict[str, Refusal] = {}
    for each in applied:
        for hit in each.hits:
            if hit.key in refusing:
                refusals.setdefault(hit.key, Refusal(refusing[hit.key], *each.subject))
    return list(refusals.values())


def settled_by(decision: Decision | None) -> tuple[Settled, ...]:
    """What each charge was settled at, except that of slots, which are not units."""
    if decision is None:
        return ()
    units = decision.settled
    return tuple(
        [
            Settled(hit.name, hit.cost, units[hit.key])
            for hit in decision.hits
            if hit.key in units and not hit.rule.holds_slots
        ]
    )


def is_near_limit(decision: Decision) -> bool:
    """Whether :func:`hits_near_limit` finds any, for a check that every rule allows."""
    return True in map(lt, decision.reply[REMAININGS], memoized(decision.hits, _near_limits))


def hits_near_limit(decision: Decision) -> Sequence[Hit]:
    """The hits that allowed a check with more than 80 % of their quota used."""
    reply, hits = decision.reply, decision.hits
    if not reply[ALLOWED]:
        return ()
    standings = zip(hits, reply[REMAININGS], reply[RETRY_AFTERS], strict=True)
    return [hit for hit, left, wait in standings if left < _near_limit(hit) and not wait]


def _near_limit(hit: Hit) -> float:
    """The rule of ``hit`` is near its limit if fewer units than this are left. A ban is never near its limit."""
    return 0 if isinstance(hit, BanHit) else hit.rule.quota.full * (1 - NEAR_LIMIT)


def _near_limits(hits: tuple[Hit, ...]) -> tuple[float, ...]:
    return tuple(map(_near_limit, hits))
