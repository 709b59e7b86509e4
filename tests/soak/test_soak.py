"""Under load for a while, with disturbances: nothing grows, and nothing is left behind.

For ten seconds, unless ``MULTILIMIT_SOAK_SECONDS`` says for how long.
"""

import os
import sys

import pytest

from flask_multilimit.engine.storage.layers import deny_cache, fallback
from soak.soak import CLIENTS, MEGABYTE, THREADS, Soaked, soak
from support.servers import Binary

SECONDS = float(os.environ.get("MULTILIMIT_SOAK_SECONDS", "10"))
REMEMBERED = 2 * fallback.REMEMBERED + deny_cache.REMEMBERED
BYTES_OF_A_SUBJECT = 3200
"""The last answer and the last refusal of a subject."""
PROBER = 1
ACCEPTOR = 1
REPORTERS = 2
"""The threads of traffic and of control, each with a connection of its own."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def soaked(binary: Binary) -> Soaked:
    return soak(binary, SECONDS)


def test_run_had_load_and_disturbances(soaked: Soaked) -> None:
    """Otherwise the tests below would show little."""
    assert soaked.statuses[429] > 0
    assert sum(soaked.statuses.values()) > 20 * SECONDS
    assert soaked.abandoned > 0
    assert sum(soaked.disturbances.values()) >= SECONDS // 10


def test_clients_get_only_200_and_429(soaked: Soaked) -> None:
    assert set(soaked.statuses) == {200, 429}


@pytest.mark.parametrize("what", ["process", "server"])
def test_memory_does_not_grow(soaked: Soaked, what: str) -> None:
    """Except for what the process remembers of its subjects, up to a bound. Only a run of ten minutes reaches the bound
    and shows a small leak."""
    first, second = soaked.halves(what)
    new_subjects = min(sum(soaked.statuses.values()) // 2, REMEMBERED) if what == "process" else 0

    assert second - first < 6 * MEGABYTE + new_subjects * BYTES_OF_A_SUBJECT


def test_no_connection_file_or_thread_is_leaked(soaked: Soaked) -> None:
    for what in ("connections", "files", "threads"):
        first, second = soaked.halves(what)
        assert second <= first + 2, what

    assert soaked.most("connections") <= THREADS + REPORTERS + PROBER, [each.connections for each in soaked.samples]
    assert soaked.most("threads") <= ACCEPTOR + THREADS + REPORTERS + PROBER
    assert soaked.most("files") <= soaked.samples[0].files + CLIENTS + THREADS + REPORTERS + PROBER


def test_no_key_is_left_when_two_windows_have_passed(soaked: Soaked) -> None:
    assert soaked.keys_left == 0
    assert soaked.lasting_keys == 0
