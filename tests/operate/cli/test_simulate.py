"""flask multilimit simulate and suggest: limits tried on logs, and limits proposed by them."""

import contextlib
import itertools
import json
import os
import pty
import re
import signal
import subprocess
from pathlib import Path

import pytest

from flask_multilimit.operate.cli.logs import percent
from operate.cli.conftest import Command
from operate.simulate.lines import SECOND, START_AT, line, written
from support.waiting import PATIENCE


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """One client asks for /update every second for ten seconds, another searches, and a third gets a 404."""
    path = tmp_path / "access.log"
    return written(
        path,
        [
            *(line(second, "/update") for second in range(10)),
            *(line(second, f"/api/search/{second}", address="203.0.113.8") for second in range(4)),
            line(20, "/nowhere", address="203.0.113.9", status=404),
            "nonsense",
        ],
    )


def test_simulate_prints_who_would_have_been_refused(on_memory: Command, log: Path) -> None:
    out = on_memory("simulate", str(log), columns=140).out

    assert out.startswith("15 requests from 2026-11-22 00:00:00 to 2026-11-22 00:00:20 UTC\n")
    assert "refused           7 (46.7 %)\n" in out
    assert "really succeeded  7 (100.0 %) of the refused (status below 400)\n" in out
    assert "clients refused   1 (33.3 %)\n" in out
    assert re.search(r"^update +10 +7 \(70\.0 %\) +200: 7$", out, re.MULTILINE)
    assert re.search(r"^ip-20s +shop:update +3 per 20 s +10 +7 +7$", out, re.MULTILINE)
    assert re.search(r"never refuses: at least 7 left", out)
    assert re.search(r"^203\.0\.113\.7 +10 +7 \(70\.0 %\) +2026-11-22 00:00:03 +17 s$", out, re.MULTILINE)
    assert "\nReplayed differently:\n" in out
    assert "rules by request of shop:search: not replayed; give them (--rules api_key=RULES) (4 requests)" in out
    assert "access.log: of 16 lines, 1 not in the format" in out


def test_simulate_prints_json(on_memory: Command, log: Path) -> None:
    (report,) = on_memory("simulate", "--json", str(log)).json["reports"]

    assert report["limits"] == "in force"
    assert (report["requests"], report["refused"], report["succeeded_before"]) == (15, 7, 7)
    assert {each["name"]: each["refused"] for each in report["endpoints"]} == {
        "update": 7,
        "api.search": 0,
        "unmatched": 0,
    }
    assert report["worst"][0]["name"] == "203.0.113.7"
    assert report["files"][0]["malformed"] == 1


def test_simulate_reads_subjects_from_a_log_field(on_memory: Command, log: Path) -> None:
    given = ("--subject", "api_key=User-Agent", "--rules", "api_key=2/hour")
    (report,) = on_memory("simulate", "--json", str(log), *given).json["reports"]
    refused = {rule["name"]: rule["refused"] for rule in report["rules"]}
    assert refused["api_key-3600s"] == 2, "all requests of the log have the same user agent"


