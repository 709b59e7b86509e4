"""The apps of "Pay what it really cost" pay what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask.testing import FlaskClient

PAGE = "docs/how-to/real-cost.md"


def left(client: FlaskClient, endpoint: str, **headers: str) -> tuple[int, int]:
    """What is left, and what is over."""
    app = client.application
    with app.test_request_context(headers=headers, environ_base={"REMOTE_ADDR": "127.0.0.1"}):
        *_, last = app.extensions["multilimit"].peek(endpoint).statuses
    return last.remaining, last.debt


def test_a_chat_pays_the_tokens_that_its_response_names(run: Callable[..., dict[str, Any]]) -> None:
    client = run(PAGE, "chat")["app"].test_client()

    client.post("/chat", json={"prompt": "x" * 400}, headers={"X-Api-Key": "k-ada"})

    assert left(client, "chat", **{"X-Api-Key": "k-ada"}) == (100_000 - 1200, 0)


def test_a_response_tells_its_points_in_a_field_that_clients_do_not_see(run: Callable[..., dict[str, Any]]) -> None:
    client = run(PAGE, "header")["app"].test_client()

    response = client.get("/graphql")

    assert "X-Points" not in response.headers
    assert left(client, "graphql") == (1000 - 34, 0)


def test_a_stream_pays_when_it_is_closed(run: Callable[..., dict[str, Any]]) -> None:
    app = run(PAGE, "stream")["app"]
    app.testing = True  # it is settled before it is closed, and not soon after
    client = app.test_client()

    response = client.post("/stream")
    before = left(client, "stream")
    response.get_data()
    response.close()

    assert (before, left(client, "stream")) == ((5000 - 200, 0), (5000 - 9, 0))


@pytest.mark.parametrize(
    ("query", "points"),
    [
        ("{ books(first: 3) { title } }", 1 + 3),
        ("{ books(first: 10) { title likeIt { title } } }", 1 + 10 * 2 + 20),
        ("{ nothing }", 1),
        ("{ books(first: 500) { title likeIt { likeIt { likeIt { title } } } } }", 1 + 100 * (2 + 2 + 4 + 8)),
    ],
)
def test_a_graphql_query_pays_a_point_for_each_field_that_it_makes_the_app_look_up(
    run: Callable[..., dict[str, Any]], query: str, points: int
) -> None:
    pytest.importorskip("graphql")
    client = run(PAGE, "graphql")["app"].test_client()

    statuses = [client.post("/graphql", json={"query": query}).status_code]

    assert left(client, "query") == (max(1000 - points, 0), max(points - 1000, 0))
    statuses.append(client.post("/graphql", json={"query": query}).status_code)
    assert statuses == [200, 429 if points > 980 else 200]
