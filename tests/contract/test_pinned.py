"""Keys in storage, commands to a server and its replies, byte for byte: a change would break what is stored."""

from collections.abc import Iterator
from contextlib import closing
from uuid import UUID

import pytest

from flask_multilimit.engine import Rule, hits_for
from flask_multilimit.engine.algorithms import SLIDING
from support.bench import Bench, bare, hits
from support.clock import SECOND
from support.liar import Liar
from support.rates import RATES

NOW = 1_750_000_003_141_592

THREE = hits_for(
    [Rule(10, 5), Rule(60, 100, algorithm="fixed_window"), Rule(1.5, 3, algorithm="gcra", burst=2)],
    scope="api.update",
    subject="ip:203.0.113.7",
)
KEYS = (
    "rate_limit:{api.update}:ip:203.0.113.7:sliding_window:10000",
    "rate_limit:{api.update}:ip:203.0.113.7:fixed_window:60000",
    "rate_limit:{api.update}:ip:203.0.113.7:gcra:1500",
)


def test_keys_of_each_algorithm_are_unchanged() -> None:
    assert tuple(hit.key for hit in THREE) == KEYS
    for name in RATES:
        (hit,) = hits_for(Rule(2, 3, algorithm=name), scope="mail out", subject="user:ada:1", prefix="x:")
        assert hit.key == f"x:{{mail%20out}}:user:ada%3A1:{name}:2000"
    (tagged,) = hits_for(Rule(2, 3), scope="mail", subject="user:ada", hash_tag="subject")
    assert tagged.key == "rate_limit:mail:user:{ada}:sliding_window:2000"


class Recorder(Liar):
    """A server that keeps each command, and answers as if all quotas were untouched."""

    def __init__(self) -> None:
        super().__init__(lambda data: map(self._answer, commands_in(data)))
        self.commands: list[bytes] = []

    def _answer(self, command: list[bytes]) -> bytes:
        name = command[0].upper()
        if name == b"UNLINK":
            self.commands.append(b" ".join(command))
            return b":1\r\n"
        if name not in {b"EVAL", b"EVALSHA"}:  # the greeting of a client
            return b"+OK\r\n"
        script = b"TEXT" if name == b"EVAL" else b"SHA"
        self.commands.append(b"|".join([name, script, *command[2:]]))
        numbers = [NOW, 1, 0, *[9, 0, 7] * int(command[2])]
        return b"*%d\r\n" % len(numbers) + b"".join(b":%d\r\n" % number for number in numbers)


def commands_in(data: bytes) -> Iterator[list[bytes]]:
    """The commands in ``data``, which arrive in one piece on this machine."""
    while data:
        head, _, data = data.partition(b"\r\n")
        command = []
        for _ in range(int(head[1:])):
            length, _, data = data.partition(b"\r\n")
            command.append(data[: int(length[1:])])
            data = data[int(length[1:]) + 2 :]
        yield command


PACKED = b"".join(
    [
        bytes.fromhex(
            "00000000d0126341 0000000000001440 000000000000f03f 0000000000001440 0000000000000000 0000000000000000"
        ),
        b"sliding_window\0",
        bytes.fromhex(
            "00000000389c8c41 0000000000005940 000000000000f03f 0000000000005940 0000000000000000 0000000000000000"
        ),
        b"fixed_window\0",
        bytes.fromhex(
            "0000000060e33641 0000000000000840 000000000000f03f 0000000000000040 0000000000000000 0000000000000000"
        ),
        b"gcra\0",
    ]
)
CALLED = b"|".join([b"EVALSHA|SHA|3", *[key.encode() for key in KEYS], PACKED])


def test_bytes_of_each_command_are_unchanged() -> None:
    with Recorder() as recorder, closing(bare(recorder.url, timeout=10)) as limiter:
        decision = limiter.check(THREE)
        limiter.peek(THREE)
        limiter.check(THREE, check_id=UUID(int=1))
        many = limiter.check_many([THREE, THREE])
        limiter.refund(decision)
        limiter.reset(THREE)

    settled = b"|".join([b"%d|0" % (NOW + 7)] * 3)
    assert recorder.commands == [
        CALLED + b"|" + decision.check_id,
        CALLED + b"|" + bytes(16) + b"|peek|",
        CALLED + b"|" + UUID(int=1).bytes + b"|repeat|",
        CALLED.replace(b"EVALSHA|SHA", b"EVAL|TEXT") + b"|" + many[0].check_id + b"|",
        CALLED + b"|" + many[1].check_id + b"|",
        CALLED + b"|" + decision.check_id + b"|||" + settled,
        b"UNLINK " + b" ".join(key.encode() for key in KEYS),
    ]


WINDOW = 10 * SECOND
TIMES: dict[str, tuple[list[int], int]] = {
    "sliding_window": ([WINDOW] * 3, WINDOW),
    "fixed_window": ([WINDOW] * 3, WINDOW),
    "sliding_window_counter": ([2 * WINDOW] * 3, WINDOW + WINDOW // 2),
    **dict.fromkeys(("token_bucket", "leaky_bucket", "gcra"), ([WINDOW // 2, WINDOW, WINDOW], WINDOW // 2)),
}
"""By algorithm, for three requests at once and a quota of 2 units in 10 s: the time until the quota is full after each,
and the wait of the third, which is refused."""


@pytest.mark.parametrize("algorithm", TIMES)
def test_reply_of_each_algorithm_is_unchanged(bench: Bench, algorithm: str) -> None:
    start, burst = bench.clock.now, 2 if algorithm in {"gcra", "token_bucket", "leaky_bucket"} else None
    both = hits([Rule(10, 2, algorithm=algorithm, burst=burst), Rule(100, 9)])

    replies = [list(ask(both).reply) for ask in (bench.limiter.check, bench.limiter.check, bench.limiter.check)]

    resets, wait = TIMES[algorithm]
    assert replies == [
        [start, 1, 0, 1, 0, resets[0], 8, 0, 100 * SECOND],
        [start, 1, 0, -wait if algorithm in SLIDING else 0, 0, resets[1], 7, 0, 100 * SECOND],
        [start, 0, 0, 0, wait, resets[2], 7, 0, 100 * SECOND],
    ]


def test_reply_of_a_queue_has_its_delay_also_in_a_refusal(bench: Bench) -> None:
    queue = Rule(10, 10, algorithm="leaky_bucket", max_delay=2)
    both = hits([queue, Rule(100, 2)])
    replies = [list(bench.limiter.check(both).reply)[1:4] for _ in range(3)]
    assert replies == [[1, 0, 2], [1, SECOND, 1], [0, 2 * SECOND, 1]]
