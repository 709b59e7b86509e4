"""The allow and deny lists of the app, asked about the clients of a log."""

from __future__ import annotations

from collections.abc import Mapping

from ...declare.subjects import Subject, Subjects
from ...plan.plans import Plans
from ...serve.access import AccessLists, Action
from .logs.logged import LoggedRequest
from .who import IP, Who


class Lists:
    """What is in force now, of the settings and of the control document; also of requests from before it was."""

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
        """What holds for the client of ``request``; ``None``: the limits."""
        if request.recorded is not None:
            return None
        resolve = self._subjects.given(subjects)

        def subject_of(type_name: str) -> Subject | None:
            type_ = self._types.get(type_name)
            return None if type_ is None else resolve(type_, type_name)

        listed = self._access.of_client(subjects[IP], subject_of)
        return None if listed is None else listed.action

    def untold(self, request: LoggedRequest) -> tuple[str, ...]:
        """What cannot be known of this client."""
        if request.recorded is not None:
            return ("allow and deny lists: not replayed for what was recorded, as its subjects are hashed",)
        return self._untold
