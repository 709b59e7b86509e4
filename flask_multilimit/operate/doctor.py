"""Finds problems with the limits of an app and with its storage, and says how to fix them."""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any
from uuid import uuid4

from redis.exceptions import RedisError
from werkzeug.middleware.proxy_fix import ProxyFix

from ..config import PREFIX
from ..control.store import DOCUMENT, RIGHTS_TO_CHANGE, RIGHTS_TO_FOLLOW
from ..declare.subjects import ANONYMOUS, LimitType
from ..engine import (
    Ban,
    ClusterStorage,
    ConfigurationError,
    Decision,
    Hit,
    Limiter,
    RedisStorage,
    Rule,
    StorageError,
    hits_for,
)
from ..engine.algorithms import ALGORITHMS
from ..engine.key_parts import parts_of_key
from ..engine.storage import KeepsTallies, LocalStorage
from ..engine.storage.layers.guard.workers import workers_asked_for
from ..engine.storage.redis.failures import code_of, storage_error
from ..engine.storage.redis.uri import address_of
from ..engine.threads import lets_threads_run, threads_run
from ..plan.views import limited_inside_view
from ..serve.gate import AppGate
from ..serve.steer import Steering, steering_of
from .console import duration, plural
from .listing import ListedEndpoint, endpoints_of, limiters_of, prefixes_of, stored_keys

PINGS = 8
MANY_ENDED = 100
"""So many ended entries in the control document deserve a hint."""
KEYS_LOOKED_AT = 1000
"""The most keys to look at to find out whom user limits have counted."""
SLOW = 0.010
"""A round trip of this many seconds slows requests down noticeably."""
CLOCK_TOLERANCE = 1.0
MANY_ENTRIES = 10_000
"""Freeing a key with this many entries at once takes noticeable time."""

OLDEST_SERVER = (5,)
"""Older servers do not let a script write after it has read the clock."""

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


