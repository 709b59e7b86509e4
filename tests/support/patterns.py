"""Proves that a regular expression takes linear time, by the shape of its automaton."""

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import flask_multilimit

parser: Any = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

ANCHORED = frozenset({"match", "fullmatch"})
USES = ANCHORED | {"search", "findall", "finditer", "sub", "split"}
LONGEST_UNROLLED = 200
"""A repeat of at most so many is bounded: it costs a constant."""
BEGINNING = "the beginning of the text, which is there once"
_CATEGORIES = {"DIGIT": r"\d", "NOT_DIGIT": r"\D", "SPACE": r"\s", "NOT_SPACE": r"\S", "WORD": r"\w", "NOT_WORD": r"\W"}
_LOOPS = {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}


@dataclass
class _Fragment:
    """Part of an automaton whose states are the characters of the pattern."""

    nullable: bool = True
    first: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)


class Automaton:
    """The automaton of Glushkov: a state for each character of the pattern; state 0 is before all of them."""

    def __init__(self, pattern: str, flags: int = 0, *, anchored: bool) -> None:
        parsed = parser.parse(pattern, flags)
        self._flags = parsed.state.flags
        literals = {chr(each) for each in map(ord, pattern)}
        self._alphabet = sorted(literals | set(map(chr, range(256))) | set("\u0130\u0665\u4e2d\u2028"))
        self.reads: list[frozenset[str]] = [frozenset()]
        self.follow: list[set[int]] = [set()]
        whole = self._sequence(parsed)
        if not anchored:
            before = self._loop(self._character(frozenset(self._alphabet)), nullable=True)
            whole = self._after(before, whole)
        self.follow[0] = set(whole.first)
        self.accepting = whole.last | ({0} if whole.nullable else set())
        self.anchored = anchored

    @property
    def is_linear(self) -> bool:
        """Whether no text can be read in a number of ways that grows with its length: there are no states p and q, and
        no word that leads from p to p, from p to q and from q to q (Weber and Seidl, 1991)."""
        looping = [state for state in range(1, len(self.reads)) if state in self._reachable(self.follow[state])]
        return not any(self._is_ambiguous(p, q) for p in looping for q in looping if p != q and self._may_fail(q))

    def _may_fail(self, q: int) -> bool:
        """A search that may stop at ``q`` has found something, and tries no other way."""
        return self.anchored or q not in self.accepting

    def _is_ambiguous(self, p: int, q: int) -> bool:
        if q not in self._reachable(self.follow[p]):
            return False
        seen, waiting = set(), [(p, p, q)]
        while waiting:
            a, b, c = waiting.pop()
            for x in self.follow[a]:
                for y in self.follow[b]:
                    both = self.reads[x] & self.reads[y]
                    for z in self.follow[c] if both else ():
                        if (x, y, z) not in seen and both & self.reads[z]:
                            seen.add((x, y, z))
                            waiting.append((x, y, z))
        return (p, q, q) in seen

    def _reachable(self, states: Iterable[int]) -> set[int]:
        found: set[int] = set()
        waiting = list(states)
        while waiting:
            state = waiting.pop()
            if state not in found:
                found.add(state)
                waiting += self.follow[state]
        return found

    def _sequence(self, nodes: Iterable[Any]) -> _Fragment:
        whole = _Fragment()
        for node in nodes:
            whole = self._after(whole, self._node(*node))
        return whole

    def _after(self, one: _Fragment, other: _Fragment) -> _Fragment:
        for state in one.last:
            self.follow[state] |= other.first
        return _Fragment(
            one.nullable and other.nullable,
            one.first | other.first if one.nullable else one.first,
            other.last | one.last if other.nullable else other.last,
        )

    def _node(self, code: Any, value: Any) -> _Fragment:
        name = str(code)
        if name in {"AT", "ASSERT", "ASSERT_NOT"}:
            return self._character(frozenset({BEGINNING})) if self._is_beginning(value) else _Fragment()
        if name in _LOOPS:
            return self._repeat(*value)
        if name == "SUBPATTERN":
            return self._sequence(value[3])
        if name == "ATOMIC_GROUP":
            return self._sequence(value)
        if name == "BRANCH":
            ways = [self._sequence(way) for way in value[1]]
            return _Fragment(
                any(way.nullable for way in ways),
                set().union(*(way.first for way in ways)),
                set().union(*(way.last for way in ways)),
            )
        return self._character(self._characters(name, value))

    def _is_beginning(self, value: Any) -> bool:
        return str(value) in {"AT_BEGINNING", "AT_BEGINNING_STRING"} and not self._flags & re.MULTILINE

    def _repeat(self, least: int, most: Any, nodes: Any) -> _Fragment:
        if most is parser.MAXREPEAT or most > LONGEST_UNROLLED:
            return self._loop(self._sequence(nodes), nullable=least == 0)
        once = self._sequence(nodes)
        once.nullable = once.nullable or least == 0
        if most <= 1:
            return once
        again = self._sequence(nodes)
        again.nullable = True
        return self._after(once, again)

    def _loop(self, once: _Fragment, *, nullable: bool) -> _Fragment:
        for state in once.last:
            self.follow[state] |= once.first
        return _Fragment(nullable or once.nullable, once.first, once.last)

    def _character(self, reads: frozenset[str]) -> _Fragment:
        self.reads.append(reads)
        self.follow.append(set())
        state = len(self.reads) - 1
        return _Fragment(False, {state}, {state})

    def _characters(self, name: str, value: Any) -> frozenset[str]:
        if name == "LITERAL":
            return self._cased({chr(value)})
        if name == "NOT_LITERAL":
            return frozenset(self._alphabet) - self._cased({chr(value)})
        if name == "ANY":
            return frozenset(self._alphabet) - (frozenset() if self._flags & re.DOTALL else {"\n"})
        if name == "RANGE":
            return self._cased({each for each in self._alphabet if value[0] <= ord(each) <= value[1]})
        if name == "CATEGORY":
            category = _CATEGORIES[str(value).removeprefix("CATEGORY_").removeprefix("UNI_")]
            return frozenset(each for each in self._alphabet if re.match(category, each, self._flags & re.ASCII))
        if name == "IN":
            negated = str(value[0][0]) == "NEGATE"
            found = frozenset().union(*(self._characters(str(code), each) for code, each in value[negated:]))
            return frozenset(self._alphabet) - found if negated else found
        raise NotImplementedError(name)  # such as a reference to a group: nothing here proves that it is linear

    def _cased(self, found: set[str]) -> frozenset[str]:
        if not self._flags & re.IGNORECASE:
            return frozenset(found)
        return frozenset(found | {each.lower() for each in found} | {each.upper() for each in found})


