"""The smallest limited app. Quotas are kept in this process (memory://), so nothing else has to run.

    flask --app examples/quickstart run

Then ask six times for http://localhost:5000: five requests in any ten seconds are admitted from one address, and a
hundred in any minute from all of them. What is left stands in the header fields: ``curl -i http://localhost:5000``.
"""

from __future__ import annotations

from flask import Flask

from flask_multilimit import LimitType, MultiLimit, Rule, rate_limiter

app = Flask(__name__)
MultiLimit(app)


@app.get("/")
@rate_limiter(type=LimitType.IP, rules=Rule(time=10, count=5))
@rate_limiter(type=LimitType.DEFAULT, rules=Rule(time=60, count=100))
def index() -> str:
    return "Hello!\n"
