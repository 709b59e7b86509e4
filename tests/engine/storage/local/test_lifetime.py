"""One server for all processes: it starts with the first check and ends with the last process."""

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest
import redis

from engine.storage.local.places import Place, User, kill, suspend
from engine.storage.local.users import HITS
from flask_multilimit.engine import Layers, Limiter, RedisStorage, StorageError, storage_from_uri
from flask_multilimit.engine.storage.local import LocalStorage, supervisor
from flask_multilimit.engine.storage.local import server as local_server
from support.doubles import raising
from support.servers import Binary
from support.waiting import PATIENCE, until


def test_processes_share_their_quotas_exactly(place: Place) -> None:
    users = [place.user() for _ in range(4)]

    with ThreadPoolExecutor() as pool:
        admitted = list(pool.map(lambda user: user("check", 20), users))

    assert sum(admitted) == 50
    assert len(place.supervisors()) == 1


def test_two_directories_do_not_share_quotas(place: Place) -> None:
    other = Place(place.directory.with_name("other"), place.users)

    assert place.user()("check", 51) == 50
    assert other.user()("check", 51) == 50
    for user in other.users:
        user.leave()
    until(other.is_deserted)


def test_server_stays_as_long_as_any_process_uses_it(place: Place) -> None:
    first, second = place.user(), place.user()
    first("check", 30)
    second("check", 5)

    first.leave()

    assert second("check", 20) == 15
    assert place.user()("check") == 0


def test_quotas_survive_when_all_workers_are_replaced_at_once(place: Place) -> None:
    old, new = place.user(), place.user()
    assert old("check", 30) == 30
    old.leave()
    assert new("check", 30) == 20


@pytest.mark.parametrize("leave_or_kill", [User.leave, User.kill])
def test_server_ends_with_its_last_process_and_leaves_no_file(
    place: Place, leave_or_kill: Callable[[User], None]
) -> None:
    users = [place.user() for _ in range(3)]
    for user in users:
        user("check")
    assert not place.is_deserted()

    for user in users:
        leave_or_kill(user)

    until(place.is_deserted)


def test_a_closed_storage_can_be_used_again(place: Place) -> None:
    user = place.user()
    assert user("check", 51) == 50

    user("close")

    until(place.is_deserted)
    assert user("check", 51) == 50


def test_a_storage_that_is_used_again_right_after_it_was_closed_keeps_the_server(place: Place) -> None:
    storage = LocalStorage(place.directory, timeout=10)
    limiter = Limiter(storage, layers=Layers())
    limiter.check(HITS)

    limiter.close()
    until(lambda: not storage.in_use)
    limiter.check(HITS)

    assert storage.in_use
    limiter.close()


def test_a_check_under_way_when_another_thread_closes_the_storage_keeps_the_server(place: Place) -> None:
    """Its connection may be used again: the server would end with all quotas, although they are still used."""
    storage = LocalStorage(place.directory, timeout=10)
    wire: Any = storage._wire
    storage.check(HITS)
    line, _ = wire._take(monotonic())  # of a check in another thread

    storage.close()

    assert storage.in_use
    wire._idle.append(line)
    storage.close()
    until(place.is_deserted)


def test_a_dropped_storage_stops_using_the_server(place: Place) -> None:
    limiter = Limiter(storage_from_uri(place.uri, timeout=10))
    limiter.check(HITS)
    assert not place.is_deserted()

    RedisStorage.close(limiter.storage)  # type: ignore[arg-type]  # sockets warn when they are not closed
    del limiter
    gc.collect()

    until(place.is_deserted)


def test_threads_that_check_at_once_start_one_server(place: Place, limiter: Limiter) -> None:
    all_threads = threading.Barrier(8)

    def check(_: int) -> bool:
        all_threads.wait()
        return limiter.check(HITS).allowed

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, range(8)))

    assert len(place.supervisors()) == 1


def test_server_ignores_signals_to_end_while_a_process_uses_it(place: Place) -> None:
    """As when a service is stopped: its workers still finish their requests."""
    user = place.user()
    user("check", 49)

    for pid in (place.supervisor, place.server):
        assert os.getpgid(pid) != os.getpgid(user.process.pid or 0)
        kill(pid, signal.SIGTERM)
        kill(pid, signal.SIGINT)
        kill(pid, signal.SIGHUP)

    assert user("check", 5) == 1
    user.leave()
    until(place.is_deserted)


def test_server_that_is_suspended_for_a_moment_is_not_replaced(place: Place) -> None:
    user = place.user()
    user("check", 30)
    server = place.server

    suspend(server)
    kill(server, signal.SIGCONT)

    assert user("check", 30) == 20
    assert place.server == server


# Forks


def test_forked_child_shares_quotas_with_its_parent(place: Place) -> None:
    parent = place.user()
    parent("check", 20)
    assert parent("fork_and_check", 40) == 30
    assert parent("check") == 0


