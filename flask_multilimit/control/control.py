"""Control: code, commands and pages use it to change limits while the app runs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from typing import Any, Literal, Protocol, TypedDict

from typing_extensions import Unpack

from ..declare.written import InvalidData, Mistake, nearest, parse_json
from ..engine import ConfigurationError, StorageError
from ..engine.errors import brief, check_bool
from ..engine.periods import instant
from ..engine.rules import LONGEST, UNITS, Rule
from ..engine.text import LONGEST_DURATION, LONGEST_NAME, Phrase, is_storable
from .document import Document, document_from
from .entries import Listing, Override, entry_from
from .store import Change, ListingKind, Store, StoredDocument
from .watch import ControlFollower

MOST_TRIES = 20
"""The most attempts to make a change while others write."""
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]+) ?")
_ABBREVIATIONS = {"s": "second", "sec": "second", "m": "minute", "min": "minute", "h": "hour", "d": "day", "w": "week"}

Duration = float | str | timedelta


class ControlConflict(ConfigurationError):  # noqa: N818 - the name says enough
    """The limit or client is not as the preview showed it: somebody has changed it, or a change has ended. Nothing was
    stored. The message names the change that is in force there, or else the last change of all."""


class NeedsForce(ConfigurationError):  # noqa: N818 - the name says enough
    """The change would refuse, or let pass, (nearly) everyone; or apply to nothing; or end earlier than the denial or
    ban that it replaces. Give ``force=True`` if that is intended."""


class Terms(TypedDict, total=False):
    """How long a change applies, why, and who makes it."""

    for_: Duration | None
    lasting: bool
    reason: str
    author: str


@dataclass(frozen=True, slots=True)
class Difference:
    """An endpoint whose limits change, for some or all of its methods."""

    endpoint: str
    methods: tuple[str, ...]
    before: tuple[str, ...]
    """One text for each rule."""
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Preview:
    """A change that has not been made yet: :meth:`Control.put` makes it."""

    entry: Override | Listing
    endpoints: tuple[Difference, ...]
    """The endpoints whose limits the change would change. Entries of lists change no limits."""
    warning: str
    """Why the change needs ``force=True``; empty if it does not."""
    replaces: Override | Listing | None = None
    """The entry that the change replaces, because it concerns the same limit or client. Undoing the change does not
    restore it."""

    @property
    def seen(self) -> str:
        """Identifies what the preview shows. A page passes it to :meth:`Control.put` when somebody confirms."""
        shown = (self.replaces, self.endpoints)
        return blake2b(repr(shown).encode("utf-8", "replace"), digest_size=8).hexdigest()


class ChangedApp(Protocol):
    """The app whose limits are changed."""

    def validate(self, document: Document, entry: Override | Listing) -> None:
        """Raise :class:`ConfigurationError` if limits as in ``document`` with ``entry`` could not be declared."""

    def warning(self, document: Document, entry: Override | Listing) -> str:
        """Why adding ``entry`` to ``document`` must be confirmed; empty if it need not."""

    def differences(self, before: Document, after: Document) -> list[Difference]:
        """Each endpoint whose limits differ between the documents."""

    def idle(self, document: Document) -> set[str]:
        """The ids of overrides that apply to nothing in the app."""

    def unfit(self, document: Document) -> dict[str, ConfigurationError]:
        """By id, why overrides do not fit the limits of the app."""


class Control:
    """Makes changes. They apply in all processes that share the storage, at most a second later.

    Each change says how long it applies: ``for_`` seconds (or text such as ``"2h"``, or a ``timedelta``), or
    ``lasting=True``. ``reason`` and ``author`` are kept in the history. A change that could not be declared raises
    :class:`ConfigurationError`, and nothing is stored.
    """

    def __init__(self, store: Store, follower: ControlFollower, app: ChangedApp) -> None:
        self._store = store
        self._follower = follower
        self._app = app

    def override(
        self,
        endpoint: str | None = None,
        *,
        rule: str | None = None,
        limiter: str | None = None,
        who: str | None = None,
        rules: Rule | str | Mapping[str, Any] | Sequence[Rule | str | Mapping[str, Any]] | None = None,
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
        """Change limits. Used units stay used, unless the window, the calendar or the algorithm changes.

        :param endpoint: change limits there: an endpoint, a blueprint, a pattern, or the scope of a check.
        :param rule: change the rule with this name in header fields.
        :param limiter: change the limiters with this name or type.
        :param who: change the limits for this subject (``"user:42"``) or network, whose clients user limits count by
            address unless they are logged in.
        :param rules: the new rules. For a ``rule``, text changes only its count and time.
        :param times: a factor for the count and the burst.
        :param shadow: whether the limits only count, and never refuse.
        :param off: switch the limits off.
        :param limit: an additional limiter, as data: ``"10/minute"``, ``{"type": "ip", "rules": "10/minute"}``. Checks
            in views get none.
        :param force: make the change even if it leaves less than a hundredth of what is declared, lets pass 1,000 times
            as much, leaves no limit that refuses, or applies to nothing.
        """
        given = dict(locals(), kind="override", limit={"rules": limit} if isinstance(limit, str) else limit)
        terms = {name: given.pop(name) for name in Terms.__annotations__}
        del given["self"], given["force"]
        entry = self._make_entry(given, **terms)
        self.put(entry, force=force)
        assert isinstance(entry, Override)
        return entry

    def allow(self, who: str, *, force: bool = False, **terms: Unpack[Terms]) -> Listing:
        """Never limit a network or a subject: ``control.allow("user:42", lasting=True, reason="partner")``."""
        return self._list("allow", who, None, terms, force=force)

    def deny(
        self, who: str, *, status: Literal[403, 429] | None = None, force: bool = False, **terms: Unpack[Terms]
    ) -> Listing:
        """Refuse a network or a subject before any limit, with ``status`` or ``MULTILIMIT_DENY_STATUS``."""
        return self._list("deny", who, status, terms, force=force)

    def ban(self, who: str, *, force: bool = False, **terms: Unpack[Terms]) -> Listing:
        """Refuse a network or a subject with 429 and a ``Retry-After``, until ``for_`` has passed."""
        return self._list("ban", who, None, terms, force=force)

    def undo(self, id: str, *, reason: str = "", author: str = "") -> Override | Listing:  # noqa: A002 - the entry's
        """Undo an entry, and return it. Raises :class:`ConfigurationError` if no entry has this id."""
        _check_texts(reason=reason, author=author)
        entry = self.entry(id)
        change = _change("undo", entry, author, reason)
        self._write(lambda document: document.without(self._entry_in(document, id)), change)
        return entry

    def entry(self, id: str) -> Override | Listing:  # noqa: A002 - the entry's
        """The entry with this id. Raises :class:`ConfigurationError` if there is none."""
        return self._entry_in(self._read(), id)

    def entries(self) -> tuple[Override | Listing, ...]:
        """All entries in force now, read from the storage."""
        return self._read().entries

    def export_entries(self) -> str:
        """All entries in force now, as JSON for :meth:`import_entries`."""
        return json.dumps(json.loads(self._read().dump()), indent=2, ensure_ascii=False)

    def import_entries(
        self, text: str | bytes, *, reason: str = "", author: str = "", force: bool = False
    ) -> tuple[Override | Listing, ...]:
        """Put exported entries in force, all or none, and return those that have not ended. Each replaces the present
        entry for the same limit or client, and gets a new id if another entry has the same one. Raises
        :class:`NeedsForce`, and :class:`ConfigurationError` if an entry does not fit the limits of the app, or if two
        concern the same limit or client."""
        check_bool("force", force)
        _check_texts(reason=reason, author=author)
        imported = document_from(text)
        parse_json(text)  # stricter than document_from(), which also reads documents that are in force already
        imported.check_unique()
        new = imported.at(self._store.read("").now)
        if not new.entries:
            return ()

        def both(document: Document) -> Document:
            nonlocal new
            new = new.with_distinct_ids(document)
            changed = document.updated_by(new)
            for each in new.entries:
                self._check(document, changed, each, force=force)
            return changed

        self._write(both, _change("import", f"entries: {len(new.entries)}", author, reason))
        return new.entries

    def history(self, most: int = 50) -> list[Change]:
        """The latest changes, the newest first."""
        if type(most) is not int or most < 1:
            raise ConfigurationError(f"most={brief(most)}: give a whole number, 1 or more")
        return self._store.history(most)

    def note(self, what: str, entry: str, *, reason: str = "", author: str = "") -> None:
        """Add a line to the history about something that changes no entry: ``note("reset", "user:42")``."""
        _check_texts(what=what, entry=entry, reason=reason, author=author)
        self._write(lambda document: document, _change(what, entry[:LONGEST_NAME], author, reason))

    @property
    def problem(self) -> Exception | None:
        """Why the newest document is not in force in this process; ``None`` if it is."""
        return self._follower.problem

    @property
    def shared(self) -> bool:
        """Whether changes reach other processes."""
        return self._store.shared

    @property
    def in_use(self) -> bool:
        """Whether changes would be kept: ``False`` for ``local://`` while no process uses its server."""
        return self._store.in_use

    def idle(self) -> set[str]:
        """The ids of overrides in force that apply to nothing in this app: their endpoint or rule is gone."""
        return self._app.idle(self._read())

    def unfit(self) -> dict[str, ConfigurationError]:
        """By id, why overrides do not fit this app: they may be for another release. They are not in force here."""
        return self._app.unfit(self._read())

    # Changes in two steps, for commands and pages that first show what would change

    def preview(self, given: Mapping[str, Any], **terms: Unpack[Terms]) -> Preview:
        """What the change that ``given`` describes would do. Nothing is changed.

        ``given`` has the arguments of the methods above as data, and the ``kind``: ``{"kind": "deny", "who": "::1"}``,
        ``{"kind": "override", "endpoint": "search", "rule": "ip-60s", "rules": "200/minute"}``. Raises
        :class:`InvalidData`, which names the fields, and :class:`ConfigurationError` if the change does not fit the
        limits of the app.
        """
        _check_terms("preview", terms)
        if not isinstance(given, Mapping):
            raise InvalidData("", [Mistake("given", brief(given), _GIVE_A_DICT)])
        entry = self._make_entry(given, **terms)
        known = self._follower.known
        return self._preview_of(known.document.at(known.time()), entry)

    def _preview_of(self, before: Document, entry: Override | Listing) -> Preview:
        after = before.with_entry(entry)
        self._app.validate(after, entry)
        endpoints = self._app.differences(before, after)
        return Preview(entry, tuple(endpoints), self._warning(before, after, entry), _replaced_by(entry, before))

    def preview_undo(self, id: str) -> Preview:  # noqa: A002 - the entry's
        """What :meth:`undo` would do. Nothing is changed."""
        before = self._read()
        entry = self._entry_in(before, id)
        return Preview(entry, tuple(self._app.differences(before, before.without(entry))), "")

    def put(self, change: Preview | Override | Listing, *, seen: str | None = None, force: bool = False) -> None:
        """Put the change of a :meth:`preview` in force, if it still does what the preview showed.

        :param change: the preview; or an entry, which replaces any entry with the same target.
        :param seen: :attr:`.Preview.seen` of an earlier preview, for a page that makes a new one to confirm it.

        Raises :class:`ControlConflict` if the limit or client has changed since, :class:`NeedsForce`,
        :class:`ConfigurationError`.
        """
        check_bool("force", force)
        if not isinstance(change, (Preview, Override, Listing)):
            raise ConfigurationError(f"change={brief(change)}: give a preview, or its entry")
        entry = change.entry if isinstance(change, Preview) else change
        if isinstance(change, Preview) and seen is None:
            seen = change.seen
        stored = self._store.read("")
        replaced = _replaced_by(entry, _document_in(stored))
        if _end(entry) <= stored.now:
            raise ConfigurationError(f"{entry}: its time is over, so it would change nothing: make it again")

        def with_entry(document: Document) -> Document:
            is_other = _replaced_by(entry, document) != replaced
            if is_other or (seen is not None and self._preview_of(document, entry).seen != seen):
                raise self._conflict(document, entry)
            changed = document.with_entry(entry)
            self._check(document, changed, entry, force=force)
            return changed

        self._write(with_entry, _change("set", entry, entry.author, entry.reason, replaced))

    def _conflict(self, document: Document, entry: Override | Listing) -> ControlConflict:
        """The error that names the change of the same limit or client, or else the last one, which may be another."""
        other = _replaced_by(entry, document)
        if other is not None:
            last: Change = {**_change("set", other, other.author, ""), "at": other.since}
            return ControlConflict(Phrase(_REPLACES, entry=entry, **_texts_of(last)))
        for last in self._history_if_readable(1):
            return ControlConflict(Phrase(_CHANGED, entry=entry, **_texts_of(last)))
        return ControlConflict(Phrase(_DIFFERS, entry=entry))

    def _entry_in(self, document: Document, id_: str) -> Override | Listing:
        """The entry with this id. Raises :class:`ControlConflict` if the history says who has replaced or undone it."""
        for entry in document.entries:
            if entry.id == id_:
                return entry
        changes = self._history_if_readable(50)
        n = next((n for n, each in enumerate(changes) if each["id"] == id_ and each["what"] == "set"), 0)
        for last in changes[:n]:
            made, author = changes[n]["entry"], changes[n]["author"]
            if last["id"] == id_ or last["replaces"].removesuffix(f" by {author}") == made:
                raise ControlConflict(Phrase(_CHANGED, entry=made, **_texts_of(last)))
        known = ", ".join(each.id for each in document.entries[:20]) or "there are none"
        none = f"no entry has the id {brief(id_)}, or it was replaced or undone; those in force: {known}"
        raise ConfigurationError(none)

    def _history_if_readable(self, most: int) -> list[Change]:
        """The latest changes, for a message that says who made them; none if the storage does not return them."""
        try:
            return self._store.history(most)
        except StorageError:
            return []

    def _make_entry(self, given: Mapping[str, Any], **terms: Unpack[Terms]) -> Override | Listing:
        """The entry that ``given`` describes. It is not in force yet."""
        for_, lasting = terms.pop("for_", None), terms.pop("lasting", False)
        check_bool("lasting", lasting)
        if (for_ is None) == (not lasting):
            remedy = 'for how long? Give either for_, seconds or text such as "2h", or lasting=True'
            raise InvalidData("", [Mistake("for", "", remedy)])
        self._follower.look()
        known = self._follower.known
        now, id_ = known.time(), known.document.new_id()
        until = None if for_ is None else now + seconds_of(for_)
        fields = {**given, "reason": "", "author": "", **terms, "id": id_, "since": now, "until": until}
        return entry_from({name: value for name, value in fields.items() if value is not None})

    def _list(self, kind: ListingKind, who: str, status: int | None, terms: Terms, *, force: bool) -> Listing:
        _check_terms(kind, terms)
        entry = self._make_entry({"kind": kind, "who": who, "status": status}, **terms)
        self.put(entry, force=force)
        assert isinstance(entry, Listing)
        return entry

    def _check(self, before: Document, after: Document, entry: Override | Listing, *, force: bool) -> None:
        """Raise unless ``after``, with the new ``entry``, may be put in force."""
        self._app.validate(after, entry)
        if not force and (warning := self._warning(before, after, entry)):
            raise NeedsForce(Phrase("{warning}; to do it anyway, force it", warning=warning))

    def _warning(self, before: Document, after: Document, entry: Override | Listing) -> str:
        """Why ``entry`` must be confirmed; empty if it need not."""
        replaced = _replaced_by(entry, before)
        if replaced is not None and {entry.kind, replaced.kind} <= {"deny", "ban"} and _end(entry) < _end(replaced):
            other = str(replaced)
            if replaced.author:
                other = Phrase("{entry} by {author}", entry=replaced, author=replaced.author)
            return Phrase("{entry}: would end earlier than {other}, which it replaces", entry=entry, other=other)
        return self._app.warning(after, entry)

    def _read(self) -> Document:
        """The newest document. Raises :class:`StorageError`, and :class:`ConfigurationError` if it cannot be read,
        because replacing it would lose what others have written."""
        return _document_in(self._store.read(""))

    def _write(self, make: Callable[[Document], Document], change: Change) -> None:
        """Replace the newest document with what ``make`` makes of it, and try again if somebody else has replaced it
        first. Raises what ``make`` and :meth:`_read` raise, and :class:`ControlConflict`."""
        for _ in range(MOST_TRIES):
            stored = self._store.read("")
            if self._store.write(stored.stamp, make(_document_in(stored)).dump(), change) is not None:
                self._follower.start()
                return
        raise ControlConflict(Phrase("others keep changing limits: try again"))


