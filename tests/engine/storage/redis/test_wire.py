"""The wire to the server: each command gets its own reply, after errors, timeouts and lost connections, too."""

import contextlib
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar

import hiredis
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from flask_multilimit.engine import RedisStorage, Rule, StorageError, hits_for
from flask_multilimit.engine.storage.cluster.servers import NodesOfUri
from flask_multilimit.engine.storage.redis import wire as wire_module
from flask_multilimit.engine.storage.redis.connections import Deadline
from flask_multilimit.engine.storage.redis.failures import FAILURES
from flask_multilimit.engine.storage.redis.wire import Wire, command_of, wire_of
from support.bench import bare
from support.doubles import raising
from support.forks import forked
from support.liar import Liar
from support.proxy import COMMAND
from support.servers import Server
from support.waiting import until


@pytest.fixture
def wire(redis_client: redis.Redis) -> Iterator[Wire]:
    wire = wire_of(redis_client, Deadline(None))
    assert wire is not None
    yield wire
    wire.close()


def ask(wire: Wire, *arguments: bytes, check_open: bool = True) -> Any:
    return wire.ask(command_of(*arguments), time.monotonic(), check_open=check_open)


@contextlib.contextmanager
def question_under_way(ask: Callable[..., Any], client: redis.Redis) -> Iterator[Callable[[], Any]]:
    """Another thread waits for an answer. What is yielded has it answered, and returns the answer."""
    with ThreadPoolExecutor() as pool:
        future = pool.submit(ask, b"BLPOP", b"late", b"60")
        until(lambda: client.info("clients")["blocked_clients"])

        def answer() -> Any:
            client.rpush("late", "x")
            return future.result()

        try:
            yield answer
        finally:
            client.rpush("late", "x")


def test_command_gets_its_own_reply(wire: Wire) -> None:
    assert [ask(wire, b"ECHO", word) for word in (b"", b"one", b"\r\n\0")] == [b"", b"one", b"\r\n\0"]


def test_command_after_a_server_error_gets_its_own_reply(wire: Wire) -> None:
    ask(wire, b"SET", b"text", b"x")
    with pytest.raises(redis.ResponseError):
        ask(wire, b"ZADD", b"text", b"1", b"x")
    assert ask(wire, b"ECHO", b"mine") == b"mine"


def test_a_reply_that_comes_after_a_time_out_is_never_read(server: Server) -> None:
    wire = wire_of(server.client(socket_timeout=0.5), Deadline(None))
    assert wire is not None
    with pytest.raises(redis.TimeoutError):
        ask(wire, b"BLPOP", b"late", b"60")
    server.shared_client().rpush("late", "x")

    assert ask(wire, b"ECHO", b"mine") == b"mine"
    wire.close()


def test_question_whose_time_has_begun_long_ago_waits_for_the_rest_of_it_alone(server: Server) -> None:
    wire = wire_of(server.client(socket_timeout=60), Deadline(60))
    assert wire is not None
    ask(wire, b"ECHO", b"connected")

    with pytest.raises(redis.TimeoutError):
        wire.ask(command_of(b"BLPOP", b"nothing", b"30"), time.monotonic() - 59.5)
    wire.close()


@pytest.mark.parametrize("is_direct", [True, False], ids=["system socket", "as of TLS or gevent"])
def test_a_question_without_an_answer_is_not_sent_again_by_the_system(
    monkeypatch: pytest.MonkeyPatch, *, is_direct: bool
) -> None:
    """If it was lost on the way, the server might execute it after its repetition."""
    monkeypatch.setattr(wire_module, "HIREDIS_AVAILABLE", is_direct)

    def serve(listener: socket.socket) -> socket.socket:
        served, _ = listener.accept()
        while b"PING" not in (data := served.recv(65_536)):
            served.sendall(b"+OK\r\n" * len(COMMAND.findall(data)))
        return served

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        serving = pool.submit(serve, listener)
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
        client = redis.Redis.from_url(url, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=0.5)
        wire = wire_of(client, Deadline(None))
        assert wire is not None
        with pytest.raises(redis.TimeoutError):
            ask(wire, b"PING")

        with serving.result() as served, pytest.raises(ConnectionError):  # it was reset: the system sends nothing more
            served.sendall(b"+PONG\r\n")


