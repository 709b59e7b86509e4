"""Shows which limits apply where, and what changed them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from flask import request

from ...control.entries import Override
from ...declare.limiter import Declaration
from ...engine import Rule
from ...plan.plans import Plans
from ...plan.sources import UNMATCHED_SCOPE
from ...serve.gate import AppGate
from ..listing import ListedEndpoint, ListedLimiter, endpoints_of, unmatched_of
from ..words import limits_as_json, options_of, parameters_of, rule_text
from .entries import entry_facts
from .hour import Hour
from .paging import part_of

SHOWS = ("all", "changed", "shadow", "unlimited")
"""The filters of the list."""
MOST_SUBJECTS = 3
"""The most subjects with their own rules that are shown beside a limiter."""
_LISTING = "multilimit_dashboard_listing"


class Listing(NamedTuple):
    """All endpoints, as one set of plans has them."""

    plans: Plans
    endpoints: Sequence[ListedEndpoint]


def listing_of(gate: AppGate) -> Sequence[ListedEndpoint]:
    """Every endpoint except our own, and last the requests that match none. It is made again when the limits change."""
    known: Listing | None = gate.app.extensions.get(_LISTING)
    if known is None or known.plans is not gate.plans:
        plans = gate.plans
        found = [each for each in endpoints_of(gate) if not each.name.startswith(f"{request.blueprint}.")]
        if unmatched := unmatched_of(gate):
            found.append(ListedEndpoint(UNMATCHED_SCOPE, (), unmatched, exempt=False))
        known = gate.app.extensions[_LISTING] = Listing(plans, found)
    return known.endpoints


def facts(gate: AppGate, hour: Hour | None, *, q: str = "", show: str = "all", page: int = 1) -> dict[str, Any]:
    """What the page shows, as JSON."""
    show = show if show in SHOWS else SHOWS[0]
    wanted = [each for each in listing_of(gate) if _is_wanted(gate, each, q.strip().lower(), show)]
    part = part_of(wanted, page)
    return {
        "q": q,
        "show": show,
        "endpoints": [endpoint_facts(gate, hour, each) for each in part.rows],
        "paging": part.as_json(),
        "all": len(listing_of(gate)),
    }


def endpoint_facts(gate: AppGate, hour: Hour | None, listed: ListedEndpoint) -> dict[str, Any]:
    """One endpoint with its limits."""
    return {
        "endpoint": listed.name,
        "routes": [{"path": route.path, "methods": list(route.methods)} for route in listed.routes],
        "limits": [row for each in listed.limiters for row in _rows(listed.name, each, hour)],
        "changes": [entry_facts(each) for each in _changes_at(gate, listed)],
    }


def _rows(endpoint: str, listed: ListedLimiter, hour: Hour | None) -> Iterable[dict[str, Any]]:
    declared = listed.planned.declaration
    before = listed.planned.declared
    options = [text for text in options_of(listed) if not text.startswith("SHADOW")]
    rules = dict(listed.planned.rules)
    for row in limits_as_json(listed):
        rule = rules.get(str(row["name"]))
        yield {
            **row,
            "limiter": declared.name or declared.type_name,
            "text": "by request" if rule is None else rule_text(rule),
            "options": [*([parameters_of(rule)] if rule is not None and parameters_of(rule) else []), *options],
            **_change_of(listed, before, rule),
            "subjects": [entry_facts(each) for each in _special(listed)[:MOST_SUBJECTS]],
            "subjects_in_all": len(_special(listed)),
            "hour": _amounts(hour, endpoint, str(row["name"])),
        }


def _change_of(listed: ListedLimiter, before: Declaration, rule: Rule | None) -> dict[str, Any]:
    """Whether the limit differs from what was declared, and what that was."""
    if before.where.startswith("override "):
        return {"changed": True, "declared": None}
    now = listed.planned.declaration
    same_rule = rule in before.fixed_rules if rule is not None else not listed.planned.by_name
    if same_rule and before.shadow == now.shadow:
        return {"changed": False, "declared": None}
    shadow = " (shadow)" if before.shadow else ""
    return {"changed": True, "declared": f"{before}{shadow}"}


def _amounts(hour: Hour | None, endpoint: str, rule: str) -> dict[str, int]:
    return {did: 0 if hour is None else hour.total(endpoint, rule, did) for did in ("refuses", "near", "shadows")}


def _special(listed: ListedLimiter) -> Sequence[Override]:
    return () if listed.planned.special is None else listed.planned.special.entries


def _changes_at(gate: AppGate, listed: ListedEndpoint) -> list[Override]:
    """Overrides for this endpoint, or for a pattern that matches it."""
    scopes = dict.fromkeys([listed.name, *(each.scope for each in listed.limiters)])
    found = {each.id: each for scope in scopes for each in gate.plans.overrides.at(scope).changes}
    return list(found.values())


def _is_wanted(gate: AppGate, listed: ListedEndpoint, q: str, show: str) -> bool:
    if show == "unlimited" and listed.limiters:
        return False
    if show == "shadow" and not any(each.planned.declaration.shadow for each in listed.limiters):
        return False
    if show == "changed" and not _changes_at(gate, listed):
        return False
    if not q:
        return True
    return any(q in text.lower() for text in _texts(listed))


def _texts(listed: ListedEndpoint) -> Iterable[str]:
    """The texts by which an endpoint can be found."""
    yield listed.name
    for route in listed.routes:
        yield route.path
    for each in listed.limiters:
        yield each.planned.declaration.type_name
        for name, _ in each.planned.rules:
            yield name
