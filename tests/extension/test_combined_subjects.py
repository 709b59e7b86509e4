"""Subjects of combined types, with callables among them: `peek`, `reset` and commands name their parts."""

from ipaddress import ip_address
from typing import Any
from uuid import UUID

import pytest
from click.testing import Result
from flask import Flask, request

from flask_multilimit import ConfigurationError, LimitType, MultiLimit, rate_limiter
from flask_multilimit.engine import hits_for
from flask_multilimit.testing import exhaust
from support.asking import statuses, view
from support.doubles import RecordingStorage


def document() -> str:
    return str(request.args["document"])


def folder() -> str:
    return str(request.args["folder"])


@pytest.fixture
def multilimit(app: Flask, storage: RecordingStorage) -> MultiLimit:
    multilimit = MultiLimit(app, storage=storage, user_loader=lambda: request.headers.get("X-User"))
    one = rate_limiter(type=(LimitType.IP, document), name="reads", rules="1/minute")
    two = rate_limiter(type=(document, folder, LimitType.USER), name="place", rules="1/minute")
    all_of_it = rate_limiter(type=(document,), name="all", rules="1/minute")
    app.add_url_rule("/one", "one", one(view()))
    app.add_url_rule("/two", "two", two(view()))
    app.add_url_rule("/all", "all", all_of_it(view()))
    return multilimit


ONE: dict[str, Any] = {"path": "/one?document=a", "given": ["ip:127.0.0.1", "reads:a"]}
TWO = {
    "path": "/two?document=a&folder=b",
    "given": ["document:a", "folder:b", "anonymous:127.0.0.1"],
}
ALL = {"path": "/all?document=a", "given": "all:a"}
EACH_COMBINATION = pytest.mark.parametrize(
    ("endpoint", "combination"), [("one", ONE), ("two", TWO), ("all", ALL)], ids=["one", "two", "all"]
)


@EACH_COMBINATION
def test_peek_and_reset_find_the_quota_by_all_parts(
    app: Flask, multilimit: MultiLimit, endpoint: str, combination: dict[str, Any]
) -> None:
    assert statuses(app, combination["path"], combination["path"]) == [200, 429]

    with app.app_context():
        before = multilimit.peek(endpoint, combination["given"])
        multilimit.reset(endpoint, combination["given"])

    assert [status.remaining for status in before.statuses] == [0]
    assert statuses(app, combination["path"]) == [200]


def test_peek_finds_a_subject_written_as_in_its_key(
    app: Flask, multilimit: MultiLimit, storage: RecordingStorage
) -> None:
    statuses(app, ONE["path"])

    with app.app_context():
        found = multilimit.peek("one", 'reads:[["ip", "127.0.0.1"], ["reads", "a"]]')

    assert [hit.key for hit in found.hits] == storage.keys_asked[0]
    assert [status.remaining for status in found.statuses] == [0]


def test_part_that_looks_like_the_whole_of_another_subject_has_a_quota_of_its_own(
    app: Flask, multilimit: MultiLimit, storage: RecordingStorage
) -> None:
    chosen = 'reads:[["ip", "203.0.113.9"], ["reads", "a"]]'
    statuses(app, f"/one?document={chosen.removeprefix('reads:')}")

    with app.app_context():
        found = multilimit.peek("one", ["ip:127.0.0.1", chosen])
        assert [hit.key for hit in found.hits] == storage.keys_asked[0]
        checks = [["ip:203.0.113.9", "reads:a"], ["ip:127.0.0.1", chosen]]
        assert [multilimit.check("1/minute", scope="search", subject=each).allowed for each in checks] == [True, True]


def test_reset_of_several_subjects_leaves_another_alone_that_one_of_them_looks_like(
    app: Flask, multilimit: MultiLimit
) -> None:
    assert statuses(app, *["/one?document=a"] * 2) == [200, 429]

    with app.app_context(), pytest.raises(ConfigurationError, match="nothing was reset"):
        multilimit.reset("one", ["user:mallory", 'reads:[["ip", "127.0.0.1"], ["reads", "a"]]'])

    assert statuses(app, "/one?document=a") == [429]


@pytest.mark.parametrize("odd", ['[["ip", "203.0.113.9"], ["name", "ada"]]', f"*{'0a' * 20}"])
def test_client_that_chose_how_storage_has_such_a_subject_is_not_charged_to_it(
    app: Flask, multilimit: MultiLimit, odd: str
) -> None:
    chosen, by_name = [odd, f"text:{odd}", f"text:text:{odd}"], {"type": lambda: request.args["name"], "name": "name"}
    for each in chosen:
        with app.test_request_context("/open", query_string={"name": each}):
            assert multilimit.check("1/minute", scope="search", **by_name).allowed  # type: ignore[arg-type]
            assert not multilimit.check("1/minute", scope="search", subject=f"name:{each}").allowed  # the same
            hits = hits_for("1/minute", scope="search", subject=f"name:{each}")
            assert not multilimit.check_hits(hits, scope="search", subject=f"name:{each}").allowed