def test_simulate_applies_lists_of_a_limits_file(on_memory: Command, log: Path, tmp_path: Path) -> None:
    limits = tmp_path / "limits.json"
    limits.write_text('{"allow": ["203.0.113.7"], "deny": ["203.0.113.8"]}')

    out = on_memory("simulate", str(log), "--limits", str(limits), columns=140).out

    assert "denied by lists   4 (26.7 %)\n" in out
    assert re.search(r"^update +10 +10 allowed by lists$", out, re.MULTILINE)
    assert re.search(r"^api.search +4 +4 denied by lists$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0.00 %"), (0.00009, "< 0.01 %"), (0.0001, "0.01 %"), (0.0999, "9.99 %"), (0.1, "10.0 %"), (1, "100.0 %")],
)
def test_share_is_shown_in_percent(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(("shadow", "remark"), [(False, ""), (True, " +shadow")], ids=["in earnest", "shadow"])
def test_simulate_replays_bans(on_memory: Command, log: Path, tmp_path: Path, shadow: bool, remark: str) -> None:
    limited = {"type": "ip", "rules": "1/hour", "ban": {"after": 1, "time": 60}, "shadow": shadow}
    limits = tmp_path / "limits.json"
    limits.write_text(json.dumps({"limits": {"api.search": limited}}))

    out = on_memory("simulate", str(log), "--limits", str(limits), "--endpoint", "api.search", columns=180).out

    assert re.search(r"^BAN +FROM +BANS +CLIENTS +REFUSED MEANWHILE$", out, re.MULTILINE)
    assert re.search(rf"^ip-ban +\S.*ban of 60 s after 1 refusal in 10 min.* 1 +1 +2{remark}$", out, re.MULTILINE)


def test_log_of_which_nothing_can_be_read_is_an_error_also_beside_an_empty_one(
    on_memory: Command, tmp_path: Path
) -> None:
    files = [written(tmp_path / "nonsense.log", ["nonsense"]), written(tmp_path / "empty.log", [])]
    run = on_memory("simulate", *map(str, files))
    assert (run.code, run.out) == (1, "")
    assert "no line could be read; name the format" in run.err_on_one_line


@pytest.mark.parametrize("command", ["simulate", "suggest"])
def test_log_of_another_time_says_in_which_zone_the_time_was_read(on_memory: Command, log: Path, command: str) -> None:
    asked = (command, str(log), "--timezone", "Europe/Berlin", "--since")

    later, earlier = (on_memory(*asked, since, columns=140).err for since in ("2026-11-23", "2026-11-21"))

    assert later.startswith(
        "All 15 requests of the log came before --since, or not before --until. Times without an offset are in "
        "Europe/Berlin: see --timezone.\n"
    )
    assert earlier == ""


def test_simulate_charges_the_given_cost_in_place_of_a_callable_one(tmp_path: Path) -> None:
    app = tmp_path / "costly.py"
    app.write_text(COSTLY)
    log = written(tmp_path / "access.log", [line(second, "/") for second in range(4)])

    (report,) = Command(app, "memory://")("simulate", str(log), "--cost", "units=4", "--json").json["reports"]

    assert (report["refused"], report["notes"]) == (2, [])


def test_simulate_shows_endpoints_without_limits_and_what_shadows_would_have_refused(
    on_memory: Command, tmp_path: Path
) -> None:
    limits = tmp_path / "limits.json"
    limits.write_text(json.dumps({"limits": {"login": {"type": "ip", "rules": "1/hour", "shadow": True}}}))
    logins = written(tmp_path / "logins.log", [*(line(second, "/login") for second in range(3)), line(3, "/health")])

    out = on_memory("simulate", str(logins), "--limits", str(limits), columns=140).out

    assert re.search(r"^login +3 +2 by shadows$", out, re.MULTILINE), out
    assert re.search(r"^health +1 +without limits$", out, re.MULTILINE), out


def test_simulate_applies_the_overrides_in_force(on_server: Command, log: Path) -> None:
    changed = on_server("set", "update", "ip-20s", "5 per 20 seconds", "--for", "1h", "--yes", columns=120)
    (report,) = on_server("simulate", "--json", str(log)).json["reports"]
    assert changed.code == 0, changed.err
    assert report["refused"] == 5


COSTLY = """
from flask import Flask
from flask_multilimit import IP, MultiLimit, rate_limiter

app = Flask("costly")
app.config.from_prefixed_env()
MultiLimit(app)
app.get("/")(rate_limiter(type=IP, rules="9/minute", cost=lambda: 1, name="units")(lambda: "ok"))
"""
TOKENS_A_MINUTE = """
[limits.login]
type = "ip"
rules = [{ count = 1000, time = 60, algorithm = "sliding_window_counter" }]
cost = 100
settle = "header:X-Tokens"
"""


@pytest.fixture
def token_log(tmp_path: Path) -> Path:
    """nginx in JSON: a client asks every second, and takes 400 tokens each time."""
    lines = [
        {"msec": f"{START_AT // SECOND + second}.000", "request": "GET /login HTTP/1.1", "remote_addr": "203.0.113.7"}
        | {"status": "200", "upstream_http_x_tokens": "400" if second else "-"}
        for second in range(10)
    ]
    return written(tmp_path / "tokens.json", map(json.dumps, lines))


def test_simulate_settles_at_the_real_cost_in_the_log(on_memory: Command, token_log: Path, tmp_path: Path) -> None:
    (tmp_path / "limits.toml").write_text(TOKENS_A_MINUTE)
    asked = ("simulate", str(token_log), "--limits", str(tmp_path / "limits.toml"))

    real = on_memory(*asked, "--cost-field", "upstream_http_x_tokens", columns=140)
    guessed = on_memory(*asked, columns=140)

    assert re.search(r"^ip-60s +limits.toml.* +1000 per minute .* +10 +6 +6$", real.out, re.MULTILINE)
    assert re.search(r"^ip-60s +limits.toml.* +1000 per minute .* +10 +0 +0 ", guessed.out, re.MULTILINE)
    assert "does not say the real cost; the estimate stands (1 request)" in real.out
    assert "does not say the real cost; the estimate stands (10 requests)" in guessed.out


def test_simulate_shows_two_sets_of_limits_side_by_side(on_memory: Command, log: Path, tmp_path: Path) -> None:
    strict = tmp_path / "strict.json"
    strict.write_text('{"limits": {"api.*": {"type": "ip", "rules": "1/minute"}}}')

    first, second = on_memory("simulate", "--json", "--against", str(strict), str(log)).json["reports"]
    out = on_memory("simulate", "--against", str(strict), str(log), columns=140).out

    assert (first["refused"], second["refused"]) == (7, 10)
    assert re.search(r"^api\.search +4 +0 +3$", out, re.MULTILINE)


def test_simulate_can_be_limited_to_an_endpoint_and_a_time_span(on_memory: Command, log: Path) -> None:
    span = ("--since", "2026-11-22T00:00:02", "--until", "2026-11-22 00:00:06")
    (report,) = on_memory("simulate", "--json", "--endpoint", "update", *span, str(log)).json["reports"]

    assert [each["name"] for each in report["endpoints"]] == ["update"]
    assert (report["endpoints"][0]["requests"], report["endpoints"][0]["refused"]) == (4, 1)
    assert report["files"][0]["outside"] == 9


def test_simulate_reports_shares_of_the_chosen_endpoint(on_memory: Command, log: Path) -> None:
    """Not the share of requests that were refused at any endpoint."""
    strict = log.with_name("strict.json")
    written(strict, ['{"limits": {"api.*": {"type": "ip", "rules": "1/minute"}}}'])
    options = ("--limits", str(strict), "--endpoint", "api.search")

    out = on_memory("simulate", str(log), *options, columns=140).out
    (report,) = on_memory("simulate", str(log), *options, "--json").json["reports"]

    assert out.startswith("4 requests")
    assert "refused           3 (75.0 %)\n" in out
    assert "really succeeded  3 (100.0 %) of the refused" in out
    assert "Clients and storage commands are those of the whole app" in out
    assert (report["requests"], report["admitted"], report["refused"], report["succeeded_before"]) == (4, 1, 3, 3)


def test_simulate_counts_real_refusals_by_endpoint(on_memory: Command, log: Path) -> None:
    written(log, [line(0, "/update", status=429), *(line(0, "/api/search/1", status=each) for each in (200, 429, 429))])

    def really_refused(*options: str) -> tuple[int, int]:
        (report,) = on_memory("simulate", str(log), *options, "--json").json["reports"]
        return report["really_refused"], report["now_admitted"]

    assert [really_refused("--endpoint", each) for each in ("update", "api.search")] == [(1, 1), (2, 2)]
    assert really_refused() == (3, 3)


def test_simulate_counts_a_shared_limit_at_the_chosen_endpoint_alone(on_memory: Command, log: Path) -> None:
    written(log, [*(line(second, "/update") for second in range(5)), *(line(9, "/api/search/1") for _ in range(2))])
    shared = {"type": "ip", "rules": "3/hour", "ban": {"after": 2, "within": 60, "time": 3600}}
    limits = written(log.with_name("limits.json"), [json.dumps({"application_limits": shared})])

    def counted(endpoint: str) -> list[int]:
        asked = ("simulate", str(log), "--limits", str(limits), "--endpoint", endpoint, "--json")
        (report,) = on_memory(*asked).json["reports"]
        (rule,) = (each for each in report["rules"] if each["text"] == "3 per hour")
        (ban,) = report["bans"]
        return [rule["asked"], rule["refused"], ban["begun"], ban["clients"], ban["refused"]]

    assert counted("update") == [5, 2, 1, 1, 0]
    assert counted("api.search") == [2, 2, 0, 0, 2]


def test_simulate_says_when_log_is_empty(on_memory: Command, tmp_path: Path) -> None:
    assert on_memory("simulate", str(written(tmp_path / "empty.log", []))).out == "No requests.\n"


def test_suggest_looks_at_no_client_that_a_change_has_listed(on_server: Command, log: Path) -> None:
    assert on_server("allow", "203.0.113.8", "--for", "1h", "--force", "--yes").code == 0

    assert on_server("suggest", str(log), "--json").json["suggestion"]["requests"] == 10


def test_suggest_counts_units(on_memory: Command, token_log: Path) -> None:
    asked = ("suggest", str(token_log), "--cost-field", "upstream_http_x_tokens", "--refuse-at-most", "50%")

    out, found = on_memory(*asked, columns=180).out, on_memory(*asked, "--json").json

    assert "Left out: 1 request without a cost in upstream_http_x_tokens." in out
    assert "The most units of a subject in any window" in out
    assert "The cost is the median" in out
    assert re.search(r"^  60 s +3,600 +3,600 ", out, re.MULTILINE)
    assert 'cost=400, settle="header:X-Tokens")' in out
    assert "flask multilimit set" not in out
    assert found["suggestion"]["estimate"] == 400
    assert {rule["algorithm"] for choice in found["suggestion"]["for_requests"] for rule in choice["rules"]} == {
        "sliding_window_counter"
    }
    assert found["paste"]["command"] is None


def test_suggest_chooses_the_count_of_a_calendar(on_memory: Command, log: Path) -> None:
    asked = ("--endpoint", "update", "--window", "calendar day in Asia/Tokyo", "--html", f"{log}.html")
    run = on_memory("suggest", str(log), *asked, columns=140)

    assert run.code == 0, run.err
    assert "calendar day in Asia/Tokyo" in run.out
    assert "timezone='Asia/Tokyo')" in run.out
    assert "per calendar day in Asia/Tokyo' --type ip --shadow" in run.out
    page = log.with_name(f"{log.name}.html").read_text(encoding="utf-8")
    assert "Requests in any calendar day in Asia/Tokyo:" in page


def test_suggest_prints_json(on_memory: Command, log: Path) -> None:
    asked = ("suggest", str(log), "--endpoint", "update", "--refuse-at-most", "0.1")
    out, found = on_memory(*asked, columns=120).out, on_memory(*asked, "--json")

    assert "The most requests of a subject in any window" in out
    assert "The cost is the median" not in out
    assert "access.log: of 16 lines, 1 not in the format" in out

    (choice,) = found.json["suggestion"]["for_requests"]
    assert choice["rules"] == [{"time": 60, "count": 9}]
    assert choice["refused"] == {"requests": 1, "of_requests": 10, "subjects": 1, "of_subjects": 1}
    assert found.json["suggestion"]["peaks"] == [{"window": 60, "p50": 10, "p90": 10, "p99": 10, "p999": 10, "max": 10}]


@pytest.mark.parametrize(
    ("type_", "declared"),
    [
        ("default", "type=DEFAULT"),
        ("user+ip", "type=(USER, IP)"),
        ("agent", 'type=agent, name="agent"'),
    ],
)
def test_suggest_declares_the_given_type(on_memory: Command, log: Path, type_: str, declared: str) -> None:
    run = on_memory("suggest", str(log), "--type", type_, "--subject", "agent=User-Agent", columns=140)
    assert (run.code, f"rate_limiter({declared}, rules=[Rule(time=60, count=" in run.out) == (0, True), run.err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("simulate LOG --format apache", "give one of recorded, caddy"),
        ("simulate LOG --regex (", "regular expression"),
        ("simulate LOG --format common --regex x", "give only one of them"),
        ("simulate LOG --since yesterday", "write 2026-11-22"),
        ("simulate LOG --timezone Mars", "give a name such as Europe/Berlin"),
        ("simulate LOG --cost update", "write NAME=UNITS"),
        ("simulate LOG --cost update=x", "Invalid value for '--cost': 'x': give a whole number"),
        ("simulate LOG --cost upd=3", "no endpoint and no limiter is called 'upd'"),
        ("simulate LOG --endpoint upd", 'did you mean "update"'),
        ("simulate LOG --limits nowhere.json", "cannot be read"),
        ("simulate LOG --format caddy", "no line could be read"),
        ("simulate nowhere.log", "nowhere.log: No such file"),
        ("suggest LOG --type api_key", "name its field"),
        ("suggest LOG --refuse-at-most much", "give a share"),
        ("suggest LOG --refuse-at-most 100%", "less than 1"),
        ("suggest LOG --window long", "give seconds"),
        ("suggest LOG --until 2020-01-01", "no requests to learn from"),
        ("suggest LOG --cost-field units --png x.png", "leave out --cost-field"),
    ],
)
def test_wrong_option_is_an_error_with_a_remedy(on_memory: Command, log: Path, command: str, message: str) -> None:
    run = on_memory(*(str(log) if word == "LOG" else word for word in command.split()))
    assert run.code != 0
    assert message in run.err


