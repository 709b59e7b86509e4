"""What users and clients depend on: public names, keys in storage, and exact responses."""

from collections.abc import Callable
from importlib import import_module
from typing import Any
from uuid import UUID

import pytest
from flask import Flask, current_app
from werkzeug.test import TestResponse

from flask_multilimit import Decision, LimitType, MultiLimit, Rule, rate_limiter
from flask_multilimit.engine import Hit, MemoryStorage

PUBLIC = {
    "flask_multilimit": """
        DEFAULT GLOBAL IP USER AccessDenied Ban Calendar Concurrent ConfigurationError ConfigurationWarning Decision
        LimitType MultiLimit MultiLimitError RateLimitExceeded RateLimiter Reserve Rule StorageUnavailable
        current_decision exempt problem rate_limiter settle
    """,
    "flask_multilimit.control": """
        Control ControlConflict Difference InvalidData Listing Mistake NeedsForce Override Preview Terms Who
        follow_control
    """,
    "flask_multilimit.dashboard": "Dashboard",
    "flask_multilimit.engine": """
        Ban BanStatus Calendar ClusterStorage Concurrent ConfigurationError ConfigurationWarning Decision DenyCache
        GuardedStorage Health Hit Hits Layers LeasingStorage Limiter MemoryStorage MultiLimitError
        RedisStorage Rule RuleStatus Storage StorageDenied StorageError hits_for storage_from_uri
    """,
    "flask_multilimit.signals": """
        Event control_changed control_failed limit_event limits_checked request_denied request_rejected
        rules_failed shadow_rejected storage_failed storage_recovered subject_banned
    """,
}


