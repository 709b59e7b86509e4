"""What happens now: the last hour by endpoint, the subjects refused most, and the state of the storage."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from flask import current_app

from ...config import PREFIX
from ...control.document import Document
from ...control.store import KINDS
from ...engine import ConfigurationError
from ...engine.errors import with_remedy
from ...engine.storage.redis.uri import address_of
from ...observe.traffic import TopSubject, reader_of
from ...observe.traffic.counts import BUCKET_SECONDS
from ...serve.applier import applier_of
from ...serve.gate import AppGate
from .hour import ALL, CURVES, SLICES, Hour
from .paging import part_of
from .who import named

MOST_RULES = 10
MOST_SUBJECTS = 10
SORTS = ("refused", "passed", "near", "name")
_HOUR = "multilimit_dashboard_hour"


def hour_of(gate: AppGate) -> Hour | None:
    """What this process knows about the last hour; ``None`` if traffic is not counted."""
    found = current_app.extensions.get(_HOUR)
    if found is None and gate.settings.traffic:
        try:
            found = Hour(reader_of(gate.limiter.storage, gate.settings.key_prefix))
        except ConfigurationError:
            return None
        found = current_app.extensions.setdefault(_HOUR, found)
    return cast("Hour | None", found)


@contextmanager
def looking(gate: AppGate) -> Iterator[Hour | None]:
    """The last hour, up to date; ``None`` if traffic is not counted."""
    hour = hour_of(gate)
    if hour is None:
        yield None
        return
    with hour.looking(is_away=is_away(gate)):
        yield hour if hour.at else None


def is_away(gate: AppGate) -> bool:
    """Whether this process knows already that the storage does not answer."""
    return str(storage_facts(gate)["state"]) == "failed"


def facts(gate: AppGate, *, endpoint: str | None = None, q: str = "", sort: str = "", page: int = 1) -> dict[str, Any]:
    """What the page shows, as JSON; with ``endpoint``, only for this one."""
    storage = storage_facts(gate)
    found = {
        "endpoint": endpoint,
        "q": q,
        "sort": sort if sort in SORTS else SORTS[0],
        "storage": storage,
        "changes": changes_facts(gate),
        "counted": True,
        "why_not": "",
    }
    hour = hour_of(gate)
    if hour is None:
        why = (
            f"{PREFIX}TRAFFIC is False: nothing is counted."
            if not gate.settings.traffic
            else f"A {type(gate.limiter.storage).__name__} keeps no traffic: it has no methods tally and tallies."
        )
        return {**found, "counted": False, "why_not": why, **_of_nothing()}
    with hour.looking(is_away=storage["state"] == "failed"):
        if hour.problem is not None and not storage["error"]:
            storage |= {"state": "failed", "error": with_remedy(hour.problem)}
        storage["milliseconds"] = None if storage["state"] == "failed" else hour.milliseconds
        return {**found, **_of_hour(gate, hour, endpoint, q, str(found["sort"]), page)}


def _of_nothing() -> dict[str, Any]:
    return {
        "at": time.time(),
        "seconds": 0.0,
        "complete": True,
        "totals": {curve: {"rate": 0.0, "hour": 0} for curve in CURVES},
        "series": {"last": 0, "step": BUCKET_SECONDS, **{curve: [0] * SLICES for curve in CURVES}},
        "endpoints": [],
        "paging": part_of([], 1).as_json(),
        "rules": [],
        "subjects": [],
    }


def _of_hour(gate: AppGate, hour: Hour, endpoint: str | None, q: str, sort: str, page: int) -> dict[str, Any]:
    if not hour.at:
        return _of_nothing()
    shown = endpoint or ALL
    amounts = _amounts_by_endpoint(hour)
    names = [name for name in amounts if name != ALL and q.lower() in name.lower()]
    names.sort(key=lambda name: _order(sort, name, amounts[name]))
    part = part_of(names, page)
    return {
        "at": hour.at,
        "seconds": hour.seconds,
        "complete": hour.is_complete,
        "totals": _totals(hour, shown),
        "series": {"last": hour.last, "step": BUCKET_SECONDS, **{curve: hour.series(shown, curve) for curve in CURVES}},
        "endpoints": [_endpoint(hour, name) for name in part.rows],
        "paging": part.as_json(),
        "rules": _rules(hour, endpoint),
        "subjects": [
            subject_facts(gate, each) for each in hour.top_subjects(MOST_SUBJECTS, endpoint=endpoint)
        ],
    }  # fmt: skip


def _totals(hour: Hour, endpoint: str) -> dict[str, Any]:
    return {curve: {"rate": hour.rate(endpoint, curve), "hour": hour.total(endpoint, curve)} for curve in CURVES}


def _amounts_by_endpoint(hour: Hour) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for name in hour.names():
        if len(name) == 2:
            found.setdefault(name[0], {})[name[1]] = hour.total(*name)
    return found


def _order(sort: str, name: str, amounts: Mapping[str, int]) -> tuple[Any, ...]:
    if sort == "name":
        return (name,)
    first = -amounts.get(sort, 0)
    return (first, *(-amounts.get(curve, 0) for curve in ("refused", "other", "near", "passed")), name)


def _endpoint(hour: Hour, name: str) -> dict[str, Any]:
    series = {curve: hour.series(name, curve) for curve in ("passed", "refused", "other")}
    return {"endpoint": name, **_totals(hour, name), "series": series}


def _rules(hour: Hour, endpoint: str | None) -> list[dict[str, Any]]:
    """The rules: first those that refuse most, then those that come nearest to it."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name in hour.names():
        if len(name) == 3 and endpoint in {None, name[0]}:
            empty = {"endpoint": name[0], "rule": name[1], "refuses": 0, "near": 0, "shadows": 0, "bans": 0}
            found.setdefault(name[:2], empty)[name[2]] = hour.total(*name)
    ranked = sorted(
        found.items(), key=lambda each: (-each[1]["refuses"], -each[1]["near"], -each[1]["shadows"], each[0])
    )
    return [amounts for _, amounts in ranked[:MOST_RULES]]


