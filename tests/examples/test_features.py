"""The examples of these features, each as an app or as the program it is."""

import contextlib
import http.client
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text
from sqlalchemy.orm import Session
from werkzeug.security import check_password_hash, generate_password_hash
from werkzeug.serving import make_server
from werkzeug.test import TestResponse

from flask_multilimit.testing import freeze
from support import waiting
from support.asking import ask
from support.folders import EXAMPLES, ROOT
from support.servers import Server


class Client:
    """Sends each request without cookies."""

    def __init__(self, app: Flask) -> None:
        self._app = app

    def __call__(self, path: str, *, form: Mapping[str, str] | None = None, **headers: str) -> TestResponse:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return ask(self._app, path, method="GET" if form is None else "POST", data=form, headers=sent)


def load(path: Path) -> Any:
    """A new copy of the module, with unused quotas."""
    package = path.name == "__init__.py"
    name = f"example_{path.parent.name if package else path.stem}"
    for loaded in [loaded for loaded in sys.modules if loaded.split(".")[0] == name]:
        del sys.modules[loaded]
    spec = importlib.util.spec_from_file_location(
        name, path, submodule_search_locations=[str(path.parent)] if package else None
    )
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class TestLoginProtection:
    @pytest.fixture
    def get(self) -> Client:
        example = load(EXAMPLES / "login_protection.py")
        quick = "pbkdf2:sha256:1"  # a slow hash would slow down the tests
        example.NOBODY = generate_password_hash("", quick)
        for account, password in (("ann", "correct-horse"), ("bob", "battery-staple")):
            assert check_password_hash(example.PASSWORDS[account], password)
            example.PASSWORDS[account] = generate_password_hash(password, quick)
        return Client(example.app)

    def login(self, get: Client, account: str, password: str) -> TestResponse:
        return get("/login", form={"account": account, "password": password}, Accept="text/plain")

    def test_successful_logins_are_not_limited(self, get: Client) -> None:
        assert [self.login(get, "ann", "correct-horse").status_code for _ in range(25)] == [200] * 25

    def test_account_is_locked_after_five_guesses(self, get: Client) -> None:
        replies = [self.login(get, spelling, "guess") for spelling in ("ann", "Ann", " ANN ", "ann", "aNN", "ann")]

        assert [reply.status_code for reply in replies] == [401] * 5 + [429]
        assert replies[5].text.startswith("Too many failed attempts for this account.")
        assert 890 <= int(replies[5].headers["Retry-After"]) <= 900
        assert self.login(get, "ann", "correct-horse").status_code == 429, "also the right password has to wait"
        assert self.login(get, "bob", "battery-staple").status_code == 200

    def test_login_refunds_the_failures_of_its_account(self, get: Client) -> None:
        for _ in range(3):
            assert [self.login(get, "ann", "guess").status_code for _ in range(4)] == [401] * 4
            assert self.login(get, "ann", "correct-horse").status_code == 200

    def test_address_is_refused_after_twenty_guesses(self, get: Client) -> None:
        replies = [self.login(get, f"account {n}", "guess").status_code for n in range(21)]
        assert replies == [401] * 20 + [429]


class TestScanners:
    PAGES = ("/wp-login.php", "/.env", "/.git/config", "/admin.php", "/phpinfo.php", "/backup.sql", "/a.zip", "/b.zip")

    @pytest.fixture
    def get(self) -> Client:
        return Client(load(EXAMPLES / "scanners.py").app)

    def test_five_missing_pages_are_not_refused(self, get: Client) -> None:
        assert [get(page).status_code for page in self.PAGES[:5]] == [404] * 5
        assert get("/").status_code == 200

    def test_scanner_is_refused_everywhere(self, get: Client) -> None:
        replies = [get(page) for page in self.PAGES]
        index = get("/", Accept="application/json")

        assert [reply.status_code for reply in replies] == [404] * 5 + [429] * 3
        waits = [int(reply.headers["Retry-After"]) for reply in replies[5:]]
        assert max(waits[:2]) <= 60
        assert 3590 <= waits[2] <= 3600
        assert index.status_code == 429
        assert index.headers["RateLimit-Policy"].endswith('"visitors-ban";q=0')
        assert '"title": "Abnormal Usage Detected"' in index.text

    def test_visitors_of_existing_pages_are_not_refused(self, get: Client) -> None:
        assert [get("/").status_code for _ in range(20)] == [200] * 20


