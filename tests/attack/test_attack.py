"""A scripted attack: thousands of hostile inputs to every face, and promises that none of them may break.

A new input is a line in INPUTS, a new face one in FACES, a new promise one in PROMISES. To attack for longer:
MULTILIMIT_ATTACKS=100000 pytest -m "" tests/attack
"""

import io
import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from flask import request
from flask.testing import FlaskClient

from attack.house import House, control_characters_in, house
from flask_multilimit import IP, Rule, rate_limiter
from flask_multilimit.engine import MultiLimitError
from flask_multilimit.operate import console
from flask_multilimit.operate.command_line import COMMANDS
from flask_multilimit.serve.gate import gate_of
from flask_multilimit.simulation import LoggedRequest, simulate
from support.servers import Server

QUICK, SLOW = 400, int(os.environ.get("MULTILIMIT_ATTACKS", "2000"))
MOST = 3
"""Requests that each subject may make, at every view, while the attack lasts."""
PAGES = ("", "limits", "subject", "lists", "history", "what-if", "change")
FORMS = ("change", "undo", "reset", "what-if", "lift")
METHODS = ("GET", "POST", "PUT", "OPTIONS", "DELETE", "PATCH", "HEAD", "TRACE", "get", "QUERY")
READ_ONLY = ("check", "why", "limits", "keys", "top", "entries", "history", "bans")

Draw = random.Random
Pick = Callable[[Draw], str]

INPUTS: dict[str, Pick] = {
    "controls": lambda draw: "".join(chr(draw.choice([*range(32), *range(127, 160)])) for _ in range(9)),
    "new lines": lambda draw: draw.choice(["\n", "\r\n", "\x85", "\u2028", "\u2029"]) + "ERROR forged",
    "escapes": lambda draw: draw.choice(["\x1b[2J", "\x1b]0;x\x07", "\x9b2J", "\x1b[8m", "\x1bc"]),
    "direction": lambda draw: draw.choice("\u202e\u2066\u200f\u061c") + "txt.exe",
    "surrogates": lambda draw: chr(draw.randrange(0xD800, 0xE000)) + "x",
    "astral": lambda draw: chr(draw.randrange(0x10000, 0x110000)),
    "markup": lambda draw: draw.choice(["<script>alert(1)</script>", "'\"><img src=x onerror=alert(1)>", "{{7*7}}"]),
    "keys": lambda draw: draw.choice(["{x}", "}:{", "a:b", "*", "a\x00b", "rate_limit:{control}:document", "%7B", ""]),
    "long": lambda draw: draw.choice("a 1:{\u00e9") * draw.choice([200, 5000, 60_000]),
    "blanks": lambda draw: "5" + " " * draw.randrange(20_000) + "per x",
    "numbers": lambda draw: draw.choice(
        ["9" * 5000, "-1", "1e400", "nan", "\u00b2", "0x10", "1_000", "\u0663", "1e-9"]
    ),
    "times": lambda draw: draw.choice(["0001-01-01", "9999-12-31T23:59:59-12:00", "1e308", "-1s", "99999999999d"]),
    "addresses": lambda draw: draw.choice(["::ffff:1.2.3.4", "2001:db8::/129", "1.2.3.4%eth0", "999.1.1.1", "::1%\n"]),
    "subjects": lambda draw: draw.choice(
        ["ip:203.0.113.1", "user:", "everyone", ":", "usr:x", "user+ip:[[]]", "a:b:c"]
    ),
    "rules": lambda draw: draw.choice(["0/minute", "1/", "5 at once", "5/minute" * 900, "1 per -1 s", "off", "1/m; ;"]),
    "json": lambda draw: draw.choice(['{"a":' * 500, "[[", '[["ip","x"]]', '{"since":1e308}', "null", '"\\ud800"']),
    "bytes": lambda draw: draw.randbytes(draw.randrange(40)).decode("latin-1"),
}


class Attempt(NamedTuple):
    """What one face was given, and what it showed."""

    face: str
    text: str
    status: int = 200
    shown: str = ""
    problem: str = ""


