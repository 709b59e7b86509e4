"""The examinations of an app and its storage, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

from ...engine import ConfigurationError
from ...insight.limits import places_of
from ...serve.gate import AppGate
from .app import examine_app
from .control import examine_control
from .findings import Finding, Severity
from .storage import examine_storage
from .traffic import examine_traffic


def examine(gate: AppGate) -> Iterator[Finding]:
    """Look at everything, in the order in which problems are best fixed."""
    try:
        endpoints = [place for place in places_of(gate) if place.is_endpoint]
    except ConfigurationError as error:
        endpoints = []
        yield Finding("declarations", Severity.WRONG, str(error), "Correct it. Until then, requests fail.")
    else:
        yield from examine_app(gate, endpoints)
    yield examine_traffic(gate)
    yield from examine_control(gate)
    yield from examine_storage(gate, endpoints)
