"""Algorithms of one's own in all kinds of Lua: a compiled script replies as the generic one does, or there is none."""

from __future__ import annotations

import logging
import random
from itertools import count
from math import inf
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from flask_multilimit.engine import Limiter, RedisStorage, Rule, StorageError, hits_for
from flask_multilimit.engine.algorithms import ALGORITHMS, fixed_window
from flask_multilimit.engine.hits import Hits
from flask_multilimit.engine.reply import ALLOWED
from flask_multilimit.engine.storage.redis import scripts, shapes, storage
from flask_multilimit.engine.storage.redis.compiled import CannotBeCompiled, compiled, shape_of
from support.compiled import CompiledStorage, compiled_of_tests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import redis

    Register = Callable[[str], None]

PLAIN = """
HEAD
algorithms.own = {
  evaluate = function(hit, now)
    EVALUATE
    local used = tonumber(call('GET', hit.key) or 0)
    local left = hit.count - used
    if hit.cost <= left then
      return left, 0, 0, used
    end
    return left, hit.window, 0, used
  end,
  charge = function(hit, now, seen, id)
    CHARGE
    call('SET', hit.key, seen + hit.cost, 'PX', 60000)
    return hit.window
  end,
  others = function()
    OTHERS
    return {
      reset_after = function(hit, now, seen)
        RESET
        return seen > 0 and hit.window or 0
      end,
      drop_future = function(hit, now, seen) DROP end,
      refund = function(hit) end,
    }
  end,
}
TAIL
"""
SPARSE = """
algorithms.own = {
  evaluate = function(h)
    local used = tonumber(call('GET', h.key) or 0)
    if used + h.cost <= h.count then return h.count - used, 0, 0, { r1 = used } end
    return h.count - used, h.window, 0, { r1 = used };
  end,
  charge = function(h, _, s1) call('SET', h.key, s1.r1 + h.cost, 'PX', 60000) return h.window end,
  others = function()
    return { reset_after = function(h, t) return t > 0 and h.window end, drop_future = function() end }
  end,
}"""

