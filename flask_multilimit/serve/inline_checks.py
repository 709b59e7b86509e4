"""Checks limits that are given in the call instead of declared: ``multilimit.check``, ``limit``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import has_request_context

from ..declare.limiter import Declaration
from ..declare.subjects import SUBJECTS_BY_TYPE, LimitType, Resolve
from ..engine import ConfigurationError, Decision
from ..engine.errors import brief, check_mapping
from ..engine.hits import Hits
from ..engine.limiter import unasked
from ..plan.hits import AppliedLimits
from .gate import AppGate


def check_here(
    gate: AppGate, scope: str, options: Mapping[str, Any], subject: str | None
) -> tuple[Decision, AppliedLimits]:
    """Decide on a limiter that is given in the call."""
    gate.startup.keep_up()
    plan = gate.plans.declared_here(scope, dict(options))
    applied = plan.apply(_resolver(gate, plan.limiters[0].declaration, subject))
    return gate.verdicts.check_here(scope, applied) or unasked(applied.hits), applied


def check_hits(gate: AppGate, hits: Hits, scope: str, subjects: Mapping[str, str]) -> Decision:
    """Decide on hits that no limiter of the app has made."""
    if not isinstance(hits, Hits):
        raise ConfigurationError(f"hits={brief(hits)}: give what hits_for(...) returns, or Hits([...])")
    _require_name(scope)
    check_mapping("subjects", subjects, SUBJECTS_BY_TYPE)
    changed = gate.limiter.with_overrides(hits)
    applied = AppliedLimits.of_hits(changed or hits, subjects, scope)
    if changed is None:
        return unasked(applied.hits)
    return gate.verdicts.check_here(scope, applied) or unasked(applied.hits)


def _require_name(scope: object) -> None:
    if not isinstance(scope, str):
        raise ConfigurationError(f"scope={brief(scope)}: name what is limited, as text")


def _resolver(gate: AppGate, declaration: Declaration, subject: str | None) -> Resolve:
    if subject is not None:
        return gate.subjects.here(declaration.type_name, subject)
    if declaration.type is not LimitType.DEFAULT and not has_request_context():
        raise ConfigurationError(
            f'limiter on "{declaration.where}": the {declaration.type_name} is unknown outside of a request; '
            "pass subject="
        )
    return gate.subjects.resolve
