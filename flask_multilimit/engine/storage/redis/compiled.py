"""A check compiled for the shape of its plan, as a database prepares a statement.

The shape of a plan is the algorithm, quota, cost and shadow of each hit, in order. The script of a shape is a straight
line: no table, no loop and no function for a hit, and the quotas are numbers in its text rather than arguments. It
serves a plain check by the server's clock when all hits charge something. When a hit refuses, it is a straight line as
well; with shadows or bans among the hits it goes on as the generic script does, with the same ``finish.lua``. A peek, a
repeated check and a refund always take the generic script.

Its reply leaves out what the shape determines, if all its hits are such that a charge always ends in the same
``reset_after``, as a sliding window's does, and none has a delay.

Algorithms need not support this. ``evaluate`` and ``charge`` of ``NAME.lua`` are written out for each hit where that is
possible (:mod:`.inline`), and called with a table for the hit where it is not. So are ``drop_future`` and
``reset_after`` of its ``others``. If even a call might not do what it does in the generic script, the shape is not
compiled.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, cast

from ...algorithms import BAN, Quota
from ...hits import Hit, bans_among
from ...reply import frame_of
from .scripts import library, script_of, source, source_of_algorithm, strikes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...algorithms.ban import BanQuota
    from .inline import Function
    from .lua import Source

    Pair = tuple[Function, Function]

MOST_HITS = 20
"""The most hits in a compiled script: Lua allows 200 local names, and each hit needs six."""


class Shaped(NamedTuple):
    """One hit of a shape."""

    algorithm: str
    quota: Quota
    cost: int
    shadow: bool
    watches: tuple[int, ...] = ()
    """For a ban: the indexes of the hits that it watches, counted from 1."""


Shape = tuple[Shaped, ...]


class CannotBeCompiled(Exception):  # noqa: N818 - the shape keeps to the generic script
    """The Lua of an algorithm might do something else in a compiled script. The message is its name."""


class Compiled(NamedTuple):
    """The script of a shape."""

    text: str
    sha: str
    """Its name for EVALSHA."""
    frame: list[int] | None
    """What its reply leaves out (:func:`.completed`); ``None``: nothing."""


def shape_of(hits: tuple[Hit, ...]) -> Shape | None:
    """The shape of ``hits``; ``None`` if they can have no compiled script."""
    if len(hits) > MOST_HITS:
        return None
    if any(hit.cost == 0 for hit in hits):
        return _shape_with_bans(hits)
    return tuple(Shaped(hit.rule.algorithm, hit.rule.quota, hit.cost, hit.shadow) for hit in hits)


def _shape_with_bans(hits: tuple[Hit, ...]) -> Shape | None:
    watches = {place: tuple(each + 1 for each in watched) for place, _, watched in bans_among(hits)}
    if any(hit.cost == 0 and place not in watches for place, hit in enumerate(hits)):
        return None
    return tuple(
        Shaped(hit.rule.algorithm, hit.rule.quota, hit.cost, hit.shadow, watches.get(place, ()))
        for place, hit in enumerate(hits)
    )


def compiled(shape: Shape, *, clocked: bool = False) -> Compiled:
    """The script of ``shape``. KEYS are those of the hits, ARGV[1] is the id of the check; if ``clocked``, for tests,
    ARGV[2] is the time in microseconds. Raises :class:`CannotBeCompiled`."""
    each = [_Hit(i, shaped) for i, shaped in enumerate(shape, 1)]
    written_out = {hit.name for hit in each if hit.is_written_out}
    called = {hit.name for hit in each} - written_out
    allowed = " and ".join(f"w{hit.i} == 0" for hit in each)
    reset_afters = [hit.reset_after for hit in each]
    fixed = [reset_after for reset_after in reset_afters if reset_after is not None]
    frame = frame_of(fixed) if len(fixed) == len(each) else None
    if frame is None:
        answer = ["now,1,delay", *(f"r{hit.i}-{hit.shaped.cost},0,e{hit.i}" for hit in each)]
    else:
        answer = ["now", *(f"r{hit.i}-{hit.shaped.cost}" for hit in each)]
    text, sha = script_of(
        [
            source("prelude").replace("ARGV[4]", "ARGV[2]" if clocked else "nil"),
            "local id = ARGV[1]\n",
            *library(called),
            *(hit.as_local() for hit in each),
            *(hit.evaluate() for hit in each),
            "local delay = 0\n",
            *(f"if c{hit.i} > delay then delay = c{hit.i} end\n" for hit in each if not hit.shaped.shadow),
            f"if {allowed} then\nstamp = string.format(whole, now)\n",
            *(hit.charge() for hit in each),
            f"return {{{','.join(answer)}}}\nend\n",
            *(_refusal(each) if all(hit.only_refuses for hit in each) else _rest(each, library(written_out))),
        ]
    )
    return Compiled(text, sha, frame)


def _refusal(each: list[_Hit]) -> list[str]:
    """The end of a check that a hit refuses, where nothing is charged then: what ``finish.lua`` does, hit by hit."""
    names = {hit.name for hit in each if not hit.refusal_is_written_out}
    return [
        *library({hit.name for hit in each if hit.is_written_out} & names),
        *(f"local others_of_{name} = algorithms.{name}.others()\n" for name in sorted(names)),
        *(hit.refuse() for hit in each),
        f"return {{now,0,delay,{','.join(f'r{hit.i},w{hit.i},e{hit.i}' for hit in each)}}}\n",
    ]


def _rest(each: list[_Hit], algorithms: list[str]) -> list[str]:
    """The rest of a check that not every hit allows, as the generic script does it: a shadow lets others charge, and a
    ban counts refusals."""
    allowed = " and ".join(f"w{hit.i} == 0" for hit in each if not hit.shaped.shadow) or "true"
    return [
        *algorithms,
        f"local hits = {{{','.join(hit.table for hit in each)}}}\n",
        f"local mode, repeated, allowed = '', false, {allowed}\n",
        f"local reply = {{now,1,delay,{','.join(f'r{hit.i},w{hit.i},s{hit.i}' for hit in each)}}}\n",
        *map(source, strikes(hit.name for hit in each)),
        source("finish"),
    ]


class _Hit:
    """The Lua of one hit: its locals are ``k`` (key), ``r`` (remaining), ``w`` (retry_after), ``c`` (delay), ``s``
    (seen) and ``e`` (reset_after), each followed by its number."""

    def __init__(self, i: int, shaped: Shaped) -> None:
        self.i, self.shaped, self.name = i, shaped, shaped.algorithm
        quota = shaped.quota
        numbers: dict[str, float] = {"window": quota.window, "count": quota.count, "cost": shaped.cost}
        numbers |= {"burst": quota.burst, "max_delay": quota.max_delay}
        if self.name == BAN:
            ban = cast("BanQuota", quota)
            numbers |= {"time": ban.time, "factor": ban.factor, "most": ban.most, "memory": ban.memory}
        self._fields = {
            "key": f"k{i}",
            **{name: str(number) if number >= 0 else f"({number})" for name, number in numbers.items()},
            "shadow": "true" if shaped.shadow else "false",
            "algorithm": f"'{self.name}'",
            **({"watches": f"{{{','.join(map(str, shaped.watches))}}}"} if self.name == BAN else {}),
        }
        known = _known_of(self.name, source_of_algorithm(self.name))
        if known is None:
            raise CannotBeCompiled(self.name)
        self._functions, self._others = known
        self.is_written_out = self._functions is not None
        self.refusal_is_written_out = self._others is not None

    @property
    def table(self) -> str:
        if not self.is_written_out:
            return f"h{self.i}"
        return "{" + ",".join(f"{name}={value}" for name, value in self._fields.items()) + "}"

    @property
    def reset_after(self) -> int | None:
        """The ``reset_after`` of every charge without delay; ``None`` if it varies."""
        if self._functions is None:
            return None
        evaluate, charge = [function.fixed_results(self._fields) for function in self._functions]
        return charge.get(0) if evaluate.get(2) == 0 else None

    @property
    def only_refuses(self) -> bool:
        """Whether a check that it does not allow charges nothing."""
        return not self.shaped.shadow and self.name != BAN

    def refuse(self) -> str:
        """``e``, in a check that is refused; and drop what lies in the future."""
        arguments, result = ["now", f"s{self.i}"], f"e{self.i}"
        if self._others is None:
            # One table for both, as a call may add to it.
            table = f"local h{self.i} = {self.table}\n" if self.is_written_out else ""
            call = f"others_of_{self.name}.%s(h{self.i},{','.join(arguments)})\n"
            return table + call % "drop_future" + f"local {result} = " + call % "reset_after"
        dropping, reset_after = self._others
        drop = dropping.written_out(self._fields, arguments, [])
        return f"{drop}local {result}\n{reset_after.written_out(self._fields, arguments, [result])}"

    def as_local(self) -> str:
        key = f"local k{self.i} = KEYS[{self.i}]\n"
        if self.is_written_out:
            return key
        table = "{" + ",".join(f"{name}={value}" for name, value in self._fields.items()) + "}"
        return f"{key}local h{self.i} = {table}\n"

    def evaluate(self) -> str:
        names = [f"{letter}{self.i}" for letter in "rwcs"]
        if self._functions is None:
            return f"local {','.join(names)} = algorithms.{self.name}.evaluate(h{self.i},now)\n"
        return f"local {','.join(names)}\n{self._functions[0].written_out(self._fields, ['now'], names)}"

    def charge(self) -> str:
        arguments = ["now", f"s{self.i}", "id"]
        if self._functions is None:
            return f"local e{self.i} = algorithms.{self.name}.charge(h{self.i},{','.join(arguments)})\n"
        return f"local e{self.i}\n{self._functions[1].written_out(self._fields, arguments, [f'e{self.i}'])}"


@lru_cache(maxsize=64)
def _known_of(algorithm: str, text: str) -> tuple[Pair | None, Pair | None] | None:
    """``evaluate`` and ``charge``, then ``drop_future`` and ``reset_after``, if they can be written out; ``None`` if
    they cannot even be called."""
    from .inline import can_be_called  # noqa: PLC0415 - at the first shape, and not at the start
    from .lua import NotUnderstood, Source  # noqa: PLC0415 - as above

    try:
        source = Source(text)
    except NotUnderstood:
        return None
    if not can_be_called(source, algorithm):
        return None
    usual = _functions_in(source, algorithm, {"evaluate": 1, "charge": 3})
    # A call may add to the hit what only a call sees.
    others = None if usual is None else _functions_in(source, algorithm, {"drop_future": 2, "reset_after": 2})
    return usual, others


def _functions_in(source: Source, algorithm: str, arguments: Mapping[str, int]) -> Pair | None:
    """Two functions of an algorithm's Lua, if both can be written out with so many ``arguments`` besides the hit."""
    from .inline import FIELDS, FIELDS_OF_BANS, CannotBeWrittenOut, Function  # noqa: PLC0415 - as above

    fields = dict.fromkeys(FIELDS + FIELDS_OF_BANS if algorithm == BAN else FIELDS, "1")
    try:
        first, second = [Function.found_in(source, algorithm, name) for name in arguments]
        for function, many in zip((first, second), arguments.values(), strict=True):
            function.written_out(fields, ["x"] * many, ["x"])
    except CannotBeWrittenOut:
        return None
    return first, second
