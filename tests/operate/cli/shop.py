"""The app of the command line tests: limits of every kind, declared in every place."""

from collections.abc import Callable

from flask import Blueprint, Flask, request

from flask_multilimit import IP, USER, Ban, MultiLimit, Rule, exempt, rate_limiter

app = Flask("shop")
app.config.from_mapping(
    MULTILIMIT_APPLICATION_LIMITS="5000/minute",
    MULTILIMIT_LIMITS={"api.*": {"type": "ip", "rules": "100/minute"}},
    MULTILIMIT_UNMATCHED_LIMITS={"type": "ip", "rules": "20/minute"},
    MULTILIMIT_EXEMPT=["health", "static"],
)
app.config.from_prefixed_env()
MultiLimit(app, user_loader=lambda: request.headers.get("X-User"))

api = Blueprint("api", __name__, url_prefix="/api")
rate_limiter(type=USER, rules="10/hour", wait=0.5)(api)


def api_key() -> str | None:
    return request.headers.get("X-Api-Key")


def rules_of_plan() -> str:
    return "50/hour" if request.args.get("plan") == "gold" else "5/hour"


@api.get("/items")
@api.post("/items/new")
@rate_limiter(rules=Rule(3600, 1000, lease=2), methods=["POST"], cost=2)
def items() -> str:
    return "items"


@api.get("/search/<path:query>")
@rate_limiter(type=(USER, IP), rules=Rule(3600, 30, algorithm="token_bucket", burst=5), shadow=True)
@rate_limiter(type=api_key, name="api_key", rules=rules_of_plan)
def search(query: str) -> str:
    return query


app.register_blueprint(api)


def server_error_is_free() -> Callable[..., bool]:
    return lambda response: response.status_code < 500


@app.get("/update")
@rate_limiter(type=IP, rules=["3 per 20 seconds", "10/hour"])
@rate_limiter(rules="1000/day", charge_when=server_error_is_free())
def update() -> str:
    return "ok"


@app.post("/send")
@rate_limiter(type=IP, rules="1/minute")
def send() -> str:
    return "sent"


@app.post("/secret")
@rate_limiter(type=IP, rules="1/minute", ban=Ban(after=2))
def secret() -> str:
    return "psst"


@app.route("/login", methods=["GET", "POST"])
@rate_limiter(type=IP, rules="2/minute", methods=["POST"])
def login() -> str:
    return "in"


@app.get("/health")
@exempt
def health() -> str:
    return "ok"
