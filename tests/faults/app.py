"""An app for the fault suite: each `who` has a quota of its own; `/free` tells who decides."""

import os

from flask import Flask, request

from flask_multilimit import MultiLimit, current_decision, rate_limiter

app = Flask(__name__)
app.config.update(
    MULTILIMIT_STORAGE_URI=os.environ["STORAGE_URI"],
    MULTILIMIT_ON_STORAGE_ERROR=os.environ.get("ON_STORAGE_ERROR", "local"),
)
multilimit = MultiLimit(app)


def who() -> str:
    return request.args["who"]


@app.get("/")
@rate_limiter(type=who, name="who", rules=os.environ["LIMIT"])
def limited() -> str:
    return "ok"


@app.get("/free")
@rate_limiter(rules="1000000/minute")
def free() -> str:
    return str(current_decision.decided_by)


@app.get("/pid")
def pid() -> str:
    return str(os.getpid())
