"""Reports that take a while: each client may have two of them in progress, and ten a minute.

    flask --app examples/slow_reports run
    curl -N http://127.0.0.1:5000/report & curl -N http://127.0.0.1:5000/report & curl -i http://127.0.0.1:5000/report

The third is refused until one of the others has ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from flask import Flask, Response

from flask_multilimit import IP, MultiLimit, RateLimitExceeded, rate_limiter

app = Flask(__name__)
MultiLimit(app)

PARTS, SECONDS = 10, 0.3


@app.get("/")
def index() -> str:
    return 'Ask for <a href="/report">a report</a>, in three windows at once.'


@app.get("/report")
@rate_limiter(type=IP, rules=["10/minute", "2 at once"])
def report() -> Any:
    def parts() -> Iterator[str]:
        for number in range(1, PARTS + 1):
            yield f"part {number} of {PARTS}\n"
            time.sleep(SECONDS)

    return Response(parts(), mimetype="text/plain")


@app.errorhandler(RateLimitExceeded)
def refuse(error: RateLimitExceeded) -> tuple[str, int]:
    if error.decision.waits_for_slot:
        return "Two of your reports are being written. Come back when one is done.\n", 429
    return f"You have had ten reports. Come back in {error.decision.retry_after:.0f} s.\n", 429
