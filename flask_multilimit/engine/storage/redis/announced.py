"""How long a reply may say that it is: for as many elements hiredis makes room at once, before one of them has come.

Gigabytes of room that nobody fills take seconds to be given back, whatever the deadline.
"""

from __future__ import annotations

import re

from redis.exceptions import InvalidResponse

MOST = 999_999
"""Elements: more than any question of ours is answered with."""
OVERLAP = 7
"""Bytes of what came before that tell, with those that follow, whether it is more."""

_announces_more = re.compile(rb"\*\d{7}").search


def reject_too_long(received: bytes) -> None:
    """Raise :class:`InvalidResponse` when ``received`` announces more than :data:`MOST` elements."""
    if _announces_more(received):
        raise InvalidResponse(f"the server announces a reply of more than {MOST} elements")
