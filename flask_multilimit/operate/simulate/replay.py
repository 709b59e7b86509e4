"""Requests of a log through the plans in force, on the engine's own ``memory://`` with the clock of the log."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...declare.subjects import Subjects
from ...engine import Decision, Limiter, MemoryStorage
from ...engine.reply import ALLOWED, EACH, REMAINING, RETRY_AFTER, Reply
from ...plan.endpoint import Plan
from ...plan.plans import Plans
from .asking import Asked, Asking, Charging, Client, Given, RuleKey, Tally
from .logs.logged import MICROSECONDS, LoggedRequest
from .logs.reading import LogFile
from .report import (
    WORST,
    ClientReport,
    EndpointReport,
    Note,
    Report,
    RuleReport,
    StorageReport,
    pre_empted,
)
from .routes import Place, Routes
from .who import Who

REMEMBERED = 20_000
"""Clients at one place whose hits are kept: twice as many for a moment."""
TOO_MANY_REQUESTS = 429
LOOKED_EVERY = 4096
"""Checks after which the storage is measured, at most, if it may have grown."""
GROWN = 1.05

Verdict = Callable[[LoggedRequest, "Decision | None"], None]
"""Told of each request in turn; ``None``: no limit was asked."""


@dataclass(slots=True)
class _Waiting:
    """A request asleep until it may pass."""

    asked: Asked
    request: LoggedRequest
    deadline: int


class Replay:
    """One set of limits, and what they do to the requests it is given."""

    def __init__(
        self,
        plans: Plans,
        subjects: Subjects,
        *,
        routes: Routes,
        who: Who,
        given: Given | None = None,
        tell: Verdict | None = None,
        caveats: Iterable[str] = (),
    ) -> None:
        self._plans = plans
        self._caveats = tuple(caveats)
        self._subjects = subjects
        self._routes = routes
        self._who = who
        self._given = given or Given()
        self._tell = tell
        self._now = 0
        self._storage = MemoryStorage(clock=lambda: self._now)
        self._limiter = Limiter(self._storage)
        self._charging = Charging()
        self._places: dict[Place, Asking] = {}
        self._clients: dict[str, Client] = {}
        self._young: dict[object, Asked] = {}
        self._old: dict[object, Asked] = {}
        self._refusals: Counter[tuple[str, tuple[RuleKey, ...], tuple[int, ...]]] = Counter()
        """By endpoint and the rules asked: which of them refused, by their places."""
        self._asleep: list[tuple[int, int, _Waiting]] = []
        self._serial = itertools.count()
        self._notes: Counter[str] = Counter()
        self._first: int | None = None
        self._requests = self._outside = self._really_refused = self._now_admitted = 0
        self._checks = self._refunds = 0
        self._next_look = 1
        self._compared = self._differing = 0
        self._usage = _Usage(self._storage)

    def add(self, request: LoggedRequest) -> None:
        """Decide one request. They come in order of time."""
        at = request.at
        if self._asleep:
            self._wake(at)
        self._now = at
        if self._first is None:
            self._first = at
        self._requests += 1
        asked = self._asked(request)
        if asked is None:
            self._outside += 1
            self._settle(request, None)
            return
        asked.client.requests += 1
        tally = asked.tally
        tally.requests += 1
        if asked.untold:
            self._notes.update(asked.untold)
        if not asked.rules:
            tally.unlimited += 1
            self._settle(request, None)
            return
        decision = self._storage.check(asked.applied.hits)
        self._checks += 1
        if self._checks >= self._next_look:
            self._next_look += min(1 + self._checks // 16, LOOKED_EVERY)
            self._usage.look()
        reply = decision.reply
        if reply[ALLOWED] > 0:
            if asked.is_plain:
                tally.admitted += 1
                self._note_room(tally, reply)
                if asked.client.locked:
                    asked.client.locked.pop(asked.place.endpoint, None)
                self._settle(request, decision)
            else:
                self._admit(asked, decision, request)
        elif not (asked.applied.may_wait and self._sleeps(asked, decision, request)):
            self._refuse(asked, decision, request)

    def finish(self) -> None:
        """Let those pass that are still asleep."""
        self._wake(1 << 62)

    # One request

    def _asked(self, request: LoggedRequest) -> Asked | None:
        place = self._routes.place_of(request)
        if place.kind == "outside":
            return None
        who: object = (id(place), request[3], request[5])
        if request.fields or request.recorded:
            recorded = request.recorded
            who = (who, *request.fields.items(), *(recorded.subjects.items() if recorded else ()))
        asked = self._young.get(who)
        if asked is None:
            asked = self._old.get(who) or self._asking(place).of(request, self._client)
            if len(self._young) >= REMEMBERED:
                self._old, self._young = self._young, {}
            self._young[who] = asked
        return asked

    def _client(self, name: str) -> Client:
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = Client(name)
        return client

    def _asking(self, place: Place) -> Asking:
        asking = self._places.get(place)
        if asking is None:
            asking = Asking(place, self._plan(place), self._subjects, self._who, self._given)
            self._places[place] = asking
        return asking

    def _plan(self, place: Place) -> Plan | None:
        if place.kind == "unmatched":
            return self._plans.of_unmatched(place.method)
        if place.endpoint not in self._plans.app.view_functions:  # of a recording: it has gone since
            self._notes[f'no endpoint is called "{place.endpoint}" any more: not limited'] += 1
            return None
        return self._plans.of_endpoint(place.endpoint, place.method)

    @staticmethod
    def _note_room(tally: Tally, reply: Reply) -> None:
        least = tally.least
        for number, left in enumerate(reply[REMAINING::EACH]):
            least[number] = min(least[number], left)

    def _admit(self, asked: Asked, decision: Decision, request: LoggedRequest) -> None:
        tally = asked.tally
        tally.admitted += 1
        self._note_room(tally, decision.reply)
        refusing = _refusing(decision)
        if refusing:  # shadows
            tally.shadowed += 1
            self._refusals[asked.place.endpoint, asked.rules, refusing] += 1
        delay = decision.delay
        if delay and asked.applied.longest_wait(decision) >= delay:
            tally.delayed += 1
        for each in asked.applied.reserved:
            stands = self._charging.stands(each.declaration, request.status)
            if stands is None:
                where = each.declaration.where
                self._notes[f"charge_when of {where}: the status alone does not tell; charged"] += 1
            elif not stands:
                decision = self._limiter.refund(decision, each.hits)
                self._refunds += 1
        if asked.client.locked:
            asked.client.locked.pop(asked.place.endpoint, None)
        self._settle(request, decision)

    def _refuse(self, asked: Asked, decision: Decision, request: LoggedRequest) -> None:
        tally, client = asked.tally, asked.client
        tally.refused += 1
        tally.statuses[request.status] = tally.statuses.get(request.status, 0) + 1
        self._refusals[asked.place.endpoint, asked.rules, _refusing(decision)] += 1
        now = self._now
        if not client.refused:
            client.first_refused = now
        client.refused += 1
        if client.locked is None:
            client.locked = {}
        since = client.locked.setdefault(asked.place.endpoint, now)
        locked = (now - since) / MICROSECONDS + decision.retry_after
        client.longest_lockout = max(client.longest_lockout, locked)
        self._settle(request, decision)

    def _settle(self, request: LoggedRequest, decision: Decision | None) -> None:
        """Hold the verdict against what really was decided."""
        if request[4] != TOO_MANY_REQUESTS and request[8] is None and self._tell is None:  # as nearly always
            return
        admitted = decision is None or decision.allowed
        if request.status == TOO_MANY_REQUESTS:
            self._really_refused += 1
            self._now_admitted += admitted
        if request.recorded is not None and request.recorded.admitted is not None:
            self._compared += 1
            self._differing += request.recorded.admitted != admitted
        if self._tell is not None:
            self._tell(request, decision)

    # Those who wait

    def _sleeps(self, asked: Asked, decision: Decision, request: LoggedRequest) -> bool:
        """Whether it may sleep until it can pass."""
        wait = asked.applied.longest_wait(decision)
        return wait > 0 and self._put_to_sleep(
            _Waiting(asked, request, self._now + round(wait * MICROSECONDS)), decision.retry_after
        )

    def _put_to_sleep(self, waiting: _Waiting, seconds: float) -> bool:
        if not math.isfinite(seconds):
            return False
        wakes = self._now + math.ceil(seconds * MICROSECONDS)
        if wakes > waiting.deadline:
            return False
        heapq.heappush(self._asleep, (wakes, next(self._serial), waiting))
        return True

    def _wake(self, until: int) -> None:
        while self._asleep and self._asleep[0][0] <= until:
            self._now, _, waiting = heapq.heappop(self._asleep)
            decision = self._storage.check(waiting.asked.applied.hits)
            self._checks += 1
            if decision.allowed:
                waiting.asked.tally.delayed += 1
                self._admit(waiting.asked, decision, waiting.request)
            elif not self._put_to_sleep(waiting, decision.retry_after):
                self._refuse(waiting.asked, decision, waiting.request)

    # What was found

    def report(self, *, complete: bool = True, files: Iterable[LogFile] = ()) -> Report:
        """As far as it has come."""
        self._usage.look()
        endpoints = self._endpoints()
        worst = sorted((client for client in self._clients.values() if client.refused), key=_by_refusals)
        return Report(
            requests=self._requests,
            first=self._first,
            last=self._now if self._requests else None,
            complete=complete,
            admitted=sum(endpoint.admitted + endpoint.unlimited for endpoint in endpoints),
            refused=sum(endpoint.refused for endpoint in endpoints),
            outside=self._outside,
            really_refused=self._really_refused,
            now_admitted=self._now_admitted,
            clients=len(self._clients),
            clients_refused=len(worst),
            endpoints=endpoints,
            rules=self._rules(),
            worst=tuple(map(_client_report, worst[:WORST])),
            storage=StorageReport(self._checks + self._refunds, self._usage.keys, self._usage.bytes),
            notes=self._all_notes(),
            files=tuple(files),
            differing=self._differing if self._compared else None,
            longest_lockout=max((client.longest_lockout for client in worst), default=0.0),
            refused_names=frozenset(client.name for client in worst),
        )

    def _endpoints(self) -> tuple[EndpointReport, ...]:
        tallies: dict[str, list[Tally]] = {}
        for asking in self._places.values():
            tallies.setdefault(asking.name, []).extend(asking.tallies.values())
        found = [_endpoint_report(name, some) for name, some in tallies.items()]
        return tuple(sorted(found, key=lambda each: (-each.refused, -each.requests, each.name)))

    def _rules(self) -> tuple[RuleReport, ...]:
        known: dict[RuleKey, tuple[str, bool]] = {}
        asked: Counter[RuleKey] = Counter()
        least: dict[RuleKey, int] = {}
        for asking in self._places.values():
            known.update(asking.rules)
            for rules, tally in asking.tallies.items():
                for rule, left in zip(rules, tally.least, strict=True):
                    asked[rule] += tally.requests
                    least[rule] = min(least.get(rule, left), left)
        found = _Refusals(known)
        for asking in self._places.values():
            for rules in asking.tallies:
                found.add(asking.name, list(rules), 0)
        for (endpoint, rules, refusing), number in self._refusals.items():
            found.add(endpoint, [rules[place] for place in refusing], number)
        return tuple(found.report(rule, asked[rule], least.get(rule)) for rule in known)

    def _all_notes(self) -> tuple[Note, ...]:
        notes = Counter({**self._notes, **dict.fromkeys(self._caveats, self._requests)})
        for asking in self._places.values():
            requests = sum(tally.requests for tally in asking.tallies.values())
            for note in asking.notes:
                notes[note] += requests
        return tuple(Note(text, number) for text, number in notes.most_common())


class _Refusals:
    """Which rules refused, alone and with which others."""

    def __init__(self, known: dict[RuleKey, tuple[str, bool]]) -> None:
        self._known = known
        self._refused: Counter[RuleKey] = Counter()
        self._alone: Counter[RuleKey] = Counter()
        self._together: dict[RuleKey, Counter[RuleKey]] = {}
        self._endpoints: dict[RuleKey, Counter[str]] = {}

    def add(self, endpoint: str, rules: list[RuleKey], number: int) -> None:
        enforced = [rule for rule in rules if not self._known[rule][1]]
        for rule in rules:
            self._refused[rule] += number
            self._endpoints.setdefault(rule, Counter())[endpoint or "unmatched"] += number
            others = [other for other in enforced if other != rule]
            if not others:
                self._alone[rule] += number
            together = self._together.setdefault(rule, Counter())
            for other in others:
                together[other] += number

    def report(self, rule: RuleKey, asked: int, least: int | None) -> RuleReport:
        type_, shadow = self._known[rule]
        refused = self._refused[rule]
        where, name, text = rule
        return RuleReport(
            name=name,
            limiter=where,
            type=type_,
            text=text,
            shadow=shadow,
            asked=asked,
            refused=refused,
            alone=self._alone[rule],
            least_remaining=None if least is None or least >= 1 << 62 else least,
            pre_empted_by=None if shadow else self._pre_empted(rule, refused),
            endpoints=dict(self._endpoints.get(rule, {})),
        )

    def _pre_empted(self, rule: RuleKey, refused: int) -> str | None:
        """Of two that always refuse together, the one that is listed first stays."""
        order = list(self._known)
        before = set(order[: order.index(rule)])
        together = self._together.get(rule, Counter())
        candidates = {
            other[1]: number for other, number in together.items() if other in before or self._refused[other] > refused
        }
        return pre_empted(refused, candidates, candidates)


class _Usage:
    """The most that the storage has held, measured whenever it may be more than before."""

    def __init__(self, storage: MemoryStorage) -> None:
        self._storage = storage
        self._checks = 0
        self._next_look = 0
        self.keys = 0
        self.bytes = 0

    def look(self) -> None:
        self._checks += 1
        if len(self._storage) <= self.keys * GROWN and self._checks < self._next_look:
            return
        self._next_look = math.ceil(self._checks * GROWN) + 1
        sizes = [bytes_in_redis(algorithm, units) for algorithm, units in self._storage.usage()]
        self.keys = max(self.keys, len(sizes))
        self.bytes = max(self.bytes, sum(sizes))


def bytes_in_redis(algorithm: str, units: int) -> int:
    """About what Redis 7 keeps for one key, as ``benchmarks/memory_per_subject.py`` measures it."""
    if algorithm != "sliding_window":
        return 112
    return 130 + 28 * units if units <= 128 else 130 + 78 * units


def _refusing(decision: Decision) -> tuple[int, ...]:
    return tuple([place for place, wait in enumerate(decision.reply[RETRY_AFTER::EACH]) if wait])


def _by_refusals(client: Client) -> tuple[int, str]:
    return -client.refused, client.name


def _client_report(client: Client) -> ClientReport:
    return ClientReport(client.name, client.requests, client.refused, client.first_refused, client.longest_lockout)


def _endpoint_report(name: str, tallies: Iterable[Tally]) -> EndpointReport:
    tallies = list(tallies)
    statuses: Counter[int] = Counter()
    for tally in tallies:
        statuses.update(tally.statuses)
    return EndpointReport(
        name=name,
        requests=sum(tally.requests for tally in tallies),
        unlimited=sum(tally.unlimited for tally in tallies),
        admitted=sum(tally.admitted for tally in tallies),
        refused=sum(tally.refused for tally in tallies),
        shadowed=sum(tally.shadowed for tally in tallies),
        delayed=sum(tally.delayed for tally in tallies),
        statuses=dict(sorted(statuses.items())),
    )
