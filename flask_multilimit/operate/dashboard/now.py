"""What happens now: the last hour by endpoint, who is refused most, and how the storage stands."""

from __future__ import annotations

from typing import Any


def facts() -> dict[str, Any]:
    """What the page shows, as JSON."""
    return {"endpoints": [], "subjects": []}
