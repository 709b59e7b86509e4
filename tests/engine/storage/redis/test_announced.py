"""A server that announces more than it will ever send, or never ceases to send, takes neither much time nor memory."""

from __future__ import annotations

import contextlib
import resource
import socketserver
import threading
import time
from typing import TYPE_CHECKING

import pytest

from flask_multilimit.engine import Limiter, RedisStorage, StorageError, storage_from_uri
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


@pytest.mark.parametrize("polite", [False, True], ids=["at once", "when asked for a check"])
@pytest.mark.parametrize("more", [b"", b":1\r\n" * 20_000], ids=["then nothing", "then without end"])
@pytest.mark.parametrize("by_byte", [False, True], ids=["in one piece", "by byte"])
@pytest.mark.parametrize("reply", LONG.values(), ids=LONG)
def test_what_is_announced_costs_no_more_than_the_time_there_is(
    announcer: Announcer, reply: bytes, more: bytes, by_byte: bool, polite: bool
) -> None:
    announcer.reply, announcer.more, announcer.by_byte, announcer.polite = reply, more, by_byte, polite
    limiter = Limiter(storage_from_uri(f"redis://127.0.0.1:{announcer.server_address[1]}", timeout=0.2))
    before, start = megabytes(), time.monotonic()

    with pytest.raises(StorageError):
        limiter.check(hits())
    limiter.close()

    assert time.monotonic() - start < PATIENCE
    assert megabytes() - before < MEGABYTES


@pytest.mark.parametrize("by_byte", [False, True], ids=["in one piece", "by byte"])
@pytest.mark.parametrize("reply", LONG.values(), ids=LONG)
def test_neither_does_what_is_announced_in_answer_to_many_checks(
    announcer: Announcer, reply: bytes, by_byte: bool
) -> None:
    announcer.reply, announcer.by_byte, announcer.polite = b"+loaded\r\n" + reply, by_byte, True
    limiter = Limiter(storage_from_uri(f"redis://127.0.0.1:{announcer.server_address[1]}", timeout=0.2))
    before, start = megabytes(), time.monotonic()

    with pytest.raises(StorageError):
        limiter.check_many([hits()])
    limiter.close()

    assert time.monotonic() - start < PATIENCE
    assert megabytes() - before < MEGABYTES


@pytest.mark.parametrize("by_byte", [False, True], ids=["in one piece", "by byte"])
@pytest.mark.parametrize("polite", [False, True], ids=["at once", "when asked for the document"])
@pytest.mark.parametrize("reply", LONG.values(), ids=LONG)
def test_neither_does_what_is_announced_in_answer_to_a_script_without_a_deadline(
    announcer: Announcer, reply: bytes, polite: bool, by_byte: bool
) -> None:
    announcer.reply, announcer.by_byte, announcer.polite = reply, by_byte, polite
    storage = RedisStorage.from_url(f"redis://127.0.0.1:{announcer.server_address[1]}", timeout=0.2)
    before, start = megabytes(), time.monotonic()

    with pytest.raises(StorageError):
        storage.run_script("return 1", ["{control}"], [])
    storage.close()

    assert time.monotonic() - start < PATIENCE
    assert megabytes() - before < MEGABYTES


@pytest.mark.parametrize("text", ["*1234567", "a\n*1234567", "*1234567\r\n" * 40_000], ids=lambda text: f"{text:.12}")
def test_a_text_may_hold_what_would_be_an_announcement_anywhere_else(server: Server, text: str) -> None:
    storage = RedisStorage.from_url(server.url, timeout=5)

    reply = storage.run_script("return {ARGV[1], 5}", ["{control}"], [text.encode()])
    storage.close()

    assert reply == [text.encode(), 5]


def megabytes() -> float:
    """At most, so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
