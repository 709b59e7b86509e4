"""Inlines a Lua function of an algorithm where it would be called, for one hit.

Fields of the hit become literals (``hit.window`` is ``60000000``), parameters the names of the caller, and a
``return`` an assignment that leaves a ``repeat ... until true``. In each run of a script, Lua creates every function
again, and a table for each hit. Inlined code needs neither.

Only what is known to give the same results is written out. A function that calls another one of its file, changes a
parameter, or hands its hit on is called. A file that reaches for what differs between scripts is not compiled at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from .lua import BLOCKS, ENDS, Declaration, NotUnderstood, Source, is_name

_NUMBER = re.compile(r"\d+")
_LITERAL = re.compile(r"\.?\d[\w.]*(?:(?<=[eE])[+-]\d+)?")
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_ENDS_A_BRANCH = ENDS | {"else", "elseif"}
_AFTER_A_VALUE = frozenset({".", ":", "[", "(", "{", "^"})
_OF_THE_PRELUDE = frozenset({"call", "NEVER", "AHEAD", "grace", "horizon", "beyond", "argument", "stamp", "now"})
_GIVEN = _OF_THE_PRELUDE | {
    *("math", "string", "struct", "tonumber", "tostring", "ipairs", "pairs", "unpack", "type"),
}
"""The names from outside that a function may use: those of the prelude and of Lua."""
_OF_THE_SCRIPT = re.compile(r"[a-z]\d+|now|id|delay")
"""The names that a compiled script gives: no local of a function that is written out may have one."""
FIELDS = ("key", "window", "count", "cost", "burst", "max_delay", "shadow", "algorithm")
"""Fields of hits in Lua."""
FIELDS_OF_BANS = ("time", "factor", "most", "memory", "watches")


class CannotBeWrittenOut(Exception):  # noqa: N818 - the caller calls the function instead
    """The function needs something that only a call can give. The message says what."""


class Function(NamedTuple):
    """A function of an algorithm's table, as tokens."""

    parameters: tuple[str, ...]
    body: tuple[str, ...]
    substituted: frozenset[int]
    """The indexes in the body of names that refer to parameters."""

    @classmethod
    def found_in(cls, source: Source, algorithm: str, name: str) -> Function:
        """The function ``name`` in ``algorithms.ALGORITHM``, or in the table that its ``others`` returns, with the
        numbers that the file names written out. Raises :class:`CannotBeWrittenOut`."""
        try:
            start, constants = _found(source, algorithm, name)
        except (NotUnderstood, IndexError) as error:
            raise CannotBeWrittenOut(str(error)) from error
        parameters, body = source.parameters_of(start), source.body_of(start)
        if len(set(parameters)) != len(parameters) or "..." in parameters or not parameters:
            raise CannotBeWrittenOut(f"{name} has no parameters, two of one name, or any number")
        tokens, substituted = list(source.tokens[body.start : body.stop]), set()
        if "function" in tokens or "..." in tokens:
            raise CannotBeWrittenOut(f"{name} creates a function")
        _check_targets(source, body, parameters)
        for i in filter(source.is_name, body):
            declared = source.declaration_of(i)
            if declared in constants:
                tokens[i - body.start] = _constant(source, i, constants[declared])
            elif declared is not None and declared.at == body.start - 1:
                substituted.add(i - body.start)
            else:
                _check_name(source.tokens[i], declared, body, {*parameters, *(each.name for each in constants)})
        return cls(parameters, tuple(tokens), frozenset(substituted))

    def written_out(self, fields: Mapping[str, str], arguments: Sequence[str], results: Sequence[str]) -> str:
        """Lua that assigns to ``results`` what the function returns for a hit of these ``fields`` and the other
        ``arguments``. Raises :class:`CannotBeWrittenOut`."""
        tokens = list(self._with_arguments(fields, arguments))
        return f"repeat {' '.join(_without_returns(tokens, results))} until true\n"

    def fixed_results(self, fields: Mapping[str, str]) -> dict[int, int]:
        """The results that are the same number at every ``return``, by their places."""
        tokens = tuple(self._with_arguments(fields, self.parameters[1:]))
        starts = [i + 1 for i, token in enumerate(tokens) if token == "return"]
        returns = [_expressions(tokens[start : _end_of_return(tokens, start)]) for start in starts]
        places = enumerate(zip(*returns, strict=False))
        return {place: int(found[0]) for place, found in places if len(set(found)) == 1 and _NUMBER.fullmatch(found[0])}

    def _with_arguments(self, fields: Mapping[str, str], arguments: Sequence[str]) -> Iterator[str]:
        hit, *others = self.parameters
        if len(others) > len(arguments):
            raise CannotBeWrittenOut(f"it has more parameters than it gets arguments: {others}")
        names = dict(zip(others, arguments, strict=False))
        rest = enumerate(self.body)
        for i, token in rest:
            if i not in self.substituted:
                yield token
            elif token != hit:
                yield names[token]
            else:
                yield fields[self._field_at(i, fields)]
                next(rest), next(rest)

    def _field_at(self, i: int, fields: Mapping[str, str]) -> str:
        """The field of the hit that is read at index ``i``."""
        dot, field, after = (*self.body[i + 1 : i + 4], "", "", "")[:3]
        if dot != "." or field not in fields:
            raise CannotBeWrittenOut(f"{self.parameters[0]}{dot}{field}: only fields of a hit are written out")
        if after in _AFTER_A_VALUE - {"^"} or after[:1] in {"'", '"'}:
            raise CannotBeWrittenOut(f"{self.parameters[0]}.{field}{after}: only the field itself is written out")
        return field


