"""What a replay counts of endpoints, rules and clients, and what the counts say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .replay_plan import NO_LEAST, RuleKey, RuleTraits, Shape, Tally
from .report import BanReport, EndpointReport, RuleReport, pre_empted

RefusedTogether = tuple[Shape, tuple[int, ...]]
"""A shape, and the indexes of its rules that refused."""


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
    return EndpointReport(
        name=name,
        requests=sum(tally.requests for tally in tallies),
        unlimited=sum(tally.unlimited for tally in tallies),
        allowed=sum(tally.allowed for tally in tallies),
        denied=sum(tally.denied for tally in tallies),
        admitted=sum(tally.admitted for tally in tallies),
        refused=sum(tally.refused for tally in tallies),
        shadowed=sum(tally.shadowed for tally in tallies),
        delayed=sum(tally.delayed for tally in tallies),
        statuses=dict(sorted(statuses.items())),
    )


def rule_reports(
    shapes: Sequence[Shape], known: Mapping[RuleKey, RuleTraits], refusals: Mapping[RefusedTogether, int]
) -> tuple[RuleReport, ...]:
    """A report of each rule, in the order of ``known``."""
    asked: Counter[RuleKey] = Counter()
    least: dict[RuleKey, int] = {}
    found = _RuleTallies(known)
    for shape in shapes:
        for rule, left in zip(shape.rules, shape.tally.least, strict=True):
            asked[rule] += shape.tally.requests
            least[rule] = min(least.get(rule, NO_LEAST), left)
        found.add(shape.destination.name, shape.rules, 0)
    for (shape, refusing), number in refusals.items():
        found.add(shape.destination.name, [shape.rules[place] for place in refusing], number)
    return tuple(found.report(rule, asked[rule], least.get(rule, NO_LEAST)) for rule in known)


@dataclass(slots=True)
class BanTally:
    """The bans of one limiter."""

    begun: int = 0
    clients: set[str] = field(default_factory=set)
    repeated: int = 0

    def begin(self, client: str, level: int) -> None:
        self.begun += 1
        self.clients.add(client)
        self.repeated = max(self.repeated, level)


def ban_reports(rules: Sequence[RuleReport], tallies: Mapping[RuleKey, BanTally]) -> tuple[BanReport, ...]:
    """A report of each of ``rules`` that is a ban."""
    bans = [rule for rule in rules if rule.is_ban]
    return tuple(_ban_report(ban, tallies.get((ban.limiter, ban.name, ban.text), BanTally())) for ban in bans)


def _ban_report(rule: RuleReport, tally: BanTally) -> BanReport:
    return BanReport(
        name=rule.name,
        limiter=rule.limiter,
        type=rule.type,
        text=rule.text,
        shadow=rule.shadow,
        begun=tally.begun,
        clients=len(tally.clients),
        repeated=tally.repeated,
        refused=rule.refused - tally.begun,
    )


class _RuleTallies:
    def __init__(self, known: Mapping[RuleKey, RuleTraits]) -> None:
        self._known = known
        self._refused: Counter[RuleKey] = Counter()
        self._alone: Counter[RuleKey] = Counter()
        self._together: dict[RuleKey, Counter[RuleKey]] = {}
        self._endpoints: dict[RuleKey, Counter[str]] = {}

    def add(self, endpoint: str, rules: Sequence[RuleKey], number: int) -> None:
        enforced = [rule for rule in rules if not self._known[rule].shadow]
        for rule in rules:
            self._refused[rule] += number
            self._endpoints.setdefault(rule, Counter())[endpoint] += number
            others = [other for other in enforced if other != rule]
            if not others:
                self._alone[rule] += number
            together = self._together.setdefault(rule, Counter())
            for other in others:
                together[other] += number

    def report(self, rule: RuleKey, asked: int, least: int) -> RuleReport:
        type_, shadow, is_ban = self._known[rule]
        refused = self._refused[rule]
        where, name, text = rule
        return RuleReport(
            name=name,
            limiter=where,
            type=type_,
            text=text,
            shadow=shadow,
            is_ban=is_ban,
            asked=asked,
            refused=refused,
            alone=self._alone[rule],
            least_remaining=None if least >= NO_LEAST else least,
            pre_empted_by=None if shadow else self._pre_empted(rule, refused),
            endpoints=dict(self._endpoints.get(rule, {})),
        )

    def _pre_empted(self, rule: RuleKey, refused: int) -> str | None:
        """The rule that refuses whenever ``rule`` does, if any. Of two that always refuse together, the first stays."""
        order = list(self._known)
        before = set(order[: order.index(rule)])
        together = self._together.get(rule, Counter())
        candidates = {
            other[1]: number for other, number in together.items() if other in before or self._refused[other] > refused
        }
        return pre_empted(refused, candidates, candidates)


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

    def came(self, name: str, times: int) -> None:
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
