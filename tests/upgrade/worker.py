"""One worker of a deployment: ``python worker.py URL REQUESTS`` with the folder of a version in PYTHONPATH.

It asks each endpoint that many times, and prints the statuses of each as JSON. For ``flask --app worker``, it is the
app.
"""

import json
import os
import sys
import time
from collections import Counter

from flask import Flask

from flask_multilimit import Concurrent, LimitType, MultiLimit, Rule, rate_limiter

COUNT = 300
DAY = 86_400
RULES: dict[str, list[Rule]] = {
    "sliding_window": [Rule(DAY, COUNT)],
    "fixed_window": [Rule(DAY, COUNT, algorithm="fixed_window")],
    "sliding_window_counter": [Rule(DAY, COUNT, algorithm="sliding_window_counter")],
    "token_bucket": [Rule(DAY, 1, algorithm="token_bucket", burst=COUNT)],
    "leaky_bucket": [Rule(DAY, 1, algorithm="leaky_bucket", burst=COUNT)],
    "gcra": [Rule(DAY, 1, algorithm="gcra", burst=COUNT)],
    "several": [Rule(DAY, COUNT), Rule(DAY // 2, COUNT + 50, algorithm="fixed_window"), Concurrent(50)],
}
"""Each admits COUNT requests, and no more for a long time."""
REFUNDED = "refunded"
"""The endpoint whose charges are all given back."""
OVERRIDDEN = "overridden"
"""The endpoint whose limit is changed while the deployment runs."""


def make_app(url: str) -> Flask:
    app = Flask("shop")
    app.config.update(MULTILIMIT_STORAGE_URI=url, MULTILIMIT_STORAGE_TIMEOUT=10, MULTILIMIT_LOG="off")
    MultiLimit(app)
    for name, rules in RULES.items():
        app.add_url_rule(f"/{name}", name, rate_limiter(rules=rules)(lambda: "ok"))
    given_back = rate_limiter(rules=[Rule(DAY, 5)], charge_when=lambda _response: False)
    app.add_url_rule(f"/{REFUNDED}", REFUNDED, given_back(lambda: "ok"))
    changed = rate_limiter(type=LimitType.IP, rules=[Rule(DAY, 10)])
    app.add_url_rule(f"/{OVERRIDDEN}", OVERRIDDEN, changed(lambda: "ok"))
    return app


if __name__ == "__main__":
    app = make_app(sys.argv[1])
    client = app.test_client()
    client.get(f"/{REFUNDED}")
    time.sleep(1.5)  # by then, changes that were made before it started are in force
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    found: dict[str, Counter[int]] = {name: Counter() for name in (*RULES, REFUNDED, OVERRIDDEN)}
    for _ in range(int(sys.argv[2])):
        for name, statuses in found.items():
            statuses[client.get(f"/{name}", environ_base={"REMOTE_ADDR": "203.0.113.9"}).status_code] += 1
    sys.stdout.write(json.dumps(found))
elif "SHOP_STORAGE" in os.environ:
    app = make_app(os.environ["SHOP_STORAGE"])
