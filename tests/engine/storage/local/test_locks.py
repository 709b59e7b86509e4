"""A process that arrives at the moment at which the server is about to end."""

import fcntl
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from engine.storage.local.places import Place
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
    supervisor, path = place.supervisor, place.directory / "election"
    with path.open() as election:
        fcntl.flock(election, fcntl.LOCK_EX)
        last.leave()
        until(lambda: waits_for(supervisor, path))
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
