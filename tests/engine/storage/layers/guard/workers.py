"""Workers around one storage that can be made to fail."""

import functools
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from flask_multilimit.engine import (
    Concurrent,
    Decision,
    GuardedStorage,
    Health,
    Hit,
    Limiter,
    MemoryStorage,
    StorageError,
)
from flask_multilimit.engine.decision import FALLBACKS
from flask_multilimit.engine.hits import OnStorageError
from flask_multilimit.engine.slots import slots_of
from support.bench import hits
from support.clock import Clock
from support.waiting import until

SECONDS = 300
"""That a child may take: then it is stuck."""


def lost_reply(check_id: UUID | None = None) -> StorageError:
    """The error of a check that may have been charged."""
    return StorageError("the reply was lost", no_reply=True, check_id=check_id)


def loses_the_first_reply(storage: MemoryStorage, method: str) -> list[tuple[Any, ...]]:
    """The first call of ``method`` takes effect and raises. Returns the arguments of its calls, as they are made."""
    ask, calls = getattr(storage, method), list[tuple[Any, ...]]()

    def lose(*arguments: Any) -> Any:
        calls.append(arguments)
        answer = ask(*arguments)
        if len(calls) == 1:
            error = lost_reply()
            error.check_ids = [decision.id for decision in answer] if method == "check_many" else ()
            raise error
        return answer

    setattr(storage, method, lose)
    return calls


def fails_first(storage: MemoryStorage, method: str, *errors: StorageError | None) -> list[tuple[Any, ...]]:
    """The first calls of ``method`` raise ``errors`` in place of taking effect; ``None``: this one takes effect.
    Returns the arguments of its calls, as they are made."""
    ask, left, calls = getattr(storage, method), list(errors), list[tuple[Any, ...]]()

    def fail(*arguments: Any) -> Any:
        calls.append(arguments)
        if left and (error := left.pop(0)) is not None:
            raise error
        return ask(*arguments)

    setattr(storage, method, fail)
    return calls


def exit_code_of_child(act: Callable[[], object], fork: Callable[[], int] = os.fork) -> int:
    """The exit code of a child that acts: 0 if it comes to an end."""
    child = fork()
    if child == 0:
        signal.alarm(SECONDS)
        try:
            act()
            os._exit(0)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Shared(MemoryStorage):
    """The storage of all workers. If `error` is set, it is raised in place of every answer."""

    shared = True

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.error: StorageError | None = None
        self.loses_replies = False
        self.stumbles = 0
        self.asked: list[int] = []
        """The thread of each check."""
        self.takes_charges = threading.Event()
        """Until it is set, the guards wait for an answer to what they charge."""
        self.takes_charges.set()
        for name in ("peek", "settle", "release", "renew"):
            setattr(self, name, functools.partial(self._ask, getattr(self, name)))

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        self.asked.append(threading.get_ident())
        decision: Decision = self._ask(super().check, hits, check_id)
        if self.loses_replies or self.stumbles:
            self.stumbles = max(self.stumbles - 1, 0)
            raise lost_reply(decision.id)
        return decision

    def check_many(self, many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        assert self.takes_charges.wait(SECONDS)
        return super().check_many(many, ids)

    def _ask(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        if self.error is not None:
            raise self.error
        return ask(*arguments)


class Workers:
    """The guards of ``many`` processes around one storage, under one clock of the test."""

    def __init__(self, many: int, on_error: OnStorageError = "local") -> None:
        self.clock = Clock()
        self.storage = Shared(self.clock)
        self.changes: list[Health] = []
        self.limiters = [
            Limiter(
                GuardedStorage(
                    self.storage, on_error=on_error, workers=many, on_change=self.changes.append, clock=self.clock
                )
            )
            for _ in range(many)
        ]

    @property
    def limiter(self) -> Limiter:
        """The limiter of the first worker."""
        return self.limiters[0]

    def break_down(self) -> None:
        self.storage.error = StorageError("it is broken")

    def half_open(self) -> None:
        """The storage answers the first worker again, but does not take charges yet."""
        self.storage.takes_charges.clear()
        self.storage.error = None
        other = hits("100000/minute", subject="bob")
        until(lambda: self.limiter.check(other).decided_by not in FALLBACKS)

    def mend(self) -> None:
        self.storage.error = None
        self.storage.loses_replies = False
        self.storage.takes_charges.set()
        until(lambda: all(limiter.health().state == "working" for limiter in self.limiters))
        # the end of the outage is logged
        until(lambda: all(not guard._outage.beat.running for guard in self._guards()))

    def close(self) -> None:
        self.storage.takes_charges.set()
        for limiter in self.limiters:
            limiter.close()

    def _guards(self) -> list[GuardedStorage]:
        return [guard for limiter in self.limiters if isinstance(guard := limiter._storage, GuardedStorage)]

    def admitted(self, plan: tuple[Hit, ...], tries: int = 40) -> list[int]:
        """How many of ``tries`` checks each worker admits, one worker after the other."""
        return [sum(limiter.check(plan).allowed for _ in range(tries)) for limiter in self.limiters]


FOUR = hits(Concurrent(4, 60))


class Work:
    """Slots of ``FOUR`` that the first worker holds, as its keeper does."""

    def __init__(self, workers: Workers, many: int) -> None:
        self.workers, self.limiter = workers, workers.limiter
        self.storage: Any = self.limiter.outermost
        self.held = [self.limiter.check(FOUR) for _ in range(many)]

    def goes_on(self, seconds: int) -> None:
        """Each slot is renewed every 20 seconds."""
        for _ in range(seconds // 20):
            self.workers.clock.advance(20)
            self.storage.renew([slot for decision in self.held for slot in slots_of(decision)])

    def ends(self) -> None:
        self.storage.release(slots_of(self.held.pop()))

    def in_use(self) -> int:
        """Slots that the storage counts as held."""
        return 4 - self.workers.storage.peek(FOUR).remaining


def begin_outage(workers: Workers) -> None:
    """The storage fails, and all workers notice."""
    workers.break_down()
    for limiter in workers.limiters:
        limiter.check(hits("100000/minute", subject="bob"))
