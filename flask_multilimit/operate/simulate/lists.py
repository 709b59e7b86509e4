"""Asks the allow and deny lists of the app about the clients of a log."""

from __future__ import annotations

from collections.abc import Mapping

from ...declare.subjects import Subject, Subjects
from ...plan.plans import Plans
from ...serve.access import AccessLists, Action
from .logs.logged import LoggedRequest
from .who import IP, Who


class Lists:
    """The lists of the settings and of the control document as they are now, whatever they were when a request came."""

    def __init__(self, access: AccessLists, plans: Plans, subjects: Subjects, who: Who) -> None:
        self._access = access
        self._types = {name: plans.types[name] for name in access.type_names if name in plans.types}
        self._subjects = subjects
        self._untold = tuple(
            f"entries of lists for {name!r}: the log does not tell it; name a field (--subject {name}=FIELD)"
            for name in sorted(access.type_names)
            if not who.tells(name)
        )

    def of(self, request: LoggedRequest, subjects: Mapping[str, str]) -> Action | None:
        """The list that the client of ``request`` is on; ``None`` if it is on none, so limits apply."""
        if request.recorded is not None:
            return None
        resolve = self._subjects.given(subjects)

        def subject_of(type_name: str) -> Subject | None:
            type_ = self._types.get(type_name)
            return None if type_ is None else resolve(type_, type_name)

        listed = self._access.of_client(subjects[IP], subject_of)
        return None if listed is None else listed.action

    def untold(self, request: LoggedRequest) -> tuple[str, ...]:
        """What the log does not say about this client."""
        if request.recorded is not None:
            return ("allow and deny lists: not replayed for what was recorded, as its subjects are hashed",)
        return self._untold