@dataclass(frozen=True)
class Used:
    """A regular expression where the package uses it."""

    place: str
    pattern: str
    flags: int
    use: str
    """``fullmatch``, ``search`` and so on."""

    def __str__(self) -> str:
        return f"{self.place} {self.use} {self.pattern}"

    @property
    def is_linear(self) -> bool:
        return Automaton(self.pattern, self.flags, anchored=self.use in ANCHORED).is_linear


PACKAGE = Path(flask_multilimit.__file__).parent
TRUSTED = {
    "engine/storage/redis/compiled.py",  # these three read files of this package
    "engine/storage/redis/scripts.py",
    "observe/boards.py",
    "operate/simulate/formats.py",  # compiles what an operator gives as --regex and --format
}
"""Files whose patterns match only text of this package, or are the operator's own."""


def patterns_of_the_package() -> Iterator[Used]:
    """Every regular expression in the source, with each of its uses. Raises if one of them cannot be evaluated."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    uses = _uses_by_name(trees.values())
    for path, tree in trees.items():
        for call, name in _calls(tree):
            place = path.relative_to(PACKAGE).as_posix()
            if place in TRUSTED:
                continue
            pattern, flags = _evaluated(path, call)
            function = ast.unparse(call.func)[3:]
            for use in uses.get(name, {"search"}) if function == "compile" else {function}:
                yield Used(place, pattern, flags, use)


def _calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """The calls of functions of ``re`` that take a pattern, each with the name that is given to the result."""
    named = {id(node.value): ast.unparse(target) for node, target in _assignments(tree)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func.value) == "re"
            and node.func.attr in USES | {"compile"}
        ):
            yield node, named.get(id(node), "")


def _assignments(tree: ast.AST) -> Iterator[tuple[ast.Assign, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from ((node, target) for target in node.targets)


def _uses_by_name(trees: Iterable[ast.AST]) -> dict[str, set[str]]:
    """How compiled patterns are used, by their names: those are different everywhere."""
    found: dict[str, set[str]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in USES and isinstance(node.value, ast.Name):
                found.setdefault(node.value.id, set()).add(node.attr)
    return found


def _evaluated(path: Path, call: ast.Call) -> tuple[str, int]:
    module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    names = vars(import_module(module))
    keywords = {each.arg: each.value for each in call.keywords if each.arg}
    given = inspect.signature(getattr(re, ast.unparse(call.func)[3:])).bind(*call.args, **keywords).arguments
    pattern, flags = (eval(ast.unparse(given[name]), names) if name in given else 0 for name in ("pattern", "flags"))
    return str(pattern), int(flags)
