"""Control: what a developer, a command or a page changes limits by while the app runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from secrets import token_hex
from typing import Any, Literal

from ..declare.who import Who
from ..engine import ConfigurationError
from ..engine.errors import brief
from ..engine.rules import LONGEST, UNITS, Rules
from .controls import Document, Listing, Override, entry_from
from .store import Change, Store
from .watch import Watcher

TRIES = 20
"""Of a change, while others write."""
_WIDEST = {4: 8, 6: 16}
"""A network of fewer bits, by the version of IP, is denied only by force."""
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_SHORT = {"s": "second", "sec": "second", "m": "minute", "min": "minute", "h": "hour", "d": "day", "w": "week"}

Duration = float | str | timedelta


class ControlConflict(ConfigurationError):  # noqa: N818 - says what it is
    """Somebody else has changed the same at the same time. Nothing is stored: look at it, and try again."""


class NeedsForce(ConfigurationError):  # noqa: N818 - says what it needs
    """It would lock out (nearly) everyone: say ``force=True`` if that is meant."""


class Control:
    """Changes that hold in all processes that share the storage, at most a second later.

    Each change says how long it holds: ``for_`` seconds (or text such as ``"2h"``, or a ``timedelta``), or
    ``lasting=True``; and, for whoever reads it later, ``reason`` and ``author``. Whatever could not be declared raises
    :class:`ConfigurationError`, and nothing is stored.
    """

    def __init__(
        self, store: Store, watcher: Watcher, *, validate: Callable[[Document, Override | Listing, bool], None]
    ) -> None:
        self._store = store
        self._watcher = watcher
        self._validate = validate

    def override(
        self,
        endpoint: str | None = None,
        *,
        rule: str | None = None,
        limiter: str | None = None,
        who: str | None = None,
        rules: Rules | Mapping[str, Any] | None = None,
        times: float | None = None,
        shadow: bool | None = None,
        off: bool = False,
        limit: str | Mapping[str, Any] | None = None,
        for_: Duration | None = None,
        lasting: bool = False,
        reason: str = "",
        author: str = "",
        force: bool = False,
    ) -> Override:
        """Change limits. Counts go on: what is used stays used.

        :param endpoint: where: an endpoint, a blueprint, a pattern, or the scope of a check.
        :param rule: the rule with this name, which is what header fields show.
        :param limiter: the limiters with this name or type.
        :param who: the limits that count this subject (``"user:42"``) or network.
        :param rules: what holds instead; of a ``rule``, text changes its count and time only.
        :param times: so many times the count, and the burst.
        :param shadow: whether it counts, but never refuses.
        :param off: as if it were not there.
        :param limit: a limiter more, as data: ``"10/minute"``, ``{"type": "ip", "rules": "10/minute"}``.
        :param force: also to less than a hundredth of what is declared.
        """
        given = {
            "kind": "override",
            "endpoint": endpoint,
            "rule": rule,
            "limiter": limiter,
            "who": who,
            "rules": rules,
            "times": times,
            "shadow": shadow,
            "off": off,
            "limit": {"rules": limit} if isinstance(limit, str) else limit,
        }
        entry = self.prepare(given, for_=for_, lasting=lasting, reason=reason, author=author)
        self.put(entry, force=force)
        assert isinstance(entry, Override)
        return entry

    def allow(self, who: str, **options: Any) -> Listing:
        """Never limit a network or a subject: ``control.allow("user:42", lasting=True, reason="partner")``."""
        return self._list("allow", who, None, options)

    def deny(self, who: str, *, status: Literal[403, 429] | None = None, **options: Any) -> Listing:
        """Refuse a network or a subject before any limit, with ``status`` or ``MULTILIMIT_DENY_STATUS``."""
        return self._list("deny", who, status, options)

    def ban(self, who: str, **options: Any) -> Listing:
        """Refuse a network or a subject with 429 and a ``Retry-After``, until ``for_`` has passed."""
        return self._list("ban", who, None, options)

    def undo(self, id: str, *, reason: str = "", author: str = "") -> Override | Listing:  # noqa: A002 - the entry's
        """Take an entry back. Returns it; raises :class:`ConfigurationError` when there is none with this id."""
        stamp, document = self._read()
        found = _of_id(document, id)
        for _ in range(TRIES):
            if self._write(stamp, document.without([id]), found, "undo", author, reason):
                return found
            stamp, document = self._read()
            if found not in document.entries:
                raise ControlConflict(f"{found} has been changed meanwhile: look at the entries, and try again")
        raise ControlConflict(_TOO_MANY)

    def entry(self, id: str) -> Override | Listing:  # noqa: A002 - the entry's
        """The entry with this id. Raises :class:`ConfigurationError` when there is none."""
        return _of_id(self._read()[1], id)

    def entries(self) -> tuple[Override | Listing, ...]:
        """What is in force now, asked of the storage."""
        return self._read()[1].entries

    def history(self, most: int = 50) -> list[Change]:
        """The latest changes, the newest first."""
        return self._store.history(most)

    @property
    def problem(self) -> Exception | None:
        """Why the newest document is not in force in this process; ``None``: it is."""
        return self._watcher.problem

    @property
    def shared(self) -> bool:
        """Whether changes reach other processes."""
        return self._store.shared

    # In two steps, for commands and pages that show what would change

    def prepare(
        self,
        given: Mapping[str, Any],
        *,
        for_: Duration | None = None,
        lasting: bool = False,
        reason: str = "",
        author: str = "",
    ) -> Override | Listing:
        """The entry that ``given`` describes, not yet in force."""
        if (for_ is None) == (not lasting):
            raise ConfigurationError('for how long? Give for_, seconds or text such as "2h"; or lasting=True')
        self._watcher.look()
        now = self._watcher.in_force.time()
        until = None if for_ is None else now + seconds_of(for_)
        made = {"id": token_hex(4), "since": now, "until": until, "reason": reason, "author": author}
        return entry_from({name: value for name, value in {**given, **made}.items() if value is not None})

    def with_entry(self, entry: Override | Listing) -> Document:
        """What would hold with ``entry``, of what this process knows."""
        return self._watcher.in_force.document.having(entry)

    def put(self, entry: Override | Listing, *, force: bool = False) -> None:
        """Put ``entry`` in force. Raises :class:`ControlConflict`, :class:`NeedsForce`, :class:`ConfigurationError`."""
        if isinstance(entry, Listing) and entry.kind != "allow" and not force:
            reject_everyone(entry)
        stamp, document = self._read()
        seen = _of_target(document, entry)
        for _ in range(TRIES):
            changed = document.having(entry)
            self._validate(changed, entry, force)
            if self._write(stamp, changed, entry, "set", entry.author, entry.reason):
                return
            stamp, document = self._read()
            if _of_target(document, entry) != seen:
                raise ControlConflict(
                    f"{entry}: changed by somebody else meanwhile: look at the entries, and try again"
                )
        raise ControlConflict(_TOO_MANY)

    def _list(
        self, kind: Literal["allow", "deny", "ban"], who: str, status: int | None, options: Mapping[str, Any]
    ) -> Listing:
        force = bool(options.get("force", False))
        given = {name: value for name, value in options.items() if name != "force"}
        entry = self.prepare({"kind": kind, "who": who, "status": status}, **given)
        self.put(entry, force=force)
        assert isinstance(entry, Listing)
        return entry

    def _read(self) -> tuple[str, Document]:
        """The newest, and its stamp. Raises :class:`StorageError`, and :class:`ConfigurationError` when it cannot be
        read: to write another in its place would lose what others have written."""
        found = self._store.read("")
        document = Document.parse(found.text) if found.text else Document()
        return found.stamp, document.at(found.now)

    def _write(
        self, seen: str, document: Document, entry: Override | Listing, what: str, author: str, reason: str
    ) -> bool:
        change = Change(at=0, author=author, reason=reason, what=what, entry=str(entry), id=entry.id)
        written = self._store.write(seen, document.dump(), change)
        if written is not None:
            self._watcher.start()
        return written is not None


_TOO_MANY = "others change limits all the time: try again"


def _of_id(document: Document, id_: str) -> Override | Listing:
    for each in document.entries:
        if each.id == id_:
            return each
    known = ", ".join(each.id for each in document.entries[:20]) or "there are none"
    raise ConfigurationError(f"no entry has the id {brief(id_)}; those in force: {known}")


def _of_target(document: Document, entry: Override | Listing) -> Override | Listing | None:
    return next((each for each in document.entries if each.target == entry.target), None)


def reject_everyone(entry: Listing) -> None:
    """Raise :class:`NeedsForce` when the network of ``entry`` is a large part of the internet."""
    network = Who.parse(entry.who).network
    if network is not None and network.prefixlen < _WIDEST[network.version]:
        raise NeedsForce(f"{entry} would refuse {network.num_addresses} addresses; if that is meant, force it")


def seconds_of(duration: Duration) -> float:
    """Seconds of a number, a ``timedelta``, or text such as ``"90s"``, ``"2h"``, ``"1d 12h"``."""
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str):
        seconds = _seconds_in(duration.strip().lower())
    else:
        seconds = duration
    if type(seconds) not in {int, float} or not 1 <= seconds <= LONGEST:
        raise ConfigurationError(f"{brief(duration)}: give a time from 1 second to 400 days")
    return seconds


def _seconds_in(text: str) -> float:
    if text.isdigit():
        return int(text)
    parts = _PART.findall(text)
    units = [UNITS.get(_SHORT.get(unit, unit.removesuffix("s"))) for _, unit in parts]
    if not parts or _PART.sub("", text) or None in units:
        raise ConfigurationError(f'{brief(text)}: write a time as "90s", "15m", "2h" or "1d 12h"')
    return sum(float(number) * (unit or 0) for (number, _), unit in zip(parts, units, strict=True))
