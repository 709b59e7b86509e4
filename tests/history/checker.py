"""Reads the history of a concurrent run, and says where it broke the contract.

First clause by clause, from what is certain whatever the order was; then all at once: there must be one order of
the operations, in which each takes effect between its call and its return and checks at their recorded instants,
so that one after the other gives exactly the recorded replies. (Wing and Gong, "Testing and verifying concurrent
objects", 1993: a search that goes back where it finds no way on.)

Of refunds one knows no instant, only that they took effect between call and return.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from flask_multilimit.engine.reply import retry_afters
from history.model import World

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flask_multilimit.engine import Hit
    from history.operations import History, Operation

FOR_EVER = 2**63
TREMBLE = 10_000
"""Microseconds by which the clock of a server may step back at any time: that of Valkey 9.1 does on a busy machine."""


class Violation(NamedTuple):
    clause: str
    what: str

    def __str__(self) -> str:
        return f"{self.clause}: {self.what}"


def violations(history: History) -> list[Violation]:
    """All that can be told of ``history``; nothing when it keeps the contract."""
    windows = _windows_of(history)
    by_clause = chain(_too_many(windows), _refused_for_nothing(windows), _left_behind(history, windows))
    return [*by_clause, *_without_order(history)]


# Clause by clause, for sliding windows, where an admitted check is a unit with a name


@dataclass(frozen=True, slots=True)
class _Charged:
    """What one check has put into one window."""

    check: Operation
    cost: int
    certain: bool
    """Not so for a check with the id of an earlier one, which must not be charged again while that counts."""
    refunded_from: int
    """When it may have begun not to count any more, for it was asked back: nanoseconds as in the operations."""
    refunded_by: int
    """When it cannot count any more."""


@dataclass(frozen=True, slots=True)
class _Window:
    """What one sliding window was asked."""

    hit: Hit
    charged: list[_Charged]
    refused: list[tuple[Operation, Hit]]
    checks: list[Operation]
    """All that were admitted, also those with the id of an earlier one."""

    def around(self, at: int, ahead: int = 0) -> Iterator[_Charged]:
        """What counts, or counted, at the instant ``at``; also what lies that much ``ahead``."""
        window = self.hit.rule.quota.window
        return (each for each in self.charged if at - window < each.check.at <= at + ahead)

    def counting(self, last: Operation) -> Iterator[_Charged]:
        """What certainly counted when ``last`` was charged. Where the clock has stepped back meanwhile, this leaves out
        what had expired before, for another charge may have dropped it, and what may have come later."""
        latest = max(each.at for each in self.checks if each.invoked < last.returned)
        expired = latest - self.hit.rule.quota.window
        for each in self.around(last.at):
            came_before = each.check.returned <= last.returned or each.check.at <= last.at - TREMBLE
            if each.certain and came_before and each.check.at > expired:
                yield each


def _windows_of(history: History) -> dict[str, _Window]:
    refunds = {
        (operation.id, charge.hit.key): operation for operation in history.operations for charge in operation.charges
    }
    first_of: dict[bytes, Operation] = {}
    windows: dict[str, _Window] = {}
    for check in sorted((each for each in history.operations if each.kind in {"check", "repeat"}), key=_instant_of):
        charged = check.charged
        for hit, retry_after in zip(check.hits, retry_afters(check.reply), strict=True):
            if hit.rule.algorithm != "sliding_window":
                continue
            window = windows.setdefault(hit.key, _Window(hit, [], [], []))
            if retry_after:
                window.refused.append((check, hit))
            elif hit in charged:
                window.checks.append(check)
                first = first_of.setdefault(check.id, check)
                refund = refunds.get((check.id, hit.key))
                refunded_by = refund.returned if refund and check.returned < refund.invoked else FOR_EVER
                refunded_from = refund.invoked if refund else FOR_EVER
                window.charged.append(_Charged(check, hit.cost, check is first, refunded_from, refunded_by))
    return windows


def _too_many(windows: dict[str, _Window]) -> Iterator[Violation]:
    """No window holds more than the count: of what certainly counted when its last unit came."""
    for key, window in windows.items():
        for last in window.charged:
            counted = window.counting(last.check)
            used = sum(each.cost for each in counted if each.refunded_from > last.check.returned)
            if last.certain and used > window.hit.rule.count:
                yield Violation("too many", f"{used} of {window.hit.rule.count} in {key} with {last.check}")


def _refused_for_nothing(windows: dict[str, _Window]) -> Iterator[Violation]:
    """Every refusal is justified by the units that could have been there at its instant."""
    for key, window in windows.items():
        for check, hit in window.refused:
            used = sum(each.cost for each in window.around(check.at, TREMBLE) if each.refunded_by > check.invoked)
            if used + hit.cost <= hit.rule.count:
                yield Violation("refused for nothing", f"{used} of {hit.rule.count} in {key} with {check}")


def _left_behind(history: History, windows: dict[str, _Window]) -> Iterator[Violation]:
    """In the end, the sets hold the units of checks that were admitted, and not refunded: each, and no other."""
    for key, members in history.members.items():
        ids = {member[:16] for member in members}
        charged = windows[key].charged if key in windows else []
        possible = {each.check.id for each in charged if each.refunded_by == FOR_EVER}
        for id_ in ids - possible:
            yield Violation("left behind", f"{id_.hex()} in {key}, which was refused or refunded")
    for key, window in windows.items():
        members = history.members.get(key, {})
        for each in window.around(history.ended):
            if not each.certain or each.refunded_from != FOR_EVER:
                continue
            found = [score for member, score in members.items() if member[:16] == each.check.id]
            if found != [each.check.at] * each.cost:
                yield Violation("left behind", f"{len(found)} units in {key} of {each.check}")


# All at once


class _Place(NamedTuple):
    """How far an order has come. Operations are known by their numbers in order of their calls."""

    world: World
    first: int
    """All before it have taken effect."""
    beyond: frozenset[int]
    """Those after it that have."""


def _without_order(history: History) -> Iterator[Violation]:
    """Nothing, if there is an order of all operations that explains every reply."""
    operations = sorted(history.operations, key=lambda operation: operation.invoked)
    furthest, most = _Place(World(), 0, frozenset()), -1
    ways, been = [furthest], set[_Place]()
    while ways:
        place = ways.pop()
        if place in been:
            continue
        been.add(place)
        if place.first + len(place.beyond) > most:
            furthest, most = place, place.first + len(place.beyond)
        if most == len(operations):
            return
        ways.extend(_ways_on(place, operations))
    yield Violation("no order", _why_stuck(furthest, operations))


def _ways_on(place: _Place, operations: Sequence[Operation]) -> Iterator[_Place]:
    """The most likely one last: of checks, the earliest; refunds only when no check can be explained without them."""
    for number in sorted(_next(place, operations), key=lambda number: _instant_of(operations[number]), reverse=True):
        operation = operations[number]
        if operation.reply and operation.at < place.world.now - TREMBLE:
            continue
        reply, world = place.world.after(operation)
        if reply == operation.reply:
            yield _moved_on(world, place, number)


def _next(place: _Place, operations: Sequence[Operation]) -> Iterator[int]:
    """Those that have not taken effect, and of which none had returned before they were called."""
    returned = FOR_EVER
    for number in range(place.first, len(operations)):
        if operations[number].invoked > returned:
            return
        if number not in place.beyond:
            returned = min(returned, operations[number].returned)
            yield number


def _instant_of(operation: Operation) -> int:
    return operation.at if operation.reply else FOR_EVER


def _moved_on(world: World, place: _Place, number: int) -> _Place:
    first, beyond = place.first, place.beyond | {number}
    while first in beyond:
        beyond -= {first}
        first += 1
    return _Place(world, first, beyond)


def _why_stuck(place: _Place, operations: Sequence[Operation]) -> str:
    """What may stand next, and why it cannot."""
    lines = [f"after {place.first} operations at {place.world.now}"]
    for number in sorted(_next(place, operations), key=lambda number: _instant_of(operations[number])):
        operation = operations[number]
        expected, _ = place.world.after(operation)
        why = f"should have been {list(expected)}" if expected != operation.reply else "goes back, or leads nowhere"
        lines.append(f"{operation} between {operation.invoked} and {operation.returned} {why}")
    return "\n".join(lines)
