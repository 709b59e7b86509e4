"""Describes limiters and rules as text and as JSON, for the command line and for pages."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..engine import Ban, Rule
from ..engine.bans import BanRule
from ..engine.rules import UNITS
from . import console
from .listing import ListedEndpoint, ListedLimiter

_UNITS: dict[float, str] = {seconds: unit for unit, seconds in UNITS.items()}


def rule_text(rule: Rule) -> str:
    if isinstance(rule, BanRule):
        return ban_text(rule.ban)
    if rule.holds_slots:
        return f"{rule.count} at once"
    return f"{rule.count} per {_UNITS.get(rule.time) or console.duration(rule.time)}"


def ban_text(ban: Ban) -> str:
    longer = f", x {ban.factor:g} up to {console.duration(ban.most)}" if ban.factor > 1 else ""
    return f"{console.duration(ban.time)}{longer} after {ban.after} refusals in {console.duration(ban.within)}"


def rule_as_json(rule: Rule | None) -> dict[str, Any]:
    return {
        field: None if rule is None else getattr(rule, field)
        for field in ("count", "time", "algorithm", "burst", "max_delay", "lease")
    }


def parameters_of(rule: Rule) -> str:
    """The parameters of a rule besides its count and time."""
    burst = f"burst {rule.quota.burst}" if rule.burst is not None else ""
    delay = f"queue {console.duration(rule.max_delay)}" if rule.max_delay else ""
    lease = f"lease {rule.lease}" if rule.lease is not None else ""
    return "; ".join(filter(None, (burst, delay, lease)))


def options_of(listed: ListedLimiter) -> list[str]:
    """The options of a limiter besides its type and rules."""
    declared = listed.planned.declaration
    conditions = [name for name in ("exempt_when", "charge_when", "on_rejected") if getattr(declared, name)]
    options = [
        ("SHADOW: never refuses", declared.shadow),
        (f"only {', '.join(listed.methods or ())}", listed.methods is not None),
        (f"scope {declared.scope}", declared.scope is not None),
        (declared.ban and f"bans for {ban_text(declared.ban)}", declared.ban is not None),
        ("slot by subject", declared.hash_tag == "subject"),
        ("cost by request" if callable(declared.cost) else f"cost {declared.cost}", declared.cost != 1),
        (f"waits {console.duration(declared.wait)}", declared.wait),
        (", ".join(conditions), conditions),
        (f"key {declared.key}", declared.key is not None),
    ]
    return [text for text, holds in options if text and holds]


def endpoint_as_json(endpoint: ListedEndpoint) -> dict[str, Any]:
    return {
        "endpoint": endpoint.name,
        "routes": [{"path": route.path, "methods": list(route.methods)} for route in endpoint.routes],
        "limits": [row for listed in endpoint.limiters for row in limits_as_json(listed)],
        "exempt": endpoint.exempt,
    }


def limits_as_json(listed: ListedLimiter) -> list[dict[str, Any]]:
    declared = listed.planned.declaration
    of_limiter = {
        "type": declared.type_name,
        "from": declared.where,
        "scope": listed.scope,
        "hash_tag": declared.hash_tag,
        "methods": None if listed.methods is None else list(listed.methods),
        "cost": None if callable(declared.cost) else declared.cost,
        "shadow": declared.shadow,
        "wait": declared.wait,
        "ban": None if declared.ban is None else asdict(declared.ban),
        "exempt_when": declared.exempt_when is not None,
        "charge_when": declared.charge_when is not None,
        "key": declared.key,
        "by_request": listed.planned.dynamic is not None,
    }
    if listed.planned.dynamic is not None:
        return [{"name": declared.name or declared.type_name, **rule_as_json(None), **of_limiter}]
    return [{"name": name, **rule_as_json(rule), **of_limiter} for name, rule in listed.planned.rules]
