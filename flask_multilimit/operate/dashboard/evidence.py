"""Says what the last hour shows about a change before it is made, and what is not known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...control.document import Difference
from ...observe.events import NEAR_LIMIT
from .hour import Hour

_RULE = re.compile(r"(?P<count>\d+) (?:per (?P<time>[\d.]+m?s)|at once)")
_SHADOW = " (shadow)"
MOST = 50
"""The most sentences about one change."""


class Known(NamedTuple):
    """One sentence about one rule at one endpoint."""

    endpoint: str
    rule: str
    text: str
    """The sentence in English, with places for the numbers; the pages translate it."""
    numbers: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "text": self.text.format(**self.numbers), "template": self.text}


def known_of(hour: Hour | None, differences: Sequence[Difference]) -> list[Known]:
    """What the last hour shows about each rule that changes."""
    if hour is None:
        return []
    found = (known for each in differences for known in _of_endpoint(hour, each))
    unique = {(each.endpoint, each.rule): each for each in found}
    return list(unique.values())[:MOST]


def _of_endpoint(hour: Hour, difference: Difference) -> Iterable[Known]:
    before, after = _by_name(difference.before), _by_name(difference.after)
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if old != new:
            numbers = {did: hour.total(difference.endpoint, name, did) for did in ("refuses", "near", "shadows")}
            yield Known(difference.endpoint, name, _sentence(old, new, numbers), numbers)


def _by_name(texts: Iterable[str]) -> dict[str, str]:
    return dict(text.partition(": ")[::2] for text in texts)


WOULD_HAVE_PASSED = "It refused {refuses:,} checks. They would have passed, unless another rule refuses them."
SHADOW_REFUSES = "As a shadow, it would have refused {shadows:,} checks."
MORE_PASS = "It refused {refuses:,} checks. At most that many more would have passed."
FEW_REFUSED = "It refused {refuses:,} checks. At most {near:,} more would have been refused."
NOBODY_NEAR = "Nobody came near it, and it refused nothing. How near clients came to the new one is not known."
NOT_KNOWN = (
    "It refused {refuses:,} checks, and {near:,} passed with more than 80 % of it used. How many more the new one "
    "would have refused is not known: make it a shadow first, and look here again."
)
NEW = "It did not exist, so nothing is known about it: make it a shadow first, and look here again."
BY_REQUEST = "Its rules depend on the request, so nothing is known about it."


def _sentence(old: str | None, new: str | None, numbers: Mapping[str, int]) -> str:
    if old is None:
        return NEW
    if new is None or (new.endswith(_SHADOW) and not old.endswith(_SHADOW)):
        return SHADOW_REFUSES if old.endswith(_SHADOW) else WOULD_HAVE_PASSED
    if old.endswith(_SHADOW) and not new.endswith(_SHADOW) and old == f"{new}{_SHADOW}":
        return SHADOW_REFUSES
    before, after = _RULE.match(old), _RULE.match(new)
    if before is None or after is None:
        return BY_REQUEST
    share = int(after["count"]) / int(before["count"])
    if before["time"] == after["time"] and share >= NEAR_LIMIT:
        return MORE_PASS if share >= 1 else FEW_REFUSED
    return NOT_KNOWN if numbers["near"] or numbers["refuses"] else NOBODY_NEAR
