"""Whether limits are as their developer means them: declared, counted where people see it, and changed as asked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from redis.exceptions import RedisError
from werkzeug.middleware.proxy_fix import ProxyFix

from ...config import PREFIX
from ...control.store import DOCUMENT
from ...declare.subjects import ANONYMOUS, LimitType
from ...engine import ConfigurationError, StorageError
from ...engine.keys import parts_of_key
from ...engine.storage import KeepsTallies
from ...engine.storage.redis.failures import RIGHTS_OF_WORKERS, code_of
from ...engine.threads import lets_threads_run, threads_run
from ...insight.health import forgets_changes
from ...insight.keys import prefixes_of, stored_keys
from ...insight.limits import Place, limiters_of
from ...insight.text import plural
from ...insight.workers import workers
from ...plan.sources import limited_inside_view
from ...serve.applier import ControlApplier, applier_of
from ...serve.gate import AppGate
from . import Finding, Severity, remedy_for

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


def examine_traffic(gate: AppGate) -> Finding:
    if not gate.settings.traffic:
        text = f"{PREFIX}TRAFFIC is False: nobody can see who is refused."
        return Finding("traffic", Severity.HINT, text, "Leave the setting out, unless you count by other means.")
    if not isinstance(gate.limiter.storage, KeepsTallies):
        text = f"A {type(gate.limiter.storage).__name__} keeps no traffic: it has no methods tally and tallies."
        return Finding("traffic", Severity.HINT, text, "`flask multilimit top` shows nothing; the log does.")
    uwsgi = {_uwsgi_option(name): value for name, value in os.environ.items() if name.startswith("UWSGI_")}
    if not threads_run() or (uwsgi and not lets_threads_run(uwsgi)):
        text = "uWSGI seems to run no threads: traffic is flushed only while requests are served."
        return Finding("traffic", Severity.WARNING, text, "Start uWSGI with enable-threads.")
    return Finding("traffic", Severity.OK, "Counted in each process, and kept in the storage for an hour.")


def _uwsgi_option(variable: str) -> str:
    return variable.removeprefix("UWSGI_").lower().replace("_", "-")


MANY_ENDED = 100
"""So many ended entries in the control document deserve a hint."""


def examine_control(gate: AppGate) -> Iterator[Finding]:
    applier = applier_of(gate.app)
    if not applier.enabled:
        text = f"{PREFIX}CONTROL or {PREFIX}ENABLED is False: limits cannot be changed while the app runs."
        yield Finding("control", Severity.HINT, text, "Leave the settings out to change limits without a deploy.")
    if not (applier.enabled and applier.control.shared):
        return
    try:
        entries, idle = applier.control.entries(), applier.control.idle()
    except StorageError as error:
        if not error.no_reply:  # otherwise the storage has a finding of its own
            yield _not_readable(error)
        return
    except ConfigurationError as error:
        text = f"The changes in the storage are not in force: {str(error).rstrip('.')}."
        yield Finding("control", Severity.WRONG, text, _LOOK_AT_IT)
        return
    if applier.control.problem is not None:
        text = f"The newest changes are not in force: {str(applier.control.problem).rstrip('.')}."
        yield Finding("control", Severity.WRONG, text, "Undo what does not fit: `flask multilimit unset`.")
    for each in entries:
        if each.id in idle:
            text = f"{each} ({each.id}) applies to nothing: its endpoint or rule is gone."
            yield Finding("control", Severity.WARNING, text, f"flask multilimit unset {each.id}")
    found = workers(gate)
    if found is not None:
        severity = Severity.OK if found.agree else Severity.WARNING
        yield Finding("workers", severity, f"{found}.", "" if found.agree else _RESTART)
    if entries and forgets_changes(gate):
        text = "The server keeps nothing on disk: with it and all workers, the changes in force would end."
        yield Finding("control", Severity.WARNING, text, "Set appendonly yes on the server.")
    yield from _ended(applier, len(entries))


def _ended(applier: ControlApplier, holding: int) -> Iterator[Finding]:
    ended = len(applier.follower.in_force.document.entries) - holding
    if ended > MANY_ENDED:
        text = f"{ended} entries have ended, but are still in the document that each worker reads when it changes."
        yield Finding("control", Severity.HINT, text, "The next change removes them.")
        return
    text = f"{holding} changed while the app runs." if holding else "Nothing is changed: all limits are as declared."
    yield Finding("control", Severity.OK, text)


def _not_readable(error: StorageError) -> Finding:
    if isinstance(error.__cause__, RedisError) and code_of(error.__cause__) == "NOPERM":
        text = "The server's user may not read changes, so limits cannot be changed while the app runs."
        return Finding("control", Severity.HINT, text, f"Allow {RIGHTS_OF_WORKERS}; or set {PREFIX}CONTROL=False.")
    text = f"The changes in the storage cannot be read: {str(error).rstrip('.')}."
    return Finding("control", Severity.WRONG, text, remedy_for(error, _LOOK_AT_IT))


_RESTART = "Restart the workers that are behind. After a deploy by HUP: no --preload, no import in gunicorn.conf.py."
_LOOK_AT_IT = (
    f"Update this process, or look at the key whose name ends in {DOCUMENT}: it is a hash, and its field `document` is "
    "JSON. To start over, delete the key."
)
