"""Where one client stands: lists, bans, limits, what was refused; the verdict, and commands that change it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from ..control.entries import Listing, Override
from ..declare.addresses import Who, number_of, usual_network
from ..declare.subjects import ANONYMOUS, EVERYONE, LimitType, Subject, parts_in
from ..engine import BanStatus, Decision, Hit, Limiter, RuleStatus, StorageError
from ..engine.bans import BanRule
from ..engine.errors import with_remedy
from ..engine.periods import Period
from ..engine.text import Phrase
from ..observe.traffic import Refused
from ..plan.applied import Applied
from ..plan.lookups import AppliedAt, require_types
from ..plan.plans import Plans
from ..plan.sources import scopes_of_endpoints
from ..serve.access import Listed
from ..serve.gate import AppGate
from .bans import BegunBan, bans_elsewhere, began
from .changes import Entry, document_in_force, entry_of
from .clients import ALL_ANONYMOUS, Client, applied_to, in_traffic, is_own, listed_of
from .health import require_charges
from .limits import checked_by_extensions, places_of, rule_fields
from .text import duration, local_time, rule_text, subject_text
from .traffic import RefusedSubject, TrafficMemory, refused_subject
from .values import Described, Paging, Verdict, finite, paged

MOST_REFUSALS = 50
"""The most lines about the last hour."""

State = Literal["passes", "allowed", "denied", "banned", "refused", "unlimited", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStanding(Described):
    """One rule, and how much of its quota is used."""

    name: str
    type: str
    subject: str
    shown: str
    """The subject for people."""
    text: str
    count: int
    time: float | None
    algorithm: str
    burst: int | None
    max_delay: float | None
    lease: int | None
    per: Period | None
    """The period of a calendar, which has no ``time``."""
    timezone: str | None
    anchor: int | str | None
    quota: int
    used: int
    remaining: int
    debt: int
    """Units that are used beyond the count: by settling, or because the count was lowered."""
    cost: int
    shadow: bool
    by_request: bool
    """Whether a callable has returned its rule."""
    allowed: bool
    retry_after: float | None
    """``null``: waiting does not help, or ``waits_for_slot``."""
    waits_for_slot: bool
    reset_after: float
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BanStanding(Described):
    """A ban that follows from refusals, and how near it is."""

    name: str
    type: str
    subject: str
    shown: str
    text: str
    shadow: bool
    holds: bool
    since: float | None
    """When it began, if it holds: POSIX time."""
    level: int
    """How many bans it repeats while it holds."""
    strikes_left: int
    retry_after: float | None
    reset_after: float
    key: str

    @property
    def refuses(self) -> bool:
        """Whether it holds, and is no shadow."""
        return self.holds and not self.shadow


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStanding(Described):
    """How limits would answer a request, whatever the lists say."""

    endpoint: str
    methods: tuple[str, ...]
    allowed: bool | None
    """``null``: no limit counts the client."""
    retry_after: float | None
    """``null``: waiting does not help, or ``waits_for_slot``, or no limit counts the client."""
    refused_for: float
    """Seconds for which it is certainly refused."""
    waits_for_slot: bool
    """Whether it is refused until other work ends, at a time that is not known."""
    rules: tuple[RuleStanding, ...]
    bans: tuple[BanStanding, ...]
    not_asked: Mapping[str, tuple[str, ...]]
    """The types of limits whose subjects are not given, each with the names of its parts."""
    by_request: tuple[str, ...]
    """The names of limiters whose rules are not known here: they depend on a request that the client does not make."""
    own: Annotated[tuple[RuleStanding | BanStanding, ...], Field(exclude=True)]
    """The rules and bans that count the client alone: a reset and `unban` concern these."""

    @property
    def is_used(self) -> bool:
        """Whether anything of a quota of its own is used, or a refusal remembered."""
        own = (each for each in self.rules if each.type != EVERYONE.type)
        return any(each.used for each in own) or any(each.reset_after for each in self.bans)

    @property
    def own_is_used(self) -> bool:
        """Whether there is anything to reset of what counts the client alone."""
        return any(each.reset_after or (isinstance(each, RuleStanding) and each.used) for each in self.own)

    @property
    def lets_everyone_pass(self) -> bool:
        """Whether only limits decide that everyone shares, and none refuses."""
        counted = {each.type for each in self.rules} | {each.type for each in self.bans}
        return self.allowed is True and not self.by_request and counted == {EVERYONE.type}

    @property
    def matters(self) -> bool:
        """Whether it refuses, or something is used."""
        return self.allowed is False or self.is_used


@dataclass(frozen=True, slots=True)
class ListStanding(Described):
    """The entry of a list that decides about every request of a client."""

    who: str
    action: Literal["allow", "deny", "ban"]
    where: str
    """A setting, or the id of an entry."""
    status: int | None
    """Of refusals."""
    ends_in: float | None
    """``null``: it lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing(Described):
    """Where a client stands."""

    who: str
    """As lists and forms take it; empty if they cannot name it."""
    type: str
    value: str
    shown: str
    """For people."""
    types: tuple[str, ...]
    """The types of limits that count it, alone or together with others."""
    counted: bool
    """Whether limits can count it. They do not count networks of many clients."""
    endpoint: str | None
    """The endpoint that was asked for; ``null``: all."""
    method: str | None
    state: State
    verdict: Verdict
    allowed: bool | None
    """Whether a request would pass everywhere; ``null``: no list or limit decides."""
    retry_after: float | None
    """``null``: waiting does not help, or ``waits_for_slot``, or nothing decides."""
    waits_for_slot: bool
    listed: ListStanding | None
    entries: tuple[Entry, ...]
    """Entries of lists and overrides about it, about networks that contain it, and about networks in it; and changes
    for everybody that may be why it is refused."""
    requests: tuple[RequestStanding, ...]
    """Those that are refused first, then those that have used something."""
    paging: Paging
    """Of the requests."""
    untouched: int
    """How many of all requests have used nothing of their quotas."""
    elsewhere: tuple[BegunBan, ...]
    """Bans in force by limiters of functions and checks, as far as traffic shows; the one that ends last first."""
    refusals: tuple[RefusedSubject, ...]
    """In the last hour, most first."""
    lift: tuple[str, ...]
    """Commands that let it pass again."""
    has_own_ban: Annotated[bool, Field(exclude=True)]
    """Whether `unban` lifts a ban that refuses it."""
    problem: str
    """Why the storage does not decide: it did not answer, or cannot be charged."""