class Severity(str, Enum):
    """How much a finding matters."""

    OK = "ok"
    HINT = "hint"
    """Nothing is wrong, but something could be better, or cannot be known from here."""
    WARNING = "warning"
    """Limits are enforced now, but perhaps not as intended."""
    WRONG = "wrong"
    """Limits are not enforced."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    level: Severity
    text: str
    remedy: str = ""


def examine(gate: AppGate) -> Iterator[Finding]:
    """Look at everything, in the order in which problems are best fixed."""
    try:
        endpoints = endpoints_of(gate)
    except ConfigurationError as error:
        endpoints = []
        yield Finding("declarations", Severity.WRONG, str(error), "Correct it. Until then, requests fail.")
    else:
        yield from _unknown_names(gate)
        yield from _declarations(gate, endpoints)
        yield from _hidden(gate, endpoints)
        yield from _addresses(gate)
        yield from _users(gate)
    yield _traffic(gate)
    yield from _control(gate)
    yield from _storage(gate, endpoints)


# The app


def _unknown_names(gate: AppGate) -> Iterator[Finding]:
    severity = Severity.WRONG if gate.settings.unknown_names == "error" else Severity.WARNING
    for problem in gate.plans.sources.unknown_names():
        yield Finding("names", severity, f"A limit applies to nothing. {problem}.", "Correct the name, or remove it.")


def _declarations(gate: AppGate, endpoints: list[ListedEndpoint]) -> Iterator[Finding]:
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
    if gate.app.extensions.get("limiter"):
        remedy = (
            f"This does not count limits of Flask-Limiter or its bridge: `flask limiter limits` lists them. {remedy}"
        )
    yield Finding("declarations", Severity.HINT, f"{text}, {len(open_)} without any limit: {names}.", remedy)


def _hidden(gate: AppGate, endpoints: list[ListedEndpoint]) -> Iterator[Finding]:
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


def _traffic(gate: AppGate) -> Finding:
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


def _control(gate: AppGate) -> Iterator[Finding]:
    steering = steering_of(gate.app)
    if not steering.enabled:
        text = f"{PREFIX}CONTROL or {PREFIX}ENABLED is False: limits cannot be changed while the app runs."
        yield Finding("control", Severity.HINT, text, "Leave the settings out to change limits without a deploy.")
    if not (steering.enabled and steering.control.shared):
        return
    try:
        entries, idle = steering.control.entries(), steering.control.idle()
    except StorageError as error:
        if not error.no_reply:  # otherwise the storage has a finding of its own
            yield _not_readable(error)
        return
    except ConfigurationError as error:
        text = f"The changes in the storage are not in force: {str(error).rstrip('.')}."
        yield Finding("control", Severity.WRONG, text, _LOOK_AT_IT)
        return
    if steering.control.problem is not None:
        text = f"The newest changes are not in force: {str(steering.control.problem).rstrip('.')}."
        yield Finding("control", Severity.WRONG, text, "Undo what does not fit: `flask multilimit unset`.")
    for each in entries:
        if each.id in idle:
            text = f"{each} ({each.id}) applies to nothing: its endpoint or rule is gone."
            yield Finding("control", Severity.WARNING, text, f"flask multilimit unset {each.id}")
    yield from _ended(steering, len(entries))


def _ended(steering: Steering, holding: int) -> Iterator[Finding]:
    ended = len(steering.watcher.in_force.document.entries) - holding
    if ended > MANY_ENDED:
        text = f"{ended} entries have ended, but are still in the document that each worker reads when it changes."
        yield Finding("control", Severity.HINT, text, "The next change removes them.")
        return
    text = f"{holding} changed while the app runs." if holding else "Nothing is changed: all limits are as declared."
    yield Finding("control", Severity.OK, text)


def _not_readable(error: StorageError) -> Finding:
    if isinstance(error.__cause__, RedisError) and code_of(error.__cause__) == "NOPERM":
        text = "The server's user may not read changes, so limits cannot be changed while the app runs."
        remedy = (
            f"Allow {RIGHTS_TO_FOLLOW}, and for people who change limits {RIGHTS_TO_CHANGE}; "
            f"or set {PREFIX}CONTROL=False."
        )
        return Finding("control", Severity.HINT, text, remedy)
    text = f"The changes in the storage cannot be read: {str(error).rstrip('.')}."
    return Finding("control", Severity.WRONG, text, _remedy(error, _LOOK_AT_IT))


_LOOK_AT_IT = (
    f"Update this process, or look at the key whose name ends in {DOCUMENT}: it is a hash, and its field `document` is "
    "JSON. To start over, delete the key."
)


def _limits_by(wanted: LimitType, gate: AppGate) -> bool:
    types = [listed.planned.declaration.type for listed in limiters_of(gate)]
    return any(wanted in type_ if isinstance(type_, tuple) else wanted is type_ for type_ in types)


# The storage


def _storage(gate: AppGate, endpoints: list[ListedEndpoint]) -> Iterator[Finding]:
    storage = gate.limiter.storage
    try:
        clients = _clients(storage)
    except StorageError as error:
        yield Finding("storage", Severity.WRONG, f"{str(error).rstrip('.')}.", _remedy(error, _FIX))
        return
    if not clients:
        yield from _in_this_process(storage)
        return
    if isinstance(storage, LocalStorage):
        yield _on_this_machine(storage)
    for client in clients:
        yield from _server(client, gate, endpoints)
    yield from _scripts(storage, gate)


def _on_this_machine(storage: LocalStorage) -> Finding:
    text = f"local://, one server for this user's processes on this machine that use {storage.directory}."
    return Finding("sharing", Severity.OK, f"{text} It ends with the last of them, and all quotas with it.")


def _in_this_process(storage: Any) -> Iterator[Finding]:
    if storage.shared:
        yield Finding("storage", Severity.OK, f"{type(storage).__name__}; this command knows nothing more about it.")
        return
    text = "memory://, in each process by itself, gone when it ends."
    remedy = f'For several workers: {PREFIX}STORAGE_URI = "local://"; or machines: "redis://localhost:6379/0".'
    workers = workers_asked_for(os.environ)
    if workers is not None and workers.count > 1:
        asked = f"{workers.source} asks for {workers.count} workers"
        text = f"{text} {asked}: each of them admits the whole of every limit."
        yield Finding("storage", Severity.WARNING, text, remedy)
    else:
        yield Finding("storage", Severity.HINT, text, remedy)


def _clients(storage: Any) -> list[Any]:
    """A client for each server that keeps quotas: one, or the primaries of a cluster. Raises :class:`StorageError`."""
    if isinstance(storage, ClusterStorage):
        return storage.clients
    client = getattr(storage, "client", None)
    return [] if client is None else [client]


def _server(client: Any, gate: AppGate, endpoints: list[ListedEndpoint]) -> Iterator[Finding]:
    address = address_of(client) or "the server"
    try:
        trips = [_timed(client.ping) for _ in range(PINGS)]
        info = _Info(client)
    except (RedisError, OSError) as error:
        yield _mute(address, error) if code_of(error) == "NOPERM" else _unreachable(address, error)
        return
    yield _version(address, info)
    yield _latency(trips, gate.settings.storage_timeout)
    yield _clock(client)
    if info["role"] == "slave":
        yield Finding(
            "role",
            Severity.WRONG,
            f"{address} is a replica: it takes no charges.",
            f"Point {PREFIX}STORAGE_URI at the primary.",
        )
    yield _eviction(info)
    yield _lazy_freeing(client, endpoints)
    if not isinstance(gate.limiter.storage, LocalStorage):
        yield _persistence(client, info)


def _mute(address: str, error: Exception) -> Finding:
    """For a server whose user may do what limits need, and nothing else."""
    text = f"{address} answers, but does not let this user look at it: {error}."
    return Finding("storage", Severity.HINT, text, "To look at everything, allow it +ping +info +config|get.")


def _unreachable(address: str, error: Exception) -> Finding:
    text = f"No answer from {address}: {type(error).__name__}: {error}"
    return Finding("storage", Severity.WRONG, text, _remedy(storage_error(error), _FIX))


class _Info:
    """INFO of a server; ``None`` for fields that it does not report."""

    def __init__(self, client: Any) -> None:
        self._fields: dict[str, Any] = client.info()

    def __getitem__(self, name: str) -> Any:
        return self._fields.get(name)


def _version(address: str, info: _Info) -> Finding:
    products = {"valkey_version": "Valkey", "dragonfly_version": "Dragonfly", "redis_version": "Redis"}
    field = next((field for field in products if info[field]), "redis_version")
    version = str(info[field] or "of unknown version")
    text = f"{products[field]} {version} at {address}."
    if field == "redis_version" and _numbers(version) and _numbers(version) < OLDEST_SERVER:
        return Finding("storage", Severity.WRONG, text, "Use Redis 6.2 or later, or Valkey.")
    return Finding("storage", Severity.OK, text)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _timed(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _latency(trips: list[float], timeout: float) -> Finding:
    """The finding on the times of ``trips``, of which the first had to connect."""
    median, slowest = statistics.median(trips[1:]), max(trips[1:])
    text = f"{_milliseconds(median)} a round trip, the slowest of {len(trips) - 1} {_milliseconds(slowest)}."
    remedy = "Every limited request takes one round trip: put the server nearer to the app."
    most, near = timeout / 2, f" {PREFIX}STORAGE_TIMEOUT is {timeout:g} s."
    if slowest > most:
        return Finding("latency", Severity.WARNING, text + near, remedy)
    if trips[0] > most:
        first = f" The first, which had to connect: {_milliseconds(trips[0])}."
        return Finding("latency", Severity.WARNING, text + first + near, "Leave more time to connect: set it higher.")
    return Finding("latency", Severity.HINT, text, remedy) if median > SLOW else Finding("latency", Severity.OK, text)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


def _clock(client: Any) -> Finding:
    """The finding on the server's clock, by the sample with the shortest round trip."""
    samples = []
    for _ in range(3):
        begin = time.time()
        seconds, microseconds = client.time()
        end = time.time()
        samples.append((end - begin, seconds + microseconds / 1_000_000 - (begin + end) / 2))
    ahead = min(samples)[1]
    text = f"The server's is {duration(abs(ahead))} {'ahead of' if ahead >= 0 else 'behind'} this machine's."
    if abs(ahead) < CLOCK_TOLERANCE:
        return Finding("clock", Severity.OK, text)
    return Finding(
        "clock",
        Severity.WARNING,
        f"{text} Limits hold all the same: only the server's clock counts. Dates in header fields are off.",
        "Run NTP on both.",
    )


