"""How long the pages of the dashboard take to make: `python -m benchmarks.dashboard [URI]`.

The app has 1,500 endpoints, all busy throughout the last hour, and 100,000 counted subjects, in memory or in the
storage of the URI. Figures are medians after the first pages, which build the plans of the app and read the last hour.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from typing import Any

from flask import Flask

from flask_multilimit import MultiLimit
from flask_multilimit.dashboard import Dashboard
from flask_multilimit.engine import hits_for
from flask_multilimit.observe.traffic import Check, Counts, Refused, RuleCount
from flask_multilimit.observe.traffic.counts import (
    BUCKET_SECONDS,
    MOST_SUBJECTS_KEPT,
    TrafficKeys,
    bucket_at,
    tallies_of,
)
from flask_multilimit.serve.gate import AppGate, gate_of

ENDPOINTS, SUBJECTS, SLICES, TIMES = 1500, 100_000, 360, 9
PAGES = {
    "Now": "",
    "Now, a page further on": "?page=3",
    "Limits": "limits",
    "Limits, searched": "limits?q=view77",
    "Subject": "subject?who=10.1.1.7",
    "Lists": "lists",
    "History": "history",
    "Now as JSON": "api/now",
}


def large_app(uri: str) -> Flask:
    app = Flask("large")
    app.config.update(SECRET_KEY="benchmark", MULTILIMIT_STORAGE_URI=uri, MULTILIMIT_STORAGE_TIMEOUT=5)
    multilimit = MultiLimit(app, default_limits={"type": "ip", "rules": "100/minute; 2000/hour"})
    for number in range(ENDPOINTS):
        app.add_url_rule(f"/view/{number}", name_of(number), lambda: "ok")
    app.register_blueprint(Dashboard(multilimit, authorize=lambda: "benchmark"))
    return app


def name_of(number: int) -> str:
    return f"view{number}"


def fill(gate: AppGate) -> None:
    """Store the traffic of an hour, and use quotas."""
    dice, places = random.Random(1), TrafficKeys(gate.settings.key_prefix)
    storage: Any = gate.limiter.storage
    last = bucket_at(time.time())
    for number, bucket in enumerate(range(last - SLICES + 1, last + 1)):
        storage.tally(tallies_of(places, bucket, busy(dice)), source=places.source("benchmark"), number=number)
    checks = [
        hits_for("100/minute", scope=name_of(number % ENDPOINTS), subject=f"ip:{address(number)}")
        for number in range(SUBJECTS)
    ]
    for begin in range(0, SUBJECTS, 500):
        gate.limiter.check_many(checks[begin : begin + 500])


def busy(dice: random.Random) -> Counts:
    """The counts of ten seconds."""
    counts = Counts()
    for number in range(ENDPOINTS):
        name = name_of(number)
        counts.checks[Check(name, "allowed", "storage")] = dice.randint(1, 100)
        if dice.random() < 0.3:
            counts.checks[Check(name, "refused", "deny_cache")] = counts.rules[RuleCount(name, "ip-60s", "refuses")] = 5
        if dice.random() < 0.3:
            counts.rules[RuleCount(name, "ip-60s", "near")] = 5
    for _ in range(MOST_SUBJECTS_KEPT):
        who = Refused(name_of(dice.randrange(ENDPOINTS)), "ip-60s", "ip", address(dice.randrange(SUBJECTS)))
        counts.refused[who] = dice.randint(1, 9)
    return counts


def address(number: int) -> str:
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"


def main() -> None:
    app = large_app(*sys.argv[1:] or ["memory://"])
    fill(gate_of(app))
    browser = app.test_client()
    looks = read_the_hour(browser)
    print(f"the last hour was read in {looks} looks\n")
    print(f"{'':24}     ms   of CPU")
    for title, page in PAGES.items():
        both = [times(browser, page) for _ in range(TIMES)]
        wall, cpu = (statistics.median(each) for each in zip(*both, strict=True))
        print(f"{title:24} {wall:6.1f}   {cpu:6.1f}")


def read_the_hour(browser: Any) -> int:
    """Read the hour as an open page does, in looks that are seconds apart. Return how many looks it takes."""
    looks = 1
    while not browser.get("/multilimit/api/now").get_json()["complete"]:
        time.sleep(BUCKET_SECONDS / 9)
        looks += 1
    return looks


def times(browser: Any, page: str) -> tuple[float, float]:
    """Milliseconds that a page takes, by the clock and by the CPU time of this process: the machine may be busy."""
    wall, cpu = time.perf_counter(), time.process_time()
    assert browser.get(f"/multilimit/{page}").status_code == 200
    return (time.perf_counter() - wall) * 1000, (time.process_time() - cpu) * 1000


if __name__ == "__main__":
    main()