def standing(
    gate: AppGate,
    client: Client,
    memory: TrafficMemory | None = None,
    *,
    endpoint: str | None = None,
    method: str | None = None,
    page: int = 1,
    rows: int | None = None,
) -> Standing:
    """Where ``client`` stands at ``endpoint``, or everywhere; ``rows`` of its requests. Charges nothing. Raises
    :class:`ConfigurationError` if there is no such endpoint, and for a type that neither limits nor traffic know."""
    places_of(gate)  # raises for a mistake anywhere, as no request is served then
    with_shared = replace(client, given={**client.given, EVERYONE.type: EVERYONE.value}) if client.given else client
    enabled = gate.settings.enabled
    places = applied_to(gate, with_shared, endpoint, method)[: None if enabled else 0]
    found, problem = list[RequestStanding](), ""
    try:
        require_charges(gate)
        asked = places if endpoint is not None else [each for each in places if each.applied.limiters]
        for each in requests_of(gate, asked, client.given):
            found.append(each)  # what is known before one key fails is shown
    except StorageError as error:
        if endpoint is not None:
            raise
        problem = with_remedy(error)
    if endpoint is None:
        found = sorted((each for each in found if not each.lets_everyone_pass), key=_rank)
    shown, paging = paged(found, page, rows or max(len(found), 1))
    listed = _list_standing(listed_of(gate, client, gate.access)) if enabled else None
    refusals, in_words = _refusals(gate, memory, client, endpoint)
    facts = _Facts(
        client=client,
        plans=gate.plans,
        problem=problem,
        listed=listed,
        requests=found,
        types_with_others=_with_others(places, client),
        refusals=in_words,
        bans_elsewhere=() if problem or endpoint is not None or not enabled else bans_elsewhere(gate, client),
        refused_elsewhere=sorted({each.endpoint for each in refusals} - scopes_of_endpoints(gate.app).keys()),
        checked_by_extensions=checked_by_extensions(gate, endpoint),
        now=gate.applier.time(),
    )
    # Functions and checks, which only traffic shows, may have other types.
    if not (listed or facts.bans_elsewhere or refusals or client.is_digest):
        require_types(gate.plans, client.given)
    state, verdict = next(facts.verdicts()) if enabled else ("unlimited", Phrase(DISABLED))
    subject = client.subject
    in_force, changes = document_in_force(gate).entries, set(_changes_of(gate.plans, facts.refused))
    return Standing(
        who=client.text,
        type="" if subject is None else subject.type,
        value="" if subject is None else subject.value,
        shown=client.shown,
        types=tuple(dict.fromkeys(rule.type for each in found for rule in each.rules if rule.type != EVERYONE.type)),
        counted=bool(client.given),
        endpoint=endpoint,
        method=method,
        state=state,
        verdict=verdict,
        allowed=facts.allowed,
        retry_after=facts.retry_after,
        waits_for_slot=facts.waits_for_slot,
        listed=listed,
        entries=tuple(entry_of(each) for each in in_force if each.id in changes or _is_about(each.who, client)),
        requests=tuple(shown),
        paging=paging,
        untouched=sum(not each.matters for each in found),
        elsewhere=facts.bans_elsewhere,
        refusals=refusals,
        lift=facts.lift(refusing_entries(in_force, client)),
        has_own_ban=facts.has_own_ban,
        problem=problem,
    )


