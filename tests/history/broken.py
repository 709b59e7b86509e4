"""Defects in scripts that break the contract, each in one place. The checker must find them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from types import ModuleType

import pytest

from flask_multilimit.engine.storage.redis import compiled as compiling
from flask_multilimit.engine.storage.redis import scripts, storage
from flask_multilimit.engine.storage.redis.compiled import Shape, Shapes, compiled
from flask_multilimit.engine.storage.redis.scripts import Script


@dataclass(frozen=True, slots=True)
class Defect:
    """In the Lua of one driver ("check", "settle", or the "compiled" ones), ``text`` is replaced by ``by``."""

    text: str
    by: str
    driver: str = "check"


JITTERING_CLOCK = Defect(
    "grace, now = 0, time[1] * 1000000 + time[2]",
    "grace, now = 20, time[1] * 1000000 + time[2] - math.random(0, 3) * 300",
)
"""Not a defect: the clock that the script reads steps to and fro. Keys expire by another clock, so they stay 20 ms
longer: in addition, the clock of Valkey 9.1 jitters by itself."""

DEFECTS = {
    "charges what allows although another refuses": Defect("local charging = allowed and not", "local charging = not"),
    "forgets the last rule": Defect(
        "allowed = allowed and retry_after == 0",
        "allowed = allowed and (retry_after == 0 or i > 1 and i == #hits)",
    ),
    "admits one too many": Defect("hit.count - used\n    if hit.cost", "hit.count + 1 - used\n    if hit.cost"),
    "admits one too few": Defect("hit.count - used\n    if hit.cost", "hit.count - 1 - used\n    if hit.cost"),
    "has too short a window": Defect(
        "total - call('ZCOUNT', hit.key, argument(now - hit.window",
        "total - call('ZCOUNT', hit.key, argument(now - hit.window / 2",
    ),
    "trims one that counts": Defect(
        "if seen > TRIM + hit.cost",
        "call('ZREMRANGEBYRANK', hit.key, 0, 0) if seen > TRIM + hit.cost",
    ),
    "charges a repeated check again": Defect("if mode == 'repeat'", "if false"),
    "charges a peek": Defect(" and mode ~= 'peek'\n", "\n"),
    "charges one unit whatever the cost": Defect(
        "for from = 2, hit.cost, 2000 do\n      local entries", "for from = 2, 1 do\n      local entries"
    ),
    "gives every check one id": Defect("id, mode = ARGV[2]", "id, mode = 'one of 16 bytes.'"),
    "takes the oldest in a refund": Defect(
        "call('ZREM', hit.key, unpack(members))", "call('ZREMRANGEBYRANK', hit.key, 0, 0)", "settle"
    ),
    "refunds nothing": Defect("call('ZREM', hit.key, unpack(members))", "", "settle"),
    "refunds one too many of a counter": Defect("used - hit.cost + units)", "used - hit.cost + units - 1)", "settle"),
}


GENERIC_ONLY = {"forgets the last rule", "charges a repeated check again", "gives every check one id", "charges a peek"}
"""Defects in Lua that compiled scripts do not have, or leave to the generic script."""

COMPILED_ONLY = {
    "charges what allows although another refuses": Defect("if w1 == 0", "if true or w1 == 0", "compiled"),
    "gives every check one id": Defect("id = ARGV[1]", "id = 'one of 16 bytes.'", "compiled"),
    "forgets what was charged": Defect("id = ARGV[1]", "id = ARGV[1] call('DEL', KEYS[1])", "compiled"),
}


KINDS = {"generic": (False,), "compiled": (True,), "both": (True, False)}
"""For the processes in turn: whether their scripts are compiled."""


@contextmanager
def scripts_of_this_process(*, are_compiled: bool, defect: Defect | None = None) -> Iterator[Shapes]:
    """Meanwhile storages of this process send compiled scripts for each plain check, or only generic ones; with a
    ``defect`` if one is given."""
    with pytest.MonkeyPatch.context() as patch:
        compile_shape: Callable[[Shape], Script] = compiled
        if defect is not None and defect.driver == "compiled":
            compile_shape = _broken_compiler(defect)
        elif defect is not None:
            patch.setattr(scripts, "_read", _broken_reader(defect))
        learning = Shapes(0 if are_compiled else inf, compile_shape=compile_shape)
        patch.setattr(storage, "SHAPES", learning)
        _forget_scripts()
        yield learning
    _forget_scripts()


def _forget_scripts() -> None:
    scripts.script.cache_clear()
    compiling._functions_of.cache_clear()


def _broken_compiler(defect: Defect) -> Callable[[Shape], Script]:
    def broken(shape: Shape) -> Script:
        whole = compiled(shape)
        return scripts.script_of([whole.text.replace(defect.text, defect.by)], whole.frame)

    return broken


def _broken_reader(defect: Defect) -> Callable[[ModuleType, str], str]:
    whole = scripts._read
    return lambda module, name: whole(module, name).replace(defect.text, defect.by)
