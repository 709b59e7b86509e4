"""Logs each refusal, with the rules that refuse and for how long, without storing who the client is.

    flask --app examples/log_rejections run

Open http://localhost:5000 three times and look at the log. Addresses and user ids are personal data, so by default the
log contains pseudonyms: a keyed hash, the same for the same subject, which nobody can reverse without the key.
Two environment variables change this:

    FLASK_REJECTIONS_SUBJECTS   pseudonym (default), plain or none
    FLASK_REJECTIONS_KEY        the key. Without one, each process makes its own, and its pseudonyms end with it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from flask import Flask

from flask_multilimit import Decision, LimitType, MultiLimit, Rule, rate_limiter
from flask_multilimit.signals import request_rejected

app = Flask(__name__)
app.config.from_prefixed_env()
MultiLimit(app)

log = logging.getLogger("rejections")
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")

key = str(app.config.get("REJECTIONS_KEY") or secrets.token_hex())


def pseudonym(subject: str) -> str:
    """Twelve hexadecimal digits: enough to tell subjects apart, too few to identify one with certainty."""
    hashed = blake2b(subject.encode("utf-8", "surrogatepass"), key=key.encode()[:64], digest_size=6)
    return hashed.hexdigest()


SPELLINGS: dict[str, Callable[[str], str]] = {"pseudonym": pseudonym, "plain": repr, "none": lambda _: "-"}
spelled = SPELLINGS[app.config.get("REJECTIONS_SUBJECTS", "pseudonym")]


@request_rejected.connect_via(app)
def log_rejection(_app: Flask, *, decision: Decision, endpoint: str, subjects: dict[str, str], **_: Any) -> None:
    log.info(
        "refused endpoint=%s rules=%s retry_after=%.3f subjects=%s check=%s",
        endpoint,
        ",".join(status.name for status in decision.violated),
        decision.retry_after,
        ",".join(f"{kind}:{spelled(subject)}" for kind, subject in subjects.items()),
        decision.id,
    )


@app.get("/")
@rate_limiter(type=LimitType.IP, rules=Rule(time=60, count=2))
def index() -> str:
    return "Hello!\n"
