"""A server that announces more than it ever sends, or sends without end, costs neither much time nor much memory."""

from __future__ import annotations

import contextlib
import resource
import socketserver
import threading
import time
from typing import TYPE_CHECKING

import pytest

from flask_multilimit.engine import Concurrent, Hit, Limiter, RedisStorage, StorageError
from flask_multilimit.engine.storage import Slot
from support.bench import hits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.servers import Server

PATIENCE = 5.0
"""Seconds, on a machine that is busy with other things; what is announced would take longer to be let go."""
MEGABYTES = 200
LONG = {
    "an array": b"*2147483647\r\n",
    "an array in another": b"*5\r\n:1\r\n*2147483647\r\n",
    "text": b"$2147483647\r\n",
}


class Announcer(socketserver.ThreadingTCPServer):
    """Answers with ``reply``, in one piece or byte by byte, and goes on with ``more`` for ever; before the first check
    as it ought to, if it is ``polite``."""

    daemon_threads = True
    reply = more = b""
    polite = by_byte = False


class Announcement(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        server = self.server
        assert isinstance(server, Announcer)
        with contextlib.suppress(OSError):
            while asked := self.request.recv(65536):
                if server.polite and b"EVAL" not in asked:
                    self.request.sendall(b"+OK\r\n" * asked.count(b"CLIENT"))
                    continue
                for piece in [bytes([byte]) for byte in server.reply] if server.by_byte else [server.reply]:
                    self.request.sendall(piece)
                    time.sleep(0.001 if server.by_byte else 0)
                while server.more:
                    self.request.sendall(server.more)


@pytest.fixture
def announcer() -> Iterator[Announcer]:
    with Announcer(("127.0.0.1", 0), Announcement) as announcer:
        thread = threading.Thread(target=announcer.serve_forever, args=(0.01,))
        thread.start()
        yield announcer
        announcer.more = b""
        announcer.shutdown()
        thread.join()


@contextlib.contextmanager
def costing_little() -> Iterator[None]:
    before, start = megabytes(), time.monotonic()
    with pytest.raises(StorageError):
        yield
    assert time.monotonic() - start < PATIENCE
    assert megabytes() - before < MEGABYTES


@pytest.mark.parametrize("polite", [False, True], ids=["at once", "when asked for a check"])
@pytest.mark.parametrize("more", [b"", b":1\r\n" * 20_000], ids=["then nothing", "then without end"])
@pytest.mark.parametrize("by_byte", [False, True], ids=["in one piece", "by byte"])
@pytest.mark.parametrize("reply", LONG.values(), ids=LONG)
def test_a_reply_that_is_announced_as_huge_costs_a_check_little(
    announcer: Announcer, reply: bytes, more: bytes, by_byte: bool, polite: bool
) -> None:
    announcer.reply, announcer.more, announcer.by_byte, announcer.polite = reply, more, by_byte, polite
    storage = storage_at(announcer)

    with costing_little():
        Limiter(storage).check(hits())
    storage.close()


def check_after_releases(storage: RedisStorage) -> None:
    taken = Slot(bytes(16), Hit("{s}:slots", Concurrent(5)))
    for _ in range(2):
        storage.release([taken], lambda _: None)
    Limiter(storage).check(hits())


OTHER_QUESTIONS = {
    "a check after releases": (b":1\r\n:1\r\n", check_after_releases),
    "many checks": (b"", lambda storage: storage.check_many([hits()])),
    "a script": (b"", lambda storage: storage.run_script("return 1", ["{control}"], [])),
}
"""Each with what the server answers before it lies."""


@pytest.mark.parametrize("by_byte", [False, True], ids=["in one piece", "by byte"])
@pytest.mark.parametrize("reply", LONG.values(), ids=LONG)
@pytest.mark.parametrize("question", OTHER_QUESTIONS)
def test_a_reply_that_is_announced_as_huge_costs_any_question_little(
    announcer: Announcer, reply: bytes, by_byte: bool, question: str
) -> None:
    before, ask = OTHER_QUESTIONS[question]
    announcer.reply, announcer.by_byte, announcer.polite = before + reply, by_byte, True
    storage = storage_at(announcer)

    with costing_little():
        ask(storage)
    storage.close()


def storage_at(announcer: Announcer) -> RedisStorage:
    return RedisStorage.from_url(f"redis://127.0.0.1:{announcer.server_address[1]}", timeout=0.2)


@pytest.mark.parametrize("text", ["*1234567", "a\n*1234567", "*1234567\r\n" * 40_000], ids=lambda text: f"{text:.12}")
def test_a_text_may_hold_what_would_be_an_announcement_anywhere_else(server: Server, text: str) -> None:
    storage = RedisStorage.from_url(server.url, timeout=5)

    reply = storage.run_script("return {ARGV[1], 5}", ["{control}"], [text.encode()])
    storage.close()

    assert reply == [text.encode(), 5]


def megabytes() -> float:
    """At most, so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
