"""A beat runs its task in a background thread while there is work. It survives forks and killed threads."""

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any

import pytest

from flask_multilimit.engine.threads import Beat
from support.doubles import raising
from support.forks import forked
from support.waiting import PATIENCE, until

NAME = "multilimit-test"


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    until(lambda: not threads())


def background(task: Callable[[], float | None]) -> Beat:
    return Beat(task, name=NAME)


class Held:
    """A task that waits in each run until it may go on, and returns ``pauses`` one after the other."""

    def __init__(self, *pauses: float | None) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.runs = 0
        self._pauses = pauses

    def __call__(self) -> float | None:
        self.runs += 1
        self.begun.set()
        assert self.go_on.wait(PATIENCE)
        return self._pauses[self.runs - 1]

    def begin(self) -> Beat:
        """A beat that is running this task."""
        beat = background(self)
        beat.wake()
        assert self.begun.wait(PATIENCE)
        return beat


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == NAME]


def test_a_beat_runs_again_after_the_pause_its_task_returns() -> None:
    pauses: list[float | None] = [0.0, 0.001, None]
    beat = background(lambda: pauses.pop(0))

    beat.wake()

    until(lambda: not beat.running)
    assert not pauses
    assert beat.wakes_at == inf


def test_earlier_wake_replaces_the_planned_one_and_a_later_wake_does_not() -> None:
    ran = threading.Event()
    beat = background(ran.set)
    start = time.monotonic()
    beat.wake(start + 60)

    beat.wake(start + 120)
    assert beat.wakes_at == start + 60
    beat.wake()

    assert ran.wait(PATIENCE)


def test_wake_during_the_last_run_of_a_task_is_not_lost() -> None:
    task = Held(None, None)
    beat = task.begin()

    beat.wake()
    task.go_on.set()

    until(lambda: task.runs == 2)


def test_many_wakes_at_once_start_one_thread() -> None:
    task = Held(None, None)
    beat = background(task)
    with ThreadPoolExecutor(20) as wakers:
        for _ in range(20):
            wakers.submit(beat.wake)

    assert len(threads()) == 1
    task.go_on.set()
    until(lambda: not beat.running)


def test_a_task_that_raises_is_logged_and_runs_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_multilimit.engine.threads.RETRY_SECONDS", 0.0)
    runs = list[int]()

    def task() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise RuntimeError("a bug")

    background(task).wake()
    beat = background(task)
    beat.wake()

    until(lambda: not beat.running)
    assert len(runs) > 1
    assert "raised in the background" in caplog.text
    assert "RuntimeError: a bug" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_next_wake_replaces_a_killed_thread() -> None:
    killing, runs = [True], list[int]()

    def task() -> None:
        if killing.pop():
            raise SystemExit  # like GreenletExit, which is not an Exception either
        runs.append(1)

    beat = background(task)
    beat.wake()
    until(lambda: not beat.running)
    killing.append(False)

    beat.wake()

    until(lambda: runs)


def test_beat_is_garbage_collected_while_its_thread_runs() -> None:
    beat = background(lambda: 0.001)
    beat.wake()
    gone = weakref.ref(beat)

    del beat

    def collected() -> bool:
        gc.collect()
        return gone() is None

    until(collected)


def test_close_ends_the_thread_and_the_next_wake_starts_another() -> None:
    task = Held(0.0, 60.0, 60.0)
    beat = task.begin()
    beat.close()
    task.go_on.set()
    until(lambda: not threads())
    assert beat.wakes_at == inf

    for runs in (2, 3):
        beat.wake(time.monotonic())
        until(lambda runs=runs: task.runs == runs)  # type: ignore[misc]
        beat.close(wait=PATIENCE)
        assert not threads()


def test_close_knows_a_thread_that_another_one_starts_meanwhile() -> None:
    task = Held(None)
    beat = background(task)
    condition = beat._condition

    def wake_first() -> tuple[Any, threading.Condition]:
        beat._condition = condition
        beat.wake()
        assert task.begun.wait(PATIENCE)
        return condition()

    beat._condition = wake_first  # type: ignore[assignment]

    assert not beat.close(), "its task is running"
    task.go_on.set()


