"""Applies the control document: replaces the plans and the lists of an app, each in one assignment."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..control.document import Document
from ..control.store import KINDS, Store, store_for
from ..control.watch import ControlFollower, DiskCopy
from ..declare.advice import Stack
from ..engine import ConfigurationError
from ..engine.forks import cached_property
from ..engine.text import SafeLogger
from ..observe.events import ControlState
from ..plan.checks import reject_unstorable
from ..plan.overrides import Overrides, fitting
from ..plan.plans import Plans
from ..signals import control_changed, control_failed, notify
from .access import AccessLists, Listed, listing_resolver
from .state import AppState

if TYPE_CHECKING:
    from ..control.control import Control
    from ..control.entries import Listing, Override
    from ..plan.changes import ChangeValidator

MOST_LOGGED = 10


class ControlApplier:
    """Applies the control document to what is in force in one app."""

    def __init__(self, in_force: AppState, look_elsewhere: Callable[[Plans], None]) -> None:
        """``look_elsewhere`` finds the overrides that apply to limits of other extensions."""
        self._in_force = in_force
        self._look_elsewhere = look_elsewhere
        self._declared = in_force.plans
        self._latest = in_force.plans
        """The plans made last, in force or not."""
        self._lists: tuple[Listed, ...] = () if in_force.access is None else in_force.access.declared
        self._entries: dict[str, Override | Listing] = {}
        self._overrides: tuple[Override, ...] = ()
        """The overrides of the latest document, also those that do not fit."""
        self.unfit: dict[str, ConfigurationError] = {}
        """By id, why overrides do not fit the limits of the app."""
        self._logs = False
        self._counts = _counts(())
        store = store_for(in_force.limiter.storage, prefix=in_force.settings.key_prefix)
        self.follower: ControlFollower = ControlFollower(
            store, take=self.take, report=self._report, logger=in_force.app.logger, copy=_copy_of(in_force, store)
        )

    @cached_property
    def control(self) -> Control:
        """The control that changes limits and lists."""
        from ..control.control import Control  # noqa: PLC0415 - it imports all models; few processes make changes

        return Control(self.follower.store, self.follower, self.validator)

    @cached_property
    def validator(self) -> ChangeValidator:
        """Says what changes do in the app."""
        from ..plan.changes import ChangeValidator  # noqa: PLC0415 - few processes make changes

        prefix = self._in_force.settings.ipv6_prefix
        return ChangeValidator(self._declared, self.plans_with, self._look_elsewhere, ipv6_prefix=prefix)

    @property
    def enabled(self) -> bool:
        """Whether the app can be changed while it runs."""
        return self._in_force.settings.control and self._in_force.settings.enabled

    def start(self) -> None:
        """Apply the current document, follow changes, and log them."""
        if self.enabled:
            self._logs = True
            self.follower.start(limits=self.declared_limits)

    def look(self) -> None:
        """Apply the current document once, without log lines: for commands, which print for themselves."""
        if self.enabled:
            self.follower.look()

    def take(self, document: Document) -> None:
        """Apply ``document``. Raises :class:`ConfigurationError` if some of its overrides do not fit the limits of the
        app: they are left out, and the others and the lists apply."""
        self._in_force.access = self.access(document.listings)
        if document.overrides != self._overrides:
            overrides, unfit = fitting(document.overrides, self.plans_with)
            if any(rule.holds_slots for each in overrides for rule in each.new_rules):
                Stack.overrides_may_take_slots = True  # before any check can take them
            self._in_force.plans = self.plans_with(overrides)
            self._overrides, self.unfit = document.overrides, unfit
        unfit = self.unfit
        applied = tuple(each for each in document.entries if each.id not in unfit)
        self._announce(applied)
        self._counts = _counts(applied)
        if self._logs:  # not in a command: metrics would show it as a worker for ever
            self._in_force.audience.background.start()
        if unfit:
            left_out = [f"{each} ({each.id}): {unfit[each.id]}" for each in document.overrides if each.id in unfit]
            raise ConfigurationError(f"left out, as it does not fit the limits of this app: {'; '.join(left_out)}")

    def declared_limits(self) -> str:
        """A digest of the limits that are declared, which tells workers of different releases apart."""
        return self._declared.fingerprint()

    def state(self) -> ControlState | None:
        """The state of the control document for observers; ``None`` if control is off."""
        return ControlState(self.follower.version, self.follower.age, self._counts) if self.enabled else None

    def plans_with(self, overrides: Sequence[Override]) -> Plans:
        """The plans of the app after ``overrides``. Raises :class:`ConfigurationError`."""
        self._declared.ensure()
        wanted = tuple(overrides)
        if not wanted:
            return self._declared
        for known in (self._in_force.plans, self._latest):  # a preview needs the same plans several times
            if known.overrides.entries == wanted:
                return known
        by_address = self._in_force.settings.anonymous_user == "ip"
        for each in wanted:  # also those of functions and checks, which have no plan before they are called
            reject_unstorable(each.new_rules, self._in_force.limiter)
        made = self._latest = self._declared.changed(Overrides(wanted, anonymous_by_address=by_address))
        return made  # another thread may have made others since

    def access(self, listings: Sequence[Listing]) -> AccessLists | None:
        """The lists of the settings and ``listings``."""
        if not self._lists and not listings:
            return None
        resolve = listing_resolver(self.time, self._in_force.settings.deny_status)
        return AccessLists(self._lists, listings, resolve=resolve)

    def time(self) -> float:
        """The POSIX time now, by the clock of the storage as far as this process knows it."""
        return self.follower.known.time()

    def _announce(self, entries: tuple[Override | Listing, ...]) -> None:
        """Log one line for each entry that is new or gone, and send the signal."""
        before, now = self._entries, {each.id: each for each in entries}
        self._entries = now
        if self._logs:
            self._log("now in force", [each for id_, each in now.items() if id_ not in before])
            self._log("no longer in force", [each for id_, each in before.items() if id_ not in now])
        notify(control_changed, self._in_force.app, entries=entries)

    def _log(self, what: str, changed: Sequence[Override | Listing]) -> None:
        logger = SafeLogger(self._in_force.app.logger)
        more = len(changed) - MOST_LOGGED
        for each in changed[:MOST_LOGGED]:  # the oldest first
            by, why = f" by {each.author}" if each.author else "", f": {each.reason}" if each.reason else ""
            logger.info("Rate limits: worker %d: %s: %s (%s%s)%s", os.getpid(), what, each, each.id, by, why)
        if more > 0:
            logger.info("Rate limits: worker %d: %s: %d more entries", os.getpid(), what, more)

    def _report(self, error: Exception) -> None:
        notify(control_failed, self._in_force.app, error=error)


def _copy_of(in_force: AppState, store: Store) -> DiskCopy | None:
    path = in_force.settings.control_copy
    if path is None or not store.shared:
        return None
    return DiskCopy(Path(in_force.app.instance_path, path), key=store.key, logger=in_force.app.logger)


def _counts(entries: Sequence[Override | Listing]) -> dict[str, int]:
    """The number of entries of each kind."""
    found = Counter(each.kind for each in entries)
    return {kind: found[kind] for kind in KINDS}
