"""Asks the allow and deny lists about the current request."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal, NoReturn

from flask import Request

from ..declare.subjects import LimitType, Resolve, Subject, current_request
from ..observe.events import Outcome
from ..plan.sources import UNMATCHED_SCOPE
from ..signals import notify, request_denied
from .audience import tell_of
from .in_force import InForce
from .record import NO_PLAN, Record
from .refusal import Refusals

if TYPE_CHECKING:
    from ..declare.who import Who
    from .access import AccessLists, Listed


class AccessCheck:
    """Asks the lists of one app twice per request: about the address when the request begins, and about the subjects,
    which may be known only later, before its limits are checked."""

    def __init__(self, in_force: InForce, refusals: Refusals) -> None:
        self._in_force = in_force
        self._refusals = refusals

    def turn_away(self, asked: Request, lists: AccessLists) -> None:
        """Raise :exc:`AccessDenied` for an address that is denied, unless its subject may be allowed."""
        if not lists.allows_subjects:
            listed = lists.of_address(asked.remote_addr or "")
            if listed is not None and listed.action == "deny":
                self._deny(listed)

    def allows(self, record: Record | None, *, ended: bool = False) -> bool:
        """Whether the current request, whose ``record`` this is, needs no limits. Raises :exc:`AccessDenied`.

        If it ``ended`` before its view, the user may be unknown.
        """
        lists = self._in_force.access
        if lists is None or record is None:
            return False
        if record.access == "unknown":
            record.access = self._found_in(lists, record, ended=ended)
        return record.access == "allowed"

    def _found_in(self, lists: AccessLists, record: Record, *, ended: bool) -> Literal["limited", "allowed"]:
        subjects = self._in_force.subjects
        subject_of = partial(self._subject_of, subjects.resolve_if_found if ended else subjects.resolve)
        listed = lists.of_client(current_request().remote_addr or "", subject_of)
        if listed is None:
            return "limited"
        if listed.action == "deny":
            self._deny(listed)
        if record.plan.limiters or record.plan is NO_PLAN:  # otherwise everyone passes, listed or not
            tell_of("allow_listed", self._in_force.audience, endpoint=self._endpoint(), decided_by="list")
        return "allowed"

    def _deny(self, listed: Listed) -> NoReturn:
        outcome: Outcome = "banned" if listed.banned else "denied"
        who = self._named(listed.who)
        tell_of(outcome, self._in_force.audience, endpoint=self._endpoint(), decided_by="list", who=who)
        notify(request_denied, self._in_force.app, listed=listed, endpoint=current_request().endpoint)
        raise self._refusals.denied(listed, self._in_force.settings)

    def _named(self, who: Who) -> Subject | None:
        """The subject of an entry; for a network, the address of the client."""
        if who.network is None:
            return Subject(who.type_name, who.value)
        return self._in_force.subjects.resolve(LimitType.IP, None)

    @staticmethod
    def _endpoint() -> str:
        return current_request().endpoint or UNMATCHED_SCOPE

    def _subject_of(self, resolve: Resolve, type_name: str) -> Subject | None:
        type_ = self._in_force.plans.types.get(type_name)
        return None if type_ is None else resolve(type_, type_name)
