"""ReleaseBatcher: slots that several threads release at once go out together."""

import threading
from collections.abc import Sequence
from contextlib import suppress

import pytest

from flask_multilimit.engine import Concurrent, StorageError, hits_for
from flask_multilimit.engine.storage import Slot
from flask_multilimit.engine.storage.redis.storage import ReleaseBatcher
from support.waiting import SECONDS, until

(HIT,) = hits_for(Concurrent(9), scope="reports")
SLOTS = [Slot(bytes([n]) * 16, HIT) for n in range(4)]


class Interrupted(BaseException):
    """Raised in one thread while it waits."""


class Server:
    """Answers the first release when ``may_answer`` is set, and raises ``then``, if given, for those afterwards."""

    def __init__(self, *, then: BaseException | None = None) -> None:
        self.together = ReleaseBatcher()
        self.asked: list[list[Slot]] = []
        self.lost: list[Slot] = []
        self.then = then
        self.may_answer = threading.Event()

    def release(self, slots: Sequence[Slot]) -> None:
        self.asked.append(list(slots))
        if len(self.asked) == 1:
            assert self.may_answer.wait(SECONDS)
        elif self.then is not None:
            raise self.then

    def give_back(self, slot: Slot) -> None:
        with suppress(Interrupted):
            self.together.release([slot], lambda _: self.lost.append(slot), self.release)

    def give_back_all(self) -> None:
        """The others come while the first waits for its answer."""
        threads = [threading.Thread(target=self.give_back, args=(slot,)) for slot in SLOTS]
        threads[0].start()
        until(lambda: self.asked)
        for thread in threads[1:]:
            thread.start()
        until(lambda: len(self.together._queue) == len(SLOTS) - 1)
        self.may_answer.set()
        for thread in threads:
            thread.join(SECONDS)


def test_releases_made_during_a_command_are_sent_together_in_the_next() -> None:
    server = Server()

    server.give_back_all()

    first, others = server.asked
    assert first == SLOTS[:1]
    assert sorted(others) == SLOTS[1:]
    assert server.lost == []


@pytest.mark.parametrize("error", [StorageError("away"), Interrupted()], ids=repr)
def test_each_lost_slot_is_reported_once_by_its_own_callback(error: BaseException) -> None:
    """Also if the thread that releases those of others is interrupted, as by ``gevent.Timeout``."""
    server = Server(then=error)
    server.give_back_all()
    assert sorted(server.lost) == SLOTS[1:]
