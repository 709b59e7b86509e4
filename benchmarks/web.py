"""Requests a second through gunicorn: two synchronous workers, the limits on a server over TCP.

All apps run all the time, and one of them is loaded at a time, in turn. Its requests are compared with those of the
bare view in the same round. The load comes from wrk if it is installed, otherwise from threads of this process, which
take more of the processor from the workers.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

from .contenders import OURS
from .environment import ROOT
from .measure import Variant
from .results import Figure, median_of
from .setting import Setting

from support.processes import ADDRESS, Program  # isort: skip - part of the tests

PART = "web"
WORKERS = 2
CLIENTS = 4
BARE = Variant("bare view", "admitted")
APPS = {
    BARE: "bare()",
    Variant("bare view, after a PING through redis-py", "admitted"): "pinging()",
    Variant("bare view that calls abort(429)", "refused"): "aborting()",
    Variant(OURS, "admitted"): "ours()",
    Variant("Flask-Limiter, with header fields", "admitted"): "theirs()",
    Variant("Flask-Limiter, without", "admitted"): "theirs(fields=False)",
    Variant("the bridge from it, with header fields", "admitted"): "bridge()",
    Variant("the bridge from it, without", "admitted"): "bridge(fields=False)",
    Variant(OURS, "refused"): "ours(refusing=True)",
    Variant("Flask-Limiter, with header fields", "refused"): "theirs(refusing=True)",
    Variant("the bridge from it, with header fields", "refused"): "bridge(refusing=True)",
}


class Load(NamedTuple):
    requests: int
    refused: int
    seconds: float


def loader() -> str:
    return "wrk" if shutil.which("wrk") else "threads of Python"


def measure(setting: Setting) -> Iterator[Figure]:
    put = _by_wrk if loader() == "wrk" else _by_threads
    seconds = 1 if setting.quick else 2
    with ExitStack() as stack:
        served = {variant: stack.enter_context(_served(app, stack, setting)) for variant, app in APPS.items()}
        for program in served.values():
            program.get_all(["/"] * CLIENTS)  # until workers are there
        rates: dict[Variant, list[float]] = {variant: [] for variant in APPS}
        for number in range(setting.rounds(8) + 1):
            for variant, program in served.items():
                load = put(_port(program), seconds)
                _check_statuses(variant, load)
                if number:  # the first round loads code, opens connections and lets processes learn of refusals
                    rates[variant].append(load.requests / load.seconds)
    for (who, case), each in rates.items():
        shares = [ours / bare for ours, bare in zip(each, rates[BARE], strict=True)]
        yield median_of(PART, who, case, "requests a second", each)
        yield median_of(PART, who, case, "share of the bare view", shares)


def _served(app: str, stack: ExitStack, setting: Setting) -> Program:
    """The running app, with a server of its own: idle servers cost nothing, and apps share no keys."""
    server = stack.enter_context(setting.server())
    return Program(
        *("gunicorn", "--chdir", str(ROOT), "--bind", "127.0.0.1:0", "--workers", str(WORKERS)),
        f"benchmarks.apps:{app}",
        environment={"STORAGE_URI": server.tcp_url},
    )


def _port(program: Program) -> int:
    found = ADDRESS.search(program.log)
    assert found is not None
    return int(found[1])


def _check_statuses(variant: Variant, load: Load) -> None:
    """Raise an error unless all requests but the first ones are refused, or none is."""
    wrong = load.requests - load.refused - WORKERS if variant.case == "refused" else load.refused
    if wrong > 0 or not load.requests:
        raise RuntimeError(f"{variant}: of {load.requests} requests {load.refused} were refused")


def _by_wrk(port: int, seconds: int) -> Load:
    command = ["wrk", "--threads", "1", "--connections", str(CLIENTS), "--duration", f"{seconds}s"]
    text = subprocess.run([*command, f"http://127.0.0.1:{port}/"], capture_output=True, text=True, check=True).stdout
    requests = re.search(r"(\d+) requests in", text)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    if requests is None or rate is None:
        raise RuntimeError(f"wrk does not say how many requests it made:\n{text}")
    return Load(int(requests[1]), int(refused[1]) if refused else 0, int(requests[1]) / float(rate[1]))


def _by_threads(port: int, seconds: int) -> Load:
    statuses: list[bytes] = []
    start = time.monotonic()

    def keep_asking() -> None:
        while time.monotonic() < start + seconds:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                statuses.append(connection.recv(64)[9:12])
                while connection.recv(65536):
                    pass

    threads = [threading.Thread(target=keep_asking) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Load(len(statuses), sum(status != b"200" for status in statuses), time.monotonic() - start)
