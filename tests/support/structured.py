"""A strict reader of the structured fields (RFC 9651) that tests expect: lists of strings with integer parameters."""

from __future__ import annotations

import re
from typing import NamedTuple

# RFC 9651, 3.3.3: printable ASCII, with \" and \\ as the only escapes; 3.3.1: at most 15 digits, no "+", no "007"
# as senders write them; 3.1.2: a key begins with a lower-case letter or "*".
_STRING = r'"(?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"'
_INTEGER = r"-?(?:0|[1-9][0-9]{0,14})"
_PARAMETER = rf"; *([a-z*][a-z0-9_\-.*]*)=({_INTEGER})"
_ITEM = re.compile(rf"({_STRING})((?:{_PARAMETER})*)")
_PARAMETERS = re.compile(_PARAMETER)
_SEPARATOR = re.compile(r"[ \t]*,[ \t]*")


class Item(NamedTuple):
    name: str
    parameters: dict[str, int]


def read_list(field: str) -> list[Item]:
    """Raises ``ValueError`` for whatever a recipient would have to ignore."""
    items, position = [], 0
    while True:
        match = _ITEM.match(field, position)
        if match is None:
            raise ValueError(f"no item at {position} of {field!r}")
        parameters = _PARAMETERS.findall(match[2])
        if len(dict(parameters)) != len(parameters):
            raise ValueError(f"a parameter twice in {match[0]!r}")
        items.append(Item(_unquoted(match[1]), {key: int(value) for key, value in parameters}))
        if match.end() == len(field):
            return items
        separator = _SEPARATOR.match(field, match.end())
        if separator is None:
            raise ValueError(f"no separator at {match.end()} of {field!r}")
        position = separator.end()


def _unquoted(text: str) -> str:
    return re.sub(r'\\(["\\])', r"\1", text[1:-1])