def subject_facts(gate: AppGate, subject: TopSubject) -> dict[str, Any]:
    """A subject that is refused."""
    return {**subject._asdict(), **named(gate, subject.type, subject.subject)}


def storage_facts(gate: AppGate) -> dict[str, Any]:
    """The state of the storage as far as this process knows, without asking it."""
    limiter = gate.limiter
    found = {
        "name": type(limiter.storage).__name__,
        "address": address_of(getattr(limiter.storage, "client", None)),
        "shared": limiter.storage.shared,
        "milliseconds": None,
    }
    try:
        health = limiter.health()
    except ConfigurationError as error:
        return {**found, "guarded": False, "state": "working", "since": None, "error": "", "remark": str(error)}
    return {
        **found,
        "guarded": True,
        "state": health.state,
        "since": health.since,
        "error": with_remedy(health.error) if health.error is not None and health.state == "failed" else "",
        "breaker": health.breaker,
        "fallback_keys": health.fallback_keys,
        "pending": health.pending,
        "given_up": health.given_up,
        "workers": health.workers.count,
        "workers_source": health.workers.source,
        "workers_certain": health.workers.certain,
    }


def changes_facts(gate: AppGate) -> dict[str, Any]:
    """How much is changed, as far as this process knows, without asking the storage."""
    applier = applier_of(gate.app)
    in_force = applier.follower.in_force
    document: Document = in_force.document.at(in_force.time())
    kinds = [each.kind for each in document.entries]
    return {
        "enabled": applier.enabled,
        "shared": applier.control.shared,
        "problem": str(applier.control.problem or ""),
        **{kind: kinds.count(kind) for kind in KINDS},
    }
