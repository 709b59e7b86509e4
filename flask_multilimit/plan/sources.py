"""Collects the limits of an endpoint: those of app, blueprints, settings and defaults; of its view, class or method."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from flask import Flask
from flask.views import MethodView, View, http_method_funcs

from ..declare.advice import Stack, declared_on, limited_inside
from ..declare.checks import reject_shared_keys, warn_of_idle_rules
from ..declare.decorators import LEVELS, Level, RateLimiter, exempt_levels, limits_of_blueprint, rate_limiter
from ..declare.limiter import Declaration
from ..declare.unwrap import attributes_of, functions_below
from ..declare.written import OFF
from ..engine import ConfigurationError, Rule
from ..engine.errors import check_mapping
from ..observe.traffic.counts import counted_name

if TYPE_CHECKING:
    from ..config import Settings
    from ..declare.data import LimitsFile

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
"""The usual request methods. Plans are kept for them; clients can make up any number of others."""
APPLICATION_SCOPE = "application"
UNMATCHED_SCOPE = "unmatched"

WILD = frozenset("*?[")
"""What makes a name a pattern."""

T = TypeVar("T")


def names_of(scope: str) -> Iterator[str]:
    """The names by which ``scope`` can be named: those of the blueprints around it, the outermost first, and its
    own."""
    return accumulate(scope.split("."), "{}.{}".format)


def scope_of(endpoint: str) -> str:
    """The scope of the limiters of an endpoint: its name, with a prefix if the package has a scope of that name."""
    return f"endpoint:{endpoint}" if endpoint in {APPLICATION_SCOPE, UNMATCHED_SCOPE} else endpoint


def scopes_of_endpoints(app: Flask) -> dict[str, str]:
    """The endpoints by their scopes, which are cut off as in traffic; of requests without a route, that is the scope
    itself. All others are scopes of functions or checks."""
    return {UNMATCHED_SCOPE: UNMATCHED_SCOPE, **{counted_name(scope_of(each)): each for each in app.view_functions}}


class Given(NamedTuple):
    """Limits and lists that the extension was given in code. The fields are those of the settings and of a file."""

    application_limits: Any = None
    default_limits: Any = None
    unmatched_limits: Any = None
    limits: Mapping[str, Any] = {}
    exempt: Sequence[str] = ()
    allow: Sequence[str] = ()
    deny: Sequence[str] = ()


Source = tuple[Callable[[str], str], "Settings | LimitsFile | Given"]
"""How messages name a field of what is written there, and that."""


class ByName(list[tuple[str, T]]):
    """What is declared for each name or pattern, in their order."""

    def __init__(self, declared: Iterable[tuple[str, T]]) -> None:
        super().__init__(declared)
        self._places = defaultdict[str, list[int]](list)
        for place, (name, _) in enumerate(self):
            self._places[name if WILD.isdisjoint(name) else ""].append(place)

    def near(self, endpoint: str) -> list[tuple[str, T]]:
        """Those that may match: patterns, and the names of the endpoint and of the blueprints around it."""
        names = {"", *names_of(endpoint)}
        return [self[place] for place in sorted(chain.from_iterable(self._places.get(name, ()) for name in names))]


class Sources(NamedTuple):
    """All limits of one app that are declared outside of decorators."""

    app: Flask
    application: tuple[Declaration, ...]
    default: tuple[Declaration, ...]
    unmatched: tuple[Declaration, ...]
    configured: ByName[tuple[Declaration, ...]]
    """The limits in ``MULTILIMIT_LIMITS`` and ``limits``."""
    exempt: ByName[str]
    """Where names and patterns are exempt."""

    @classmethod
    def of(cls, app: Flask, written: Sequence[Source]) -> Sources:
        """The limits of all sources, in their order."""
        by_name = [each for name_of, source in written for each in _by_name(source.limits, name_of("limits"))]

        def collected(name: str, shared_as: str | None = None) -> tuple[Declaration, ...]:
            found = (declarations_from(getattr(source, name), name_of(name)) for name_of, source in written)
            declarations = tuple(chain.from_iterable(found))
            if shared_as:
                declarations = tuple(each.shared_as(shared_as) for each in declarations)
            return _checked_together(name, declarations)

        return cls(
            app=app,
            application=collected("application_limits", shared_as=APPLICATION_SCOPE),
            default=collected("default_limits"),
            unmatched=collected("unmatched_limits"),
            configured=ByName((name, declarations) for name, _, declarations in by_name if declarations),
            exempt=ByName(
                [
                    *((name, name_of("exempt")) for name_of, source in written for name in source.exempt),
                    *((name, where) for name, where, declarations in by_name if not declarations),
                ]
            ),
        )

    def for_endpoint(
        self, endpoint: str, method: str, *, own: Iterable[Declaration], exempt: frozenset[Level], by_flask: bool
    ) -> tuple[Declaration, ...]:
        """The limits that apply to ``endpoint`` besides its ``own``, from those of the whole app to those of the
        endpoint.

        ``exempt`` as from :meth:`exempt_from`; ``by_flask`` as for :meth:`.Declaration.serves`.
        """
        blueprint = self._blueprint_limits(endpoint, exempt)
        configured = () if "configuration" in exempt else self._configured_for(endpoint)
        serving = [each for each in (*own, *configured, *blueprint) if each.serves(method, by_flask=by_flask)]
        wants_defaults = all(each.shadow for each in serving) or any(each.with_defaults for each in serving)
        default = self.default if wants_defaults and "default" not in exempt else ()
        application = () if "application" in exempt else self.application
        return (*application, *blueprint, *configured, *default)

    def exempt_from(self, endpoint: str, parts: Iterable[Any]) -> frozenset[Level]:
        """The levels that ``endpoint`` is exempt from: by the settings, any of the ``parts`` of its view
        (:func:`parts_of_view`), or a blueprint. A blueprint that is exempt from limits of blueprints keeps its own
        limits, and drops those of the blueprints around it."""
        if any(self._matches(name, endpoint) for name, _ in self.exempt.near(endpoint)):
            return LEVELS
        of_blueprints = (exempt_levels(each) - {"blueprint"} for each in self._blueprints_of(endpoint))
        return frozenset[Level]().union(*map(exempt_levels, parts), *of_blueprints)

    def for_unmatched(self) -> tuple[Declaration, ...]:
        """The limits of requests without an endpoint. Those of the app apply only if there are limits for such
        requests, and not only on trial."""
        return self.unmatched if all(each.shadow for each in self.unmatched) else (*self.application, *self.unmatched)

    def idle_by_name(self) -> list[str]:
        """A message for each limit and exemption by name, and each limit of a blueprint or the app, that is idle."""
        return [*self._unknown_names(), *self._unserved_methods()]

    def idle_blueprints(self) -> list[str]:
        """The names of blueprints with limits and without routes. An app with one of these may be right."""
        blueprints: Mapping[str, Any] = self.app.blueprints
        limited = [name for name, each in blueprints.items() if limits_of_blueprint(each)]
        return [name for name in limited if not any(each.startswith(f"{name}.") for each in self.app.view_functions)]

    def _unknown_names(self) -> list[str]:
        views = self.app.view_functions
        configured = ((name, declarations[0].where) for name, declarations in self.configured)
        return [
            f'{where}: no endpoint or blueprint is called "{name}" or matches it; `flask routes` lists the endpoints'
            for name, where in (*configured, *self.exempt)
            if name not in views and not any(self._matches(name, endpoint) for endpoint in views)
        ]

    def _unserved_methods(self) -> list[str]:
        blueprints: Mapping[str, Any] = self.app.blueprints
        of_blueprints = ((f"{name}.*", limits_of_blueprint(each)) for name, each in blueprints.items())
        return [
            f"{declared.where}: methods={sorted(declared.methods)}: its routes take only "
            f"{', '.join(sorted(taken))}; give it a method that they take"
            for name, declarations in (*self.configured, *of_blueprints, ("*", self._misspelled()))
            for declared in declarations
            if declared.methods is not None
            for taken in [self._methods_of(name)]
            if taken and not any(map(declared.serves, taken))
        ]

    def _misspelled(self) -> tuple[Declaration, ...]:
        """The limits of the whole app that name only unusual methods. One for POST, say, is right also while no route
        takes POST. Requests without a route may have any method."""
        declared = (each for each in (*self.application, *self.default) if each not in self.for_unmatched())
        return tuple(each for each in declared if each.methods is not None and each.methods.isdisjoint(METHODS))

    def _methods_of(self, name: str) -> set[str]:
        """What the routes take whose endpoints a name or pattern matches; empty if there is none, or one of them takes
        any method."""
        taken = [route.methods for route in self.app.url_map.iter_rules() if self._matches(name, route.endpoint)]
        return set[str]().union(*filter(None, taken)) if all(taken) else set()

    def _configured_for(self, endpoint: str) -> tuple[Declaration, ...]:
        found = (declarations for name, declarations in self.configured.near(endpoint) if self._matches(name, endpoint))
        return tuple(chain.from_iterable(found))

    def _blueprint_limits(self, endpoint: str, exempt: frozenset[Level]) -> tuple[Declaration, ...]:
        limits: list[Declaration] = []
        for blueprint in self._blueprints_of(endpoint):
            if "blueprint" in exempt_levels(blueprint):
                limits.clear()
            limits += limits_of_blueprint(blueprint)
        return () if "blueprint" in exempt else tuple(limits)

    def _blueprints_of(self, endpoint: str) -> list[Any]:
        """The blueprints around the endpoint, outermost first."""
        *paths, _ = names_of(endpoint)
        return [self.app.blueprints[path] for path in paths if path in self.app.blueprints]

    def _matches(self, name: str, endpoint: str) -> bool:
        if name in self.app.view_functions:
            return endpoint == name
        if name in self.app.blueprints:
            return endpoint.startswith(f"{name}.")
        return fnmatchcase(endpoint, name)


def declarations_from(given: Any, where: str) -> tuple[Declaration, ...]:
    """The limiters in a setting or a list of limits.

    Text or a :class:`Rule` is a limiter for everyone together; a mapping has the options of ``rate_limiter``, its type
    as text.
    """
    several = given if isinstance(given, (list, tuple)) else (given,)
    return tuple(_limiter_from(each, where).at(where) for each in several if each is not None)


def _by_name(limits: Any, where: str) -> list[tuple[str, str, tuple[Declaration, ...]]]:
    """For each name: where it is declared, and its limits; none if they are off."""
    check_mapping(where, limits, 'a dict such as {"api.*": "100/minute"}')
    return [
        (name, place, () if given == OFF else _limits_from(given, place))
        for name, given, place in ((name, given, f'{where}["{name}"]') for name, given in limits.items())
    ]


def _limits_from(given: Any, where: str) -> tuple[Declaration, ...]:
    declarations = _checked_together(where, declarations_from(given, where))
    if not declarations:
        raise ConfigurationError(f'{where}: no limit given; leave the name out, or give "{OFF}"')
    return declarations


def _limiter_from(given: Any, where: str) -> RateLimiter:
    if isinstance(given, RateLimiter):
        return given
    if isinstance(given, (str, Rule)):
        return rate_limiter(rules=given)
    from ..declare.data import limiter_options  # noqa: PLC0415 - few apps write limits as data

    return rate_limiter(**limiter_options(where, given))


def _checked_together(where: str, declarations: tuple[Declaration, ...]) -> tuple[Declaration, ...]:
    reject_shared_keys(where, ((each, each.stem) for each in declarations))
    warn_of_idle_rules(where, declarations, (), stacklevel=2)
    return declarations


def stack_on(parts: Iterable[Any]) -> Stack | None:
    """The limiters on all parts of a view (:func:`parts_of_view`)."""
    stacks = [stack for part in parts if (stack := declared_on(part)) is not None]
    if len(stacks) < 2:
        return stacks[0] if stacks else None
    return Stack(stacks[0].where, tuple(chain.from_iterable(stack.declarations for stack in stacks)))


def methods_of_handlers(view_class: type[View] | None) -> dict[Declaration, str]:
    """The limiters on the methods of a class-based view, and for each the methods that it serves, as keys name them.

    Limiters with ``methods`` or a scope of their own are left out.
    """
    if view_class is None:
        return {}
    served: dict[Declaration, list[str]] = {}
    for name in sorted(http_method_funcs):
        stack = declared_on(_handler(view_class, name)) if hasattr(view_class, name) else None
        for declaration in stack.declarations if stack else ():
            if declaration.methods is None and not declaration.scope_is_given:
                served.setdefault(declaration, []).append(name.upper())
    return {declaration: "+".join(methods) for declaration, methods in served.items()}


def limited_inside_view(view: Any) -> list[str]:
    """Where limiters are declared on functions that a view, or a method of its class, merely holds."""
    view_class = getattr(view, "view_class", None)
    if view_class is None:
        return limited_inside(view)
    handlers = [_handler(view_class, name) for name in sorted(http_method_funcs) if hasattr(view_class, name)]
    parts = [view_class.dispatch_request, *(each for each in handlers if each is not None)]
    return list(dict.fromkeys(where for part in parts for where in limited_inside(part)))


def parts_of_view(view: Any, view_class: type[View] | None, method: str) -> list[Any]:
    """The view function; for a class-based view, all functions that a request of ``method`` passes, and the class,
    outermost first."""
    if view_class is None:
        return [view]
    return [view, view_class, view_class.dispatch_request, _handler(view_class, method.lower())]


def class_of(view: Any) -> type[View] | None:
    """The class from which ``as_view`` made ``view``. A mock, which has every attribute, does not count as one."""
    found = (attributes_of(function).get("view_class") for function in functions_below(view))
    return next((each for each in found if isinstance(each, type) and issubclass(each, View)), None)


def _handler(view_class: Any, name: str) -> Any:
    """The handler of a method, with those of Flask-RESTful's ``method_decorators`` applied that are limiters."""
    if not issubclass(view_class, MethodView):
        return None
    handler: Any = getattr(view_class, name, None) or (getattr(view_class, "get", None) if name == "head" else None)
    decorators = getattr(view_class, "method_decorators", ())
    if isinstance(decorators, Mapping):
        decorators = decorators.get(name, ())
    for decorator in decorators if callable(handler) else ():
        if isinstance(decorator, RateLimiter):
            handler = decorator.on_method(handler)
    return handler
