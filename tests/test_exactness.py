"""Many processes and threads on one limit over a real server: never one too many, never one refused for nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

import pytest

import exactness_worker
from exactness_worker import CHECKS, OWN, SHARED, THREADS, plan_of
from oracle import Oracle

if TYPE_CHECKING:
    from flask_multilimit.engine import Rule
    from servers import Server

PROCESSES = 8
TIMEOUT = 120
SUBJECTS = ("ada", "bo")


class Answer(NamedTuple):
    """What one check was answered. In order of time; at one instant those admitted come first, as they must have if
    only charges change anything."""

    at: int
    refused: bool
    used: int
    """Of the shared limit, which tells the order of those admitted at one instant."""
    subject: str
    reply: list[int]


@pytest.fixture(scope="module")
def answers(server: Server) -> list[Answer]:
    """Of all processes, half of them for each subject, in order of the server's time."""
    with server.client() as client:
        client.flushall()
    subjects = [SUBJECTS[n % 2] for n in range(PROCESSES)]
    workers = [start(server.url, subject) for subject in subjects]
    for worker in workers:
        assert read(worker) == "ready\n"
    for worker in workers:
        write(worker, "go\n")
    told = [json.loads(read(worker)) for worker in workers]
    for worker in workers:
        worker.communicate(timeout=TIMEOUT)
        assert worker.returncode == 0
    return sorted(
        Answer(reply[0], any(reply[3::3]), SHARED.count - reply[5], subject, reply)
        for subject, replies in zip(subjects, told, strict=True)
        for reply in replies
    )


def start(url: str, subject: str) -> subprocess.Popen[str]:
    command = [sys.executable, exactness_worker.__file__, url, subject]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def read(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline()


def write(worker: subprocess.Popen[str], line: str) -> None:
    assert worker.stdin is not None
    worker.stdin.write(line)
    worker.stdin.flush()


def most_in_any_window(instants: list[int], rule: Rule) -> int:
    """Of sorted instants: no window holds more than one that ends with one of them."""
    return max(sum(at - rule.quota.window < other <= at for other in instants) for at in instants)


def test_every_process_and_thread_was_answered(answers: list[Answer]) -> None:
    assert len(answers) == PROCESSES * THREADS * CHECKS


def test_no_window_ever_holds_more_than_the_count(answers: list[Answer]) -> None:
    admitted = [answer for answer in answers if not answer.refused]

    assert most_in_any_window([answer.at for answer in admitted], SHARED) == SHARED.count
    for subject in SUBJECTS:
        own = [answer.at for answer in admitted if answer.subject == subject]
        assert most_in_any_window(own, OWN) <= OWN.count


def test_every_answer_is_the_one_that_brute_force_gives(answers: list[Answer]) -> None:
    """So no admissible check is refused, and none charges a part of its plan."""
    oracle = Oracle()

    for answer in answers:
        assert oracle.check(plan_of(answer.subject), answer.at, uuid4()) == answer.reply


def test_the_load_refused_by_both_limits_and_admitted_again(answers: list[Answer]) -> None:
    """Else the tests above would have shown little."""
    assert any(answer.reply[3] for answer in answers)
    assert any(answer.reply[6] for answer in answers)
    assert sum(not answer.refused for answer in answers) > SHARED.count
