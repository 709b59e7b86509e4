"""MultiLimit, the extension."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args
from uuid import UUID
from weakref import WeakSet

from flask import Flask, has_request_context, request
from werkzeug.local import LocalProxy

from . import control as changes
from . import insight
from .declare.advice import EXTENSION, GATE, Holder, holding
from .declare.limiter import Cost, Reaction, check_callable, check_message
from .declare.subjects import EVERYONE, LimitType, Named, Subjects, SubjectType, UserLoader
from .engine import ConfigurationError, Decision, Hit, Limiter
from .engine.decision import require_decision
from .engine.errors import brief, check_iterable
from .engine.hits import Hits, OnStorageError
from .engine.limiter import decide_unlimited
from .engine.rules import Rules
from .engine.storage import Health, Layers, Storage, storage_from
from .observe.events import Observer
from .operate.command_line import Commands
from .plan.applied import ASKER, Applied, hits_of
from .plan.lookups import about_given, applied_for, applied_given, require_known_rules
from .plan.plans import Plans
from .plan.sources import Given, Source, Sources
from .serve.access import declared_lists
from .serve.gate import AppGate, LimitsAt, gate_in_force, gate_of
from .signals import notify, storage_failed, storage_recovered

if TYPE_CHECKING:
    from .config import Settings

T = TypeVar("T")
U = TypeVar("U", bound=UserLoader)
Reach = Literal["endpoint", "everywhere", "everything"]
"""How far a reset reaches."""


class MultiLimit:
    """The extension. ``MultiLimit(app)``, or ``MultiLimit()`` and :meth:`init_app` for application factories.

    :param storage: a client object of ``redis``, a :class:`Storage` or a URI, in place of
        ``MULTILIMIT_STORAGE_URI``.
    :param user_loader: returns the id (``str``, ``int`` or ``UUID``) of the user who makes the current request,
        ``None`` if nobody is logged in. Without one, flask-login is asked if the app has a login manager.
    :param application_limits: limits that the whole app shares: text, a :class:`Rule`, a ``rate_limiter(...)``, a
        dict of its options, or a list of these. Those of ``MULTILIMIT_APPLICATION_LIMITS`` apply as well.
    :param limits: limits by endpoint, blueprint or pattern: ``{"api.*": "100/minute"}``. Those of ``MULTILIMIT_LIMITS``
        apply as well.
    :param default_limits: limits of each endpoint for which nothing else is declared, in the same form.
    :param unmatched_limits: limits of requests that match no route or no method of it, in the same form.
    :param allow: networks and subjects that are never limited: ``["10.0.0.0/8", "user:42"]``. Those of
        ``MULTILIMIT_ALLOW`` apply as well.
    :param deny: networks and subjects that are refused before any limit is checked, unless they are allowed. Those of
        ``MULTILIMIT_DENY`` apply as well.
    :param observers: callables that get every outcome as an :class:`Event`, such as ``PrometheusMetrics()``.
    :param on_rejected: called with the :class:`Decision` of a refusal; what it returns, if anything, is the response.
        If that gives no status, it is 429 or 503.

    One object serves any number of apps, each with its own settings, storage and limits.
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        storage: Any = None,
        user_loader: UserLoader | None = None,
        limits: Mapping[str, Any] | None = None,
        application_limits: Any = None,
        default_limits: Any = None,
        unmatched_limits: Any = None,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        on_rejected: Reaction | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        self._storage = storage
        self._user_loader: UserLoader | None = None
        if user_loader is not None:
            self.user_loader(user_loader)
        if on_rejected is not None:
            check_callable("on_rejected", on_rejected, "the Decision")
        self._given = Given(
            application_limits,
            default_limits,
            unmatched_limits,
            {} if limits is None else limits,
            allow=_several("allow", allow),
            deny=_several("deny", deny),
        )
        self._on_rejected = on_rejected
        self._apps: WeakSet[Flask] = WeakSet()
        self._listings: dict[LimitsAt, None] = {}
        self._observers = _several("observers", observers)
        for observer in self._observers:
            check_callable("observers", observer, "the Event")
        if app is not None:
            self.init_app(app)

    def init_app(
        self,
        app: Flask,
        *,
        limits: Mapping[str, Any] | None = None,
        application_limits: Any = None,
        default_limits: Any = None,
        unmatched_limits: Any = None,
    ) -> None:
        """Read the settings of ``app`` and put its limits into force.

        Limits given here apply to this app only, in addition to those of the constructor and of the settings.
        Raises :class:`ConfigurationError` for a wrong setting, and if ``app`` has a MultiLimit already or is no Flask
        app.
        """
        app = _require_flask(app)
        if EXTENSION in app.extensions:
            raise ConfigurationError(
                f'the app {app.name!r} has a MultiLimit already; use that one: app.extensions["{EXTENSION}"]'
            )
        from .config import Settings  # noqa: PLC0415 - with pydantic: a process without an app starts sooner

        settings = Settings.from_config(app.config)
        check_message("MULTILIMIT_MESSAGE", settings.message)
        given = Given(application_limits, default_limits, unmatched_limits, {} if limits is None else limits)
        gate = self._gate_for(app, settings, [*_written_in(settings, app), (str, self._given), (str, given)])
        app.extensions[EXTENSION] = self
        app.extensions[GATE] = gate
        self._apps.add(app)
        gate.install()
        app.cli.add_command(Commands())

    def _gate_for(self, app: Flask, settings: Settings, written: Sequence[Source]) -> AppGate:
        sources, lists = Sources.of(app, written), declared_lists(written, deny_status=settings.deny_status)
        limiter = Limiter(self._storage_for(settings), layers=_layers(app, settings))
        subjects = Subjects(
            app,
            ipv6_prefix=settings.ipv6_prefix,
            anonymous_user=settings.anonymous_user,
            find_user_loader=lambda: self._user_loader,
        )
        return AppGate(
            app=app,
            settings=settings,
            given_storage=self._storage,
            limiter=limiter,
            plans=Plans(app, sources, subjects=subjects, key_prefix=settings.key_prefix),
            subjects=subjects,
            access=lists,
            on_rejected=self._on_rejected,
            observers=self._observers,
            listings=self._listings.keys(),
        )

    def _storage_for(self, settings: Settings) -> Storage:
        if self._storage is not None:
            return storage_from(self._storage, timeout=settings.storage_timeout)
        try:
            return storage_from(settings.storage_uri, timeout=settings.storage_timeout)
        except ConfigurationError as error:
            raise ConfigurationError(f"MULTILIMIT_STORAGE_URI: {error}") from None

    def user_loader(self, function: U) -> U:
        """Take the decorated function as the ``user_loader``."""
        check_callable("user_loader", function)
        self._user_loader = function
        return function

    def check(
        self,
        rules: Rules,
        *,
        scope: str,
        type: SubjectType = LimitType.DEFAULT,  # noqa: A002 - the field's word
        subject: Named | None = None,
        cost: Cost = 1,
        shadow: bool = False,
        on_storage_error: OnStorageError | None = None,
        name: str | None = None,
        key: str | None = None,
    ) -> Decision:
        """Check ``rules`` here and now, in a view, a CLI command or a task, in one round trip.

        :param scope: what is limited: every check with this scope and subject shares the quota.
        :param type: who is limited, as the current request tells.
        :param subject: who is limited, in place of ``type`` and needed outside of a request: named as for
            :meth:`peek`, such as ``f"user:{user_id}"``. A type of your own is called by the ``name`` of its limiters.
            Several in a list, in the order of the type, are one subject: ``["user:42", "ip:203.0.113.7"]`` is what the
            type ``(USER, IP)`` counts.

        The other parameters are those of :func:`rate_limiter`. Header fields and signals report it like any check.
        Slots of :class:`.Concurrent` rules are held until the response ends, or the limited function that makes the
        check ends; elsewhere, or after that, until :meth:`release` or for their timeout. Returns the
        :class:`Decision`, whether or not it is ``allowed``; see :meth:`limit`.
        """
        options = dict(locals())
        del options["self"], options["scope"], options["subject"]
        return gate_in_force().check_inline(scope, options, subject)[0]

    @contextmanager
    def limit(self, rules: Rules, *, scope: str, subject: Named | None = None, **options: Any) -> Iterator[Decision]:
        """``with multilimit.limit("5/minute", scope="mail"):`` enter the block only if the check allows it.

        Parameters as for :meth:`check`, and those of :func:`rate_limiter` that make sense here. Raises
        :exc:`RateLimitExceeded`, which carries the ``decision``; outside of a request, catch it like any exception.
        Slots of :class:`.Concurrent` rules are held until the end of the block.
        """
        gate, holder = gate_in_force(), Holder()
        with holding(holder):
            decision, applied = gate.check_inline(scope, {"rules": rules, **options}, subject)
        if not decision.allowed:
            raise gate.refusals.too_many(decision, applied)
        try:
            yield decision
        finally:
            holder.end()

    def check_hits(self, hits: Hits, *, scope: str, subject: Named) -> Decision:
        """Check hits that an extension of yours has made with :func:`hits_for`, all or nothing; one round trip.

        Header fields, signals and statistics report it like any check of this request.

        :param scope: what is limited, usually the endpoint: for signals and statistics, and for overrides, which apply
            beside those of the hits' own scopes.
        :param subject: who is counted, as for :meth:`peek`: for signals.

        Returns the :class:`Decision`, whether or not it is ``allowed``. Reuse ``hits`` for repeated checks: storages
        cache in them what they compute from them.
        """
        return gate_in_force().check_hits(hits, scope, subject)

    def add_listing(self, listing: LimitsAt) -> None:
        """Show the limits of an extension of yours, which it checks with :meth:`check_hits`, wherever limits are
        listed.

        ``listing(app, endpoint)`` returns them by where they were declared, as :func:`rate_limiter` describes them:
        ``{"my extension": [rate_limiter("5/minute", type=key_function, name="hits")]}``. Their ``name`` is the type of
        the hits. It is called when limits are listed or a client is looked up, never to check a request.
        """
        check_callable("listing", listing, "the app", "the endpoint")
        self._listings[listing] = None

    def peek(self, endpoint: str | None = None, subject: Named | None = None, *, method: str | None = None) -> Decision:
        """Where a subject stands at an endpoint, without charging.

        :param endpoint: by default, that of this request.
        :param subject: who, by the name of a type and a value: ``"user:42"``, ``"ip:203.0.113.7"``, ``"api_key:abc"``,
            ``"everyone"``; several in a list, for limiters that count them as one subject. By default, the subjects of
            this request.
        :param method: only this request method.

        Only limiters of the given types answer. If there are none, the decision admits, with no statuses. Raises
        :class:`ConfigurationError` for an unknown endpoint or type.
        """
        gate = gate_in_force()
        hits = hits_of(_limiters_counting(gate, gate.plans, endpoint, method, gate.subjects.clients_from(subject)))
        return gate.limiter.peek(hits) if hits else decide_unlimited(())

    def standing(
        self,
        *,
        user: str | int | UUID | None = None,
        ip: str | IPv4Address | IPv6Address | None = None,
        subject: Named | None = None,
        endpoint: str | None = None,
        method: str | None = None,
    ) -> insight.standing.Standing:
        """Where a client stands, for support pages: ``multilimit.standing(user="42")``. The same as
        ``flask multilimit why``: lists, bans, what is left of each quota, and what was refused in the last hour.

        Needs an app context, but no request. Charges nothing. With ``memory://``, the numbers are those of this
        process. A callable for rules is asked about this client if it takes the subject. The answer has operators'
        reasons in it: show a customer :class:`.Usage` instead.

        :param user: the id of a user.
        :param ip: an address.
        :param subject: as for :meth:`peek`, such as ``"api_key:key-0"``. Give several of these three if
            one request has them together.
        :param endpoint: only there; by default, everywhere.
        :param method: only this request method, at ``endpoint``.

        If the storage does not decide, ``problem`` says why; with ``endpoint``, that raises :class:`StorageError`.
        Raises :class:`ConfigurationError` for an unknown endpoint or type.
        """
        gate = gate_in_force()
        client = insight.clients.client_named(gate, user=user, ip=ip, subject=subject)
        if method is not None and endpoint is None:
            raise ConfigurationError(f"standing: method={brief(method)}: name an endpoint, too")
        with insight.traffic.looking(gate) as memory:
            return insight.standing.standing(gate, client, memory, endpoint=endpoint, method=method)

    def openapi(self, document: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Describe the limits in force for the documents of your API.

        :param document: a document of OpenAPI 3 or Swagger 2. The result is a copy of it, in which each operation that
            is limited has a response 429, or 503 by a ``reserve``, and the header fields in use. What the document
            itself says stays.

        Without a document, the result is a dict to merge into one of OpenAPI 3: ``components`` and ``paths``. Raises
        :class:`ConfigurationError` for another document.
        """
        gate, openapi = gate_in_force(), insight.openapi
        return openapi.additions(gate) if document is None else openapi.with_limits(gate, document)

    def reset(
        self,
        endpoint: str | None = None,
        subject: Named | None = None,
        *,
        method: str | None = None,
        reach: Reach = "endpoint",
    ) -> int:
        """Reset the quotas of a subject, for every process: others may refuse it for ``MULTILIMIT_DENY_CACHE`` seconds
        more. Returns how many were reset.

        :param endpoint: as for :meth:`peek`, as are ``subject`` and ``method``. Quotas that everyone shares are reset
            only for the subject ``"everyone"``.
        :param reach: ``endpoint``; ``everywhere``, for the quotas of the subject at all endpoints, in functions and in
            checks; or ``everything``, for all quotas of all subjects. The last two read all keys of the app, so do not
            ask for them in requests, and reset what has been used. Changes made by :attr:`control` stay.

        While overrides are in force, quotas under the declared limits are reset, too. Raises
        :class:`ConfigurationError` if no limiter there counts the given subject.
        """
        gate = gate_in_force()
        given = gate.subjects.clients_from(subject)
        if reach != "endpoint":
            return _reset_beyond(gate, reach, given, endpoint, method)
        plan_sets = dict.fromkeys((gate.plans, gate.plans.declared))
        applied = [each for plans in plan_sets for each in _limiters_counting(gate, plans, endpoint, method, given)]
        if given and not applied:
            where = f'at "{endpoint}"' if endpoint else "at this endpoint"
            raise ConfigurationError(f"reset: no limiter {where} counts {' and '.join(given)}, so nothing was reset")
        hits = hits_of(each for each in applied if given or each.subject != EVERYONE)
        gate.reset(hits)
        return len(hits)

    def settle(self, decision: Decision, units: int, hits: Iterable[Hit] | None = None) -> Decision:
        """Replace what a check has charged by the real cost, for all its quotas or those of ``hits``:
        ``multilimit.settle(current_decision, tokens)``. See :meth:`Limiter.settle`.

        Afterwards :data:`current_decision` and the header fields of the response show what is left now.
        """
        require_decision(decision)
        return gate_in_force().settlement.settle(decision, units, hits)

    def refund(self, decision: Decision, hits: Iterable[Hit] | None = None) -> Decision:
        """:meth:`settle` at 0: give back what a check has charged, its slots included."""
        return self.settle(decision, 0, hits)

    def release(self, decision: Decision) -> None:
        """Give back the slots that ``decision`` holds by :class:`.Concurrent` rules, before the response ends. See
        :meth:`Limiter.release`."""
        require_decision(decision)
        gate_in_force().limiter.release(decision)

    def close(self) -> None:
        """Stop the background work of every app that this object serves, and close its limiter: streams that have ended
        are settled, traffic is sent to the storage, units of leases are given back, and connections that were opened
        here are closed.

        For processes that make one app after another, such as tests. A later check opens new connections, and follows
        changes again. If a storage raises, everything else is closed first. Do not call this in a signal handler, which
        may have interrupted a check that holds a lock: raise :exc:`SystemExit` there.
        """
        with ExitStack() as last_first:
            for app in list(self._apps):
                gate = gate_of(app)
                last_first.callback(gate.limiter.close)
                last_first.callback(gate.audience.background.close)
                last_first.callback(gate.settlement.close)
                last_first.callback(gate.startup.follow_again)
                last_first.callback(gate.applier.follower.close)

    def validate(self, app: Flask | None = None) -> None:
        """Raise :class:`ConfigurationError` for any mistake in the limits of ``app`` (default: the current app). This
        does not ask the storage. Call it once all views and blueprints are registered.

        Names that match no endpoint, and methods that no route takes, are errors, or warnings, as
        ``MULTILIMIT_UNKNOWN_NAMES`` says.
        """
        if app is not None:
            _require_flask(app)
        (gate_in_force() if app is None else gate_of(app)).startup.validate()

    @property
    def control(self) -> changes.Control:
        """Changes limits and lists of the current app while it runs, unless ``MULTILIMIT_CONTROL`` is false."""
        gate = gate_in_force()
        if not gate.settings.control:
            raise ConfigurationError(f"{gate.settings.name_of('control')} is False, so workers do not follow changes")
        return gate.applier.control

    @property
    def limiter(self) -> Limiter:
        """The engine's limiter of the current app."""
        return gate_in_force().limiter


def _several(name: str, given: Iterable[T]) -> tuple[T, ...]:
    check_iterable(name, given)
    return tuple(given)


def _written_in(settings: Settings, app: Flask) -> Iterator[Source]:
    """The limits and lists in the settings, and in the file that they name."""
    yield settings.name_of, settings
    if settings.file is not None:
        from .declare.data import read_limits  # noqa: PLC0415 - with its models; few apps have a file

        try:
            yield (lambda field: f"{settings.file}: {field}"), read_limits(Path(app.root_path, settings.file))
        except ConfigurationError as error:
            raise ConfigurationError(f"{settings.name_of('file')}: {error}") from error


def _require_flask(app: object) -> Flask:
    """``app`` itself, also if it is given as ``current_app``."""
    if isinstance(app, Flask):
        return app._get_current_object() if isinstance(app, LocalProxy) else app
    modules = {each.__module__.partition(".")[0] for each in type(app).__mro__}
    shown = f"{type(app).__name__} of {type(app).__module__}"
    for framework, instead in _INSTEAD.items():
        if framework in modules:
            raise ConfigurationError(f"app={shown}: MultiLimit is for Flask; {instead}")
    raise ConfigurationError(f"app={shown}: give the Flask object itself, not a wrapper around it")


_ENGINE = "or ask the engine's Limiter yourself, in a thread: it needs no Flask"
_INSTEAD = {
    "quart": f"for Quart there is quart-rate-limiter, {_ENGINE}",
    "starlette": f"for Starlette and FastAPI there is slowapi, {_ENGINE}",
}


def _layers(app: Flask, settings: Settings) -> Layers:
    def notify_change(health: Health) -> None:
        notify(storage_failed if health.state == "failed" else storage_recovered, app, health=health)

    return Layers(
        on_storage_error=settings.on_storage_error,
        workers=settings.workers,
        memory_keys=settings.memory_keys,
        deny_cache=settings.deny_cache,
        logger=app.logger,
        on_change=notify_change,
    )


def _reset_beyond(
    gate: AppGate, reach: Reach, given: Mapping[str, str], endpoint: str | None, method: str | None
) -> int:
    if reach not in get_args(Reach):
        raise ConfigurationError(f"reach={brief(reach)}: give one of {', '.join(map(repr, get_args(Reach)))}")
    if endpoint is not None or method is not None:
        raise ConfigurationError(f"reset: reach={reach!r} is not for one endpoint; leave endpoint and method out")
    if reach == "everything" and given:
        raise ConfigurationError("reset: reach='everything' is for all subjects; for one of them, give 'everywhere'")
    keys = insight.keys.all_keys(gate) if reach == "everything" else insight.keys.keys_of(gate, given)
    gate.reset(keys)
    return len(keys)


def _limiters_counting(
    gate: AppGate, plans: Plans, endpoint: str | None, method: str | None, given: Mapping[str, str]
) -> Sequence[Applied]:
    """The limiters of ``plans`` at ``endpoint`` (default: that of the request) that count the ``given`` subjects
    (default: those of the request)."""
    if endpoint is None and not has_request_context():
        raise ConfigurationError('outside of a request, name an endpoint and a subject, such as "user:42"')
    if endpoint is None:
        endpoint, method = request.endpoint, method or request.method
    resolve, about = (gate.subjects.given(given), about_given(plans)) if given else (gate.subjects.resolve, ASKER)
    if endpoint is None:
        plan = plans.of_request(request)
        found = [plan.apply(resolve, about)] if plan else []
    elif given:
        found = [each.applied for each in applied_given(plans, endpoint, method, given)]
    else:
        found = [each.applied for each in applied_for(plans, endpoint, method, resolve, about)]
    require_known_rules(str(endpoint), found)
    return [each for applied in found for each in applied.limiters]