def _document_in(stored: StoredDocument) -> Document:
    document = document_from(stored.text) if stored.text else Document()
    return document.at(stored.now)


def _change(
    what: str, entry: Override | Listing | str, author: str, reason: str, replaced: Override | Listing | None = None
) -> Change:
    replaces = "" if replaced is None else replaced.signed
    id_ = "" if isinstance(entry, str) else entry.id
    return Change(at=0, author=author, reason=reason, what=what, entry=str(entry), id=id_, replaces=replaces)


def _check_terms(method: str, given: Iterable[str]) -> None:
    """Raise TypeError, as Python does, for an argument that ``method`` does not take."""
    for name in given:
        if name not in Terms.__annotations__:
            similar = nearest(name, Terms.__annotations__)
            raise TypeError(f"Control.{method}() got an unexpected keyword argument {name!r}{similar}")


def _check_texts(**texts: object) -> None:
    """Raise :class:`ConfigurationError` unless all are text that can be stored."""
    for name, text in texts.items():
        if not (isinstance(text, str) and is_storable(text)):
            raise ConfigurationError(f"{name}={brief(text)}: give text")


_GIVE_A_DICT = 'give a dict, such as {"kind": "deny", "who": "::1"}'
_REPLACES = "{entry}: changed since you looked at it. Now in force: {author} {what} at {when}. Look at it again"
_CHANGED = "{entry}: changed since you looked at it, or a change ended. The last change: {author} {what} at {when}"
_DIFFERS = "{entry}: changed since you looked at it, or a change ended. Look at it again"


