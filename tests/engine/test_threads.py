"""A beat runs its task in the background while there is something to do, whatever the server does with threads."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from math import inf
from typing import TYPE_CHECKING

import pytest

from flask_multilimit.engine.threads import Beat
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAME = "multilimit-test"
PATIENCE = 10.0


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    until(lambda: not threads())


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == NAME]


def beat_of(task: Callable[[], float | None]) -> Beat:
    return Beat(task, name=NAME)


def test_a_beat_runs_again_after_the_pause_its_task_returns() -> None:
    pauses: list[float | None] = [0.0, 0.001, None]
    beat = beat_of(lambda: pauses.pop(0))

    beat.wake()

    until(lambda: not beat.running)
    assert not pauses
    assert beat.wakes_at == inf


def test_a_sooner_wake_comes_sooner_and_a_later_one_changes_nothing() -> None:
    ran = threading.Event()
    beat = beat_of(ran.set)
    start = time.monotonic()
    beat.wake(start + 60)

    beat.wake(start + 120)
    assert beat.wakes_at == start + 60
    beat.wake()

    assert ran.wait(PATIENCE)


def test_a_wake_while_the_task_ends_is_not_lost() -> None:
    begun, go_on, runs = threading.Event(), threading.Event(), list[int]()

    def task() -> None:
        runs.append(1)
        begun.set()
        assert go_on.wait(PATIENCE)

    beat = beat_of(task)
    beat.wake()
    assert begun.wait(PATIENCE)

    beat.wake()  # it must not be lost although the task has nothing more to do
    go_on.set()

    until(lambda: len(runs) == 2)


def test_many_wakes_at_once_are_one_thread() -> None:
    gate, most = threading.Event(), list[int]()

    def task() -> None:
        most.append(len(threads()))
        assert gate.wait(PATIENCE)

    beat = beat_of(task)
    wakers = [threading.Thread(target=beat.wake) for _ in range(20)]
    for each in wakers:
        each.start()
    for each in wakers:
        each.join()
    gate.set()

    until(lambda: not beat.running)
    assert set(most) == {1}


def test_a_task_that_raises_is_logged_and_runs_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_multilimit.engine.threads.RETRY_SECONDS", 0.0)
    runs = list[int]()

    def task() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise RuntimeError("a bug")

    beat_of(task).wake()
    beat = beat_of(task)
    beat.wake()

    until(lambda: not beat.running)
    assert len(runs) > 1
    assert "raised in the background" in caplog.text
    assert "RuntimeError: a bug" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_the_server_kills_is_replaced() -> None:
    killing, runs = [True], list[int]()

    def task() -> None:
        if killing.pop():
            raise SystemExit  # as GreenletExit, which is no Exception either
        runs.append(1)

    beat = beat_of(task)
    beat.wake()
    until(lambda: not beat.running)
    killing.append(False)

    beat.wake()

    until(lambda: runs)


def test_a_beat_s_thread_keeps_its_owner_collectable() -> None:
    beat = beat_of(lambda: 0.001)
    beat.wake()
    gone = weakref.ref(beat)

    del beat

    def collected() -> bool:
        gc.collect()
        return gone() is None

    until(collected)


def test_closed_its_thread_ends_and_the_next_wake_starts_another() -> None:
    runs = list[int]()

    def task() -> float:
        runs.append(1)
        return 60.0

    beat = beat_of(task)
    beat.wake()
    until(lambda: runs)

    beat.close(wait=PATIENCE)
    assert not threads()
    beat.wake()

    until(lambda: len(runs) == 2)
    beat.close(wait=PATIENCE)


def test_closed_while_its_task_runs_it_can_be_woken_again() -> None:
    begun, go_on, runs = threading.Event(), threading.Event(), list[int]()

    def task() -> float:
        runs.append(1)
        begun.set()
        assert go_on.wait(PATIENCE)
        return 0.0 if len(runs) == 1 else 60.0

    beat = beat_of(task)
    beat.wake()
    assert begun.wait(PATIENCE)
    beat.close()
    go_on.set()
    until(lambda: not threads())
    assert beat.wakes_at == inf

    beat.wake(time.monotonic())

    until(lambda: len(runs) == 2)
    beat.close(wait=PATIENCE)


def test_a_system_without_threads_is_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    beat = beat_of(lambda: None)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        beat.wake()
        assert not beat.running
    assert "could not start the background thread multilimit-test: can't start new thread" in caplog.text

    beat.wake()  # there are threads again

    until(lambda: not beat.running)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_forked_child_has_no_thread_and_can_start_one_whatever_that_of_the_parent_was_doing() -> None:
    in_child, parent, ran = [False], os.getpid(), threading.Event()

    def task() -> float:
        if os.getpid() != parent:
            ran.set()
        return 0.001

    beat = beat_of(task)
    beat.wake()
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with beat._condition():
            held.set()
            let_go.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(PATIENCE)
    pid = os.fork()
    if not pid:
        in_child[0] = beat.running
        beat.wake()
        os._exit(0 if ran.wait(PATIENCE) and not in_child[0] else 1)
    let_go.set()
    holder.join()
    _, status = os.waitpid(pid, 0)
    beat.close(wait=PATIENCE)

    assert os.waitstatus_to_exitcode(status) == 0


AT_THE_END = """
from flask_multilimit.engine.threads import Beat
beat = Beat(lambda: 60, name="multilimit-test", last=lambda: print("last"))
idle = Beat(lambda: None, name="multilimit-test", last=lambda: print("idle"))
beat.wake()
"""


def test_a_beat_that_runs_when_the_process_ends_does_its_last_task() -> None:
    run = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, check=True)

    assert run.stdout.splitlines() == ["last"]
    assert run.stderr == ""
