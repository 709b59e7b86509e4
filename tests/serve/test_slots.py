"""Slots of Concurrent rules: taken by the check, released when the response is closed."""

import asyncio
import gc
import io
import os
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import IO, Any

import pytest
import redis
from flask import Flask, Response, abort, copy_current_request_context, request, send_file, stream_with_context
from werkzeug.test import EnvironBuilder, TestResponse, run_wsgi_app
from werkzeug.wsgi import FileWrapper

from flask_multilimit import (
    Concurrent,
    ConfigurationError,
    MultiLimit,
    RateLimitExceeded,
    current_decision,
    rate_limiter,
)
from flask_multilimit.declare.advice import Holder, holding
from flask_multilimit.engine import Decision, MemoryStorage, StorageError, hits_for
from flask_multilimit.engine.slots import KEEPER
from support.calls import calls_during
from support.doubles import OwnStorage, raising, with_wraps
from support.interrupts import interrupted
from support.servers import Server
from support.waiting import PATIENCE, until

two_at_once = rate_limiter(rules="2 at once")
FOR_SLOTS = ("slot", "settle", "concurrency", "hold", "release")
"""Parts of the names of modules and functions that work on slots."""


@pytest.fixture
def app() -> Flask:
    app = Flask(__name__)
    app.extensions["ours"] = MultiLimit(app)
    return app


def in_use(app: Flask, endpoint: str) -> int:
    with app.app_context():
        decision = app.extensions["ours"].peek(endpoint, "everyone")
    (status,) = decision.statuses
    return int(status.rule.count - status.remaining)


def get(app: Flask, path: str = "/", **options: Any) -> TestResponse:
    return app.test_client().get(path, **options)


def test_slot_is_in_use_until_the_response_is_closed(app: Flask) -> None:
    app.add_url_rule("/", "index", two_at_once(lambda: "ok"))

    first, second, third = get(app), get(app), get(app)

    assert [first.status_code, second.status_code, third.status_code] == [200, 200, 429]
    assert in_use(app, "index") == 2
    first.close()
    assert in_use(app, "index") == 1
    assert get(app, buffered=True).status_code == 200
    assert in_use(app, "index") == 1
    second.close()
    second.close()
    assert in_use(app, "index") == 0
    assert len(KEEPER) == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupted_request_renews_its_slot_no_more(app: Flask) -> None:
    many_at_once = rate_limiter(rules="1000 at once")

    @app.get("/")
    @many_at_once
    def index() -> str:
        return service()

    @many_at_once
    def service() -> str:
        return "ok"

    def request() -> None:
        get(app, buffered=True)

    request()
    for _ in interrupted(request):
        gc.collect()
        until(lambda: len(KEEPER) == 0, every=0.001)


def test_complete_response_in_testing_mode_needs_no_close(app: Flask) -> None:
    app.testing = True
    app.add_url_rule("/", "index", two_at_once(lambda: "ok"))
    app.add_url_rule("/missing", "missing", two_at_once(lambda: abort(404)))
    app.add_url_rule("/stream", "stream", two_at_once(lambda: iter("ab")))

    assert [get(app).status_code for _ in range(5)] == [200] * 5
    assert [response.status_code for response in [get(app, "/missing") for _ in range(5)]] == [404] * 5
    with app.test_client() as client:  # it ends a request when the next one begins
        assert [client.get("/").status_code for _ in range(5)] == [200] * 5
    assert in_use(app, "index") == 0
    open_ = [get(app, "/stream") for _ in range(3)]
    assert [response.status_code for response in open_] == [200, 200, 429]


@contextmanager
def answer(app: Flask, path: str = "/", **options: Any) -> Iterator[TestResponse]:
    with closing(get(app, path, **options)) as response:
        yield response


def test_stream_holds_its_slot_until_its_last_byte_or_until_it_is_closed(app: Flask) -> None:
    app.add_url_rule("/", "index", two_at_once(lambda: stream_with_context(iter("ab"))))

    with answer(app) as whole:
        assert in_use(app, "index") == 1
        assert whole.text == "ab"
        assert in_use(app, "index") == 0
    with answer(app):
        assert in_use(app, "index") == 1
    assert in_use(app, "index") == 0


@pytest.mark.parametrize("view", [lambda: "ok", lambda: iter("ab"), lambda: (_raise() for _ in "a")])
def test_slot_is_released_by_an_adapter_that_never_closes_a_response(app: Flask, view: Callable[[], Any]) -> None:
    app.add_url_rule("/", "index", two_at_once(view))

    body = app.wsgi_app(EnvironBuilder().get_environ(), lambda *_: lambda _: None)

    assert in_use(app, "index") == 1
    with suppress(RuntimeError):
        assert list(body)
    assert in_use(app, "index") == 0


