"""An app that has used its limiter before any worker is forked; each `who` has a quota of its own."""

import asyncio
import os

from flask import Flask, Response, request

from flask_multilimit import MultiLimit, rate_limiter
from flask_multilimit.engine import hits_for

LIMIT = 50

app = Flask(__name__)
app.config.from_prefixed_env()
multilimit = MultiLimit(app)
with app.app_context():
    for _ in range(3):
        multilimit.limiter.check(hits_for("1000/hour", scope="before-the-fork"))


def who() -> str:
    return request.args["who"]


@app.get("/sync")
@rate_limiter(type=who, name="own", rules=f"{LIMIT}/hour")
def sync_view() -> str:
    return "ok"


@app.get("/async")
@rate_limiter(type=who, name="own", rules=f"{LIMIT}/hour")
async def async_view() -> str:
    await asyncio.sleep(0)
    return "ok"


@app.after_request
def add_pid(response: Response) -> Response:
    response.headers["X-Pid"] = str(os.getpid())
    return response