def test_subject_that_looks_like_several_parts_is_not_charged_to_these(app: Flask, multilimit: MultiLimit) -> None:
    pair, odd = ["ip:203.0.113.9", "name:ada"], '[["ip", "203.0.113.9"], ["name", "ada"]]'
    by_name: dict[str, Any] = {"type": lambda: request.args["name"], "name": "name"}
    with app.test_request_context(f"/open?name={odd}"):
        assert multilimit.check("1/minute", scope="search", subject=pair).allowed
        assert multilimit.limiter.check(hits_for("1/minute", scope="search", subject=f"name:{odd}")).allowed
        for same in ({"subject": f"name:{odd}"}, by_name):
            assert not multilimit.check("1/minute", scope="search", **same).allowed


@pytest.mark.parametrize("given", ["reads:a", "ip:127.0.0.1", "user:ann"])
def test_reset_that_finds_no_quota_is_an_error(app: Flask, multilimit: MultiLimit, given: str) -> None:
    with app.app_context(), pytest.raises(ConfigurationError, match=r'no limiter at "one" counts .*nothing was reset'):
        multilimit.reset("one", given)


@pytest.mark.parametrize("given", [["raeds:a"], ["reads:a", "raeds:a"]])
def test_unknown_type_is_an_error_that_lists_the_types(app: Flask, multilimit: MultiLimit, given: list[str]) -> None:
    types = "all, document, folder, ip, place, reads, user"
    for ask in (multilimit.peek, multilimit.reset):
        with (
            app.app_context(),
            pytest.raises(ConfigurationError, match=f"a type called 'raeds'; its types are: {types}"),
        ):
            ask("one", ["ip:127.0.0.1", *given])

    run = app.test_cli_runner().invoke(args=["multilimit", "check", "one", "--subject", "raeds:a"])

    assert (run.exit_code, "has a type called 'raeds'" in run.output) == (1, True)


def test_peek_ignores_a_type_of_another_endpoint(app: Flask, multilimit: MultiLimit) -> None:
    with app.app_context():
        assert multilimit.peek("one", "folder:b").statuses == ()


def test_reset_accepts_ids_as_the_types_return_them(app: Flask, multilimit: MultiLimit) -> None:
    number = UUID(int=5)
    app.get("/three", endpoint="three")(
        rate_limiter(type=(LimitType.IP, lambda: number), name="id", rules="1/minute")(view())
    )
    assert statuses(app, "/three", "/three") == [200, 429]

    with app.app_context():
        multilimit.reset("three", [f"ip:{ip_address('127.0.0.1')}", f"id:{number}"])

    assert statuses(app, "/three") == [200]


def test_callables_with_the_same_name_are_numbered(app: Flask, multilimit: MultiLimit) -> None:
    types = (LimitType.IP, lambda: "first", lambda: "second")
    app.get("/two-lambdas", endpoint="three")(rate_limiter(type=types, name="both", rules="1/minute")(view()))
    assert statuses(app, "/two-lambdas", "/two-lambdas") == [200, 429]

    with app.app_context():
        multilimit.reset("three", ["ip:127.0.0.1", "<lambda>:first", "<lambda>-2:second"])

    assert statuses(app, "/two-lambdas") == [200]


@pytest.mark.usefixtures("multilimit")
def test_exhaust_with_missing_parts_is_an_error_that_names_them(app: Flask) -> None:
    with pytest.raises(ConfigurationError, match=r'\(\["ip:\.\.\.", "reads:\.\.\."\]\)'):
        exhaust(app, "one")
    with pytest.raises(ConfigurationError, match=r'\(\["document:\.\.\.", "folder:\.\.\.", "user:\.\.\."\]\)'):
        exhaust(app, "two", "ip:127.0.0.1")


@pytest.mark.usefixtures("multilimit")
class TestOnTheCommandLine:
    def run(self, app: Flask, *arguments: str) -> Result:
        return app.test_cli_runner().invoke(args=["multilimit", *arguments])

    def test_reset_command_with_one_part_names_the_missing_ones(self, app: Flask) -> None:
        run = self.run(app, "reset", "one", "--yes", "--ip", "127.0.0.1")
        assert run.exit_code == 1
        assert 'no limit at "one" counts ip; it is limited by reads (--ip and --subject reads:...)' in run.output
