"""A browser, and a shop with three workers and a real server."""

import http.client
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from support.browser import Tab, tab
from support.processes import Program
from support.servers import Server
from support.waiting import PATIENCE

WORKERS = 3

Visit = Callable[..., "AbstractContextManager[Tab]"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "operate/dashboard/browser" in item.path.as_posix():
            item.add_marker("slow")


class Shop:
    """The served app, which can be asked as customers do."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}/multilimit/"

    def ask(self, path: str, *, address: str = "203.0.113.7", user: str | None = None, **headers: str) -> None:
        given = {"X-Forwarded-For": address, **({} if user is None else {"X-User": user}), **headers}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as connection:
            connection.request("GET", path, headers=given)
            connection.getresponse()


@pytest.fixture(scope="module")
def shop(shared_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    shared_server.client().flushall()
    recorded: Path = tmp_path_factory.mktemp("recorded")
    storage = {"FLASK_MULTILIMIT_STORAGE_URI": shared_server.url, "FLASK_MULTILIMIT_STORAGE_TIMEOUT": "10"}
    with Program(
        *("gunicorn", "--bind", "127.0.0.1:0", "--workers", str(WORKERS), "--worker-class", "gthread"),
        *("--threads", "4", "operate.dashboard.browser.served:app"),
        environment={**storage, "RECORDED": str(recorded)},
    ) as program:
        yield Shop(program.port)


@pytest.fixture
def visit(browser: Browser) -> Visit:
    """Opens a window of somebody who is logged in: ``with visit("ada") as tab``."""

    def opened(author: str = "ada", **options: Any) -> AbstractContextManager[Tab]:
        return tab(browser, http_credentials={"username": author, "password": "secret"}, **options)

    return opened
