"""Limits guesses, not logins: only failures count, for each address and for each account.

    flask --app examples/login_protection run

    curl -i http://localhost:5000/login -d account=ann -d password=wrong
    curl -i http://localhost:5000/login -d account=ann -d password=correct-horse

The charge is made before the password is checked, and given back if it was right, so of a hundred guesses that arrive
together no more than five are tried. Unknown accounts count like known ones: no answer reveals which accounts exist.

Anyone who knows the name of an account can lock its owner out for a quarter of an hour. If that matters more than
guesses from many addresses, make account and address one subject: type=(account, LimitType.IP).
"""

from __future__ import annotations

from flask import Flask, Response, request
from werkzeug.security import check_password_hash, generate_password_hash

from flask_multilimit import LimitType, MultiLimit, rate_limiter

app = Flask(__name__)
app.config.from_prefixed_env()
multilimit = MultiLimit(app)

PASSWORDS = {"ann": generate_password_hash("correct-horse"), "bob": generate_password_hash("battery-staple")}
NOBODY = generate_password_hash("")


def account() -> str:
    """In one spelling. Otherwise each spelling would have its own quota."""
    return request.form.get("account", "").strip().casefold()


def failed(response: Response) -> bool:
    return response.status_code == 401


@app.get("/")
def index() -> str:
    return """<form action=login method=post>
<input name=account placeholder=Account> <input name=password type=password placeholder=Password>
<button>Log in</button>
</form>
"""


@app.post("/login")
@rate_limiter(type=LimitType.IP, rules="20/hour", charge_when=failed)
@rate_limiter(
    type=account,
    name="account",
    rules="5 per 15 minutes",
    charge_when=failed,
    message="Too many failed attempts for this account. Please try again later.",
)
def login() -> tuple[str, int]:
    right = check_password_hash(PASSWORDS.get(account(), NOBODY), request.form.get("password", ""))
    if not right or account() not in PASSWORDS:
        return "Wrong account or password.\n", 401
    multilimit.reset("login", f"account:{account()}")
    return f"Hello, {account()}!\n", 200