# Each replaces places in PLAIN, or is a whole file.
ATTACKS: dict[str, dict[str, str] | str] = {
    "nothing special": {},
    "few parameters, and no line at the end": SPARSE,
    "a comment without a line at the end": SPARSE + "\n-- the end",
    "names of the script": {
        "EVALUATE": "local k1, w1, c1, s1 = hit.key, 1, 2, 3 if w1 + c1 + s1 ~= 6 then return 0, 1, 2, 3 end",
        "CHARGE": "local r1, e1, h1, delay = seen, 4, 5, 6 call('SET', hit.key, r1 + e1 + h1 + delay)",
        "RESET": "local e1, others_of_own = 3, 4 if e1 > others_of_own then return 7 end",
    },
    "names of the prelude": {
        "HEAD": "local call, stamp = redis.call, 'a stamp'",
        "CHARGE": "local now, grace, whole = stamp, 3, '%d' if now ~= 'a stamp' then return -1 end",
    },
    "numbers under names that are fields and keys": {
        "HEAD": "local count, seen, LOW = 5, 6, -2",
        "EVALUATE": "if hit.count == 0 then return count end",
        "CHARGE": "local t = { seen = seen, count = hit.count, LOW = -LOW ^ 2 } if t.LOW ~= -4 then return 3 end",
    },
    "negative numbers": {
        "HEAD": "local LOW = -2",
        "CHARGE": "if LOW ^ 2 ~= 4 or -LOW ~= 2 or 3 - LOW ~= 5 or 2 ^ LOW ~= .25 then return 5 end",
    },
    "a number that changes": {"HEAD": "local n = 1", "EVALUATE": "n = n + 1", "CHARGE": "if n == 1 then return 0 end"},
    "a number that another function changes": {
        "HEAD": "local n, f = 1",
        "EVALUATE": "if n ~= 2 then return 0, 5, 0, 0 end",
        "TAIL": "f = function() n, f = 2, 3 end f()",
    },
    "a number computed over two lines": {
        "HEAD": "local n = 1\n+ 2",
        "CHARGE": "if n ~= 3 then return 0 end",
    },
    "the hit by text": {"CHARGE": "if hit['count'] ~= hit.count then return 0 end"},
    "the hit handed on": {"HEAD": "local function f(h) return h.key end", "CHARGE": "if f(hit) == '' then return end"},
    "the hit as what was seen": {
        "EVALUATE": "hit.mark = 3",
        "CHARGE": "if hit.mark ~= 3 then return 0 end",
        "DROP": "hit.dropped = hit.mark",
        "RESET": "if hit.dropped ~= 3 then return 11 end",
    },
    "the hit marked in the rare functions only": {
        "DROP": "hit.dropped = 3",
        "RESET": "if hit.dropped ~= 3 then return 11 end",
    },
    "a field that hits do not have": {"CHARGE": "if hit.time or hit.watches then return 3 end"},
    "the cost changed": {"EVALUATE": "hit.cost = 2"},
    "the cost changed by a name": {"EVALUATE": "local name = 'cost' hit[name] = 2"},
    "the cost changed by assigning two": {"EVALUATE": "local x hit.cost, x = 2, 3"},
    "the time changed": {"HEAD": "local function later() now = now + 5 end", "EVALUATE": "later()"},
    "parameters changed": {
        "EVALUATE": "now = 5",
        "CHARGE": "now, id = 3, 'other'",
        "DROP": "seen = 100",
        "RESET": "seen = seen - 1",
    },
    "a parameter as a loop's name": {
        "CHARGE": "for seen = 1, 3 do call('SET', hit.key, seen) end for _, now in ipairs({ 1 }) do id = now end",
    },
    "functions inside": {
        "CHARGE": "local f = function(hit) local seen = hit return seen end if f(3) ~= 3 then return 0 end"
    },
    "any number of parameters": {
        "HEAD": "local function f(...) return ... end",
        "CHARGE": "if f(1) ~= 1 then return end",
    },
    "long strings, and comments in lines": {
        "EVALUATE": "--[[ hit.count = 3\n-- ]] local s = [==[\n-- seen ]] id\n]==] "
        "if #s ~= 14 then return 0, 5, 0, 0 end",
    },
    "a string over two lines": {"CHARGE": "if #'a\\\n-- b' ~= 6 then return 0 end"},
    "strings that look like names": {"CHARGE": 'if \'seen\' .. "hit.key" ~= "seenhit.key" then return 0 end'},
    "numbers of all kinds": {"CHARGE": "if 0xfF + .5 + 5. + 1e2 + 1E-2 + .5e+1 ~= 365.51 then return 0 end"},
    "operators side by side": {"CHARGE": "if seen - -hit.cost ~= seen + hit.cost or 2^hit.count < 2 then return 0 end"},
    "semicolons": {"CHARGE": "local a = 1; local b; if a == b then return; end;"},
    "nothing returned from what drops": {"DROP": "if seen > 3 then return end call('GET', hit.key) return 5"},
    "returns in loops": {"CHARGE": "while seen > 1e9 do return 3 end repeat local x = 1 until x == 1"},
    "a method of a field": {"CHARGE": "if hit.key:len() < 3 or hit.algorithm:upper() ~= 'OWN' then return 3 end"},
    "blocks inside of blocks": {
        "CHARGE": "do local x = 1 if x then for i = 1, 2 do if i == 2 then break end end end end"
    },
    "functions replaced behind the table": {
        "TAIL": "local plain = algorithms.own.charge algorithms.own.charge = function(...) plain(...) return 77 end",
    },
    "a table that is combined": {
        "TAIL": "local t = algorithms.own algorithms.own = { evaluate = t.evaluate, "
        "charge = function(...) return t.charge(...) + 5 end, others = t.others }"
    },
    "a server asked at the top": {
        "HEAD": "call('INCR', KEYS[1] .. 'n')",
        "CHARGE": "call('PEXPIRE', hit.key .. 'n', 9e4)",
    },
    "the keys of the script": {"CHARGE": "if KEYS[1] == nil then return 3 end"},
    "names that only the generic script had": {
        "EVALUATE": "if pcall(function() return hits[1].key, position end) then return 0, 1, 0, 0 end",
    },
    "a local in others": {"OTHERS": "local n = 0", "DROP": "n = n + 1", "RESET": "if n > 0 then return n end"},
    "a number in others": {"OTHERS": "local n = 3", "RESET": "if seen > n then return n end"},
    "what is given, shadowed in others": {
        "OTHERS": "local tostring = function() return '5' end",
        "RESET": "if seen then return tonumber(tostring(seen)) end",
    },
    "many locals": {"CHARGE": "\n".join(f"local x{n} = {n}" for n in range(150))},
}


