"""A reserve of a quota that all clients share refuses with 503: the service is busy, and no client is at fault."""

import copy
import pickle
from typing import Any

import pytest
from flask import Flask, request
from werkzeug.exceptions import HTTPException, ServiceUnavailable
from werkzeug.test import TestResponse

from flask_multilimit import IP, MultiLimit, RateLimitExceeded, Reserve, problem, rate_limiter
from support.asking import view

RESERVE = Reserve({"critical": 0.5}, lambda: request.args.get("priority"))
REDUCED = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
QUOTA = "https://iana.org/assignments/http-problem-types#quota-exceeded"


def app_with(*limiters: Any) -> Flask:
    app = Flask(__name__)
    app.extensions["limits"] = MultiLimit(app)
    limited: Any = view()
    for limiter in limiters:
        limited = limiter(limited)
    app.add_url_rule("/", "view", limited)
    return app


def shedding(**options: Any) -> Flask:
    return app_with(rate_limiter(rules="2/minute", reserve=RESERVE, **options))


def refused(app: Flask, **options: Any) -> TestResponse:
    """The second response: one of two units is reserved."""
    client = app.test_client()
    assert client.get("/").status_code == 200
    return client.get("/", **options)


def test_shared_reserve_refuses_with_503_and_its_problem_details() -> None:
    response = refused(shedding())

    assert response.status_code == 503
    assert response.get_json() == {
        "type": REDUCED,
        "title": "Temporary Reduced Capacity",
        "status": 503,
        "detail": "The service is busy. Please try again later.",
        "violated-policies": ["default-60s"],
        "violations": [{"policy": "default-60s", "limit": 1, "window": 60, "retry-after": 60}],
    }


@pytest.mark.parametrize(
    ("accept", "text"),
    [("text/html", "<h1>Service Unavailable</h1>"), ("text/plain", "The service is busy.")],
)
def test_text_and_html_say_that_the_service_is_busy(accept: str, text: str) -> None:
    assert text in refused(shedding(), headers={"Accept": accept}).text


def test_highest_priority_gets_503_when_nothing_is_left() -> None:
    app = shedding()
    client = app.test_client()
    assert [client.get("/?priority=critical").status_code for _ in range(3)] == [200, 200, 503]


def test_reserve_of_a_quota_per_client_refuses_with_429() -> None:
    response = refused(shedding(type=IP))
    assert (response.status_code, response.get_json()["type"]) == (429, QUOTA)


def test_client_that_exceeds_its_own_limit_as_well_gets_429() -> None:
    response = refused(
        app_with(rate_limiter(rules="2/minute", reserve=RESERVE), rate_limiter(type=IP, rules="1/minute"))
    )

    assert response.status_code == 429
    assert set(response.get_json()["violated-policies"]) == {"default-60s", "ip-60s"}


@pytest.mark.parametrize("handled", [RateLimitExceeded, 429, HTTPException])
def test_error_handler_for_refusals_gets_the_503(handled: Any) -> None:
    app = shedding()
    app.register_error_handler(handled, lambda error: (problem(error) | {"support": "help@example.com"}, error.code))

    response = refused(app)

    assert response.status_code == 503
    assert (response.get_json()["type"], response.get_json()["support"]) == (REDUCED, "help@example.com")
    assert response.headers["Retry-After"] == "60"


@pytest.mark.parametrize("handled", [503, ServiceUnavailable])
def test_error_handler_for_503_alone_does_not_get_the_refusal(handled: Any) -> None:
    app = shedding()
    app.register_error_handler(handled, lambda _: ("down for maintenance", 503))
    assert refused(app).get_json()["type"] == REDUCED


def test_message_and_on_rejected_replace_body_and_status() -> None:
    assert refused(shedding(message="Sale day!")).get_json()["detail"] == "Sale day!"
    assert refused(shedding(on_rejected=lambda _: ("later", 429))).status_code == 429
    assert refused(shedding(on_rejected=lambda _: "later")).status_code == 503


def test_exception_keeps_status_503_when_pickled_or_copied() -> None:
    app = shedding()
    caught: list[RateLimitExceeded] = []

    @app.errorhandler(RateLimitExceeded)
    def keep(error: RateLimitExceeded) -> str:
        caught.append(error)
        return ""

    refused(app)

    for twin in (pickle.loads(pickle.dumps(caught[0])), copy.copy(caught[0])):
        assert (twin.code, problem(twin)) == (503, problem(caught[0]))


def test_openapi_documents_both_statuses() -> None:
    app = app_with(
        rate_limiter(rules="100 at once", reserve=RESERVE),
        rate_limiter(type=IP, rules="10/minute", reserve=RESERVE),
    )
    with app.app_context():
        responses = app.extensions["limits"].openapi()["paths"]["/"]["get"]["responses"]

    assert responses["503"]["description"] == "The service is busy: at most 100 at once for all clients together."
    assert responses["429"]["description"] == "Too many requests: at most 10 per minute for each address."