def test_beat_logs_that_no_thread_can_be_started_and_recovers(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat = background(lambda: None)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
        beat.wake()
        assert not beat.running
    assert "could not start the background thread multilimit-test: can't start new thread" in caplog.text

    beat.wake()  # now threads can be started again

    until(lambda: not beat.running)


def test_forked_child_can_start_its_thread_although_the_lock_was_held_at_the_fork() -> None:
    parent, ran = os.getpid(), threading.Event()

    def task() -> float:
        if os.getpid() != parent:
            ran.set()
        return 0.001

    beat = background(task)
    beat.wake()
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with beat._condition()[0]:
            held.set()
            let_go.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(PATIENCE)

    def wake() -> tuple[bool, bool]:
        runs_already = beat.running
        beat.wake()
        return runs_already, ran.wait(PATIENCE)

    of_child = forked(wake)
    let_go.set()
    holder.join()

    assert of_child() == (False, True)
    beat.close(wait=PATIENCE)


AT_THE_END = """
from flask_multilimit.engine.threads import Beat
beat = Beat(lambda: 60, name="multilimit-test", last=lambda: print("last"))
idle = Beat(lambda: None, name="multilimit-test", last=lambda: print("idle"))
beat.wake()
"""


IN_A_CHILD = f"""
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=exec, args=({AT_THE_END!r}, globals()))
child.start()
child.join()
"""


IN_THE_MIDDLE = """
import threading, time
from flask_multilimit.engine.threads import Beat
begun = threading.Event()
def task():
    begun.set()
    time.sleep(0.2)
    print("task")
    return 60
beat = Beat(task, name="multilimit-test", last=lambda: print("last"))
beat.wake()
begun.wait()
"""


@pytest.mark.parametrize(
    ("script", "printed"),
    [(AT_THE_END, ["last"]), (IN_A_CHILD, ["last"]), (IN_THE_MIDDLE, ["task", "last"])],
    ids=["at the end", "in a child that imports it", "in the middle of a task"],
)
def test_running_beat_does_its_last_task_when_the_process_ends(script: str, printed: list[str]) -> None:
    """A worker of Granian is a child of multiprocessing, and imports the app itself."""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == printed
    assert run.stderr == ""


HANGING = """
import threading, time
from flask_multilimit.engine import threads
threads.ENDING_SECONDS = 0.1
begun = threading.Event()
def task():
    begun.set()
    time.sleep(60)
beat = threads.Beat(task, name="multilimit-test", last=lambda: print("last"))
beat.wake()
begun.wait()
"""


DROPPED = """
from flask_multilimit.engine.threads import Beat

class Stream:
    def __init__(self):
        self.wake = Beat(print, name="multilimit-test").wake
    def __del__(self):
        self.wake()

stream = Stream()
"""


def test_process_ends_although_a_stream_that_is_dropped_then_wakes_a_beat() -> None:
    """As one of a test client that nobody has closed."""
    subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, check=True, timeout=30)


def test_process_ends_even_if_a_task_hangs() -> None:
    """As with a client object without a timeout whose server does not answer. The last task would hang, too."""
    run = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, check=True, timeout=30)
    assert (run.stdout, run.stderr) == ("", "")


GROWING = """
from weakref import WeakSet
from flask_multilimit.engine import threads

class Growing(WeakSet):
    looks = 0

    def __iter__(self):
        self.looks += 1
        if self.looks == 1:
            raise RuntimeError("Set changed size during iteration")
        return super().__iter__()

threads._with_last = Growing()
beat = threads.Beat(lambda: 60, name="multilimit-test", last=lambda: print("last"))
beat.wake()
"""


def test_last_tasks_run_although_another_thread_makes_a_beat_while_the_process_ends() -> None:
    run = subprocess.run([sys.executable, "-c", GROWING], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("last\n", "")


FAILING = """
from flask_multilimit.engine import threads

def fail():
    raise OSError("disk full")

class Ending:
    def _at_end(self):
        print("ending")

beats = [threads.Beat(lambda: 60, name="multilimit-test", last=last) for last in (fail, lambda: print("last"), fail)]
for beat in beats:
    beat.wake()
ending = Ending()
threads.notify_at_end(ending)
"""


def test_last_tasks_run_although_others_raise_while_the_process_ends() -> None:
    run = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, text=True, check=True)
    assert run.stdout == "last\nending\n"
    assert "disk full" in run.stderr


BEGINNING = """
from flask_multilimit.engine.threads import Beat

beats = []
for _ in range(20):
    idle = Beat(lambda: 60, name="multilimit-test", last=lambda: print("last"))
    between = Beat(lambda: 60, name="multilimit-test", last=idle.wake)
    running = Beat(lambda: 60, name="multilimit-test", last=between.wake)
    running.wake()
    beats += [idle, between, running]
"""


def test_last_task_runs_of_a_beat_that_begins_with_the_last_task_of_another() -> None:
    """As counts are flushed of a stream that is settled at the end. Beats end in any order."""
    run = subprocess.run([sys.executable, "-c", BEGINNING], capture_output=True, text=True, check=True)
    assert run.stdout == "last\n" * 20