class TestPasswordGuessers:
    @pytest.fixture
    def example(self) -> Any:
        example = load(EXAMPLES / "password_guessers.py")
        quick = "pbkdf2:sha256:1"  # a slow hash would slow down the tests
        example.NOBODY = generate_password_hash("", quick)
        example.PASSWORDS["ann"] = generate_password_hash("correct-horse", quick)
        return example

    def login(self, get: Client, password: str) -> TestResponse:
        return get("/login", form={"account": "ann", "password": password}, Accept="text/plain")

    def test_successful_logins_are_not_counted(self, example: Any) -> None:
        get = Client(example.app)
        assert [self.login(get, "correct-horse").status_code for _ in range(20)] == [200] * 20
        assert example.banned == []

    def test_guesser_is_banned_even_with_the_right_password(self, example: Any) -> None:
        get = Client(example.app)
        replies = [self.login(get, f"guess {n}") for n in range(9)]
        right = self.login(get, "correct-horse")

        assert [reply.status_code for reply in replies] == [401] * 5 + [429] * 4
        waits = [int(reply.headers["Retry-After"]) for reply in replies[5:]]
        assert [wait <= 900 for wait in waits] == [True, True, False, False]
        assert 3590 <= waits[2] <= 3600
        assert "You are temporarily banned." in replies[7].text
        assert right.status_code == 429
        [(address, until)] = example.banned
        assert address == "127.0.0.1"
        assert 3580 <= until - time.time() <= 3600


class TestApiTiers:
    @pytest.fixture
    def get(self) -> Client:
        return Client(load(EXAMPLES / "api_tiers.py").app)

    def test_each_customer_has_the_rules_of_its_tier(self, get: Client) -> None:
        ann = [get("/items", X_Api_Key="key-of-ann") for _ in range(4)]
        bob = [get("/items", X_Api_Key="key-of-bob") for _ in range(4)]

        assert [reply.status_code for reply in ann] == [200, 200, 200, 429]
        assert [reply.status_code for reply in bob] == [200] * 4
        assert '"customer-60s";q=3;w=60, "customer-86400s";q=100;w=86400' in ann[0].headers["RateLimit-Policy"]
        assert '"customer-60s";q=30;w=60' in bob[0].headers["RateLimit-Policy"]

    def test_export_costs_three_units_of_the_same_quota(self, get: Client) -> None:
        assert [get(path, X_Api_Key="key-of-ann").status_code for path in ("/export", "/items")] == [200, 429]

    def test_new_tier_applies_at_once(self, get: Client) -> None:
        for _ in range(2):
            get("/items", X_Api_Key="key-of-ann")
        assert get("/tier/gold", form={}, X_Api_Key="key-of-ann").text == "ann is gold now.\n"
        assert [get("/items", X_Api_Key="key-of-ann").status_code for _ in range(5)] == [200] * 5

    def test_unknown_tier_keeps_the_last_rules(self, get: Client) -> None:
        assert get("/items", X_Api_Key="key-of-ann").status_code == 200
        get("/tier/diamond", form={}, X_Api_Key="key-of-ann")
        assert [get("/items", X_Api_Key="key-of-ann").status_code for _ in range(2)] == [200, 429]

    def test_guesses_of_api_keys_are_limited(self, get: Client) -> None:
        assert [get("/items", X_Api_Key=f"key {n}").status_code for n in range(11)] == [401] * 10 + [429]


