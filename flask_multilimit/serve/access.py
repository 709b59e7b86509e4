"""Allow and deny, before any limit is asked: who passes, who is refused, and who is limited like everyone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from flask import Request

from ..declare.networks import Networks
from ..declare.subjects import Subject
from ..declare.who import Who
from ..engine import ConfigurationError

Status = Literal[403, 429]
Action = Literal["allow", "deny"]
SubjectOf = Callable[[str], "Subject | None"]
"""The subject of the current request, by the name of its type."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry of a list."""

    who: Who
    action: Action
    where: str
    """What put it there: a setting, an argument, or the id of an entry of the control document."""
    status: Status = 403
    """Of the refusal, for ``deny``."""
    banned: bool = False
    """Whether it is a ban, and says so."""
    ends_in: Callable[[], float] | None = None
    """Seconds until its end, asked when it refuses; ``None``: it lasts."""


def listed_from(texts: Iterable[str], action: Action, where: str, *, status: Status = 403) -> list[Listed]:
    """The entries of a list that is written at ``where``. Raises :class:`ConfigurationError`."""
    try:
        return [Listed(Who.parse(text), action, where, status) for text in texts]
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None


class AccessLists:
    """All lists of an app. Immutable: when a list changes, another one takes its place."""

    def __init__(self, listed: Iterable[Listed] = ()) -> None:
        listed = tuple(listed)
        self._size = len(listed)
        self._allowed = _Found(each for each in listed if each.action == "allow")
        self._denied = _Found(each for each in listed if each.action == "deny")
        self.type_names: frozenset[str] = self._allowed.type_names | self._denied.type_names
        """Types whose subjects are listed."""

    def __len__(self) -> int:
        return self._size

    def of_address(self, asked: Request) -> Listed | None:
        """What holds for the address of a request, as far as networks tell."""
        address = asked.remote_addr or ""
        return self._allowed.networks.find(address) or self._denied.networks.find(address)

    def of_subjects(self, subject_of: SubjectOf) -> Listed | None:
        """What holds for the subjects of the current request."""
        return self._allowed.of_subjects(subject_of) or self._denied.of_subjects(subject_of)

    @property
    def allows_subjects(self) -> bool:
        """Whether a subject may be allowed whose address is denied."""
        return bool(self._allowed.type_names)


class _Found:
    """The entries of one action."""

    def __init__(self, listed: Iterable[Listed]) -> None:
        listed = tuple(listed)
        self.networks: Networks[Listed] = Networks(
            (each.who.network, each) for each in listed if each.who.network is not None
        )
        self._subjects = {(each.who.type_name, each.who.value): each for each in listed if each.who.network is None}
        self.type_names = frozenset(type_name for type_name, _ in self._subjects)

    def of_subjects(self, subject_of: SubjectOf) -> Listed | None:
        for type_name in self.type_names:
            subject = subject_of(type_name)
            if subject is not None and (found := self._subjects.get((type_name, subject.value))) is not None:
                return found
        return None
