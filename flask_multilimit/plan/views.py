"""Finds the limiters on a view; for a class-based view, also those on its class and on the method that serves."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from flask.views import MethodView, View, http_method_funcs

from ..declare.advice import Stack, declared_on, limited_inside
from ..declare.decorators import Level, RateLimiter, exempt_levels
from ..declare.limiter import Declaration
from ..declare.unwrap import attributes_of, functions_below


def view_stack(view: Any, method: str) -> Stack | None:
    """The limiters on a view together with those on the parts of a class-based view that serve ``method``."""
    stacks = [stack for part in _parts(view, method) if (stack := declared_on(part)) is not None]
    if len(stacks) < 2:
        return stacks[0] if stacks else None
    return Stack(stacks[0].where, tuple(chain.from_iterable(stack.declarations for stack in stacks)))


def methods_of_handlers(view: Any) -> dict[Declaration, str]:
    """The limiters on the methods of a class-based view, and for each the methods that it serves, as keys name them.

    Limiters with ``methods`` or a scope of their own are left out.
    """
    view_class = _class_of(view)
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
    """Where limiters are declared on functions that a view merely holds, or a method of its class."""
    view_class = getattr(view, "view_class", None)
    if view_class is None:
        return limited_inside(view)
    handlers = [_handler(view_class, name) for name in sorted(http_method_funcs) if hasattr(view_class, name)]
    parts = [view_class.dispatch_request, *(each for each in handlers if each is not None)]
    return list(dict.fromkeys(where for part in parts for where in limited_inside(part)))


def view_exemptions(view: Any, method: str) -> frozenset[Level]:
    """The levels that a view, its class or its method are exempt from."""
    return frozenset[Level]().union(*map(exempt_levels, _parts(view, method)))


def _parts(view: Any, method: str) -> list[Any]:
    """The view function; for a class-based view, all functions that a request passes, outermost first."""
    view_class = _class_of(view)
    if view_class is None:
        return [view]
    return [view, view_class, view_class.dispatch_request, _handler(view_class, method.lower())]


def _class_of(view: Any) -> type[View] | None:
    """The class from which ``as_view`` made ``view``. A mock, which has every attribute, does not count as one."""
    found = (attributes_of(function).get("view_class") for function in functions_below(view))
    return next((each for each in found if isinstance(each, type) and issubclass(each, View)), None)


def _handler(view_class: Any, name: str) -> Any:
    """The handler of a method, with our decorators among the ``method_decorators`` that flask-restful applies."""
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
