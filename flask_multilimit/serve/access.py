"""Allow and deny lists: which clients pass without limits, and which are refused before any limit is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from ..declare.addresses import AddressNumber, Networks, Who, number_of
from ..declare.subjects import Subject
from ..engine import ConfigurationError
from ..plan.sources import Source

if TYPE_CHECKING:
    from ..control.entries import Listing

Status = Literal[403, 429]
Action = Literal["allow", "deny"]
ACTIONS: tuple[Action, ...] = get_args(Action)
SubjectsOf = Callable[[str], Iterable[Subject]]
"""The subjects of a request that an entry may mean, by the name of their type."""


class Listed(NamedTuple):
    """One entry of a list."""

    who: Who
    action: Action
    where: str
    """Where it comes from: a setting, an argument, or the id of an entry of the control document."""
    status: Status = 403
    """The status of the refusal, for ``deny``."""
    banned: bool = False
    """Whether it is a ban, which the refusal tells the client."""
    ends_in: float | None = None
    """Seconds until its end, at the time of the request; ``None``: it has no end."""


def declared_lists(written: Iterable[Source], *, deny_status: Status = 403) -> AccessLists | None:
    """The lists of all sources, which stay as they are while the app runs; ``None`` if they are empty. Raises
    :class:`ConfigurationError`."""
    listed = [
        each
        for action in ACTIONS
        for name_of, source in written
        for each in _listed_from(getattr(source, action), action, name_of(action), deny_status)
    ]
    return AccessLists(listed) if listed else None


def _listed_from(texts: Iterable[str], action: Action, where: str, status: Status) -> list[Listed]:
    try:
        return [Listed(Who.parse(text), action, where, status) for text in texts]
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def listing_resolver(time: Callable[[], float], deny_status: Status) -> Callable[[Listing], Listed | None]:
    """A function that turns an entry into a :class:`Listed` at the current ``time``, or ``None`` if it has ended."""

    def resolve(entry: Listing) -> Listed | None:
        ends_in = None if entry.until is None else entry.until - time()
        if ends_in is not None and ends_in <= 0:
            return None
        return Listed(
            entry.who,
            "allow" if entry.kind == "allow" else "deny",
            f"{entry.kind} {entry.id}",
            429 if entry.kind == "ban" else entry.status or deny_status,
            entry.kind == "ban",
            ends_in,
        )

    return resolve


class AccessLists:
    """All lists of an app. Immutable: when a list changes, another object takes its place.

    ``live`` are the entries that control makes while the app runs. There may be very many, so ``resolve`` turns one
    into a :class:`Listed` only when it applies to a request.
    """

    def __init__(
        self,
        listed: Iterable[Listed] = (),
        live: Sequence[Listing] = (),
        *,
        resolve: Callable[[Listing], Listed | None] | None = None,
    ) -> None:
        self.declared: tuple[Listed, ...] = tuple(listed)
        """The entries that stay as long as the app runs."""
        allowed: list[Listed | Listing] = [each for each in self.declared if each.action == "allow"]
        denied: list[Listed | Listing] = [each for each in self.declared if each.action == "deny"]
        for each in live:
            (allowed if each.kind == "allow" else denied).append(each)
        self._allowed, self._denied = _Entries(allowed, resolve), _Entries(denied, resolve)
        listed_types = (type_name for each in (self._allowed, self._denied) for type_name, _ in each.subjects)
        self.type_names: tuple[str, ...] = tuple(dict.fromkeys(listed_types))
        """Types whose subjects are listed, those of which some are allowed first."""
        self.allows_subjects: bool = bool(self._allowed.subjects)
        """Whether any subject is allowed: it may come from a denied address."""

    def of_client(self, address: str, subjects_of: SubjectsOf) -> Listed | None:
        """The entry that applies to a client. Allow entries come before deny entries, and addresses before subjects."""
        by_address = self.of_address(address)
        if by_address is not None and by_address.action == "allow":
            return by_address
        by_subjects = self.of_subjects(subjects_of)
        if by_address is not None and (by_subjects is None or by_subjects.action == "deny"):
            return by_address
        return by_subjects

    def of_address(self, address: str) -> Listed | None:
        """The entry that applies to the address of a client."""
        number = number_of(address)
        if number is None:
            return None
        return self._allowed.at(number) or self._denied.at(number)

    def of_subjects(self, subjects_of: SubjectsOf) -> Listed | None:
        """The entry that applies to the subjects of a request, each of which is resolved once."""
        allowed, denied, found = self._allowed, self._denied, None
        for type_name in self.type_names:
            for subject in subjects_of(type_name):
                if subject in allowed.subjects and (listed := allowed.of_subject(subject)) is not None:
                    return listed
                if found is None and subject in denied.subjects:
                    found = denied.of_subject(subject)
        return found


class _Entries:
    """The entries of one action. Of several that apply, the one for the smallest network decides, or the latest one for
    a subject. If that has ended, the next one decides until new lists take the place of these."""

    def __init__(self, entries: Sequence[Listed | Listing], resolve: Callable[[Listing], Listed | None] | None) -> None:
        self._entries = entries
        self._resolve = resolve
        self.subjects = {(each.who.type_name, each.who.value): each for each in entries if each.who.network is None}
        self._networks = Networks((each.who.network, each) for each in entries if each.who.network is not None)

    def at(self, number: AddressNumber) -> Listed | None:
        found = self._networks.at(number)
        if found is None:
            return None
        return self._if_in_force(found) or self._around(number)

    def of_subject(self, subject: Subject) -> Listed | None:
        who = Who(None, *subject)
        return self._if_in_force(self.subjects[subject]) or self._first_in_force(
            each for each in reversed(self._entries) if each.who == who
        )

    # Only if the entry that decides has just ended, because this looks at all entries

    def _around(self, number: AddressNumber) -> Listed | None:
        """The entry for the smallest network around an address."""
        networks = [(each.who.network, each) for each in self._entries if each.who.network is not None]
        found = [(network.prefixlen, each) for network, each in networks if network.has(number)]
        return self._first_in_force(each for _, each in sorted(found, key=itemgetter(0), reverse=True))

    def _first_in_force(self, found: Iterable[Listed | Listing]) -> Listed | None:
        """The first entry that has not ended."""
        return next((listed for each in found if (listed := self._if_in_force(each)) is not None), None)

    def _if_in_force(self, found: Listed | Listing) -> Listed | None:
        if isinstance(found, Listed):
            return found
        return None if self._resolve is None else self._resolve(found)