def requests_of(gate: AppGate, places: list[AppliedAt], given: Mapping[str, str]) -> Iterator[RequestStanding]:
    """How limits would answer a request of a client with the ``given`` subjects at each of ``places``. Charges nothing.
    Raises :class:`StorageError`."""
    limiter = Limiter(gate.limiter.storage)  # without layers, which answer for this process only
    known: dict[tuple[Hit, ...], Decision] = {}
    for each in places:
        # Flask adds OPTIONS to every route; without limits, it is shown only if it is alone.
        if each.types or set(each.methods) != {"OPTIONS"} or len(places) == 1:
            hits = each.applied.hits
            if hits and hits not in known:  # endpoints that only share a limit have the same
                known[hits] = limiter.peek(hits)
            yield _request(each, known.get(hits), given)


def _with_others(places: Iterable[AppliedAt], client: Client) -> list[str]:
    """The types that count ``client`` only together with subjects that are not given."""
    given = client.given.keys()
    types = {name: set(parts) - {EVERYONE.type} for each in places for name, parts in each.types.items()}
    return sorted(name for name, parts in types.items() if given & parts and parts - given)


def _request(place: AppliedAt, decision: Decision | None, given: Mapping[str, str]) -> RequestStanding:
    asked = {each.declaration.type_name for each in place.applied.limiters}
    owners = place.applied.owners
    statuses = () if decision is None else decision.statuses
    rules = tuple(rule_standing(each, owners[each.hit.key]) for each in statuses if not isinstance(each.rule, BanRule))
    bans = () if decision is None else tuple(_ban(each, owners[each.hit.key], decision.at) for each in decision.bans)
    both: tuple[RuleStanding | BanStanding, ...] = (*rules, *bans)
    return RequestStanding(
        endpoint=place.endpoint,
        methods=_shown_methods(place.methods),
        allowed=None if decision is None else decision.allowed,
        retry_after=None if decision is None else finite(decision.retry_after),
        refused_for=0.0 if decision is None else decision.refused_for,
        waits_for_slot=decision is not None and decision.waits_for_slot,
        rules=rules,
        bans=bans,
        not_asked={name: parts for name, parts in place.types.items() if name not in asked},
        by_request=tuple(dict.fromkeys(place.applied.unknown)),
        own=tuple(each for each in both if is_own(given, Subject(each.type, each.subject))),
    )


def _shown_methods(methods: tuple[str, ...]) -> tuple[str, ...]:
    """``methods`` without HEAD if there is GET, and without OPTIONS if there is any other."""
    hidden = {"HEAD", "OPTIONS"} if "GET" in methods else {"OPTIONS"}
    return tuple(method for method in methods if method not in hidden) or methods


