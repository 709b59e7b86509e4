"""The app of `app.py` as Flask-Limiter's documentation would have it, for `benchmarks/outages.py`; no test runs it."""

from __future__ import annotations

import os

from flask import Flask, request
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

app = Flask(__name__)
limiter = Limiter(
    get_remote_address,
    app=app,
    storage_uri=os.environ["STORAGE_URI"],
    strategy="moving-window",
    swallow_errors=os.environ["ON_STORAGE_ERROR"] == "allow",
    in_memory_fallback_enabled=os.environ["ON_STORAGE_ERROR"] == "local",
)


@app.get("/")
@limiter.limit(os.environ["LIMIT"], key_func=lambda: request.args["who"])
def limited() -> str:
    return "ok"


@app.get("/free")
@limiter.limit("1000000/minute")
def free() -> str:
    """Whether the storage decided: Flask-Limiter does not say."""
    if limiter._storage_dead:
        return "local"
    return "None" if limiter.current_limit else "allow"


@app.get("/pid")
def pid() -> str:
    return str(os.getpid())
