"""Finds the subjects of a logged request, as far as the log contains them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...declare.subjects import ANONYMOUS, EVERYONE, LimitType
from ...engine.errors import check_mapping
from .logs.logged import LoggedRequest

IP, USER = LimitType.IP.value, LimitType.USER.value


class Who:
    """Finds subjects.

    :param fields: the field of the log that has the subject, by the type's name: ``{"api_key": "X-Api-Key"}``. It can
        also name other fields for ``ip`` and ``user``. If the field of ``ip`` is a list, as ``X-Forwarded-For`` is,
        the last address counts.
    """

    def __init__(self, fields: Mapping[str, str], headers: Collection[str] = ()) -> None:
        check_fields(fields)
        self.fields: dict[str, str] = dict(fields)
        self.headers: frozenset[str] = frozenset(headers)
        """Types whose subject is a header field. Without the field, the subject is the empty text."""

    def subjects_of(self, request: LoggedRequest) -> dict[str, str]:
        """By type."""
        if request.recorded is not None:
            return {EVERYONE.type: EVERYONE.value, **request.recorded.subjects}
        subjects = {EVERYONE.type: EVERYONE.value, IP: request.address}
        if request.user is not None:
            subjects[USER] = request.user
        for type_, field in self.fields.items():
            value = request.fields.get(field, "" if type_ in self.headers else None)
            if value is not None:
                subjects[type_] = value.rpartition(",")[2].strip() if type_ == IP else value
        if USER not in subjects:
            subjects[ANONYMOUS] = subjects[IP]
        return subjects

    def tells(self, type_: str) -> bool:
        """Whether the log can contain subjects of this type."""
        return type_ in {EVERYONE.type, IP, USER, *self.fields}


def check_fields(subjects: object) -> None:
    """Raise :class:`ConfigurationError` unless ``subjects`` are fields of a log by type."""
    check_mapping("subjects", subjects, 'a dict by type, such as {"api_key": "X-Api-Key"}')


def client_of(subjects: Mapping[str, str]) -> str:
    """The name of the client to show: the user, or if nobody is logged in, the address."""
    if USER in subjects:
        return f"user {subjects[USER]}"
    return subjects.get(IP) or subjects.get(ANONYMOUS) or "unknown"