def test_client_without_a_timeout_waits_for_a_reply(server: Server) -> None:
    wire = wire_of(server.client(socket_timeout=None), Deadline(None))
    assert wire is not None
    assert ask(wire, b"BLPOP", b"nothing", b"0.1") is None
    wire.close()


class FailingReader(hiredis.Reader):
    """Raises ``error`` once, after it has got a reply."""

    error: ClassVar[BaseException | None] = None

    def gets(self, *arguments: Any) -> Any:
        error, FailingReader.error = FailingReader.error, None
        if error is not None:
            raise error
        return super().gets(*arguments)


@pytest.mark.parametrize(
    ("error", "raised"),
    [(KeyboardInterrupt(), KeyboardInterrupt), (MemoryError(), FAILURES)],
    ids=["interrupt", "it announces more than the memory holds"],
)
def test_reply_that_could_not_be_read_is_never_taken_for_the_next(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, error: BaseException, raised: type[BaseException]
) -> None:
    monkeypatch.setattr(hiredis, "Reader", FailingReader)
    ask(wire, b"PING")

    FailingReader.error = error
    with pytest.raises(raised):
        ask(wire, b"ECHO", b"not mine")

    assert ask(wire, b"ECHO", b"mine") == b"mine"


@pytest.mark.parametrize(
    "act",
    [
        lambda wire, command: wire.ask(command, time.monotonic()),
        lambda wire, command: wire.ask_all([command], time.monotonic()),
        lambda wire, command: wire.send(command, time.monotonic(), print),
    ],
    ids=["ask", "ask all", "send"],
)
def test_connection_is_given_back_if_an_interrupt_comes_before_the_question(
    server: Server, monkeypatch: pytest.MonkeyPatch, act: Callable[[Wire, bytes], object]
) -> None:
    """As a timeout of gevent, which switches greenlets while it looks whether the connection is still open."""
    monkeypatch.setattr(wire_module, "HIREDIS_AVAILABLE", False)
    client = server.client(max_connections=1)
    wire = wire_of(client, Deadline(None))
    assert wire is not None
    ask(wire, b"PING")

    with monkeypatch.context() as patch:
        patch.setattr(client.connection_pool.connection_class, "can_read", raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            act(wire, command_of(b"ECHO", b"not mine"))

    assert ask(wire, b"ECHO", b"mine") == b"mine"
    wire.close()


def test_an_error_on_one_connection_closes_all_idle_ones(wire: Wire, redis_client: redis.Redis) -> None:
    with question_under_way(partial(ask, wire), redis_client) as answer:
        ask(wire, b"PING")
        answer()
    redis_client.client_kill_filter(_type="normal", skipme=True)

    with pytest.raises(redis.ConnectionError):
        ask(wire, b"ECHO", b"lost", check_open=False)

    assert ask(wire, b"ECHO", b"mine", check_open=False) == b"mine"


def test_connection_is_kept_after_an_unknown_script(wire: Wire) -> None:
    connection = ask(wire, b"CLIENT", b"ID")
    with pytest.raises(redis.exceptions.NoScriptError):
        ask(wire, b"EVALSHA", b"0" * 40, b"0")
    assert ask(wire, b"CLIENT", b"ID") == connection


@pytest.mark.parametrize("length", [1, 4000, 5000, 300_000])
def test_reply_of_any_length_is_read_completely(wire: Wire, length: int) -> None:
    assert ask(wire, b"ECHO", b"x" * length) == b"x" * length


def test_each_thread_reads_its_own_replies(wire: Wire) -> None:
    names = [b"%d" % number for number in range(8)]

    def replies_to(name: bytes) -> set[bytes]:
        return {ask(wire, b"ECHO", name) for _ in range(300)}

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(replies_to, names)) == [{name} for name in names]


def test_parent_and_forked_child_share_neither_connections_nor_ids(server: Server) -> None:
    limiter = bare(server.url, timeout=30)
    wanted = hits_for("1000000/hour", scope="forked")
    limiter.reset(wanted)
    limiter.check(wanted)

    def check_often() -> set[bytes]:
        return {limiter.check(wanted).check_id for _ in range(100)}

    of_child = forked(check_often)
    ids = check_often() | of_child()

    assert len(ids) == 200
    assert limiter.peek(wanted).remaining == 1_000_000 - 201
    limiter.close()