class TestAppFactory:
    @pytest.fixture
    def get(self) -> Client:
        return Client(load(EXAMPLES / "app_factory" / "__init__.py").create_app())

    def names(self, reply: TestResponse) -> list[str]:
        return [item.split('"')[1] for item in reply.headers.get("RateLimit-Policy", "").split(", ") if item]

    def test_limits_come_from_the_file(self, get: Client) -> None:
        assert [get("/shop/search?q=pear", X_User="ann").status_code for _ in range(4)] == [200] * 3 + [429]
        assert [get("/admin/users", X_User="ann").status_code for _ in range(3)] == [200, 200, 429]
        assert [get("/nowhere").status_code for _ in range(6)] == [404] * 5 + [429]
        assert self.names(get("/shop/items")) == ["application-60s", "ip-30s", "ip-60s"]
        assert self.names(get("/health")) == []

    def test_limit_in_code_applies_beside_the_file(self, get: Client) -> None:
        assert [get("/admin/report", form={}, X_User=user).status_code for user in ("ann", "bob")] == [200, 429]

    def test_apps_of_the_factory_are_independent(self) -> None:
        module = load(EXAMPLES / "app_factory" / "__init__.py")
        one, two = module.create_app(), module.create_app({"MULTILIMIT_ENABLED": False})
        assert [one.test_client().get("/nowhere").status_code for _ in range(6)] == [404] * 5 + [429]
        assert [two.test_client().get("/nowhere").status_code for _ in range(6)] == [404] * 6

    def test_flask_command_finds_the_app(self) -> None:
        command = [sys.executable, "-m", "flask", "--app", "examples/app_factory", "routes"]
        output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=30).stdout
        assert "shop.search" in output


