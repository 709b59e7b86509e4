"""Overrides like those of the control document."""

from typing import Any

from flask_multilimit.control.entries import Override
from flask_multilimit.plan.overrides import Overrides


def override(endpoint: str | None = None, **change: Any) -> Override:
    return Override(id="0" * 8, kind="override", since=0, endpoint=endpoint, **change)


def overrides(*entries: Override) -> Overrides:
    return Overrides(entries)