class FrozenStorage(MemoryStorage):
    """Its time stands still; it keeps the keys that it is asked for."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: 1_700_000_000_000_000)
        self.asked: list[str] = []

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        self.asked += [hit.key for hit in hits]
        return super().check(hits, check_id)


def visit(times: int, *, accept: str = "*/*", **config: Any) -> TestResponse:
    """The last response of a view with two limiters that admit two requests."""
    app = Flask("shop")
    app.config.update({f"MULTILIMIT_{name}": value for name, value in config.items()})
    MultiLimit(app, storage=FrozenStorage())

    by_address = rate_limiter(type=LimitType.IP, rules=[Rule(time=50, count=3), Rule(time=1.5, count=2)])
    app.add_url_rule("/update", "update", by_address(rate_limiter(rules="1000/hour", name="all")(lambda: "ok")))
    client = app.test_client()
    return [client.get("/update", headers={"Accept": accept}) for _ in range(times)][-1]


def fields_of(response: TestResponse) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name not in {"Date", "Server"}}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_of_a_module_are_unchanged(module: str) -> None:
    found = import_module(module)
    assert sorted(found.__all__) == sorted(PUBLIC[module].split())
    assert all(hasattr(found, name) for name in found.__all__)


POLICY = '"ip-50s";q=3;w=50, "ip-1500ms";q=2;w=2, "all-3600s";q=1000;w=3600'
TEXT = {"Content-Type": "text/html; charset=utf-8", "Content-Length": "2"}
STANDARD = {
    "RateLimit-Policy": POLICY,
    "RateLimit": '"ip-50s";r=2;t=34, "ip-1500ms";r=1;t=1, "all-3600s";r=999;t=3597',
}
LEGACY = {"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "1800000002"}
DIALECTS = {
    "draft-11": STANDARD,
    "draft-10": STANDARD | {"RateLimit": '"ip-50s";r=2;t=50, "ip-1500ms";r=1;t=2, "all-3600s";r=999;t=3600'},
    "draft-06": {
        "RateLimit-Limit": "2",
        "RateLimit-Remaining": "1",
        "RateLimit-Reset": "2",
        "RateLimit-Policy": "3;w=50, 2;w=2, 1000;w=3600",
    },
    "legacy": LEGACY,
    "both": STANDARD | LEGACY,
    "off": {},
}


@pytest.mark.parametrize(("headers", "expected"), DIALECTS.items(), ids=DIALECTS)
def test_header_fields_of_an_allowed_request_are_unchanged(
    headers: str, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
    response = visit(1, HEADERS=headers)
    assert response.status == "200 OK"
    assert fields_of(response) == TEXT | expected


REFUSED = {
    "Content-Type": "application/problem+json",
    "Vary": "Accept, Accept-Language",
    "Cache-Control": "no-store",
    "Retry-After": "2",
}


def test_header_fields_of_a_refusal_are_unchanged() -> None:
    response = visit(3, accept="application/json")

    fields = fields_of(response)
    assert response.status == "429 TOO MANY REQUESTS"
    assert fields.pop("Content-Length") == str(len(response.data))
    assert fields == REFUSED | {
        "RateLimit-Policy": POLICY,
        "RateLimit": '"ip-50s";r=1;t=2, "ip-1500ms";r=0;t=2, "all-3600s";r=998;t=2',
    }


@pytest.mark.parametrize(("headers", "names"), [("draft-11", {"RateLimit", "RateLimit-Policy"}), ("off", set[str]())])
def test_rate_limit_fields_can_be_sent_on_refusals_only(headers: str, names: set[str]) -> None:
    allowed, refused = (visit(times, HEADERS=headers, HEADERS_ON="refusals") for times in (1, 3))
    assert not {name for name in fields_of(allowed) if "RateLimit" in name}
    assert {name for name in fields_of(refused) if "RateLimit" in name} == names
    assert refused.headers["Retry-After"] == "2"


def test_html_and_text_bodies_of_a_refusal_are_unchanged() -> None:
    assert visit(3, accept="text/html").text == (
        "<!doctype html>\n<meta charset=utf-8>\n"
        '<meta name=viewport content="width=device-width, initial-scale=1">\n'
        '<meta name=color-scheme content="light dark">\n'
        "<title>429 Too Many Requests</title>\n<h1>Too Many Requests</h1>\n"
        "<p>Too many requests. Please try again later.</p>\n<p>You can try again in 2 seconds.</p>\n"
    )
    assert visit(3, accept="text/plain").text == (
        "Too many requests. Please try again later.\nYou can try again in 2 seconds.\n"
    )


def api_key() -> str:
    return "abc"


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({"rules": "100/minute"}, "rate_limit:{view}:default::sliding_window:60000"),
        ({"rules": "100/minute", "type": LimitType.IP}, "rate_limit:{view}:ip:127.0.0.1:sliding_window:60000"),
        ({"rules": "9/second", "type": LimitType.USER}, "rate_limit:{view}:user:ann:sliding_window:1000"),
        ({"rules": "9/second", "scope": "api", "key": "mine:"}, "mine:{api}:default::sliding_window:1000"),
        ({"rules": "9/second", "type": api_key, "name": "key"}, "rate_limit:{view}:key:abc:sliding_window:1000"),
        (
            {"rules": "9/second", "type": LimitType.IP, "hash_tag": "subject"},
            "rate_limit:view:ip:{127.0.0.1}:sliding_window:1000",
        ),
        ({"rules": Rule(1.5, 9, algorithm="gcra")}, "rate_limit:{view}:default::gcra:1500"),
    ],
)
def test_storage_key_of_a_view_is_unchanged(declared: dict[str, Any], expected: str) -> None:
    assert keys_of(lambda app: app.get("/", endpoint="view")(rate_limiter(**declared)(lambda: "ok"))) == [expected]


def test_storage_keys_of_limits_in_settings_are_unchanged() -> None:
    def add_views(app: Flask) -> None:
        app.get("/", endpoint="view")(lambda: "ok")

    assert keys_of(
        add_views,
        APPLICATION_LIMITS="5/second",
        DEFAULT_LIMITS={"type": "ip", "rules": "5/hour"},
        LIMITS={"view": {"rules": "7/day", "with_defaults": True}},
    ) == [
        "rate_limit:{application}:default::sliding_window:1000",
        "rate_limit:{view}:default::sliding_window:86400000",
        "rate_limit:{view}:ip:127.0.0.1:sliding_window:3600000",
    ]
    assert keys_of(repr, UNMATCHED_LIMITS="5/second") == ["rate_limit:{unmatched}:default::sliding_window:1000"]


def test_storage_key_of_a_check_in_a_view_is_unchanged() -> None:
    def add_views(app: Flask) -> None:
        @app.get("/")
        def view() -> str:
            multilimit: MultiLimit = current_app.config["LIMITS"]
            return str(multilimit.check("5/minute", scope="mail", type=LimitType.IP).allowed)

    assert keys_of(add_views) == ["rate_limit:{mail}:ip:127.0.0.1:sliding_window:60000"]


def keys_of(add_views: Callable[[Flask], object], **config: Any) -> list[str]:
    """The keys that one request asks for."""
    app, storage = Flask("shop"), FrozenStorage()
    app.config.update({f"MULTILIMIT_{name}": value for name, value in config.items()})
    app.config["LIMITS"] = MultiLimit(app, storage=storage, user_loader=lambda: "ann")
    add_views(app)
    app.test_client().get("/")
    return storage.asked
