"""Bans scanners: a client that requests many missing pages is refused everywhere for a while.

    flask --app examples/scanners run

    for page in wp-login.php .env .git/config admin.php phpinfo.php backup.sql; do
        curl -s -o /dev/null -w '%{http_code} ' "http://localhost:5000/$page"
    done

A broken link gives a visitor a few 404s, a scanner asks for hundreds. Five a minute are answered. Each further one
is refused and is a strike, and the third strike in ten minutes bans the address: for an hour, the next time for two, at
most for a day. Real pages are not limited to five a minute, but the ban applies to them, too, because both limiters
have the same scope and the same ban.
"""

from __future__ import annotations

from flask import Flask

from flask_multilimit import Ban, LimitType, MultiLimit, RateLimiter, rate_limiter

SCANNER = Ban(after=3, within=600, time=3600, factor=2, most=86_400)


def visitors(rules: str) -> RateLimiter:
    return rate_limiter(type=LimitType.IP, scope="visitors", name="visitors", rules=rules, ban=SCANNER)


app = Flask(__name__)
app.config.from_prefixed_env()
MultiLimit(app, unmatched_limits=[visitors("5/minute")], application_limits=[visitors("3000/hour")])


@app.get("/")
def index() -> str:
    return "Welcome.\n"
