"""Lines of every named format, and custom format strings."""

import contextlib
import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flask_multilimit import ConfigurationError
from flask_multilimit.operate.simulate.formats import FORMATS, MakeReader, expression, format_of, recognised
from flask_multilimit.operate.simulate.logged import LoggedRequest, NoRequestError, Recorded, Times, moment
from flask_multilimit.operate.simulate.recorded import line_of

UTC = timezone.utc
WHEN = datetime(2026, 11, 22, 3, 19, 27, tzinfo=UTC)
AT = int(WHEN.timestamp()) * 1_000_000
AGENT = 'Mozilla/5.0 (X11) \\"odd\\" [agent]'

CADDY = {
    "level": "info",
    "ts": WHEN.timestamp() + 0.75,
    "logger": "http.log.access",
    "request": {
        "remote_ip": "10.0.0.1",
        "client_ip": "203.0.113.7",
        "method": "GET",
        "host": "shop.example",
        "uri": "/items?page=2",
        "headers": {"User-Agent": ["curl"], "X-Api-Key": ["k1"]},
        "tls": {"server_name": "sni.example"},
    },
    "user_id": "",
    "duration": 0.25,
    "status": 200,
}
TRAEFIK = {
    "ClientHost": "203.0.113.7",
    "ClientUsername": "-",
    "DownstreamStatus": 200,
    "Duration": 250000000,
    "RequestHost": "shop.example",
    "RequestMethod": "GET",
    "RequestPath": "/items?page=2",
    "StartUTC": "2026-11-22T03:19:27.500000000Z",
    "request_X-Api-Key": "k1",
    "time": "2026-11-22T03:19:28Z",
}
PLAIN = {
    "time_local": "22/Nov/2026:03:19:27 +0000",
    "remote_addr": "203.0.113.7",
    "remote_user": "",
    "request": "GET /items?page=2 HTTP/1.1",
    "status": "200",
    "http_host": "shop.example",
    "http_x_api_key": "k1",
}
LINES: dict[str, tuple[str, LoggedRequest]] = {
    "common": (
        '203.0.113.7 - - [22/Nov/2026:03:19:27 +0000] "GET /items?page=2 HTTP/1.1" 200 12',
        LoggedRequest(AT, "GET", "/items?page=2", "203.0.113.7", 200),
    ),
    "combined": (
        f'2001:db8::1 - jo doe [22/Nov/2026:05:19:27 +0200] "POST /a\\"b HTTP/2.0" 429 - "-" "{AGENT}"',
        LoggedRequest(AT, "POST", '/a"b', "2001:db8::1", 429, "jo doe"),
    ),
    "vhost_combined": (
        f'shop.example:443 203.0.113.7 - - [22/Nov/2026:03:19:27 +0000] "GET / HTTP/1.1" 304 0 "x" "{AGENT}"',
        LoggedRequest(AT, "GET", "/", "203.0.113.7", 304, None, "shop.example"),
    ),
    "caddy": (
        json.dumps(CADDY),
        LoggedRequest(AT + 500_000, "GET", "/items?page=2", "203.0.113.7", 200, None, "shop.example", took=250_000),
    ),
    "traefik": (
        json.dumps(TRAEFIK),
        LoggedRequest(AT + 500_000, "GET", "/items?page=2", "203.0.113.7", 200, None, "shop.example", took=250_000),
    ),
    "json": (json.dumps(PLAIN), LoggedRequest(AT, "GET", "/items?page=2", "203.0.113.7", 200, None, "shop.example")),
    "recorded": (
        line_of(LoggedRequest(AT, "GET", "", status=200, recorded=Recorded("items", {"ip": "x1"}, False))),
        LoggedRequest(AT, "GET", "", status=200, recorded=Recorded("items", {"ip": "x1"}, False)),
    ),
}


def read(line: str, name: str, *wanted: str) -> LoggedRequest | None:
    return format_of(name)(UTC, wanted)(line)


def request_in(line: str, name: str, *wanted: str) -> LoggedRequest:
    request = read(line, name, *wanted)
    assert request is not None
    return request


@pytest.mark.parametrize("name", LINES)
def test_line_of_each_format_is_read(name: str) -> None:
    line, expected = LINES[name]
    assert read(line, name) == expected


