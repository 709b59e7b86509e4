"""The report of a replay, as plain values for people, programs and tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from ...insight.values import Seconds, as_json
from .logs.reading import LogFile

WORST = 10


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """The requests of one endpoint."""

    name: str
    """``unmatched`` for requests that match no route (404) or none of its methods (405)."""
    requests: int
    unlimited: int
    """Requests to which no limit applied."""
    allowed: int
    """Allowed by a list: no limit was checked."""
    denied: int
    """Denied by a list: no limit was checked."""
    admitted: int
    refused: int
    shadowed: int
    """Admitted, but a shadow would have refused."""
    delayed: int
    """Admitted after waiting."""
    statuses: Mapping[int, int]
    """The original statuses of the refused requests; 0 if the log does not contain it."""


@dataclass(frozen=True, slots=True)
class RuleReport:
    """One rule of one limiter, at all endpoints together."""

    name: str
    limiter: str
    """Where it was declared."""
    type: str
    text: str
    """Such as ``100 per 60s``."""
    shadow: bool
    is_ban: bool
    """Whether it is the ban of a limiter. :attr:`Report.bans` has more about bans."""
    asked: int
    refused: int
    """Requests that it refused, or as a shadow would have refused."""
    alone: int
    """Of these, those that no other rule refused."""
    least_remaining: int | None
    """The fewest units left after a request; ``None`` if none was admitted."""
    pre_empted_by: str | None
    """A rule that refused whenever this one did."""
    endpoints: Mapping[str, int]
    """Refusals, by each endpoint at which it was checked."""

    @property
    def never_refuses(self) -> bool:
        return not self.refused


@dataclass(frozen=True, slots=True)
class BanReport:
    """The bans of one limiter, at all endpoints together. While a ban holds, it refuses as a rule does."""

    name: str
    limiter: str
    """Where it was declared."""
    type: str
    text: str
    """Such as ``ban of 3600 s after 3 refusals in 600 s``."""
    shadow: bool
    """Whether it only signals and does not refuse."""
    begun: int
    clients: int
    """The number of clients that were banned."""
    repeated: int
    """The most repetitions of a ban of one client."""
    refused: int
    """Requests refused by a ban."""


@dataclass(frozen=True, slots=True)
class ClientReport:
    """One client: a user, or an address where nobody is logged in."""

    name: str
    requests: int
    refused: int
    first_refused: int
    """Microseconds since 1970."""
    longest_lockout: Seconds
    """The longest time, in seconds, from a refusal until the endpoint would have admitted the client again, without
    any admission between."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something that the replay does differently from the app."""

    text: str
    requests: int
    """The number of requests that it affects."""


@dataclass(frozen=True)
class Report:
    """What limits would have done to the requests of a log."""

    requests: int
    first: int | None
    """Microseconds since 1970, as ``last``; ``None`` without requests."""
    last: int | None
    complete: bool
    """``False`` if the replay was stopped: then the report covers the requests until ``last``."""
    admitted: int
    """Admitted by limits, or because none applies."""
    refused: int
    """By limits."""
    denied: int
    """Denied by lists."""
    outside: int
    """Requests that reach no view: redirects of the router, and paths outside the app's root."""
    really_refused: int
    """Requests whose original status is 429."""
    now_admitted: int
    """Those among them that these limits admit."""
    clients: int
    clients_refused: int
    endpoints: tuple[EndpointReport, ...]
    rules: tuple[RuleReport, ...]
    worst: tuple[ClientReport, ...]
    """The clients that were refused most often, at most ten."""
    commands: int
    """What the storage would have been asked: one for each check, settlement and renewal. The deny cache, which the
    replay does not have, saves some."""
    notes: tuple[Note, ...]
    bans: tuple[BanReport, ...] = ()
    """One for each limiter that has a ban."""
    files: tuple[LogFile, ...] = ()
    differing: int | None = None
    """The verdicts that differ from the recorded ones; ``None`` if no request has a recorded verdict."""
    longest_lockout: Seconds = 0.0
    refused_names: Annotated[frozenset[str], Field(exclude=True)] = field(default=frozenset(), repr=False)
    """Every client that was refused at least once."""

    @property
    def share_refused(self) -> float:
        return self.refused / self.requests if self.requests else 0.0

    @property
    def succeeded_before(self) -> int:
        """Refused requests whose original status is below 400."""
        return sum(
            number for endpoint in self.endpoints for status, number in endpoint.statuses.items() if 100 <= status < 400
        )

    def as_json(self) -> dict[str, Any]:
        """For ``json.dumps``."""
        return {**as_json(self), "share_refused": self.share_refused, "succeeded_before": self.succeeded_before}


def pre_empted(refused: int, together: Mapping[str, int], order: Iterable[str]) -> str | None:
    """The first in ``order`` that also refused all of the ``refused``."""
    if not refused:
        return None
    return next((name for name in order if together.get(name) == refused), None)
