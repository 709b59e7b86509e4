"""An API whose customers have tiers. The key of a request names the customer, and the customer's tier has the rules.

    flask --app examples/api_tiers run

    curl -i http://localhost:5000/items -H 'X-Api-Key: key-of-ann'
    curl -i http://localhost:5000/export -H 'X-Api-Key: key-of-bob'

A customer who changes tier gets the new rules at the next request; earlier requests still count. If the tiers cannot be
looked up, each customer keeps the last known rules, others have those of the free tier, and the log says so once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flask import Blueprint, Flask, Response, abort, g, request

from flask_multilimit import LimitType, MultiLimit, rate_limiter

TIERS = {
    "free": "3/minute; 100/day",
    "gold": "30/minute; 5000/day",
}


@dataclass
class Customer:
    name: str
    tier: str


CUSTOMERS = {"key-of-ann": Customer("ann", "free"), "key-of-bob": Customer("bob", "gold")}

app = Flask(__name__)
app.config.from_prefixed_env()
MultiLimit(app)
api = Blueprint("api", __name__)


@api.before_request
@rate_limiter(
    type=LimitType.IP,
    name="guesses",
    rules="10/minute",
    charge_when=lambda response: response.status_code == 401,
)
def find_customer() -> None:
    """Wrong keys are counted by address, so nobody can guess keys without limit."""
    customer = CUSTOMERS.get(request.headers.get("X-Api-Key", ""))
    if customer is None:
        abort(Response("Which customer are you? Send X-Api-Key.\n", 401))
    g.customer = customer


def customer_name() -> str:
    return str(g.customer.name)


def rules_of_tier() -> str:
    return TIERS[g.customer.tier]


by_tier: Any = {
    "type": customer_name,
    "name": "customer",
    "rules": rules_of_tier,
    "fallback": TIERS["free"],
    "scope": "api",
}


@app.get("/")
def index() -> str:
    return "Ask for /items or /export, with the header field X-Api-Key.\n"


@api.get("/items")
@rate_limiter(**by_tier)
def items() -> list[str]:
    return ["apple", "pear"]


@api.get("/export")
@rate_limiter(**by_tier, cost=3)
def export_all() -> str:
    """Costs as much as three other requests."""
    return "apple,pear\n"


@api.post("/tier/<tier>")
@rate_limiter(**by_tier)
def change_tier(tier: str) -> str:
    """FOR THIS DEMO ONLY: a real app would ask for payment."""
    g.customer.tier = tier
    return f"{g.customer.name} is {tier} now.\n"


app.register_blueprint(api)
