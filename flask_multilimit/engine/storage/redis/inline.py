"""Inlines a Lua function of an algorithm where it would be called, for one hit.

Fields of the hit become literals (``hit.window`` is ``60000000``), parameters the names of the caller, and a
``return`` an assignment that leaves a ``repeat ... until true``. In each run of a script, Lua creates every function
again, and a table for each hit. Inlined code needs neither.

Some functions cannot be written out, for instance those that call a function of their own file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?:\s+|--[^\n]*)|('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[A-Za-z_]\w*|"""
    r"""0[xX][0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\.\.\.|\.\.|[=~<>]=|.)"""
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"\d+")
_CONSTANT = re.compile(r"^local ([A-Za-z_]\w*) = (-?\d+(?:\.\d+)?)\s*(?:--.*)?$", re.MULTILINE)
_OPENS = frozenset({"function", "if", "do", "repeat"})
_CLOSES = frozenset({"end", "until"})
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_ENDS_A_BRANCH = _CLOSES | {"else", "elseif"}
_KEYWORDS = frozenset(
    {
        *("and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil", "not"),
        *("or", "repeat", "return", "then", "true", "until", "while"),
    }
)
_GIVEN = frozenset(
    {
        *("call", "NEVER", "AHEAD", "grace", "horizon", "beyond", "argument", "stamp", "now", "id"),
        *("math", "string", "struct", "tonumber", "tostring", "ipairs", "pairs", "unpack", "type"),
    }
)
"""The names from outside that a function may use: those of the prelude and of Lua."""


class CannotBeWrittenOut(Exception):  # noqa: N818 - the caller calls the function instead
    """The function needs something that only a call can give. The message says what."""


class Function(NamedTuple):
    """A function of an algorithm's table, as tokens."""

    parameters: tuple[str, ...]
    body: tuple[str, ...]

    @classmethod
    def found_in(cls, text: str, name: str) -> Function:
        """``name = function(...) ... end`` in ``text``, with the numbers that the file names written out. Raises
        :class:`CannotBeWrittenOut`."""
        tokens = [token for token in _TOKEN.findall(text) if token]
        starts = [i for i in range(len(tokens)) if tokens[i : i + 3] == [name, "=", "function"]]
        if len(starts) != 1:
            raise CannotBeWrittenOut(f"there is no single {name} = function")
        begin = tokens.index(")", starts[0])
        parameters = tuple(token for token in tokens[starts[0] + 4 : begin] if token != ",")
        body = tokens[begin + 1 : _end_of_block(tokens, begin + 1)]
        numbers = dict(_CONSTANT.findall(text))
        function = cls(parameters, tuple(numbers.get(token, token) for token in body))
        function._check_names()
        return function

    def written_out(self, fields: Mapping[str, str], arguments: Sequence[str], results: Sequence[str]) -> str:
        """Lua that assigns to ``results`` what the function returns for a hit of these ``fields`` and the other
        ``arguments``. Raises :class:`CannotBeWrittenOut`."""
        names = dict(zip(self.parameters[1:], arguments, strict=False))
        tokens = list(_with_arguments(self.body, self.parameters[0], fields, names))
        return f"repeat {' '.join(_without_returns(tokens, results))} until true\n"

    def fixed_results(self, fields: Mapping[str, str]) -> dict[int, int]:
        """The results that are the same number at every ``return``, by their places."""
        tokens = tuple(_with_arguments(self.body, self.parameters[0], fields, {}))
        starts = [i + 1 for i, token in enumerate(tokens) if token == "return"]
        returns = [_expressions(tokens[start : _end_of_return(tokens, start)]) for start in starts]
        places = enumerate(zip(*returns, strict=False))
        return {place: int(found[0]) for place, found in places if len(set(found)) == 1 and _NUMBER.fullmatch(found[0])}

    def _check_names(self) -> None:
        """Raise :class:`CannotBeWrittenOut` for a name that is neither given nor the function's own."""
        own = _locals_of(self.body)
        if own & set(self.parameters):
            raise CannotBeWrittenOut("a local has the name of a parameter")
        known = own | _KEYWORDS | _GIVEN | set(self.parameters)
        for i, token in enumerate(self.body):
            if _NAME.fullmatch(token) and token not in known and self.body[i - 1 : i] not in ((".",), (":",)):
                raise CannotBeWrittenOut(f"{token} is not known outside of its file")


def _with_arguments(
    body: Sequence[str], hit: str, fields: Mapping[str, str], names: Mapping[str, str]
) -> Iterator[str]:
    whole = "{" + ",".join(f"{name}={value}" for name, value in fields.items()) + "}"
    rest = enumerate(body)
    for i, token in rest:
        if body[i - 1 : i] == (".",):
            yield token
        elif token != hit:
            yield names.get(token, token)
        elif body[i + 1] != ".":
            yield whole
        elif body[i + 2] not in fields or body[i + 3 : i + 4] == ("=",):
            raise CannotBeWrittenOut(f"{hit}.{body[i + 2]} cannot be used in this way")
        else:
            yield fields[body[i + 2]]
            next(rest), next(rest)


def _without_returns(tokens: Sequence[str], results: Sequence[str]) -> Iterator[str]:
    inside: list[str] = []
    i = 0
    while i < len(tokens):
        token = tokens[i]
        if token in _OPENS:
            inside.append(token)
        elif token in _CLOSES:
            inside.pop()
        if token != "return":
            yield token
            i += 1
            continue
        if set(inside) - {"if"}:
            raise CannotBeWrittenOut("a return inside of a loop or of a function")
        stop = _end_of_return(tokens, i + 1)
        yield f"{','.join(results)} = {' '.join(tokens[i + 1 : stop])} break"
        i = stop


def _end_of_block(tokens: Sequence[str], begin: int) -> int:
    depth = 1
    for i in range(begin, len(tokens)):
        depth += (tokens[i] in _OPENS) - (tokens[i] in _CLOSES)
        if depth == 0:
            return i
    raise CannotBeWrittenOut("a block without an end")


def _end_of_return(tokens: Sequence[str], begin: int) -> int:
    depth = 0
    for i in range(begin, len(tokens)):
        if depth == 0 and tokens[i] in _ENDS_A_BRANCH:
            return i
        depth += (tokens[i] in _OPENS) - (tokens[i] in _CLOSES)
    return len(tokens)


def _expressions(tokens: Iterable[str]) -> list[str]:
    """The expressions of a list with commas between."""
    found, depth = [""], 0
    for token in tokens:
        depth += (token in _OPENING) - (token in _CLOSING)
        if token == "," and not depth:
            found.append("")
        else:
            found[-1] += token
    return found


def _locals_of(body: Sequence[str]) -> set[str]:
    """The names after ``local`` and ``for``."""
    return {name for i, token in enumerate(body) if token in {"local", "for"} for name in _names_from(body, i + 1)}


def _names_from(body: Sequence[str], begin: int) -> Iterator[str]:
    yield body[begin]
    while body[begin + 1 : begin + 2] == (",",):
        begin += 2
        yield body[begin]
