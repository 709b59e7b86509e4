"""An app behind gunicorn under load for a while, with disturbances, measured all the time."""

import contextlib
import itertools
import random
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression, median

import redis

from flask_multilimit.control.store import is_control
from flask_multilimit.observe.traffic.counts import is_traffic
from support.folders import TESTS
from support.processes import Program
from support.rates import RATES
from support.servers import Binary, Server
from support.waiting import PATIENCE

THREADS = 4
CLIENTS = 3
WINDOW = 1
"""Seconds of every rule of the app."""
REGULARS = 10
"""Clients that come again and again, and are refused."""
SAMPLE_SECONDS = 0.5
DISTURBANCES_A_MINUTE = 8
WARM_UP = 1 / 3
"""The part of the time in which caches fill and the allocator takes the memory that is needed."""
GONE_SECONDS = 2 * WINDOW + 5.0
"""Two windows, and the time a server may take to notice."""
MEGABYTE = 2**20
ESTABLISHED = "01"


@dataclass(frozen=True, slots=True)
class Sample:
    """What the app's process and the server use at one instant."""

    requests: int
    """Requests sent until then."""
    process: int
    """Bytes of memory of the app's process."""
    server: int
    """Bytes of memory of the server, as it counts them."""
    files: int
    """Open file descriptors of the app's process."""
    threads: int
    connections: int
    """Connections to the server, on the side of the app: the server may not have noticed yet that one is closed."""


@dataclass(slots=True)
class Soaked:
    """The results of a run."""

    samples: list[Sample] = field(default_factory=list)
    """After the warm-up."""
    statuses: Counter[int] = field(default_factory=Counter)
    disturbances: Counter[str] = field(default_factory=Counter)
    abandoned: int = 0
    """Requests whose client did not wait for the reply."""
    keys_left: int = 0
    """Keys of limits that are left after two windows without requests."""
    lasting_keys: int = 0
    """Keys of any kind that never expire."""

    def growth(self, what: str) -> float:
        """Growth in bytes per request, by least squares."""
        requests = [sample.requests for sample in self.samples]
        return linear_regression(requests, [getattr(sample, what) for sample in self.samples]).slope

    def most(self, what: str) -> int:
        return max(int(getattr(sample, what)) for sample in self.samples)

    def halves(self, what: str) -> tuple[float, float]:
        """The median of the first half of the samples, and of the second."""
        values = [getattr(sample, what) for sample in self.samples]
        middle = len(values) // 2
        return median(values[:middle]), median(values[middle:])


def soak(binary: Binary, seconds: float) -> Soaked:
    with Server(binary, tcp=True) as server:
        where = ("--chdir", str(TESTS / "faults"), "--bind", "127.0.0.1:0")
        arguments = (*where, "--worker-class", "gthread", "--threads", str(THREADS))
        limit = f"5 per {WINDOW} second"
        environment = {"STORAGE_URI": server.tcp_url, "LIMIT": limit, "ALGORITHMS": " ".join(RATES)}
        with Program("gunicorn", *arguments, "app:app", environment=environment) as program:
            return _Soak(server, program).run(seconds)


class _Soak:
    def __init__(self, server: Server, program: Program) -> None:
        self._server, self._program = server, program
        self._admin: redis.Redis = server.client()
        self._pid = int(program.get("/pid").text)
        self._seen = Soaked()
        self._sent = itertools.count()
        self._requests = 0
        self._over = threading.Event()

    def run(self, seconds: float) -> Soaked:
        clients = [threading.Thread(target=self._ask_until_over, args=(n,)) for n in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            self._watch(seconds)
        finally:
            self._over.set()
            for client in clients:
                client.join()
        self._wait_until_forgotten()
        assert int(self._program.get("/pid").text) == self._pid, "the worker has died, and another has replaced it"
        return self._seen

    def _watch(self, seconds: float) -> None:
        begin = time.monotonic()
        disturb = itertools.cycle([self._flush_scripts, self._kill_connections, self._flush_scripts, self._restart])
        next_disturbance = begin + 60 / DISTURBANCES_A_MINUTE
        while (now := time.monotonic()) < begin + seconds:
            if now > next_disturbance:
                next(disturb)()
                next_disturbance += 60 / DISTURBANCES_A_MINUTE
            time.sleep(SAMPLE_SECONDS)
            if now > begin + seconds * WARM_UP:
                self._seen.samples.append(self._sample())

    # Disturbances

    def _flush_scripts(self) -> None:
        self._seen.disturbances["SCRIPT FLUSH"] += 1
        self._admin.script_flush()

    def _kill_connections(self) -> None:
        self._seen.disturbances["CLIENT KILL"] += 1
        self._admin.client_kill_filter(_type="normal", skipme=True)

    def _restart(self) -> None:
        self._seen.disturbances["restart"] += 1
        self._server.restart()
        self._admin = self._server.client()

    # Load

    def _ask_until_over(self, number: int) -> None:
        dice = random.Random(number)
        while not self._over.is_set():
            self._requests = next(self._sent)
            who = f"regular-{dice.randrange(REGULARS)}" if dice.random() < 0.2 else f"new-{dice.getrandbits(64)}"
            if dice.random() < 0.02:
                self._abandon(who)
            else:
                self._seen.statuses[self._program.get(f"/?who={who}").status] += 1

    def _abandon(self, who: str) -> None:
        self._seen.abandoned += 1
        with socket.create_connection(("127.0.0.1", self._program.port), timeout=PATIENCE) as connection:
            connection.sendall(f"GET /?who={who} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    # Measuring

    def _sample(self) -> Sample:
        status = dict(line.split(":", 1) for line in self._proc("status").read_text().splitlines())
        return Sample(
            self._requests,
            int(status["VmRSS"].split()[0]) * 1024,
            self._admin.info("memory")["used_memory"],
            len(list(self._proc("fd").iterdir())),
            int(status["Threads"]),
            self._connections(),
        )

    def _connections(self) -> int:
        """See proc(5) for the columns of the table. It lists sockets of all processes; inodes identify the app's."""
        rows = [row.split() for row in self._proc("net/tcp").read_text().splitlines()[1:]]
        server = f":{self._server.port:04X}"
        inodes = {row[9] for row in rows if row[2].endswith(server) and row[3] == ESTABLISHED}
        return len(inodes & self._inodes_of_sockets())

    def _inodes_of_sockets(self) -> set[str]:
        targets = []
        for file in self._proc("fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed since it was listed
                targets.append(str(file.readlink()))
        return {target[len("socket:[") : -1] for target in targets if target.startswith("socket:[")}

    def _proc(self, what: str) -> Path:
        return Path(f"/proc/{self._pid}/{what}")

    def _wait_until_forgotten(self) -> None:
        deadline = time.monotonic() + GONE_SECONDS
        while (left := self._keys_of_limits()) and time.monotonic() < deadline:
            time.sleep(0.05)
        self._seen.keys_left = left
        self._seen.lasting_keys = sum(self._admin.ttl(key) < 0 for key in self._admin.scan_iter())

    def _keys_of_limits(self) -> int:
        """Without keys of traffic, which stay for an hour, and of control, which stay while the worker runs."""
        return sum(not (is_traffic(key.decode()) or is_control(key.decode())) for key in self._admin.scan_iter())
