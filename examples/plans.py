"""Plans that customers buy: so many tokens a month, from their billing day on in their time zone, and so many requests
a minute.

    pip install sqlalchemy
    flask --app examples/plans run
    curl http://127.0.0.1:5000/chat -H 'X-Api-Key: k-ada' -d 'What is a sliding window?'
    curl http://127.0.0.1:5000/rate_limit -H 'X-Api-Key: k-ada'
    curl -X POST http://127.0.0.1:5000/upgrade -H 'X-Api-Key: k-ada'
    curl http://127.0.0.1:5000/support/ada -H 'X-Api-Key: k-support'

The plan of a customer is in the database, and is asked for at each request. One who upgrades in the middle of a month
gets the tokens of the new plan at once; what is used stays used. If a plan cannot be read, its customer keeps the last
one that this process read, or has the free one. Customers see what is left at ``/rate_limit``, support at
``/support/NAME``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flask import Flask, abort, request
from sqlalchemy import StaticPool, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from flask_multilimit import USER, Calendar, MultiLimit, Rule, rate_limiter, settle
from flask_multilimit.usage import Usage

app = Flask(__name__)
app.config.from_prefixed_env()


# The plans, and who has which


@dataclass(frozen=True)
class Plan:
    tokens: int
    """In a month."""
    requests: int
    """In a minute."""


PLANS = {"free": Plan(tokens=1_000, requests=3), "pro": Plan(tokens=100_000, requests=60)}


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers"

    name: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(unique=True)
    plan: Mapped[str]
    billing_day: Mapped[int]
    timezone: Mapped[str]


# One connection, because the database of this demo is in memory.
engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
Base.metadata.create_all(engine)
with Session(engine) as session:
    session.add(Customer(name="ada", key="k-ada", plan="free", billing_day=15, timezone="Europe/Berlin"))
    session.add(Customer(name="bob", key="k-bob", plan="pro", billing_day=1, timezone="Asia/Shanghai"))
    session.commit()


def customer_of_request() -> str | None:
    with Session(engine) as session:
        found = session.query(Customer.name).filter_by(key=request.headers.get("X-Api-Key", "")).scalar()
        return None if found is None else str(found)


multilimit = MultiLimit(app, user_loader=customer_of_request)


# The limits of a plan. Both callables take the customer, so support pages and commands know the plan of anybody.


def tokens_of_plan(name: str | None) -> Rule:
    with Session(engine) as session:
        customer = session.get_one(Customer, name)
        tokens = PLANS[customer.plan].tokens
        return Calendar(tokens, "month", timezone=customer.timezone, anchor=customer.billing_day)


def requests_of_plan(name: str | None) -> Rule:
    with Session(engine) as session:
        return Rule(60, PLANS[session.get_one(Customer, name).plan].requests)


FREE = PLANS["free"]
ESTIMATE = 50


@app.before_request
def authenticate() -> None:
    support = request.path.startswith("/support/")
    known = request.headers.get("X-Api-Key") == "k-support" if support else customer_of_request() is not None
    if not known:
        abort(401)


@app.post("/chat")
@rate_limiter(
    type=USER,
    name="tokens",
    rules=tokens_of_plan,
    fallback=Calendar(FREE.tokens, "month"),
    cost=ESTIMATE,
    unit="tokens",
    settle=True,
)
@rate_limiter(type=USER, name="requests", rules=requests_of_plan, fallback=Rule(60, FREE.requests))
def chat() -> str:
    """A model would answer. Each word costs three tokens."""
    words = request.get_data(as_text=True).split()
    settle(3 * len(words))
    return " ".join(reversed(words)) + "\n"


# What is left


app.register_blueprint(Usage(multilimit, limits={"tokens": "Tokens this month", "requests": "Requests a minute"}))


@app.get("/support/<name>")
def support(name: str) -> dict[str, Any]:
    with Session(engine) as session:
        if session.get(Customer, name) is None:
            abort(404)
    found = multilimit.standing(user=name)
    rules = [rule for each in found.requests for rule in each.rules]
    return {"state": found.verdict, "left": {rule.text: rule.remaining for rule in rules}}


@app.post("/upgrade")
def upgrade() -> str:
    """FOR THIS DEMO ONLY: a real app would ask for payment."""
    with Session(engine) as session:
        customer = session.get_one(Customer, customer_of_request())
        customer.plan = "pro"
        session.commit()
        return f"{customer.name} is pro now.\n"
