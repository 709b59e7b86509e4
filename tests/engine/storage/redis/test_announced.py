"""A server that announces huge replies, or sends without end, costs neither much time nor much memory."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator

import pytest

from flask_multilimit.engine import Concurrent, Hit, Limiter, RedisStorage, StorageError
from flask_multilimit.engine.storage import Slot
from support.bench import hits
from support.liar import Liar
from support.servers import Server

PATIENCE = 5.0
"""Seconds, on a busy machine. To free the memory of an announced reply would take longer."""
MEGABYTES = 400
"""A fast machine sends half of it before the client gives up; memory for all that is announced is at least 2,000."""
LONG = {
    "an array": b"*2147483647\r\n",
    "an array in another": b"*5\r\n:1\r\n*2147483647\r\n",
    "text": b"$2147483647\r\n",
}


def announcing(reply: bytes, more: bytes = b"", *, by_byte: bool, polite: bool) -> Liar:
    """Answers with ``reply``, in one piece or byte by byte, and goes on with ``more`` for ever. If it is ``polite``, it
    answers correctly before the first check."""

    def answer(asked: bytes) -> Iterator[bytes]:
        if polite and b"EVAL" not in asked:
            yield b"+OK\r\n" * asked.count(b"CLIENT")
            return
        for piece in [bytes([byte]) for byte in reply] if by_byte else [reply]:
            yield piece
            time.sleep(0.001 if by_byte else 0)
        while more:
            yield more

    return Liar(answer)


@contextlib.contextmanager
def failing_cheaply() -> Iterator[None]:
    before, start = megabytes(), time.monotonic()
    with pytest.raises(StorageError):
        yield
    assert time.monotonic() - start < PATIENCE
    assert megabytes() - before < MEGABYTES


@pytest.mark.parametrize("polite", [False, True], ids=["at once", "when asked for a check"])
@pytest.mark.parametrize("more", [b"", b":1\r\n" * 20_000], ids=["then nothing", "then without end"])
@pytest.mark.parametrize("by_byte", [False, True], ids=["in one piece", "by byte"])
@pytest.mark.parametrize("reply", LONG.values(), ids=LONG)
def test_reply_announced_as_huge_fails_a_check_soon_and_with_little_memory(
    reply: bytes, more: bytes, by_byte: bool, polite: bool
) -> None:
    with announcing(reply, more, by_byte=by_byte, polite=polite) as liar, failing_cheaply():
        Limiter(storage_at(liar)).check(hits())


def check_after_releases(storage: RedisStorage) -> None:
    taken = Slot(bytes(16), Hit("{s}:slots", Concurrent(5)))
    for _ in range(2):
        storage.release([taken], lambda _: None)
    Limiter(storage).check(hits())


OTHER_COMMANDS = {
    "a check after releases": (b":1\r\n:1\r\n", check_after_releases),
    "many checks": (b"", lambda storage: storage.check_many([hits()])),
    "a script": (b"", lambda storage: storage.run_script("return 1", ["{control}"], [])),
}
"""Each with the correct answers of the server before the huge one."""


@pytest.mark.parametrize("by_byte", [False, True], ids=["in one piece", "by byte"])
@pytest.mark.parametrize("reply", LONG.values(), ids=LONG)
@pytest.mark.parametrize("command", OTHER_COMMANDS)
def test_reply_announced_as_huge_fails_any_command_soon_and_with_little_memory(
    reply: bytes, by_byte: bool, command: str
) -> None:
    before, ask = OTHER_COMMANDS[command]
    with announcing(before + reply, by_byte=by_byte, polite=True) as liar, failing_cheaply():
        ask(storage_at(liar))


def storage_at(liar: Liar) -> RedisStorage:
    return RedisStorage.from_url(liar.url, timeout=0.2)


@pytest.mark.parametrize("text", ["*1234567", "a\n*1234567", "*1234567\r\n" * 40_000], ids=lambda text: f"{text:.12}")
def test_text_that_looks_like_an_announced_array_is_read_as_text(server: Server, text: str) -> None:
    storage = RedisStorage.from_url(server.url, timeout=5)

    reply = storage.run_script("return {ARGV[1], 5}", ["{control}"], [text.encode()])
    storage.close()

    assert reply == [text.encode(), 5]


def megabytes() -> float:
    """The most memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
