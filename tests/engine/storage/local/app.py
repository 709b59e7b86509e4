"""An app to be served: 50 requests an hour for all; each response tells which process it is from."""

import os
import time

from flask import Flask, Response

from flask_multilimit import MultiLimit, rate_limiter

app = Flask(__name__)
app.config.from_prefixed_env()
MultiLimit(app)


@app.get("/")
@rate_limiter(rules="50/hour", scope="all")
def index() -> str:
    return "ok"


@app.get("/hello")
@rate_limiter(rules="1000000/hour")
def hello() -> str:
    time.sleep(0.01)  # meanwhile another worker takes the next request
    return "hello"


@app.after_request
def add_worker_id(response: Response) -> Response:
    response.headers["Worker"] = str(os.getpid())
    return response