def can_be_called(source: Source, algorithm: str) -> bool:
    """Whether the functions of the file do the same in a compiled script as in the generic one if they are called. They
    might not if they assign to what other parts of the script read, or read what is there in the generic one only."""
    tokens = source.tokens
    if not is_name(algorithm) or {"KEYS", "ARGV", "rawset"} & set(tokens):
        return False
    own = ["algorithms", ".", algorithm]
    if any(tokens[i : i + 3] != own for i, token in enumerate(tokens) if token == "algorithms" and source.is_name(i)):
        return False
    if any(source.declaration_of(i) is None for i in source.assigned()):
        return False
    tables = set(_tables_of_its_own(source))
    for start, end in source.targets:
        if tokens[end] == "]" and not (source.ends[end] == start + 1 and source.declaration_of(start) in tables):
            return False
        if start != end and tokens[end] in FIELDS:
            return False
    return True


def _tables_of_its_own(source: Source) -> Iterator[Declaration]:
    """The names that refer to a table that the file has made, wherever they are known."""
    assigned = {source.declaration_of(i) for i in source.assigned()}
    for declared in (each for found in source.declarations.values() for each in found):
        begin = declared.at + 2
        if source.tokens[declared.at - 1 : declared.at + 3] != ["local", declared.name, "=", "{"]:
            continue
        follows = source.tokens[source.ends[begin] + 1 : source.ends[begin] + 2]
        if declared not in assigned and follows not in (["and"], ["or"]):
            yield declared


def _found(source: Source, algorithm: str, name: str) -> tuple[int, dict[Declaration, str]]:
    """The index of the function, and the numbers that are known in it by a name."""
    if source.tokens.count("algorithms") != 1:
        raise NotUnderstood("the file names its algorithm more than once")
    start, constants = _after_declarations(source, 0)
    table = start + 4
    if source.tokens[start : table + 1] != ["algorithms", ".", algorithm, "=", "{"]:
        raise NotUnderstood(f"algorithms.{algorithm} = {{ does not follow the declarations")
    if source.tokens[source.ends[table] + 1 :] not in ([], [";"]):
        raise NotUnderstood("something follows the table")
    keys = source.keys_of(table)
    if name not in keys and "others" in keys:
        table, more = _table_of_others(source, keys["others"])
        keys, constants = source.keys_of(table), {**constants, **more}
    if name not in keys or not source.is_whole_value(keys[name]):
        raise NotUnderstood(f"there is no {name} = function")
    return keys[name], constants


def _table_of_others(source: Source, others: int) -> tuple[int, dict[Declaration, str]]:
    if not source.is_whole_value(others) or source.parameters_of(others):
        raise NotUnderstood("others is no function without parameters")
    body = source.body_of(others)
    start, constants = _after_declarations(source, body.start)
    table = start + 1
    if source.tokens[start : table + 1] != ["return", "{"]:
        raise NotUnderstood("others does more than return a table")
    if source.tokens[source.ends[table] + 1 : body.stop] not in ([], [";"]):
        raise NotUnderstood("something follows the table of others")
    return table, constants