@pytest.mark.parametrize("name", LINES)
def test_each_format_is_recognised_among_other_lines(name: str) -> None:
    line, _ = LINES[name]
    assert recognised(["", "no request", line, line, "{"], UTC) == name


@pytest.mark.parametrize(
    ("text", "line", "began"),
    [
        (
            '$remote_addr $time_iso8601 "$request" $request_time',
            '1.2.3.4 2026-11-22T03:19:28+00:00 "GET / H" 1.5',
            -0.5,
        ),
        ('%h %t "%r" %D', '1.2.3.4 [22/Nov/2026:03:19:27 +0000] "GET / H" 1500000', 0),
        ('%h %t "%r" %D %{ms}T', '1.2.3.4 [22/Nov/2026:03:19:27 +0000] "GET / H" 1500000 1500', 0),
        ('%h %t "%r" %{ms}T', '1.2.3.4 [22/Nov/2026:03:19:27 +0000] "GET / H" 1500', 0),
        ('%h %{usec}t "%r" %{us}T', '1.2.3.4 1795317567000000 "GET / H" 1500000', 0),
        ('%(h)s %(t)s "%(r)s" %(D)s', '1.2.3.4 [22/Nov/2026:03:19:28 +0000] "GET / H" 1500000', -0.5),
        ('%(h)s %(t)s "%(r)s" %(M)s', '1.2.3.4 [22/Nov/2026:03:19:28 +0000] "GET / H" 1500', -0.5),
        ('%(h)s %(t)s "%(r)s" %(L)s', '1.2.3.4 [22/Nov/2026:03:19:28 +0000] "GET / H" 1.500000', -0.5),
    ],
)
def test_duration_and_beginning_of_a_request_are_read(text: str, line: str, began: float) -> None:
    """Apache writes the time at which a request began; the others write when it ended."""
    request = request_in(line, text)
    assert (request.at - AT, request.took) == (began * 1_000_000, 1_500_000)


@pytest.mark.parametrize("text", ["-", "", "1e3", "-1", "nan"])
def test_invalid_duration_is_ignored(text: str) -> None:
    request = request_in(
        f'1.2.3.4 2026-11-22T03:19:27+00:00 "GET / H" {text}', '$remote_addr $time_iso8601 "$request" $request_time'
    )
    assert (request.at, request.took) == (AT, None)


def test_line_of_gunicorn_with_a_final_backslash_is_read() -> None:
    """Gunicorn escapes only quotation marks, so the quotation of the agent has no end."""
    line = r'203.0.113.7 - - [22/Nov/2026:03:19:27 +0000] "GET /items HTTP/1.1" 204 - "-" "odd \"'
    for name in (recognised([line], UTC), "combined"):
        request = name and read(line, name)
        assert request, "no client can hide its requests from a log whose other lines are combined"
        assert request.target == "/items"


@pytest.mark.parametrize("query", [r"\"", r'\\"', r'\\"b'])
def test_line_of_gunicorn_with_quotation_marks_and_backslashes_in_the_target_is_read(query: str) -> None:
    """Gunicorn escapes a quotation mark, but not the backslash that a client sent before it."""
    line = f'203.0.113.7 - - [22/Nov/2026:03:19:27 +0000] "GET /items?q={query} HTTP/1.1" 404 0 "-" "-"'
    request = request_in(line, "combined")
    assert (request.target.partition("=")[0], request.status) == ("/items?q", 404)


@pytest.mark.parametrize("user", ["a[b", "a [b", "a]b", "[[[[", "[x]", "x [01/Jan/2020"])
def test_line_with_brackets_in_the_name_of_the_user_is_read(user: str) -> None:
    """Any client can send one."""
    line = f'203.0.113.7 - {user} [22/Nov/2026:03:19:27 +0000] "GET /items HTTP/1.1" 200 5 "-" "-"'
    request = request_in(line, "combined")
    assert (request.at, request.user, request.target) == (AT, user, "/items")


def test_query_with_a_quotation_mark_is_read_where_it_is_quoted_with_its_path() -> None:
    line = r'203.0.113.7 [22/Nov/2026:03:19:27 +0000] GET "/items?q=\"" 404'
    assert request_in(line, '%h %t %m "%U%q" %>s').target == '/items?q="'


@pytest.mark.parametrize("name", ["common", "combined", "vhost_combined"])
def test_further_fields_at_the_end_of_a_line_are_ignored(name: str) -> None:
    line, expected = LINES[name]
    assert read(f'{line} "further" 0.250', name) == expected


