"""The app under load: every algorithm limits every request, by the client that the query names."""

import os

from flask import Flask, request

from flask_multilimit import MultiLimit, Rule, rate_limiter
from support.rates import RATES

app = Flask(__name__)
app.config["MULTILIMIT_STORAGE_URI"] = os.environ["STORAGE_URI"]
multilimit = MultiLimit(app)


def who() -> str:
    return request.args["who"]


@app.get("/")
@rate_limiter(type=who, name="who", rules=[Rule(1, 5, algorithm=name) for name in RATES])
def limited() -> str:
    return "ok"


@app.get("/pid")
def pid() -> str:
    return str(os.getpid())
