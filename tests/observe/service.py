"""An app that is scraped, for tests with gunicorn and a real Prometheus."""

import os

from flask import Flask, request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest, multiprocess

from flask_multilimit import Ban, MultiLimit, exempt, rate_limiter
from flask_multilimit.observe.prometheus import PrometheusMetrics

app = Flask("service")
app.config.update(
    MULTILIMIT_STORAGE_URI=os.environ["STORAGE_URI"],
    MULTILIMIT_STORAGE_TIMEOUT=float(os.environ.get("STORAGE_TIMEOUT", "10")),
)
MultiLimit(app, observers=[PrometheusMetrics()])


@app.get("/search")
@rate_limiter(type=lambda: request.args["who"], name="who", rules="20/hour")
def search() -> str:
    return "found"


@app.get("/login")
@rate_limiter(type=lambda: request.args["who"], name="who", rules="2/hour", ban=Ban(after=3, within=600, time=600))
def login() -> str:
    return "welcome"


@app.get("/signup")
@rate_limiter(type=lambda: request.args["who"], name="who", rules="1/hour", ban=Ban(after=1, time=20, factor=1))
def signup() -> str:
    return "welcome"


@app.get("/storm")
@rate_limiter(type=lambda: request.args["who"], name="who", rules="1/hour", ban=Ban(after=2, time=600))
def storm() -> str:
    return "a breeze"


@app.get("/pid")
def pid() -> str:
    return str(os.getpid())


@app.get("/metrics")
@exempt
def metrics() -> tuple[bytes, dict[str, str]]:
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry), {"Content-Type": CONTENT_TYPE_LATEST}
