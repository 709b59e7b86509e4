"""Reads a Lua file as tokens: which names it declares, where they are known, and what it assigns to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""\s+|--\[(?P<comment>=*)\[.*?\](?P=comment)\]|--[^\n]*|(?P<token>"""
    r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\[(?P<string>=*)\[.*?\](?P=string)\]|[A-Za-z_]\w*|"""
    r"""0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|\.\.\.|\.\.|[=~<>]=|.)""",
    re.DOTALL | re.ASCII,
)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
BLOCKS = frozenset({"function", "if", "do", "repeat"})
_OPENS = BLOCKS | frozenset("([{")
ENDS = frozenset({"end", "until"})
_CLOSES = ENDS | frozenset(")]}")
_PARTS = frozenset({"else", "elseif"})
_BEHIND_A_VALUE = frozenset("[({'\"")
"""How an index, the arguments of a call, or the string that is its only one begins."""
_KEYWORDS = frozenset(
    {
        *("and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil", "not"),
        *("or", "repeat", "return", "then", "true", "until", "while"),
    }
)


class NotUnderstood(Exception):  # noqa: N818 - not an error: the script is not compiled then
    """The text is not Lua, or uses Lua that this module does not know. The message says what."""


class Declaration(NamedTuple):
    """A local name or parameter."""

    name: str
    at: int
    """The index of the token from which on it is known: its own, or of a parameter, that of the closing bracket."""
    end: int
    """The index of the token at which its block ends."""


class Target(NamedTuple):
    """What a statement assigns to, unless it declares it: tokens[start] to tokens[end]."""

    start: int
    end: int


class Source:
    """The tokens of a file, without comments. Raises :class:`NotUnderstood` for text that is not Lua."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = [match["token"] for match in _TOKEN.finditer(text) if match["token"]]
        self._levels: list[int] = []
        self._within: list[int] = []
        """For each token, the index of the innermost one that opens something around it; -1 if there is none."""
        self.ends: dict[int, int] = {}
        """For each token that opens something, the index of the one that closes it, and the other way round."""
        self._nest()
        self.declarations: dict[str, list[Declaration]] = {}
        try:
            self._declare()
            self.targets: list[Target] = list(self._targets())
        except (LookupError, ValueError, StopIteration) as error:
            raise NotUnderstood("a statement breaks off") from error

    def is_name(self, i: int) -> bool:
        """Whether token ``i`` is the name of a variable: no keyword, field, method or key of a table."""
        token = self.tokens[i]
        if not is_name(token):
            return False
        return (i == 0 or self.tokens[i - 1] not in {".", ":"}) and not self._is_key(i)

    def declaration_of(self, i: int) -> Declaration | None:
        """The innermost declaration that name ``i`` refers to; ``None`` if the file declares no such name there."""
        known = [each for each in self.declarations.get(self.tokens[i], ()) if each.at <= i < each.end]
        return max(known, key=lambda each: each.at, default=None)

    def assigned(self) -> Iterator[int]:
        """The indexes of the names that are assigned to."""
        return (target.start for target in self.targets if target.start == target.end)

    def parameters_of(self, function: int) -> tuple[str, ...]:
        begin = self.tokens.index("(", function)
        return tuple(token for token in self.tokens[begin + 1 : self.ends[begin]] if token != ",")

    def body_of(self, function: int) -> range:
        """The indexes of the tokens between the parameters and the end."""
        return range(self.ends[self.tokens.index("(", function)] + 1, self.ends[function])

    def keys_of(self, table: int) -> dict[str, int]:
        """Each ``NAME =`` in the table constructor that token ``table`` opens, with the index of its value. Raises
        :class:`NotUnderstood` for a key that is not written like this, or is there twice."""
        found: dict[str, int] = {}
        for i in range(table + 1, self.ends[table]):
            if self._within[i] != table or self.tokens[i - 1] not in {"{", ",", ";"}:
                continue
            if self.tokens[i] == "[" or (self._is_key(i) and self.tokens[i] in found):
                raise NotUnderstood("a key of its table is computed, or is there twice")
            if self._is_key(i):
                found[self.tokens[i]] = i + 2
        return found

    def is_whole_value(self, function: int) -> bool:
        """Whether the function that starts at token ``function`` is all of the value of its key in a table."""
        return self.tokens[function] == "function" and self.tokens[self.ends[function] + 1] in {",", ";", "}"}

    def _is_key(self, i: int) -> bool:
        return self.tokens[i + 1 : i + 2] == ["="] and self._within[i] >= 0 and self.tokens[self._within[i]] == "{"

    def _nest(self) -> None:
        inside: list[int] = []
        for i, token in enumerate(self.tokens):
            if token in _CLOSES:
                if not inside:
                    raise NotUnderstood(f"nothing is open before {token}")
                self.ends[i] = inside.pop()
                self.ends[self.ends[i]] = i
            self._within.append(inside[-1] if inside else -1)
            self._levels.append(len(inside) - (token in _PARTS))
            if token in _OPENS:
                inside.append(i)
        if inside:
            raise NotUnderstood(f"{self.tokens[inside[-1]]} is not closed")

    def _declare(self) -> None:
        for i, token in enumerate(self.tokens):
            if token == "function":
                at = self.body_of(i).start - 1
                for name in self.parameters_of(i):
                    self._add(name, at, self.ends[i])
            elif token == "for":
                later = range(i, len(self.tokens))
                end = next(self.ends[k] for k in later if self.tokens[k] == "do" and self._levels[k] == self._levels[i])
                for at in self._names_from(i + 1):
                    self._add(self.tokens[at], at, end)
            elif token == "local":
                later = range(i, len(self.tokens))
                end = next((k for k in later if self._levels[k] < self._levels[i]), len(self.tokens))
                for at in self._names_from(i + 1 + (self.tokens[i + 1] == "function")):
                    self._add(self.tokens[at], at, end)

    def _add(self, name: str, at: int, end: int) -> None:
        self.declarations.setdefault(name, []).append(Declaration(name, at, end))

    def _names_from(self, begin: int) -> Iterator[int]:
        yield begin
        while self.tokens[begin + 1 : begin + 2] == [","]:
            begin += 2
            yield begin

    def _targets(self) -> Iterator[Target]:
        for i, token in enumerate(self.tokens):
            if token == "=" and (self._within[i] < 0 or self.tokens[self._within[i]] != "{"):
                found = list(self._targets_before(i))
                if self.tokens[found[-1].start - 1 : found[-1].start] not in (["local"], ["for"]):
                    yield from found
            elif token == "function" and self.tokens[i + 1] != "(" and self.tokens[i - 1 : i] != ["local"]:
                yield Target(i + 1, self.tokens.index("(", i) - 1)

    def _targets_before(self, equals: int) -> Iterator[Target]:
        end = equals - 1
        while True:
            start = self._start_of(end)
            yield Target(start, end)
            if self.tokens[start - 1 : start] != [","]:
                return
            end = start - 2

    def _start_of(self, i: int) -> int:
        """The index of the first token of a target, of which ``i`` is the last."""
        while True:
            if self.tokens[i] in _CLOSES:
                i = self.ends[i]
            if i and self.tokens[i - 1] in {".", ":"}:
                i -= 2
            elif i and self._is_prefix(i):
                i -= 1
            else:
                return i

    def _is_prefix(self, i: int) -> bool:
        """Whether what is before token ``i`` belongs to the same expression, as in ``name[``, ``name(`` or ``)[``."""
        before = self.tokens[i - 1]
        if self.tokens[i][0] not in _BEHIND_A_VALUE:
            return False
        return before in {")", "]", "}"} or before[0] in {"'", '"'} or is_name(before)


def is_name(text: str) -> bool:
    """Whether ``text`` may stand in Lua as a name."""
    return bool(_NAME.fullmatch(text)) and text not in _KEYWORDS