def _about(status: RuleStatus | BanStatus, owner: Applied) -> dict[str, Any]:
    """The fields that the standings of rules and bans have in common."""
    type_name, value = owner.subject
    parts = parts_in(value) if isinstance(owner.declaration.type, tuple) else ()
    return {
        "name": status.name,
        "type": type_name,
        "subject": value,
        "shown": subject_text(type_name, value, parts),
        "text": rule_text(status.hit.rule),
        "shadow": status.hit.shadow,
        "retry_after": finite(status.retry_after),
        "reset_after": status.reset_after,
        "key": status.hit.key,
    }


def rule_standing(status: RuleStatus, owner: Applied) -> RuleStanding:
    quota = status.rule.quota.full
    return RuleStanding(
        **_about(status, owner),
        **rule_fields(status.rule),
        quota=quota,
        used=max(quota - status.remaining, 0) + status.debt,
        remaining=status.remaining,
        debt=status.debt,
        cost=status.hit.cost,
        by_request=callable(owner.declaration.rules),
        allowed=status.allowed,
        waits_for_slot=status.waits_for_slot,
    )


def _ban(ban: BanStatus, owner: Applied, at: int) -> BanStanding:
    return BanStanding(
        **_about(ban, owner),
        holds=ban.holds,
        since=began(ban, at / 1_000_000) if ban.holds else None,
        level=ban.level,
        strikes_left=ban.strikes_left,
    )


def _rank(request: RequestStanding) -> tuple[object, ...]:
    """Banned first, then refused, then the most used."""
    banned = any(each.refuses for each in request.bans)
    own = [each.used / each.quota for each in request.rules if each.quota and each.type != EVERYONE.type]
    return (not banned, request.allowed is not False, not request.is_used, -max(own, default=0.0), request.endpoint)


# Lists and entries


def _list_standing(listed: Listed | None) -> ListStanding | None:
    if listed is None:
        return None
    action: Literal["allow", "deny", "ban"] = "ban" if listed.banned else listed.action
    status = None if action == "allow" else listed.status
    return ListStanding(str(listed.who), action, listed.where, status, listed.ends_in)


def _is_about(who: Who | None, client: Client) -> bool:
    """Whether ``who`` is a subject of ``client``, its address, or a network that contains this, or one in it."""
    if who is None or who.network is None:
        return who is not None and client.is_called(who)
    own = None if client.who is None else client.who.network
    if own is None:  # it is several subjects, a user who is not logged in, or its address has a port
        address = number_of(client.address)
        return address is not None and who.network.has(address)
    wider, within = sorted((who.network, own), key=lambda each: each.prefixlen)
    return wider.has((within.version, within.first))  # networks overlap only if one contains the other


def _changes_of(plans: Plans, refused: Iterable[RequestStanding]) -> Iterator[str]:
    """The ids of the changes for everybody that may be why these requests are refused."""
    for request in refused:
        rules = {None, *(each.name for each in request.rules if not each.allowed)}
        is_banned = any(each.refuses for each in request.bans)
        changes = plans.overrides.at(request.endpoint).changes
        yield from (each.id for each in changes if is_banned or each.rule in rules)


def refusing_entries(entries: Iterable[Override | Listing], client: Client) -> list[Listing]:
    """Those of ``entries`` that ban or deny ``client``, a network that contains it, or one in it."""
    lists = (each for each in entries if isinstance(each, Listing) and each.kind != "allow")
    return [each for each in lists if _is_about(each.who, client)]


def refusing_lists(gate: AppGate, client: Client) -> list[str]:
    """The same of all entries in force, and of the lists of the settings, which no command lifts; as text."""
    declared = () if gate.access is None else gate.access.declared
    denied = (each for each in declared if each.action == "deny" and _is_about(each.who, client))
    entries = refusing_entries(document_in_force(gate).entries, client)
    return [*map(str, entries), *(f"deny {each.who} ({each.where})" for each in denied)]


