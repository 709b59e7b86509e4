"""Tasks that run once a second: while there is something to do, and once more at the end."""

import logging
from threading import Event, Lock, Thread

import pytest

from flask_multilimit.observe.traffic import flushing as room
from flask_multilimit.observe.traffic.flushing import EverySecond
from support.waiting import until


class Task:
    def __init__(self, *answers: bool) -> None:
        self.calls: list[bool] = []
        self._answers = list(answers)

    def __call__(self, *, ending: bool = False) -> bool:
        self.calls.append(ending)
        return self._answers.pop(0) if self._answers else False


@pytest.fixture
def background(monkeypatch: pytest.MonkeyPatch) -> EverySecond:
    monkeypatch.setattr(room, "SECONDS", 0.005)
    return EverySecond(logging.getLogger("test"))


def test_tasks_run_while_busy_and_some_idle_turns_longer(background: EverySecond) -> None:
    task = Task(True, False, True)
    background.add(task)

    background.start()
    until(lambda: not background.beat.running)

    assert task.calls == [False] * (3 + room.IDLE_TURNS)


def test_tasks_run_as_long_again_after_the_next_start(background: EverySecond) -> None:
    task = Task()
    background.add(task)
    for _ in range(2):
        background.start()
        until(lambda: not background.beat.running)

    assert task.calls == [False] * (2 * room.IDLE_TURNS)


def test_no_thread_runs_without_tasks(background: EverySecond) -> None:
    background.start()
    assert not background.beat.running


def test_failing_task_is_logged_and_other_tasks_still_run(
    background: EverySecond, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*, ending: bool = False) -> bool:
        raise RuntimeError(f"no, ending={ending}")

    task = Task(True)
    background.add(broken)
    background.add(task)

    assert background.once() is True
    assert task.calls == [False]
    assert "RuntimeError: no" in caplog.text


def test_tasks_that_two_threads_run_do_not_run_at_once(background: EverySecond) -> None:
    other, busy, seen = Thread(target=background.once), Lock(), list[bool]()

    def task(*, ending: bool = False) -> bool:  # noqa: ARG001 - given to each task
        seen.append(busy.locked())
        with busy:
            if len(seen) == 1:
                other.start()
                other.join(0.05)
        return False

    background.add(task)
    background.once()
    other.join()

    assert seen == [False, False]


def test_close_runs_tasks_a_last_time_and_start_works_again(background: EverySecond) -> None:
    task = Task(*[True] * 1_000_000)
    background.add(task)
    background.start()
    until(lambda: len(task.calls) > 2)

    background.close()

    assert task.calls.count(True) == 1
    assert not background.beat.running
    background.start()
    assert background.beat.wakes_at < float("inf")
    background.close()


def test_close_does_not_wait_for_a_task_that_hangs(background: EverySecond, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "ENDING_SECONDS", 0.01)
    begun, go_on = Event(), Event()
    calls: list[bool] = []

    def task(*, ending: bool = False) -> bool:
        calls.append(ending)
        begun.set()
        return not go_on.wait(20)

    background.add(task)
    background.start()
    assert begun.wait(20)

    background.close()
    hung = list(calls)
    go_on.set()

    assert hung == [False]