class TestTokens:
    @pytest.fixture
    def port(self) -> Iterator[int]:
        example = load(EXAMPLES / "tokens.py")
        example.model.seconds = 0
        server = make_server("127.0.0.1", 0, example.app, threaded=True)
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()
        server.server_close()

    def chat(self, port: int, words: int, *, key: str = "k-ada", read: int | None = None) -> tuple[int, str]:
        """The status, and what was read of the answer before the client hangs up."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        with contextlib.closing(connection):
            connection.request("POST", "/chat", "word " * words, {"X-Api-Key": key})
            response = connection.getresponse()
            return response.status, response.read(read).decode()

    def left(self, key: str = "k-ada") -> Any:
        return json.loads(Client(sys.modules["example_tokens"].app)("/left", X_Api_Key=key).text)

    def test_answer_is_charged_its_tokens(self, port: int) -> None:
        status, text = self.chat(port, 4)
        assert (status, len(text.split())) == (200, 20)
        waiting.until(lambda: self.left() == {"left": 600 - 3 * 24, "over": 0})
        assert self.left("k-bob")["left"] == 600

    def test_debt_refuses_the_next_request(self, port: int) -> None:
        self.chat(port, 50)
        waiting.until(lambda: self.left() == {"left": 0, "over": 300})
        assert self.chat(port, 1)[0] == 429
        assert self.chat(port, 1, key="k-bob")[0] == 200

    def test_interrupted_answer_is_charged_only_the_sent_part(self, port: int) -> None:
        sys.modules["example_tokens"].model.seconds = 0.002
        self.chat(port, 30, read=20)
        waiting.until(lambda: self.left()["left"] not in {550, 600})
        assert 600 - 3 * 30 * 6 < self.left()["left"] < 600

    def test_clients_learn_that_tokens_are_counted(self) -> None:
        client = load(EXAMPLES / "tokens.py").app.test_client()
        with client.post("/chat", data="hello", headers={"X-Api-Key": "k-ada"}) as response:
            assert response.headers["RateLimit-Policy"] == '"tokens-60s";q=600;qu="tokens";w=60'

    def test_unknown_api_key_is_refused_with_401(self, port: int) -> None:
        assert self.chat(port, 1, key="k-eve")[0] == 401


class TestPlans:
    """The clock stands still on one day of 2026."""

    ADA = {"X-Api-Key": "k-ada"}  # noqa: RUF012

    @pytest.fixture
    def example(self) -> Any:
        return load(EXAMPLES / "plans.py")

    @pytest.fixture
    def client(self, example: Any) -> Iterator[FlaskClient]:
        with freeze(example.app):
            yield example.app.test_client()

    def chat(self, client: FlaskClient, words: int, **options: Any) -> int:
        return client.post("/chat", data="word " * words, headers=self.ADA, **options).status_code

    def left(self, client: FlaskClient) -> dict[str, tuple[int, int]]:
        """The remaining units and the count of each limit, by label."""
        found = json.loads(client.get("/rate_limit", headers=self.ADA).text)["resources"].values()
        return {each["label"]: (each["remaining"], each["limit"]) for each in found}

    def test_customer_is_charged_tokens_and_sees_the_rest(self, client: FlaskClient) -> None:
        assert self.chat(client, 10) == 200
        assert self.left(client) == {"Tokens this month": (970, 1000), "Requests a minute": (2, 3)}
        page = client.get("/rate_limit", headers={**self.ADA, "Accept": "text/html"}).text
        assert re.search(r"resets on 15 \w+( \d{4})?, 00:00 in Berlin", page)

    def test_refused_request_costs_no_tokens(self, client: FlaskClient) -> None:
        assert [self.chat(client, 10) for _ in range(4)] == [200, 200, 200, 429]
        assert self.left(client)["Tokens this month"] == (910, 1000)

    def test_upgrade_adds_tokens_and_keeps_used_ones(self, client: FlaskClient) -> None:
        assert self.chat(client, 400) == 200  # a debt of 200
        assert self.chat(client, 1) == 429

        assert client.post("/upgrade", headers=self.ADA).status_code == 200

        assert self.chat(client, 1) == 200
        assert self.left(client)["Tokens this month"] == (100_000 - 1_203, 100_000)

    def test_only_support_sees_the_plan_of_a_customer(self, client: FlaskClient) -> None:
        self.chat(client, 10)

        found = json.loads(client.get("/support/ada", headers={"X-Api-Key": "k-support"}).text)

        assert found["left"] == {"1000 per calendar month from 15 in Europe/Berlin": 970, "3 per minute": 2}
        assert client.get("/support/ada", headers=self.ADA).status_code == 401
        assert client.get("/support/eve", headers={"X-Api-Key": "k-support"}).status_code == 404

    def test_unreadable_plan_keeps_the_last_one(self, example: Any, client: FlaskClient) -> None:
        client.post("/upgrade", headers=self.ADA)
        self.chat(client, 10)
        with Session(example.engine) as session:
            session.execute(text("ALTER TABLE customers RENAME COLUMN plan TO lost"))
            session.commit()

        assert self.chat(client, 10) == 200
        assert self.left(client)["Tokens this month"] == (100_000 - 60, 100_000)


class TestLimitedJob:
    def run(self, *arguments: str) -> list[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FLASK_")}
        done = subprocess.run(
            [sys.executable, "examples/limited_job.py", *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        return done.stdout.splitlines()

    SENT = ["ann: sent", "bob: sent", "ann: sent", "eve: sent", "ann: had enough for today", "bob: sent", "ida: sent"]  # noqa: RUF012

    def test_job_waits_for_mail_server_and_skips_clients_over_quota(self) -> None:
        assert self.run() == self.SENT

    def test_jobs_on_one_server_share_quotas(self, server: Server) -> None:
        assert self.run(server.url) == self.SENT
        assert self.run(server.url) == [
            "ann: had enough for today",
            "bob: had enough for today",
            "ann: had enough for today",
            "eve: sent",
            "ann: had enough for today",
            "bob: had enough for today",
            "ida: sent",
        ]
