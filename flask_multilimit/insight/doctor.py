"""What is wrong with the limits of an app and with its storage, how much each finding matters, and how to fix it."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from redis.exceptions import RedisError
from werkzeug.middleware.proxy_fix import ProxyFix

from ..config import PREFIX
from ..control.entries import are_half
from ..control.store import DOCUMENT, WORKERS
from ..declare.addresses import Network, Who
from ..declare.subjects import ANONYMOUS, LimitType, Subject, types_in
from ..declare.unwrap import name_of
from ..engine import (
    Ban,
    Calendar,
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
from ..engine.algorithms import ALGORITHMS, SHIPPED
from ..engine.keys import parts_of_key
from ..engine.storage import LocalStorage, Scripted
from ..engine.storage.layers.health import workers_asked_for
from ..engine.storage.redis.failures import FAILURES, IN_A_SCRIPT, RIGHTS_OF_WORKERS, code_of, storage_error
from ..engine.storage.redis.uri import address_of
from ..plan.sources import limited_inside_view
from ..serve.access import Action
from ..serve.gate import AppGate
from ..serve.refusal import RateLimitExceeded
from .changes import document_in_force, idle_of
from .health import clients_of, forgets_changes, kept_on_disk, known_worker_count, require_charges, workers
from .keys import prefixes_of, stored_keys
from .limits import Place, limiters_of, places_of, without_share
from .text import duration, plural
from .traffic import why_not_counted
from .values import Described

FIX = "Fix the problem reported above. Until then, each process limits by itself."
"""The remedy for a storage that does not answer."""

Level = Literal["ok", "hint", "warning", "wrong"]
"""``hint``: nothing is wrong, but something could be better, or cannot be known from here. ``warning``: limits are
enforced now, but perhaps not as intended. ``wrong``: limits are not enforced."""


@dataclass(frozen=True, slots=True)
class Finding(Described):
    """The result of one check."""

    name: str
    level: Level
    text: str
    remedy: str | None = None


def examine(gate: AppGate) -> Iterator[Finding]:
    """Look at everything, in the order in which problems are best fixed."""
    try:
        gate.startup.check_declarations()
        endpoints = [place for place in places_of(gate) if place.routes]
    except ConfigurationError as error:  # all other checks need the limits
        yield Finding("declarations", "wrong", str(error), "Correct the declaration. Until then, requests fail.")
        return
    yield from _unknown_names(gate)
    yield from _declarations(gate, endpoints)
    yield from _hidden(gate, endpoints)
    yield from _handlers(gate)
    yield from _lists(gate)
    yield from _addresses(gate)
    yield from _users(gate)
    yield _examine_traffic(gate)
    yield from _examine_control(gate)
    yield from _examine_storage(gate, endpoints)


def _remedy_for(error: StorageError, otherwise: str) -> str:
    """The remedy that ``error`` knows, as a sentence."""
    return f"{error.remedy[:1].upper()}{error.remedy[1:]}." if error.remedy else otherwise


def _list_text(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# The app

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


def _unknown_names(gate: AppGate) -> Iterator[Finding]:
    level: Level = "wrong" if gate.settings.unknown_names == "error" else "warning"
    for problem in gate.plans.sources.idle_by_name():
        yield Finding("names", level, f"A limit applies to nothing. {problem}.", "Correct it, or remove it.")
    for name in gate.plans.sources.idle_blueprints():
        text = f'A limit applies to nothing. The blueprint "{name}" has no routes.'
        yield Finding("names", "warning", text, "Put the limiter where the routes are, or remove it.")


def _declarations(gate: AppGate, endpoints: list[Place]) -> Iterator[Finding]:
    if not gate.settings.enabled:
        text = f"{PREFIX}ENABLED is False: nothing is limited."
        yield Finding("enabled", "warning", text, "Leave the setting out in production.")
    unlimited = [endpoint for endpoint in endpoints if not endpoint.limiters]
    open_ = [endpoint.name for endpoint in unlimited if not endpoint.exempt]
    exempt = len(unlimited) - len(open_)
    text = f"{plural(len(endpoints) - len(unlimited), 'endpoint')} limited{f', {exempt} exempt' if exempt else ''}"
    if exempt and exempt == len(endpoints):
        remedy = f"If this is not intended, narrow {PREFIX}EXEMPT, or what calls exempt()."
        yield Finding("declarations", "warning", "Every endpoint is exempt from limits.", remedy)
        return
    if not open_:
        yield Finding("declarations", "ok", f"{text}, {'no others' if exempt else 'none'} without limits.")
        return
    remedy = f"If this is not intended, set {PREFIX}DEFAULT_LIMITS; `flask multilimit limits` lists all endpoints."
    if gate.app.extensions.get("limiter") and not gate.listings:
        remedy = f"This does not count limits of Flask-Limiter: `flask limiter limits` lists them. {remedy}"
    yield Finding("declarations", "hint", f"{text}, {len(open_)} without any limit: {_list_text(open_)}.", remedy)


def _hidden(gate: AppGate, endpoints: list[Place]) -> Iterator[Finding]:
    views = gate.app.view_functions
    found = {each.name: limited_inside_view(views[each.name]) for each in endpoints if each.name in views}
    holding = [f"{name} ({', '.join(inside)})" for name, inside in found.items() if inside]
    if holding:
        text = (
            f"Views that contain a limited function: {_list_text(holding)}. Its limits count under its own name, "
            "not under that of the endpoint."
        )
        remedy = (
            "If the function is the view itself, a decorator above its limiter hides it: add functools.wraps to "
            "that decorator, or put the limiter above it. If it is a service, nothing is wrong."
        )
        yield Finding("hidden", "hint", text, remedy)


def _handlers(gate: AppGate) -> Iterator[Finding]:
    classes, spec = RateLimitExceeded.__mro__, gate.app.error_handler_spec
    of_status = spec.get(None, {}).get(429, {})  # Flask prefers these to all others but those of the blueprint
    for by_code in spec.values():
        by_class = by_code.get(None, {})
        first = next((each for each in classes if each in by_class), None)
        if first is Exception and set(classes).isdisjoint(of_status | by_code.get(429, {})):
            text = f"The error handler {name_of(by_class[first])} for Exception gets refusals, too, and may answer 500."
            remedy = 'Unless it returns HTTP exceptions, see the page "Customize what a refused client sees".'
            yield Finding("handlers", "hint", text, remedy)


def _listed_networks(gate: AppGate) -> list[tuple[Network, Action, str]]:
    """Each network in a list, what is done with it, and where it is listed."""
    declared = () if gate.access is None else gate.access.declared
    listed: list[tuple[Who, Action, str]] = [(each.who, each.action, each.where) for each in declared]
    listed += [
        (each.who, "allow" if each.kind == "allow" else "deny", f"{each.kind} {each.id}")
        for each in document_in_force(gate).listings
    ]
    return [(who.network, action, where) for who, action, where in listed if who.network is not None]


def _lists(gate: AppGate) -> Iterator[Finding]:
    listed = _listed_networks(gate)
    kinds: tuple[tuple[str, Level, str], ...] = (
        ("allow", "warning", "exempt from all limits"),
        ("deny", "hint", "refused"),
    )
    for wanted, level, what in kinds:
        for version in (4, 6):
            found = [
                (network, where) for network, action, where in listed if (action, network.version) == (wanted, version)
            ]
            if are_half((network for network, _ in found), version):
                found.sort(key=lambda each: each[0].prefixlen)
                names = _list_text([f"{network} ({where})" for network, where in found])
                text = f"Half of all IPv{version} addresses, or more, are {what}: {names}."
                yield Finding("lists", level, text, "If this is not intended, remove the widest networks.")


def _addresses(gate: AppGate) -> Iterator[Finding]:
    counted, listed = _counts_by_address(gate), "lists of addresses" if _listed_networks(gate) else ""
    if not (counted or listed):
        return
    fix = _proxy_fix(gate.app.wsgi_app)
    if fix is not None and fix.x_for:
        text = f"ProxyFix takes the client's address from {plural(fix.x_for, 'proxy', 'proxies')}."
        yield Finding("addresses", "ok", text)
        return
    uses = " and ".join(filter(None, (counted, listed)))
    what = "ProxyFix has x_for=0" if fix is not None else f"There are {uses}, but no ProxyFix"
    remedy = (
        "Behind a proxy: app.wsgi_app = ProxyFix(app.wsgi_app, x_for=1), with the number of proxies; see the "
        'page "Know the client behind a proxy". Without a proxy, there is nothing to do.'
    )
    hints = [f"{name} ({platform})" for name, platform in PROXY_HINTS.items() if os.environ.get(name)]
    if hints or fix is not None:
        seen = f" {', '.join(hints)} is set, so there is likely a proxy." if hints else ""
        shared = "share the proxy's quota" if counted else "be listed as the proxy is"
        yield Finding("addresses", "warning", f"{what}.{seen} All clients would {shared}.", remedy)
    else:
        yield Finding("addresses", "hint", f"{what}. This command cannot see whether a proxy is in front.", remedy)


def _counts_by_address(gate: AppGate) -> str:
    types = _types(gate)
    if LimitType.IP in types:
        return "IP limits"
    if any(getattr(each, "__name__", "") == "get_remote_address" for each in types):  # of the bridge
        return "limits by get_remote_address"
    by_address = gate.settings.anonymous_user == "ip" and LimitType.USER in types
    return "user limits, which count clients without a login by address" if by_address else ""


def _proxy_fix(wsgi_app: Any) -> ProxyFix | None:
    """The ProxyFix, also inside other middleware that keeps what it wraps in ``app`` or ``wsgi_app``."""
    for _ in range(20):
        if isinstance(wsgi_app, ProxyFix):
            return wsgi_app
        wsgi_app = getattr(wsgi_app, "app", None) or getattr(wsgi_app, "wsgi_app", None)
    return None


def _users(gate: AppGate) -> Iterator[Finding]:
    if LimitType.USER not in _types(gate):
        return
    counted = _counted_subjects(gate)
    types = {each.type for each in counted}
    if ANONYMOUS in types and LimitType.USER.value not in types:
        text = "Of the keys looked at in storage, some count clients without a login, and none a known user."
        remedy = (
            "If users were logged in: identify them in a before_request function or in the user_loader, or put "
            '@rate_limiter below the decorator that identifies them; see the page "Limit users".'
        )
        yield Finding("users", "warning", text, remedy)
    elif Subject(LimitType.USER.value, "None") in counted:
        text = (
            'User limits have counted a user "None". If no user has this id, it is the text of None, and all '
            "clients without a login share one quota."
        )
        yield Finding("users", "warning", text, "Let the user_loader return None itself.")
    else:
        nobody = "by address" if gate.settings.anonymous_user == "ip" else "together, in one quota"
        yield Finding("users", "ok", f"Users can be identified. Clients without a login count {nobody}.")


def _counted_subjects(gate: AppGate) -> set[Subject]:
    """Those of the quotas in storage, as keys spell them, as far as can be seen."""
    try:
        keys = stored_keys(gate, prefixes_of(gate), KEYS_LOOKED_AT)
    except StorageError:  # another finding reports it, if it matters: listing keys may not be allowed
        return set()
    return {Subject(parts.type, parts.subject) for each in keys if (parts := parts_of_key(each.key)) is not None}


def _types(gate: AppGate) -> list[object]:
    return [each for listed in limiters_of(gate) for each in types_in(listed.planned.declaration.type)]


def _examine_traffic(gate: AppGate) -> Finding:
    if text := why_not_counted(gate):
        off = "Leave the setting out, unless you count by other means."
        remedy = "`flask multilimit top` shows nothing; the log does." if gate.settings.traffic else off
        return Finding("traffic", "hint", text, remedy)
    return Finding("traffic", "ok", "Counted in each process, and kept in the storage for an hour.")


MANY_ENDED = 100
"""So many ended entries in the control document deserve a hint."""


def _examine_control(gate: AppGate) -> Iterator[Finding]:
    applier = gate.applier
    if not applier.enabled:
        text = f"{PREFIX}CONTROL or {PREFIX}ENABLED is False: limits cannot be changed while the app runs."
        yield Finding("control", "hint", text, "Leave the settings out to change limits without a deploy.")
        return
    if not applier.control.shared:
        return
    try:
        entries = applier.control.entries()
        idle, unfit = idle_of(gate, entries), applier.unfit
    except StorageError as error:
        if not error.no_reply:  # otherwise the storage has a finding of its own
            yield _not_readable(error)
        return
    except ConfigurationError as error:
        text = f"The changes in the storage are not in force: {str(error).rstrip('.')}."
        yield Finding("control", "wrong", text, _LOOK_AT_IT)
        return
    if applier.control.problem is not None and not unfit:
        text = f"The newest changes are not in force: {str(applier.control.problem).rstrip('.')}."
        yield Finding("control", "wrong", text, _LOOK_AT_IT)
    for each in entries:
        if each.id in unfit:
            why = str(unfit[each.id]).rstrip(".")
            text = f"{each} ({each.id}) is left out, as it does not fit the limits of this app: {why}."
            yield Finding("control", "wrong", text, f"{_UNLESS_NEEDED} {each.id}")
        if each.id in idle:
            text = (
                f"{each} ({each.id}) applies to no endpoint of this app: its endpoint or rule is gone, or a "
                "function or a check inside a view has it."
            )
            yield Finding("control", "warning", text, f"{_UNLESS_NEEDED} {each.id}")
    found = workers(gate)
    if found is not None:
        text = f"{found}."
        remedy = _FIND_OTHERS if found.unreadable else _RESTART
        yield Finding("workers", "ok", text) if found.agree else Finding("workers", "warning", text, remedy)
    if entries and forgets_changes(gate):
        text = "The server keeps nothing on disk: if it and all workers stop, the changes in force are lost."
        yield Finding("control", "warning", text, f"Set {PREFIX}CONTROL_COPY, or appendonly yes on the server.")
    ended = len(applier.follower.known.document.entries) - len(entries)
    if ended > MANY_ENDED:
        text = f"{ended} entries have ended, but are still in the document that each worker reads when it changes."
        yield Finding("control", "hint", text, "The next change removes them.")
        return
    text = f"{plural(len(entries), 'change')} in force." if entries else "No changes: all limits are as declared."
    yield Finding("control", "ok", text)


def _not_readable(error: StorageError) -> Finding:
    cause = error.__cause__
    if isinstance(cause, RedisError) and code_of(cause) == "NOPERM" and IN_A_SCRIPT in str(cause):
        text = "The server's user may not read changes, so limits cannot be changed while the app runs."
        return Finding("control", "hint", text, f"Allow {RIGHTS_OF_WORKERS}; or set {PREFIX}CONTROL=False.")
    text = f"The changes in the storage cannot be read: {str(error).rstrip('.')}."
    return Finding("control", "wrong", text, _remedy_for(error, _LOOK_AT_IT))


_UNLESS_NEEDED = "Unless workers of another release need it: flask multilimit unset"
_RESTART = (
    "Restart the workers that are behind. After a deploy by HUP: no --preload, no import in gunicorn.conf.py. If the "
    f"others serve another app, which then shares quotas and changes, give each a {PREFIX}KEY_PREFIX of its own."
)
_FIND_OTHERS = (
    "Workers of another version may announce themselves like this, or something else writes to the key whose name ends "
    f"in {WORKERS}. {_RESTART}"
)
_LOOK_AT_IT = (
    f"Update this process, or inspect the key whose name ends in {DOCUMENT}: it is a hash, and its field `document` is "
    "JSON. To start over, delete the key."
)


# The storage


def _examine_storage(gate: AppGate, endpoints: list[Place]) -> Iterator[Finding]:
    storage = gate.limiter.storage
    try:
        clients = clients_of(storage)
    except StorageError as error:
        yield Finding("storage", "wrong", f"{str(error).rstrip('.')}.", _remedy_for(error, FIX))
        return
    if not clients:
        yield from _in_this_process(storage, gate.settings.memory_keys, _calendars_in(endpoints))
        return
    if isinstance(storage, LocalStorage):
        yield _on_this_machine(storage, _calendars_in(endpoints))
    answered = True
    for client in clients:
        for found in _examine_server(client, gate, endpoints):
            answered &= (found.name, found.level) != ("storage", "wrong")
            yield found
    yield from _examine_script(storage, gate, answered=answered)
    if isinstance(storage, Scripted):
        yield from _examine_rights(storage, gate)
    yield from _examine_shares(gate)


def _examine_shares(gate: AppGate) -> Iterator[Finding]:
    number = known_worker_count(gate)
    refusing = without_share(gate, number) if number is not None else []
    if refusing:
        text = f"While the storage is down, these limits refuse everybody, as they are shared by {number} workers: "
        text += f"{_list_text(refusing, 3)}."
        yield Finding("shares", "hint", text, f"Raise the count to {number}, or set on_storage_error of the limiter.")


def _on_this_machine(storage: LocalStorage, calendars: list[str]) -> Finding:
    text = f"local://: one server for all processes of this user on this machine that use {storage.directory}."
    text += " It ends with the last of them, and all quotas are lost"
    if calendars:
        return Finding("sharing", "warning", f"{text}, also {calendars[0]}.", _SAVE_CALENDARS)
    return Finding("sharing", "ok", f"{text}.")


_SAVE_CALENDARS = "Keep calendar quotas on a server that saves them to disk."


def _in_this_process(storage: Any, most_keys: int, calendars: list[str]) -> Iterator[Finding]:
    if storage.shared:
        yield Finding("storage", "ok", f"{type(storage).__name__}; this command knows nothing more about it.")
        return
    text = f"memory://: each process counts by itself, at most {most_keys:,} keys, and forgets them when it ends."
    remedy = f'For several workers: {PREFIX}STORAGE_URI="local://"; for several machines: "redis://localhost:6379/0".'
    several = workers_asked_for(os.environ)
    if several is not None and several.count > 1:
        text += f" {several.source} asks for {several.count} workers: each of them admits the full limit."
        yield Finding("storage", "warning", text, remedy)
    elif calendars:
        text = f"{text} Every restart of the app resets {calendars[0]}."
        yield Finding("storage", "warning", text, _SAVE_CALENDARS)
    else:
        yield Finding("storage", "hint", text, remedy)


def _examine_script(storage: Any, gate: AppGate, *, answered: bool) -> Iterator[Finding]:
    """Charge for all limits, and check every algorithm, on keys that are made for it. ``answered``: whether no finding
    says yet that there is no answer."""
    limiter = Limiter(storage if isinstance(storage, ClusterStorage) else RedisStorage(storage.client))
    rules = [Rule(60, 10, algorithm=algorithm, name=algorithm) for algorithm in ALGORITHMS]
    prefix = gate.settings.key_prefix
    hits = hits_for(
        rules, scope="flask_multilimit.operate.doctor", subject=f"probe:{uuid4().hex}", prefix=prefix, ban=Ban()
    )
    try:
        require_charges(gate)
        checked, peeked = limiter.check(hits), limiter.peek(hits)
        limiter.reset(hits)
        after = limiter.peek(hits)
    except StorageError as error:
        if answered or type(error.__cause__).__name__ not in {"ConnectionError", "TimeoutError", "AuthenticationError"}:
            own = ", ".join(f"{name}.lua" for name, each in ALGORITHMS.items() if each not in SHIPPED)
            otherwise = f"Correct {own}." if own and error.key_specific else _ASK_US
            yield Finding("script", "wrong", str(error), _remedy_for(error, otherwise))
        return
    if _is_right(hits, checked, peeked, after):
        text = f"Loads and runs: {len(rules)} rules checked, charged and reset, one of each algorithm, and a ban."
        yield Finding("script", "ok", text)
    else:
        yield Finding("script", "wrong", "It runs, but some of what it wrote was missing afterwards.", _ASK_US)


_ASK_US = "The server may be an imitation of Redis, or a replica. Use the primary of a Redis or Valkey server."


USES = {
    "hget": "to follow changes",
    "hset": "to make changes, and to put them back after a restart of the server",
    "xadd": "to make changes, and to put them back after a restart of the server",
    "xrevrange": "to show the history, and not to put back what was just undone",
    "scan": "to list keys, bans and slots",
    "pttl": "to list keys, bans and slots",
    "info": "to tell a restart of the server from a deletion",
}
"""What the rights are for that limits do not need."""
_TRY = """
local lacking, tries = {}, {
  { 'hset', 'HSET', KEYS[1], 'field', '1' }, { 'hget', 'HGET', KEYS[1], 'field' },
  { 'xadd', 'XADD', KEYS[2], '*', 'field', '1' }, { 'xrevrange', 'XREVRANGE', KEYS[2], '+', '-', 'COUNT', '1' },
  { 'pttl', 'PTTL', KEYS[1] }, { 'scan', 'SCAN', '0', 'COUNT', '1' }, { 'info', 'INFO', 'server' },
}
for _, each in ipairs(tries) do
  local reply = redis.pcall(unpack(each, 2))
  local failed = type(reply) == 'table' and reply['err'] or ''
  if string.find(failed, 'ACL failure', 1, true) or string.find(failed, "can't run this command", 1, true) then
    lacking[#lacking + 1] = each[1]
  end
end
redis.call('UNLINK', KEYS[1], KEYS[2])
return lacking
"""


def _examine_rights(storage: Scripted, gate: AppGate) -> Iterator[Finding]:
    """Try what changes, commands and pages need, on keys that are made for it."""
    mark = uuid4().hex
    keys = [f"{gate.settings.key_prefix}{{doctor}}:{mark}:{kind}" for kind in ("hash", "stream")]
    try:
        reply = storage.run_script(_TRY, keys, [])
    except StorageError:
        return  # the script of limits has failed, too
    lacking = sorted(each.decode() if isinstance(each, bytes) else str(each) for each in reply)
    if lacking:
        uses = "; ".join(dict.fromkeys(USES.get(each, each) for each in lacking))
        text = f"The server's user lacks {' '.join(f'+{each}' for each in lacking)}: {uses}."
        yield Finding("rights", "hint", text, "Allow what this process needs: for workers, at least +hget.")


def _is_right(hits: tuple[Hit, ...], checked: Decision, peeked: Decision, after: Decision) -> bool:
    full = [hit.rule.quota.burst for hit in hits if hit.cost]
    left = [status.remaining for status in checked.statuses]
    return (
        checked.allowed
        and left == [units - 1 for units in full]
        and [status.remaining for status in peeked.statuses] == left
        and [status.remaining for status in after.statuses] == full
    )


# A server of Redis or Valkey

PINGS = 8
SLOW = 0.010
"""A round trip of this many seconds slows requests down noticeably."""
CLOCK_TOLERANCE = 1.0
MANY_ENTRIES = 10_000
"""Freeing a key with this many entries at once takes noticeable time."""


def _examine_server(client: Any, gate: AppGate, endpoints: list[Place]) -> Iterator[Finding]:
    address = address_of(client) or "the server"
    try:
        trips = [_timed(client.ping) for _ in range(PINGS)]
        info, clock = client.info(), _clock(client)
    except FAILURES as error:
        if code_of(error) == "NOPERM":  # the user may do what limits need, and nothing else
            text = f"{address} answers, but does not let this user inspect it: {error}."
            yield Finding("storage", "hint", text, "To inspect everything, allow +ping +info +config|get.")
        else:
            text = f"No answer from {address}: {type(error).__name__}: {error}"
            yield Finding("storage", "wrong", text, _remedy_for(storage_error(error), FIX))
        return
    yield _version(address, info)
    yield examine_latency(trips, gate.settings.storage_timeout)
    yield clock
    if info.get("role") == "slave":
        text = f"{address} is a replica: nothing can be charged there."
        yield Finding("role", "wrong", text, f"Point {PREFIX}STORAGE_URI at the primary.")
    yield _eviction(info)
    yield _lazy_freeing(client, endpoints)
    if not isinstance(gate.limiter.storage, LocalStorage):
        yield _persistence(client, info, _calendars_in(endpoints))


def _version(address: str, info: Mapping[str, Any]) -> Finding:
    products = ("valkey", "redict", "dragonfly", "redis")
    product = next((each for each in products if info.get(f"{each}_version")), "redis")
    version = str(info.get(f"{product}_version") or "of unknown version")
    return Finding("storage", "ok", f"{product.capitalize()} {version} at {address}.")


def _timed(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def examine_latency(trips: list[float], timeout: float) -> Finding:
    """The finding on the times of ``trips``, of which the first had to connect."""
    median, slowest = statistics.median(trips[1:]), max(trips[1:])
    text = f"{_milliseconds(median)} a round trip; the slowest of {len(trips) - 1}: {_milliseconds(slowest)}."
    remedy = "Every limited request takes one round trip: move the server closer to the app."
    most, near = timeout / 2, f" {PREFIX}STORAGE_TIMEOUT is {timeout:g} s."
    if slowest > most:
        return Finding("latency", "warning", text + near, remedy)
    if trips[0] > most:
        first = f" The first, which had to connect: {_milliseconds(trips[0])}."
        return Finding("latency", "warning", text + first + near, "Allow more time to connect: raise it.")
    return Finding("latency", "hint", text, remedy) if median > SLOW else Finding("latency", "ok", text)


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
    text = f"The server's clock is {duration(abs(ahead))} {'ahead of' if ahead >= 0 else 'behind'} this machine's."
    if abs(ahead) < CLOCK_TOLERANCE:
        return Finding("clock", "ok", text)
    text += " Limits still hold: only the server's clock counts. Dates in header fields are off."
    return Finding("clock", "warning", text, "Run NTP on both.")


def _eviction(info: Mapping[str, Any]) -> Finding:
    policy, most = str(info.get("maxmemory_policy") or ""), info.get("maxmemory")
    evicted = int(info.get("evicted_keys") or 0)
    if not policy or most is None:
        return Finding("eviction", "hint", "The server does not report its maxmemory-policy.", _KEEP_ALL)
    if not most:
        return Finding("eviction", "ok", "No maxmemory: nothing is evicted.")
    if policy == "noeviction":
        return Finding("eviction", "ok", "noeviction: a full server refuses writes, and forgets nothing.")
    which = "every key" if policy.startswith("allkeys") else "every key with a TTL, which all of ours have,"
    text = f"maxmemory-policy is {policy}: if memory is full, {which} may be evicted, and its quota is full again."
    if evicted:
        text += f" {plural(evicted, 'key')} evicted since the server started."
    return Finding("eviction", "warning", text, _KEEP_ALL)


_KEEP_ALL = "Give limits a server of their own with maxmemory-policy noeviction, and enough memory."


def _setting(client: Any, name: str) -> str | None:
    """The setting ``name``; ``None`` if the server does not know or reveal it, as is common with managed ones."""
    try:
        value = client.config_get(name).get(name)
    except FAILURES:
        return None
    return None if value is None else str(value)


def _lazy_freeing(client: Any, endpoints: list[Place]) -> Finding:
    most = max((rule.count for rule in _rules_in(endpoints) if rule.algorithm == "sliding_window"), default=0)
    if most < MANY_ENTRIES:
        text = f"Not needed: no key holds more than {plural(most, 'entry', 'entries')}."
        return Finding("lazy freeing", "ok", text)
    setting = _setting(client, "lazyfree-lazy-expire")
    text = f"A key of yours can hold {most} entries, and lazyfree-lazy-expire is {setting or 'not known'}."
    if setting == "yes":
        return Finding("lazy freeing", "ok", text)
    text += " When it expires, the server blocks while it frees them."
    remedy = "CONFIG SET lazyfree-lazy-expire yes; or use an algorithm that keeps one number: sliding_window_counter."
    return Finding("lazy freeing", "hint", text, remedy)


def _rules_in(endpoints: list[Place]) -> Iterator[Rule]:
    return (rule for place in endpoints for listed in place.limiters for _, rule in listed.planned.rules)


def _calendars_in(endpoints: list[Place]) -> list[str]:
    """The calendar quotas that last for a day or longer, as text."""
    return [str(rule) for rule in _rules_in(endpoints) if isinstance(rule, Calendar) and rule.period != "hour"]


def _persistence(client: Any, info: Mapping[str, Any], calendars: list[str]) -> Finding:
    if info.get("rdb_last_bgsave_status") == "err" and _setting(client, "stop-writes-on-bgsave-error") != "no":
        text = "The last snapshot failed, so the server refuses writes: nothing can be charged."
        remedy = "Check its disk and its log; or CONFIG SET stop-writes-on-bgsave-error no."
        return Finding("persistence", "wrong", text, remedy)
    kept = kept_on_disk(client)
    if kept == "all":
        return Finding("persistence", "ok", "Append-only file: a restart keeps the quotas.")
    if kept == "snapshots":
        return Finding("persistence", "ok", "Snapshots: a restart forgets what was charged since the last.")
    text = f"{'None' if kept == 'nothing' else 'Unknown'}: after a restart of the server, every quota is full again"
    if calendars:
        remedy = "CONFIG SET appendonly yes, also in the configuration file: calendar quotas must survive a restart."
        return Finding("persistence", "warning", f"{text}, including {calendars[0]}.", remedy)
    remedy = "Set appendonly yes for long windows (days); short ones hardly need it."
    return Finding("persistence", "hint", f"{text}.", remedy)