def text_of(attack: dict[str, str] | str) -> str:
    if isinstance(attack, str):
        return attack
    text = PLAIN
    for place in ("HEAD", "EVALUATE", "CHARGE", "OTHERS", "RESET", "DROP", "TAIL"):
        text = text.replace(place, attack.get(place, ""))
    return text


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Register]:
    """Registers a Lua file as the algorithm ``own``. Its twin never runs here."""

    def registered(text: str) -> None:
        module = ModuleType("own")
        vars(module).update({name: each for name, each in vars(fixed_window).items() if not name.startswith("__")})
        module.__file__ = str(tmp_path / "own.py")
        (tmp_path / "own.lua").write_text(text, encoding="utf-8")
        monkeypatch.setitem(ALGORITHMS, "own", module)
        scripts.script.cache_clear()
        compiled_of_tests.cache_clear()

    yield registered
    scripts.script.cache_clear()
    compiled_of_tests.cache_clear()


def plans() -> list[Hits]:
    own, other = Rule(60, 4, algorithm="own"), Rule(60, 6)
    return [
        hits_for(own, scope="alone"),
        hits_for([other, own], scope="two", cost=2),
        Hits([*hits_for(other, scope="shadowed"), *hits_for(own, scope="shadowed", shadow=True)]),
    ]


def replies(client: redis.Redis, kind: type[RedisStorage]) -> list[list[list[int]]]:
    """To some checks of each plan, at the same instants."""
    client.flushdb()
    instants = count(10**15, 1000)
    limiter = Limiter(kind(client, clock=lambda: next(instants)))
    return [[list(limiter.check(plan).reply) for _ in range(7)] for plan in plans()]


@pytest.mark.parametrize("name", ATTACKS)
def test_a_compiled_script_replies_as_the_generic_one(redis_client: redis.Redis, register: Register, name: str) -> None:
    register(text_of(ATTACKS[name]))

    generic = replies(redis_client, RedisStorage)

    assert {reply[ALLOWED] for reply in generic[0]} == {0, 1}, "it admits, and it refuses"
    assert replies(redis_client, CompiledStorage) == generic


@pytest.mark.parametrize("name", ATTACKS)
def test_a_process_goes_from_one_script_to_the_other_without_a_difference(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, register: Register, name: str
) -> None:
    register(text_of(ATTACKS[name]))
    found = []
    for worth in (inf, 3, 0):
        monkeypatch.setattr(storage, "SHAPES", shapes.Shapes(worth=worth))
        redis_client.flushdb()
        limiter, plan = Limiter(RedisStorage(redis_client)), plans()[0]
        found.append([list(limiter.check(plan).reply)[ALLOWED:] for _ in range(7)])

    assert found == [found[0]] * 3


