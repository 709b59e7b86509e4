"""Bans clients that guess passwords: it counts failed logins, and bans a client that is refused again and again.

    flask --app examples/password_guessers run

    for guess in 1 2 3 4 5 6 7 8 9; do
        curl -s -o /dev/null -w '%{http_code} ' http://localhost:5000/login -d account=ann -d password=$guess
    done

Each address may try five wrong passwords in a quarter of an hour. Each further guess is refused, and is a strike; the
third strike bans the address for an hour, and for longer each time. Logins that succeed are given back, so an office
with many people behind one address is not banned for them, unless eight log in at the same moment: a login counts until
it is answered. For large offices, admit more. Somebody who mistypes five times has to wait, but is not banned.

The app's log has one line for each ban. A program that blocks addresses elsewhere, in a firewall for example, connects
to the signal, as this one does to remember them.
"""

from __future__ import annotations

from flask import Flask, Response, request
from werkzeug.security import check_password_hash, generate_password_hash

from flask_multilimit import Ban, LimitType, MultiLimit, rate_limiter
from flask_multilimit.signals import subject_banned

app = Flask(__name__)
app.config.from_prefixed_env()
app.logger.setLevel("INFO")  # shows the line for each ban
MultiLimit(app)

PASSWORDS = {"ann": generate_password_hash("correct-horse")}
NOBODY = generate_password_hash("")

banned: list[tuple[str, float]] = []
"""Addresses, and until when they are banned."""


@subject_banned.connect_via(app)
def remember(_app: Flask, *, subject: str, until: float, **_: object) -> None:
    banned.append((subject, until))


def failed(response: Response) -> bool:
    return response.status_code == 401


@app.post("/login")
@rate_limiter(
    type=LimitType.IP,
    rules="5 per 15 minutes",
    charge_when=failed,
    ban=Ban(after=3, within=3600, time=3600, factor=2, most=86_400),
)
def login() -> tuple[str, int]:
    account = request.form.get("account", "")
    if not check_password_hash(PASSWORDS.get(account, NOBODY), request.form.get("password", "")):
        return "Wrong account or password.\n", 401
    return f"Hello, {account}!\n", 200
