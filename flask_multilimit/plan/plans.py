"""The plans of all endpoints of an app: built, checked, and looked up."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable, Mapping, MutableMapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from flask import Flask, Request
from werkzeug.exceptions import MethodNotAllowed, NotFound
from werkzeug.routing import Rule as Route

from ..declare.advice import Stack
from ..declare.decorators import Level, rate_limiter
from ..declare.dynamic import DynamicRules
from ..declare.limiter import Declaration, reject_unknown_options
from ..declare.subjects import ANONYMOUS, LimitType, Resolve, Subjects, SubjectType
from ..engine import ConfigurationError, Hit
from ..engine.errors import brief
from .checks import reject_accidental_sharing, reject_misplaced, reject_mixed_leases, reject_unserved
from .endpoint import AppliedLimits, Plan
from .sources import UNMATCHED_SCOPE, Sources, scope_of
from .views import methods_of_handlers, view_exemptions, view_stack

if TYPE_CHECKING:
    from ..control.controls import Override
    from .overrides import Overrides

_TYPES_OF_ALL = {*(each.value for each in LimitType), ANONYMOUS}
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
"""Request methods for which plans are kept; clients can make up any number of others."""


class Standing(NamedTuple):
    """The limiters that apply to some subjects at an endpoint, for all methods where they are the same."""

    methods: tuple[str, ...]
    applied: AppliedLimits
    types: Mapping[str, tuple[str, ...]]
    """The names of all types that limit there, given or not, with the names of their parts."""


class Plans:
    """One set of plans, made from one set of sources.

    A plan is made when it is first looked up. :meth:`build` makes and checks them all. To change what is in force,
    build another set with the same ``dynamic`` and assign it.
    """

    def __init__(
        self,
        app: Flask,
        sources: Sources,
        *,
        subjects: Subjects,
        key_prefix: str,
        dynamic: MutableMapping[Hashable, DynamicRules] | None = None,
        overrides: Overrides | None = None,
    ) -> None:
        self.app = app
        self.sources = sources
        self.key_prefix = key_prefix
        self.dynamic: MutableMapping[Hashable, DynamicRules] = {} if dynamic is None else dynamic
        """The rules by request of each limiter at its endpoint, which remember the last good ones."""
        self.entries: tuple[Override, ...] = ()
        """The overrides in these plans."""
        if overrides is not None:
            self.overrides, self.entries = overrides, overrides.entries
        self._subjects = subjects
        self._endpoints: dict[tuple[str, str], Plan] = {}
        self._unmatched: dict[str, Plan] = {}
        self._services: WeakKeyDictionary[Stack, dict[str | None, Plan]] = WeakKeyDictionary()

    @cached_property
    def overrides(self) -> Overrides:
        """The overrides in these plans, with what was found about them when the plans were made."""
        from .overrides import Overrides  # noqa: PLC0415 - most processes have none

        return Overrides()

    # Build

    def build(self) -> None:
        """Make the plan of every endpoint. Raises :class:`ConfigurationError` for any mistake in a declaration that
        applies to one. With overrides, this does not check the plans: they were checked without overrides before."""
        if self.entries:
            self.ensure()
            return
        views = self.app.view_functions
        reject_misplaced({rule.endpoint: views.get(rule.endpoint) for rule in self.app.url_map.iter_rules()})
        self.ensure()
        reject_unserved(dict(self._endpoints))
        reject_accidental_sharing(dict(self._endpoints))
        reject_mixed_leases(self.made)

    def require_known_names(self) -> None:
        """Raise :class:`ConfigurationError` for names and patterns that match no endpoint."""
        problems = self.sources.unknown_names()
        if problems:
            raise ConfigurationError("; ".join(problems))

    def changed(self, overrides: Overrides) -> Plans:
        """The plans after ``overrides``. Raises :class:`ConfigurationError` if limits like these could not be
        declared."""
        plans = Plans(
            self.app,
            self.sources,
            subjects=self._subjects,
            key_prefix=self.key_prefix,
            dynamic=self.dynamic,
            overrides=overrides,
        )
        plans.ensure()
        for stack, made in list(self._services.items()):
            for known in list(made):
                plans.of_service(stack, known)
        reject_mixed_leases(plans.made)
        return plans

    def ensure(self) -> None:
        """Make the plans of all endpoints that have none yet."""
        for rule in self.app.url_map.iter_rules():
            for method in rule.methods or METHODS:
                self.of_endpoint(rule.endpoint, method)
        for method in self.unmatched_methods:
            self.of_unmatched(method)

    # Look up

    @property
    def planned(self) -> Mapping[tuple[str, str], Plan]:
        """The plans that are made, by endpoint and method."""
        return dict(self._endpoints)

    @property
    def made(self) -> list[Plan]:
        """The plans that are made, of endpoints and of requests without a route."""
        return [*self._endpoints.values(), *self._unmatched.values()]

    def of_request(self, asked: Request) -> Plan | None:
        """The plan of a request; ``None`` if it has no endpoint and is neither 404 nor 405, such as a redirect by the
        router."""
        endpoint = asked.endpoint
        if endpoint is not None:
            return self._endpoints.get((endpoint, asked.method)) or self.of_endpoint(endpoint, asked.method)
        if isinstance(asked.routing_exception, (NotFound, MethodNotAllowed)):
            return self.of_unmatched(asked.method)
        return None

    def of_endpoint(self, endpoint: str, method: str) -> Plan:
        """The plan of ``endpoint`` when called with ``method``."""
        plan = self._endpoints.get((endpoint, method))
        if plan is None:
            plan = self._made_for(endpoint, method)
            # A route without methods takes any method that a client invents.
            if method in METHODS or method in self.methods_of(endpoint):
                self._endpoints[endpoint, method] = plan
        return plan

    def of_unmatched(self, method: str) -> Plan:
        """The plan of a request that matches no route."""
        known = method if method in self.unmatched_methods else ""
        plan = self._unmatched.get(known)
        if plan is None:
            plan = self._unmatched[known] = self._made(UNMATCHED_SCOPE, self.sources.for_unmatched(), known, None)
        return plan

    @cached_property
    def unmatched_methods(self) -> frozenset[str]:
        """The methods that have plans of their own if no route matches, including those that a limiter names. All
        others share one plan."""
        declared = self._declared(UNMATCHED_SCOPE, self.sources.for_unmatched())
        return METHODS.union(*(each.methods or () for each in declared))

    def of_service(self, stack: Stack, method: str | None) -> Plan:
        """The plan of a function that is not the view of the request. ``method`` is that of the request, if any."""
        known = None
        if method and any(each.methods for each in stack.declarations):
            is_known = method in METHODS or any(method in (each.methods or ()) for each in stack.declarations)
            known = method if is_known else ""  # one plan for all methods that clients invent
        plans = self._services.setdefault(stack, {})
        if known not in plans:
            plans[known] = self._made(stack.where, stack.declarations, known, None)
        return plans[known]

    def declared_here(self, scope: str, options: dict[str, Any]) -> Plan:
        """The plan of one limiter that is declared where it is checked."""
        declaration = _declared_here(scope, options)
        return self._planned(scope, [declaration], None, None)

    def standings(self, endpoint: str, method: str | None, resolve: Resolve) -> list[Standing]:
        """The limiters that apply at ``endpoint`` to the subjects that ``resolve`` knows, regardless of conditions and
        costs that depend on the request; without a ``method``, for each method that the endpoint takes."""
        found: dict[tuple[Hit, ...], Standing] = {}
        for method_ in self.methods_for(endpoint, method):
            plan = self.of_endpoint(endpoint, method_)
            applied = plan.apply(resolve, conditions=False)
            same = found.get(applied.hits, Standing((), applied, {}))
            found[applied.hits] = Standing((*same.methods, method_), same.applied, {**same.types, **plan.types})
        return list(found.values())

    def standings_given(self, endpoint: str, method: str | None, given: Mapping[str, str]) -> list[Standing]:
        """As :meth:`standings`, for the ``given`` subjects, by type. Raises :class:`ConfigurationError` for a type that
        limits no endpoint of the app."""
        found = self.standings(endpoint, method, self._subjects.given(given))
        unknown = [name for name in given if name not in _TYPES_OF_ALL | _names_in(each.types for each in found)]
        if unknown:
            self._require_types(unknown)
        return found

    def _require_types(self, names: Iterable[str]) -> None:
        self.ensure()
        known = sorted(_names_in(plan.types for plan in self.made))
        for name in names:
            if name not in known:
                raise ConfigurationError(
                    f"no limiter of this app has a type called {name!r}; its types are: {', '.join(known)}"
                )

    def methods_for(self, endpoint: str, method: str | None) -> list[str]:
        """``method``, or all methods that ``endpoint`` takes. Raises :class:`ConfigurationError` if there is no such
        endpoint, or it does not take the method."""
        self.require_endpoint(endpoint)
        if method is not None and not isinstance(method, str):
            raise ConfigurationError(f'method={brief(method)}: give the name of one, such as "POST"')
        taken = self.methods_of(endpoint)
        if not taken:
            raise ConfigurationError(f'no route leads to the endpoint "{endpoint}"')
        if method is None:
            return taken
        if method.upper() not in taken:
            raise ConfigurationError(f'"{endpoint}" does not take {method.upper()}; its routes take {", ".join(taken)}')
        return [method.upper()]

    def methods_of(self, endpoint: str) -> list[str]:
        """The methods that the routes of ``endpoint`` take, sorted."""
        return sorted({method for rule in self._routes_of(endpoint) for method in rule.methods or METHODS})

    def is_exempt(self, endpoint: str) -> bool:
        """Whether ``endpoint``, or a method of it, is exempt from the default limits."""
        view = self.app.view_functions.get(endpoint)
        of_view = frozenset[Level]().union(*(view_exemptions(view, each) for each in self.methods_of(endpoint)))
        return "default" in self.sources.exempt_from(endpoint, of_view)

    def require_endpoint(self, endpoint: str) -> None:
        """Raise :class:`ConfigurationError` if no endpoint has this name, or no route leads to it."""
        if not isinstance(endpoint, str):
            raise ConfigurationError(f'endpoint={brief(endpoint)}: give the name of one, such as "api.update"')
        if endpoint not in self.app.view_functions:
            nearest = difflib.get_close_matches(endpoint, self.app.view_functions, n=1)
            remedy = f'did you mean "{nearest[0]}"?' if nearest else "`flask routes` lists the endpoints"
            raise ConfigurationError(f'no endpoint is called "{endpoint}"; {remedy}')
        if not self._routes_of(endpoint):
            raise ConfigurationError(f'no route leads to the endpoint "{endpoint}", so nothing limits it')

    @cached_property
    def types(self) -> Mapping[str, SubjectType]:
        """The types by name: those that every app has, and those of limiters of endpoints."""
        found: dict[str, SubjectType] = {LimitType.IP.value: LimitType.IP}
        if self._subjects.knows_users:
            found[LimitType.USER.value] = LimitType.USER
        for declared in (limiter.declaration for plan in self.made for limiter in plan.limiters):
            found.setdefault(declared.type_name, declared.type)
        return found

    # Make one

    def _made_for(self, endpoint: str, method: str) -> Plan:
        view = self.app.view_functions.get(endpoint)
        stack = view_stack(view, method)
        own = stack.declarations if stack else ()
        others = self.sources.for_endpoint(endpoint, method, own=own, exempt=view_exemptions(view, method))
        reached = None if method == "OPTIONS" and self._answers_options(endpoint) else stack
        by_handler = methods_of_handlers(view)
        return self._made(endpoint, (*others, *own), method, reached, counted_as=scope_of(endpoint), methods=by_handler)

    def _made(
        self,
        scope: str,
        declarations: Iterable[Declaration],
        method: str | None,
        stack: Stack | None,
        *,
        counted_as: str | None = None,
        methods: Mapping[Declaration, str] | None = None,
    ) -> Plan:
        plan = self._planned(scope, declarations, method, stack, counted_as=counted_as, methods=methods)
        if plan.needs_users:
            self._subjects.require_users(plan.scope)
        return plan

    def _planned(
        self,
        scope: str,
        declarations: Iterable[Declaration],
        method: str | None,
        stack: Stack | None,
        *,
        counted_as: str | None = None,
        methods: Mapping[Declaration, str] | None = None,
    ) -> Plan:
        serving = [each for each in self._declared(scope, declarations) if method is None or each.serves(method)]
        return Plan.of(
            self.app,
            scope,
            serving,
            prefix=self.key_prefix,
            stack=stack,
            dynamic=self.dynamic,
            counted_as=counted_as,
            methods=methods,
            overrides=self.overrides if self.entries else None,
        )

    def _declared(self, scope: str, declarations: Iterable[Declaration]) -> Iterable[Declaration]:
        """``declarations``, and the limiters that only an override declares."""
        return (*declarations, *self.overrides.limits_at(scope)) if self.entries else declarations

    def _answers_options(self, endpoint: str) -> bool:
        """Whether Flask answers OPTIONS, so that the view is never called."""
        return any(getattr(rule, "provide_automatic_options", False) for rule in self._routes_of(endpoint))

    def _routes_of(self, endpoint: str) -> list[Route]:
        """The routes of ``endpoint``; none if it belongs to another app, whose request this may be."""
        try:
            return list(self.app.url_map.iter_rules(endpoint))
        except KeyError:
            return []


def _names_in(types: Iterable[Mapping[str, tuple[str, ...]]]) -> set[str]:
    """The names of types and of their parts."""
    return {name for each in types for called, parts in each.items() for name in (called, *parts)}


def _declared_here(scope: str | None, options: dict[str, Any]) -> Declaration:
    if scope is None:
        raise ConfigurationError("scope=None: name what is limited")
    if options.get("rules", ()) is None:
        raise ConfigurationError('rules=None: give rules, such as "5/minute"')
    where = str(scope)
    reject_unknown_options(f'limiter on "{where}"', options)
    for option in ("methods", "with_defaults"):
        if option in options:
            raise ConfigurationError(f'limiter on "{where}": {option} is for declarations; it has no meaning here')
    if callable(options.get("rules")):
        raise ConfigurationError(f'limiter on "{where}": a callable for rules is for declarations; call it here')
    return rate_limiter(**options, scope=scope).at(where)
