"""Scripts that break the contract, each in one place: what the checker must find."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha1
from typing import TYPE_CHECKING

from flask_multilimit.engine.storage.redis import scripts

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Defect:
    """In the Lua of one driver ("check" or "refund"), ``text`` is replaced by ``by``."""

    text: str
    by: str
    clause: str
    """Of the contract, which it breaks so that it is seen at once; "no order" is found in any case."""
    driver: str = "check"


TREMBLING = Defect(
    "grace, now = 0, time[1] * 1000000 + time[2]",
    "grace, now = 1, time[1] * 1000000 + time[2] - math.random(0, 3) * 300",
    "none",
)
"""Of the clock that the script reads. That by which keys die does not tremble, so they stay as much longer."""

DEFECTS = {
    "charges what allows although another refuses": Defect(
        "local charging = allowed and not", "local charging = not", "refused for nothing"
    ),
    "forgets the last rule": Defect(
        "allowed = allowed and retry_after == 0",
        "allowed = allowed and (retry_after == 0 or i > 1 and i == #hits)",
        "no order",
    ),
    "admits one too many": Defect(
        "hit.count - used\n    if remaining", "hit.count + 1 - used\n    if remaining", "too many"
    ),
    "admits one too few": Defect(
        "hit.count - used\n    if remaining", "hit.count - 1 - used\n    if remaining", "refused for nothing"
    ),
    "has too short a window": Defect("now - hit.window + 1, now +", "now - hit.window / 2, now +", "too many"),
    "trims one that counts": Defect(
        "local dead = call(", "call('ZREMRANGEBYRANK', hit.key, 0, 0) local dead = call(", "too many"
    ),
    "charges a repeated check again": Defect("if mode == 'repeat'", "if false", "no order"),
    "charges a peek": Defect(" and mode ~= 'peek'\n", "\n", "no order"),
    "charges one unit whatever the cost": Defect(
        "for from = 2, hit.cost, 2000 do\n      local entries", "for from = 2, 1 do\n      local entries", "too many"
    ),
    "gives every check one id": Defect("id, mode = ARGV[2]", "id, mode = 'one of 16 bytes.'", "too many"),
    "takes the oldest in a refund": Defect(
        "call('ZREM', hit.key, id)", "call('ZREMRANGEBYRANK', hit.key, 0, 0)", "no order", "refund"
    ),
    "refunds nothing": Defect("call('ZREM', hit.key, id)", "", "refused for nothing", "refund"),
    "refunds one too many of a counter": Defect("used - hit.cost)", "used - hit.cost - 1)", "no order", "refund"),
}


@contextmanager
def broken_script(defect: Defect) -> Iterator[None]:
    """In this process, storages made from here on send a script with ``defect``."""
    whole = scripts.script

    def broken(driver: str, names: frozenset[str]) -> scripts.Script:
        text = whole(driver, names).text
        if driver == defect.driver:
            text = text.replace(defect.text, defect.by)
        return scripts.Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())

    scripts.script = broken  # type: ignore[assignment]
    try:
        yield
    finally:
        scripts.script = whole