def test_line_with_further_fields_is_not_in_the_format_given() -> None:
    line = '1.2.3.4 [22/Nov/2026:03:19:27 +0000] "GET / HTTP/1.1"'
    assert read(line, '%h %t "%r"')
    assert read(f"{line} 12", '%h %t "%r"') is None


def test_format_is_recognised_by_lines_without_a_request() -> None:
    line = '203.0.113.7 - - [22/Nov/2026:03:19:27 +0000] "-" 408 0 "-" "-"'
    assert recognised([line], UTC) == "combined"


def test_no_format_is_recognised_in_other_text() -> None:
    assert recognised(["MZ\x90\x00", "hello", "{}", "[]", "1"], UTC) is None


WITH_THEIR_LINES = r"""
$remote_addr - [$time_iso8601] $host "$request" $status $request_time "$http_x_api_key"
203.0.113.7 - [2026-11-22T03:19:27+00:00] shop.example "GET /items?page=2 HTTP/1.1" 200 0.500 "k1"

$msec $remote_addr $request_method $uri$is_args$args $status $host $http_x_api_key
1795317566.500 203.0.113.7 GET /items?page=2 200 shop.example k1

$msec $remote_addr $request_method $request_uri question=$is_args $status $host $http_x_api_key
1795317566.500 203.0.113.7 GET /items?page=2 question=? 200 shop.example k1

%{%Y-%m-%dT%H:%M:%S%z}t %a %v "%m" %U%q %>s %{X-API-KEY}i
2026-11-22T03:19:27+0000 203.0.113.7 shop.example "GET" /items?page=2 200 k1

%h %{msec}t %V \"%r\" %!400,501s %{X-Api-Key}i %%
203.0.113.7 1795317566500 shop.example "GET /items?page=2 HTTP/1.0" 200 k1 %

%(t)s %(h)s %({host}i)s '%(r)s' %(s)s %({x-api-key}i)s %(L)s
[22/Nov/2026:03:19:27 +0000] 203.0.113.7 shop.example 'GET /items?page=2 HTTP/1.1' 200 k1 0.500000

%(p)s %(t)s %(h)s %({host}i)s "%(r)s" %(s)s %({x-api-key}i)s
<4711> [22/Nov/2026:03:19:27 +0000] 203.0.113.7 shop.example "GET /items?page=2 HTTP/1.1" 200 k1
"""


@pytest.mark.parametrize(("text", "line"), [pair.split("\n") for pair in WITH_THEIR_LINES.strip().split("\n\n")])
def test_format_strings_of_nginx_apache_and_gunicorn_are_read(text: str, line: str) -> None:
    request = request_in(line, text, "X-Api-Key")

    assert request.at in {AT, AT - 500_000}, (
        "a time at the end of a request is moved to its beginning where it is known"
    )
    assert ("request_time" in text or "(L)" in text or "msec" in text) == (request.at == AT - 500_000)
    assert request[1:7] == ("GET", "/items?page=2", "203.0.113.7", 200, None, "shop.example")
    assert request.fields == {"X-Api-Key": "k1"}


@pytest.mark.parametrize(
    ("text", "path", "target"),
    [
        ("$msec $request_method $uri$is_args$args", "/items-", "/items"),
        ("$msec $request_method $uri?$args", "/items?-", "/items"),
        ("%{sec}t %m %U%q", "/items-", "/items-"),
    ],
)
def test_dash_of_nginx_in_place_of_a_query_is_no_part_of_the_target(text: str, path: str, target: str) -> None:
    request = request_in(f"1795317567 GET {path}", text)
    assert request.target == target


@pytest.mark.parametrize(
    "written", [r"GET /a\x22b\x5Cc\xE9 HTTP/1.1", r"GET /a\"b\\c\xe9 HTTP/1.1"], ids=["nginx", "Apache"]
)
def test_escapes_of_each_server_are_undone(written: str) -> None:
    request = request_in(f'203.0.113.7 - - [22/Nov/2026:03:19:27 +0000] "{written}" 404 0 "-" "-"', "combined")
    assert request.target == '/a"b\\c\xe9'


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("$msec $request_method $uri", r"GET /caf\xC3\xA9"),
        ('%{sec}t "%r" %{Accept}i', r'"GET /caf\xc3\xa9 HTTP/1.1" \xc3'),
    ],
    ids=["nginx", "Apache"],
)
def test_escaped_bytes_of_a_path_are_utf_8_as_the_app_reads_them(text: str, written: str) -> None:
    request = request_in(f"1795317567 {written}", text, "Accept")
    assert request.target == "/café"
    assert request.fields.get("Accept", "\xc3") == "\xc3", "header fields are Latin-1"