def _raise() -> str:
    raise RuntimeError("broken")


def _abort() -> str:
    abort(404)


def _send() -> Any:
    return send_file(io.BytesIO(b"x" * 100_000), mimetype="text/plain")


async def _wait() -> str:
    await asyncio.sleep(0)
    return "ok"


@pytest.mark.parametrize(
    ("view", "status"),
    [(_raise, 500), (_abort, 404), (_send, 200), (_wait, 200), (lambda: ("", 204), 204)],
    ids=["error", "abort", "file", "async", "empty"],
)
def test_slot_is_released_after_every_kind_of_view(app: Flask, view: Any, status: int) -> None:
    app.add_url_rule("/", "index", two_at_once(view))

    for _ in range(5):
        with answer(app) as response:
            assert response.status_code == status
            assert in_use(app, "index") == (status != 204)  # without a body, it is complete
        assert in_use(app, "index") == 0


def test_slot_of_an_upgrade_response_is_released(app: Flask) -> None:
    class Upgraded(app.response_class):  # type: ignore[name-defined,misc]
        """Like the response of a websocket, which takes over the connection."""

        def __call__(self, _: Any, start_response: Any) -> list[bytes]:
            start_response("101 Switching Protocols", [])
            return []

    app.add_url_rule("/", "index", two_at_once(lambda: Upgraded()))  # noqa: PLW0108 - a class is no view

    assert [get(app).status_code for _ in range(5)] == [101] * 5
    assert in_use(app, "index") == 0


def test_slot_is_released_when_after_request_replaces_the_response() -> None:
    app = Flask(__name__)

    @app.after_request
    def replace(response: Any) -> Any:  # runs after that of the extension, which is registered later
        return app.response_class("other", headers=response.headers)

    app.extensions["ours"] = MultiLimit(app)
    app.add_url_rule("/", "index", two_at_once(lambda: "ok"))

    for _ in range(5):
        with answer(app) as response:
            assert in_use(app, "index") == 1
            assert response.text == "other"
    assert in_use(app, "index") == 0


def test_slot_of_a_garbage_collected_response_is_released(app: Flask) -> None:
    app.add_url_rule("/", "index", two_at_once(lambda: "ok"))

    response = get(app)
    assert in_use(app, "index") == 1
    del response

    until(lambda: in_use(app, "index") == 0)


class Killed(BaseException):
    """An exception like gevent.Timeout."""


@pytest.mark.parametrize("error", [Killed, RuntimeError, None])
@pytest.mark.parametrize("testing", [False, True])
def test_slot_is_released_when_teardown_raises(app: Flask, testing: bool, error: type[BaseException] | None) -> None:
    app.testing = testing

    @app.get("/")
    @two_at_once
    def index() -> str:
        if error is not None:
            raise error
        return "ok"

    @app.teardown_request
    def roll_back(_: BaseException | None) -> None:
        raise LookupError("no transaction")

    for _ in range(3):
        with pytest.raises(LookupError, match="no transaction"):
            get(app)
        gc.collect()

    until(lambda: in_use(app, "index") == 0)


def test_slot_is_released_when_the_body_is_not_iterable(app: Flask) -> None:
    body: Any = 42
    app.add_url_rule("/", "index", two_at_once(lambda: Response(body, direct_passthrough=True)))

    for _ in range(3):
        with pytest.raises(TypeError, match="not iterable"):
            get(app)

    assert in_use(app, "index") == 0


class Fixed:
    """A file wrapper whose attributes cannot be set."""

    __slots__ = ("_file",)

    def __init__(self, file: IO[bytes], _: int) -> None:
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        return self._file

    def close(self) -> None:
        self._file.close()


def file_wrapper(file: IO[bytes], size: int) -> FileWrapper:
    return FileWrapper(file, size)


