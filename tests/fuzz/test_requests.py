"""Random requests are limited: they never cause an error of ours, and no answer repeats their text as markup."""

import pytest
from flask import Flask, request
from flask.testing import FlaskClient
from hypothesis import example, given
from hypothesis import strategies as st
from werkzeug.middleware.proxy_fix import ProxyFix

from flask_multilimit import IP, MultiLimit, rate_limiter
from support.effort import tries

MARK = "<mark>"

# What servers hand on: bytes as Latin-1, and no line breaks.
header_texts = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n"), max_size=40)
header_texts |= st.sampled_from(
    [
        MARK,
        "::1",
        "[::1]:80",
        "fe80::1%eth0",
        "1.2.3.4, 5.6.7.8",
        ",",
        "\0",
        "9" * 5000,
        "text/html;q=nan",
        "application/problem+json;q=-1, */*;q=2",
        f"application/json, {MARK}",
        "zh-TW-x-private;q=0.5, *",
        "zh;q=1e999",
        "Basic Og==",
        "Bearer \xff",
        "Digest username=" + MARK,
        "a:99999",
        "[",
    ]
)
names = [
    "X-Forwarded-For",
    "X-Forwarded-Proto",
    "X-Forwarded-Host",
    "X-Forwarded-Port",
    "X-Forwarded-Prefix",
    "Accept",
    "Accept-Language",
    "Accept-Charset",
    "Authorization",
    "Cookie",
    "Content-Length",
    "Content-Type",
]
headers = st.dictionaries(st.sampled_from(names), header_texts, max_size=5)
subjects = st.text(st.characters(codec=None), max_size=40)


@pytest.fixture(scope="module")
def client() -> FlaskClient:
    app = Flask("fuzzed")
    app.wsgi_app = ProxyFix(app.wsgi_app, x_for=1, x_proto=1, x_host=1, x_port=1, x_prefix=1)  # type: ignore[method-assign]
    MultiLimit(app)

    @app.get("/")
    @rate_limiter(type=IP, rules="1/hour")
    @rate_limiter(type=lambda: request.headers.get("Authorization"), name="key", rules="1/hour")
    @rate_limiter(rules="1/hour", scope="refuses")
    def view() -> str:
        return "ok"

    @app.get("/subject")
    @rate_limiter(type=lambda: request.environ["subject"], name="who", rules="1000000/second")
    def for_subject() -> str:
        return "ok"

    client = app.test_client()
    assert client.get("/").status_code == 200
    return client


@tries(5)
@given(headers)
def test_random_header_fields_get_a_valid_answer(client: FlaskClient, headers: dict[str, str]) -> None:
    environ = {_in_environ(name): value for name, value in headers.items()}

    response = client.get("/", environ_overrides=environ)

    assert response.status_code in {429, 400}  # 400: Werkzeug's, for a host that is none
    assert MARK not in response.text
    assert not any(set("\r\n") & set(value) or MARK in value for value in response.headers.values())


@tries(3)
@given(subjects)
@example("x" * 1_000_000)
@example("\ud800" * 100_000)
def test_random_subject_is_limited(client: FlaskClient, subject: str) -> None:
    assert client.get("/subject", environ_overrides={"subject": subject}).status_code == 200


def _in_environ(name: str) -> str:
    name = name.upper().replace("-", "_")
    return name if name.startswith("CONTENT_") else f"HTTP_{name}"
