"""Failures between a client and its server: a check is charged once or not at all, and the error names a remedy."""

import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from math import inf
from typing import Any
from uuid import uuid4

import pytest
import redis
from redis.sentinel import MasterNotFoundError

from flask_multilimit.engine import (
    Concurrent,
    GuardedStorage,
    Hit,
    Limiter,
    RedisStorage,
    StorageError,
    hits_for,
    storage_from_uri,
)
from flask_multilimit.engine.algorithms import ALGORITHMS
from flask_multilimit.engine.decision import Charge
from flask_multilimit.engine.errors import with_remedy
from flask_multilimit.engine.storage.base import Slot
from flask_multilimit.engine.storage.redis.connections import Deadline, TimedConnection
from flask_multilimit.engine.storage.redis.failures import NOBODY_THERE, TOO_LATE, code_of, storage_error
from flask_multilimit.engine.storage.redis.uri import timed_client
from support.bench import bare, connect, hits, rule
from support.liar import Liar
from support.proxy import FaultProxy
from support.rates import RATES
from support.servers import Binary, Server
from support.waiting import until


@pytest.fixture
def proxy(any_server: Server) -> Iterator[FaultProxy]:
    with FaultProxy(any_server.url.removeprefix("unix://")) as proxy:
        yield proxy


@pytest.fixture
def distant(client: redis.Redis, proxy: FaultProxy) -> Iterator[Limiter]:
    """A limiter whose connection goes through the proxy; it has been used once, and the server is empty."""
    assert client.dbsize() == 0
    limiter = Limiter(storage_from_uri(proxy.url, timeout=10))
    for name in RATES:
        limiter.check(hits(rule(name), subject="warm"))
    limiter.check(hits([rule(name) for name in RATES], subject="warm"))
    client.flushdb()
    yield limiter
    limiter.close()


@pytest.fixture
def own_server(any_server: Server) -> Iterator[Server]:
    """Each server in turn, for tests that stop, freeze or starve it."""
    with Server(any_server.binary, tcp=True) as server:
        yield server


@pytest.fixture
def deadline() -> Deadline:
    return Deadline(10)


@pytest.fixture
def timed(proxy: FaultProxy, deadline: Deadline) -> Iterator[RedisStorage]:
    """A storage with that deadline, whose connection goes through the proxy."""
    storage = RedisStorage(timed_client(proxy.url, deadline), deadline=deadline)
    yield storage
    storage.close()


# A lost connection


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_check_is_charged_once_when_its_request_or_reply_is_lost(
    distant: Limiter, served: Limiter, proxy: FaultProxy, lost: str
) -> None:
    plan = hits("2/minute; 9/hour", cost=2)
    proxy.begin(f"lost {lost}", once=True)

    decision = distant.check(plan)

    assert proxy.fault is None
    assert decision.allowed, "its first attempt has taken the last units"
    assert [status.remaining for status in decision.statuses] == [0, 7]
    assert [status.remaining for status in served.peek(plan).statuses] == [0, 7]


def test_check_whose_reply_is_lost_long_after_the_last_question_is_repeated_with_the_whole_timeout(
    timed: RedisStorage, deadline: Deadline, proxy: FaultProxy
) -> None:
    timed.check(hits())
    proxy.begin("lost reply", once=True)
    deadline.started = -inf  # by the question before

    assert timed.check(hits()).remaining == 3


