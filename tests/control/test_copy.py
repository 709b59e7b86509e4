"""`MULTILIMIT_CONTROL_COPY`: workers keep the newest changes on disk, for a worker that starts in an outage."""

import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from control.conftest import Shop, shop_on
from flask_multilimit.signals import control_changed
from support.asking import heard
from support.servers import Server
from support.waiting import until

CLIENT = "198.51.100.7"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "instance" / "changes"


def worker(server: Server, copy: Path | None) -> Shop:
    """A worker that has served a request."""
    shop = shop_on(server.tcp_url, MULTILIMIT_CONTROL_COPY=None if copy is None else str(copy))
    shop.statuses(1, ip="192.0.2.99")
    return shop


def test_worker_that_starts_in_an_outage_applies_the_copy(
    own_server: Server, copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker(own_server, copy).control.deny(CLIENT, lasting=True)
    own_server.stop()

    shop = worker(own_server, copy)

    assert shop.statuses(6, "/open") == [403] * 6
    assert sum("worker applies the copy on disk, last changed 2" in each for each in caplog.messages) == 1


def test_copy_with_a_date_after_all_calendars_applies(own_server: Server, copy: Path) -> None:
    worker(own_server, copy).control.deny(CLIENT, lasting=True)
    own_server.stop()
    copy.write_bytes(re.sub(rb" 1-[0-9]+", b" 1-99999999999999999", copy.read_bytes(), count=1))

    shop = shop_on(own_server.tcp_url, MULTILIMIT_CONTROL_COPY=str(copy))

    assert shop.statuses(2, "/open") == [403, 403]


@pytest.mark.parametrize("is_set", [False, True])
def test_worker_without_a_copy_logs_once_that_no_change_is_in_force_and_what_to_do(
    own_server: Server, copy: Path, caplog: pytest.LogCaptureFixture, is_set: bool
) -> None:
    worker(own_server, None).control.deny(CLIENT, lasting=True)
    own_server.stop()

    shop = worker(own_server, copy if is_set else None)

    assert shop.statuses(2, "/open") == [200, 200]
    (logged,) = [each for each in caplog.messages if "no bans, denials or other changes" in each]
    written = f"No worker has written a usable copy of them to {copy}"
    assert (written if is_set else "Set MULTILIMIT_CONTROL_COPY to a file") in logged
    assert logged.startswith(f"Rate limits: worker {os.getpid()}: started while the storage is down: ")


def test_worker_that_started_from_the_copy_takes_newer_changes_after_the_outage(own_server: Server, copy: Path) -> None:
    first = worker(own_server, copy)
    denied = first.control.deny(CLIENT, lasting=True)
    old = copy.read_bytes()
    first.control.undo(denied.id)
    copy.write_bytes(old)
    newest: Any = own_server.client().hgetall("rate_limit:{control}:document")
    first.follower.close()
    own_server.stop()
    shop = worker(own_server, copy)
    assert shop.denies()

    own_server.restart()
    own_server.client().hset("rate_limit:{control}:document", mapping=newest)

    until(lambda: not shop.denies())


def test_changes_survive_a_restart_of_the_server_and_of_all_workers(own_server: Server, copy: Path) -> None:
    first = worker(own_server, copy)
    first.control.deny(CLIENT, lasting=True)
    first.follower.close()
    own_server.kill()
    own_server.restart()

    shop = worker(own_server, copy)

    assert shop.denies()
    until(lambda: shop_on(own_server.tcp_url).denies())


def test_changes_deleted_after_a_restart_of_the_server_do_not_come_back_from_the_copy(
    own_server: Server, copy: Path
) -> None:
    first = worker(own_server, copy)
    first.control.deny(CLIENT, lasting=True)
    first.follower.close()
    kept: Any = own_server.client().hgetall("rate_limit:{control}:document")
    own_server.kill()
    own_server.restart()
    own_server.client().hset("rate_limit:{control}:document", mapping=kept)
    first.follower.ask()

    own_server.client().flushall()

    assert not worker(own_server, copy).denies()


def test_deleted_changes_do_not_come_back_from_the_copy(own_server: Server, copy: Path) -> None:
    first = worker(own_server, copy)
    first.control.deny(CLIENT, lasting=True)
    own_server.client().flushall()
    until(lambda: not first.denies())
    first.follower.close()
    own_server.kill()
    own_server.restart()

    assert not worker(own_server, copy).denies()


def test_expired_entry_of_the_copy_is_not_in_force(own_server: Server, copy: Path) -> None:
    worker(own_server, copy).control.ban(CLIENT, for_=1)
    own_server.stop()
    time.sleep(1.5)  # the ban ends by the clock of the machine
    assert not worker(own_server, copy).denies()


def test_entry_of_the_copy_ends_on_time_in_the_outage(own_server: Server, copy: Path) -> None:
    worker(own_server, copy).control.deny(CLIENT, for_=2)
    own_server.stop()

    shop = worker(own_server, copy)

    until(lambda: not shop.denies())


def test_change_does_not_put_an_older_copy_in_force_before_it(own_server: Server, copy: Path) -> None:
    shop = worker(own_server, copy)
    shop.control.deny(CLIENT, lasting=True)
    old = copy.read_bytes()
    shop.control.deny("10.0.0.1", lasting=True)
    copy.write_bytes(old)

    with heard(shop.app, control_changed) as signals:
        shop.control.deny("10.0.0.2", lasting=True)

    assert [len(told["entries"]) for _, told in signals] == [3]


@pytest.mark.skipif(os.name != "posix", reason="needs file modes of POSIX")
def test_copy_is_readable_by_its_owner_only_and_made_beside_its_place_without_other_files(
    own_server: Server, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(copy / "missing"))  # which may be on another file system
    worker(own_server, copy).control.deny(CLIENT, lasting=True)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert list(copy.parent.iterdir()) == [copy]


def _replaced_by_a_link(copy: Path) -> None:
    copy.rename(copy.with_name("other"))
    copy.symlink_to(copy.with_name("other"))


def _replaced_by_a_pipe(copy: Path) -> None:
    copy.unlink()
    os.mkfifo(copy)


@pytest.mark.skipif(os.name != "posix", reason="needs file modes of POSIX")
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda copy: copy.chmod(0o666), "its mode is 666"),
        (_replaced_by_a_link, "symbolic link"),
        (_replaced_by_a_pipe, "not a regular file"),
        (lambda copy: copy.write_bytes(b"\xff\xfe"), "decode"),
        (lambda copy: copy.write_text("nonsense"), "it is of 'nonsense'"),
        (lambda copy: copy.write_text("rate_limit:{control}:document 1-1-a b\n{"), "is not JSON"),
        (lambda copy: copy.write_text("rate_limit:{control}:document 1 b\n" + "[" * 100_000), "JSON"),
        (lambda copy: copy.write_text("rate_limit:{control}:document " + "1" * 1000), "too long"),
        (
            lambda copy: copy.write_text('other:{control}:document 1-1-a b\n{"entries":[]}'),
            "each app its own file",
        ),
    ],
    ids=["writable", "link", "pipe", "binary", "nonsense", "broken", "nested", "stamp", "of another app"],
)
def test_untrustworthy_copy_is_ignored_and_logged(
    own_server: Server, copy: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], object], why: str
) -> None:
    worker(own_server, copy).control.deny(CLIENT, lasting=True)
    own_server.stop()
    spoil(copy)

    assert not worker(own_server, copy).denies()
    (logged,) = [each for each in caplog.messages if f"worker {os.getpid()}: cannot use the copy" in each]
    assert why in logged


@pytest.mark.parametrize("name", ["file/changes", "folder", "a\0b", "/"])
def test_copy_that_cannot_be_written_is_logged_once_and_changes_apply(
    own_server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    shop = worker(own_server, tmp_path / name)

    shop.control.deny(CLIENT, lasting=True)
    shop.control.deny("203.0.113.1", lasting=True)

    assert shop.denies()
    assert sum(f"worker {os.getpid()} cannot write the copy" in each for each in caplog.messages) == 1
    assert {each.name for each in tmp_path.iterdir()} == {"file", "folder"}
