"""Where a subject stands that makes no request now: asked by people on the command line, and by tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from ..declare.subjects import parts_of
from ..plan.endpoint import Applied, Plan
from ..serve.gate import AppGate


def standing_of(gate: AppGate, endpoint: str, method: str | None, given: Mapping[str, str]) -> Sequence[Applied]:
    """The limiters at ``endpoint`` that count the ``given`` subjects, by type.

    Rules that depend on the request are asked within a made-up one of that address, which knows nothing else.
    Raises :class:`ConfigurationError` when there is no such endpoint.
    """
    gate.plans.require_endpoint(endpoint)
    method = method or method_of(gate, endpoint)
    with _made_up_request(gate, plan_of(gate, endpoint, method), method, given):
        resolve = gate.subjects.given(given) if given else gate.subjects.resolve
        return gate.plans.standing(endpoint, method, resolve)


def plan_of(gate: AppGate, endpoint: str, method: str | None) -> Plan:
    """What applies at ``endpoint``. Raises :class:`ConfigurationError` when there is none called so."""
    gate.plans.require_endpoint(endpoint)
    return gate.plans.of_endpoint(endpoint, method or method_of(gate, endpoint))


def method_of(gate: AppGate, endpoint: str) -> str:
    """``GET`` where the endpoint takes it, else the first it takes."""
    rules = [rule for rule in gate.app.url_map.iter_rules() if rule.endpoint == endpoint]
    taken = {method for rule in rules for method in rule.methods or ()} - {"HEAD", "OPTIONS"}
    return "GET" if "GET" in taken or not taken else min(taken)


def types_of(plan: Plan) -> dict[str, tuple[str, ...]]:
    """The types that limit there, and by what names the parts of their subjects are given."""
    declared = [limiter.declaration for limiter in plan.limiters]
    return {each.type_name: parts_of(each.type, each.name) for each in declared}


def _made_up_request(gate: AppGate, plan: Plan, method: str, given: Mapping[str, str]) -> Any:
    if all(limiter.dynamic is None for limiter in plan.limiters):
        return nullcontext()
    return gate.app.test_request_context(method=method, environ_base={"REMOTE_ADDR": given.get("ip", "127.0.0.1")})
