"""Functions of an algorithm's Lua that are written out, and those that are called instead."""

from __future__ import annotations

import pytest

from flask_multilimit.engine.algorithms import ALGORITHMS, BAN
from flask_multilimit.engine.storage.redis.inline import CannotBeWrittenOut, Function, can_be_called
from flask_multilimit.engine.storage.redis.lua import NotUnderstood, Source
from flask_multilimit.engine.storage.redis.scripts import source_of_algorithm

LUA = """
local MANY = 128 -- a number
--[[ evaluate = function() end ]]
local function helper(hit) return hit.count end
algorithms.plain = {
  evaluate = function(hit, now)
    local used = call('GET', hit.key) + MANY -- of what there is
    if used > hit.count then
      return used, 0
    elseif now > 3 then
      return 'a return', #hit.key, { now = now }
    end
    return used - 1, tostring(.5)
  end,
  charge = function(hit, now, seen, id)
    BODY
  end,
  fixed = function(hit, now)
    if now > 3 then
      return 0, hit.count, 5, math.max(1, 2), 3
    end
    return now, hit.count, 6, math.max(1, 2), 3
  end,
  others = function()
    return { drop_future = function(hit) if hit.count > 3 then return end call('DEL', hit.key) return 1; end }
  end,
}
"""
FIELDS = {"key": "k1", "count": "7", "max_delay": "(-1)"}

CALLED = {
    "returns in a loop": "for i = 1, 3 do return i end",
    "creates a function": "local f = function() end",
    "takes any number": "local f = { ... }",
    "calls a function of its file": "return helper(hit)",
    "reads a name that it does not have": "return other",
    "hands its hit on": "return tostring(hit)",
    "reads a field by text": "return hit['count']",
    "reads a field by a name": "local name = 'count' return hit[name]",
    "reads a field that hits do not have": "return hit.time",
    "writes to its hit": "hit.count = 3",
    "writes to its hit, among others": "local x x, hit.count = 3, 4",
    "calls a method of its hit": "return hit:count()",
    "calls a method of a field": "return hit.key:upper()",
    "changes a parameter": "seen = seen or 0",
    "changes a parameter, among others": "local x seen, x = 1, 2",
    "changes a name of the prelude": "stamp = 3",
    "changes a number of the file": "MANY = 3",
    "has a local like a parameter": "local seen = seen or 0 return seen",
    "has a loop over a parameter": "for seen = 1, 2 do call('GET', seen) end",
    "has a loop over two": "for _, id in ipairs(seen) do call('GET', id) end",
    "has a local like a number of the file": "local MANY = 3 return MANY",
    "has a local like one of the script": "local r1 = 3 return r1",
    "has a local like a given name": "local call = 3 return call",
    "raises a negative number to a power": "return hit.max_delay ^ 2, MANY ^ 2",
}


@pytest.mark.parametrize("body", CALLED.values(), ids=list(CALLED))
def test_a_function_is_called_that(body: str) -> None:
    source = Source(LUA.replace("BODY", body))

    with pytest.raises(CannotBeWrittenOut):
        Function.found_in(source, "plain", "charge").written_out(FIELDS, ["now", "s1", "id"], ["a", "b"])


WRITTEN_OUT = {
    "return { seen = seen, id = id.id, MANY = MANY }": "e1 = { seen = s1 , id = id . id , MANY = 128 } break",
    "local t = { 'seen', [[id]] } t.seen = seen[1]": "local t = { 'seen' , [[id]] } t . seen = s1 [ 1 ]",
    "return seen- -hit.count --[[ return\nnil ]]": "e1 = s1 - - 7 break",
    "if now then return end return hit.key;": "if now then e1 = nil break end e1 = k1 break",
    "local k call(id:rep(2), 'a\\\nb')": "local k call ( id : rep ( 2 ) , 'a\\\nb' )",
    "": "",
}


@pytest.mark.parametrize(("body", "expected"), WRITTEN_OUT.items())
def test_only_names_of_parameters_are_replaced(body: str, expected: str) -> None:
    function = Function.found_in(Source(LUA.replace("BODY", body)), "plain", "charge")

    assert function.written_out(FIELDS, ["now", "s1", "id"], ["e1"]) == f"repeat {expected} until true\n"


def test_a_function_is_written_out_with_numbers_for_names_and_assignments_for_returns() -> None:
    function = Function.found_in(Source(LUA), "plain", "evaluate")

    text = function.written_out(FIELDS, ["now"], ["a", "b"])

    assert text == (
        "repeat local used = call ( 'GET' , k1 ) + 128 if used > 7 then a,b = used , 0 break elseif now > 3 then "
        "a,b = 'a return' , # k1 , { now = now } break end a,b = used - 1 , tostring ( .5 ) break until true\n"
    )