def _refusals(
    gate: AppGate, memory: TrafficMemory | None, client: Client, endpoint: str | None
) -> tuple[tuple[RefusedSubject, ...], str]:
    """The refusals by rule; and as text, how often all rules together have refused in the latest series, since when."""
    if memory is None or gate.settings.traffic_subjects != "plain":
        return (), ""
    found = memory.refusals.most(MOST_REFUSALS, wanted_in_traffic(gate.plans, client, endpoint))
    if not found:
        return (), ""
    latest = memory.refusals.latest([who for who, _ in found])
    refusals = Phrase(SINCE, time=local_time(latest.since), n=latest.amount)
    return tuple(refused_subject(gate, memory, *each) for each in found), refusals


def wanted_in_traffic(plans: Plans, client: Client, endpoint: str | None) -> Callable[[Refused], bool]:
    """A test whether a subject in traffic is ``client``, in its network, or has it as a part; at ``endpoint``, or
    anywhere."""
    named, network = in_traffic(client), client.who and client.who.network

    def is_client(type_name: str, value: str) -> bool:
        if client.given or network is None:
            return named.get(type_name) == value
        address = number_of(value.partition("/")[0]) if type_name in {LimitType.IP.value, ANONYMOUS} else None
        return address is not None and network.has(address)

    def is_wanted(who: Refused) -> bool:
        if endpoint not in {None, who.endpoint}:
            return False
        subject = Subject(who.type, who.subject)
        return any(is_client(*each) for each in (subject, *plans.parts_of(subject)))

    return is_wanted


# The verdict


def _wait_of(request: RequestStanding) -> float:
    if request.allowed:
        return 0.0
    return math.inf if request.retry_after is None else request.retry_after


