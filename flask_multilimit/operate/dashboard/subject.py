"""One subject: its quotas at every endpoint, its refusals, the entries about it, and the reset of its quotas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...control.entries import Listing, Override
from ...declare.addresses import network_of
from ...declare.networks import Network, Networks
from ...declare.subjects import ANONYMOUS, EVERYONE, LimitType, Subject
from ...declare.who import Who
from ...engine import ConfigurationError, Decision, Hit, Limiter, StorageError
from ...engine.bans import BanRule
from ...engine.decision import BanStatus, RuleStatus
from ...engine.errors import with_remedy
from ...observe.traffic.counts import encodable, short
from ...plan.endpoint import Applied, hits_of
from ...plan.standings import Standing
from ...serve.applier import applier_of
from ...serve.gate import AppGate
from ..listing import ListedEndpoint
from ..standing import standings_of
from ..words import rule_text
from .entries import entry_facts, in_force_of
from .hour import Hour
from .limits import listing_of
from .now import subject_facts
from .paging import part_of
from .who import readable

MOST_REFUSALS = 50
"""The most lines about the last hour."""
RESET_TOGETHER = 200
"""The most quotas that one command resets."""


@dataclass(frozen=True, slots=True)
class Somebody:
    """A subject, or a network of them."""

    who: Who | None
    """The subject as lists write it; ``None`` if no list can name it."""
    subject: Subject | None
    """The subject as quotas count it; ``None`` for a network of many clients."""

    @classmethod
    def asked(cls, gate: AppGate, arguments: Mapping[str, str]) -> Somebody | None:
        """The subject that a query names: by ``who``, as people write it, or by ``type`` and ``value``. Raises
        :class:`ConfigurationError`."""
        if type_name := arguments.get("type", ""):
            return cls.of(gate, type_name, arguments.get("value", ""))
        text = arguments.get("who", "").strip()
        if not text:
            return None
        who = Who.parse(text)
        if who.network is None:
            return cls.of(gate, who.type_name, who.value)
        client = network_of(who.network.address, gate.settings.ipv6_prefix)
        alone = who.network.num_addresses == 1 or client == str(who.network)
        return cls(who, Subject(LimitType.IP.value, client) if alone else None)

    @classmethod
    def of(cls, gate: AppGate, type_name: str, value: str) -> Somebody:
        """A subject by the name of its type."""
        if type_name == LimitType.IP.value:
            value = network_of(value, gate.settings.ipv6_prefix)
        try:
            who: Who | None = Who.parse(f"{type_name}:{value}")
        except ConfigurationError:
            who = None
        return cls(who, Subject(type_name, value))

    @property
    def shown(self) -> str:
        return readable(*self.subject) if self.subject is not None else str(self.who)

    @property
    def address(self) -> str:
        """The address of the client; empty if it is not known."""
        network = None if self.who is None else self.who.network
        return "" if network is None else network.address

    def given(self) -> dict[str, str]:
        """The subject by its type, as standings need it. An address also counts as a user who is not logged in."""
        if self.subject is None:
            return {}
        found = {self.subject.type: self.subject.value}
        if self.subject.type == LimitType.IP.value:
            found[ANONYMOUS] = self.subject.value
        return found


def facts(gate: AppGate, hour: Hour | None, somebody: Somebody, *, page: int = 1) -> dict[str, Any]:
    """What the page shows, as JSON."""
    part = part_of(_counting(gate, somebody), page)
    standings, problem = _standings(gate, somebody, part.rows)
    subject = somebody.subject
    return {
        "who": "" if somebody.who is None else str(somebody.who),
        "type": "" if subject is None else subject.type,
        "value": "" if subject is None else subject.value,
        "shown": somebody.shown,
        "counted": subject is not None,
        "verdict": _verdict(gate, somebody),
        "entries": [entry_facts(each) for each in _entries(gate, somebody)],
        "refusals": _refusals(gate, hour, somebody),
        "standings": standings,
        "paging": part.as_json(),
        "problem": problem,
    }


def _counting(gate: AppGate, somebody: Somebody) -> list[ListedEndpoint]:
    """The endpoints where a limiter may count the subject."""
    types = set(somebody.given())
    if ANONYMOUS in types and gate.settings.anonymous_user == "ip":
        types.add(LimitType.USER.value)
    return [
        endpoint
        for endpoint in listing_of(gate)
        if endpoint.routes and any(types & _types_of(each.planned.declaration.type_name) for each in endpoint.limiters)
    ]


def _types_of(type_name: str) -> set[str]:
    return {type_name, *type_name.split("+")}


def _standings(
    gate: AppGate, somebody: Somebody, endpoints: Iterable[ListedEndpoint]
) -> tuple[list[dict[str, Any]], str]:
    """Its quotas at each of the endpoints. If the storage fails, those that it returned before, and the error."""
    limiter, found = Limiter(gate.limiter.storage), []
    try:
        for endpoint in endpoints:
            for standing in standings_of(gate, endpoint.name, None, somebody.given()):
                if standing.applied:
                    decision = limiter.peek(standing.applied.hits)
                    found.append(_standing_facts(endpoint.name, standing, decision))
    except StorageError as error:
        return found, with_remedy(error)
    return found, ""


def _standing_facts(endpoint: str, standing: Standing, decision: Decision) -> dict[str, Any]:
    rules = [each for each in decision.statuses if not isinstance(each.rule, BanRule)]
    return {
        "endpoint": endpoint,
        "methods": _shown(standing.methods),
        "allowed": decision.allowed,
        "retry_after": _finite(decision.retry_after),
        "rules": [_rule_facts(each, standing.applied) for each in rules],
        "bans": [_ban_facts(each) for each in decision.bans],
    }


def _shown(methods: Sequence[str]) -> list[str]:
    """The methods without those that Flask answers by itself."""
    return [method for method in methods if method not in {"HEAD", "OPTIONS"}] or list(methods)


def _rule_facts(status: RuleStatus, applied: Iterable[Applied]) -> dict[str, Any]:
    owner = next(each for each in applied if status.hit in each.hits)
    quota = status.rule.quota.burst
    return {
        "name": status.name,
        "type": owner.subject.type,
        "text": rule_text(status.rule),
        "quota": quota,
        "used": max(quota - status.remaining, 0),
        "remaining": status.remaining,
        "allowed": status.allowed,
        "shadow": status.hit.shadow,
        "retry_after": _finite(status.retry_after),
        "reset_after": status.reset_after,
    }


def _ban_facts(ban: BanStatus) -> dict[str, Any]:
    return {
        "name": ban.name,
        "text": rule_text(ban.hit.rule),
        "holds": ban.holds,
        "level": ban.level,
        "strikes_left": ban.strikes_left,
        "retry_after": _finite(ban.retry_after),
        "reset_after": ban.reset_after,
        "shadow": ban.hit.shadow,
    }


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


def _verdict(gate: AppGate, somebody: Somebody) -> dict[str, str] | None:
    """What the lists decide about its requests; ``None`` if it is on none."""
    lists = gate.access
    if lists is None or somebody.subject is None:
        return None
    subject = somebody.subject
    listed = lists.of_client(somebody.address, lambda type_name: subject if type_name == subject.type else None)
    if listed is None:
        return None
    action = "ban" if listed.banned else listed.action
    return {"action": action, "from": listed.where, "who": str(listed.who)}


def _entries(gate: AppGate, somebody: Somebody) -> list[Override | Listing]:
    """The entries about it, about a network that contains it, and about networks in it."""
    entries = in_force_of(applier_of(gate.app)).entries
    return [each for each in entries if each.who is not None and _is_about(each.who, somebody)]


def _is_about(who: Who, somebody: Somebody) -> bool:
    mine = None if somebody.who is None else somebody.who.network
    if who.network is None or mine is None:
        return somebody.who == who
    return _overlap(who.network, mine)


def _overlap(one: Network, other: Network) -> bool:
    """Whether one of the two contains the other. Networks cannot overlap in another way."""
    wider, within = sorted((one, other), key=lambda each: each.prefixlen)
    return bool(Networks([(wider, True)]).find(within.address)) and wider.version == within.version


def _refusals(gate: AppGate, hour: Hour | None, somebody: Somebody) -> list[dict[str, Any]]:
    if hour is None or gate.settings.traffic_subjects != "plain":
        return []
    if somebody.subject is not None:
        shown = {type_name: encodable(short(value)) for type_name, value in somebody.given().items()}
        found = hour.refused_where(lambda type_name, value: shown.get(type_name) == value, MOST_REFUSALS)
    else:
        networks = Networks([(somebody.who.network, True)] if somebody.who and somebody.who.network else [])
        found = hour.refused_where(
            lambda type_name, value: type_name == "ip" and bool(networks.find(value.partition("/")[0])), MOST_REFUSALS
        )
    return [subject_facts(gate, each) for each in found]


# A fresh start


def reset(gate: AppGate, somebody: Somebody, endpoint: str | None) -> int:
    """Reset the quotas of ``somebody`` at ``endpoint``, or everywhere; return their number. Raises
    :class:`StorageError`, and :class:`ConfigurationError` if no limit counts this subject."""
    given = somebody.given()
    endpoints = [each.name for each in _counting(gate, somebody)] if endpoint is None else [endpoint]
    hits = list(_hits(gate, endpoints, given))
    if not hits:
        raise ConfigurationError(f"no limit counts {somebody.shown}, so nothing was reset")
    for begin in range(0, len(hits), RESET_TOGETHER):
        gate.limiter.reset(hits[begin : begin + RESET_TOGETHER])
    return len(hits)


def _hits(gate: AppGate, endpoints: Iterable[str], given: Mapping[str, str]) -> Iterator[Hit]:
    found: dict[str, Hit] = {}
    for endpoint in endpoints:
        for standing in standings_of(gate, endpoint, None, given):
            mine = [each for each in standing.applied if each.subject != EVERYONE or EVERYONE.type in given]
            found.update({hit.key: hit for hit in hits_of(mine)})
    yield from found.values()
