"""Who owns a hash slot, learned from what a server answers to CLUSTER SLOTS."""

from __future__ import annotations

from typing import Any

import pytest

from flask_multilimit.engine.storage.cluster.hash_slots import HASH_SLOTS, HashSlots
from flask_multilimit.engine.storage.redis.connections import Deadline

ASKED = ("10.0.0.1", 7000)


@pytest.mark.parametrize("host", [b"10.0.0.2", "10.0.0.2"], ids=["bytes", "text"])
def test_the_owner_is_the_server_that_the_answer_names(host: Any) -> None:
    """As bytes, or as text from a client that decodes answers."""
    slots = HashSlots([ASKED], lambda _: [[0, HASH_SLOTS - 1, [host, 7001]]], Deadline(None))

    assert slots.owner(0) == ("10.0.0.2", 7001)
    assert slots.primaries() == [("10.0.0.2", 7001)]


@pytest.mark.parametrize("host", [b"", "", b"?", "?", None])
def test_a_server_that_does_not_know_its_own_name_is_where_it_was_asked(host: Any) -> None:
    slots = HashSlots([ASKED], lambda _: [[0, HASH_SLOTS - 1, [host, 7001]]], Deadline(None))

    assert slots.owner(HASH_SLOTS - 1) == ("10.0.0.1", 7001)