@pytest.mark.parametrize(
    "options",
    [
        {"retry": Retry(NoBackoff(), 1)},
        {"retry_on_error": [redis.BusyLoadingError]},
        {"protocol": 3},
        {"health_check_interval": 30},
        {"single_connection_client": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_client_with_options_of_its_own_is_used_without_the_wire(server: Server, options: dict[str, object]) -> None:
    settings: dict[str, Any] = {"protocol": 2, "retry": Retry(NoBackoff(), 0), **options}
    client = redis.Redis(unix_socket_path=str(server.folder / "socket"), **settings)
    wanted = hits_for("5/minute", scope="not-plain")

    assert wire_of(client, Deadline(None)) is None
    bare(client).reset(wanted)
    assert bare(client).check(wanted).remaining == 4
    client.close()


def test_closing_returns_connections_to_the_pool(server: Server) -> None:
    client = server.client(max_connections=1)
    limiter = bare(client)
    limiter.check(hits_for("5/minute", scope="given-back"))

    limiter.close()

    assert client.ping()


def test_closing_leaves_a_client_of_the_caller_open(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(redis_client, "close", lambda: closed.append(True))
    storage = RedisStorage(redis_client)

    storage.close()

    assert closed == []


def test_check_is_asked_by_a_new_connection_if_the_server_has_closed_the_idle_one_without_hiredis(
    wire: Wire, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over TLS."""
    monkeypatch.setattr(wire_module, "HIREDIS_AVAILABLE", False)
    ask(wire, b"PING")
    redis_client.client_kill_filter(_type="normal", skipme=True)

    assert ask(wire, b"ECHO", b"mine") == b"mine"


def test_script_does_not_wait_longer_than_its_timeout_for_a_connection(server: Server) -> None:
    storage = RedisStorage.from_url(f"{server.url}?max_connections=1", timeout=0.05)
    with storage.client.client(), pytest.raises(StorageError, match="Too many connections"):
        storage.run_script("return 1", ["x"], [])
    storage.close()


def test_script_waits_for_a_connection_while_checks_use_all(
    server: Server, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a busy process would not learn of bans."""
    storage = RedisStorage.from_url(f"{server.url}?max_connections=1", timeout=60)
    with question_under_way(storage.ask, redis_client) as answer:
        answers = list[Any]()
        monkeypatch.setattr(time, "sleep", lambda _: answers.append(answer()))  # as gevent may do after the import

        assert storage.run_script("return 1", ["x"], []) == 1
        assert answers
    storage.close()


def test_key_of_another_type_costs_no_connection(redis_client: redis.Redis) -> None:
    """Otherwise a client with such a key would make all others connect again, at each of its requests."""
    plan = hits_for("5/minute", scope="spoiled")
    redis_client.rpush(plan[0].key, "not ours")
    limiter = bare(redis_client)
    limiter.peek(hits_for("5/minute", scope="fine"))
    before = redis_client.info("stats")["total_connections_received"]

    for _ in range(3):
        with pytest.raises(StorageError, match="WRONGTYPE"):
            limiter.check(plan)

    assert redis_client.info("stats")["total_connections_received"] == before


@pytest.mark.parametrize(
    "error",
    [
        redis.ConnectionError("max number of clients reached"),
        redis.ConnectionError("Error 24 connecting to localhost:6379. Too many open files."),
        redis.AuthenticationError("WRONGPASS invalid username-password pair or user is disabled."),
        SystemExit("by a signal handler"),
    ],
    ids=str,
)
def test_connection_that_is_refused_costs_no_other_one(
    server: Server, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    storage = RedisStorage.from_url(server.url, timeout=60)
    plan = hits_for(Rule(60, 50, algorithm="fixed_window"), scope="full")

    with question_under_way(storage.ask, redis_client) as answer:

        def refuse(*_: Any) -> None:
            answer()
            raise error

        monkeypatch.setattr(storage.client.connection_pool, "get_connection", refuse)
        with pytest.raises((StorageError, SystemExit)):
            storage.check(plan)

        assert storage.check(plan).allowed, "by the connection of the question under way"
    storage.close()


def test_dropped_limiter_returns_connections_even_while_the_pool_is_locked(server: Server) -> None:
    client = server.client(max_connections=1)
    client.connection_pool._lock = threading.Lock()  # type: ignore[assignment]  # as older redis-py has it
    limiter = bare(client)
    limiter.check(hits_for("5/minute", scope="dropped"))

    with client.connection_pool._lock:
        del limiter
        gc.collect()

    until(lambda: client.connection_pool._available_connections)
    assert client.ping()


# Commands that are sent without waiting for the answer


class Losses(list[StorageError]):
    """The errors of commands whose answer was not awaited."""


def send(wire: Wire, *arguments: bytes, lost: Losses | None = None) -> None:
    wire.send(command_of(*arguments), time.monotonic(), (Losses() if lost is None else lost).append)


@pytest.mark.parametrize("many", [1, 1000])
def test_commands_sent_without_waiting_are_executed_and_leave_the_next_reply_alone(wire: Wire, many: int) -> None:
    lost = Losses()
    for _ in range(many):
        send(wire, b"INCR", b"sent", lost=lost)

    assert [ask(wire, b"ECHO", b"mine", check_open=False), ask(wire, b"GET", b"sent")] == [b"mine", b"%d" % many]
    assert lost == []


@pytest.mark.parametrize("unread", [[b":1\r\n"], [b":1\r\n", b"*1\r\n$1\r\nx\r\n"]], ids=["a number", "and a list"])
def test_unread_answers_that_arrive_with_the_next_reply_are_skipped(unread: list[bytes]) -> None:
    def answers(data: bytes) -> Iterator[bytes]:
        yield b"+OK\r\n" * data.count(b"CLIENT")
        if b"ECHO" in data:
            yield b"".join([*unread, b"$4\r\nmine\r\n"])

    lost = Losses()
    with Liar(answers) as liar, redis.Redis.from_url(liar.url, protocol=2, retry=Retry(NoBackoff(), 0)) as client:
        wire = wire_of(client, Deadline(None))
        assert wire is not None
        for _ in range(3):
            for _ in unread:
                send(wire, b"RELEASE", lost=lost)

            assert ask(wire, b"ECHO", b"mine", check_open=False) == b"mine"
    assert len(lost) == 3 * (len(unread) - 1), "a list is no answer to a release"


def test_several_replies_after_unread_answers_are_read(wire: Wire) -> None:
    send(wire, b"INCR", b"sent")
    assert wire.ask_all([command_of(b"ECHO", b"a"), command_of(b"GET", b"sent")], time.monotonic()) == [b"a", b"1"]


def test_an_unread_answer_is_not_taken_for_a_closed_connection(wire: Wire, redis_client: redis.Redis) -> None:
    connection = ask(wire, b"CLIENT", b"ID")
    send(wire, b"INCR", b"sent")
    until(lambda: redis_client.get("sent"))
    redis_client.ping()  # the server has sent all earlier answers

    assert ask(wire, b"CLIENT", b"ID") == connection


def test_unread_answers_that_arrive_at_any_moment_are_not_taken_for_a_closed_connection(wire: Wire) -> None:
    connection, lost = ask(wire, b"CLIENT", b"ID"), Losses()
    for _ in range(1000):
        for _ in range(30):
            send(wire, b"INCR", b"sent", lost=lost)
        assert ask(wire, b"CLIENT", b"ID") == connection
    assert lost == []


def test_an_error_among_unread_answers_is_reported_and_leaves_the_next_reply_alone(wire: Wire) -> None:
    lost = Losses()
    ask(wire, b"SET", b"text", b"x")
    send(wire, b"ZREM", b"text", b"x", lost=lost)

    assert ask(wire, b"ECHO", b"mine", check_open=False) == b"mine"
    (error,) = lost
    assert "ResponseError: WRONGTYPE" in str(error)


def test_confirming_reads_all_unread_answers_and_waits_for_late_ones(wire: Wire) -> None:
    lost = Losses()
    ask(wire, b"SET", b"text", b"x")
    send(wire, b"ZREM", b"text", b"x", lost=lost)
    send(wire, b"BLPOP", b"nothing", b"0.1", lost=lost)

    wire.confirm()

    assert len(lost) == 2
    assert ask(wire, b"ECHO", b"mine") == b"mine"


def test_confirming_leaves_a_connection_alone_that_is_taken_into_use_meanwhile(
    wire: Wire, redis_client: redis.Redis
) -> None:
    ask(wire, b"SET", b"text", b"x")
    with contextlib.ExitStack() as stack:
        answers = list[Callable[[], Any]]()

        def use_the_other(_: StorageError) -> None:
            redis_client.delete("late")
            answers.append(stack.enter_context(question_under_way(partial(ask, wire), redis_client)))

        with question_under_way(partial(ask, wire), redis_client) as answer:
            wire.send(command_of(b"ZREM", b"text", b"x"), time.monotonic(), use_the_other)
            answer()
        send(wire, b"INCR", b"sent")

        wire.confirm()

        assert ask(wire, b"ECHO", b"mine") == b"mine"
        assert [answer() for answer in answers] == [[b"late", b"x"]]


@pytest.mark.parametrize("finds_out", ["by the next command", "when confirming", "when closing"])
def test_a_lost_connection_reports_each_unread_command_once(
    wire: Wire, redis_client: redis.Redis, finds_out: str
) -> None:
    lost = Losses()
    send(wire, b"BLPOP", b"nothing", b"30", lost=lost)
    redis_client.client_kill_filter(_type="normal", skipme=True)

    if finds_out == "by the next command":
        assert ask(wire, b"ECHO", b"mine") == b"mine"
    elif finds_out == "when confirming":
        wire.confirm()
    wire.close()

    (error,) = lost
    assert "ConnectionError: " in str(error)
    assert isinstance(error.__cause__, redis.ConnectionError)


def test_an_unread_answer_that_comes_after_a_time_out_is_never_read(server: Server) -> None:
    lost = Losses()
    wire = wire_of(server.client(socket_timeout=0.5), Deadline(None))
    assert wire is not None
    send(wire, b"BLPOP", b"late", b"60", lost=lost)
    with pytest.raises(redis.TimeoutError):
        ask(wire, b"ECHO", b"not mine", check_open=False)
    server.shared_client().rpush("late", "x")

    assert len(lost) == 1
    assert ask(wire, b"ECHO", b"mine") == b"mine"
    wire.close()


def test_a_connection_leaves_a_bounded_number_of_answers_unread(server: Server) -> None:
    lost, wire = Losses(), wire_of(server.client(socket_timeout=0.5), Deadline(None))
    assert wire is not None
    with server.client() as other:
        other.client_pause(60_000, all=False)
        with contextlib.suppress(redis.TimeoutError):
            for _ in range(1000):
                send(wire, b"INCR", b"sent", lost=lost)
        other.client_unpause()

    assert 100 <= len(lost) < 1000
    wire.close()


def test_wire_without_hiredis_waits_for_each_answer(
    wire: Wire, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_multilimit.engine.storage.redis.wire.HIREDIS_AVAILABLE", False)
    lost = Losses()
    send(wire, b"INCR", b"sent", lost=lost)
    wire.confirm()

    assert wire.waits
    assert redis_client.get("sent") == b"1"
    send(wire, b"ZREM", b"sent", b"x", lost=lost)
    assert ask(wire, b"ECHO", b"mine") == b"mine"
    assert [error.key_specific for error in lost] == [True]


def of_uri(server: Server) -> tuple[Callable[..., Any], Callable[[], None]]:
    storage = RedisStorage.from_url(server.url, timeout=60)
    return storage.ask, storage.close


def through_the_client(server: Server) -> tuple[Callable[..., Any], Callable[[], None]]:
    storage = RedisStorage.from_url(server.url, timeout=60)
    return storage.client.execute_command, storage.close


def of_a_cluster(server: Server) -> tuple[Callable[..., Any], Callable[[], None]]:
    nodes = NodesOfUri("redis+cluster://127.0.0.1", timeout=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodes, "_url_of", lambda _: server.url)
        return RedisStorage(nodes.client_at(("", 0)), deadline=nodes.deadline).ask, nodes.close


@pytest.mark.parametrize("storage", [of_uri, through_the_client, of_a_cluster])
def test_close_leaves_the_connection_of_a_question_under_way_open(
    server: Server,
    redis_client: redis.Redis,
    storage: Callable[[Server], tuple[Callable[..., Any], Callable[[], None]]],
) -> None:
    ask, close = storage(server)
    before = {each["id"] for each in redis_client.client_list()}

    with question_under_way(ask, redis_client) as answer:
        close()

        assert answer() == [b"late", b"x"]
    del ask, answer
    close()
    until(lambda: {each["id"] for each in redis_client.client_list()} <= before)
