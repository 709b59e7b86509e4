"""A fork while other threads hold locks: neither the parent nor the child is stuck afterwards."""

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.sentinel import Sentinel

from engine.storage.layers.guard.workers import SECONDS, Workers, exit_code_of_child
from flask_multilimit.engine import Limiter, MemoryStorage, forks
from flask_multilimit.engine.forks import LateLock, OncePerProcess, cached_property, notice_fork, notify_child
from flask_multilimit.engine.storage.local.server import LocalServer
from support.bench import hits
from support.cluster import Cluster
from support.sentinel import SERVICE, SentinelServer
from support.servers import Binary, Server


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers(2)
    yield workers
    for limiter in workers.limiters:
        limiter.close()


def fork_as_uwsgi_does() -> int:
    """In C: Python is told only in the child, and afterwards. No other thread may want the interpreter at that moment,
    because the child would wait for it to take it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    time.sleep(0.01)
    child: int = ctypes.PyDLL(None).fork()
    if child == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    sys.setswitchinterval(before)
    return child


unannounced = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="Python ends a child by itself that it was not told of before the fork"
)


def in_the_middle_of(lock: AbstractContextManager[bool]) -> tuple[threading.Thread, threading.Event]:
    """A thread that holds `lock`, and the event that makes it let go."""
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            let_go.wait(SECONDS)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(SECONDS)
    return thread, let_go


def assert_child_checks_while_another_thread_is_in(lock: AbstractContextManager[bool], limiter: Limiter) -> None:
    thread, let_go = in_the_middle_of(lock)

    def act() -> None:
        assert limiter.check(hits()).decided_by == "storage"

    code = exit_code_of_child(act)
    let_go.set()
    thread.join(SECONDS)
    limiter.close()
    assert code == 0


def guard_lock(limiter: Limiter) -> threading.Lock:
    return limiter._storage._outage._lock  # type: ignore[attr-defined, no-any-return]


def test_fork_waits_for_the_lock_of_a_memory_storage() -> None:
    storage = MemoryStorage()
    limiter = Limiter(storage)
    thread, let_go = in_the_middle_of(storage._lock)
    threading.Timer(0.2, let_go.set).start()

    assert exit_code_of_child(lambda: limiter.check(hits())) == 0
    thread.join(SECONDS)
    assert limiter.check(hits()).allowed


def test_forked_child_can_fork_again() -> None:
    def fork_again() -> None:
        assert exit_code_of_child(lambda: None) == 0

    assert exit_code_of_child(fork_again) == 0


def test_forked_child_gets_a_late_lock_of_its_own() -> None:
    lock = LateLock()
    thread, let_go = in_the_middle_of(lock())

    assert exit_code_of_child(lambda: lock().acquire()) == 0
    let_go.set()
    thread.join(SECONDS)


class Computed:
    """Has a property that a thread with an event computes slowly."""

    begun, let_go = threading.Event(), threading.Event()

    @cached_property
    def value(self) -> int:
        if threading.current_thread() is not threading.main_thread():
            self.begun.set()
            assert self.let_go.wait(SECONDS)
        return 1


def test_forked_child_computes_a_property_that_another_thread_was_computing() -> None:
    def look() -> None:
        assert Computed().value == 1

    thread = threading.Thread(target=lambda: Computed().value)
    thread.start()
    assert Computed.begun.wait(SECONDS)

    code = exit_code_of_child(look)
    Computed.let_go.set()
    thread.join(SECONDS)
    assert code == 0


def test_child_of_a_fork_within_a_task_runs_the_task_again() -> None:
    children: list[int] = []
    once = OncePerProcess(lambda: children.append(os.fork()), LateLock(again=True))

    once()
    if children == [0]:
        os._exit(once.done)

    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    assert once.done


class Notified:
    """An object that is notified in a forked child."""

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails
        self.notified = False
        notify_child(self)

    def _after_fork_in_child(self) -> None:
        self.notified = True
        if self.fails:
            raise RuntimeError("this one fails")


def test_every_object_is_notified_of_a_fork_even_if_others_fail() -> None:
    objects = [Notified(fails=n % 2 == 0) for n in range(20)]
    sys.unraisablehook, hook = lambda _: None, sys.unraisablehook

    def look() -> None:
        assert all(each.notified for each in objects)

    try:
        assert exit_code_of_child(look) == 0
    finally:
        sys.unraisablehook = hook


class NotifiedSlowly:
    """An object that is busy for a while after it was notified, once `slow` is set."""

    def __init__(self) -> None:
        self.slow, self.ready = False, False
        self.begun = threading.Event()
        notify_child(self)

    def _after_fork_in_child(self) -> None:
        if self.slow:
            self.begun.set()
            time.sleep(0.2)
            self.ready = True


def test_no_thread_begins_to_work_while_another_still_prepares_the_child() -> None:
    one = NotifiedSlowly()

    def act() -> None:
        one.slow = True
        forks._process.id = os.getppid()  # as in a child of a fork of which Python was not informed
        threading.Thread(target=notice_fork).start()
        assert one.begun.wait(SECONDS)
        notice_fork()
        assert one.ready

    assert exit_code_of_child(act) == 0


class NotifiedAmidASignal:
    """An object that a signal handler interrupts once, when it is notified: the handler begins to work."""

    def __init__(self) -> None:
        self.interrupted = True
        notify_child(self)

    def _after_fork_in_child(self) -> None:
        if not self.interrupted:
            self.interrupted = True
            notice_fork()


def test_signal_handler_may_begin_to_work_while_its_thread_prepares_the_child() -> None:
    one = NotifiedAmidASignal()

    def act() -> None:
        one.interrupted = False
        forks._process.id = os.getppid()
        notice_fork()
        assert one.interrupted

    assert exit_code_of_child(act) == 0


@pytest.mark.parametrize(
    "fork", [pytest.param(os.fork, id="Python"), pytest.param(fork_as_uwsgi_does, marks=unannounced, id="uWSGI")]
)
def test_forked_child_is_not_blocked_by_a_lock_held_in_its_parent(broken: Workers, fork: Callable[[], int]) -> None:
    limiter = broken.limiter
    limiter.check(hits())
    thread, let_go = in_the_middle_of(guard_lock(limiter))
    threading.Timer(0.2, let_go.set).start()

    def act() -> None:
        limiter.check(hits())
        limiter.close()

    assert exit_code_of_child(act, fork) == 0
    thread.join(SECONDS)
    assert limiter.check(hits()).decided_by == "local"


@pytest.mark.parametrize("holder", ["pool", "dispatcher"])
@pytest.mark.parametrize("storage_of", [str, redis.Redis.from_url])
def test_forked_child_is_not_blocked_by_a_pool_that_another_thread_was_using(
    server: Server, storage_of: Callable[[str], Any], holder: str
) -> None:
    limiter = Limiter(storage_of(server.url))
    limiter.check(hits())
    pool = limiter.storage.client.connection_pool  # type: ignore[attr-defined]
    holding = getattr(pool, "_event_dispatcher", pool) if holder == "dispatcher" else pool  # redis-py 5.0 has none
    assert_child_checks_while_another_thread_is_in(holding._lock, limiter)


def test_forked_child_does_not_read_the_answers_of_its_parent_where_a_client_has_one_connection(server: Server) -> None:
    client = server.client(single_connection_client=True)
    limiter, connection = Limiter(client), client.client_id()

    def act() -> None:
        assert limiter.check(hits()).decided_by == "storage"
        assert client.client_id() != connection

    assert exit_code_of_child(act) == 0
    assert client.client_id() == connection


def test_forked_child_is_not_blocked_by_a_client_of_a_cluster_that_another_thread_was_using(cluster: Cluster) -> None:
    client: Any = cluster.client()
    limiter = Limiter(client)
    assert_child_checks_while_another_thread_is_in(client.nodes_manager._lock, limiter)


def test_forked_child_is_not_blocked_by_a_client_of_a_sentinel_that_another_thread_was_using(binary: Binary) -> None:
    with Server(binary, tcp=True) as primary, SentinelServer(binary, primary.port, quorum=1) as server:
        sentinel = Sentinel([("127.0.0.1", server.port)])  # type: ignore[no-untyped-call]
        limiter = Limiter(sentinel.master_for(SERVICE))  # type: ignore[no-untyped-call]
        assert_child_checks_while_another_thread_is_in(sentinel.sentinels[0].connection_pool._lock, limiter)


def test_child_forked_in_an_outage_does_not_go_on_forgetting_its_keys_when_none_is_left(broken: Workers) -> None:
    limiter = broken.limiter
    limiter.check(hits())

    def act() -> None:
        broken.storage.error = None
        broken.clock.advance(7200)
        for _ in range(9):
            limiter.check(hits())
        assert not limiter._storage._outage.fallback._needs_sweep  # type: ignore[attr-defined]

    assert exit_code_of_child(act) == 0


@unannounced
def test_child_forked_in_c_inherits_no_pending_charges(broken: Workers) -> None:
    limiter = broken.limiter
    limiter.check(hits())

    def look() -> None:
        assert limiter.health().pending == 0

    assert exit_code_of_child(look, fork_as_uwsgi_does) == 0
    assert limiter.health().pending == 1


def forked_twice_while(locks: Iterable[AbstractContextManager[bool]], act: Callable[[], object]) -> list[int]:
    """The exit codes of children of two threads that fork at once, while other threads let go of the `locks`."""
    outcomes: list[int] = []
    held = [in_the_middle_of(lock) for lock in locks]
    forkers = [threading.Thread(target=lambda: outcomes.append(exit_code_of_child(act))) for _ in range(2)]
    for forker in forkers:
        forker.start()
    for thread, let_go in held:
        threading.Event().wait(0.1)  # until both forks wait
        let_go.set()
        thread.join(SECONDS)
    for forker in forkers:
        forker.join(2 * SECONDS)
    return outcomes


def comes_to_an_end(act: Callable[[], object]) -> bool:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return not thread.is_alive()


def test_two_forks_at_once_leave_no_lock_of_a_guard_held(broken: Workers) -> None:
    def check() -> None:
        for limiter in broken.limiters:
            limiter.check(hits())

    check()

    assert forked_twice_while(map(guard_lock, broken.limiters), check) == [0, 0]
    assert comes_to_an_end(check)


def test_two_forks_at_once_leave_no_lock_of_a_local_server_held(tmp_path: Path) -> None:
    server = LocalServer(tmp_path)
    assert forked_twice_while([server._lock()], server.leave) == [0, 0]
    assert comes_to_an_end(server.leave)


def test_a_fork_during_a_decision_never_deadlocks(workers: Workers) -> None:
    """A decision takes the lock of the guard, then that of its memory. A fork takes them in the same order."""
    outage = workers.limiter._storage._outage  # type: ignore[attr-defined]
    decided, forked = threading.Event(), list[int]()
    forker = threading.Thread(target=lambda: forked.append(exit_code_of_child(lambda: None)))

    def decide() -> None:
        with outage._lock:
            forker.start()
            forker.join(0.2)  # until the fork waits
            if outage.fallback._memory._lock.acquire(timeout=SECONDS):
                outage.fallback._memory._lock.release()
                decided.set()

    decide()
    forker.join(2 * SECONDS)

    assert decided.is_set()
    assert forked == [0]
