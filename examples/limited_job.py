"""A batch job with limits but without a Flask app. It waits where that helps, and skips where it does not.

    python examples/limited_job.py
    python examples/limited_job.py redis://localhost:6379/0

Nobody gets more than two mails a day; one round trip checks this for all recipients. The mail server accepts three
mails in any half second, so the job waits for its turn. On a Redis or Valkey server, all running jobs share both.
"""

from __future__ import annotations

import sys

from flask_multilimit.engine import Limiter, Rule, hits_for

RECIPIENTS = ["ann", "bob", "ann", "eve", "ann", "bob", "ida"]
MAIL_SERVER = hits_for(Rule(time=0.5, count=3), scope="mail-server")


def main() -> None:
    limiter = Limiter(sys.argv[1] if len(sys.argv) > 1 else "memory://")
    wanted = [hits_for("2/day", scope="newsletter", subject=f"user:{name}") for name in RECIPIENTS]
    for name, decision in zip(RECIPIENTS, limiter.check_many(wanted), strict=True):
        if not decision.allowed:
            print(f"{name}: had enough for today")
        elif limiter.acquire(MAIL_SERVER, timeout=10).allowed:
            print(f"{name}: sent")
        else:
            limiter.refund(decision)
            print(f"{name}: the mail server is busy, try again tomorrow")
    limiter.close()


if __name__ == "__main__":
    main()
