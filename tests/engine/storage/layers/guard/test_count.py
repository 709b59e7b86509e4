"""How many workers share a limit, and when they are counted."""

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from gunicorn.config import Config
from gunicorn.workers.sync import SyncWorker

from engine.storage.layers.guard.workers import Shared
from flask_multilimit.engine import GuardedStorage, Limiter, MemoryStorage, StorageError
from flask_multilimit.engine.storage.layers.health import count_workers
from support.bench import hits
from support.clock import Clock
from support.forks import forked
from support.waiting import until


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        pytest.param(["/usr/bin/gunicorn", "-w", "4", "app:app"], {}, 4, id="-w 4"),
        pytest.param(["gunicorn", "-w4", "app:app"], {}, 4, id="-w4"),
        pytest.param(["gunicorn", "--workers=4", "-k", "gthread", "app:app"], {}, 4, id="--workers=4"),
        pytest.param(["/x/gunicorn/__main__.py", "--workers", "4"], {}, 4, id="--workers 4"),
        pytest.param(["gunicorn", "app:app"], {"WEB_CONCURRENCY": "3"}, 3, id="WEB_CONCURRENCY"),
        pytest.param(
            ["gunicorn", "app:app"], {"GUNICORN_CMD_ARGS": "--bind=[::]:80 --workers=5"}, 5, id="GUNICORN_CMD_ARGS"
        ),
        pytest.param(["gunicorn", "-w", "2", "app:app"], {"WEB_CONCURRENCY": "3"}, 3, id="-w beside WEB_CONCURRENCY"),
        pytest.param(["celery", "-w", "8"], {"UWSGI_PROCESSES": "6"}, 6, id="UWSGI_PROCESSES"),
    ],
)
def test_number_of_workers_is_read_from_command_line_and_environment(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], expected: int
) -> None:
    workers = count_workers(environment=environment, arguments=arguments, proc=tmp_path)
    assert (workers.count, workers.certain) == (expected, True)


def test_given_number_of_workers_overrides_the_environment() -> None:
    assert count_workers(7, environment={"WEB_CONCURRENCY": "9"}).count == 7


def test_number_of_uwsgi_workers_is_read_from_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uwsgi", SimpleNamespace(numproc=2))
    assert count_workers(environment={"UWSGI_PROCESSES": "3"}, arguments=["uwsgi"], proc=tmp_path).count == 2
    assert count_workers(7).count == 7


@pytest.mark.parametrize(
    ("us", "beside"),
    [("serve", "serve"), ("spawn_main(pipe_handle=9) --fork", "spawn_main(pipe_handle=11) --fork")],
    ids=["same command", "spawned with different pipes"],
)
def test_processes_of_the_same_parent_and_command_are_counted(tmp_path: Path, us: str, beside: str) -> None:
    """Workers of uvicorn are spawned, and the command line of each names a pipe of its own."""
    parent = os.getppid()
    for pid, ppid, command in [
        ("self", parent, us),
        ("11", parent, us),
        ("12", parent, beside),
        ("13", parent, "other"),
        ("14", parent + 1, us),
    ]:
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes(command.encode())
        (tmp_path / pid / "stat").write_text(f"{pid} (a ) name) S {ppid} 0 0")

    workers = count_workers(environment={}, arguments=["serve"], proc=tmp_path)

    assert (workers.count, workers.certain) == (2, True)


def test_workers_are_counted_beside_a_process_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    """Linux cuts names after 15 bytes, also within a letter."""
    for pid, name in [("self", b"serve"), ("11", b"serve"), ("12", "обработчик".encode()[:15])]:
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes(b"serve")
        (tmp_path / pid / "stat").write_bytes(b"7 (%b) S %d 0 0" % (name, os.getppid()))

    assert count_workers(environment={}, arguments=["serve"], proc=tmp_path).count == 2


