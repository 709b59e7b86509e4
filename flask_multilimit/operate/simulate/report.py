"""The report of a replay, as plain values for people, programs and tests; and how it is made from what was counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from pydantic import Field

from ...insight.values import Seconds, as_json
from .reading import LogFile
from .replay_plan import NO_LEAST, ReplayedRule, Shape, Tally

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
    really_refused: int
    """Requests whose original status is 429."""
    now_admitted: int
    """Those among them that these limits admit."""
    differing: int
    """The verdicts that differ from the recorded ones."""
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
    endpoints: Mapping[str, int]
    """Refusals, by each endpoint at which it was checked."""


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


# What was counted


def endpoint_reports(shapes: Sequence[Shape]) -> tuple[EndpointReport, ...]:
    """A report of each endpoint, those that refuse most first."""
    tallies: dict[str, list[Tally]] = {}
    for shape in shapes:
        tallies.setdefault(shape.destination.name, []).append(shape.tally)
    found = [_endpoint_report(name, some) for name, some in tallies.items()]
    return tuple(sorted(found, key=lambda each: (-each.refused, -each.requests, each.name)))


def _endpoint_report(name: str, tallies: Sequence[Tally]) -> EndpointReport:
    statuses: Counter[int] = Counter()
    for tally in tallies:
        statuses.update(tally.statuses)
    counts = [each.name for each in fields(EndpointReport) if each.name not in {"name", "statuses"}]
    return EndpointReport(
        name=name,
        statuses=dict(sorted(statuses.items())),
        **{count: sum(getattr(tally, count) for tally in tallies) for count in counts},
    )


def rule_reports(shapes: Sequence[Shape], rules: Sequence[ReplayedRule]) -> tuple[RuleReport, ...]:
    """A report of each of ``rules``, in their order."""
    asked, refused, alone = Counter[ReplayedRule](), Counter[ReplayedRule](), Counter[ReplayedRule]()
    least: dict[ReplayedRule, int] = {}
    endpoints = {rule: Counter[str]() for rule in rules}
    for shape in shapes:
        for rule, left in zip(shape.rules, shape.tally.least, strict=True):
            asked[rule] += shape.tally.requests
            least[rule] = min(least.get(rule, NO_LEAST), max(left, 0))
            endpoints[rule][shape.destination.name] += 0
    refusals = ((shape, *each) for shape in shapes for each in shape.tally.refusals.items())
    for shape, refusing, number in refusals:
        found = [shape.rules[place] for place in refusing]
        for rule in found:
            refused[rule] += number
            alone[rule] += 0 if any(other != rule and not other.shadow for other in found) else number
            endpoints[rule][shape.destination.name] += number
    return tuple(
        RuleReport(
            **rule._asdict(),
            asked=asked[rule],
            refused=refused[rule],
            alone=alone[rule],
            least_remaining=None if least.get(rule, NO_LEAST) >= NO_LEAST else least[rule],
            endpoints=dict(endpoints[rule]),
        )
        for rule in rules
    )


def ban_reports(
    shapes: Sequence[Shape], rules: Sequence[ReplayedRule], reports: Sequence[RuleReport]
) -> tuple[BanReport, ...]:
    """A report of each of ``rules`` that is a ban. ``reports`` are those of the rules, in the same order."""
    banned: dict[ReplayedRule, list[str]] = {rule: [] for rule in rules}
    for shape in shapes:
        for place, client in shape.tally.banned:
            banned[shape.rules[place]].append(client)
    found = [(rule, report, banned[rule]) for rule, report in zip(rules, reports, strict=True)]
    return tuple(
        BanReport(*rule[:5], begun=len(clients), clients=len(set(clients)), refused=report.refused - len(clients))
        for rule, report, clients in found
        if rule.is_ban
    )


@dataclass(slots=True)
class RefusedClient:
    """What happened to one client that was refused."""

    name: str
    first: int
    """Microseconds since 1970."""
    times: int = 0
    longest_lockout: float = 0.0
    locked: dict[str, int] = field(default_factory=dict)
    """The instant since when it is locked out, by endpoint."""


class Clients:
    """All clients of a replay."""

    def __init__(self) -> None:
        self.refused: dict[str, RefusedClient] = {}
        """The clients that were refused, by name."""
        self._requests: Counter[int] = Counter()  # by a hash of the name, which takes less room

    def count_requests(self, name: str, times: int) -> None:
        self._requests[hash(name)] += times

    def requests_of(self, name: str) -> int:
        return self._requests[hash(name)]

    def __len__(self) -> int:
        return len(self._requests)

    def refuse(self, name: str, now: int) -> RefusedClient:
        client = self.refused.get(name)
        if client is None:
            client = self.refused[name] = RefusedClient(name, now)
        client.times += 1
        return client

    def admit(self, name: str, endpoint: str) -> None:
        """End the lock-out of a client."""
        client = self.refused.get(name)
        if client is not None:
            client.locked.pop(endpoint, None)

    def worst(self) -> list[RefusedClient]:
        """The clients that were refused, most often first."""
        return sorted(self.refused.values(), key=lambda client: (-client.times, client.name))