def test_forked_child_that_outlives_its_parent_keeps_the_server(place: Place) -> None:
    parent = place.user()
    parent("check", 20)
    child = parent("fork")

    parent.kill()

    newcomer = place.user()
    assert newcomer("check", 40) == 30
    newcomer.leave()
    assert not place.is_deserted()
    kill(child)
    until(place.is_deserted)


def test_child_forked_while_the_server_starts_blocks_no_other_process(place: Place) -> None:
    child = place.user()("fork_at_the_start")
    assert place.user()("check", 51) == 49
    kill(child)


# Killed processes


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the next one that comes ends it")
def test_the_server_ends_with_its_supervisor(place: Place) -> None:
    place.user()("check")
    kill(place.supervisor)
    until(lambda: not place.servers())
    assert place.user()("check", 51) == 50


def test_a_server_without_supervisor_is_replaced(place: Place, binary: Binary) -> None:
    place.directory.mkdir(mode=0o700)
    orphan = subprocess.Popen([binary.path, "--port", "0", "--unixsocket", place.socket], stdout=subprocess.DEVNULL)
    try:
        until(place.socket.exists)

        assert place.user()("check", 51) == 50

        assert orphan.wait(PATIENCE) == 0
        assert len(place.servers()) == 1
    finally:
        orphan.kill()
        orphan.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the next one that comes ends it")
def test_a_server_whose_supervisor_ended_before_it_began_does_not_start() -> None:
    program = f"from {supervisor.__name__} import end_with_parent; end_with_parent(0)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 1


def test_a_server_that_is_shut_down_is_started_again_by_the_next_check(place: Place) -> None:
    user = place.user()
    user("check")

    with redis.Redis(unix_socket_path=str(place.socket)) as client:
        client.shutdown(nosave=True)

    until(lambda: not place.supervisors())
    assert user("check", 51) == 50


def test_killed_server_is_started_again_by_the_next_check(place: Place) -> None:
    first, second = place.user(), place.user()
    first("check")
    second("check")

    kill(place.server)

    until(lambda: not place.supervisors())
    assert first("check", 40) == 40
    assert second("check", 40) == 10
    assert len(place.supervisors()) == 1


def test_log_says_that_quotas_are_gone_with_a_killed_server(
    place: Place, limiter: Limiter, caplog: pytest.LogCaptureFixture
) -> None:
    limiter.check(HITS)
    assert caplog.messages == []

    kill(place.server)
    until(lambda: not place.supervisors())
    limiter.check(HITS)

    (message,) = caplog.messages
    assert f"local storage in {place.directory} ended while it was used" in message
    assert "every quota is full again" in message
    limiter.close()
    until(place.is_deserted)
    limiter.check(HITS)
    assert caplog.messages == [message], "this process had left the server, so it could end"


def test_server_ends_although_a_process_has_the_id_of_an_earlier_master(place: Place) -> None:
    place.directory.mkdir(mode=0o700)
    (place.directory / "masters").write_text(f"{os.getpid()}\n")

    user = place.user()
    user("check")
    user.leave()

    until(place.is_deserted)


def test_master_of_several_workers_is_noted_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"]) as master:
        monkeypatch.setattr(local_server, "master_of_this_process", lambda: master.pid)
        workers = [local_server.LocalServer(place.directory) for _ in range(2)]
        for each in workers:
            each.find()
        noted = (place.directory / "masters").read_text()
        for each in workers:
            each.leave()
        master.kill()

    assert noted == f"{master.pid}\n"


def test_a_master_that_runs_as_another_user_keeps_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.kill", raising(PermissionError()))
    assert supervisor.runs(os.getpid())


def test_killed_server_leaves_no_file_even_without_a_next_check(place: Place) -> None:
    place.user()("check")
    kill(place.server)
    until(place.is_deserted)


def test_guard_decides_until_a_killed_server_is_started_again(place: Place) -> None:
    users = [place.user() for _ in range(3)]
    for user in users:
        user("survive", 1)
    kill(place.server)

    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda user: user("survive", 5), users))

    assert len({user("server_id") for user in users}) == 1


def test_removed_directory_is_made_again_by_the_next_check(place: Place) -> None:
    user = place.user()
    user("check")
    for path in place.directory.iterdir():
        path.unlink()
    place.directory.rmdir()
    kill(place.server)
    until(lambda: not place.supervisors())

    assert user("check", 51) == 50
    assert place.user()("check") == 0


def test_check_fails_if_another_process_holds_the_election_for_too_long(
    place: Place, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    monkeypatch.setattr(local_server, "START_SECONDS", 0.1)
    place.directory.mkdir(mode=0o700)
    with place.directory.joinpath("election").open("w") as stuck:
        fcntl.flock(stuck, fcntl.LOCK_EX)

        with pytest.raises(StorageError, match="another process is still looking for the server"):
            limiter.check(HITS)
