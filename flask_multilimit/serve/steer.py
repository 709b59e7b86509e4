"""Where control takes hold: the plans and the lists of an app are exchanged, each in one assignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from flask import Flask

from ..control.control import Control, NeedsForce
from ..control.controls import Document, Listing, Override
from ..control.store import store_for
from ..control.watch import Watcher
from ..declare.networks import network_from
from ..declare.who import Who
from ..engine import ConfigurationError
from ..plan.differences import Difference, differences, smallest_share
from ..plan.overrides import Overrides
from ..plan.plans import Plans
from ..signals import control_changed, control_failed, notify
from .access import AccessLists, Listed
from .gate import AppGate, gate_of

STEERING = "multilimit_steering"
"""Where the steering of an app lies in ``app.extensions``."""
SMALLEST_SHARE = 0.01
"""Of the declared rate; to less, an override is only forced."""
MOST_LOGGED = 10


class Steering:
    """Puts what a control document says in force at a gate."""

    def __init__(self, gate: AppGate, lists: Sequence[Listed]) -> None:
        self._gate = gate
        self._declared = gate.plans
        self._lists = tuple(lists)
        self._entries: tuple[Override | Listing, ...] = ()
        store = store_for(gate.limiter.storage, prefix=gate.settings.key_prefix)
        self.watcher: Watcher = Watcher(store, take=self.take, report=self._report, logger=gate.app.logger)
        self.control: Control = Control(store, self.watcher, validate=self.validate)

    @property
    def enabled(self) -> bool:
        """Whether the app takes changes while it runs."""
        return self._gate.settings.control and self._gate.settings.enabled

    def start(self) -> None:
        """Put in force what holds, and keep up with it."""
        if self.enabled:
            self.watcher.start()

    def look(self) -> None:
        """Put in force what holds now: for commands, which end soon."""
        if self.enabled:
            self.watcher.look()

    def preview(self, entry: Override | Listing) -> list[Difference]:
        """What ``entry`` would change. Raises :class:`ConfigurationError`."""
        return self._preview(self.control.with_entry(entry).overrides)

    def preview_without(self, entry: Override | Listing) -> list[Difference]:
        """What taking ``entry`` back would change. Raises :class:`ConfigurationError`."""
        return self._preview(self.watcher.in_force.document.without([entry.id]).overrides)

    def _preview(self, overrides: Sequence[Override]) -> list[Difference]:
        self.look()
        return differences(self._gate.plans, self.plans_with(overrides))

    def idle(self, entries: Sequence[Override | Listing]) -> set[str]:
        """The ids of overrides that nothing in the app answers to."""
        overrides = [each for each in entries if isinstance(each, Override)]
        found = set()
        for each in overrides:
            alone = self.plans_with([each])
            if each.id not in alone.overrides.met and not differences(self._declared, alone):
                found.add(each.id)
        return found

    def take(self, document: Document) -> None:
        """Put ``document`` in force. Raises :class:`ConfigurationError` when its overrides do not fit the limits of the
        app: those before stay in force then, and its lists hold."""
        self._gate.access = AccessLists([*self._lists, *map(self._listed, document.listings)]) or None
        if document.overrides != self._gate.plans.overrides.entries:
            self._gate.plans = self.plans_with(document.overrides)
        self._tell(document.entries)

    def plans_with(self, overrides: Sequence[Override]) -> Plans:
        """The plans of the app as ``overrides`` make them. Raises :class:`ConfigurationError`."""
        self._declared.ensure()
        return self._declared.changed(Overrides(tuple(overrides))) if overrides else self._declared

    def validate(self, document: Document, entry: Override | Listing, force: bool) -> None:
        """Raise :class:`ConfigurationError` when ``document``, to which ``entry`` is new, could not be declared."""
        if entry.kind == "override":
            plans = self.plans_with(document.overrides)
            self._check_override(entry, plans, force=force)
        elif (type_name := Who.parse(entry.who).type_name) and type_name not in self._declared_types():
            raise ConfigurationError(_unknown_type(entry.who, type_name, self._declared_types()))

    def _check_override(self, entry: Override, plans: Plans, *, force: bool) -> None:
        if entry.who is not None:
            self._check_who(entry.who)
        if force:
            return
        before = self._before(entry)
        if entry.id not in plans.overrides.met and not differences(before, plans):
            raise NeedsForce(
                f"{entry}: no endpoint has that; `flask multilimit limits` lists what they have. If it is about a "
                "function that is no view, or a check inside of one, force it"
            )
        share = min(entry.times or 1, smallest_share(before, plans))
        if share < SMALLEST_SHARE:
            raise NeedsForce(f"{entry}: would leave less than a hundredth of a limit; if that is meant, force it")

    def _before(self, entry: Override) -> Plans:
        """The plans without ``entry`` and without what it takes the place of."""
        others = [each for each in self._gate.plans.overrides.entries if each.target != entry.target]
        return self.plans_with(others)

    def _check_who(self, text: str) -> None:
        who, prefix = Who.parse(text), self._gate.settings.ipv6_prefix
        if who.network is not None and who.network.version == 6 and who.network.prefixlen > prefix:
            whole = network_from(f"{who.network.network_address}/{prefix}")
            raise ConfigurationError(f"{text}: limits count IPv6 addresses of one /{prefix} as one: give {whole}")
        if who.network is None and who.type_name not in self._declared_types():
            raise ConfigurationError(_unknown_type(text, who.type_name, self._declared_types()))

    def _declared_types(self) -> list[str]:
        self._declared.ensure()
        return sorted(self._declared.types)

    def _listed(self, entry: Listing) -> Listed:
        status = 429 if entry.kind == "ban" else entry.status or self._gate.settings.deny_status
        until, clock = entry.until, self.watcher.in_force
        return Listed(
            Who.parse(entry.who),
            "allow" if entry.kind == "allow" else "deny",
            f"{entry.kind} {entry.id}",
            status,
            entry.kind == "ban",
            None if until is None else lambda: max(until - clock.time(), 0),
        )

    def _tell(self, entries: tuple[Override | Listing, ...]) -> None:
        """One line for each entry that comes or goes."""
        before, now = set(self._entries), set(entries)
        self._entries = entries
        log = self._gate.app.logger.info
        for sign, changed in (("now", now - before), ("no longer", before - now)):
            for each in sorted(changed, key=lambda one: one.since)[:MOST_LOGGED]:
                by = f" by {each.author}" if each.author else ""
                log("Rate limits, %s: %s (%s%s)%s", sign, each, each.id, by, f": {each.reason}" if each.reason else "")
            if len(changed) > MOST_LOGGED:
                log("Rate limits, %s: %d entries more", sign, len(changed) - MOST_LOGGED)
        notify(control_changed, self._gate.app, entries=entries)

    def _report(self, error: Exception) -> None:
        notify(control_failed, self._gate.app, error=error)


def steering_of(app: Flask) -> Steering:
    """The steering of ``app``. Raises :class:`ConfigurationError` when it has no MultiLimit."""
    gate_of(app)
    return cast("Steering", app.extensions[STEERING])


def _unknown_type(text: str, type_name: str, known: Sequence[str]) -> str:
    return f"{text}: no limiter of this app has a type called {type_name!r}; those there are: {', '.join(known)}"
