"""Traffic: counts by default, and hands on what it has counted once a second."""

from __future__ import annotations

from ..beat import Beat
from .counting import Counter
from .counts import Counts
from .flushing import Outbox, ShownSubjects, shown
from .log import RefusalLog


class Traffic(Counter):
    """Counts by endpoint, rule and outcome, and keeps the subjects that are refused most.

    ``outbox`` brings the counts to storage, ``None`` where it keeps none; ``log`` sums them up.
    """

    def __init__(
        self,
        beat: Beat,
        *,
        outbox: Outbox | None,
        log: RefusalLog | None,
        subjects: ShownSubjects = "plain",
        key: bytes = b"",
    ) -> None:
        super().__init__(subjects=subjects != "none")
        self._outbox = outbox
        self._log = log
        self._subjects = subjects
        self._key = key
        beat.add(self.flush)

    def flush(self, *, ending: bool = False) -> bool:
        """Hand on what was counted since the last time; return whether there is more to come."""
        counts = self.take()
        if counts:
            self._hand_on(shown(counts, self._subjects, self._key))
        more = self._outbox is not None and self._outbox.send()
        return (self._log is not None and self._log.log_if_due(at_once=ending)) or more or bool(counts)

    def _hand_on(self, counts: Counts) -> None:
        if self._log is not None:
            self._log.add(counts)
        if self._outbox is not None:
            self._outbox.put(counts)