ALLOWED = "passes everywhere: allowed by {where}"
BANNED_BY_HAND = "refused everywhere with {status}: banned by {where}, for {time}"
DENIED = "refused everywhere with {status}: denied by {where}{lasts}"
BANNED = "refused at {where}: banned by {rule} until {until}{again}{longer}{refusals}"
REFUSED = "refused at {where} by {rule}, for {time}{refusals}"
SINCE = "; refusals since {time}: {n}"
MORE = "{where} (and {n} more)"
AGAIN = ", ban {n} in a row"
LONGER = ", and refused by {rule} for {time}"
PERMANENTLY = ", permanently"
LASTS = ", for {time}"
WAITS = "refused at {where} by {rule}, until a slot is free"
HOPELESS = "refused at {where} by {rule}, and waiting does not help"
PASSES = "passes: nothing refuses it now"
PASSES_ENDPOINTS = "passes at every endpoint; {where} refused it in the last hour, and may still do so"
NETWORK = "a network is many clients: each has quotas of its own"
UNLIMITED = "passes: no limit counts it"
DISABLED = "passes: MULTILIMIT_ENABLED is False, so nothing is limited"
OF_OTHERS = (
    "not known: another extension checks limits at {where}; `flask limiter limits` shows those of Flask-Limiter; "
    "ask about a client with the type that `top` or `bans` lists"
)
DIGEST = "not known: this is the digest of a long subject; look up the subject itself"
UNKNOWN = "not known: the storage fails, so its counts do not decide"
PASSES_ALONE = "passes the limits that count it alone; {types} limits count it together with another subject"
NOT_ALONE = "not known: {types} limits count it only together with another subject"
PASSES_SHARED = "passes the limits that everyone shares: no subject is given for {types} limits"
NO_SUBJECT = "not known: no subject is given for {types} limits"
BY_REQUEST = "not known: the rules of {names} depend on the request"


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """What is known about a client: the verdict follows from it, and how to lift what refuses it."""

    client: Client
    plans: Plans
    problem: str
    """Why the storage does not decide."""
    listed: ListStanding | None
    requests: list[RequestStanding]
    types_with_others: list[str]
    """Those that count it only together with subjects that are not given."""
    refusals: str
    """Those of the last hour, as text."""
    bans_elsewhere: tuple[BegunBan, ...]
    """Those by limits that no plan knows: of functions and checks, as far as traffic shows."""
    refused_elsewhere: Sequence[str]
    checked_by_extensions: Sequence[str]
    now: float

    @property
    def refused(self) -> list[RequestStanding]:
        return [each for each in self.requests if each.allowed is False]

    @property
    def waits(self) -> list[float]:
        """For each limit that decides, the seconds until it lets the client pass."""
        of_requests = [_wait_of(each) for each in self.requests if each.allowed is not None]
        return [*of_requests, *(max(each.ended - self.now, 0.0) for each in self.bans_elsewhere)]

    @property
    def allowed(self) -> bool | None:
        if self.listed is not None:
            return self.listed.action == "allow"
        return not (self.bans_elsewhere or any(self.waits)) if self.waits else None

    @property
    def retry_after(self) -> float | None:
        if self.listed is not None:
            return 0.0 if self.listed.action == "allow" else self.listed.ends_in
        return finite(max(self.waits)) if self.waits else None

    @property
    def waits_for_slot(self) -> bool:
        endless = [each for each in self.refused if _wait_of(each) == math.inf]
        return self.listed is None and bool(endless) and all(each.waits_for_slot for each in endless)

    @property
    def has_own_ban(self) -> bool:
        if self.listed is not None:
            return self.listed.action == "ban" and self.listed.who == self.client.text
        own = (each for request in self.refused for each in request.own)
        return bool(self.bans_elsewhere) or any(isinstance(each, BanStanding) and each.refuses for each in own)

    def verdicts(self) -> Iterator[tuple[State, Phrase]]:
        """What can be said about it. The first decides."""
        if self.listed is not None:
            yield _verdict_of_list(self.listed)
        refused = sorted(self.refused, key=_rank)
        of_limits = [_verdict_of_limits(refused, self.refusals, self.now)] if refused else []
        yield from (each for each in of_limits if each[0] == "banned")
        for ban in self.bans_elsewhere:
            ends = {"until": local_time(ban.ended), "again": "", "longer": ""}
            yield "banned", Phrase(BANNED, where=ban.endpoint, rule=ban.by, refusals=self.refusals, **ends)
        yield from of_limits
        if self.problem:
            yield "unknown", Phrase(UNKNOWN)
        if self.client.is_digest:
            yield "unknown", Phrase(DIGEST)
        yield from self._verdicts_unrefused()

    def _verdicts_unrefused(self) -> Iterator[tuple[State, Phrase]]:
        """What can be said if nothing refuses it: first why it is not known whether it passes."""
        given, with_others = self.client.given, ", ".join(self.types_with_others)
        shared = EVERYONE.type if EVERYONE.type not in given else None
        counted = any(rule.type != shared for each in self.requests for rule in each.rules)
        state: State = "passes" if counted else "unlimited"
        not_given = _joined(each.not_asked for each in self.requests) if given.keys() == {EVERYONE.type} else ""
        by_request = _joined(each.by_request for each in self.requests)
        if not_given and not counted:
            yield "unknown", Phrase(NO_SUBJECT, types=not_given)
        if with_others and not counted:
            yield "unknown", Phrase(NOT_ALONE, types=with_others)
        if by_request and not counted:
            yield "unknown", Phrase(BY_REQUEST, names=by_request)
        if self.checked_by_extensions:
            yield "unknown", Phrase(OF_OTHERS, where=_first_and_more(self.checked_by_extensions))
        if self.refused_elsewhere:
            yield state, Phrase(PASSES_ENDPOINTS, where=", ".join(self.refused_elsewhere))
        if not_given:
            yield state, Phrase(PASSES_SHARED, types=not_given)
        if with_others:
            yield state, Phrase(PASSES_ALONE, types=with_others)
        yield state, Phrase(PASSES if counted else UNLIMITED if given else NETWORK)

    def lift(self, refusing: Iterable[Listing]) -> tuple[str, ...]:
        """The commands that let it pass again, the most certain first, if these entries refuse it. No command lifts
        what the settings say."""
        if self.listed is not None and self.listed.action == "allow":
            return ()
        commands = [*self._lift_entries(refusing), *self._lift_bans(), *self._reset_quotas()]
        return tuple(dict.fromkeys(f"flask multilimit {each}" for each in commands))

    def _lift_entries(self, refusing: Iterable[Listing]) -> Iterator[str]:
        kind, _, entry_id = ("", "", "") if self.listed is None else self.listed.where.partition(" ")
        if self.listed is not None and kind in {"ban", "deny"} and entry_id:
            entries = [(kind, entry_id, self.listed.who), *((each.kind, each.id, str(each.who)) for each in refusing)]
            for what, id_, who in entries:
                yield f"unban {shlex.quote(who)}" if what == "ban" else f"unset {id_}"

    def _lift_bans(self) -> Iterator[str]:
        bans = (each for request in self.refused for each in request.bans if each.refuses)
        banned = {Subject(each.type, each.subject) for each in bans}
        if ALL_ANONYMOUS in banned:
            yield f"unban {shlex.quote(str(ALL_ANONYMOUS))}"
        if (self.bans_elsewhere or banned - {ALL_ANONYMOUS}) and self.client.command_text:
            yield f"unban {shlex.quote(self.client.command_text)}"

    def _reset_quotas(self) -> Iterator[str]:
        used: dict[str, list[Subject]] = {}
        for request in self.refused:
            rules = [each for each in request.rules if not each.allowed]
            used.setdefault(request.endpoint, []).extend(Subject(each.type, each.subject) for each in rules)
        for endpoint, subjects in list(used.items())[:3]:
            if options := " ".join(dict.fromkeys(each for one in subjects for each in _options_of(self.plans, one))):
                yield f"reset {shlex.quote(endpoint)} {options}"
        subject = self.client.subject
        if self.refused_elsewhere and subject and (options := " ".join(_options_of(self.plans, subject))):
            yield f"reset {options} --all"


