"""The exception that a refused request raises."""

from __future__ import annotations

from flask import Response
from werkzeug.exceptions import TooManyRequests

from flask_multilimit import Decision

from .declared import RuntimeLimit


class RateLimitExceeded(TooManyRequests):
    """A 429. Its ``description`` is the ``error_message`` of the limit, or the limit itself: ``1 per 1 day``."""

    def __init__(
        self, limit: RuntimeLimit, response: Response | None = None, *, decision: Decision | None = None
    ) -> None:
        given = limit.declared.error_message
        super().__init__(description=str((given() if callable(given) else given) or limit.limit))
        self.limit = limit
        """The limit that refuses."""
        self.response: Response | None = response
        """The response that ``on_breach`` returned, which the client gets."""
        self.decision = decision
        """The answer of the storage."""
