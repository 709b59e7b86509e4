"""What is done once a second: while there is something to do, and once more at the end."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
import weakref

import pytest

from flask_multilimit.observe import beat as room
from flask_multilimit.observe.beat import Beat
from support.waiting import until

PATIENCE = 10.0


class Task:
    def __init__(self, *answers: bool) -> None:
        self.calls: list[bool] = []
        self._answers = list(answers)

    def __call__(self, *, ending: bool = False) -> bool:
        self.calls.append(ending)
        return self._answers.pop(0) if self._answers else False


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SECONDS", 0.005)


@pytest.fixture
def beat() -> Beat:
    return Beat(logging.getLogger("test"))


def test_it_beats_while_there_is_something_to_do_and_a_while_longer(beat: Beat) -> None:
    task = Task(True, False, True)
    beat.add(task)

    beat.start()
    until(lambda: not beat.running)

    assert len(task.calls) in {3 + room.IDLE_BEATS, 3 + room.IDLE_BEATS + 1}
    assert not any(task.calls)


def test_it_starts_again(beat: Beat) -> None:
    task = Task()
    beat.add(task)
    beat.start()
    until(lambda: not beat.running)
    before = len(task.calls)

    beat.start()
    until(lambda: not beat.running)

    assert len(task.calls) > before


def test_many_starts_are_one_thread(beat: Beat) -> None:
    gate = threading.Event()

    def waiting(*, ending: bool = False) -> bool:
        del ending
        return not gate.wait(PATIENCE)

    beat.add(waiting)
    for _ in range(10):
        beat.start()

    assert sum(thread.name == "multilimit-beat" for thread in threading.enumerate()) >= 1
    mine = [thread for thread in threading.enumerate() if thread.name == "multilimit-beat"]
    gate.set()
    until(lambda: not beat.running)
    assert len(mine) == len(set(mine))


def test_a_task_that_raises_is_logged_and_keeps_none_from_its_turn(
    beat: Beat, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*, ending: bool = False) -> bool:
        raise RuntimeError(f"no, ending={ending}")

    task = Task(True)
    beat.add(broken)
    beat.add(task)

    assert beat.once() is True
    assert task.calls == [False]
    assert "RuntimeError: no" in caplog.text


def test_its_thread_keeps_nothing_alive(beat: Beat) -> None:
    own = Beat(logging.getLogger("test"))
    own.add(lambda *, ending=False: not ending)
    own.start()
    gone = weakref.ref(own)

    del own

    def collected() -> bool:
        gc.collect()
        return gone() is None

    until(collected)
    del beat


def test_no_thread_to_be_had_is_a_line_in_the_log(
    beat: Beat, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    beat.add(Task())

    beat.start()

    assert not beat.running
    assert "could not start the background thread" in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_forked_child_has_no_thread_and_can_start_one(beat: Beat) -> None:
    task = Task(*[True] * 1000)
    beat.add(task)
    beat.start()
    until(lambda: task.calls)
    pid = os.fork()
    if not pid:
        was_running, before = beat.running, len(task.calls)
        beat.start()
        until(lambda: len(task.calls) > before)
        os._exit(int(was_running))
    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == 0


AT_THE_END = """
import logging
from flask_multilimit.observe.beat import Beat
beat = Beat(logging.getLogger())
beat.add(lambda *, ending=False: bool(print("ending" if ending else "beat")))
beat.start()
"""


def test_it_beats_once_more_when_the_process_ends() -> None:
    run = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, check=True)

    assert run.stdout.splitlines()[-1] == "ending"
    assert run.stderr == ""


def beating() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "multilimit-beat"}


def test_closed_it_does_all_a_last_time_and_its_thread_ends(beat: Beat) -> None:
    others, task = beating(), Task(*[True] * 1_000_000)
    beat.add(task)
    beat.start()
    until(lambda: len(task.calls) > 2)

    beat.close()

    assert True in task.calls, "told that it is the end"
    assert not beat.running
    until(lambda: not beating() - others)


def test_closed_it_begins_again_in_one_thread(beat: Beat) -> None:
    others = beating()
    beat.add(Task(*[True] * 1_000_000))
    beat.start()
    beat.close()

    beat.start()

    assert beat.running
    until(lambda: len(beating() - others) == 1)
    beat.close()
