"""For the tests of apps: freeze the clock, use quotas up, reset them, switch limits off.

Usable with any test framework; with pytest there is also the fixture ``multilimit_clock``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from typing import Any
from uuid import UUID

from flask import Flask
from flask.testing import FlaskClient

from .declare.subjects import ANONYMOUS, EVERYONE, LimitType, Named, spelled
from .engine import ConfigurationError, Decision, Hit, Limiter, Rule, hits_for
from .engine.errors import brief, check_bool, is_number
from .engine.hits import BanHit
from .engine.storage import Clocked, GuardedStorage, layers_of
from .insight.clients import applied_at, client_with, listed_of, require_limiters
from .insight.keys import all_keys
from .plan.lookups import require_known_rules
from .serve.gate import AppGate, gate_of

MOST_UNITS = 1_000_000
"""The most units that :func:`exhaust` uses up; with an exact window, each is an entry in storage."""

LATEST = 1e10
"""Seconds that a :class:`Clock` can show."""

_MICROSECONDS = 1_000_000

__all__ = ["Clock", "enabled", "exhaust", "freeze", "reset"]


class Clock:
    """A clock that stands still until you move it. Call it for the time in microseconds."""

    def __init__(self, now: float = 0.0) -> None:
        given: object = now
        if not is_number(given) or not abs(given) < LATEST:
            raise ConfigurationError(f"Clock({brief(now)}): give seconds")
        self._microseconds = round(now * _MICROSECONDS)

    def __call__(self) -> int:
        return self._microseconds

    def __repr__(self) -> str:
        return f"<Clock at {self.now:.6f} s>"

    @property
    def now(self) -> float:
        """Seconds since an arbitrary origin."""
        return self._microseconds / _MICROSECONDS

    def advance(self, seconds: float | timedelta) -> None:
        """Let time pass, rounded up to a microsecond, so that ``clock.advance(decision.retry_after)`` is enough."""
        given: object = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        if not is_number(given) or not 0 <= given < LATEST:
            raise ConfigurationError(f"clock.advance({brief(seconds)}): give seconds, 0 or more, or a timedelta")
        # Rounded to a thousandth first: 18.1 s may be 18100000.000000002 microseconds.
        self._microseconds += math.ceil(round(given * _MICROSECONDS, 3))


class _TrackingLimiter(Limiter):
    """Remembers the keys that it charges, strikes or resets, so that they can be reset at the end."""

    def __init__(self, storage: Any, **options: Any) -> None:
        super().__init__(storage, **options)
        self.touched: list[str] = []

    def check(self, hits: Iterable[Hit], *, check_id: UUID | None = None) -> Decision:
        return self._track(super().check(hits, check_id=check_id))

    def check_many(self, many: Iterable[Iterable[Hit]]) -> list[Decision]:
        return [self._track(decision) for decision in super().check_many(many)]

    def reset(self, hits: Iterable[Hit | str]) -> None:
        given = list(hits)
        super().reset(given)
        self.touched += (each if isinstance(each, str) else each.key for each in given)

    def _track(self, decision: Decision) -> Decision:
        self.touched += (charge.hit.key for charge in decision.charges)
        if decision.violated or decision.shadowed:  # strikes, unless the ban held already
            self.touched += (ban.hit.key for ban in decision.bans if ban.begun or not ban.holds)
        return decision


@contextmanager
def freeze(app: Flask) -> Iterator[Clock]:
    """Let the limits of ``app`` use a clock that stands still, whether quotas are in memory or in Redis.

    .. code-block:: python

        with freeze(app) as clock:
            ...
            clock.advance(60)

    It starts at the time of the storage, so earlier charges still count. The guard, the deny cache and leases work as
    in production and go by the same clock. A ``wait=`` does not sleep: it moves the clock. At the end the app has its
    own clock again, and the quotas that were charged meanwhile are reset, because the frozen times never happened. The
    clock holds for every request to this app in this process, in all threads.
    """
    gate = gate_of(app)
    limiter = gate.limiter
    storage = limiter.storage
    if not isinstance(storage, Clocked):
        raise ConfigurationError(
            f"freeze: the clock of {type(storage).__name__} cannot be replaced; test with "
            'MULTILIMIT_STORAGE_URI="memory://", or a server of Redis or Valkey'
        )
    if isinstance(storage.clock, Clock):
        raise ConfigurationError(f"freeze: the limits of {app.name!r} are frozen already; use that clock")
    at = limiter.peek(hits_for(Rule(), scope="flask_multilimit.testing")).at
    clock, before = Clock(at / _MICROSECONDS), storage.clock
    storage.clock = clock
    frozen = gate.limiter = _TrackingLimiter(
        storage, layers=limiter.layers, sleep=clock.advance, monotonic=lambda: clock.now
    )
    frozen.follow(limiter.with_overrides)
    try:
        yield clock
    finally:
        storage.clock, gate.limiter = before, limiter
        for layer in layers_of(frozen.outermost):
            if isinstance(layer, GuardedStorage):
                layer.stop()
        limiter.reset(set(frozen.touched))


def exhaust(
    target: Flask | FlaskClient, endpoint: str, subject: Named | None = None, *, method: str | None = None
) -> Decision:
    """Use up what is left at ``endpoint``, so that the next request of that subject is refused. The view is not called.

    Without a ``method``, this uses up the quotas of every method that has some. Without a subject, it uses up those of
    the test client (``127.0.0.1``, not logged in) and of everyone. ``"ip:203.0.113.7"``, ``"user:42"``, ``"everyone"``
    and ``"api_key:abc"`` (by the name of the limiter), or a list of these, use up the quotas of these alone.

    Returns the refusal: after ``clock.advance(refusal.retry_after)`` the next request passes. Without :func:`freeze`
    time goes on, and an algorithm that gives units back one by one (a token bucket) may soon admit a request.
    """
    gate, given = _target(target, subject)
    if not gate.settings.enabled:
        raise ConfigurationError(
            "exhaust: limits are switched off (MULTILIMIT_ENABLED=False), so the next request would pass anyway; "
            "switch them on for this test: with flask_multilimit.testing.enabled(app): ..."
        )
    listed = listed_of(gate, client_with(gate, given), gate.access)
    if listed is not None and listed.action == "allow":
        raise ConfigurationError(
            f"exhaust: {listed.where} allows {listed.who}, so the next request would pass anyway; leave this entry out"
        )
    hits = _hits_at(gate, "exhaust", endpoint, given, method)
    refusals = [_use_up(gate, endpoint, _enforced(each)) for each in hits if each]
    return max(refusals, key=lambda refusal: refusal.retry_after)


def reset(
    target: Flask | FlaskClient, endpoint: str | None = None, subject: Named | None = None, *, method: str | None = None
) -> None:
    """Reset all quotas of the app, or those at ``endpoint``, chosen as for :func:`exhaust`.

    All quotas of the app are the keys that begin with its prefixes (``MULTILIMIT_KEY_PREFIX``, and the ``key=`` of
    limiters). Tests that share a server and run at the same time need a prefix each.
    """
    gate, given = _target(target, subject)
    if endpoint is None:
        if subject is not None:
            raise ConfigurationError("reset: name the endpoint too: reset(app, endpoint, subject)")
        gate.reset(all_keys(gate))
        return
    gate.reset(chain.from_iterable(_hits_at(gate, "reset", endpoint, given, method)))


@contextmanager
def enabled(app: Flask, value: bool = True) -> Iterator[None]:
    """Switch the limits of ``app`` on (or off) inside the ``with`` block, whatever ``MULTILIMIT_ENABLED`` says."""
    check_bool("enabled: value", value)
    gate = gate_of(app)
    before = gate.settings
    gate.settings = before.model_copy(update={"enabled": value})
    try:
        yield
    finally:
        gate.settings = before


def _target(target: Flask | FlaskClient, subject: Named | None) -> tuple[AppGate, Mapping[str, str]]:
    """The gate of the app, and ``subject`` by type; without one, the test client and everyone."""
    address = "127.0.0.1"
    if isinstance(target, FlaskClient):
        address = str(target.environ_base.get("REMOTE_ADDR", address))
        target = target.application
    gate = gate_of(target)
    of_client = {LimitType.IP.value: address, ANONYMOUS: address, EVERYONE.type: EVERYONE.value}
    return gate, of_client if subject is None else gate.subjects.clients_from(subject)


def _hits_at(
    gate: AppGate, what: str, endpoint: str, given: Mapping[str, str], method: str | None
) -> list[tuple[Hit, ...]]:
    """The hits of the ``given`` subjects at ``endpoint``, for each group of methods."""
    places = applied_at(gate, endpoint, method, given, declared=what == "reset")
    require_limiters(what, endpoint, places, given, method, spelled=spelled)
    require_known_rules(endpoint, (place.applied for place in places))
    return [place.applied.hits for place in places]


def _enforced(hits: tuple[Hit, ...]) -> tuple[Hit, ...]:
    """``hits`` without bans, which have nothing to use up, and without shadows; if all are shadows, these as if they
    were none. Without slots, too, unless there is nothing else."""
    hits = tuple(hit for hit in hits if not isinstance(hit, BanHit))
    hits = tuple(hit for hit in hits if not hit.shadow) or tuple(replace(hit, shadow=False) for hit in hits)
    return tuple(hit for hit in hits if not hit.rule.holds_slots) or hits  # nobody knows when a slot becomes free


def _use_up(gate: AppGate, endpoint: str, hits: tuple[Hit, ...]) -> Decision:
    """Charge as much as the tightest rule has left, until a request would be refused."""
    used = 0
    while (decision := gate.limiter.peek(hits)).allowed:
        units = min(status.remaining for status in decision.statuses)
        units = max(min(units, *(hit.rule.implementation.MAX_COST for hit in hits)), 1)
        used += units
        if used > MOST_UNITS:
            raise ConfigurationError(
                f'exhaust: more than {MOST_UNITS} units are left at "{endpoint}"; test with a smaller count, for '
                "instance by MULTILIMIT_LIMITS in the settings of the tests"
            )
        gate.limiter.check(replace(hit, cost=units) for hit in hits)
    return decision