@dataclass
class Siege:
    """A house, the requests that it served, and the attempts."""

    house: House
    draw: Draw
    served: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests that reached a view, by view and subject."""
    attempts: list[Attempt] = field(default_factory=list)

    def url(self, page: str) -> str:
        return f"/multilimit/{page}"

    def ask(self, path: str, text: str, *, operator: bool = False, **options: Any) -> Attempt:
        client = self.house.operator() if operator else self.house.client()
        response = client.open(path, buffered=True, **options)
        return Attempt(path, text, response.status_code, response.get_data(as_text=True))


Face = Callable[[Siege, str], Attempt]


def of_text(call: Callable[[str], object]) -> Face:
    """A face in Python, which may refuse by an error of ours."""

    def face(siege: Siege, text: str) -> Attempt:  # noqa: ARG001
        try:
            return Attempt("", text, shown=str(call(text)) * 0)
        except MultiLimitError as error:
            return Attempt("", text, shown=str(error))

    return face


def header(name: str) -> Face:
    def face(siege: Siege, text: str) -> Attempt:
        value = (
            re.sub(r"[\r\n]", "", text).encode("utf-8", "replace").decode("latin-1")
        )  # a server lets no more through
        return siege.ask("/address", text, headers={name: value})

    return face


def page(siege: Siege, text: str) -> Attempt:
    names = (
        "who",
        "endpoint",
        "q",
        "sort",
        "kind",
        "done",
        "undone",
        "minutes",
        "rule",
        "lang",
        "page",
        "window",
        "count",
    )
    given = dict.fromkeys(siege.draw.sample(names, 3), safely(text))
    return siege.ask(siege.url(siege.draw.choice(PAGES)), text, operator=True, query_string=given)


def api(siege: Siege, text: str) -> Attempt:
    name = siege.draw.choice(("now", "limits", "subject", "lists", "history", "what-if", text[:50]))
    path = siege.url(f"api/{quote(safely(name))}")
    return siege.ask(path, text, operator=True, query_string={"who": safely(text), "minutes": safely(text)})


def token_for(siege: Siege, operator: FlaskClient) -> str:
    """The token that a form of the dashboard must contain."""
    found = re.search(r'name="token" value="([^"]+)"', operator.get(siege.url("what-if")).text)
    assert found is not None
    return found[1]


def form(siege: Siege, text: str) -> Attempt:
    operator, where = siege.house.operator(), siege.draw.choice(FORMS)
    names = (
        "endpoint",
        "who",
        "rules",
        "for",
        "reason",
        "kind",
        "what",
        "part",
        "id",
        "type",
        "value",
        "more",
        "times",
    )
    given = {name: safely(text) for name in siege.draw.sample(names, 4)}
    if siege.draw.random() < 0.8:
        given["token"] = token_for(siege, operator)
    response = operator.post(siege.url(where), data=given, buffered=True)
    return Attempt("form", text, response.status_code, response.get_data(as_text=True))


def upload(siege: Siege, text: str) -> Attempt:
    operator = siege.house.operator()
    text = text[:10_000]  # more would leave a file of the test client open
    line = f'{text} - {text} [22/Nov/2026:03:15:00 +0000] "GET /{text} HTTP/1.1" 200 1\n'
    log = io.BytesIO((line * 3).encode("utf-8", "surrogatepass"))
    given = {"token": token_for(siege, operator), "log": (log, f"{safely(text)[:50]}.log")}
    response = operator.post(siege.url("what-if"), data=given, buffered=True)
    return Attempt("upload", text, response.status_code, response.get_data(as_text=True))


def document(siege: Siege, text: str) -> Attempt:
    """An attacker writes the document that every worker reads."""
    entry: dict[str, Any] = {
        "id": "x",
        "kind": siege.draw.choice(["ban", "override", "deny", text]),
        "who": text,
        "endpoint": text,
    }
    entry |= {"rules": text, "since": text, "until": siege.draw.choice([1e308, text, -1, None]), "reason": text}
    applier = gate_of(siege.house.app).applier
    written = siege.draw.choice([text, json.dumps({"format": 1, "entries": [entry]})])
    try:
        store = applier.follower.store
        store.write(store.read("").stamp, written, {"what": text, "author": text, "reason": text})  # type: ignore[typeddict-item]
        applier.look()
    except (MultiLimitError, UnicodeEncodeError) as error:  # no storage takes lone surrogates
        return Attempt("document", text, shown=str(error))
    return siege.ask(siege.url("lists"), text, operator=True)


def command(siege: Siege, text: str) -> Attempt:
    name = siege.draw.choice(READ_ONLY)
    arguments = [text] * (name in {"check", "why"}) + siege.draw.choice(
        [[], ["--json"], ["--endpoint", text], ["--ip", text]]
    )
    arguments = [each.replace("\x00", "0") for each in arguments if not each.startswith("-") or each[:2] == "--"]
    shown = siege.house.command(name, *arguments)
    return Attempt("command", text, shown=re.sub(r"\x1b\[[\d;]*m", "", shown))


def replayed(siege: Siege, text: str) -> Attempt:
    siege.house.app.config["TESTING"] = True
    each = LoggedRequest.of(1, "GET", f"/address?x={text}", address=text, user=text, status=200)
    return of_text(lambda _: simulate(siege.house.app, [each]).as_json())(siege, text)


def refreshed(siege: Siege, text: str) -> Attempt:
    """The log lines since the last look."""
    siege.house.flush()
    log = siege.house.log.getvalue()
    siege.house.log.seek(0)
    siege.house.log.truncate()
    return Attempt("log", text, shown=log)


FACES: dict[str, Face] = {
    "query": lambda siege, text: siege.ask("/address", text, query_string={"said": safely(text), "fail": safely(text)}),
    "path": lambda siege, text: siege.ask(f"/{quote(safely(text))}", text),
    "method": lambda siege, text: siege.ask("/address", text, method=siege.draw.choice(METHODS)),
    "body": lambda siege, text: siege.ask("/address", text, method="POST", data=text.encode("utf-8", "replace")),
    "user agent": header("User-Agent"),
    "forwarded": header("X-Forwarded-For"),
    "language": header("Accept-Language"),
    "accept": header("Accept"),
    "cookie": header("Cookie"),
    "authorization": header("Authorization"),
    "callable of rules": lambda siege, text: siege.ask("/dynamic", text, query_string={"fail": safely(text)}),
    "callable of subjects": lambda siege, text: siege.ask("/said", text, query_string={"said": safely(text)}),
    "page": page,
    "api": api,
    "form": form,
    "upload": upload,
    "document": document,
    "command": command,
    "log": refreshed,
    "replay": replayed,
    "text of rules": of_text(Rule.parse),
    "screen": lambda siege, text: Attempt("screen", text, shown=console.styled(console.style(text)[4:-4])),  # noqa: ARG005
}


def safely(text: str) -> str:
    """Text with a "?" for each lone surrogate, which no URL or form can hold."""
    return text.encode("utf-8", "replace").decode()


def besieged(uri: str, seed: int, **settings: Any) -> Siege:
    made = house(uri, **settings)
    siege = Siege(made, random.Random(seed))
    for name in READ_ONLY:
        made.command(name, "--help")  # loads it

    def served(view: str, subject: str) -> str:
        siege.served[view, subject] += 1
        return "ok"

    def plan() -> str:
        if request.args.get("fail"):
            raise ValueError(request.args["fail"])
        return f"{MOST}/day"

    def said() -> str:
        return request.args.get("said", "")

    by_address = rate_limiter(type=IP, rules=f"{MOST}/day")
    rules = {"methods": ["GET", "POST", "PUT", "OPTIONS", "DELETE", "PATCH"]}
    made.app.add_url_rule("/address", "address", by_address(lambda: served("address", "")), **rules)  # type: ignore[arg-type]
    dynamic = rate_limiter(type=IP, rules=plan, fallback=f"{MOST}/day")
    made.app.add_url_rule("/dynamic", "dynamic", dynamic(lambda: served("dynamic", "")))
    by_name = rate_limiter(type=said, name="said", rules=f"{MOST}/day")
    made.app.add_url_rule("/said", "said", by_name(lambda: served("said", said())))
    return siege


# Promises


def serves_more_than_declared(siege: Siege, attempt: Attempt) -> str:  # noqa: ARG001
    worst = [f"{view} {number} times" for (view, _), number in siege.served.items() if number > MOST]
    return ", ".join(worst)


def answers_with_an_error(siege: Siege, attempt: Attempt) -> str:  # noqa: ARG001
    return attempt.problem or (f"status {attempt.status}" if attempt.status in {500, 502, 504} else "")


def shows_control_characters(siege: Siege, attempt: Attempt) -> str:  # noqa: ARG001
    shown = re.sub(r"<[^<>]*>", "", attempt.shown) if attempt.shown.lstrip().startswith("<") else attempt.shown
    return (
        f"shows {sorted(control_characters_in(shown.replace(chr(9), '')))!a}"
        if control_characters_in(shown.replace("\t", ""))
        else ""
    )


def runs_a_script(siege: Siege, attempt: Attempt) -> str:  # noqa: ARG001
    is_page = attempt.shown.lstrip().startswith("<")
    return "runs a script" if is_page and re.search("<script>alert|<img src=x", attempt.shown) else ""


PROMISES = (serves_more_than_declared, answers_with_an_error, shows_control_characters, runs_a_script)


def attack(siege: Siege, attempts: int) -> list[str]:
    """Make this number of attempts; return the broken promises."""
    breaches = []
    for number in range(attempts):
        face = list(FACES)[number % len(FACES)]
        text = "".join(
            INPUTS[name](siege.draw) for name in siege.draw.sample(list(INPUTS), siege.draw.choice([1, 1, 2]))
        )
        try:
            attempt = FACES[face](siege, text)
        except Exception as error:
            attempt = Attempt(face, text, problem=f"{type(error).__name__}: {error}")
        siege.attempts.append(attempt)
        broken = ((promise.__name__, promise(siege, attempt)) for promise in PROMISES)
        breaches += [f"{face}: {name}: {why[:200]!a} by {text[:80]!a}" for name, why in broken if why]
    return breaches


def test_attack_breaks_no_promise(server: Server, record_property: Callable[[str, object], None]) -> None:
    siege = besieged(server.url, 7)

    breaches = attack(siege, QUICK)
    siege.house.close()

    record_property("attempts", len(siege.attempts))
    record_property("breaches", len(breaches))
    assert breaches == []
    assert siege.served["address", ""] == MOST
    assert {attempt.status for attempt in siege.attempts} >= {200, 429}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_long_attack_breaks_no_promise(server: Server, seed: int) -> None:
    siege = besieged(server.url, seed)
    assert attack(siege, SLOW) == []
    siege.house.close()


@pytest.mark.parametrize("hole", ["no limits", "raw text", "an error"])
def test_attack_detects_each_kind_of_hole(server: Server, monkeypatch: pytest.MonkeyPatch, hole: str) -> None:
    siege = besieged(server.url, 7, MULTILIMIT_ENABLED=hole != "no limits")
    if hole == "raw text":
        monkeypatch.setattr("flask_multilimit.operate.dashboard.shell.visible_page", lambda page: page)
    if hole == "an error":
        monkeypatch.setitem(FACES, "path", lambda *_: 1 / 0)

    breaches = attack(siege, 10 * len(FACES))
    siege.house.close()

    told = {"no limits": "serves_more", "raw text": "shows_control", "an error": "answers_with"}[hole]
    assert any(told in each for each in breaches)


def test_attacked_commands_exist() -> None:
    assert set(READ_ONLY) <= set(COMMANDS)