def _first_and_more(endpoints: Iterable[str]) -> str:
    """The first of ``endpoints``, and how many others there are."""
    first, *others = dict.fromkeys(endpoints)
    return Phrase(MORE, where=first, n=len(others)) if others else first


def _joined(names: Iterable[Iterable[str]]) -> str:
    return ", ".join(dict.fromkeys(name for several in names for name in several))


def _verdict_of_list(listed: ListStanding) -> tuple[State, Phrase]:
    if listed.action == "allow":
        return "allowed", Phrase(ALLOWED, where=listed.where)
    if listed.action == "ban":
        left = duration(listed.ends_in)
        return "banned", Phrase(BANNED_BY_HAND, status=listed.status, where=listed.where, time=left)
    lasts = Phrase(PERMANENTLY if listed.ends_in is None else LASTS, time=duration(listed.ends_in))
    return "denied", Phrase(DENIED, status=listed.status, where=listed.where, lasts=lasts)


def _verdict_of_limits(refused: list[RequestStanding], refusals: str, now: float) -> tuple[State, Phrase]:
    first = refused[0]
    where = _first_and_more(each.endpoint for each in refused)
    bans = [each for each in first.bans if each.refuses]
    ban = max(bans, key=lambda each: each.retry_after or 0.0, default=None)
    left = 0.0 if ban is None else ban.retry_after or 0.0
    waits = {each.name: each.retry_after for each in first.rules if not each.allowed and not each.shadow}
    names = ", ".join(name for name, wait in waits.items() if wait is None or wait > left)
    time = duration(first.retry_after)
    if ban is not None:
        longer = Phrase(LONGER, rule=names, time=time) if names and first.retry_after is not None else ""
        again = Phrase(AGAIN, n=ban.level + 1) if ban.level else ""
        ends = {"until": local_time(now + left), "again": again, "longer": longer}
        return "banned", Phrase(BANNED, where=where, rule=ban.name, refusals=refusals, **ends)
    if first.retry_after is not None:
        return "refused", Phrase(REFUSED, where=where, rule=names, time=time, refusals=refusals)
    return "refused", Phrase(WAITS if first.waits_for_slot else HOPELESS, where=where, rule=names)


def _options_of(plans: Plans, subject: Subject) -> list[str]:
    """The options that name ``subject``; none if it is a digest of several types."""
    return [_option_of(each) for each in plans.parts_of(subject) or (subject,) if "+" not in each.type]


def _option_of(subject: Subject) -> str:
    type_name, value = subject
    if type_name == EVERYONE.type:
        return "--everyone"
    if type_name == LimitType.USER.value or (type_name == LimitType.IP.value and usual_network(value)):
        return f"--{type_name} {shlex.quote(value)}"
    return f"--subject {shlex.quote(str(subject))}"
