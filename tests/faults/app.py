"""An app for the faults and for the load: each `who` has quotas of its own, one of each algorithm that is named;
`/free` tells who decides."""

import os

from flask import Flask, request

from flask_multilimit import MultiLimit, current_decision, rate_limiter
from flask_multilimit.engine.rules import changed, rules_in

app = Flask(__name__)
app.config.update(
    MULTILIMIT_STORAGE_URI=os.environ["STORAGE_URI"],
    MULTILIMIT_ON_STORAGE_ERROR=os.environ.get("ON_STORAGE_ERROR", "local"),
)
multilimit = MultiLimit(app)
ALGORITHMS = os.environ.get("ALGORITHMS", "sliding_window").split()
LIMITS = [changed(rule, algorithm=name) for rule in rules_in(os.environ["LIMIT"]) for name in ALGORITHMS]


def who() -> str:
    return request.args["who"]


@app.get("/")
@rate_limiter(type=who, name="who", rules=LIMITS)
def limited() -> str:
    return "ok"


@app.get("/free")
@rate_limiter(rules="1000000/minute")
def free() -> str:
    return str(current_decision.decided_by)


@app.get("/pid")
def pid() -> str:
    return str(os.getpid())
