"""Whether the limits of an app are those that its developer means."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from werkzeug.middleware.proxy_fix import ProxyFix

from ...config import PREFIX
from ...declare.subjects import ANONYMOUS, LimitType
from ...engine import StorageError
from ...engine.keys import parts_of_key
from ...insight.keys import prefixes_of, stored_keys
from ...insight.limits import Place, limiters_of
from ...insight.text import plural
from ...plan.sources import limited_inside_view
from ...serve.gate import AppGate
from .findings import Finding, Severity

KEYS_LOOKED_AT = 1000
"""The most keys to look at to find out whom user limits have counted."""
PROXY_HINTS = {
    "DYNO": "Heroku",
    "FLY_APP_NAME": "Fly.io",
    "K_SERVICE": "Cloud Run",
    "KUBERNETES_SERVICE_HOST": "Kubernetes",
    "RAILWAY_ENVIRONMENT": "Railway",
    "RENDER": "Render",
    "VERCEL": "Vercel",
    "WEBSITE_SITE_NAME": "Azure App Service",
    "FORWARDED_ALLOW_IPS": "a server that is told to trust a proxy",
}
"""Environment variables that suggest a proxy in front of the app."""


def examine_app(gate: AppGate, endpoints: list[Place]) -> Iterator[Finding]:
    yield from _unknown_names(gate)
    yield from _declarations(gate, endpoints)
    yield from _hidden(gate, endpoints)
    yield from _addresses(gate)
    yield from _users(gate)


def _unknown_names(gate: AppGate) -> Iterator[Finding]:
    severity = Severity.WRONG if gate.settings.unknown_names == "error" else Severity.WARNING
    for problem in gate.plans.sources.unknown_names():
        yield Finding("names", severity, f"A limit applies to nothing. {problem}.", "Correct the name, or remove it.")


def _declarations(gate: AppGate, endpoints: list[Place]) -> Iterator[Finding]:
    if not gate.settings.enabled:
        yield Finding(
            "enabled",
            Severity.WARNING,
            f"{PREFIX}ENABLED is False: nothing is limited.",
            "Leave the setting out in production.",
        )
    unlimited = [endpoint for endpoint in endpoints if not endpoint.limiters]
    open_ = [endpoint.name for endpoint in unlimited if not endpoint.exempt]
    exempt = len(unlimited) - len(open_)
    text = f"{plural(len(endpoints) - len(unlimited), 'endpoint')} limited{f', {exempt} exempt' if exempt else ''}"
    if not open_:
        yield Finding("declarations", Severity.OK, f"{text}, none{' else' if exempt else ''} without limits.")
        return
    names = ", ".join(open_[:5]) + (f" and {len(open_) - 5} more" if len(open_) > 5 else "")
    remedy = f"If not intended, set {PREFIX}DEFAULT_LIMITS; `flask multilimit limits` lists all."
    if gate.app.extensions.get("limiter") and not gate.listings:
        remedy = f"This does not count limits of Flask-Limiter: `flask limiter limits` lists them. {remedy}"
    yield Finding("declarations", Severity.HINT, f"{text}, {len(open_)} without any limit: {names}.", remedy)


def _hidden(gate: AppGate, endpoints: list[Place]) -> Iterator[Finding]:
    views = gate.app.view_functions
    found = {each.name: limited_inside_view(views[each.name]) for each in endpoints if each.name in views}
    told = [f"{name} ({', '.join(inside)})" for name, inside in found.items() if inside]
    if not told:
        return
    names = ", ".join(told[:5]) + (f" and {len(told) - 5} more" if len(told) > 5 else "")
    yield Finding(
        "hidden",
        Severity.HINT,
        f"Views that hold a limited function: {names}. Its limits count under its own name, and are not those of the "
        "endpoint.",
        "If the function is the view itself, a decorator above its limiter does not tell what it wraps: add "
        "functools.wraps to that decorator, or put the limiter above it. If it is a service, nothing is wrong.",
    )


def _addresses(gate: AppGate) -> Iterator[Finding]:
    if not _limits_by(LimitType.IP, gate):
        return
    fix = _proxy_fix(gate.app.wsgi_app)
    if fix is not None and fix.x_for:
        yield Finding(
            "addresses",
            Severity.OK,
            f"ProxyFix takes the client's address from {plural(fix.x_for, 'proxy', 'proxies')}.",
        )
        return
    what = "ProxyFix is there, but with x_for=0" if fix is not None else "IP limits, and no ProxyFix"
    remedy = (
        "Behind a proxy: app.wsgi_app = ProxyFix(app.wsgi_app, x_for=1), with the number of proxies; see the page "
        '"Know the client behind a proxy". Without a proxy, there is nothing to do.'
    )
    hints = [f"{name} ({platform})" for name, platform in PROXY_HINTS.items() if os.environ.get(name)]
    if hints or fix is not None:
        seen = f" {', '.join(hints)} is set, so there is likely a proxy." if hints else ""
        yield Finding(
            "addresses", Severity.WARNING, f"{what}.{seen} All clients would share the proxy's quota.", remedy
        )
    else:
        yield Finding(
            "addresses", Severity.HINT, f"{what}. Whether a proxy stands in front cannot be seen here.", remedy
        )


def _proxy_fix(wsgi_app: Any) -> ProxyFix | None:
    """The ProxyFix, also inside other middleware that keeps what it wraps in ``app`` or ``wsgi_app``."""
    for _ in range(20):
        if isinstance(wsgi_app, ProxyFix):
            return wsgi_app
        wsgi_app = getattr(wsgi_app, "app", None) or getattr(wsgi_app, "wsgi_app", None)
    return None


def _users(gate: AppGate) -> Iterator[Finding]:
    if not _limits_by(LimitType.USER, gate):
        return
    if _saw_only_anonymous(gate):
        yield Finding(
            "users",
            Severity.WARNING,
            "User limits have counted requests, and none of them was made by a known user.",
            "If users were logged in: find them in a before_request function or in the user_loader itself, or put "
            '@rate_limiter below the decorator that finds them; see the page "Limit users".',
        )
        return
    nobody = "by address" if gate.settings.anonymous_user == "ip" else "together, in one quota"
    yield Finding("users", Severity.OK, f"There is a way to know the user. Clients without a login count {nobody}.")


def _saw_only_anonymous(gate: AppGate) -> bool:
    """Whether the quotas in storage are of clients without a login only, as far as can be seen."""
    try:
        keys = stored_keys(gate, prefixes_of(gate), KEYS_LOOKED_AT)
    except StorageError:  # another finding reports it, if it matters: listing keys may not be allowed
        return False
    types = {parts.type for each in keys if (parts := parts_of_key(each.key)) is not None}
    return ANONYMOUS in types and LimitType.USER.value not in types


def _limits_by(wanted: LimitType, gate: AppGate) -> bool:
    types = [listed.planned.declaration.type for listed in limiters_of(gate)]
    return any(wanted in type_ if isinstance(type_, tuple) else wanted is type_ for type_ in types)