def _eviction(info: _Info) -> Finding:
    policy, most = str(info["maxmemory_policy"] or ""), info["maxmemory"]
    evicted = int(info["evicted_keys"] or 0)
    if not policy or most is None:
        return Finding("eviction", Severity.HINT, "The server does not report its maxmemory-policy.", _KEEP_ALL)
    if not most:
        return Finding("eviction", Severity.OK, "No maxmemory: nothing is evicted.")
    if policy == "noeviction":
        return Finding("eviction", Severity.OK, "noeviction: a full server refuses to charge rather than forget.")
    which = "every key" if policy.startswith("allkeys") else "every key with a TTL, as all of ours have,"
    text = f"maxmemory-policy is {policy}: when memory is full, {which} may be dropped, and with it a limit."
    if evicted:
        text += f" {plural(evicted, 'key')} evicted since the server started."
    return Finding("eviction", Severity.WARNING, text, _KEEP_ALL)


_KEEP_ALL = "Give limits a server of their own with maxmemory-policy noeviction, and enough memory."


def _setting(client: Any, name: str) -> str | None:
    """The setting ``name``; ``None`` if the server does not know it, or does not reveal it, as is common with managed
    ones."""
    try:
        value = client.config_get(name).get(name)
    except RedisError:
        return None
    return None if value is None else str(value)