MORE: dict[str, list[str]] = {
    "HEAD": ["local A, B = 1, 2", "local t = { 1, 2 }", "local function g(a) return a end", "local M = 7;"],
    "EVALUATE": [
        *("local used = 3", "local x = { hit.count }", "local window = hit.window", "while false do break end"),
        *(
            "if now > 1 then local seen = 3 end",
            "do local hit = { count = 1 } end",
            "local t = { now, id = now } t.id = 4",
        ),
    ],
    "CHARGE": [
        *("local a, b = seen, id a, b = b, a", "local s = seen .. '' seen = tonumber(s)", "do local id = 4 end"),
        *(
            "local t = {} t[#t + 1] = seen t.key = id",
            "if id == '' then return 4 end",
            "repeat local seen = 1 until true",
        ),
    ],
    "RESET": ["if now then return (seen) end", "local h = hit if h then return h.count end", "if id then return 3 end"],
    "DROP": ["seen = 4", "call('GET', hit.key)", "hit.count = 1", "return", "for _ in ipairs({ 1 }) do return end"],
    "OTHERS": ["local M = 4", "local x = 3 x = 4", "local function hit() end"],
    "TAIL": ["local z = 3", "algorithms.own.x = 3"],
}
"""Further Lua for each place."""


@pytest.mark.parametrize("seed", range(4))
def test_so_does_any_mix_of_these(redis_client: redis.Redis, register: Register, seed: int) -> None:
    dice, compared = random.Random(seed), 0
    for _ in range(25):
        known = [attack for attack in ATTACKS.values() if not isinstance(attack, str)]
        lua = {place: [*(each[place] for each in known if place in each), *MORE[place]] for place in MORE}
        mixed = {place: dice.choice(choice) for place, choice in lua.items() if dice.random() < 0.3}
        register(text_of(mixed))
        try:
            generic = replies(redis_client, RedisStorage)
        except StorageError:  # together they are no Lua
            continue
        compared += 1
        assert replies(redis_client, CompiledStorage) == generic, mixed

    assert compared > 10


@pytest.mark.parametrize(
    ("name", "written_out", "is_compiled"),
    [
        ("nothing special", True, True),
        ("strings that look like names", True, True),
        ("numbers under names that are fields and keys", False, True),
        ("names of the script", False, True),
        ("the hit handed on", False, True),
        ("the cost changed", False, False),
        ("the keys of the script", False, False),
    ],
)
def test_what_is_written_out_what_is_called_and_what_is_left_to_the_generic_script(
    register: Register, name: str, *, written_out: bool, is_compiled: bool
) -> None:
    register(text_of(ATTACKS[name]))
    shape = shape_of(plans()[0])
    assert shape is not None

    if is_compiled:
        assert ("algorithms.own.evaluate(" not in compiled(shape).text) == written_out
    else:
        with pytest.raises(CannotBeCompiled):
            compiled(shape)


TOO_MANY_LOCALS = {"CHARGE": "\n".join(f"local local_{n} = {n}" for n in range(195))}
"""For a function, they are just few enough; together with those of a compiled script, one too many."""


def test_a_script_that_the_server_does_not_take_is_given_up_with_one_warning(
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    register: Register,
    caplog: pytest.LogCaptureFixture,
) -> None:
    register(text_of(TOO_MANY_LOCALS))
    learning = shapes.Shapes(worth=2)
    monkeypatch.setattr(storage, "SHAPES", learning)
    limiter = Limiter(RedisStorage(redis_client))
    first, second = (hits_for(Rule(60, 9, algorithm="own"), scope="own", subject=subject) for subject in "ab")

    with caplog.at_level(logging.WARNING, "flask_multilimit"):
        remaining = [limiter.check(first).remaining for _ in range(6)]
        remaining += [limiter.check(second).remaining for _ in range(6)]
        limiter.check(hits_for(Rule(60, 8, algorithm="own"), scope="other"))

    assert remaining == [8, 7, 6, 5, 4, 3] * 2
    assert learning.compiled == 0
    (line,) = caplog.messages
    assert line.startswith("Rate limits: the server rejects the script that is compiled for a plan of own: ")
    redis_client.config_resetstat()
    limiter.check(first)
    assert redis_client.info("commandstats")["cmdstat_evalsha"]["failed_calls"] == 0, "it is not tried again"
