"""An app whose requests name their cost. Each `who` has a quota of its own at each endpoint."""

import os

from flask import Flask, request

from flask_multilimit import MultiLimit, Rule, rate_limiter, settle

ESTIMATE = 10
COUNT = 1_000_000
DAY = 86_400
FIXED_WINDOW = Rule(DAY, COUNT, algorithm="fixed_window")
RULES = {
    "fixed_window": [FIXED_WINDOW],
    "together": [Rule(DAY, COUNT), FIXED_WINDOW, Rule(DAY, COUNT, algorithm="gcra", burst=COUNT)],
}

app = Flask(__name__)
app.config["MULTILIMIT_STORAGE_URI"] = os.environ["STORAGE_URI"]
multilimit = MultiLimit(app)


def who() -> str:
    return request.args["who"]


def answer() -> str:
    """Settle at the units of the query; without, the estimate stands."""
    if "units" in request.args:
        settle(int(request.args["units"]))
    return "ok"


for endpoint, rules in RULES.items():
    limited = rate_limiter(type=who, name="who", rules=rules, cost=ESTIMATE, settle=True)
    app.add_url_rule(f"/{endpoint}", endpoint, limited(answer))


@app.get("/used/<endpoint>/<client>")
def used(endpoint: str, client: str) -> list[int]:
    """The used units, by rule."""
    decision = multilimit.peek(endpoint, f"who:{client}")
    return [COUNT - status.remaining + status.debt for status in decision.statuses]


@app.get("/health")
def health() -> dict[str, object]:
    found = multilimit.limiter.health()
    return {"pid": os.getpid(), "state": found.state, "pending": found.pending, "given up": found.given_up}
