"""What a replay has found, as values: for people, programs and tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .logs.reading import LogFile

WORST = 10


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """The requests of one endpoint."""

    name: str
    """``unmatched`` for those that match no route (404) or not its methods (405)."""
    requests: int
    unlimited: int
    """No limit applied."""
    allowed: int
    """By an allow list, so that no limit was asked."""
    denied: int
    """By a deny list, before any limit was asked."""
    admitted: int
    refused: int
    shadowed: int
    """Admitted, and refused by a shadow."""
    delayed: int
    """Admitted after a time asleep."""
    statuses: Mapping[int, int]
    """Of the refused: the statuses that they really had. 0: the log does not tell."""


@dataclass(frozen=True, slots=True)
class RuleReport:
    """One rule of one limiter, wherever it applies."""

    name: str
    limiter: str
    """Where it was declared."""
    type: str
    text: str
    """Such as ``100 per 60s``."""
    shadow: bool
    is_ban: bool
    """Whether it is the ban of a limiter; what there is to say of bans is said in ``bans``."""
    asked: int
    refused: int
    """Requests that it refused; of a shadow, that it would have."""
    alone: int
    """Of these, those that no other rule refused."""
    least_remaining: int | None
    """The fewest units left after a request; ``None`` when none was admitted."""
    pre_empted_by: str | None
    """A rule that refused whenever this one did."""
    endpoints: Mapping[str, int]
    """Refused, by each endpoint at which it was asked."""

    @property
    def never_refuses(self) -> bool:
        return not self.refused


@dataclass(frozen=True, slots=True)
class BanReport:
    """The bans of one limiter, wherever it applies. While a ban holds, it refuses as a rule does."""

    name: str
    limiter: str
    """Where it was declared."""
    type: str
    text: str
    """Such as ``ban of 3600 s after 3 refusals in 600 s``."""
    shadow: bool
    """Whether it would only have been told of."""
    begun: int
    clients: int
    """Who was banned at all."""
    repeated: int
    """How many bans the worst of them repeated."""
    refused: int
    """Requests while a ban held."""


@dataclass(frozen=True, slots=True)
class ClientReport:
    """One client: a user, or who has this address and is not logged in."""

    name: str
    requests: int
    refused: int
    first_refused: int
    """Microseconds since 1970."""
    longest_lockout: float
    """Seconds from a refusal to the instant at which the endpoint would have admitted the client again, with nothing
    admitted between."""


@dataclass(frozen=True, slots=True)
class StorageReport:
    """What a storage would have had to do."""

    commands: int
    """One a check, and one a refund; refusals that processes remember (the deny cache) need fewer."""
    peak_keys: int
    peak_bytes: int
    """About: as Redis 7 keeps them."""


@dataclass(frozen=True, slots=True)
class Note:
    """What could not be replayed as it would be."""

    text: str
    requests: int
    """So many are concerned."""


@dataclass(frozen=True)
class Report:
    """What limits would have done to the requests of a log."""

    requests: int
    first: int | None
    """Microseconds since 1970, as ``last``; ``None`` without requests."""
    last: int | None
    complete: bool
    """``False`` when it was interrupted: then it tells of the requests until ``last``."""
    admitted: int
    """By a limit that was asked, or because none applies."""
    refused: int
    """By limits."""
    denied: int
    """By deny lists."""
    outside: int
    """Requests that the app does not answer: redirects of its router, and what lies outside of its root."""
    really_refused: int
    """Requests that really had the status 429."""
    now_admitted: int
    """Of these, those that these limits admit."""
    clients: int
    clients_refused: int
    endpoints: tuple[EndpointReport, ...]
    rules: tuple[RuleReport, ...]
    worst: tuple[ClientReport, ...]
    """Those refused most often, at most ten."""
    storage: StorageReport
    notes: tuple[Note, ...]
    bans: tuple[BanReport, ...] = ()
    """One for each limiter that has a ban."""
    files: tuple[LogFile, ...] = ()
    differing: int | None = None
    """Of recorded requests: verdicts that differ from what really was decided; ``None`` when nothing was recorded."""
    longest_lockout: float = 0.0
    refused_names: frozenset[str] = field(default=frozenset(), repr=False)
    """Every client that was refused at all."""

    @property
    def share_refused(self) -> float:
        return self.refused / self.requests if self.requests else 0.0

    @property
    def succeeded_before(self) -> int:
        """Refused, though they really had a status below 400."""
        return sum(
            number for endpoint in self.endpoints for status, number in endpoint.statuses.items() if 100 <= status < 400
        )

    @property
    def idle_rules(self) -> tuple[RuleReport, ...]:
        """Rules that never refuse."""
        return tuple(rule for rule in self.rules if rule.never_refuses)

    @property
    def pre_empted_rules(self) -> tuple[RuleReport, ...]:
        """Rules that refuse only when another one does."""
        return tuple(rule for rule in self.rules if rule.pre_empted_by is not None)

    def as_json(self) -> dict[str, Any]:
        """For ``json.dumps``."""
        plain = asdict(self)
        del plain["refused_names"]
        return {**plain, "share_refused": self.share_refused, "succeeded_before": self.succeeded_before}


def pre_empted(refused: int, together: Mapping[str, int], order: Iterable[str]) -> str | None:
    """The first in ``order`` that refused each of the ``refused`` too."""
    if not refused:
        return None
    return next((name for name in order if together.get(name) == refused), None)
