"""Extensions without an app: each app from the factory has its own settings, limits and storage."""

from __future__ import annotations

from flask import request

from flask_multilimit import MultiLimit

multilimit = MultiLimit()


@multilimit.user_loader
def user_of_request() -> str | None:
    """FOR THIS DEMO ONLY: it believes what the client says."""
    return request.headers.get("X-User")
