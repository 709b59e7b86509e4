"""A fault under load: gunicorn with two workers, a server behind it, and what its users see."""

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from faults.world import Fault, World, new_world
from support.processes import Program
from support.servers import Binary

HERE = Path(__file__).parent
LIMIT = 60
BEFORE = 20
"""Requests that the limit has admitted when the fault begins."""
CLIENTS = 4
PAUSE = 0.01
FAULT_SECONDS = 1.2
LONGEST_RECOVERY = 15.0
_names = itertools.count()


@dataclass(frozen=True, slots=True)
class Served:
    """One request."""

    start: float
    path: str
    status: int
    text: str
    seconds: float


@dataclass(slots=True)
class Seen:
    """What the users saw of one fault; times are of `time.monotonic`."""

    began: float = 0.0
    ended: float = 0.0
    all: list[Served] = field(default_factory=list)

    @property
    def statuses(self) -> set[int]:
        return {each.status for each in self.all}

    @property
    def slowest(self) -> list[float]:
        """Seconds that requests took during the fault; the longest first."""
        return sorted((each.seconds for each in self.all if self.began <= each.start <= self.ended), reverse=True)

    @property
    def admitted(self) -> int:
        return sum(each.status == 200 for each in self.all if each.path == "/")

    @property
    def recovery(self) -> float:
        """Seconds from the end of the fault to the last request that was not decided by the storage."""
        last = max((each.start for each in self.all if each.path == "/free" and each.text != "storage"), default=0)
        return max(last - self.ended, 0.0)

    @property
    def recovered(self) -> bool:
        return [each.text for each in self.all if each.path == "/free"][-1] == "storage"


@dataclass(frozen=True, slots=True)
class Service:
    world: World
    program: Program

    def suffer(self, fault: Fault, seconds: float = FAULT_SECONDS) -> Seen:
        """Let `fault` happen under load, and wait until it is over for all workers."""
        seen, who = Seen(), f"user-{next(_names)}"
        with ThreadPoolExecutor(CLIENTS) as first:  # many at once, so that both workers serve this client
            seen.all += first.map(lambda _: self._ask("/", who), range(BEFORE))
        stop = threading.Event()
        clients = [threading.Thread(target=self._keep_asking, args=(who, seen, stop)) for _ in range(CLIENTS)]
        seen.began = time.monotonic()
        fault.begin(self.world)
        for client in clients:
            client.start()
        try:
            time.sleep(seconds)
        finally:
            fault.end(self.world)
            seen.ended = time.monotonic()
            self._wait_for_recovery(seen)
            stop.set()
            for client in clients:
                client.join()
            self._wait_until_all_is_charged()
        return seen

    def _keep_asking(self, who: str, seen: Seen, stop: threading.Event) -> None:
        for path in itertools.cycle(("/", "/free", "/free")):
            if stop.is_set():
                return
            seen.all.append(self._ask(path, who))
            time.sleep(PAUSE)

    def _ask(self, path: str, who: str) -> Served:
        start = time.monotonic()
        reply = self.program.get(f"{path}?who={who}")
        return Served(start, path, reply.status, reply.text, time.monotonic() - start)

    @staticmethod
    def _wait_for_recovery(seen: Seen) -> None:
        """Wait until the storage has decided for a while in all workers."""
        deadline = time.monotonic() + LONGEST_RECOVERY
        while time.monotonic() < deadline:
            time.sleep(0.1)
            now = time.monotonic()
            if now - seen.ended > 0.6 and not any(
                each.text != "storage" for each in seen.all if each.path == "/free" and each.start > now - 0.5
            ):
                return

    def _wait_until_all_is_charged(self) -> None:
        """Wait until the outage is over for each worker, or the next fault would belong to it."""
        deadline = time.monotonic() + LONGEST_RECOVERY
        while time.monotonic() < deadline:
            log = self.program.log
            if log.count("storage failed (key") <= log.count("the storage is back after"):
                return
            time.sleep(0.1)


@contextlib.contextmanager
def serving(binary: Binary, *, app: str = "app:app", folder: Path = HERE, policy: str = "local") -> Iterator[Service]:
    """``app`` in ``folder`` behind gunicorn, with its storage behind the proxy."""
    with new_world(binary) as world:
        arguments = ("--bind", "127.0.0.1:0", "--workers", "2", "--worker-class", "gthread", "--threads", "4")
        environment = {"STORAGE_URI": world.proxy.url, "ON_STORAGE_ERROR": policy, "LIMIT": f"{LIMIT}/minute"}
        with Program("gunicorn", "--chdir", str(folder), *arguments, app, environment=environment) as program:
            while len({reply.text for reply in program.get_all(["/pid"] * 8)}) < 2:
                time.sleep(0.05)  # until both workers have started
            yield Service(world, program)