def _lazy_freeing(client: Any, endpoints: list[ListedEndpoint]) -> Finding:
    most = max((rule.count for rule in _logged(endpoints)), default=0)
    if most < MANY_ENTRIES:
        return Finding(
            "lazy freeing",
            Severity.OK,
            f"Not needed: no key holds more than {plural(most, 'entry', 'entries')}.",
        )
    setting = _setting(client, "lazyfree-lazy-expire")
    text = f"A key of yours can hold {most} entries, and lazyfree-lazy-expire is {setting or 'not known'}."
    if setting == "yes":
        return Finding("lazy freeing", Severity.OK, text)
    return Finding(
        "lazy freeing",
        Severity.HINT,
        f"{text} When it expires, the server blocks while it frees them.",
        "CONFIG SET lazyfree-lazy-expire yes; or an algorithm that keeps a number, such as sliding_window_counter.",
    )


def _logged(endpoints: list[ListedEndpoint]) -> Iterator[Rule]:
    for endpoint in endpoints:
        for listed in endpoint.limiters:
            yield from (rule for _, rule in listed.planned.rules if rule.algorithm == "sliding_window")


def _persistence(client: Any, info: _Info) -> Finding:
    if info["rdb_last_bgsave_status"] == "err" and _setting(client, "stop-writes-on-bgsave-error") != "no":
        return Finding(
            "persistence",
            Severity.WRONG,
            "The last snapshot failed, so the server refuses writes, and with them charges.",
            "Look at its disk and its log; or CONFIG SET stop-writes-on-bgsave-error no.",
        )
    if info["aof_enabled"]:
        return Finding("persistence", Severity.OK, "Append-only file: a restart keeps the limits.")
    if _setting(client, "save"):
        return Finding("persistence", Severity.OK, "Snapshots: a restart forgets what was charged since the last.")
    return Finding(
        "persistence",
        Severity.HINT,
        "None, or not known: after a restart of the server, every quota is full.",
        "Long windows (days) deserve appendonly yes; short ones hardly need it.",
    )


def _scripts(storage: Any, gate: AppGate) -> Iterator[Finding]:
    """Check every algorithm on keys of our own, and delete them."""
    limiter = Limiter(storage if isinstance(storage, ClusterStorage) else RedisStorage(storage.client))
    rules = [Rule(60, 10, algorithm=algorithm, name=algorithm) for algorithm in ALGORITHMS]
    prefix = gate.settings.key_prefix
    hits = hits_for(rules, scope="flask_multilimit.operate.doctor", subject=uuid4().hex, prefix=prefix, ban=Ban())
    try:
        checked, peeked = limiter.check(hits), limiter.peek(hits)
        limiter.reset(hits)
        after = limiter.peek(hits)
    except StorageError as error:
        if type(error.__cause__).__name__ not in {"ConnectionError", "TimeoutError", "AuthenticationError"}:
            yield Finding("script", Severity.WRONG, str(error), _remedy(error, _ASK_US))
        return
    if _is_right(hits, checked, peeked, after):
        text = f"Loads and runs: {len(rules)} rules checked, charged and reset, one of each algorithm, and a ban."
        yield Finding("script", Severity.OK, text)
    else:
        yield Finding("script", Severity.WRONG, "It runs, but some of what it wrote was missing afterwards.", _ASK_US)


_FIX = "Fix the problem reported above. Until then, each process limits by itself."
_ASK_US = "The server may imitate Redis, or answer from a replica. Use the primary of a Redis or Valkey."


def _is_right(hits: tuple[Hit, ...], checked: Decision, peeked: Decision, after: Decision) -> bool:
    whole = [hit.rule.quota.burst for hit in hits if hit.cost]
    left = [status.remaining for status in checked.statuses]
    return (
        checked.allowed
        and left == [units - 1 for units in whole]
        and [status.remaining for status in peeked.statuses] == left
        and [status.remaining for status in after.statuses] == whole
    )


def _remedy(error: StorageError, otherwise: str) -> str:
    return f"{error.remedy[:1].upper()}{error.remedy[1:]}." if error.remedy else otherwise
