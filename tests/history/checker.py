"""Reads the history of a concurrent run, and says where it breaks the contract.

There must be one order of the operations, in which each takes effect between its call and its return and checks at
their recorded instants, so that one after the other gives exactly the recorded replies. (Wing and Gong, "Testing and
verifying concurrent objects", 1993: a search that backtracks.)

The instant of a refund is unknown: it took effect between its call and its return.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from history.model import World
from history.operations import Operation

FOR_EVER = 2**63
JITTER = 10_000
"""Microseconds by which the clock of a server may step back at any time, as that of Valkey 9.1 does when it is busy."""


def why_impossible(operations: Sequence[Operation]) -> str:
    """Why no order of ``operations`` explains every reply; empty if one does."""
    operations = sorted(operations, key=lambda operation: operation.invoked)
    furthest, most = _Position(World(), 0, frozenset()), -1
    positions, visited = [furthest], set[_Position]()
    while positions:
        position = positions.pop()
        if position in visited:
            continue
        visited.add(position)
        if position.first + len(position.beyond) > most:
            furthest, most = position, position.first + len(position.beyond)
        if most == len(operations):
            return ""
        positions.extend(_successors(position, operations))
    return _why_stuck(furthest, operations)


class _Position(NamedTuple):
    """How far an order has come. Operations are numbered in the order of their calls."""

    world: World
    first: int
    """All operations before it have taken effect."""
    beyond: frozenset[int]
    """The operations after it that have taken effect."""


def _successors(position: _Position, operations: Sequence[Operation]) -> Iterator[_Position]:
    """The most likely one last: of checks, the earliest; refunds only when no check can be explained without them."""
    for number in sorted(_next(position, operations), key=lambda number: _instant_of(operations[number]), reverse=True):
        operation = operations[number]
        if operation.reply and operation.at < position.world.now - JITTER:
            continue
        reply, world = position.world.after(operation)
        if reply == operation.reply:
            yield _moved_on(world, position, number)


def _next(position: _Position, operations: Sequence[Operation]) -> Iterator[int]:
    """The operations that may take effect next: no other that is still to come had returned before their call."""
    returned = FOR_EVER
    for number in range(position.first, len(operations)):
        if operations[number].invoked > returned:
            return
        if number not in position.beyond:
            returned = min(returned, operations[number].returned)
            yield number


def _instant_of(operation: Operation) -> int:
    return operation.at if operation.reply else FOR_EVER


def _moved_on(world: World, position: _Position, number: int) -> _Position:
    first, beyond = position.first, position.beyond | {number}
    while first in beyond:
        beyond -= {first}
        first += 1
    return _Position(world, first, beyond)


def _why_stuck(position: _Position, operations: Sequence[Operation]) -> str:
    """Which operations could be next, and why each cannot."""
    lines = [f"after {position.first} operations at {position.world.now}"]
    for number in sorted(_next(position, operations), key=lambda number: _instant_of(operations[number])):
        operation = operations[number]
        expected, _ = position.world.after(operation)
        why = f"should have been {list(expected)}" if expected != operation.reply else "goes back, or leads nowhere"
        lines.append(f"{operation} between {operation.invoked} and {operation.returned} {why}")
    return "\n".join(lines)