def test_what_nobody_reads_is_returned_to_nobody() -> None:
    function = Function.found_in(Source(LUA), "plain", "drop_future")

    assert function.written_out(FIELDS, ["now", "s1"], []) == (
        "repeat if 7 > 3 then break end call ( 'DEL' , k1 ) local _ = 1 break until true\n"
    )


def test_results_are_fixed_that_are_the_same_number_at_every_return() -> None:
    assert Function.found_in(Source(LUA), "plain", "fixed").fixed_results(FIELDS) == {1: 7, 4: 3}


TABLES = {
    "has no such function": "algorithms.plain = {}",
    "has it twice": "algorithms.plain = { f = function(hit) end, f = function(hit) end }",
    "computes a key": "algorithms.plain = { f = function(hit) end, ['f'] = helper }",
    "combines it with something": "algorithms.plain = { f = function(hit) end or helper }",
    "changes it later": "algorithms.plain = { f = function(hit) end } algorithms.plain.f = nil",
    "hands its table on": "algorithms.plain = { f = function(hit) end }, call('GET', 'x')",
    "does something first": "call('GET', 'x') algorithms.plain = { f = function(hit) end }",
    "computes a number first": "local MANY = 3 * 4 algorithms.plain = { f = function(hit) return MANY end }",
    "is for another name": "algorithms.other = { f = function(hit) end }",
    "takes no parameter": "algorithms.plain = { f = function() end }",
    "takes one twice": "algorithms.plain = { f = function(hit, hit) end }",
    "takes any number": "algorithms.plain = { f = function(...) end }",
    "shadows what is given": "local function call() end algorithms.plain = { f = function(hit) return call(1) end }",
    "does more in others": "algorithms.plain = { others = function() call() return { f = function(hit) end } end }",
    "chooses in others": "algorithms.plain = { others = function() return { f = function(h) end }, 3 end }",
}


@pytest.mark.parametrize("text", TABLES.values(), ids=list(TABLES))
def test_no_function_is_written_out_of_a_file_that(text: str) -> None:
    with pytest.raises(CannotBeWrittenOut):
        Function.found_in(Source(text), "plain", "f")


NOT_EVEN_CALLED = {
    "reads the arguments": "return ARGV[1]",
    "changes the time": "now = now + 1",
    "defines a global function": "function now() end",
    "changes the cost": "hit.cost = 0",
    "changes the cost by a name": "local name = 'cost' hit[name] = 0",
    "changes the cost by another name": "local t = {} t = hit t['cost'] = 0",
    "changes the cost past the table": "rawset(hit, 'cost', 0)",
    "asks another algorithm": "return algorithms.gcra.evaluate(hit, now)",
    "asks any algorithm": "return algorithms[hit.algorithm].evaluate(hit, now)",
}


@pytest.mark.parametrize("body", NOT_EVEN_CALLED.values(), ids=list(NOT_EVEN_CALLED))
def test_a_file_is_not_compiled_that(body: str) -> None:
    text = f"algorithms.plain = {{ evaluate = function(hit) {body} end }}"

    assert not can_be_called(Source(text), "plain")


@pytest.mark.parametrize(
    "body",
    [
        "local now = now now = now + 1",
        "local t = {} t[1] = 3 t.x, t[2] = 4, 5",
        "hit.seen = { cost = 3, now = now }",
        "return algorithms.plain.charge(hit)",
        "for now = 1, 3 do now = 4 end",
    ],
)
def test_a_file_may_be_called_that_changes_only_its_own(body: str) -> None:
    assert can_be_called(Source(f"algorithms.plain = {{ evaluate = function(hit) {body} end }}"), "plain")


@pytest.mark.parametrize("name", ["my-own", "2fast", "end", "a b", ""])
def test_an_algorithm_whose_name_is_none_in_lua_is_not_compiled(name: str) -> None:
    assert not can_be_called(Source("algorithms['x'] = {}"), name)


@pytest.mark.parametrize("text", ["end", "function f(", "local", "for x in y", "t = {", "x[1", "function"])
def test_what_is_no_lua_is_not_understood(text: str) -> None:
    with pytest.raises(NotUnderstood):
        Source(text)


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, BAN])
def test_every_algorithm_of_the_package_is_compiled(algorithm: str) -> None:
    assert can_be_called(Source(source_of_algorithm(algorithm)), algorithm)


@pytest.mark.parametrize("algorithm", ["sliding_window", "concurrency", BAN])
@pytest.mark.parametrize("name", ["evaluate", "charge", "drop_future", "reset_after"])
def test_these_are_written_out(algorithm: str, name: str) -> None:
    assert Function.found_in(Source(source_of_algorithm(algorithm)), algorithm, name).parameters[0] == "hit"
