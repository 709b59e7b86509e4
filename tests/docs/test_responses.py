"""The responses that pages show are those that their examples give."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from werkzeug.test import TestResponse

from support.folders import ROOT

SHOWN = [
    # page, example, path (behind a method that is not GET), calls before the one that is shown
    ("README.md", "quick-start", "/update", 10),
    ("docs/tutorial.md", "one-limit", "/quote", 3),
    ("docs/tutorial.md", "two-limits", "/quote", 4),
    ("docs/explanation/check.md", "update", "/update", 5),
    ("docs/how-to/responses.md", "body", "/", 2),
    ("docs/how-to/responses.md", "names", "/", 0),
    ("docs/how-to/ban-and-allow.md", "ban", "POST /login", 4),
]
BODIES = [
    ("docs/how-to/responses.md", "body", "/", 2),
    ("docs/how-to/ban-and-allow.md", "ban", "POST /login", 4),
]


@pytest.mark.parametrize(("page", "example", "path", "before"), SHOWN)
def test_response_of_the_app_is_as_shown(
    run: Callable[..., dict[str, Any]], page: str, example: str, path: str, before: int
) -> None:
    status, *fields = _block_after("response", page, example).splitlines()

    response = _call(run(page, example)["app"], path, before)

    assert status == f"HTTP/1.1 {response.status}"
    shown = dict(field.split(": ", 1) for field in fields)
    assert {name: response.headers.get(name) for name in shown} == shown


@pytest.mark.parametrize(("page", "example", "path", "before"), BODIES)
def test_body_of_the_app_is_as_shown(
    run: Callable[..., dict[str, Any]], page: str, example: str, path: str, before: int
) -> None:
    response = _call(run(page, example)["app"], path, before)
    assert response.get_json(force=True) == json.loads(_block_after("body", page, example))


def test_every_response_on_a_page_is_checked() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    marks = [
        (str(page.relative_to(ROOT)), example)
        for page in pages
        for example in re.findall(r"^(?:%|<!--) response: ([\w-]+)", page.read_text(), re.MULTILINE)
    ]
    assert sorted(marks) == sorted((page, example) for page, example, *_ in SHOWN)


def _call(app: Any, path: str, before: int) -> TestResponse:
    client, (method, _, path) = app.test_client(), path.rpartition(" ")
    for _ in range(before):
        client.open(path, method=method or "GET")
    response: TestResponse = client.open(path, method=method or "GET")
    return response


def _block_after(mark: str, page: str, example: str) -> str:
    pattern = rf"^(?:%|<!--) {mark}: {example}(?: -->)?\n```\w+\n(.*?)^```"
    match = re.search(pattern, (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert match is not None
    return match[1]
