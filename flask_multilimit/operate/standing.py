"""Finds where a subject stands that makes no request now: for `peek`, `reset`, the command line, and tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..declare.subjects import LimitType, Subject
from ..engine import ConfigurationError
from ..plan.standings import Standing, standings_given
from ..serve.gate import AppGate

if TYPE_CHECKING:
    from ..serve.access import Listed


def standings_of(gate: AppGate, endpoint: str, method: str | None, given: Mapping[str, str]) -> list[Standing]:
    """What a request of the ``given`` subjects asks at ``endpoint``; without a ``method``, for each of its methods.

    Raises :class:`ConfigurationError` if there is no such endpoint, or it does not take the method.
    """
    return standings_given(gate.plans, endpoint, method, given)


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
