"""The report of a replay, as plain values for people, programs and tests. A replay counts in these values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field

from ...insight.values import Seconds, as_json
from .logged import MICROSECONDS
from .reading import LogFile

WORST = 10


@dataclass(slots=True)
class EndpointReport:
    """The requests of one endpoint."""

    name: str
    """``unmatched`` for requests that match no route (404) or none of its methods (405)."""
    requests: int = 0
    unlimited: int = 0
    """Requests to which no limit applied."""
    allowed: int = 0
    """Allowed by a list: no limit was checked."""
    denied: int = 0
    """Denied by a list: no limit was checked."""
    admitted: int = 0
    refused: int = 0
    shadowed: int = 0
    """Admitted, but a shadow would have refused."""
    delayed: int = 0
    """Admitted after waiting."""
    really_refused: int = 0
    """Requests whose original status is 429."""
    now_admitted: int = 0
    """Those among them that these limits admit."""
    differing: int = 0
    """The verdicts that differ from the recorded ones."""
    statuses: Counter[int] = field(default_factory=Counter)
    """The original statuses of the refused requests; 0 if the log does not contain it."""


@dataclass(slots=True, unsafe_hash=True)
class RuleReport:
    """One rule of one limiter, at all endpoints together. The rule identifies it, whatever was counted."""

    name: str
    limiter: str
    """Where it was declared."""
    type: str
    text: str
    """Such as ``100 per minute``."""
    shadow: bool
    is_ban: bool
    """Whether it is the ban of a limiter. :attr:`Report.bans` has more about bans."""
    asked: int = field(default=0, compare=False)
    refused: int = field(default=0, compare=False)
    """Requests that it refused, or as a shadow would have refused."""
    alone: int = field(default=0, compare=False)
    """Of these, those that no other rule refused."""
    least_remaining: int | None = field(default=None, compare=False)
    """The fewest units left after a request; ``None`` if none was admitted."""
    endpoints: Counter[str] = field(default_factory=Counter, compare=False)
    """Refusals, by each endpoint at which it was checked."""


@dataclass(frozen=True, slots=True)
class BanReport:
    """The bans of one limiter, at all endpoints together. While a ban holds, it refuses as a rule does."""

    name: str
    limiter: str
    """Where it was declared."""
    type: str
    text: str
    """Such as ``ban of 60 min after 3 refusals in 10 min``."""
    shadow: bool
    """Whether it only signals and does not refuse."""
    begun: int
    clients: int
    """The number of clients that were banned."""
    refused: int
    """Requests refused by a ban."""


@dataclass(slots=True)
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
    now_admitted: int
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


# While a replay counts


class Counts:
    """The counts of some endpoints."""

    def __init__(self) -> None:
        self.endpoints: dict[str, EndpointReport] = {}
        self.rules: dict[RuleReport, RuleReport] = {}
        self.banned: dict[RuleReport, list[str]] = {}
        """The client of each ban that began."""
        self.outside: int = 0
        """Requests that reach no view."""

    def endpoint(self, name: str) -> EndpointReport:
        return self.endpoints.setdefault(name, EndpointReport(name))

    def rule(self, rule: RuleReport) -> RuleReport:
        """The report that counts what ``rule`` does."""
        if rule.is_ban:
            self.banned.setdefault(rule, [])
        return self.rules.setdefault(rule, rule)

    def endpoint_reports(self) -> tuple[EndpointReport, ...]:
        """A report of each endpoint, those that refuse most first."""
        found = sorted(self.endpoints.values(), key=lambda each: (-each.refused, -each.requests, each.name))
        return tuple(replace(each, statuses=Counter(dict(sorted(each.statuses.items())))) for each in found)

    def ban_reports(self) -> tuple[BanReport, ...]:
        return tuple(
            BanReport(
                *(each.name, each.limiter, each.type, each.text, each.shadow),
                begun=len(clients),
                clients=len(set(clients)),
                refused=each.refused - len(clients),
            )
            for each, clients in self.banned.items()
        )


class Clients:
    """All clients of a replay."""

    def __init__(self) -> None:
        self.refused: dict[str, ClientReport] = {}
        """The clients that were refused, by name."""
        self._requests: Counter[int] = Counter()  # by a hash of the name, which takes less room
        self._locked_since: dict[tuple[str, str], int] = {}
        """By client and endpoint: when it was refused and has not been admitted again."""

    def __len__(self) -> int:
        return len(self._requests)

    def count_requests(self, name: str, times: int) -> None:
        self._requests[hash(name)] += times

    def refuse(self, name: str, endpoint: str, now: int, wait: float) -> None:
        client = self.refused.get(name)
        if client is None:
            client = self.refused[name] = ClientReport(name, 0, 0, now, 0.0)
        client.refused += 1
        since = self._locked_since.setdefault((name, endpoint), now)
        client.longest_lockout = max(client.longest_lockout, (now - since) / MICROSECONDS + wait)

    def admit(self, name: str, endpoint: str) -> None:
        """End the lock-out of a client."""
        if name in self.refused:
            self._locked_since.pop((name, endpoint), None)

    def worst(self) -> list[ClientReport]:
        """The clients that were refused most often, most often first."""
        found = sorted(self.refused.values(), key=lambda client: (-client.refused, client.name))[:WORST]
        return [replace(each, requests=self._requests[hash(each.name)]) for each in found]