def _texts_of(last: Change) -> dict[str, str]:
    """What a conflict says of a change."""
    when = instant(last["at"]).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    return {"author": last["author"] or Phrase("somebody"), "what": f"{last['what']} {last['entry']}", "when": when}


def _end(entry: Override | Listing) -> float:
    return math.inf if entry.until is None else entry.until


def _replaced_by(entry: Override | Listing, document: Document) -> Override | Listing | None:
    return next((each for each in document.entries if each.target == entry.target), None)


def seconds_of(duration: Duration) -> float:
    """The seconds in a number, a ``timedelta``, or text such as ``"90s"``, ``"2h"``, ``"1d 12h"``. Raises
    :class:`InvalidData` unless these are 1 second to 400 days."""
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str):
        seconds = _seconds_in(duration)
    else:
        seconds = duration
    if type(seconds) not in {int, float} or not 1 <= seconds <= LONGEST:
        raise InvalidData("", [Mistake("for", brief(duration), Phrase("give a time from 1 second to 400 days"))])
    return seconds


def _seconds_in(text: str) -> float:
    normalized = " ".join(text[:LONGEST_DURATION].lower().split())
    seconds, end = 0.0, 0
    while part := _PART.match(normalized, end):
        seconds += float(part[1]) * UNITS.get(_ABBREVIATIONS.get(part[2], part[2].removesuffix("s")), math.nan)
        end = part.end()
    if end < len(normalized) or not end or math.isnan(seconds) or len(text) > LONGEST_DURATION:
        remedy = Phrase('write a time as "90s", "15m", "2h" or "1d 12h"')
        raise InvalidData("", [Mistake("for", brief(text), remedy)])
    return seconds