QUESTIONS: dict[str, Callable[[RedisStorage, tuple[Hit, ...]], object]] = {
    "check": lambda storage, hits: storage.check(hits),
    "repeated check": lambda storage, hits: storage.check(hits, uuid4()),
    "batch": lambda storage, hits: storage.check_many([hits]),
    "peek": lambda storage, hits: storage.peek(hits),
    "settle": lambda storage, hits: storage.settle(uuid4(), [Charge(hits[0], 0)]),
    "release": lambda storage, hits: storage.release([Slot(uuid4().bytes, hits[0])]),
    "renew": lambda storage, hits: storage.renew([Slot(uuid4().bytes, hits[0])]),
    "reset": lambda storage, hits: storage.reset([hits[0].key]),
    "tally": lambda storage, hits: storage.tally([], source=hits[0].key, number=1),
    "tallies": lambda storage, hits: storage.tallies([hits[0].key]),
    "keys": lambda storage, hits: storage.keys(hits[0].key),
    "script": lambda storage, hits: storage.run_script("return 0", [hits[0].key], []),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_each_question_has_the_whole_timeout(
    timed: RedisStorage, deadline: Deadline, question: Callable[[RedisStorage, tuple[Hit, ...]], object]
) -> None:
    deadline.started = -inf  # by the question before
    question(timed, hits(Concurrent(5, 60)))


def test_batch_is_charged_once_when_its_reply_is_lost(distant: Limiter, served: Limiter, proxy: FaultProxy) -> None:
    plans = [hits("5/minute", subject=subject) for subject in ("ada", "bob", "ada")]
    proxy.begin("lost reply", once=True)

    decisions = Limiter(GuardedStorage(distant.storage)).check_many(plans)

    assert proxy.fault is None
    assert {decision.decided_by for decision in decisions} == {"storage"}
    assert [served.peek(plan).remaining for plan in plans] == [3, 4, 3]


def test_batch_admitted_in_an_outage_is_charged_once_if_only_its_replies_were_lost(
    distant: Limiter, served: Limiter, proxy: FaultProxy
) -> None:
    plans = [hits("5/minute", subject=subject) for subject in ("ada", "bob", "ada")]
    limiter = Limiter(GuardedStorage(distant.storage, workers=1))
    proxy.begin("lost reply")

    decisions = limiter.check_many(plans)
    proxy.end()
    until(lambda: limiter.health().state == "working")

    assert {decision.decided_by for decision in decisions} == {"local"}
    assert [served.peek(plan).remaining for plan in plans] == [3, 4, 3]


def test_lost_reply_charges_every_rule_once_if_one_rule_keeps_ids(
    distant: Limiter, served: Limiter, proxy: FaultProxy, algorithm: str
) -> None:
    plan = hits([rule(algorithm, 30, 5), rule("sliding_window", 60, 9)])
    proxy.begin("lost reply", once=True)
    distant.check(plan)
    assert [status.remaining for status in served.peek(plan).statuses] == [4, 8]


@pytest.mark.parametrize("algorithm", [name for name, twin in ALGORITHMS.items() if not twin.recognise])
def test_lost_reply_is_an_error_and_one_charge_if_no_rule_keeps_ids(
    distant: Limiter, served: Limiter, proxy: FaultProxy, algorithm: str
) -> None:
    proxy.begin("lost reply", once=True)

    with pytest.raises(StorageError) as caught:
        distant.check(hits(rule(algorithm)))

    assert caught.value.check_id is not None
    assert served.peek(hits(rule(algorithm))).remaining == 4


def test_error_names_the_id_by_which_a_lost_check_is_repeated_without_a_second_charge(
    distant: Limiter, served: Limiter, proxy: FaultProxy
) -> None:
    proxy.begin("lost reply")
    with pytest.raises(StorageError) as caught:
        distant.check(hits("5/minute"))
    proxy.end()

    distant.check(hits("5/minute"), check_id=caught.value.check_id)

    assert caught.value.check_id is not None
    assert served.peek(hits("5/minute")).remaining == 4


def test_lost_reply_is_an_error_if_only_a_shadow_rule_keeps_ids(
    distant: Limiter, served: Limiter, proxy: FaultProxy
) -> None:
    """A shadow refuses nothing. When it would have refused, it is not charged and keeps no id."""
    shadow = hits_for("1/hour", scope="api", shadow=True)
    counted = hits(rule("fixed_window"))
    assert served.check(shadow).allowed
    distant.peek(shadow + counted)  # loads the script, so that the lost reply is that to a charge
    proxy.begin("lost reply", once=True)

    with pytest.raises(StorageError):
        distant.check(shadow + counted)

    assert served.peek(counted).remaining == 4


def test_connection_killed_between_two_checks_is_replaced_without_an_error(
    any_server: Server, client: redis.Redis, algorithm: str
) -> None:
    limiter = Limiter(storage_from_uri(any_server.url, timeout=10))
    for _ in range(3):
        assert limiter.check(hits(rule(algorithm))).allowed
        client.client_kill_filter(_type="normal", skipme=True)

    assert limiter.peek(hits(rule(algorithm))).remaining == 2
    limiter.close()


def test_limiter_reconnects_after_the_server_restarts(own_server: Server) -> None:
    limiter = Limiter(storage_from_uri(own_server.url, timeout=10))
    assert limiter.check(hits()).remaining == 4

    own_server.restart()

    assert limiter.check(hits()).remaining == 4
    limiter.close()


@pytest.mark.parametrize("pool", [None, redis.ConnectionPool, redis.BlockingConnectionPool])
def test_connections_are_dropped_when_the_server_has_become_a_replica(own_server: Server, pool: Any) -> None:
    """A client object drops its connections, too: by now its host name may lead to the new primary."""
    uri = f"{own_server.tcp_url}?client_name=ours"
    client = pool and redis.Redis(connection_pool=pool.from_url(uri))
    limiter = Limiter(storage_from_uri(uri, timeout=10)) if client is None else bare(client)
    limiter.check(hits())
    limiter.check_many([hits()])
    admin = own_server.client()
    admin.replicaof("127.0.0.1", "1")

    with pytest.raises(StorageError) as caught:
        limiter.check(hits())

    assert "redis+sentinel://" in caught.value.remedy
    if pool is not redis.BlockingConnectionPool or int(redis.__version__.partition(".")[0]) >= 7:
        until(lambda: all(client["name"] != "ours" for client in admin.client_list()))
    limiter.close()


@pytest.mark.parametrize("many", [1, 2])
def test_connections_are_dropped_when_the_server_refuses_a_batch(own_server: Server, many: int) -> None:
    """By now its host name may lead to another server."""
    limiter, admin = (
        Limiter(storage_from_uri(f"{own_server.tcp_url}?client_name=ours", timeout=10)),
        own_server.client(),
    )
    limiter.check_many([hits()])
    admin.config_set("min-replicas-to-write", 1)

    with pytest.raises(StorageError):
        limiter.check_many([hits()] * many)

    until(lambda: all(client["name"] != "ours" for client in admin.client_list()))
    limiter.close()


# Errors


def test_check_that_timed_out_is_not_retried_by_the_client(own_server: Server) -> None:
    limiter = Limiter(storage_from_uri(own_server.url, timeout=0.2))
    connect(limiter, hits())
    own_server.suspend()
    with pytest.raises(StorageError):
        limiter.check(hits())
    own_server.resume()

    # The one request that was sent may have been read by the server when it woke up.
    assert bare(own_server.client()).peek(hits()).remaining in {4, 5}
    limiter.close()


@pytest.mark.parametrize("position", [0, 1])
def test_key_of_another_redis_type_is_a_storage_error_and_nothing_is_charged(
    served: Limiter, client: redis.Redis, algorithm: str, position: int
) -> None:
    plan = hits([rule(algorithm, 30), rule(algorithm, 60)])
    client.rpush(plan[position].key, "not ours")

    with pytest.raises(StorageError) as caught:
        served.check(plan)

    assert isinstance(caught.value.__cause__, redis.ResponseError)
    assert list(client.scan_iter()) == [plan[position].key.encode()]


@pytest.mark.parametrize("protocol", [2, 3], ids=["wire", "client"])
def test_key_of_another_redis_type_leaves_the_other_checks_of_its_batch_to_the_server(
    any_server: Server, client: redis.Redis, served: Limiter, protocol: int
) -> None:
    """Before and after an outage, in which they are admitted here."""
    plans = [hits(rule("fixed_window", 3600), subject=subject) for subject in ("ada", "eve", "bob")]
    limiter = Limiter(GuardedStorage(RedisStorage(any_server.client(protocol=protocol)), workers=1))
    client.rpush(plans[1][0].key, "not ours")

    decided_by = [decision.decided_by for decision in limiter.check_many(plans)]
    client.config_set("min-replicas-to-write", 1)
    try:
        in_outage = {limiter.check(plan).decided_by for plan in plans}
    finally:
        client.config_set("min-replicas-to-write", 0)
    until(lambda: limiter.health().state == "working")

    assert (decided_by, in_outage, limiter.health().given_up) == (["storage", "local", "storage"], {"local"}, 1)
    assert [served.peek(plan).remaining for plan in plans[::2]] == [3, 3]
    limiter.close()


def test_server_out_of_memory_is_a_storage_error_and_nothing_is_charged(own_server: Server, algorithm: str) -> None:
    client = own_server.client()
    limiter = bare(client)
    plan = hits([rule(algorithm, 30), rule("sliding_window", 60), rule("fixed_window", 60)])
    limiter.check(plan)
    before = {key: client.dump(key) for key in client.scan_iter()}

    client.config_set("maxmemory", "1")
    with pytest.raises(StorageError) as caught:
        limiter.check(plan)

    assert isinstance(caught.value.__cause__, redis.ResponseError)
    assert {key: client.dump(key) for key in client.scan_iter()} == before
    client.config_set("maxmemory", "0")
    assert limiter.check(plan).remaining == 3


def test_limiter_works_with_a_client_that_decodes_replies_or_speaks_resp3(any_server: Server) -> None:
    for options in ({"decode_responses": True}, {"protocol": 3}):
        limiter = bare(any_server.client(**options))
        limiter.reset(hits())
        decision = limiter.check(hits())
        assert (decision.allowed, decision.remaining) == (True, 4)
        limiter.refund(decision)
        assert limiter.peek(hits()).remaining == 5


def test_storage_error_names_the_server_and_its_remedy(binary: Binary) -> None:
    with Server(binary, tcp=True) as server:
        limiter = Limiter(storage_from_uri(f"{server.tcp_url}/3", timeout=1))
        connect(limiter, hits())
        server.suspend()
        with pytest.raises(StorageError) as late:
            limiter.check(hits())
        server.kill()
        with pytest.raises(StorageError) as gone:
            limiter.check(hits())
        limiter.close()

    named = f"the rate limit storage gave no answer (127.0.0.1:{server.port}, database 3): "
    assert str(late.value).startswith(f"{named}TimeoutError")
    assert late.value.remedy == TOO_LATE
    assert str(gone.value).startswith(f"{named}ConnectionError")
    assert gone.value.remedy == NOBODY_THERE
    for failure in (late.value, gone.value):
        told = "".join(traceback.format_exception(type(failure), failure, failure.__traceback__))
        assert "During handling of the above exception" not in told  # no traceback of attempts inside the client


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://127.0.0.1:7000/3", "127.0.0.1:7000, database 3"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock, database 0"),
        ("unix:///run/redis.sock?db=3", "unix:///run/redis.sock, database 3"),
    ],
)
def test_address_of_a_server_names_the_database(url: str, place: str) -> None:
    assert RedisStorage(redis.from_url(url)).address == place