# Pages and pictures


@pytest.mark.parametrize(("command", "options"), [("simulate", ["--png"]), ("suggest", ["--html", "--png"])])
def test_html_and_png_options_leave_the_screen_unchanged(
    on_memory: Command, log: Path, tmp_path: Path, command: str, options: list[str]
) -> None:
    pytest.importorskip("matplotlib", reason="the picture is drawn with the extra `plot`")
    given = [word for option in options for word in (option, str(tmp_path / option))]

    run = on_memory(command, str(log), *given, columns=120)

    assert run.out == on_memory(command, str(log), columns=120).out
    assert (tmp_path / "--png").read_bytes().startswith(b"\x89PNG")
    assert command == "simulate" or "203.0.113.7" in (tmp_path / "--html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("command", "option"), [("simulate", "--png"), ("suggest", "--html"), ("suggest", "--png")])
def test_error_names_the_file_that_cannot_be_written(on_memory: Command, log: Path, command: str, option: str) -> None:
    if option == "--png":
        pytest.importorskip("matplotlib", reason="the picture is drawn with the extra `plot`")
    run = on_memory(command, str(log), option, "nowhere/file")
    assert (run.code, "Error: nowhere/file: No such file or directory" in run.err) == (1, True), run.err


# A long log


@pytest.mark.slow
def test_simulate_shows_a_partial_report_when_interrupted(on_memory: Command, tmp_path: Path) -> None:
    """The log is a pipe that this test fills; after the first Ctrl-C, it is not read to its end."""
    pipe = tmp_path / "access.log"
    os.mkfifo(pipe)
    with on_memory.started("simulate", str(pipe), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        with contextlib.suppress(BrokenPipeError), pipe.open("w") as log:
            for second in itertools.count():
                if second == 20_000:
                    process.send_signal(signal.SIGINT)
                if not second % 1000 and process.poll() is not None:
                    break
                log.write(f"{line(second, '/update')}\n")
        out = process.stdout.read() if process.stdout else ""

    assert process.returncode == 0
    assert "Stopped: this covers the requests until then." in out
    assert re.search(r"^update +[\d,]+ +[\d,]+ \(\d", out, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"), [("access.log", b"100%"), ("x" * 300, b"File name too long")], ids=["log", "too long a name"]
)
def test_terminal_shows_progress_or_why_there_is_none(
    on_memory: Command, log: Path, name: str, expected: bytes
) -> None:
    terminal, end = pty.openpty()
    os.set_blocking(terminal, False)  # fail instead of waiting if nothing is shown

    with on_memory.started("simulate", str(log.with_name(name)), stdout=subprocess.DEVNULL, stderr=end) as process:
        process.wait(PATIENCE)
    shown = os.read(terminal, 4096)
    os.close(terminal)
    os.close(end)

    assert expected in shown
    assert b"Traceback" not in shown
