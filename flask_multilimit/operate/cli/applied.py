"""How answers name the limiters that apply to a subject."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ...declare.subjects import EVERYONE, Subject
from ...engine import Hit
from ...plan.endpoint import Applied


def by_request_of(applied: Iterable[Applied]) -> list[str]:
    """The names of limiters whose rules depend on the request, so that those of the subject are not known here."""
    declarations = [each.declaration for each in applied if not each.known]
    return [declared.name or declared.type_name for declared in declarations]


def subject_of(hit: Hit, applied: Iterable[Applied]) -> str:
    owner = owner_of(hit, applied)
    if isinstance(owner.declaration.type, tuple):  # several together, as JSON
        return " + ".join(_readable(Subject(*part)) for part in json.loads(owner.subject.value))
    return _readable(owner.subject)


def owner_of(hit: Hit, applied: Iterable[Applied]) -> Applied:
    """The limiter that asks for ``hit``."""
    return next(each for each in applied if hit in each.hits)


def _readable(subject: Subject) -> str:
    return "everyone" if subject == EVERYONE else subject.value or "(empty)"
