"""Is this checkout slower than another one? Both run side by side, and the answer is ratios.

    python benchmarks/before_after.py ../old-checkout [--rounds 100] [--server redis-server]

One process of each checkout does the same work in short turns, client and server on one core. A ratio compares two
blocks of one round (after / before); the output shows the median over the rounds, and the quartiles. Below 1, the
checkout that this file is in is faster. The exit status is 1 if a median is above ``--most``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

HERE = Path(__file__).parents[1]
WARM, BLOCK = 5, 20
NUMBERS = (1, 3, 10)
MANY = 10**6
COUNTED = ("a check of 3 rules in memory", "a Flask request")
"""For these, calls of Python functions are counted."""


# In the process of a checkout


def work(url: str) -> None:
    """Read the name of a variant from each line, and answer with the microseconds that a call of it takes; for variants
    in ``COUNTED``, with the number of calls of functions of flask_multilimit."""
    variants = variants_of(url)
    print(json.dumps(list(variants)), flush=True)
    for line in sys.stdin:
        name = line.strip()
        print(calls_of(name) if name in COUNTED else microseconds_of(variants[name]), flush=True)


def microseconds_of(call: Callable[[], object]) -> float:
    for _ in range(WARM):
        call()
    start = time.perf_counter_ns()
    for _ in range(BLOCK):
        call()
    return (time.perf_counter_ns() - start) / BLOCK / 1000


def variants_of(url: str) -> dict[str, Callable[[], object]]:
    from flask_multilimit.engine import GuardedStorage, Limiter, MemoryStorage, storage_from_uri  # noqa: PLC0415

    found: dict[str, Callable[[], object]] = {}
    server = GuardedStorage(storage_from_uri(url, timeout=5), workers=1)
    for where, limiter in (("memory", Limiter(MemoryStorage())), ("server", Limiter(server))):
        for number in NUMBERS:
            for outcome in ("admitted", "rejected"):
                found[f"{where}, {number} rules, {outcome}"] = checks(limiter, number, outcome)
    for outcome in ("admitted", "rejected"):
        found[f"Flask, 3 rules, {outcome}"] = request_of(url, outcome)
    return found


def checks(limiter: Any, number: int, outcome: str) -> Callable[[], object]:
    from flask_multilimit.engine import Rule, hits_for  # noqa: PLC0415

    rules = [Rule(3600 + 60 * i, MANY + i) for i in range(number)]
    if outcome == "rejected":
        rules[-1] = Rule(3600 + 60 * number, 1)
    hits = hits_for(rules, scope=f"{outcome}-{number}", subject=f"ip:203.0.113.{os.getpid()}")
    limiter.check(hits)
    return lambda: limiter.check(hits)


def request_of(url: str, outcome: str = "admitted") -> Callable[[], object]:
    from werkzeug.test import create_environ, run_wsgi_app  # noqa: PLC0415

    app = app_of(url, outcome)
    environ = create_environ(environ_base={"REMOTE_ADDR": "203.0.113.7"})
    return lambda: run_wsgi_app(app, dict(environ), buffered=True)


def app_of(url: str, outcome: str) -> Any:
    from flask import Flask  # noqa: PLC0415

    from flask_multilimit import IP, MultiLimit, Rule, rate_limiter  # noqa: PLC0415

    app = Flask("bench")
    prefix = f"{outcome}-{os.getpid()}:"
    app.config.update(MULTILIMIT_STORAGE_URI=url, MULTILIMIT_WORKERS=1, MULTILIMIT_KEY_PREFIX=prefix)
    MultiLimit(app)
    counts = (3, 2, 1) if outcome == "rejected" else (MANY, MANY + 1, MANY + 2)
    rules = [Rule(3600 * (i + 1), count) for i, count in enumerate(counts)]
    app.add_url_rule("/", view_func=rate_limiter(type=IP, rules=rules)(lambda: "ok"))
    return app


def calls_of(name: str) -> int:
    """Calls of our Python functions for an admitted request or check in memory, after the first ones."""
    import flask_multilimit  # noqa: PLC0415
    from flask_multilimit.engine import Limiter, MemoryStorage  # noqa: PLC0415

    ours, found = str(Path(flask_multilimit.__file__).parent), []
    a_check, _ = COUNTED
    call = checks(Limiter(MemoryStorage()), 3, "admitted") if name == a_check else request_of("memory://")
    for _ in range(2):
        call()

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ours):
            found.append(frame)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(found)


# In the process that compares


class Side:
    """A checkout, and the process that runs it."""

    def __init__(self, checkout: Path, url: str) -> None:
        self.checkout = checkout.resolve()
        # With bytecode on disk: otherwise, a start-up would compile our source code each time.
        self.environment = {**os.environ, "PYTHONPATH": str(self.checkout), "PYTHONDONTWRITEBYTECODE": ""}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--work", url],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.variants: list[str] = json.loads(self._line())

    def ask(self, variant: str) -> float:
        assert self._process.stdin is not None
        print(variant, file=self._process.stdin, flush=True)
        return float(self._line())

    def close(self) -> None:
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def start_up(self, url: str) -> float:
        """Milliseconds of CPU time until an app with limits exists, without the time for ending the interpreter."""
        program = (
            "from flask import Flask; from flask_multilimit import MultiLimit, rate_limiter; app = Flask('x'); "
            f"app.config['MULTILIMIT_STORAGE_URI'] = {url!r}; MultiLimit(app); "
            "app.add_url_rule('/', view_func=rate_limiter(rules='5/minute')(lambda: 'ok')); import os; os._exit(0)"
        )
        start = _milliseconds_of_children()
        # In that folder, because -c puts the working folder first: elsewhere, both sides would import this checkout.
        subprocess.run([sys.executable, "-c", program], env=self.environment, cwd=self.checkout, check=True)
        return _milliseconds_of_children() - start


def _milliseconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1000


@contextlib.contextmanager
def server_at(binary: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        options = ("--port", "0", "--unixsocket", f"{folder}/s", "--save", "", "--loglevel", "warning")
        process = subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL)
        try:
            while not Path(f"{folder}/s").exists():
                time.sleep(0.01)
            yield f"unix://{folder}/s"
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", nargs="?", type=Path, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--start-ups", type=int, default=15)
    parser.add_argument("--server", default="redis-server", help="the binary of a Redis or Valkey server")
    parser.add_argument("--most", type=float, default=1.02, help="the largest ratio that is not a failure")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work)
        return
    if given.before is None:
        parser.error("name the other checkout")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with server_at(given.server) as url:
        sys.exit(compare(given, url))


def compare(given: argparse.Namespace, url: str) -> int:
    before, after = Side(given.before, url), Side(HERE, url)
    commands = redis.Redis.from_url(url)
    times: dict[str, list[tuple[float, float]]] = {}
    for round_ in range(given.rounds):
        for variant in before.variants:
            sides = (before, after) if round_ % 2 else (after, before)
            taken = {side: (side.ask(variant), server_time(commands)) for side in sides}
            for what, i in (("", 0), (", in the server", 1)):
                if taken[before][i] and taken[after][i]:
                    times.setdefault(variant + what, []).append((taken[before][i], taken[after][i]))
    # Variants that a cache nearly always answers show no time of the server.
    times = {name: pairs for name, pairs in times.items() if len(pairs) * 2 > given.rounds}
    for _ in range(given.start_ups):
        for where, at in (("memory", "memory://"), ("server", url)):
            times.setdefault(f"start-up, {where} (ms of CPU)", []).append((before.start_up(at), after.start_up(at)))
    print(f"{'microseconds':45} {'before':>9} {'after':>9}   ratio (quartiles)")
    slower = [name for name, pairs in times.items() if shown(name, pairs) > given.most]
    for name in COUNTED:
        print(f"{f'calls of ours in {name}':45} {before.ask(name):9.0f} {after.ask(name):9.0f}")
    before.close()
    after.close()
    if slower:
        print("slower:", "; ".join(slower))
    return 1 if slower else 0


def server_time(commands: redis.Redis) -> float:
    """Microseconds per script since the last question; 0 if none ran."""
    stats = commands.info("commandstats").get("cmdstat_evalsha")
    commands.config_resetstat()
    return stats["usec"] / stats["calls"] if stats else 0.0


def shown(name: str, pairs: list[tuple[float, float]]) -> float:
    low, median, high = statistics.quantiles([after / before for before, after in pairs], n=4)
    was, is_ = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(f"{name:45} {was:9.2f} {is_:9.2f}   {median:.3f} ({low:.3f} to {high:.3f})")
    return median


if __name__ == "__main__":
    main()
