"""Traffic, which is counted by default and passed on once a second."""

from __future__ import annotations

from ..beat import EverySecond
from .counting import Counter
from .counts import Counts
from .flushing import Outbox, ShownSubjects, shown
from .log import RefusalLog


class Traffic(Counter):
    """Counts by endpoint, rule and outcome, and keeps the subjects that are refused most.

    ``outbox`` sends the counts to the storage; it is ``None`` if the storage keeps none. ``log`` writes summaries.
    """

    def __init__(
        self,
        background: EverySecond,
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
        background.add(self.flush)

    def flush(self, *, ending: bool = False) -> bool:
        """Pass on what was counted since the last call. Return whether some is left."""
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