class TestFiles:
    """Servers give a class or a function that wraps files: ``wsgi.file_wrapper``."""

    def send(self, app: Flask, wrapper: object) -> tuple[Any, io.BytesIO]:
        file = io.BytesIO(b"many bytes")
        app.add_url_rule("/", "index", two_at_once(lambda: send_file(file, mimetype="text/plain")))
        environ = EnvironBuilder(environ_overrides={"wsgi.file_wrapper": wrapper}).get_environ()
        return app.wsgi_app(environ, lambda *_: lambda _: None), file

    @pytest.mark.parametrize("wrapper", [FileWrapper, Fixed, file_wrapper])
    def test_sent_file_holds_its_slot_until_closed_and_keeps_its_file_wrapper(
        self, app: Flask, wrapper: object
    ) -> None:
        body, file = self.send(app, wrapper)

        assert (type(body) is FileWrapper) is (wrapper is FileWrapper)
        assert next(iter(body)) == b"many bytes"
        assert in_use(app, "index") == 1
        body.close()
        assert in_use(app, "index") == 0
        assert file.closed

    def test_another_thread_that_closes_the_file_does_not_wait_for_the_release_of_its_slot(
        self, app: Flask, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        body, file = self.send(app, FileWrapper)
        with app.app_context():
            storage: Any = app.extensions["ours"].limiter.storage
        release, releasing = storage.release, list[threading.Thread]()

        def record_thread(*arguments: Any) -> None:
            releasing.append(threading.current_thread())
            release(*arguments)

        monkeypatch.setattr(storage, "release", record_thread)
        thread = threading.Thread(target=body.close)
        thread.start()
        thread.join()

        assert file.closed
        until(lambda: in_use(app, "index") == 0)
        assert thread not in releasing

    def test_slot_is_released_when_closing_the_file_raises(self, app: Flask) -> None:
        body, file = self.send(app, FileWrapper)
        file.close = _raise  # type: ignore[assignment, method-assign]

        with pytest.raises(RuntimeError, match="broken"):
            body.close()
        del file.close  # it would raise again when the file is garbage collected

        assert in_use(app, "index") == 0


def test_requests_that_share_a_response_object_hold_separate_slots(app: Flask) -> None:
    shared = Response("ok")
    app.add_url_rule("/", "index", two_at_once(lambda: shared))
    app.add_url_rule("/free", "free", lambda: shared)

    for _ in range(3):
        with answer(app) as first:
            with answer(app) as second, answer(app, "/free") as free:
                assert in_use(app, "index") == 2
                assert [second.text, free.text] == ["ok", "ok"]
            assert in_use(app, "index") == 1
            assert first.text == "ok"
        assert in_use(app, "index") == 0


def test_shared_response_object_is_sent_as_after_request_functions_change_it(app: Flask) -> None:
    shared = Response("ok")
    app.add_url_rule("/", "index", two_at_once(lambda: shared))

    @app.after_request
    def change(response: Response) -> Response:
        response.data += request.query_string
        return response

    assert [get(app, path).text for path in ("/", "/?1", "/?2", "/")] == ["ok", "ok1", "ok2", "ok"]


def test_response_that_has_held_slots_can_be_cached(app: Flask) -> None:
    shared = Response("ok")
    shared.get_app_iter = partial(_shout, shared)  # type: ignore[method-assign]
    app.add_url_rule("/", "index", two_at_once(lambda: shared))
    assert get(app).text == "OK"

    cached = pickle.loads(pickle.dumps(shared))
    cached.data = b"cached"

    assert [b"".join(each.get_app_iter({})) for each in (shared, cached)] == [b"OK", b"CACHED"]


def _shout(response: Response, _: Any) -> list[bytes]:
    return [response.data.upper()]


def test_shared_response_object_makes_no_more_calls_each_time(app: Flask) -> None:
    shared = Response("ok")
    app.add_url_rule("/", "index", two_at_once(lambda: shared))
    get(app).close()

    once = calls_during(lambda: get(app).close())
    for _ in range(3):
        get(app).close()

    assert len(calls_during(lambda: get(app).close())) == len(once)


def test_refused_request_holds_no_slot(app: Flask) -> None:
    app.add_url_rule("/", "index", rate_limiter(rules=["2/minute", "2 at once"])(lambda: "ok"))

    held = [get(app) for _ in range(2)]
    refused = [get(app) for _ in range(3)]
    for response in [*held, *refused]:
        response.close()

    assert [response.status_code for response in refused] == [429] * 3
    with app.app_context():
        decision = app.extensions["ours"].peek("index", "everyone")
    assert [status.remaining for status in decision.statuses] == [0, 2]
    assert len(KEEPER) == 0


def test_function_holds_its_slot_until_it_returns(app: Flask) -> None:
    inside: list[int] = []

    @rate_limiter(rules="1 at once", scope="export")
    def export(*, again: bool) -> None:
        assert len(KEEPER) == 1
        inside.append(1)
        if again:
            with pytest.raises(RateLimitExceeded):
                export(again=False)

    with app.app_context():
        export(again=True)
        export(again=False)

    assert len(inside) == 2
    assert len(KEEPER) == 0


def test_async_function_holds_its_slot_until_it_was_awaited(app: Flask) -> None:
    @rate_limiter(rules="1 at once", scope="export")
    async def export() -> int:
        await asyncio.sleep(0)
        return len(KEEPER)

    def plain() -> Any:
        return export()

    limited = rate_limiter(rules="1 at once", scope="outer")(plain)

    async def run() -> list[int]:
        return [await export(), await export(), await limited(), await limited()]

    with app.app_context():
        assert asyncio.run(run()) == [1, 1, 2, 2]
    assert len(KEEPER) == 0


def test_function_called_by_a_view_releases_its_slot_before_the_view_ends(app: Flask) -> None:
    @rate_limiter(rules="1 at once", scope="export")
    def export() -> None: ...

    @app.get("/")
    def index() -> str:
        export()
        export()
        return str(len(KEEPER))

    assert get(app).text == "0"


@pytest.mark.parametrize("in_a_request", [False, True])
def test_requests_made_by_a_function_hold_their_own_slots(in_a_request: bool) -> None:
    app = Flask(__name__)
    ours = MultiLimit(app, application_limits="2 at once")
    seen: list[tuple[list[int], int]] = []

    @app.get("/")
    def index() -> str:
        ours.check("1 at once", scope="index")
        return "ok"

    @rate_limiter(rules="9 at once", scope="job")
    def job() -> None:
        statuses = [get(app, buffered=True).status_code for _ in range(3)]
        ours.check("1 at once", scope="job's own")
        seen.append((statuses, len(KEEPER)))

    with app.test_request_context() if in_a_request else app.app_context():
        job()
        assert seen == [([200] * 3, 2)]
        assert len(KEEPER) == 0  # the slot that the function took after these requests is released, too


def test_limit_block_holds_its_slot_until_it_ends(app: Flask) -> None:
    limit = app.extensions["ours"].limit

    with app.app_context():
        with limit("1 at once", scope="export"), pytest.raises(RateLimitExceeded):
            limit("1 at once", scope="export").__enter__()
        with pytest.raises(RuntimeError), limit("1 at once", scope="export"):
            raise RuntimeError
        with limit("1 at once", scope="export"):
            pass


def test_check_in_a_view_holds_its_slot_until_close_or_release(app: Flask) -> None:
    ours = app.extensions["ours"]

    @app.get("/<how>")
    def index(how: str) -> str:
        decision = ours.check("1 at once", scope="export")
        if how == "early":
            ours.release(decision)
        return str(decision.allowed)

    with answer(app, "/late") as first, answer(app, "/late") as second:
        assert (first.text, second.text) == ("True", "False")
    with answer(app, "/early") as first, answer(app, "/early") as second:
        assert (first.text, second.text) == ("True", "True")


def test_check_in_a_view_with_split_limiters_holds_its_slot_until_close(app: Flask) -> None:
    @app.get("/")
    @rate_limiter(rules="9/minute")
    @with_wraps
    @two_at_once
    def index() -> Any:
        app.extensions["ours"].check("2 at once", scope="work")
        return iter("ab")

    with answer(app):
        assert len(KEEPER) == 2
    assert len(KEEPER) == 0


def test_thread_with_a_copied_request_context_holds_its_slot_until_its_call_ends(app: Flask) -> None:
    ours, inside = app.extensions["ours"], []

    @app.get("/")
    @two_at_once
    def index() -> str:
        @copy_current_request_context
        def work() -> None:
            inside.append((ours.check("1 at once", scope="work").allowed, len(KEEPER)))

        for _ in range(3):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        return str(len(KEEPER))

    with answer(app) as response:
        assert in_use(app, "index") == 1
        assert (inside, response.text) == ([(True, 2)] * 3, "1")
    assert len(KEEPER) == 0


def test_preserved_request_holds_slots_until_the_client_block_ends(app: Flask) -> None:
    app.add_url_rule("/", "index", two_at_once(lambda: "ok"))

    with app.test_client() as client:
        client.get("/", buffered=True)
        assert len(KEEPER) == 0
        assert app.extensions["ours"].check("1 at once", scope="work").allowed
        assert len(KEEPER) == 1
    assert len(KEEPER) == 0


def test_slot_of_a_garbage_collected_context_is_released(app: Flask) -> None:
    def work() -> None:
        app.test_request_context().push()
        assert app.extensions["ours"].check("1 at once", scope="work").allowed
        assert len(KEEPER) == 1

    copy_context().run(work)
    gc.collect()

    until(lambda: len(KEEPER) == 0)


def check_after_end(app: Flask, begin: Callable[[Callable[[], None]], None]) -> None:
    """A thread that ``begin`` starts, with a copy of its context, makes a check after ``begin`` has ended."""
    threads: list[threading.Thread] = []
    ended, decisions, held = threading.Event(), [], []

    def work() -> None:
        assert ended.wait(PATIENCE)
        with app.app_context():
            decisions.append(app.extensions["ours"].check("1 at once", scope="work"))
            held.append(len(KEEPER))

    def start() -> None:
        threads.append(threading.Thread(target=copy_context().run, args=(work,)))
        threads[0].start()

    begin(start)
    ended.set()
    threads[0].join()
    assert decisions[0].allowed
    assert held == [0]  # the slot is not renewed
    with app.app_context():
        app.extensions["ours"].release(decisions[0])
        assert app.extensions["ours"].check("1 at once", scope="work").allowed


def test_thread_that_outlives_its_request_does_not_hold_slots(app: Flask) -> None:
    started: list[Callable[[], None]] = []

    @app.get("/")
    @two_at_once
    def index() -> str:
        started[0]()
        return "ok"

    def begin(start: Callable[[], None]) -> None:
        started.append(start)
        get(app).close()

    check_after_end(app, begin)


def test_thread_that_outlives_its_function_does_not_hold_slots(app: Flask) -> None:
    with app.app_context():
        check_after_end(app, rate_limiter(rules="5 at once", scope="service")(lambda start: start()))


def test_slot_taken_while_its_holder_ends_is_not_held(app: Flask) -> None:
    holder = Holder()
    with app.app_context(), holding(holder):
        limiter = app.extensions["ours"].limiter
        hold = limiter.hold

        def hold_while_it_ends(decision: Decision) -> None:
            holder.end()
            hold(decision)

        limiter.hold = hold_while_it_ends
        assert app.extensions["ours"].check("1 at once", scope="work").allowed

    assert len(KEEPER) == 0


def test_task_that_outlives_its_async_function_does_not_hold_slots(app: Flask) -> None:
    async def work() -> None:
        await asyncio.sleep(0.01)
        assert app.extensions["ours"].check("1 at once", scope="work").allowed
        assert len(KEEPER) == 0

    @rate_limiter(rules="5 at once", scope="service")
    async def service() -> asyncio.Task[None]:
        return asyncio.create_task(work())

    async def run() -> None:
        await (await service())

    with app.app_context():
        asyncio.run(run())

    assert len(KEEPER) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_forked_child_does_not_release_the_slot_of_its_parent(server: Server, redis_client: redis.Redis) -> None:
    app = Flask(__name__)
    app.config["MULTILIMIT_STORAGE_TIMEOUT"] = 10
    multilimit = MultiLimit(app, storage=server.url)
    key = hits_for("1 at once", scope="export")[0].key
    redis_client.delete(key)

    class InTheChild(Exception):  # noqa: N818 - not an error
        pass

    try:
        with app.app_context(), multilimit.limit("1 at once", scope="export"):
            child = os.fork()
            if child == 0:
                raise InTheChild
            os.waitpid(child, 0)
            assert redis_client.zcard(key) == 1
    except InTheChild:
        os._exit(0)
    until(lambda: redis_client.zcard(key) == 0)
    multilimit.close()


@pytest.mark.parametrize("how", ["release", "refund"])
def test_slot_of_a_view_is_released_after_an_outage(how: str) -> None:
    app = Flask(__name__)
    storage: Any = MemoryStorage()
    app.extensions["ours"] = multilimit = MultiLimit(app, storage=storage)

    @app.before_request
    def authenticate() -> None:
        getattr(multilimit, how)(multilimit.check("50 at once", scope="authenticate"))

    app.add_url_rule("/", "index", two_at_once(lambda: "ok"))
    with answer(app):
        assert in_use(app, "index") == 1
        storage.release = raising(StorageError("away"))
    del storage.release

    until(lambda: len(KEEPER) == 0)
    assert in_use(app, "index") == 0


def test_header_fields_and_body_describe_slots(app: Flask) -> None:
    app.add_url_rule("/", "index", two_at_once(lambda: "ok"))

    with answer(app) as admitted, answer(app) as last, answer(app, headers={"Accept": "application/json"}) as refused:
        assert admitted.headers["RateLimit-Policy"] == '"default-at-once";q=2;qu="concurrent-requests"'
        assert admitted.headers["RateLimit"] == '"default-at-once";r=1'
        assert last.headers["RateLimit"] == refused.headers["RateLimit"] == '"default-at-once";r=0'
        assert refused.headers["Retry-After"] == "1"
        assert refused.json is not None
        assert refused.json["violations"] == [{"policy": "default-at-once", "limit": 2, "unit": "concurrent-requests"}]


def test_retry_after_of_a_busy_slot_is_no_earlier_than_that_of_a_rate(app: Flask) -> None:
    app.add_url_rule("/", "index", rate_limiter(rules="1/minute; 1 at once")(lambda: "ok"))
    with answer(app), answer(app) as refused:
        assert refused.headers["Retry-After"] == "60"


def test_fields_for_one_rule_describe_the_busy_slot_that_refuses() -> None:
    app = Flask("shop")
    app.config["MULTILIMIT_HEADERS"] = "legacy"
    MultiLimit(app)
    app.add_url_rule("/", "index", rate_limiter(rules="3/minute; 1 at once")(lambda: "ok"))

    with answer(app), answer(app) as refused:
        assert refused.status_code == 429
        assert (refused.headers["X-RateLimit-Limit"], refused.headers["X-RateLimit-Remaining"]) == ("1", "0")


def test_charge_when_with_dynamic_concurrent_rule_is_logged_and_falls_back(
    app: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = rate_limiter(rules=lambda: "1 at once", fallback="100/minute", charge_when=lambda _: True)
    app.add_url_rule("/", "index", limiter(lambda: "ok"))

    with answer(app) as first, answer(app) as second:
        assert (first.status_code, second.status_code) == (200, 200)
        assert first.headers["RateLimit-Policy"] == '"default-60s";q=100;w=60'
    assert caplog.text.count("charge_when has no effect on a Concurrent rule") == 1


@pytest.mark.parametrize(
    ("limits", "where"),
    [
        ({"limits": {"report": rate_limiter(rules=Concurrent(2))}}, 'limits["report"]'),
        ({"unmatched_limits": rate_limiter(rules=Concurrent(2))}, "unmatched_limits"),
        ({"application_limits": rate_limiter(rules=lambda: "9/minute", fallback=Concurrent(2))}, "application_limits"),
    ],
    ids=["endpoint", "unmatched", "fallback"],
)
def test_concurrent_rule_on_a_storage_without_slots_is_an_error_at_the_first_request(
    limits: dict[str, Any], where: str
) -> None:
    app = Flask(__name__)
    app.testing = True
    MultiLimit(app, storage=OwnStorage(), **limits)
    app.add_url_rule("/", "index", lambda: "ok")
    app.add_url_rule("/report", "report", lambda: "ok")

    with pytest.raises(ConfigurationError, match=f'limiter on "{re.escape(where)}": a OwnStorage keeps no slots'):
        app.test_client().get("/")


def test_concurrent_shadow_counts_slots_and_never_refuses(app: Flask) -> None:
    app.add_url_rule(
        "/", "index", rate_limiter(rules="1 at once", shadow=True)(lambda: str(current_decision.shadowed != ()))
    )

    with answer(app) as first, answer(app) as second:
        assert in_use(app, "index") == 1
        assert (first.text, second.text) == ("False", "True")
    assert in_use(app, "index") == 0


def test_request_without_concurrent_rules_makes_no_calls_for_slots() -> None:
    def called(rules: list[str]) -> list[str]:
        app = Flask(__name__)
        MultiLimit(app)
        app.add_url_rule("/", "index", rate_limiter(rules=rules)(lambda: "ok"))
        for _ in range(2):  # the first builds the plans
            calls = calls_during(lambda: get(app, buffered=True))
        return [name for name in calls if any(word in name for word in FOR_SLOTS)]

    assert called(["1000/hour", "100/minute"]) == []
    assert called(["1000/hour", "100 at once"])


def test_response_that_has_held_slots_can_be_sent_outside_of_a_request(app: Flask) -> None:
    """A view may return an object that middleware sends, too."""
    shared = Response("closed for today")
    app.get("/", endpoint="view")(two_at_once(lambda: shared))
    environ = EnvironBuilder().get_environ()
    b"".join(run_wsgi_app(app, environ)[0])

    body, status, _ = run_wsgi_app(shared, environ)

    assert (b"".join(body), status) == (b"closed for today", "200 OK")