@pytest.mark.parametrize("command", ["EVALSHA", "EVAL", "TIME"])
def test_remedy_names_the_command_that_the_server_lacks(any_server: Server, command: str) -> None:
    with Server(any_server.binary, tcp=True, options=["--rename-command", command, "RENAMED"]) as server:
        limiter = bare(server.client())

        with pytest.raises(StorageError) as caught:
            limiter.check(hits())

    assert re.search(rf"\b{command}\b", caught.value.remedy, re.IGNORECASE)
    assert not caught.value.key_specific
    told = "".join(traceback.format_exception(caught.value))
    assert "rate_limit:" not in told, "the server quotes keys, which name clients"


@pytest.mark.parametrize(
    ("error", "text", "no_reply"),
    [
        (redis.TimeoutError("late"), "gave no answer: TimeoutError: late", True),
        (redis.exceptions.BusyLoadingError("loading"), "refused a command: BusyLoadingError: loading", False),
        (redis.exceptions.OutOfMemoryError("full"), "refused a command: OutOfMemoryError: full", False),
        (redis.exceptions.ResponseError("ERR no"), "refused a command: ResponseError: ERR no", False),
        (
            redis.ConnectionError("CERTIFICATE_VERIFY_FAILED"),
            "gave no answer: ConnectionError: CERTIFICATE_VERIFY_FAILED",
            False,
        ),
        (redis.exceptions.NoPermissionError("no"), "refused a command: NoPermissionError: no", False),
        (
            MasterNotFoundError("No master found for 'shop' : Redis(password=hunter2) - TimeoutError()"),
            "gave no answer: MasterNotFoundError: No master found for 'shop'",
            True,
        ),
        (MemoryError(), "gave no answer: MemoryError: the reply needs more memory than there is", True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_text_of_an_error_says_what_happened_and_shows_no_password(error: Exception, text: str, no_reply: bool) -> None:
    made = storage_error(error)
    assert (str(made), made.no_reply) == (f"the rate limit storage {text}", no_reply)
    assert made.__cause__ is error
    assert "hunter2" not in str(error)


class Announcing(TimedConnection):
    """A connection to something that announces more elements than the memory holds."""

    def read_response(self, *_: Any, **__: Any) -> Any:
        raise MemoryError


class OwnClient(redis.Redis):
    """A client that sends its commands by itself, not by our wire."""


@pytest.mark.parametrize("kind", [redis.Redis, OwnClient])
def test_reply_that_announces_more_than_the_memory_holds_is_a_storage_error(
    server: Server, kind: type[redis.Redis]
) -> None:
    deadline = Deadline(1)
    pool = timed_client(server.tcp_url, deadline, connection_class=Announcing).connection_pool
    storage = RedisStorage(kind(connection_pool=pool), deadline=deadline)

    with pytest.raises(StorageError, match="more memory than there is"):
        storage.check(hits())


def test_reply_that_the_client_cannot_decode_is_a_storage_error() -> None:
    with Liar(lambda sent: [b"+OK\r\n" * sent.count(b"CLIENT") or b"+\xff\r\n"]) as liar:
        storage = RedisStorage(OwnClient.from_url(liar.url, protocol=2, decode_responses=True))
        with pytest.raises(StorageError, match="UnicodeDecodeError"):
            storage.check(hits())


def test_log_puts_the_remedy_into_the_sentence_of_the_error() -> None:
    refused = storage_error(redis.ConnectionError("Connection closed by server."))
    assert with_remedy(refused).endswith(f"ConnectionError: Connection closed by server ({NOBODY_THERE})")


@pytest.mark.parametrize(
    ("text", "remedy"),
    [("Authentication required.", "give the password"), ("invalid username-password pair", "the user or the password")],
)
def test_remedy_says_whether_a_password_is_missing_or_wrong(text: str, remedy: str) -> None:
    assert storage_error(redis.AuthenticationError(text)).remedy.startswith(remedy)


def test_answer_that_follows_a_malformed_one_is_not_taken_for_that_to_the_next_check() -> None:
    answers = iter(
        [b"+OK\r\n*6\r\n:1\r\n:1\r\n:0\r\n:3\r\n:0\r\n:0\r\n", b"*6\r\n:2\r\n:1\r\n:0\r\n:4\r\n:0\r\n:0\r\n"]
    )
    with Liar(lambda sent: [b"+OK\r\n" * sent.count(b"CLIENT") or next(answers)]) as liar:
        limiter = bare(liar.url, timeout=10)
        with pytest.raises(StorageError, match="wrong shape: b'OK'"):
            limiter.check(hits("5/minute", subject="ann"))

        assert limiter.check(hits("5/minute", subject="bo")).remaining == 4
        limiter.close()


def test_subject_that_the_server_quotes_does_not_choose_the_code() -> None:
    """If it did, a client called READONLY could make the storage close its connections."""
    quoting = "unknown command 'EVALSHA', with args beginning with: '1f2e' '1' 'rate_limit:{x}:user:READONLY'"
    assert code_of(redis.ResponseError(quoting)) == "UNKNOWN"


@pytest.mark.parametrize("product", ["Redis ", "Redict ", "server ", ""])
def test_missing_command_has_a_remedy_whatever_the_server_is_called(product: str) -> None:
    error = redis.ResponseError(f"Unknown {product}command called from script script: 1f2e, on @user_script:1.")
    assert "TIME" in storage_error(error).remedy.upper()


def test_error_in_a_batch_shows_no_subject(server: Server) -> None:
    """redis-py would put the command into the error: here a client without a wire."""
    client = server.client(protocol=3)
    slots = [Slot(uuid4().bytes, *hits(Concurrent(1), subject=subject)) for subject in ("ada", "bob")]
    for slot in slots:
        client.rpush(slot.hit.key, "not ours")

    with pytest.raises(StorageError, match="WRONGTYPE") as caught:
        RedisStorage(client).release(slots)

    assert "ada" not in str(caught.value)


def test_error_inside_a_script_is_key_specific_and_blames_no_proxy() -> None:
    inside = storage_error(redis.ResponseError("user_script:12: attempt to compare nil with number script: 1f2e"))
    outside = storage_error(redis.ResponseError("Connection refused"))
    assert (inside.key_specific, inside.remedy) == (True, "")
    assert (outside.key_specific, "proxy" in outside.remedy) == (False, True)


def test_remedy_says_that_the_server_has_no_such_database(any_server: Server) -> None:
    limiter = Limiter(storage_from_uri(f"{any_server.tcp_url}/99", timeout=1))

    with pytest.raises(StorageError) as caught:
        limiter.check(hits())

    assert "no database" in caught.value.remedy
    assert not caught.value.key_specific


def test_remedy_names_maxclients_when_the_server_has_too_many_connections(own_server: Server) -> None:
    only = own_server.client()
    only.config_set("maxclients", 1)
    limiter = Limiter(storage_from_uri(own_server.tcp_url, timeout=1))

    with pytest.raises(StorageError) as caught:
        limiter.check(hits())

    assert "maxclients" in caught.value.remedy
    limiter.close()


@pytest.mark.parametrize("pool", [redis.ConnectionPool, redis.BlockingConnectionPool])
def test_remedy_names_max_connections_when_no_connection_of_a_pool_is_free(server: Server, pool: Any) -> None:
    settings: dict[str, Any] = {"timeout": 0.01} if pool is redis.BlockingConnectionPool else {}
    client: Any = redis.Redis(connection_pool=pool.from_url(server.url, max_connections=1, **settings))
    with client.pubsub() as taken:
        taken.subscribe("news")
        with pytest.raises(StorageError) as caught:
            bare(client).check(hits())

    assert "max_connections" in caught.value.remedy
    client.close()


def test_remedy_names_the_limit_of_open_files_that_is_reached() -> None:
    error = storage_error(redis.ConnectionError("Error 24 connecting to 127.0.0.1:6379. Too many open files."))
    assert "ulimit -n" in error.remedy


OUT_OF_FILES = """
import os, resource
from contextlib import suppress
from flask_multilimit.engine import StorageError, hits_for, storage_from_uri

storage, plan = storage_from_uri("redis://localhost:1"), hits_for("1/minute", scope="api")
with suppress(StorageError):
    storage.check(plan)  # from now on, Python has read what it needs to look a name up
resource.setrlimit(resource.RLIMIT_NOFILE, (os.open(os.devnull, os.O_RDONLY) + 1,) * 2)
try:
    storage.check(plan)
except StorageError as error:
    print(error.remedy)
"""


def test_remedy_names_the_limit_of_open_files_when_a_host_name_cannot_be_looked_up() -> None:
    """The system then gives another reason, such as an invalid argument."""
    printed = subprocess.run([sys.executable, "-c", OUT_OF_FILES], check=True, capture_output=True, text=True).stdout
    assert "ulimit -n" in printed


def test_check_whose_reply_is_malformed_is_not_sent_again() -> None:
    """The server may have charged it."""
    commands: list[bytes] = []

    def answer(command: bytes) -> Iterator[bytes]:
        commands.append(command)
        yield b"*2\r\n:1\r\n:1\r\n"

    with Liar(answer) as liar, closing(bare(liar.url, timeout=10)) as limiter, pytest.raises(StorageError):
        limiter.check(hits())

    assert sum(b"EVAL" in command for command in commands) == 1
