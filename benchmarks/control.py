"""What changing limits while an app runs costs: `python -m benchmarks.control`.

With entries, a request looks its address up among the allowed and the denied ones. A document is loaded in the
background. A change is in force when the last of eight gunicorn workers has applied it.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flask import Flask

from flask_multilimit import MultiLimit
from flask_multilimit.control.document import document_from
from flask_multilimit.control.store import NEVER_WRITTEN, Change
from flask_multilimit.serve.gate import gate_of

from .environment import ROOT

from support.processes import Program  # isort: skip - part of the tests
from support.servers import Server, find_binaries  # isort: skip - part of the tests

BLOCKS, IN_BLOCK = 200, 500
LOADS = 7
WORKERS, CHANGES = 8, 40
APP = """
import os, time
from flask import Flask
from flask_multilimit import MultiLimit
from flask_multilimit.signals import control_changed
app = Flask(__name__)
app.config["MULTILIMIT_STORAGE_URI"] = os.environ["STORAGE_URI"]
MultiLimit(app)
app.get("/")(lambda: str(os.getpid()))
file = os.open(os.environ["TAKEN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def note(sender, **about):
    os.write(file, f"{os.getpid()} {time.time()}\\n".encode())
control_changed.connect(note)
"""


def entries(count: int) -> Iterator[dict[str, Any]]:
    dice = random.Random(1)
    for number in range(count):
        first = dice.getrandbits(32)
        text = ".".join(str(first >> shift & 255) for shift in (24, 16, 8, 0))
        who = f"2001:db8:{first >> 16:x}:{first & 0xFFFF:x}::/64" if number % 4 == 0 else f"{text}/{20 + number % 13}"
        kind = "allow" if number % 3 == 0 else "deny"
        yield {"id": f"{number:08x}", "since": 1.0, "kind": kind, "who": who, "reason": "benchmark"}


CHANGE: Change = {"at": 0, "author": "", "reason": "", "what": "set", "entry": "", "id": "", "replaces": ""}


def document_of(count: int) -> str:
    return json.dumps({"format": 1, "entries": list(entries(count))})


def made() -> Flask:
    app = Flask("benchmark")
    MultiLimit(app)
    app.add_url_rule("/", "view", lambda: "ok")
    app.test_client().get("/")
    return app


def a_request(count: int) -> tuple[float, float]:
    """Microseconds of CPU to look up one address: the median, and the slowest tenth."""
    app = made()
    gate_of(app).applier.take(document_from(document_of(count)))
    lists = gate_of(app).access
    blocks = []
    for _ in range(BLOCKS):
        begin = time.process_time()
        for _ in range(IN_BLOCK):
            if lists is not None:
                lists.of_address("198.51.100.7")
        blocks.append((time.process_time() - begin) / IN_BLOCK * 1e6)
    return statistics.median(blocks), sorted(blocks)[-BLOCKS // 10]


def a_load(count: int) -> float:
    """Seconds of CPU to turn the text into lists and plans in force, in an app that has just started."""
    text = document_of(count)
    taken = []
    for _ in range(LOADS):
        follower = gate_of(made()).applier.follower
        follower.store.write(NEVER_WRITTEN, text, CHANGE)
        gc.collect()  # the garbage of the previous app
        begin = time.process_time()
        follower.look()
        taken.append(time.process_time() - begin)
    return statistics.median(taken)


def in_force() -> list[float]:
    """Seconds from a change until the last worker has applied it."""
    with TemporaryDirectory() as folder, Server(next(iter(find_binaries().values())), tcp=True) as server:
        Path(folder, "followed.py").write_text(APP)
        taken = Path(folder, "taken")
        environment = {"STORAGE_URI": server.tcp_url, "TAKEN": str(taken), "PYTHONPATH": f"{folder}:{ROOT}"}
        app = Flask("changing")
        app.config["MULTILIMIT_STORAGE_URI"] = server.tcp_url
        control = MultiLimit(app)
        options = ("-b", "127.0.0.1:0", "-w", str(WORKERS), "followed:app")
        with Program("gunicorn", *options, environment=environment) as program, app.app_context():
            serving: set[str] = set()
            while len(serving) < WORKERS:
                serving |= {reply.text for reply in program.get_all(["/"] * 4 * WORKERS)}
            found = []
            for number in range(CHANGES):
                taken.write_text("")
                begin = time.time()
                control.control.deny(f"192.0.2.{number}", lasting=True)
                found.append(until_all(taken) - begin)
        return found


def until_all(taken: Path) -> float:
    """When the last worker has applied a change."""
    while True:
        lines = [line.split() for line in taken.read_text().splitlines()]
        if len({pid for pid, *_ in lines}) == WORKERS:
            return max(float(at) for _, at in lines)
        time.sleep(0.01)


def main() -> None:
    for count in (0, 100, 10_000):
        median, slow = a_request(count)
        print(f"{count:,} entries: a request looks its address up in {median:.2f} us (slowest tenth {slow:.2f} us)")
    for count in (100, 10_000, 100_000):
        print(f"{count:,} entries: loaded in {a_load(count):.3f} s of CPU")
    seconds = sorted(in_force())
    print(
        f"a change is in force in all of {WORKERS} workers after {statistics.median(seconds):.2f} s "
        f"(median of {CHANGES}; the longest {seconds[-1]:.2f} s)"
    )


if __name__ == "__main__":
    main()
