"""Replays the requests of a log through plans, on the engine's own ``memory://`` with the clock of the log."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, partial

from ...declare.limiter import Declaration
from ...engine import Decision, Limiter, MemoryStorage
from ...engine.reply import REMAININGS, RETRY_AFTERS
from ...engine.slots import RENEWALS, slots_of
from ...engine.storage import Slot
from ...engine.storage.forgetting import UNBOUNDED
from .logged import MICROSECONDS, LoggedRequest
from .reading import LogFile
from .replay_plan import ClientPlan, ReplayPlans, charge_stands, real_cost_in
from .report import Clients, EndpointReport, Note, Report
from .resolving import Routes, user_of

TOO_MANY_REQUESTS = 429
REMEMBERED = 20_000
"""The most plans that are kept, one per client and destination. If there are more, all are counted and forgotten."""

OnDecision = Callable[[LoggedRequest, "Decision | None"], None]
"""Called with each request and its decision; ``None`` if no limit was checked."""


class Replay:
    """Replays requests through one set of limits, and counts the outcomes."""

    def __init__(self, plans: ReplayPlans, routes: Routes, on_decision: OnDecision | None) -> None:
        self.fields: tuple[str, ...] = (*plans.finder.fields.values(), plans.replacements.cost_field)
        """The fields that a log must have; ``""``: none."""
        self._plans = plans
        self._routes = routes
        self._on_decision = on_decision
        self._time = time = Timeline()
        self._storage = MemoryStorage(clock=lambda: time.now, most_keys=UNBOUNDED)
        self._limiter = Limiter(self._storage)
        self._slots = HeldSlots(self._storage, time)
        self._charge_stands = cache(charge_stands)
        self._remembered: dict[object, ClientPlan] = {}
        self._clients = Clients()
        self._notes: Counter[str] = Counter()
        self._first: int | None = None
        self._last: int | None = None
        self._checks = self._settlements = 0
        self._compared = False

    def add(self, request: LoggedRequest) -> None:
        """Decide one request. Requests must come in order of time."""
        time = self._time
        if time.waiting:
            time.advance_to(request.at)
        time.now = self._last = request.at
        if self._first is None:
            self._first = request.at
        plan = self._client_plan(request)
        if plan is None:
            self._plans.counts_at("").outside += 1  # in no report on one endpoint
            if self._on_decision is not None:
                self._on_decision(request, None)
            return
        plan.requests += 1
        hits = plan.limits.hits
        if not hits:
            self._count_unchecked(plan, request)
            return
        decision = self._storage.check(hits)
        self._checks += 1
        if decision.allowed:
            self._admit(plan, decision, request)
        elif not self._sleep_until_free(plan, decision, request, plan.limits.longest_wait(decision)):
            self._refuse(plan, decision, request)

    def finish(self) -> None:
        """Decide the requests that still wait."""
        self._time.advance_to(1 << 62)

    # One request

    def _client_plan(self, request: LoggedRequest) -> ClientPlan | None:
        destination = self._routes.destination_of(request)
        if destination.reach == "outside":
            return None
        who: object = (id(destination), request.address, user_of(request), request.took is None)
        if request.fields or request.recorded:
            recorded, cost = request.recorded, self._plans.replacements.cost_field
            fields = (each for each in request.fields.items() if each[0] != cost)
            who = (who, *fields, *((recorded.listed, *recorded.subjects.items()) if recorded else ()))
        plan = self._remembered.get(who)
        if plan is None:
            if len(self._remembered) >= REMEMBERED:
                self._forget()
            plan = self._remembered[who] = self._plans.at(destination).for_client_of(request)
        return plan

    def _forget(self) -> None:
        """Count the requests of the plans that are remembered, and forget these."""
        for plan in self._remembered.values():
            self._clients.count_requests(plan.client, plan.requests)
            plan.destination.requests += plan.requests
            plan.destination.endpoint.requests += plan.requests
            for rule in plan.rules:
                rule.asked += plan.requests
            for note in dict.fromkeys(plan.missing):
                self._notes[note] += plan.requests
        self._remembered.clear()

    def _count_unchecked(self, plan: ClientPlan, request: LoggedRequest) -> None:
        """Count a request that no limit checks."""
        endpoint = plan.destination.endpoint
        if plan.listed is None:
            endpoint.unlimited += 1
        elif plan.listed == "allow":
            endpoint.allowed += 1
        else:
            endpoint.denied += 1
        self._compare(endpoint, request, None, admitted=plan.listed != "deny")

    def _admit(self, plan: ClientPlan, decision: Decision, request: LoggedRequest) -> None:
        endpoint, limits = plan.destination.endpoint, plan.limits
        endpoint.admitted += 1
        _note_remaining(plan, decision)
        if any(decision.reply[RETRY_AFTERS]):  # of shadows
            endpoint.shadowed += 1
            _count_refusals(plan, decision)
        if decision.delay and limits.longest_wait(decision) >= decision.delay:
            endpoint.delayed += 1
        if limits.holds_slots:
            self._slots.hold(decision, request.took or 0)
        if limits.settling:
            self._time.after(request.took or 0, partial(self._settle, plan, decision, request))
        self._clients.admit(plan.client, endpoint.name)
        self._compare(endpoint, request, decision, admitted=True)

    def _settle(self, plan: ClientPlan, decision: Decision, request: LoggedRequest) -> None:
        """Settle the charges that depend on the response, now that it is complete."""
        units = dict[str, int]()
        for each in plan.limits.settling:
            real = self._units_of(each.declaration, request)
            if real is not None:
                units.update((hit.key, real) for hit in each.hits if not hit.rule.holds_slots)
        if units:
            self._limiter.settle_each(decision, units)
            self._settlements += 1
        if any(units.values()):
            _note_remaining(plan, self._storage.peek(plan.limits.hits))

    def _units_of(self, declared: Declaration, request: LoggedRequest) -> int | None:
        """What ``request`` really cost; ``None`` if the charge stands."""
        if declared.settle is None:
            stands = self._charge_stands(declared, request.status)
            if stands is None:
                self._notes[f"charge_when of {declared.where}: the status alone does not say; charged"] += 1
            return 0 if stands is False else None
        units = real_cost_in(request, self._plans.replacements.cost_field or declared.shown_name)
        if units is None:
            self._notes[f"settle of {declared.where}: the log does not say the real cost; the estimate stands"] += 1
        return units

    def _refuse(self, plan: ClientPlan, decision: Decision, request: LoggedRequest) -> None:
        endpoint = plan.destination.endpoint
        endpoint.refused += 1
        endpoint.statuses[request.status] += 1
        _count_refusals(plan, decision)
        wait = decision.refused_for if decision.waits_for_slot else decision.retry_after
        self._clients.refuse(plan.client, endpoint.name, self._time.now, wait)
        self._compare(endpoint, request, decision, admitted=False)

    def _compare(
        self, counts: EndpointReport, request: LoggedRequest, decision: Decision | None, *, admitted: bool
    ) -> None:
        """Compare the verdict with the recorded one, and report it to the caller."""
        if request.status == TOO_MANY_REQUESTS:
            counts.really_refused += 1
            counts.now_admitted += admitted
        if request.recorded is not None and request.recorded.admitted is not None:
            self._compared = True
            counts.differing += request.recorded.admitted != admitted
        if self._on_decision is not None:
            self._on_decision(request, decision)

    # Requests that wait

    def _sleep_until_free(self, plan: ClientPlan, decision: Decision, request: LoggedRequest, seconds: float) -> bool:
        """Let the request sleep until it can pass, for at most so many seconds. Return false if that would not help."""
        now = self._time.now
        deadline = now + round(seconds * MICROSECONDS)
        if decision.waits_for_slot:
            wakes = max(
                self._slots.next_release() or deadline + 1, now + math.ceil(decision.refused_for * MICROSECONDS)
            )
        elif math.isfinite(decision.retry_after):
            wakes = now + math.ceil(decision.retry_after * MICROSECONDS)
        else:
            return False
        if wakes > deadline:
            return False
        self._time.at(wakes, lambda: self._try_again(plan, request, deadline))
        return True

    def _try_again(self, plan: ClientPlan, request: LoggedRequest, deadline: int) -> None:
        decision = self._storage.check(plan.limits.hits)
        self._checks += 1
        if decision.allowed:
            plan.destination.endpoint.delayed += 1
            self._admit(plan, decision, request)
        elif not self._sleep_until_free(plan, decision, request, (deadline - self._time.now) / MICROSECONDS):
            self._refuse(plan, decision, request)

    # The report

    def report(self, *, complete: bool = True, files: Iterable[LogFile] = ()) -> Report:
        """The report so far. Limits may be shared, so clients, commands and notes are always those of the whole app."""
        self._forget()
        counts, refused = self._plans.reported, self._clients.refused
        endpoints = counts.endpoint_reports()
        return Report(
            requests=counts.outside + sum(each.requests for each in endpoints),
            first=self._first,
            last=self._last,
            complete=complete,
            admitted=sum(each.admitted + each.unlimited + each.allowed for each in endpoints),
            refused=sum(each.refused for each in endpoints),
            denied=sum(each.denied for each in endpoints),
            outside=counts.outside,
            really_refused=sum(each.really_refused for each in endpoints),
            now_admitted=sum(each.now_admitted for each in endpoints),
            clients=len(self._clients),
            clients_refused=len(refused),
            endpoints=endpoints,
            rules=tuple(counts.rules.values()),
            bans=counts.ban_reports(),
            worst=tuple(self._clients.worst()),
            commands=self._checks + self._settlements + self._slots.commands,
            notes=self._all_notes(),
            files=tuple(files),
            differing=sum(each.differing for each in endpoints) if self._compared else None,
            longest_lockout=max((client.longest_lockout for client in refused.values()), default=0.0),
            refused_names=frozenset(refused),
        )

    def _all_notes(self) -> tuple[Note, ...]:
        notes = self._notes.copy()
        for plan in self._plans.known.values():
            for note in dict.fromkeys(plan.notes):
                notes[note] += plan.requests
        return tuple(Note(text, number) for text, number in notes.most_common())


def _note_remaining(plan: ClientPlan, decision: Decision) -> None:
    for rule, left in zip(plan.rules, decision.reply[REMAININGS], strict=True):
        least = rule.least_remaining
        if least is None or left < least:
            rule.least_remaining = max(left, 0)  # below 0, it says when one is free again


def _count_refusals(plan: ClientPlan, decision: Decision) -> None:
    """Count by which rules the request was refused, or would have been by shadows; and the bans that this began."""
    found = [rule for rule, wait in zip(plan.rules, decision.reply[RETRY_AFTERS], strict=True) if wait]
    for rule in found:
        rule.refused += 1
        rule.alone += not any(other is not rule and not other.shadow for other in found)
        rule.endpoints[plan.destination.endpoint.name] += 1
    for clients, ban in zip(plan.banned, decision.bans if plan.banned else (), strict=True):
        if ban.begun:
            clients.append(plan.client)


Event = Callable[[], None]


class Timeline:
    """A clock with events. Instants are microseconds since 1970."""

    def __init__(self) -> None:
        self.now: int = 0
        self._serial = itertools.count()
        self.waiting: list[tuple[int, int, Event]] = []
        """The events to come, as a heap."""

    def at(self, when: int, event: Event) -> None:
        """Let ``event`` happen at ``when``. Events of the same instant happen in the order in which they were added."""
        heapq.heappush(self.waiting, (when, next(self._serial), event))

    def after(self, pause: int, event: Event) -> None:
        """Let ``event`` happen in so many microseconds; at once if that is 0."""
        if pause > 0:
            self.at(self.now + pause, event)
        else:
            event()

    def advance_to(self, until: int) -> None:
        """Let all events until and at this instant happen, each at its own time."""
        while self.waiting and self.waiting[0][0] <= until:
            self.now, _, event = heapq.heappop(self.waiting)
            event()


class HeldSlots:
    """Renews slots as often as an app does, and releases them when their requests end."""

    def __init__(self, storage: MemoryStorage, time: Timeline) -> None:
        self._storage = storage
        self._time = time
        self._ends: list[int] = []
        self.commands: int = 0
        """The number of renewals and releases."""

    def hold(self, decision: Decision, took: int) -> None:
        """Hold the slots that ``decision`` has taken for ``took`` microseconds."""
        slots = slots_of(decision)
        if slots:
            end = self._time.now + took
            heapq.heappush(self._ends, end)
            self._schedule(slots, end, min(slot.hit.rule.quota.window for slot in slots) // RENEWALS)

    def next_release(self) -> int | None:
        """The instant at which the next request in progress ends."""
        while self._ends and self._ends[0] <= self._time.now:
            heapq.heappop(self._ends)
        return self._ends[0] if self._ends else None

    def _schedule(self, slots: tuple[Slot, ...], end: int, pause: int) -> None:
        renewal = self._time.now + pause
        if renewal < end:
            self._time.at(renewal, lambda: self._renew(slots, end, pause))
        else:
            self._time.at(end, lambda: self._release(slots))

    def _renew(self, slots: tuple[Slot, ...], end: int, pause: int) -> None:
        self.commands += 1
        self._storage.renew(slots)
        self._schedule(slots, end, pause)

    def _release(self, slots: tuple[Slot, ...]) -> None:
        self.commands += 1
        self._storage.release(slots)
