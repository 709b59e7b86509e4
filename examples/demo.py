"""Limits of several kinds on one endpoint: a user may call it twice a second, and all users together 50 times in 10
seconds and 100 times in 60. They are one check: a refused request takes nothing from any of the three quotas.

With one process:

    flask --app examples/demo run
    curl -i 'http://localhost:5000/?user=ann'

With several, which share a Redis or Valkey server (pip install gunicorn):

    export FLASK_MULTILIMIT_STORAGE_URI=redis://localhost:6379/0
    gunicorn --chdir examples --workers 4 demo:app

You can set every setting of the extension in this way, as FLASK_MULTILIMIT_<NAME>.
"""

from __future__ import annotations

from flask import Flask, request

from flask_multilimit import LimitType, MultiLimit, Rule, rate_limiter

app = Flask(__name__)
app.config.from_prefixed_env()
multilimit = MultiLimit(app)


@multilimit.user_loader
def user_of_request() -> str | None:
    """FOR THIS DEMO ONLY: it believes what the client says. A real app asks its session or checks a token."""
    return request.headers.get("X-User") or request.args.get("user")


@app.get("/")
@rate_limiter(
    type=LimitType.USER,
    rules=Rule(time=1, count=2),
    message="Too frequent, please try again later.",
)
@rate_limiter(
    type=LimitType.DEFAULT,
    rules=[Rule(time=10, count=50), Rule(time=60, count=100)],
    message="We are busy, please try again later.",
)
def index() -> dict[str, str]:
    return {"hello": user_of_request() or "nobody"}