@pytest.mark.parametrize("address", ["203.0.113.7", "2001:db8::1", "::1"])
def test_address_before_a_port_keeps_its_colons(address: str) -> None:
    line = f'{address}:50443 [22/Nov/2026:03:19:27 +0000] "GET / HTTP/1.1"'
    request = request_in(line, '$remote_addr:$remote_port [$time_local] "$request"')
    assert request.address == address


def test_host_that_was_not_sent_is_empty() -> None:
    request = request_in(
        '203.0.113.7 - 2026-11-22T03:19:27Z "GET / HTTP/1.0"', '$remote_addr $http_host $time_iso8601 "$request"'
    )
    assert request.host == ""


@pytest.mark.parametrize(
    ("logged", "read"),
    [("%{Key}C %{Key}i", {"Key": "2", "cookie_key": "1"}), ("%{Key}i %{Key}o", {"Key": "1"})],
    ids=["not a cookie", "the first"],
)
def test_header_field_is_told_from_others_of_its_name(logged: str, read: dict[str, str]) -> None:
    line = '203.0.113.7 [22/Nov/2026:03:19:27 +0000] "GET / HTTP/1.1" 1 2'
    assert request_in(line, f'%h %t "%r" {logged}', *read).fields == read


TIME = {"time": AT // 1_000_000}
BY_CADDY: dict[str, Any] = CADDY["request"]  # type: ignore[assignment]
JSON: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "duration": ("json", {**PLAIN, "request_time": 0.25}, {"at": AT - 250_000, "took": 250_000}),
    "duration as text": ("json", {**PLAIN, "request_time": "0.250"}, {"at": AT - 250_000, "took": 250_000}),
    "more than a day is not in seconds": ("json", {**PLAIN, "request_time": 250_000.0}, {"at": AT, "took": None}),
    "number with a fraction of zero": (
        *("json", {"time": AT / 1_000_000, "method": "GET", "path": "/", "status": 429.0, "user": 42.0, "cost": 7.0}),
        {"at": AT, "status": 429, "user": "42", "fields": {"cost": "7"}},
    ),
    "nan": ("json", {**TIME, "method": "GET", "path": "/", "user": float("nan")}, {"user": None}),
    "Logstash": (
        *("json", {"@timestamp": "2026-11-22T03:19:27Z", "verb": "GET", "request": "/a?b=2", "clientip": "::1"}),
        {"at": AT, "method": "GET", "target": "/a?b=2", "address": "::1"},
    ),
    "Logstash with a url": ("json", {**TIME, "verb": "GET", "request": "/a?b=1", "url": "/a"}, {"target": "/a"}),
    "method and whole request": (
        *("json", {**TIME, "request_method": "GET", "request": "GET /items?page=2 HTTP/1.1"}),
        {"method": "GET", "target": "/items?page=2"},
    ),
    "objects in place of texts": (
        *("json", {**TIME, "method": "GET", "url": "/items", "request": {"id": 7}, "user": {"id": 8}}),
        {"target": "/items", "user": None},
    ),
    "peer of an old Caddy": ("caddy", {**CADDY, "request": BY_CADDY | {"client_ip": None}}, {"address": "10.0.0.1"}),
    "header field without values": (
        *("caddy", {**CADDY, "request": BY_CADDY | {"headers": {"X-Api-Key": []}}}),
        {"fields": {"request.tls.server_name": "sni.example"}},
    ),
    "header field and path": (
        "caddy",
        CADDY,
        {"fields": {"x-api-key": "k1", "request.tls.server_name": "sni.example"}},
    ),
    "header field of Traefik": ("traefik", TRAEFIK, {"fields": {"x-api-key": "k1"}}),
    "header field of nginx": ("json", PLAIN, {"fields": {"x-api-key": "k1"}}),
}