def test_number_of_gunicorn_workers_is_read_from_its_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --preload, it serves before the others are forked. The number may be in gunicorn.conf.py alone."""
    config = Config()
    config.set("workers", 4)
    worker = SyncWorker(0, 0, [], None, 30, config, None)
    monkeypatch.setattr(signal, "getsignal", {signal.SIGUSR1: worker.handle_usr1}.get)

    workers = count_workers(environment={}, arguments=["gunicorn", "app:app"], proc=tmp_path)
    worker.tmp.close()

    assert (workers.count, workers.certain) == (4, True)


def test_workers_are_counted_on_windows_where_gunicorn_is_installed_but_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(signal, "SIGUSR1")
    monkeypatch.delitem(sys.modules, "gunicorn.workers.base")
    assert not count_workers(environment={}, arguments=["serve"], proc=tmp_path).certain


@pytest.mark.parametrize("arguments", ["--name it's", "--workers many", "--workers 0", "-w -1", "--workers=--"])
def test_arguments_with_which_gunicorn_would_serve_nothing_are_ignored(tmp_path: Path, arguments: str) -> None:
    """Another server may run where they are set. Workers are counted when an outage begins, where nothing may fail."""
    environment = {"GUNICORN_CMD_ARGS": arguments, "WEB_CONCURRENCY": "9" * 5000}  # int() refuses so many digits
    workers = count_workers(environment=environment, arguments=["serve"], proc=tmp_path)
    assert (workers.count, workers.source) == (2 * (os.cpu_count() or 1) + 1, "the number of CPUs")


@pytest.mark.parametrize("arguments", [["serve"], []], ids=["other command", "embedded Python without arguments"])
def test_unknown_number_of_workers_is_assumed_to_exceed_the_cores(tmp_path: Path, arguments: list[str]) -> None:
    workers = count_workers(environment={}, arguments=arguments, proc=tmp_path)
    assert workers.count > (os.cpu_count() or 1)
    assert not workers.certain


def test_workers_are_counted_only_when_health_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []

    def count(given: int | None) -> object:
        counted.append(given)
        return count_workers(3)

    monkeypatch.setattr("flask_multilimit.engine.storage.layers.outage.count_workers", count)
    storage = GuardedStorage(MemoryStorage())
    assert Limiter(storage).check(hits("5/minute")).allowed
    before = list(counted)

    assert [storage.health().workers.count for _ in range(2)] == [3, 3]
    assert (before, counted) == ([], [None])


def workers_are_counted_as(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    """The first count of the guard gives the first of ``numbers``, and so on."""
    left = iter(numbers)
    monkeypatch.setattr(
        "flask_multilimit.engine.storage.layers.outage.count_workers", lambda _: count_workers(next(left))
    )


def test_workers_are_counted_again_when_an_outage_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    workers_are_counted_as(monkeypatch, 2, 5)
    storage = Shared(Clock())
    guard = GuardedStorage(storage)
    limiter = Limiter(guard)
    assert guard.health().workers.count == 2
    storage.error = StorageError("it is broken")

    admitted = sum(limiter.check(hits("20/minute")).allowed for _ in range(20))
    limiter.close()

    assert (admitted, guard.health().workers.count) == (2, 5)


def test_used_key_has_no_share_once_more_workers_than_its_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    workers_are_counted_as(monkeypatch, 1, 4)
    storage = Shared(Clock())
    storage.error = StorageError("it is broken")
    limiter, plan = Limiter(GuardedStorage(storage)), hits("3/hour")
    assert limiter.check(plan).allowed
    storage.error = None
    until(lambda: limiter.health().state == "working")
    storage.error = StorageError("it is broken again")

    decision = limiter.check(plan)
    limiter.close()

    assert (decision.allowed, decision.remaining, decision.retry_after) == (False, 0, 1)


def test_workers_forked_in_an_outage_get_shares_of_the_limit_of_their_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with gunicorn --preload and an app that uses its limiter when it is imported."""
    workers_are_counted_as(monkeypatch, 1, 4)
    storage = Shared(Clock())
    storage.error = StorageError("it is broken")
    limiter = Limiter(GuardedStorage(storage))
    assert limiter.check(hits("20/minute", subject="another")).allowed

    admitted = forked(lambda: sum(limiter.check(hits("20/minute")).allowed for _ in range(20)))()
    limiter.close()

    assert 0 < admitted <= 20 // 4


def test_forked_worker_counts_the_workers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    workers_are_counted_as(monkeypatch, 1, 4)
    limiter = Limiter(GuardedStorage(Shared(Clock())))
    assert limiter.health().workers.count == 1
    assert forked(lambda: limiter.health().workers.count)() == 4
