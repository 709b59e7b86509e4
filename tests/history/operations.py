"""What a run records: every operation with its reply."""

from dataclasses import dataclass
from typing import Literal

from flask_multilimit.engine import Hit
from flask_multilimit.engine.decision import Charge
from flask_multilimit.engine.reply import NOW, RETRY_AFTERS

Kind = Literal["check", "repeat", "peek", "refund", "settle"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a limiter. It took effect between ``invoked`` and ``returned``."""

    kind: Kind
    """"repeat" is a check whose id was given, so that it may have been charged before."""
    invoked: int
    """Nanoseconds of a clock that all processes of the machine share."""
    returned: int
    id: bytes
    hits: tuple[Hit, ...]
    reply: tuple[int, ...] = ()
    """As the storage gave it; nothing for a refund."""
    charges: tuple[Charge, ...] = ()
    """The charges that a refund takes back, or that are settled at their units."""

    @property
    def at(self) -> int:
        """The instant of a check or a peek, in microseconds of the server's clock."""
        return self.reply[NOW]

    @property
    def allowed(self) -> bool:
        answers = zip(self.hits, self.reply[RETRY_AFTERS], strict=True)
        return all(hit.shadow or retry_after == 0 for hit, retry_after in answers)

    @property
    def charged(self) -> tuple[Hit, ...]:
        """The hits that this check has charged, unless its id was charged before."""
        if self.kind not in {"check", "repeat"} or not self.allowed:
            return ()
        answers = zip(self.hits, self.reply[RETRY_AFTERS], strict=True)
        return tuple(hit for hit, retry_after in answers if hit.cost and retry_after == 0)

    def __str__(self) -> str:
        hits = ", ".join(f"{hit.key} cost {hit.cost} of {hit.rule.count}" for hit in self.hits)
        return f"{self.kind} {self.id.hex()[:8]} ({hits}) -> {list(self.reply)}"