@pytest.mark.parametrize(("name", "line", "expected"), JSON.values(), ids=JSON)
def test_values_in_json_are_read(name: str, line: dict[str, Any], expected: dict[str, Any]) -> None:
    found = request_in(json.dumps(line), name, "x-api-key", "X-Missing", "cost", "request.tls.server_name")
    assert {field: getattr(found, field) for field in expected} == expected


def test_custom_regular_expression_is_read() -> None:
    text = r"(?P<at>\S+) (?P<method>\S+) (?P<target>\S+)(?: key=(?P<x_api_key>\S+))?"
    reader = expression(text)(UTC, ["X-Api-Key"])

    assert reader("2026-11-22T03:19:27Z GET /a key=k1") == LoggedRequest(AT, "GET", "/a", fields={"X-Api-Key": "k1"})
    assert reader("2026-11-22T03:19:27Z GET /a") == LoggedRequest(AT, "GET", "/a")
    assert reader("nonsense") is None


def test_group_of_a_regular_expression_may_match_nothing() -> None:
    reader = expression(r"(?:(?P<at>\S+) )?(?P<method>[A-Z]+) (?P<target>/\S*)?(?: from (?P<address>\S+))?")(UTC, [])
    assert reader("2026-11-22T03:19:27Z GET /a") == LoggedRequest(AT, "GET", "/a")
    assert reader("2026-11-22T03:19:27Z GET ") == LoggedRequest(AT, "GET", "")
    assert reader("GET /a") is None


@pytest.mark.parametrize(("flags", "comment"), [("(?i)", ""), ("(?ix)", " # and the rest")])
def test_regular_expression_may_begin_with_flags(flags: str, comment: str) -> None:
    reader = expression(rf"{flags}(?P<at>\S+)\s(?P<method>get)\s(?P<target>\S+){comment}")(UTC, [])
    assert reader("2026-11-22T03:19:27Z GET /a") == LoggedRequest(AT, "GET", "/a")


@pytest.mark.parametrize(
    ("make", "text", "message"),
    [
        (format_of, "apache", "give one of recorded, caddy"),
        (format_of, "$request $status", "no time"),
        (format_of, "$time_local $status", "neither the request line"),
        (format_of, "$time_local $request_method", "neither the request line"),
        (format_of, "$time_local$request", "nothing between"),
        (format_of, "$time_local $request $status$args", "nothing between"),
        (expression, "(", "regular expression"),
        (expression, r"(?P<at>\d+)", "name its groups"),
    ],
)
def test_invalid_format_is_an_error(make: Callable[[str], MakeReader], text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(text)(UTC, ())


@pytest.mark.parametrize("request_line", ["-", "", "\\x16\\x03\\x01", "<script> /", "GET\x00 / HTTP/1.1"])
def test_connection_without_a_request_is_not_a_malformed_line(request_line: str) -> None:
    with pytest.raises(NoRequestError):
        read(f'203.0.113.7 - - [22/Nov/2026:03:19:27 +0000] "{request_line}" 400 12', "common")


@pytest.mark.parametrize("line", ["GET /a b HTTP/1.1", "GET /a b c", "GET /a  HTTP/1.1"])
def test_target_with_blanks_is_read(line: str) -> None:
    request = request_in(f'203.0.113.7 - - [22/Nov/2026:03:19:27 +0000] "{line}" 400 12', "common")
    assert request.target == line.removeprefix("GET ").removesuffix(" HTTP/1.1")


def read_or_no_request(line: str, name: str) -> None:
    with contextlib.suppress(NoRequestError):
        found = read(line, name, "X-Api-Key")
        assert found is None or isinstance(found, LoggedRequest)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "recorded"])
@given(text=st.text())
def test_random_text_is_read_or_no_request(name: str, text: str) -> None:
    read_or_no_request(text, name)


_values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers()))


@pytest.mark.parametrize("name", ["recorded", "caddy", "traefik", "json"])
@given(data=st.data())
def test_random_json_is_read_or_no_request(name: str, data: st.DataObject) -> None:
    whole: dict[str, Any] = json.loads(LINES[name][0])
    for key in data.draw(st.lists(st.sampled_from(sorted(whole)), max_size=3)):
        whole[key] = data.draw(_values)
    read_or_no_request(json.dumps(whole), name)


