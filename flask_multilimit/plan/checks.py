"""Finds mistakes in plans whose limiters are each valid by themselves, and limiters that would never run."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from types import FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ReferenceType

from blinker import Signal
from blinker import signal as signal_by_name
from flask import Flask

from .. import signals
from ..declare.advice import declared_on, limiter_above, mark_registered
from ..declare.limiter import Declaration
from ..declare.subjects import SubjectType, parts_of, spelled, type_name_of, types_in
from ..declare.unwrap import attributes_of, closed_over, functions_below, is_function, slots_of
from ..engine import ConfigurationError, Limiter, Rule
from ..engine.algorithms import SHIPPED
from ..engine.slots import require_slots
from ..engine.storage import Scripted
from ..engine.storage.redis.scripts import library
from .endpoint import Plan


def reject_unserved(plans: Mapping[tuple[str, str], Plan]) -> None:
    """Raise :class:`ConfigurationError` for a decorator that would limit nothing, because no route of its view takes
    any of its ``methods``. ``plans`` are those of all endpoints, by endpoint and method."""
    serving = {limiter.declaration for plan in plans.values() for limiter in plan.limiters}
    for (endpoint, _), plan in plans.items():
        for declared in plan.stack.declarations if plan.stack else ():
            if declared not in serving:
                taken = ", ".join(sorted(method for other, method in plans if other == endpoint))
                raise ConfigurationError(
                    f'limiter on "{endpoint}": methods={sorted(declared.methods or ())}: its routes take only {taken}, '
                    "so nothing would be limited; give it a method that they take"
                )


def reject_unstorable_plans(plans: Iterable[Plan], limiter: Limiter) -> None:
    """As :func:`reject_unstorable`, for the rules of ``plans``."""
    for planned in (planned for plan in plans for planned in plan.limiters):
        declared = planned.declaration
        try:
            reject_unstorable((*(rule for _, rule in planned.rules), *(declared.fallback or ())), limiter)
        except ConfigurationError as error:
            raise ConfigurationError(f'limiter on "{declared.where}": {error}') from None


def reject_unstorable(rules: Iterable[Rule], limiter: Limiter) -> None:
    """Raise :class:`ConfigurationError` for rules that need slots or Lua, and the storage of ``limiter`` has none."""
    for rule in rules:
        if rule.holds_slots:
            require_slots(limiter.outermost)
        if rule.implementation not in SHIPPED and isinstance(limiter.storage, Scripted):
            library([rule.algorithm])


def reject_mixed(plans: Iterable[Plan]) -> None:
    """Raise :class:`ConfigurationError` if limiters that share a quota do not count it alike."""
    types: dict[tuple[str, str], tuple[str, Declaration]] = {}
    rules: dict[tuple[str, str, str], tuple[str, Rule]] = {}
    for plan in plans:
        for limiter in plan.limiters:
            declared = limiter.declaration
            counted = (limiter.stem, declared.type_name)
            _reject_mixed_type(plan.scope, declared, *types.setdefault(counted, (plan.scope, declared)))
            for _, rule in limiter.rules:
                first = rules.setdefault((*counted, rule.key_part), (plan.scope, rule))
                _reject_mixed_lease(plan.scope, rule, *first)


def _reject_mixed_lease(scope: str, rule: Rule, where: str, other: Rule) -> None:
    """Raise :class:`ConfigurationError` if only one of two rules that share a key has a lease and so counts longer: the
    other would not see all that the first one has just admitted."""
    if other.quota.window != rule.quota.window:
        raise ConfigurationError(
            f'limiter on "{scope}": Rule({rule}) shares a key with Rule({other}) on "{where}", but only '
            "one of them has a lease, and counts longer for it; give both a lease, or none"
        )


def _reject_mixed_type(scope: str, declared: Declaration, where: str, other: Declaration) -> None:
    """Raise :class:`ConfigurationError` if only one of two limiters with one scope and one name counts several types
    together: a client that chooses the subject of the other could send what is the subject of somebody else there."""
    if isinstance(declared.type, tuple) != isinstance(other.type, tuple):
        raise ConfigurationError(
            f'limiter on "{scope}": the {declared} shares its scope and its name with the {other} on '
            f'"{where}", but only one of them counts several types together; give one of them another name'
        )


def reject_mixed_check(declared: Declaration, others: Iterable[tuple[Declaration, str]]) -> None:
    """As :func:`reject_mixed`, for the limiter of a check, and ``others`` of its scope, with their endpoints."""
    for other, where in others:
        if other.type_name == declared.type_name:
            _reject_mixed_type(declared.where, declared, where, other)


def counted_together(declared: Declaration, others: Iterable[tuple[Declaration, str]]) -> Declaration:
    """``declared``, the limiter of given subjects, with its types in the order in which one of ``others`` of its scope
    counts them. Raises :class:`ConfigurationError` if one counts them only together with further ones, or has another
    spelling of a type."""
    parts = parts_of(declared.type, declared.name)
    named = [(parts_of(other.type, other.name), other, where) for other, where in others]
    _reject_other_spelling(declared.where, parts, {name for names, _, _ in named for name in names})
    given, alike = dict(zip(parts, types_in(declared.type), strict=True)), list[SubjectType]()
    for names, other, _ in named:
        if set(names) == set(parts):
            type_ = tuple(given[name] for name in names) if isinstance(other.type, tuple) else given[names[0]]
            if type_name_of(type_, declared.name) == other.type_name:
                alike.append(type_)
    if alike:
        return declared if declared.type in alike else replace(declared, type=alike[0])
    for names, _, where in named:
        if set(names) > set(parts):
            further = " and ".join(name for name in names if name not in parts)
            raise ConfigurationError(
                f'limiter on "{declared.where}": "{where}" counts {" and ".join(parts)} only together with {further}; '
                f"give subject={spelled(names)}, or another scope"
            )
    return declared


def _reject_other_spelling(where: str, parts: Iterable[str], known: Collection[str]) -> None:
    """Raise :class:`ConfigurationError` for a part that is ``known`` in other case, or with ``_`` for ``-``."""
    spellings = {name.lower().replace("-", "_"): name for name in known}
    for part in parts:
        meant = spellings.get(part.lower().replace("-", "_"), part)
        if part not in known and meant != part:
            raise ConfigurationError(
                f'limiter on "{where}": no limiter of its scope counts {part}; did you mean "{meant}:..."?'
            )


def reject_accidental_sharing(plans: Mapping[tuple[str, str], Plan]) -> None:
    """Raise :class:`ConfigurationError` if two limiters of an endpoint that apply to different methods would share a
    counter by accident. ``plans`` are those of all endpoints, by endpoint and method."""
    found: dict[tuple[object, ...], dict[Declaration, tuple[Rule, list[str]]]] = {}
    for (endpoint, method), plan in plans.items():
        for planned in plan.limiters:
            for _, rule in planned.rules:
                counted = (endpoint, planned.stem, planned.declaration.type_name, rule.key_part)
                sharing = found.setdefault(counted, {})
                sharing.setdefault(planned.declaration, (rule, []))[1].append(method)
    for (at, *_), sharing in found.items():
        (first, (rule, methods)), *others = sharing.items()
        for other, (other_rule, other_methods) in others:
            if set(methods) != set(other_methods) and not (first.scope_is_given and other.scope_is_given):
                raise ConfigurationError(
                    f'limiter on "{at}": Rule({other_rule}) of the {other} (on {other.where}) applies to '
                    f"{', '.join(other_methods)}, and Rule({rule}) of the {first} (on {first.where}) to "
                    f"{', '.join(methods)}; both would count in one key; give one of them methods= or a scope"
                )


_HOOKS = {
    "before_request_funcs": "before_request",
    "after_request_funcs": "after_request",
    "teardown_request_funcs": "teardown_request",
    "teardown_appcontext_funcs": "teardown_appcontext",
    "error_handler_spec": "errorhandler",
    "template_context_processors": "context_processor",
    "shell_context_processors": "shell_context_processor",
    "url_value_preprocessors": "url_value_preprocessor",
    "url_default_functions": "url_defaults",
}
"""The registries of an app, and the decorators that fill them."""
_TOO_LATE = ("after_request_funcs", "teardown_request_funcs", "teardown_appcontext_funcs")
"""The registries of functions that run when the response is made, so that a refusal would be a server error."""
_TEMPLATES = {"filters": "template_filter", "tests": "template_test", "globals": "template_global"}
"""The same for its Jinja environment."""
_NO_EXTENSIONS = {"builtins", "flask", "werkzeug", "jinja2", "click", "logging", __name__.partition(".")[0]}
"""Packages whose objects an app has without extensions."""
_NOT_SEARCHED = (FunctionType, MethodType, type, ModuleType, Flask)
"""Objects whose attributes are not searched. Those of an app are registries of their own."""
_DEEPEST = 7
"""How many attributes and containers deep a registry is searched. Flask-APScheduler needs as many."""
_MOST_VALUES = 2000
"""The most values that are looked at in one registry."""
_MOST_IN_HELD = 50
"""The same in an object that decorators of views hold: each view may have another one."""


def reject_misplaced(app: Flask, user_loader: object) -> None:
    """Raise :class:`ConfigurationError` if a limiter stands above a decorator that has registered the function with
    ``app``, one of its extensions, or a signal, or as the ``user_loader``."""
    registries = chain([(("", "@multilimit.user_loader"), [user_loader])], _registries_of(app))
    registered = [(named, each) for named, registry in registries for each in _functions_in(registry)]
    for _, function in registered:
        mark_registered(function)
    for (place, decorator), function in registered:
        where = limiter_above(function)
        if where is not None:
            raise ConfigurationError(
                f'limiter on "{place or where}": @rate_limiter stands above {decorator}, which has the function '
                f"without it, so nothing would be limited; put {decorator} on top"
            )


def reject_late(app: Flask) -> None:
    """Raise :class:`ConfigurationError` if a limited function runs when nothing can be refused any more."""
    for attribute in _TOO_LATE:
        given = getattr(app, attribute)
        for function in chain.from_iterable(given.values()) if isinstance(given, dict) else given:
            stack = declared_on(function)
            if stack is not None:
                raise ConfigurationError(
                    f'limiter on "{stack.where}": @app.{_HOOKS[attribute]} calls it when the response is made, and a '
                    "refusal would be a server error; put the limiter on the view, or on a before_request function"
                )


def _registries_of(app: Flask) -> Iterator[tuple[tuple[str, str], object]]:
    """Each registry, and before it, for messages, its endpoint if it has one, and the decorator that fills it."""
    for endpoint in {rule.endpoint: None for rule in app.url_map.iter_rules()}:
        yield (endpoint, "@app.route"), [app.view_functions.get(endpoint)]
    hooks = {attribute: registry for attribute in _HOOKS if (registry := list(_called_in(getattr(app, attribute))))}
    for attribute, registry in hooks.items():
        yield ("", f"@app.{_HOOKS[attribute]}"), registry
    if "jinja_env" in vars(app):  # otherwise, reading the attribute would make it
        for attribute, decorator in _TEMPLATES.items():
            yield ("", f"@app.{decorator}"), getattr(app.jinja_env, attribute)
    called = [each for registry in hooks.values() for each in _functions_in(registry)]
    owners = [each.__self__ for each in called if isinstance(each, MethodType)]  # Dash is found in no other way
    own_package = app.import_name.partition(".")[0]
    owners = [each for each in owners if _package_of(each) != own_package]
    candidates = {id(each): each for each in (*app.extensions.values(), *vars(app).values(), *owners)}
    extensions = [each for each in candidates.values() if _package_of(each)]
    for extension in extensions:
        yield ("", f"the decorator of {type(extension).__name__}"), extension
    held = {id(each): each for view in app.view_functions.values() for each in _held_by(view)}
    for each in held.values():
        if id(each) not in candidates and _package_of(each) not in {"", own_package}:
            yield ("", f"the decorator of {type(each).__name__}"), list(_functions_in(each, most=_MOST_IN_HELD))
    modules = {"flask.signals", signals.__name__, *map(_package_of, extensions)} & set(sys.modules)
    for signal in _signals_with_receivers(_NAMED_SIGNALS, *(vars(sys.modules[name]) for name in modules)):
        connected = list(signal.receivers.values())  # at any moment, one that is dropped leaves the signal
        receivers = [each() if isinstance(each, ReferenceType) else each for each in connected]
        yield ("", f'the decorator of the signal "{getattr(signal, "name", "")}"'), receivers


_NAMED_SIGNALS: dict[str, Any] = signal_by_name.__self__  # type: ignore[attr-defined]
"""The signals that ``blinker.signal`` has made; before blinker 1.8 this namespace had no public name."""


def _held_by(view: object) -> Iterator[object]:
    """The objects that decorators of ``view`` hold: Flask-HTTPAuth is found in no other way."""
    *wrappers, _ = functions_below(view)
    for wrapper in wrappers:
        if type(wrapper) is FunctionType:
            yield from closed_over(wrapper)


def _package_of(extension: object) -> str:
    """The package of an extension; empty if it is none."""
    package = type(extension).__module__.partition(".")[0]
    return "" if package in _NO_EXTENSIONS or not attributes_of(extension) else package


def _signals_with_receivers(*namespaces: dict[str, Any]) -> Iterable[Signal]:
    found = [each for namespace in namespaces for each in list(namespace.values()) if issubclass(type(each), Signal)]
    return dict.fromkeys(each for each in found if each.receivers)


def _called_in(registry: object) -> Iterator[object]:
    """What Flask calls, of the lists and dicts in a registry of hooks: any callable object."""
    if isinstance(registry, (dict, list)):
        for each in registry.values() if isinstance(registry, dict) else registry:
            yield from _called_in(each)
    else:
        yield registry


def _functions_in(registry: object, *, most: int = _MOST_VALUES) -> Iterator[object]:
    """The functions in a container or an object, the nearest first; of a list, all that can be called."""
    pending = deque([(registry, 0)])
    seen: set[int] = set()
    while pending and len(seen) < most:
        value, depth = pending.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if is_function(value) or (depth == 1 and type(registry) is list and callable(value)):
            yield value
        if depth < _DEEPEST and not issubclass(type(value), _NOT_SEARCHED):
            pending += [(each, depth + 1) for each in _parts_of(value)]


def _parts_of(value: object) -> Iterable[object]:
    kind = type(value)  # isinstance() would ask a proxy for its object
    if issubclass(kind, dict):
        return list(value.values())  # type: ignore[attr-defined]
    if issubclass(kind, (list, tuple, set, frozenset)):
        return list(value)  # type: ignore[call-overload,no-any-return]
    return [*attributes_of(value).values(), *slots_of(value)]