def _after_declarations(source: Source, start: int) -> tuple[int, dict[Declaration, str]]:
    """The index of the first statement that is neither ``local function`` nor ``local NAME = NUMBER``; and the numbers
    that never change."""
    tokens, i = source.tokens, start
    assigned = {source.declaration_of(each) for each in source.assigned()}
    numbers: dict[Declaration, str] = {}
    while tokens[i] == "local":
        if tokens[i + 1] == "function":
            i = source.ends[i + 1] + 1
        elif tokens[i + 2 : i + 4] == ["=", "function"]:
            i = source.ends[i + 3] + 1
        else:
            number, following = _number(tokens, i + 3)
            (declared,) = [each for each in source.declarations[tokens[i + 1]] if each.at == i + 1]
            if declared in assigned:
                raise NotUnderstood(f"{declared.name} changes")
            numbers[declared], i = number, following
        i += tokens[i] == ";"
    return i, numbers


def _number(tokens: Sequence[str], i: int) -> tuple[str, int]:
    """The number that is the whole value of a ``local NAME =``, and the index after it."""
    negative = tokens[i] == "-"
    end = i + negative
    if tokens[i - 1] != "=" or not _LITERAL.fullmatch(tokens[end]):
        raise NotUnderstood(f"{tokens[i - 2]} is no number")
    if tokens[end + 1] not in {"local", "algorithms", "return", ";"}:
        raise NotUnderstood(f"{tokens[i - 2]} is computed")
    return "-" * negative + tokens[end], end + 1


def _constant(source: Source, i: int, number: str) -> str:
    if source.tokens[i + 1] in _AFTER_A_VALUE or source.tokens[i + 1][:1] in {"'", '"', "["}:
        raise CannotBeWrittenOut(f"{source.tokens[i]}{source.tokens[i + 1]} cannot be written with a number")
    return number


def _check_targets(source: Source, body: range, parameters: Sequence[str]) -> None:
    for start, end in source.targets:
        if start not in body:
            continue
        declared = source.declaration_of(start)
        if start == end and (declared is None or declared.at < body.start):
            raise CannotBeWrittenOut(f"it changes {source.tokens[start]}")
        if declared is not None and declared.at == body.start - 1 and source.tokens[start] == parameters[0]:
            raise CannotBeWrittenOut("it changes its hit")


def _check_name(name: str, declared: Declaration | None, body: range, taken: set[str]) -> None:
    """Raise :class:`CannotBeWrittenOut` for a name that is neither given nor the function's own."""
    if declared is None and name not in _GIVEN:
        raise CannotBeWrittenOut(f"{name} is not known outside of its file")
    if declared is not None and declared.at < body.start:
        raise CannotBeWrittenOut(f"{name} is declared outside of the function")
    if declared is not None and (name in taken | _GIVEN or _OF_THE_SCRIPT.fullmatch(name)):
        raise CannotBeWrittenOut(f"a local is called {name}, as something else")


def _without_returns(tokens: Sequence[str], results: Sequence[str]) -> Iterator[str]:
    inside: list[str] = []
    i = 0
    while i < len(tokens):
        token = tokens[i]
        if token in BLOCKS:
            inside.append(token)
        elif token in ENDS:
            inside.pop()
        if token != "return":
            yield token
            i += 1
            continue
        if set(inside) - {"if"}:
            raise CannotBeWrittenOut("a return inside of a loop or of a function")
        stop = _end_of_return(tokens, i + 1)
        values = list(tokens[i + 1 : stop])
        if values[-1:] == [";"]:
            values.pop()
        yield f"{_assignment(results, values)}break"
        i = stop


def _assignment(results: Sequence[str], values: Sequence[str]) -> str:
    """Assigns the ``values`` of a return to ``results``. Either may be empty."""
    if results or values:
        return f"{','.join(results) or 'local _'} = {' '.join(values) or 'nil'} "
    return ""


def _end_of_return(tokens: Sequence[str], begin: int) -> int:
    depth = 0
    for i in range(begin, len(tokens)):
        if depth == 0 and tokens[i] in _ENDS_A_BRANCH:
            return i
        depth += (tokens[i] in BLOCKS) - (tokens[i] in ENDS)
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