@pytest.mark.parametrize(
    "line",
    ["[" * 60_000, '{"ts":' * 9_000, '{"ts": 1' + "0" * 5_000 + "}", '{"ts": NaN}'],
    ids=["nested lists", "nested objects", "long number", "NaN"],
)
@pytest.mark.parametrize("name", ["recorded", "caddy", "json"])
def test_hostile_json_is_no_request(name: str, line: str) -> None:
    assert read(line, name) is None


PATH_AND_QUERY = '%h %l %u %t "%U%q" %m %>s "%{Referer}i"'


@pytest.mark.parametrize("name", ["combined", "common", "vhost_combined", PATH_AND_QUERY])
@pytest.mark.parametrize("start", ["", "1.1.1.1 - ", '1.1.1.1 - - [22/Nov/2026:03:19:27 +0000] "'])
@pytest.mark.parametrize("repeated", ['"', "\\", '\\"', " ", "a", "a b ", "- - [", " [", '" "', '" x x "', "[] "])
def test_lines_built_for_backtracking_do_not_hang(name: str, start: str, repeated: str) -> None:
    """Each field excludes the character that follows it: a backtracking pattern would take hours here."""
    read_or_no_request(start + repeated * (60_000 // len(repeated)), name)


# Times


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("22/Nov/2026:03:19:27 +0000", AT),
        ("21/Nov/2026:22:19:27 -0500", AT),
        ("22/Nov/2026:03:19:27.123 +0000", AT + 123_000),
        ("2026-11-22T03:19:27Z", AT),
        ("2026-11-22T03:19:27.123456789Z", AT + 123_456),
        ("2026-11-22 08:49:27,5+05:30", AT + 500_000),
        ("2026/11/22 03:19:27.000", AT),
        (f"{AT // 1_000_000}", AT),
        (f"{AT // 1_000_000}.25", AT + 250_000),
        (f"{AT // 1_000}", AT),
        (f"{AT}", AT),
        (f"{AT * 1_000}", AT),
        (f"{AT // 1_000}.456", AT + 456),
        ("0", 0),
    ],
)
def test_instants_are_read_in_every_notation(text: str, at: int) -> None:
    times = Times()
    assert times(text) == at
    assert times(text) == at, "the second time from memory"


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", "yesterday", "22/Foo/2026:03:19:27 +0000", "32/Nov/2026:03:19:27 +0000", "2026-13-01T00:00:00Z"),
        *("22/Nov/2026:03:19:99 +0000", "22/Nov/2026:03:19:27 +9900", "1e400", "9" * 30, "NaN"),
    ],
)
def test_invalid_instant_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        Times()(text)


def test_local_times_follow_the_end_of_summer_time() -> None:
    """In Berlin, 2026-10-25 had the hour from 2 to 3 twice."""
    times = Times(ZoneInfo("Europe/Berlin"))
    passed = [datetime(2026, 10, 24, 23, 40, tzinfo=UTC) + timedelta(minutes=5 * step) for step in range(36)]

    read_back = [times(f"{when.astimezone(ZoneInfo('Europe/Berlin')):%Y-%m-%d %H:%M:%S}") for when in passed]

    assert read_back == [int(when.timestamp()) * 1_000_000 for when in passed]


class HourAhead(tzinfo):
    """A zone without a hash, as those of dateutil are."""

    __hash__ = None  # type: ignore[assignment]

    def utcoffset(self, when: datetime | None) -> timedelta:  # noqa: ARG002
        return timedelta(hours=1)

    def dst(self, when: datetime | None) -> None: ...

    def tzname(self, when: datetime | None) -> None: ...


def test_zone_without_a_hash_is_used() -> None:
    assert Times(HourAhead())("2026-11-22 04:19:27") == AT


def test_moment_may_be_a_date_a_time_or_iso_8601() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    assert moment("2026-11-22 03:19:27Z", berlin) == AT
    assert moment("2026-11-22 04:19", berlin) == AT - 27_000_000
    assert moment("2026-11-22", berlin) == moment("2026-11-21T23:00:00", UTC)


def test_request_can_be_made_from_datetime_or_timestamp() -> None:
    assert LoggedRequest.of(WHEN, "GET", "/") == LoggedRequest.of(WHEN.timestamp(), "GET", "/")
    with pytest.raises(ValueError, match="time zone"):
        LoggedRequest.of(datetime(2026, 1, 1), "GET", "/")
