"""What people ask about an endpoint: which limiters count whom there, for which methods, and whether it is exempt."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from flask import has_request_context

from ..declare.dynamic import DynamicRules
from ..declare.subjects import ANONYMOUS, LimitType, Resolve, Subject
from ..engine import ConfigurationError, Rule
from ..engine.errors import require
from ..engine.text import LONGEST_NAME, Phrase
from .applied import SOMEBODY, About, AppliedLimits
from .plans import Plans, reject_unknown_type
from .sources import UNMATCHED_SCOPE, class_of, parts_of_view

_TYPES_OF_ALL = {*(each.value for each in LimitType), ANONYMOUS}


class AppliedAt(NamedTuple):
    """The limiters that apply to some subjects at an endpoint, for all methods where they are the same."""

    endpoint: str
    methods: tuple[str, ...]
    applied: AppliedLimits
    types: Mapping[str, tuple[str, ...]]
    """The names of all types that limit there, given or not, with the names of their parts."""


def is_unmatched(plans: Plans, endpoint: str) -> bool:
    """Whether ``endpoint`` stands for the requests without a route."""
    return endpoint == UNMATCHED_SCOPE and endpoint not in plans.app.view_functions


def applied_for(plans: Plans, endpoint: str, method: str | None, resolve: Resolve, about: About) -> list[AppliedAt]:
    """The limiters that apply at ``endpoint`` to the subjects that ``resolve`` knows, regardless of conditions and
    costs that depend on the request; without a ``method``, for each method that the endpoint takes."""
    found: dict[tuple[object, ...], AppliedAt] = {}
    unmatched = is_unmatched(plans, endpoint)
    for method_ in methods_for(plans, endpoint, method):
        plan = plans.of_unmatched(method_) if unmatched else plans.of_endpoint(endpoint, method_)
        applied = plan.apply(resolve, about)
        key = (applied.hits, applied.unknown)
        same = found.get(key, AppliedAt(endpoint, (), applied, {}))
        found[key] = AppliedAt(endpoint, (*same.methods, method_), same.applied, {**same.types, **plan.types})
    return list(found.values())


def applied_given(plans: Plans, endpoint: str, method: str | None, given: Mapping[str, str]) -> list[AppliedAt]:
    """As :func:`applied_for`, for the ``given`` subjects, by type. Raises :class:`ConfigurationError` for a type that
    limits no endpoint of the app."""
    found = applied_for(plans, endpoint, method, plans.subjects.given(given), about_given(plans))
    require_types(plans, [name for name in given if name not in _names_in(each.types for each in found)])
    return found


def about_given(plans: Plans) -> About:
    """For subjects given by name. If one of them makes the current request, it has the rules of that request."""

    def rules_of(dynamic: DynamicRules, subject: Subject) -> tuple[Rule, ...] | None:
        own = plans.subjects.resolve_if_found(dynamic.declaration.type, dynamic.declaration.name)
        return dynamic.peek(subject) if subject == own else dynamic.without_request(subject)

    return About(SOMEBODY.ask, rules_of) if has_request_context() else SOMEBODY


def require_known_rules(endpoint: str, found: Iterable[AppliedLimits]) -> None:
    """Raise :class:`ConfigurationError` if the rules of a limiter depend on a request that its subject does not make
    now, and what a callable for rules has raised."""
    found = list(found)
    for applied in found:
        if applied.failure is not None:
            raise applied.failure
    unknown = dict.fromkeys(name for applied in found for name in applied.unknown)
    if unknown:
        raise ConfigurationError(
            f'the rules of {" and ".join(unknown)} at "{endpoint}" depend on the request, so those of this subject '
            "are not known here; let their callable take the subject, as in `def rules(subject)`, or if it does and "
            "failed, mend what the log says; a reset with reach='everywhere' needs no rules"
        )


def require_types(plans: Plans, names: Iterable[str]) -> None:
    """Raise :class:`ConfigurationError` for the name of a type that limits no endpoint of the app, with or without the
    changes in force."""
    names = [name for name in names if name not in _TYPES_OF_ALL]
    if not names:
        return
    plans.ensure()
    plans.declared.ensure()
    known = _names_in(plan.types for several in (plans, plans.declared) for plan in several.made)
    for name in names:
        reject_unknown_type(name, known)


def _names_in(types: Iterable[Mapping[str, tuple[str, ...]]]) -> set[str]:
    """The names of types and of their parts."""
    return {name for each in types for called, parts in each.items() for name in (called, *parts)}


def methods_for(plans: Plans, endpoint: str, method: str | None) -> list[str]:
    """``method``, or all methods that ``endpoint`` takes. Raises :class:`ConfigurationError` if there is no such
    endpoint, or it does not take the method."""
    if is_unmatched(plans, endpoint):
        return sorted(plans.unmatched_methods) if method is None else [method.upper()]
    require_endpoint(plans, endpoint)
    require(method is None or isinstance(method, str), "method", method, 'the name of one, such as "POST"')
    taken = plans.methods_of(endpoint)
    if method is None:
        return taken
    if method.upper() not in taken:
        refused = '"{endpoint}" does not take {method}; its routes take {taken}'
        raise ConfigurationError(
            Phrase(refused, endpoint=endpoint, method=method[:LONGEST_NAME].upper(), taken=", ".join(taken))
        )
    return [method.upper()]


def require_endpoint(plans: Plans, endpoint: str) -> None:
    """Raise :class:`ConfigurationError` if no endpoint has this name, or no route leads to it."""
    require(isinstance(endpoint, str), "endpoint", endpoint, 'the name of one, such as "api.update"')
    views = plans.app.view_functions
    if endpoint not in views:
        nearest = difflib.get_close_matches(endpoint, views, n=1)
        remedy = Phrase("`flask routes` lists the endpoints")
        if nearest:
            remedy = Phrase('did you mean "{name}"?', name=nearest[0])
        unknown = 'no endpoint is called "{endpoint}"; {remedy}'
        raise ConfigurationError(Phrase(unknown, endpoint=endpoint[:LONGEST_NAME], remedy=remedy))
    if not plans.methods_of(endpoint):
        unreached = 'no route leads to the endpoint "{endpoint}", so nothing limits it'
        raise ConfigurationError(Phrase(unreached, endpoint=endpoint))


def is_exempt(plans: Plans, endpoint: str) -> bool:
    """Whether ``endpoint``, or a method of it, is exempt from the default limits."""
    view = plans.app.view_functions.get(endpoint)
    parts = (part for method in plans.methods_of(endpoint) for part in parts_of_view(view, class_of(view), method))
    return "default" in plans.sources.exempt_from(endpoint, parts)
