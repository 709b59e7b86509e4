"""Only on servers: time is the server's, whatever the clock of the application says."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from support.bench import hits

if TYPE_CHECKING:
    import pytest
    import redis

    from flask_multilimit.engine import Limiter


def test_the_clock_of_the_application_has_no_effect(
    served: Limiter, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    actual = time.time
    before = server_microseconds(client)
    monkeypatch.setattr(time, "time", lambda: actual() - 30)
    decision = served.check(hits())
    after = server_microseconds(client)

    assert before <= decision.at <= after


def server_microseconds(client: redis.Redis) -> int:
    seconds, rest = client.time()
    return int(seconds) * 1_000_000 + int(rest)
