"""A check compiled for the shape of its plan, as a database prepares a statement.

The shape of a plan is the algorithm, quota, cost and shadow of each hit, in order. The script of a shape is a straight
line: no table, loop or function for each hit, and the quotas are numbers in its text rather than arguments. It serves
plain checks by the server's clock, if all hits charge something. After a refusal, it is a straight line as well; with
shadows or bans among the hits, it continues as the generic script does, with the same ``finish.lua``. A peek, a
repeated check and a settlement always take the generic script.

Its reply leaves out what the shape determines, if a charge of each hit always has the same ``reset_after``, as in a
sliding window, and no hit has a delay.

The functions of some algorithms are written out for each hit (``WRITTEN_OUT``), those of the others are called with a
table for the hit. Only the algorithms of this package are compiled: the Lua of others may rely on the generic script.

Servers before Redis 7.4 and Valkey 8 keep each script until they restart. Later ones keep only the 500 most recently
used of the scripts that are sent with EVAL, as these are. Rules that depend on the request can have any number of
shapes. So a process compiles a shape only after some checks, and only a limited number of shapes.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from ...algorithms import BAN, CALENDAR, SHIPPED, SLIDING, Quota, algorithm_of
from ...hits import Hit, bans_of
from ...reply import frame_of
from .scripts import Script, library, script_of, source, strikes

MOST_HITS = 20
"""The most hits in a compiled script: Lua allows 200 local names, and each hit needs six."""

WRITTEN_OUT = ("sliding_window", "concurrency", BAN)
"""Algorithms whose Lua has the form that :func:`_functions_of` reads."""

COMPILE_AFTER = 16
"""The number of checks of a shape after which it is compiled."""
MOST_COMPILED = 256
"""The most shapes that a process compiles."""
MOST_COUNTED = 512
"""The most shapes whose checks are counted. Beyond that, the oldest count is forgotten."""


class Shaped(NamedTuple):
    """One hit of a shape."""

    algorithm: str
    quota: Quota
    cost: int
    shadow: bool
    watches: tuple[int, ...] = ()
    """For a ban: the places of the hits that it watches, counted from 1."""


Shape = tuple[Shaped, ...]


def shape_of(hits: tuple[Hit, ...]) -> Shape | None:
    """The shape of ``hits``; ``None`` if they cannot have a compiled script."""
    if len(hits) > MOST_HITS:
        return None
    watches = {place: tuple(each + 1 for each in watched) for place, _, watched in bans_of(hits)}
    if any(hit.cost == 0 and place not in watches for place, hit in enumerate(hits)):
        return None
    return tuple(
        Shaped(hit.rule.algorithm, hit.rule.quota, hit.cost, hit.shadow, watches.get(place, ()))
        for place, hit in enumerate(hits)
    )


def compiled(shape: Shape) -> Script:
    """The script of ``shape``, whose algorithms are all of this package. KEYS are the keys of the hits. ARGV are the id
    of the check; and the boundaries of calendars, if there are calendars."""
    hits = [_Hit(i, shaped) for i, shaped in enumerate(shape, 1)]
    calendars = [f"h{hit.i}" for hit in hits if hit.name == CALENDAR]
    allowed = " and ".join(f"w{hit.i} == 0" for hit in hits)
    reset_afters = [hit.shaped.quota.window for hit in hits if hit.lua.always_resets_after_window]
    frame = frame_of(reset_afters) if len(reset_afters) == len(hits) else None
    if frame is None:
        answer = ["now,1,delay", *(f"r{hit.i}-{hit.shaped.cost},0,e{hit.i}" for hit in hits)]
    else:
        answer = ["now", *(f"r{hit.i}-{hit.shaped.cost}" for hit in hits)]
    return script_of(
        [
            source("prelude").replace("ARGV[4]", "nil"),
            "local id = ARGV[1]\n",
            *library({hit.name for hit in hits if not hit.is_written_out}),
            *(f"local k{hit.i} = KEYS[{hit.i}]\n" for hit in hits),
            *(f"local h{hit.i} = {hit.table}\n" for hit in hits if not hit.is_written_out),
            *_boundaries(calendars),
            *(hit.run("evaluate") for hit in hits),
            "local delay = 0\n",
            *(f"if c{hit.i} > delay then delay = c{hit.i} end\n" for hit in hits if not hit.shaped.shadow),
            f"if {allowed} then\nstamp = string.format(whole, now)\n",
            *(hit.run("charge") for hit in hits),
            *(hit.next_after for hit in hits if hit.name in SLIDING),
            f"return {{{','.join(answer)}}}\nend\n",
            *(_end_of_refusal(hits) if all(hit.only_refuses for hit in hits) else _end_as_generic_script(hits)),
        ],
        frame,
    )


def _boundaries(calendars: list[str]) -> list[str]:
    if not calendars:
        return []
    return [f"do\nlocal hits = {{{','.join(calendars)}}}\n", source("calendars"), "end\n"]


def _end_of_refusal(hits: list[_Hit]) -> list[str]:
    """The end of a check that a hit refuses, if nothing is charged then: what ``finish.lua`` does, hit by hit."""
    called = sorted({hit.name for hit in hits if not hit.is_written_out})
    return [
        *(f"local others_of_{name} = algorithms.{name}.others()\n" for name in called),
        *(hit.run("drop_future") + hit.run("reset_after") for hit in hits),
        f"return {{now,0,delay,{','.join(f'r{hit.i},w{hit.i},e{hit.i}' for hit in hits)}}}\n",
    ]


def _end_as_generic_script(hits: list[_Hit]) -> list[str]:
    """The end of a check that a hit refuses, as in the generic script: a shadow lets the others be charged, and a ban
    counts refusals."""
    allowed = " and ".join(f"w{hit.i} == 0" for hit in hits if not hit.shaped.shadow) or "true"
    return [
        *library({hit.name for hit in hits if hit.is_written_out}),
        f"local hits = {{{','.join(hit.table if hit.is_written_out else f'h{hit.i}' for hit in hits)}}}\n",
        f"local mode, repeated, allowed = '', false, {allowed}\n",
        f"local reply = {{now,1,delay,{','.join(f'r{hit.i},w{hit.i},s{hit.i}' for hit in hits)}}}\n",
        *map(source, strikes(hit.name for hit in hits)),
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
            ban = quota
            numbers |= {"time": ban.time, "factor": ban.factor, "most": ban.most, "memory": ban.memory}
        self._fields = {
            "key": f"k{i}",
            **{name: str(number) if number >= 0 else f"({number})" for name, number in numbers.items()},
            "algorithm": f"'{self.name}'",
            **({"watches": f"{{{','.join(map(str, shaped.watches))}}}"} if self.name == BAN else {}),
        }
        self.lua = _functions_of(self.name)

    @property
    def is_written_out(self) -> bool:
        return self.name in WRITTEN_OUT

    @property
    def table(self) -> str:
        return "{" + ",".join(f"{name}={value}" for name, value in self._fields.items()) + "}"

    @property
    def only_refuses(self) -> bool:
        """Whether a check that it refuses charges nothing."""
        return not self.shaped.shadow and self.name != BAN

    @property
    def next_after(self) -> str:
        """Lua that runs after a charge of the last unit and finds when the next one comes back, as ``finish.lua``
        does."""
        n = self.i + MOST_HITS
        if self.is_written_out:
            evaluated = self.lua.text["evaluate"] % {**self._fields, "cost": "1", "i": n}
        else:
            evaluated = f"h{self.i}.cost = 1\nlocal _,w{n} = algorithms.{self.name}.evaluate(h{self.i},now)\n"
        return f"if r{self.i} == {self.shaped.cost} then\n{evaluated}r{self.i} = r{self.i} - w{n}\nend\n"

    def run(self, function: str) -> str:
        """Lua that assigns the results of ``function`` for this hit to its locals."""
        return self.lua.text[function] % {**self._fields, "i": self.i}


class _Functions(NamedTuple):
    """The Lua that runs the functions of an algorithm. ``%(i)d`` is the number of a hit, ``%(window)s`` a field."""

    text: dict[str, str]
    always_resets_after_window: bool = False
    """Whether every charge without a delay has a ``reset_after`` of one window."""


_RESULTS = {"evaluate": "r%(i)d,w%(i)d,c%(i)d,s%(i)d", "charge": "e%(i)d", "drop_future": "", "reset_after": "e%(i)d"}
"""The locals for the results of each function that a compiled script runs."""
_CALLS = {
    "evaluate": "local {} = algorithms.{}.evaluate(h%(i)d,now)\n",
    "charge": "local {} = algorithms.{}.charge(h%(i)d,now,s%(i)d,id)\n",
    "drop_future": "{}others_of_{}.drop_future(h%(i)d,now,s%(i)d)\n",
    "reset_after": "local {} = others_of_{}.reset_after(h%(i)d,now,s%(i)d)\n",
}
_FUNCTION = re.compile(r"^( *)(\w+) = function\(hit, now(, seen)?(?:, id)?\)\n(.*?)^\1end,$", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"^local ([A-Z_]+) = (-?\d+)", re.MULTILINE)
_NAME = re.compile(r"\bhit\.(\w+)|\b(?:seen|[A-Z_]{3,})\b")


@cache
def _functions_of(algorithm: str) -> _Functions:
    if algorithm not in WRITTEN_OUT:
        return _Functions({name: call.format(_RESULTS[name], algorithm) for name, call in _CALLS.items()})
    text = "".join(library([algorithm])).replace("%", "%%")
    numbers = dict(_NUMBER.findall(text))
    bodies = {
        name: (body, numbers | ({"seen": "s%(i)d"} if seen else {})) for _, name, seen, body in _FUNCTION.findall(text)
    }
    written = {name: _written_out(*bodies[name], results) for name, results in _RESULTS.items()}
    always = written["charge"].count(" break\n") == written["charge"].count("e%(i)d = %(window)s break\n")
    return _Functions(written, always)


def _written_out(body: str, names: dict[str, str], results: str) -> str:
    """Lua that runs the ``body`` of a function inline: fields of the hit and the other ``names`` are replaced, and a
    ``return`` becomes an assignment that leaves the block."""
    body = _NAME.sub(lambda name: f"%({name[1]})s" if name[1] else names.get(name[0], name[0]), body)
    lines = [line.partition("return ") for line in body.splitlines()]
    body = "".join(f"{line}{results} = {values} break\n" if returns else f"{line}\n" for line, returns, values in lines)
    return f"{results and f'local {results}'}\nrepeat\n{body}until true\n"


@dataclass(slots=True, eq=False)
class KnownShape:
    """A shape, how often it was checked, and its script."""

    shape: Shape
    checks: int = 0
    script: Script | None = None
    """``None`` until it is compiled."""


class Shapes:
    """Compiles a shape after ``compile_after`` checks. If threads collide, a count may be off by a few, and a shape be
    compiled twice, which takes a tenth of a millisecond. Neither does harm.

    Hits cache the command to send (:func:`.memoized`), so a check of compiled hits does not come here.
    """

    def __init__(
        self, compile_after: float = COMPILE_AFTER, compile_shape: Callable[[Shape], Script] = compiled
    ) -> None:
        self._compile_after, self._compile_shape = compile_after, compile_shape
        self._compiled: dict[Shape, KnownShape] = {}
        self._counted: OrderedDict[Shape, KnownShape] = OrderedDict()

    def of(self, hits: tuple[Hit, ...]) -> KnownShape | None:
        """The shape of ``hits``, with what is known about it; ``None`` if they always use the generic script."""
        shape = shape_of(hits)
        if shape is None:
            return None
        known = self._compiled.get(shape) or self._counted.get(shape)
        if known is None:
            if not all(algorithm_of(each.algorithm) in SHIPPED for each in shape):
                return None
            known = self._counted[shape] = KnownShape(shape)
            if len(self._counted) > MOST_COUNTED:
                self._counted.popitem(last=False)
        return known

    def count_check(self, known: KnownShape) -> bool:
        """Count one more check. Return whether the shape is compiled now."""
        known.checks += 1
        if known.checks > self._compile_after and known.script is None and len(self._compiled) < MOST_COMPILED:
            known.script = self._compile_shape(known.shape)
            self._compiled[known.shape] = known
            self._counted.pop(known.shape, None)
        return known.script is not None


SHAPES = Shapes()
"""The shapes of all storages of a process. A child keeps those of its parent."""
