"""Finds where a subject stands that makes no request now: for `peek`, `reset`, the command line, and tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from flask import has_request_context

from ..declare.subjects import LimitType, Subject
from ..engine import ConfigurationError
from ..plan.standings import Standing, methods_for, standings_given
from ..serve.gate import AppGate

if TYPE_CHECKING:
    from ..plan.plans import Plans
    from ..serve.access import Listed


def standings_of(
    gate: AppGate, endpoint: str, method: str | None, given: Mapping[str, str], *, plans: Plans | None = None
) -> list[Standing]:
    """What a request of the ``given`` subjects asks at ``endpoint``; without a ``method``, for each of its methods;
    without ``plans``, by those in force.

    Outside of a request, a callable for rules is called within a made-up request from the given address, which contains
    nothing else. Raises :class:`ConfigurationError` if there is no such endpoint, or it does not take the method.
    """
    with _made_up_request(gate, endpoint, method, given):
        return standings_given(plans or gate.plans, endpoint, method, given)


def listed_of(gate: AppGate, given: Mapping[str, str]) -> Listed | None:
    """The entry of an allow or deny list that decides about requests of the ``given`` subjects, before any limit."""
    lists = gate.access
    if lists is None:
        return None
    resolve, types = gate.subjects.given(given), gate.plans.types

    def subject_of(type_name: str) -> Subject | None:
        return resolve(types[type_name], type_name) if type_name in types else None

    address, _, _ = given.get(LimitType.IP.value, "").partition("/")
    return lists.of_client(address, subject_of)


def require_limiters(
    what: str,
    endpoint: str,
    standings: list[Standing],
    given: Mapping[str, str],
    *,
    spelled: Callable[[tuple[str, ...]], str],
) -> None:
    """Raise :class:`ConfigurationError` unless a limiter at ``endpoint`` counts one of the ``given`` subjects.

    ``spelled`` writes how a caller gives a subject of these parts.
    """
    if any(standing.applied for standing in standings):
        return
    types = {name: parts for standing in standings for name, parts in standing.types.items()}
    if not types:
        raise ConfigurationError(f'{what}: no limit applies to "{endpoint}"; `flask multilimit limits` lists them')
    limited_by = ", ".join(f"{name} ({spelled(parts)})" for name, parts in types.items())
    raise ConfigurationError(
        f'{what}: no limit at "{endpoint}" counts {" and ".join(given)}; it is limited by {limited_by}'
    )


def _made_up_request(
    gate: AppGate, endpoint: str, method: str | None, given: Mapping[str, str]
) -> AbstractContextManager[object]:
    methods = methods_for(gate.plans, endpoint, method)
    plans = (gate.plans.of_endpoint(endpoint, each) for each in methods)
    if has_request_context() or all(limiter.dynamic is None for plan in plans for limiter in plan.limiters):
        return nullcontext()
    return gate.app.test_request_context(method=methods[0], environ_base={"REMOTE_ADDR": given.get("ip", "127.0.0.1")})
