"""The plans of all endpoints of an app: built, checked, and looked up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from flask import Flask, Request
from werkzeug.routing import RequestRedirect
from werkzeug.routing import Rule as Route

from ..declare.addresses import Who
from ..declare.advice import Stack
from ..declare.decorators import rate_limiter
from ..declare.limiter import Declaration, reject_unknown_options
from ..declare.subjects import (
    LimitType,
    Resolve,
    Subject,
    Subjects,
    SubjectType,
    parts_in,
    parts_with_names,
    spellings,
    type_name_of,
    type_of_given,
    types_in,
)
from ..engine import ConfigurationError
from ..engine.errors import check_text, require
from ..engine.forks import cached_property
from ..engine.text import Phrase
from .checks import (
    counted_together,
    reject_accidental_sharing,
    reject_late,
    reject_misplaced,
    reject_mixed,
    reject_mixed_check,
    reject_unserved,
)
from .endpoint import Plan, PlannedLimiter, Planner, StemParts
from .overrides import Overrides, as_far_as_they_fit, fitting
from .sources import METHODS, UNMATCHED_SCOPE, Sources, class_of, methods_of_handlers, parts_of_view, scope_of, stack_on

if TYPE_CHECKING:
    from ..control.entries import Override

_REDIRECT = Plan(UNMATCHED_SCOPE, None, ())
"""The plan of a request that the router redirects: free, unless something else answers it before."""


class Plans:
    """One set of plans, made from one set of sources.

    A plan is made when it is first looked up. :meth:`build` makes and checks them all. To change the limits in force,
    make another set by :meth:`changed`, and assign it.
    """

    def __init__(
        self,
        app: Flask,
        sources: Sources,
        *,
        subjects: Subjects,
        key_prefix: str,
        overrides: Overrides | None = None,
        declared: Plans | None = None,
    ) -> None:
        self.declared: Plans = declared or self
        """The plans without overrides."""
        self.app = app
        self.sources = sources
        self.overrides: Overrides = Overrides() if overrides is None else overrides
        self.planner: Planner = Planner(
            app, key_prefix, self.overrides, WeakValueDictionary() if declared is None else declared.planner.dynamic
        )
        self.subjects = subjects
        self._endpoints: dict[tuple[str, str], Plan] = {}
        self._options: dict[tuple[str, bool], Plan] = {}
        self._unmatched: dict[str, Plan] = {}
        self._types = lru_cache(maxsize=1)(self._find_types)
        self._by_stem_parts = lru_cache(maxsize=1)(self._find_by_stem_parts)
        self._services: WeakKeyDictionary[Stack, dict[str | None, Plan]] = WeakKeyDictionary()

    # Build

    def build(self) -> None:
        """Make the plan of every endpoint. Raises :class:`ConfigurationError` for any mistake in a declaration that
        applies to one, whatever overrides make of it."""
        if self.overrides:
            self.declared.build()
            self.ensure()
            return
        reject_misplaced(self.app, self.subjects.find_user_loader())
        reject_late(self.app)
        self.ensure()
        reject_unserved(dict(self._endpoints))
        reject_accidental_sharing(dict(self._endpoints))
        reject_mixed(self.made)

    def changed(self, overrides: Overrides) -> Plans:
        """The plans after ``overrides``. Raises :class:`ConfigurationError` if limits like these could not be
        declared."""
        plans = Plans(
            self.app,
            self.sources,
            subjects=self.subjects,
            key_prefix=self.planner.prefix,
            overrides=overrides,
            declared=self.declared,
        )
        plans.ensure()
        for stack in (found() for found in self._services.keyrefs()):  # other threads may add some meanwhile
            if stack is not None:
                made = list(self._services[stack])
                try:
                    plans._services[stack] = {known: plans._make_service(stack, known, plans.planner) for known in made}
                except ConfigurationError:  # its next call ignores overrides that do not fit it
                    plans._reject_unfit(stack, made)
        reject_mixed(plans.made)
        return plans

    def _reject_unfit(self, stack: Stack, methods: Iterable[str | None]) -> None:
        """Raise :class:`ConfigurationError` for an override that names this function, and so is for nothing else."""

        def make(some: Iterable[Override]) -> None:
            planner = replace(self.planner, overrides=self.overrides.only(some))
            for each in methods:
                self._make_service(stack, each, planner)

        _, unfit = fitting(self.overrides.at(stack.where).entries, make)
        for each in self.overrides.entries:
            if each.id in unfit and each.endpoint == stack.where:
                raise unfit[each.id]

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

    def all_limiters(self) -> list[PlannedLimiter]:
        """The limiters of all endpoints, and of requests without a route, for each method."""
        self.ensure()
        return [limiter for plan in self.made for limiter in plan.limiters]

    def of_request(self, request: Request) -> Plan | None:
        """The plan of a request; ``None`` if the router has not seen it."""
        endpoint, method = request.endpoint, request.method
        if endpoint is None:
            if isinstance(request.routing_exception, RequestRedirect):
                return _REDIRECT
            return self.of_unmatched(method) if request.routing_exception is not None else None
        if method == "OPTIONS":
            return self._of_options(endpoint, by_flask=_answers_options(request.url_rule))
        return self._endpoints.get((endpoint, method)) or self.of_endpoint(endpoint, method)

    def of_ended_request(self, request: Request, plan: Plan) -> Plan:
        """The plan of a request that ends before its view: its ``plan`` without the limits of the view. An OPTIONS
        request or a redirect is not free then, because it was not Flask that answered."""
        if plan is _REDIRECT:
            return self.of_unmatched(request.method)
        if request.method == "OPTIONS" and request.endpoint is not None:
            plan = self._of_options(request.endpoint, by_flask=False)
        return plan.without_view

    def of_endpoint(self, endpoint: str, method: str) -> Plan:
        """The plan of ``endpoint`` when called with ``method``; for OPTIONS that only some of its routes pass to the
        view, the plan of those."""
        plan = self._endpoints.get((endpoint, method))
        if plan is None:
            if method == "OPTIONS":
                routes = [route for route in self._routes_of(endpoint) if method in (route.methods or METHODS)]
                plan = self._of_options(endpoint, by_flask=bool(routes) and all(map(_answers_options, routes)))
            else:
                plan = self._make_for(endpoint, method)
            # A route without methods takes any method that a client invents.
            if method in METHODS or method in self.methods_of(endpoint):
                self._endpoints[endpoint, method] = plan
        return plan

    def of_unmatched(self, method: str) -> Plan:
        """The plan of a request that matches no route."""
        known = method if method in self.unmatched_methods else ""
        plan = self._unmatched.get(known)
        if plan is None:
            added = self.overrides.limits_at(UNMATCHED_SCOPE)
            made = self.planner.plan(UNMATCHED_SCOPE, self.sources.for_unmatched(), known, added=added)
            plan = self._unmatched[known] = self._checked(made)
        return plan

    @cached_property
    def unmatched_methods(self) -> frozenset[str]:
        """The methods that have plans of their own if no route matches, including those that a limiter names. All
        others share one plan."""
        declared = (*self.sources.for_unmatched(), *self.overrides.limits_at(UNMATCHED_SCOPE))
        return METHODS.union(*(each.methods or () for each in declared))

    def of_service(self, stack: Stack, method: str | None) -> Plan:
        """The plan of a function that is not the view of the request. ``method`` is that of the request, if any."""
        known = None
        if method and (named := self.overrides.methods.union(*(each.methods or () for each in stack.declarations))):
            known = method if method in METHODS or method in named else ""  # one plan for all that clients invent
        plans = self._services.setdefault(stack, {})
        if known not in plans:
            plans[known] = self._elsewhere(stack.where, lambda planner: self._make_service(stack, known, planner))
            if self.declared is not self:  # these keep the rules by request when overrides change
                with suppress(ConfigurationError):
                    self.declared.of_service(stack, method)
        return plans[known]

    def of_inline(self, declaration: Declaration, *, by_subject: bool) -> Plan:
        """The plan of a limiter that is declared in the call that checks it (:func:`inline_declaration`), perhaps
        ``by_subject``, whose parts may have any order. Overrides add no others: their subjects may not be known. Raises
        :class:`ConfigurationError` if limiters of endpoints with its scope count its subject in another way."""
        scope = str(declaration.scope)
        others = self.declared.limiters_with(self.planner.stem_parts_of(declaration, scope, ""))
        if by_subject:
            declaration = counted_together(declaration, others)
        reject_mixed_check(declaration, others)
        plan = self._elsewhere(scope, lambda planner: planner.plan(scope, [declaration], None))
        plan.cached_apply = Plan.apply_to  # it is checked once
        return plan if by_subject else self._checked(plan)

    def limiters_with(self, parts: StemParts) -> Iterable[tuple[Declaration, str]]:
        """The limiters of endpoints whose keys have these parts of a stem, with their endpoints."""
        return self._by_stem_parts(self._number).get(parts, {}).items()

    def _find_by_stem_parts(self, number: int) -> Mapping[StemParts, Mapping[Declaration, str]]:  # noqa: ARG002 - the key of the cache
        with suppress(ConfigurationError):  # a mistake at an endpoint is no matter of a task
            self.ensure()
        found = defaultdict[StemParts, dict[Declaration, str]](dict)
        for plan in self.made:
            for limiter in plan.limiters:
                found[limiter.stem_parts].setdefault(limiter.declaration, plan.scope)
        return found

    @property
    def _number(self) -> int:
        """How many plans are made: what is found in all of them is found again when there are more."""
        return len(self._endpoints) + len(self._unmatched)

    def fingerprint(self) -> str:
        """A digest of the limits: equal limits have equal digests in all processes."""
        self.ensure()
        described = sorted((*place, plan.described) for place, plan in self._endpoints.items())
        unmatched = [(method, self.of_unmatched(method).described) for method in sorted(self.unmatched_methods)]
        return blake2b(repr((described, unmatched)).encode("utf-8", "replace"), digest_size=8).hexdigest()

    def methods_of(self, endpoint: str) -> list[str]:
        """The methods that the routes of ``endpoint`` take, sorted."""
        return sorted({method for rule in self._routes_of(endpoint) for method in rule.methods or METHODS})

    @property
    def types(self) -> Mapping[str, SubjectType]:
        """The types by name: those that every app has, and those of limiters of endpoints."""
        return self._types(self._number, self.subjects.knows_users)

    def _find_types(self, number: int, knows_users: bool) -> Mapping[str, SubjectType]:  # noqa: ARG002 - keys of the cache
        found: dict[str, SubjectType] = {LimitType.IP.value: LimitType.IP}
        if knows_users:
            found[LimitType.USER.value] = LimitType.USER
        for plans in (self.declared, self):  # lists hold although overrides switch all limiters of a type off
            for limiter in plans.all_limiters():
                found.setdefault(limiter.declaration.type_name, limiter.declaration.type)
        return found

    def parts_of(self, subject: Subject) -> tuple[Subject, ...]:
        """The parts of a subject, if its type has several here; so do types called ``user+ip``, also of functions."""
        if "+" in subject.type:
            return parts_in(subject.value)
        has_parts = isinstance(self.types.get(subject.type), tuple)  # a client may choose text that looks like parts
        return parts_in(subject.value) if has_parts else ()

    def subjects_called(self, name: str, resolve: Resolve, plan: Plan | None = None) -> tuple[Subject, ...]:
        """The subjects that an entry of a list means by a type of this ``name``: the one of this type, which ``plan``
        may know better, and if that has several parts, the part that has the same name."""
        type_ = None if plan is None else plan.type_called(name)
        type_ = self.types.get(name) if type_ is None else type_
        subject = None if type_ is None else resolve(type_, name)
        if subject is None:
            return ()
        parts = parts_with_names(subject.value) if isinstance(type_, tuple) else ()
        named = (subject, *(part for part in parts if part.type == name))
        return tuple(each for one in named for each in spellings(one))

    def require_type(self, who: Who) -> None:
        """Raise :class:`ConfigurationError` unless a limiter has a type of the name in ``who``, and that says whom it
        means."""
        name = who.type_name
        reject_unknown_type(name, self.types)
        names = [type_name_of(part, name) for part in types_in(self.types[name])]
        if names.count(name) > 1 and not parts_in(who.value):
            several = "several parts of a subject are called {name}; give all of them, as `flask multilimit bans` does"
            raise ConfigurationError(Phrase(several, name=repr(name)))

    # Make one

    def _of_options(self, endpoint: str, *, by_flask: bool) -> Plan:
        plan = self._options.get((endpoint, by_flask))
        if plan is None:
            plan = self._options[endpoint, by_flask] = self._make_for(endpoint, "OPTIONS", by_flask=by_flask)
        return plan

    def _make_for(self, endpoint: str, method: str, *, by_flask: bool = False) -> Plan:
        if self.declared is not self and not self.overrides.at(endpoint):
            known, is_options = self.declared, method == "OPTIONS"
            return known._of_options(endpoint, by_flask=by_flask) if is_options else known.of_endpoint(endpoint, method)
        view = self.app.view_functions.get(endpoint)
        view_class = class_of(view)
        parts = parts_of_view(view, view_class, method)
        stack = stack_on(parts)
        own = stack.declarations if stack else ()
        exempt = self.sources.exempt_from(endpoint, parts)
        others = self.sources.for_endpoint(endpoint, method, own=own, exempt=exempt, by_flask=by_flask)
        made = self.planner.plan(
            endpoint,
            (*others, *own),
            method,
            by_flask=by_flask,
            stack=None if by_flask else stack,
            early=any(route.websocket for route in self._routes_of(endpoint)),
            counted_as=scope_of(endpoint),
            methods=methods_of_handlers(view_class),
            added=self.overrides.limits_at(endpoint, exempt="configuration" in exempt),
        )
        return self._checked(made)

    def _make_service(self, stack: Stack, method: str | None, planner: Planner) -> Plan:
        added = planner.overrides.limits_at(stack.where, exempt=True)  # not those for "*": a task has no address
        return self._checked(planner.plan(stack.where, stack.declarations, method, added=added))

    def _elsewhere(self, scope: str, make: Callable[[Planner], Plan]) -> Plan:
        """The plan of a function or a check, which is known only when it is called. Overrides that do not fit it are
        ignored there, which is logged once."""
        if self.declared is self:
            return make(self.planner)
        return as_far_as_they_fit(self.overrides, (scope,), lambda some: make(replace(self.planner, overrides=some)))

    def _checked(self, plan: Plan) -> Plan:
        """``plan``. Raises :class:`ConfigurationError` if it limits users and the app does not say who they are."""
        for limiter in plan.limiters:
            if LimitType.USER in types_in(limiter.declaration.type):
                self.subjects.require_users(f'limiter on "{limiter.declaration.where}"')
        return plan

    def _routes_of(self, endpoint: str) -> list[Route]:
        """The routes of ``endpoint``; none if it belongs to another app, whose request this may be."""
        try:
            return list(self.app.url_map.iter_rules(endpoint))
        except KeyError:
            return []


def reject_unknown_type(name: str, known: Iterable[str]) -> None:
    """Raise :class:`ConfigurationError` unless a limiter has a type of this name."""
    if name not in known:
        types = ", ".join(sorted(known))
        unknown = "no limiter of this app has a type called {name}; its types are: {types}"
        raise ConfigurationError(Phrase(unknown, name=repr(name), types=types))


def _answers_options(route: Route | None) -> bool:
    """Whether Flask answers OPTIONS requests by itself, so they do not reach the view."""
    return bool(getattr(route, "provide_automatic_options", False))


def inline_declaration(scope: str, options: dict[str, Any], subjects: Mapping[str, str] | None) -> Declaration:
    """The limiter of a check of ``scope`` that is given in the call, by the type of the ``subjects`` if some are given.
    Raises :class:`ConfigurationError`."""
    check_text("scope", scope)
    require(scope, "scope", scope, 'text, such as "mail"')
    if options.get("rules", ()) is None:
        raise ConfigurationError('rules=None: give rules, such as "5/minute"')
    reject_unknown_options(f'limiter on "{scope}"', options)
    try:
        options = _options_in_call(options, subjects)
    except ConfigurationError as error:
        raise ConfigurationError(f'limiter on "{scope}": {error}') from None
    return rate_limiter(**options, scope=scope).at(scope)


def _options_in_call(options: dict[str, Any], subjects: Mapping[str, str] | None) -> dict[str, Any]:
    """``options``, with the type of the ``subjects``. Raises :class:`ConfigurationError` for those of declarations."""
    for option in ("methods", "with_defaults"):
        if option in options:
            raise ConfigurationError(f"{option} is for declarations; it has no meaning here")
    if options.get("settle") is True:
        raise ConfigurationError(
            "settle=True is for declarations; here, say it of the decision: multilimit.settle(decision, units)"
        )
    if callable(options.get("rules")):
        raise ConfigurationError("a callable for rules is for declarations; call it here")
    if subjects is None:
        return options
    if options.get("type", LimitType.DEFAULT) is not LimitType.DEFAULT:
        raise ConfigurationError(
            "type= asks the current request, and subject= names its type by itself: leave one of them out"
        )
    type_, name = type_of_given(subjects, options.get("name"))
    return {**options, "type": type_, "name": name}
