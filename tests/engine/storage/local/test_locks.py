"""Who holds which lock, above all at the moment at which the server is about to end."""

import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from engine.storage.local.places import Place, kill
from flask_multilimit.engine.storage.local import supervisor
from support.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only here /proc tells who waits for what")


def waits_for(pid: int, path: Path) -> bool:
    wanted = f" {pid} ", f":{path.stat().st_ino} "
    locks = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and all(part in line for part in wanted) for line in locks)


def has_opened(pid: int | None, path: Path) -> bool:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            if descriptor.readlink() == path:
                return True
    return False


def test_process_that_arrives_when_the_last_one_leaves_keeps_the_server(place: Place) -> None:
    last = place.user()
    last("check", 20)
    path = place.directory / "election"
    with path.open() as election:
        fcntl.flock(election, fcntl.LOCK_EX)
        last.leave()
        until(lambda: waits_for(place.supervisor, path))
        newcomer = os.open(place.directory, os.O_RDONLY)
        fcntl.flock(newcomer, fcntl.LOCK_SH)

    assert place.user()("check", 51) == 30

    os.close(newcomer)


def test_a_process_that_waits_for_a_removed_lock_file_takes_the_new_one(place: Place) -> None:
    place.directory.mkdir(mode=0o700)
    newcomer, path = place.user(), place.directory / "election"
    with ThreadPoolExecutor() as pool:
        with path.open("w") as election:
            fcntl.flock(election, fcntl.LOCK_EX)
            admitted = pool.submit(newcomer, "check", 51)
            until(lambda: has_opened(newcomer.process.pid, path))
            path.unlink()

        assert admitted.result() == 50


def test_server_stays_when_a_master_came_while_it_was_about_to_end(place: Place) -> None:
    last = place.user()
    last("check", 20)
    path = place.directory / "election"
    with path.open() as election, subprocess.Popen(["sleep", "60"]) as master:
        fcntl.flock(election, fcntl.LOCK_EX)
        last.leave()
        until(lambda: waits_for(place.supervisor, path))
        path.with_name("masters").write_text(f"{master.pid}\n")
        fcntl.flock(election, fcntl.LOCK_UN)

        admitted = place.user()("check", 51)
        master.kill()

    assert admitted == 30


def test_supervisor_sleeps_as_long_as_a_process_uses_the_server(place: Place) -> None:
    place.user()("check")
    until(lambda: waits_for(place.supervisor, place.directory))


def test_server_does_not_hold_the_lock_of_its_supervisor(place: Place) -> None:
    place.user()("check")
    assert has_opened(place.supervisor, place.directory / "supervisor")
    assert not has_opened(place.server, place.directory / "supervisor")


def test_process_that_looks_for_the_server_keeps_its_lock_when_the_server_is_killed(place: Place) -> None:
    place.user()("check")
    path = place.directory / "election"
    with path.open() as election:
        fcntl.flock(election, fcntl.LOCK_EX)
        kill(place.server)
        until(lambda: not place.supervisors())

        assert path.exists()

    assert place.user()("check", 51) == 50


def test_supervisor_closes_the_list_of_masters_each_time_it_has_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    masters = tmp_path / "masters"
    masters.write_text(f"{os.getpid()}\n")
    monkeypatch.chdir(tmp_path)

    assert supervisor.a_master_runs()

    assert not has_opened(os.getpid(), masters)


SIGNALLED_BEFORE_IT_WAITS = """
import ctypes, sys
from functools import partial
from types import SimpleNamespace
from flask_multilimit.engine.storage.local import supervisor

system, python = ctypes.CDLL(None), supervisor.fcntl

def flock(descriptor, how):  # the signal arrives before the wait, and Python runs no handler in between
    calls = partial(system.usleep, 300_000), partial(system.flock, descriptor, how)
    while list(map(partial.__call__, calls))[1]:
        pass

supervisor.fcntl = SimpleNamespace(**{**vars(python), "flock": flock})
supervisor.main(*sys.argv[1:])
"""


def test_supervisor_notices_the_end_of_its_server_just_before_it_waits_for_a_lock(place: Place) -> None:
    place.directory.mkdir(mode=0o700)
    (place.directory / "election").touch()
    user = os.open(place.directory, os.O_RDONLY)
    fcntl.flock(user, fcntl.LOCK_SH)
    try:
        with (place.directory / "supervisor").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            command = [sys.executable, "-c", SIGNALLED_BEFORE_IT_WAITS, str(place.directory), "0", "/bin/false"]
            subprocess.run(command, stdin=lock, check=True)

        until(place.is_deserted)
    finally:
        os.close(user)
