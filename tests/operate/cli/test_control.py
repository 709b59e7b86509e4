"""flask multilimit set, unset, allow, deny, ban, entries, history: on an app whose workers run elsewhere."""

import errno
import json
import os
import time
from io import StringIO
from pathlib import Path
from typing import NoReturn

import pytest
import redis
from flask import Flask
from flask.testing import FlaskClient

from flask_multilimit import MultiLimit
from flask_multilimit.insight.values import ROWS
from flask_multilimit.operate.cli import user_name
from flask_multilimit.serve.gate import gate_of
from operate.cli.conftest import SHOP, Command, call
from support.asking import pass_a_second
from support.doubles import raising
from support.servers import Server
from support.waiting import until

EXTENDED = """
from flask import Flask
from flask_multilimit import MultiLimit, rate_limiter

app = Flask("shop")
app.config.from_prefixed_env()
app.add_url_rule("/", "index", lambda: "ok")
plan = rate_limiter("5/hour", type=lambda: "ann", name="plan")
MultiLimit(app).add_listing(lambda app, endpoint: {"mail plans": [plan] if endpoint == "index" else []})
"""


def wait_for_status(shop: FlaskClient, path: str, status: int) -> None:
    until(lambda: call(shop, path) == [status])


def test_set_changes_a_limit_and_unset_restores_it(on_server: Command, shop: FlaskClient) -> None:
    assert call(shop, "/update", 4) == [200, 200, 200, 429]

    run = on_server(
        "set", "update", "ip-20s", "50 per 20 seconds", "--for", "2h", "--reason", "night", "--yes", "--json"
    )
    wait_for_status(shop, "/update", 200)
    (entry,) = on_server("entries", "--json").json["entries"]
    assert (run.json["changed"], entry["id"], entry["reason"]) == (True, run.json["entry"]["id"], "night")
    assert "50 per 20 s" in str(run.json["endpoints"][0]["after"])

    assert on_server("unset", entry["id"], "--yes").code == 0
    wait_for_status(shop, "/update", 429)
    assert [each["what"] for each in on_server("history", "--json").json["changes"]] == ["undo", "set"]


@pytest.mark.parametrize("who", ["203.0.113.7:80", "ip:203.0.113.7", "user:bob\n", '"user:bob\\n"'])
def test_unset_understands_clients_as_deny_does(on_server: Command, who: str) -> None:
    on_server("deny", who, "--lasting", "--yes")
    on_server("set", "*", "--who", who, "--rules", "9/minute", "--lasting", "--yes", "--force")

    assert on_server("unset", "*", "--who", who, "--yes").code == 0
    assert on_server("unset", who, "--yes").code == 0
    assert on_server("entries", "--json").json["entries"] == []


@pytest.mark.parametrize("ahead", [-86_400, 86_400])
def test_durations_are_right_on_a_machine_with_a_wrong_clock(
    on_server: Command, shop: FlaskClient, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    call(shop, "/update", 11)
    pass_a_second(shop.application)
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + ahead)

    change = on_server("ban", "203.0.113.9", "--for", "3h", "--yes")

    assert "for 3 h" in change.err
    assert "ENDS IN" in (listed := on_server("entries").out)
    assert "3 h " in listed
    assert "for 3 h" in on_server("unset", "203.0.113.9", "--dry-run").out
    assert "3 h" in on_server("bans").out
    assert "traffic is known" not in on_server("why", "203.0.113.7", "--at", "1s").err


def test_set_says_which_change_it_replaces(on_server: Command) -> None:
    change = ("set", "update", "ip-20s", "50 per 20 seconds", "--lasting", "--yes")
    first = on_server(*change, "--json").json

    second = on_server("set", "update", "ip-20s", "60 per 20 seconds", "--lasting", "--dry-run")
    told = on_server("deny", "203.0.113.7", "--lasting", "--dry-run", "--json").json

    assert f"\n  in place of rule ip-20s at update: 50 per 20 seconds ({first['entry']['id']}, by " in second.out
    assert first["replaces"] is told["replaces"] is None


def test_rule_of_one_client_is_an_error_that_says_how_to_change_the_limits_of_one(on_server: Command) -> None:
    run = on_server("set", "update", "ip-20s", "9 per 20 seconds", "--who", "203.0.113.7", "--for", "1h", "--yes")

    assert run.code == 1
    assert run.err_on_one_line.endswith(
        "rule and who: give only one of them; for one client, give all its rules there, or times"
    )


@pytest.mark.parametrize(
    ("given", "commands"),
    [
        (("5/minute",), ("set update RULE 5/minute. ", "set update --limit 5/minute --type default. ")),
        (("5/minute", "--type", "ip"), ("set update RULE 5/minute. ", "set update --limit 5/minute --type ip")),
        (("5 per 20 seconds",), ("RULE '5 per 20 seconds'. ", "--limit '5 per 20 seconds' --type default. ")),
        (("5/minute", "--who", "203.0.113.7"), ("write --rules 5/minute",)),
        (("5/minute", "--limiter", "ip"), ("write --rules 5/minute",)),
        (("ip-20s", "5/minute", "--rules", "6/minute"), ("RULES and --rules: give only one of them.",)),
        (("ip-20s", "5/minute", "--type", "ip"), ("--type is for --limit. To change the limiters of a type, name it",)),
    ],
)
def test_set_with_rules_in_place_of_a_rule_name_is_an_error_that_shows_what_to_write(
    on_server: Command, given: tuple[str, ...], commands: tuple[str, ...]
) -> None:
    run = on_server("set", "update", *given, "--for", "2h", "--yes")
    told = run.err_on_one_line
    assert (run.code, [each for each in commands if each not in told]) == (2, []), run.err


def test_set_without_a_change_is_an_error_that_lists_the_options(on_server: Command) -> None:
    run = on_server("set", "update", "ip-20s", "--for", "2h", "--yes")
    assert (run.code, "nothing given; give one of rules, times" in run.err_on_one_line) == (1, True), run.err


def test_set_warns_when_count_is_below_number_of_workers(on_server: Command) -> None:
    on_server.environment["FLASK_MULTILIMIT_WORKERS"] = "4"
    warning = "That is 0 if there are more workers than units"

    few, enough = (
        on_server("set", "update", "ip-20s", f"{count} per 20 seconds", "--for", "1h", "--dry-run") for count in (2, 4)
    )

    shadow = on_server("set", "update", "--limit", "2/minute", "--shadow", "--for", "1h", "--dry-run")

    assert warning in few.out_on_one_line
    assert warning not in enough.out_on_one_line
    assert warning not in shadow.out_on_one_line, "a shadow refuses nobody in an outage either"


def test_ban_and_deny_of_one_ipv6_address_warn_of_the_others(on_server: Command) -> None:
    def warns(command: str, who: str) -> bool:
        run = on_server(command, who, "--for", "1h", "--dry-run")
        return "The client may use any other address of it." in run.out_on_one_line

    assert warns("ban", "2001:db8::7")
    assert warns("deny", "2001:db8::7")
    assert not warns("allow", "2001:db8::7")
    assert not warns("ban", "2001:db8::/64")
    assert not warns("ban", "203.0.113.7")


def test_ban_deny_and_override_of_an_allowed_client_say_that_it_stays_allowed(on_server: Command) -> None:
    def warns(*command: str) -> bool:
        run = on_server(*command, "--for", "1h", "--dry-run")
        return f"The client stays allowed: allow {allowed} comes first." in run.out_on_one_line

    run = on_server("allow", "203.0.113.0/24", "--for", "1h", "--yes", "--json")
    allowed = run.json["entry"]["id"]

    assert warns("ban", "203.0.113.7")
    assert warns("deny", "203.0.113.7")
    assert warns("set", "*", "--who", "203.0.113.7", "--times", "2")
    assert not warns("allow", "203.0.113.7")
    assert not warns("ban", "198.51.100.7")
    assert not warns("ban", "203.0.113.0/24"), "it replaces the entry that allows"

    on_server("allow", "203.0.113.7", "--for", "1h", "--yes")
    assert warns("ban", "203.0.113.7"), "it replaces one of the two"


def test_change_of_a_rule_that_a_callable_names_says_that_no_rule_may_have_this_name(on_server: Command) -> None:
    def note(*command: str) -> str:
        run = on_server(*command, "--for", "1h", "--dry-run")
        return run.out_on_one_line.partition("Nothing changes unless one of them is ")[2].split(".")[0]

    assert note("set", "api.search", "api_key-6s", "9/minute") == "called api_key-6s"
    assert note("set", "*", "api_key-6s", "--off") == "called api_key-6s"
    assert not note("set", "api.search", "--limiter", "api_key", "--times", "2")
    assert not note("set", "update", "ip-20s", "50 per 20 seconds")


def test_lasting_change_warns_when_server_keeps_nothing_on_disk(on_server: Command, redis_client: redis.Redis) -> None:
    forgets = "The server keeps nothing on disk."

    assert forgets in on_server("deny", "203.0.113.7", "--lasting", "--dry-run").out
    assert forgets in on_server("deny", "203.0.113.7", "--lasting", "--yes", "--json").json["notes"][0]
    assert forgets not in on_server("deny", "203.0.113.7", "--for", "1h", "--dry-run").out
    assert forgets[:-1] in on_server("doctor").out_on_one_line
    assert forgets not in on_server("unset", "203.0.113.7", "--dry-run").out
    redis_client.config_set("appendonly", "yes")
    try:
        assert forgets not in on_server("deny", "203.0.113.7", "--lasting", "--dry-run").out
    finally:
        redis_client.config_set("appendonly", "no")


def test_dry_run_shows_a_change_without_making_it(on_server: Command) -> None:
    run = on_server("set", "update", "ip-20s", "50 per 20 seconds", "--lasting", "--dry-run")
    assert run.code == 0
    assert "    + ip-20s: 50 per 20 s" in run.out
    assert on_server("entries").out.startswith("No changes")


def test_preview_of_a_change_that_changes_no_limit_says_so(on_server: Command) -> None:
    same, other, ban = (
        on_server(*command, "--for", "1h", "--dry-run").out
        for command in (
            ("set", "update", "ip-20s", "3 per 20 seconds"),
            ("set", "update", "ip-20s", "4 per 20 seconds"),
            ("ban", "203.0.113.7"),
        )
    )

    assert ["No limit of a view changes." in out for out in (same, other, ban)] == [True, False, False]


def test_limits_that_a_change_would_change_fit_the_terminal(on_server: Command) -> None:
    lines = on_server("set", "*", "--limiter", "ip", "--off", "--for", "1h", "--dry-run").out.splitlines()
    assert any("ban of 60 min after 2 refusals" in each for each in lines)
    assert [each for each in lines if len(each) > 80] == []


def test_change_of_hundreds_of_endpoints_shows_a_few_of_them_before_it_asks(app: Flask, server: Server) -> None:
    app.config.update(MULTILIMIT_STORAGE_URI=server.url, MULTILIMIT_STORAGE_TIMEOUT=10)
    MultiLimit(app)
    for number in range(300):
        app.add_url_rule(f"/{number}", f"view{number}", lambda: "ok")

    run = app.test_cli_runner().invoke(args=["multilimit", "set", "view*", "--limit", "5/minute", "--for", "1h"])

    assert len(run.output.splitlines()) < 25
    assert "  and 290 more; see --dry-run --json\nChange this?" in run.output


def test_denying_everyone_asks_twice_and_scripts_need_force(on_server: Command) -> None:
    refused = on_server("deny", "0.0.0.0/0", "--lasting", answer="y\nn\n")
    assert (refused.code, refused.err.endswith("Aborted!\n")) == (1, True)
    assert "--force" in on_server("deny", "0.0.0.0/0", "--lasting", "--yes").err
    assert on_server("entries", "--json").json["entries"] == []

    assert on_server("deny", "0.0.0.0/0", "--lasting", "--yes", "--force").code == 0


def test_entries_command_lists_more_changes_than_a_page(on_server: Command, shop: FlaskClient) -> None:
    for number in range(ROWS + 1):
        gate_of(shop.application).applier.control.deny(f"203.0.113.{number}", lasting=True)
    assert len(on_server("entries", "--json").json["entries"]) == ROWS + 1


def test_change_that_concerns_few_clients_is_made_after_one_question(on_server: Command) -> None:
    assert on_server("deny", "203.0.113.9", "--lasting", answer="n\n").code == 1
    assert on_server("entries", "--json").json["entries"] == []
    assert on_server("deny", "203.0.113.9", "--lasting", answer="y\n").code == 0


@pytest.mark.parametrize("command", ["entries", "history"])
def test_list_that_the_storage_does_not_give_is_an_error(command: str) -> None:
    run = Command(SHOP, "redis://127.0.0.1:1")(command)
    assert (run.code, run.out) == (1, "")
    assert "Connection refused" in run.err_on_one_line


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("set update ip-20s 50/mnute --lasting", "did you mean 'minute'"),
        ("set update ip-20s 50/minute", "--for 2h, or --lasting"),
        ("set update --limit 5/minute --type pi --lasting", "ip, user, header:NAME, or several joined by +"),
        ("set nowhere ip-20s 50/minute --lasting", "no endpoint has such a limit"),
        ("set mail --limit 2/minute --lasting", "A function may; checks in views get no new limits"),
        ("ban 203.0.113.9 --lasting", "a ban needs an end"),
        ("ban 203.0.113.9", "Say how long it lasts: --for 2h."),
        ("deny nobody --lasting", "give a network"),
        ("deny 203.0.113.9 --for 2", 'write a time as "90s", "15m", "2h" or "1d 12h"'),
        ("deny 203.0.113.9 --lasting --author \udc80", "deny: author="),
        ("deny user:\udc80 --lasting", "this is not valid Unicode, so it cannot be stored"),
        ("set api.items --who user:\udc80 --times 2 --lasting", "this is not valid Unicode, so it cannot be stored"),
        ("unset 12345678", "nothing is changed, so there is nothing to undo"),
        ("unset", "Give an ID, or what was changed"),
    ],
)
def test_invalid_change_is_an_error_and_stores_nothing(on_server: Command, command: str, message: str) -> None:
    run = on_server(*command.split(), "--yes")
    assert run.code in {1, 2}
    assert message in run.err_on_one_line
    assert on_server("entries", "--json").json["entries"] == []


@pytest.mark.parametrize("command", ["entries", "history", "ban 203.0.113.9 --for 1h --yes"])
def test_all_commands_say_in_the_same_words_that_memory_storage_is_not_shared(on_memory: Command, command: str) -> None:
    run = on_memory(*command.split())
    assert run.code == 1
    assert run.err == on_memory("bans").err
    assert "keeps quotas in the memory of each worker process" in run.err_on_one_line


def test_author_is_empty_when_system_user_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", raising(KeyError("getpwuid(): uid not found: 4711")))
    assert user_name() == ""


def _write_on_full_disk(path: Path, text: str, **_: str) -> NoReturn:
    path.write_bytes(text[:10].encode())
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class TestExportAndImport:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "entries.json"

    def test_import_restores_exported_entries(self, on_server: Command, redis_client: redis.Redis, file: Path) -> None:
        on_server("deny", "203.0.113.7", "--lasting", "--reason", "scraper", "--author", "ann", "--yes")
        on_server("ban", "user:13", "--for", "1h", "--yes")
        on_server("set", "update", "ip-20s", "50 per 20 seconds", "--lasting", "--yes")
        before = on_server("entries", "--json").json["entries"]
        assert on_server("entries", "--export", str(file)).code == 0
        assert "50 per 20 seconds  never " in on_server("entries", columns=200).out
        redis_client.flushall()

        run = on_server("entries", "--import", str(file), "--reason", "restored")

        assert (run.code, "3 entries" in run.err) == (0, True)
        assert on_server("entries", "--json").json["entries"] == before
        told = on_server("history", "--json").json["changes"]
        assert [(each["what"], each["entry"], each["reason"]) for each in told] == [
            ("import", "entries: 3", "restored")
        ]

    def test_import_replaces_entries_of_same_client_and_keeps_others(self, on_server: Command, file: Path) -> None:
        on_server("deny", "203.0.113.7", "--lasting", "--yes")
        on_server("entries", "--export", str(file))
        on_server("allow", "203.0.113.7", "--lasting", "--yes")
        on_server("allow", "203.0.113.8", "--lasting", "--yes")

        on_server("entries", "--import", str(file))

        texts = {each["text"] for each in on_server("entries", "--json").json["entries"]}
        assert texts == {"deny 203.0.113.7", "allow 203.0.113.8"}

    @pytest.mark.parametrize(
        ("entry", "why"),
        [
            ({"kind": "override", "endpoint": "nowhere", "off": True}, "no endpoint has such a limit"),
            ({"kind": "allow", "who": "0.0.0.0/0"}, "from all limits"),
            ({"kind": "deny", "who": "planet:mars"}, "no limiter of this app has a type called"),
            ({"kind": "deny", "who": "203.0.113.7", "note": "hm"}, "note"),
        ],
    )
    def test_import_with_one_invalid_entry_stores_nothing(
        self, on_server: Command, file: Path, entry: dict[str, str], why: str
    ) -> None:
        good = {"kind": "deny", "who": "203.0.113.7", "id": "00000001", "since": 1.0}
        file.write_text(json.dumps({"format": 1, "entries": [good, {"id": "00000002", "since": 1.0, **entry}]}))

        run = on_server("entries", "--import", str(file))

        assert (run.code, why in run.err_on_one_line) == (1, True), run.err
        assert on_server("entries").out.startswith("No changes")

    def test_export_to_full_disk_is_an_error_and_keeps_old_file(
        self, on_server: Command, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file.write_text("the last one")
        monkeypatch.setattr(Path, "write_text", _write_on_full_disk)

        run = on_server("entries", "--export", str(file))

        assert (run.code, run.err) == (1, f"Error: {file}: No space left on device\n")
        assert [(each.name, each.read_bytes()) for each in file.parent.iterdir()] == [("entries.json", b"the last one")]

    def test_export_to_a_file_that_cannot_be_looked_at_is_an_error(self, on_server: Command, file: Path) -> None:
        run = on_server("entries", "--export", str(file.with_name("x" * 300)))
        assert (run.code, "File name too long" in run.err_on_one_line) == (1, True)
        assert "Traceback" not in run.err

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
    def test_export_writes_to_a_pipe_without_replacing_it(self, on_server: Command, file: Path) -> None:
        os.mkfifo(file)
        reader = os.open(file, os.O_RDONLY | os.O_NONBLOCK)

        assert on_server("entries", "--export", str(file)).code == 0

        assert json.loads(os.read(reader, 10_000)) == {"format": 1, "entries": []}
        assert list(file.parent.iterdir()) == [file]
        assert file.is_fifo()
        os.close(reader)

    @pytest.mark.parametrize("mode", [0o600, 0o400])
    def test_export_keeps_secret_from_whom_the_old_file_was(self, on_server: Command, file: Path, mode: int) -> None:
        file.touch(mode)
        assert on_server("entries", "--export", str(file)).code == 0
        assert file.stat().st_mode & 0o777 == 0o600
        assert json.loads(file.read_text())["entries"] == []

    def test_export_follows_a_symlink(self, on_server: Command, file: Path) -> None:
        link = file.with_name("latest")
        link.symlink_to(file)
        assert on_server("entries", "--export", str(link)).code == 0
        assert (link.is_symlink(), "format" in file.read_text()) == (True, True)

    def test_import_reports_its_changes_as_json(self, on_server: Command, file: Path) -> None:
        on_server("deny", "203.0.113.7", "--lasting", "--yes")
        file.write_text(on_server("entries", "--export", "-").out)
        run = on_server("entries", "--import", str(file), "--json")
        assert run.json == {"schema": 2, "imported": 1, "changed": True}

    def test_export_and_import_together_are_an_error(self, on_server: Command, file: Path) -> None:
        file.write_text('{"format": 1, "entries": []}')
        run = on_server("entries", "--export", "-", "--import", str(file))
        assert (run.code, run.out) == (2, "")
        assert "--export and --import: give only one of them." in run.err_on_one_line

    @pytest.mark.parametrize("option", [("--reason", "a drill"), ("--force",)])
    def test_option_of_an_import_without_one_is_an_error(self, on_server: Command, option: tuple[str, ...]) -> None:
        run = on_server("entries", *option)
        assert (run.code, run.out) == (2, "")
        assert f"{option[0]} is for --import." in run.err_on_one_line

    @pytest.mark.parametrize("content", ["", "[", "[]", "null", "\0"])
    def test_import_of_another_file_is_an_error_and_stores_nothing(
        self, on_server: Command, file: Path, content: str
    ) -> None:
        file.write_text(content)
        run = on_server("entries", "--import", str(file))
        assert (run.code, run.err_on_one_line.startswith(f"Error: {file}: ")) == (1, True), run.err
        assert on_server("entries", "--json").json["entries"] == []

    def test_import_of_entries_that_have_ended_says_that_nothing_is_in_force_and_adds_nothing_to_the_history(
        self, on_server: Command, file: Path
    ) -> None:
        ended = {"kind": "ban", "who": "203.0.113.7", "id": "00000001", "since": 1.0, "until": 2.0}
        file.write_text(json.dumps({"format": 1, "entries": [ended]}))
        run = on_server("entries", "--import", str(file))
        assert (run.code, run.err) == (0, f"Nothing to import: {file} has no entries, or all have ended.\n")
        assert on_server("history", "--json").json["changes"] == []


class TestUnset:
    @pytest.mark.parametrize(
        ("made", "undone"),
        [
            ("set update ip-20s 50/minute --lasting", "update ip-20s"),
            ("set update --limiter ip --shadow --lasting", "update --limiter ip"),
            ("set update --limiter ip --no-shadow --for 30m", "update --limiter ip"),
            ("set update --limiter ip --rules 50/minute --for 1h", "update --limiter ip"),
            ("set update --off --for 1h", "update"),
            ("set --who user:42 --times 10 --lasting", "--who user:42"),
            ("set update --limit 11/second --type ip --lasting", "update"),
            ("deny 203.0.113.0/24 --lasting", "203.0.113.0/24"),
            ("allow user:42 --lasting", "user:42"),
        ],
    )
    def test_unset_takes_the_same_arguments_as_the_change(self, on_server: Command, made: str, undone: str) -> None:
        assert on_server(*made.split(), "--yes", "--force").code == 0
        assert len(on_server("entries", "--json").json["entries"]) == 1
        run = on_server("unset", *undone.split(), "--yes")
        assert (run.code, on_server("entries", "--json").json["entries"]) == (0, []), run.err

    def test_unset_is_an_error_unless_exactly_one_change_fits(self, on_server: Command) -> None:
        on_server("set", "update", "--limit", "11/second", "--type", "ip", "--lasting", "--yes", "--force")
        on_server("set", "update", "--off", "--lasting", "--yes", "--force")

        both, none = on_server("unset", "update", "--yes"), on_server("unset", "update", "ip-20s", "--yes")

        assert (both.code, none.code) == (1, 1)
        assert "update: 2 changes in force fit that. Give the ID of one: " in both.err_on_one_line
        assert "update ip-20s: no change in force fits that." in none.err_on_one_line
        assert len(on_server("entries", "--json").json["entries"]) == 2

    def test_error_about_an_endpoint_lists_its_changes_alone(self, on_server: Command) -> None:
        for name in ("pay", "index"):
            assert on_server("set", name, "--limit", "11/second", "--lasting", "--yes", "--force").code == 0
        on_server("set", "update", "ip-20s", "50/minute", "--lasting", "--yes")

        run = on_server("unset", "update", "--yes")

        assert (run.code, run.err.count(": rule ip-20s at update"), run.err.count(" limit 11/second")) == (1, 1, 0)


def test_unban_reports_changed_only_when_it_lifts_a_ban(on_server: Command) -> None:
    on_server("ban", "203.0.113.9", "--for", "1h", "--yes")
    arguments = ("unban", "203.0.113.9", "--json")

    changed = [on_server(*arguments, how).json["changed"] for how in ("--dry-run", "--yes", "--yes")]

    assert changed == [False, True, False]
    asked = on_server("unban", "203.0.113.9")
    assert (asked.code, asked.out) == (0, "Nothing to lift: no ban of 203.0.113.9 is in force.\n"), asked.err


def test_unban_lists_what_still_refuses_the_client(on_server: Command) -> None:
    on_server("ban", "203.0.113.9", "--for", "1h", "--yes")
    on_server("deny", "203.0.113.0/24", "--for", "1h", "--yes")

    lifted = on_server("unban", "203.0.113.9", "--yes", "--json").json

    assert (lifted["entries"], lifted["left"]) == (["ban 203.0.113.9"], ["deny 203.0.113.0/24"])


def test_unban_succeeds_when_history_cannot_be_written(on_server: Command, shop: FlaskClient) -> None:
    assert call(shop, "/secret", 4, method="POST") == [200, 429, 429, 429]
    assert on_server("unban", "203.0.113.7", answer="n\n").err == (
        "Lift: 1 ban started by limiters.\nLift them? [y/N]: Aborted!\n"
    )

    run = on_server("unban", "203.0.113.7", "--yes", "--reason", "\udc80")

    assert (run.code, run.out) == (0, "Lifted: 1 ban started by limiters.\n")
    assert run.err == "Lifted, but the history does not show it: reason='\\udc80': give text\n"


def test_history_names_author_of_replaced_change(on_server: Command) -> None:
    on_server("set", "update", "ip-20s", "50 per 20 seconds", "--lasting", "--yes", "--author", "ann")
    on_server("set", "update", "ip-20s", "60 per 20 seconds", "--lasting", "--yes", "--author", "bob")

    assert "matches nothing" not in on_server("entries").out
    told = on_server("history", columns=200).out_on_one_line
    assert "in place of rule ip-20s at update: 50 per 20 seconds by ann" in told


def test_change_of_a_limit_of_an_extension_is_not_said_to_match_nothing(tmp_path: Path, server: Server) -> None:
    app = tmp_path / "app.py"
    app.write_text(EXTENDED)
    extended = Command(app, server.url)
    warned = extended("set", "index", "plan-3600s", "9/hour", "--lasting", "--yes").err_on_one_line
    assert "only limits of another extension, which no preview shows; to do it anyway, add --force" in warned
    for rule in ("plan-3600s", "gone-60s"):
        extended("set", "index", rule, "9/hour", "--lasting", "--yes", "--force")

    idle = [each["rule"] for each in extended("entries", "--json").json["entries"] if each["idle"]]
    warned = extended("doctor").out_on_one_line

    assert idle == ["gone-60s"]
    assert ("rule gone-60s" in warned, "rule plan-3600s" in warned) == (True, False)


def test_history_marks_the_changes_in_force(on_server: Command) -> None:
    on_server("deny", "203.0.113.7", "--lasting", "--yes")
    on_server("deny", "203.0.113.8", "--lasting", "--yes")
    on_server("unset", "203.0.113.7", "--yes")

    told = on_server("history", "--json").json["changes"]
    assert [(each["what"], each["in_force"]) for each in told] == [("undo", False), ("set", True), ("set", False)]


def test_history_tells_the_time_by_the_clock_of_this_machine_and_the_id_that_undoes_a_change(
    on_server: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = on_server("deny", "203.0.113.7", "--lasting", "--yes", "--json").json["entry"]["id"]
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "XYZ-5")
        time.tzset()
        told = on_server("history").out
    time.tzset()
    on_server("unset", id_, "--yes")

    assert ("XYZ" in told, id_ in told, id_ in on_server("history").out) == (True, True, False)


APP_WITH_METRICS = """
from flask import Flask
from flask_multilimit import MultiLimit
from flask_multilimit.observe.prometheus import PrometheusMetrics

app = Flask(__name__)
app.config.from_prefixed_env()
MultiLimit(app, default_limits="5/minute", observers=[PrometheusMetrics()])
app.get("/")(lambda: "ok")
"""


@pytest.mark.slow
def test_commands_leave_no_worker_in_the_metrics(on_server: Command, tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(APP_WITH_METRICS)
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    run = Command(tmp_path / "shown.py", on_server.environment["FLASK_MULTILIMIT_STORAGE_URI"])
    run.environment["PROMETHEUS_MULTIPROC_DIR"] = str(metrics)

    for command in ("deny 10.0.0.1 --lasting --yes", "keys"):
        ended = run.alone(*command.split())
        assert (ended.code, "Traceback" in ended.err) == (0, False), ended.err

    assert [each.name for each in metrics.iterdir() if "live" in each.name] == []


class Unwritable(StringIO):
    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    def write(self, text: str) -> int:
        raise OSError(self.code, os.strerror(self.code), text)


BAN = ("ban", "203.0.113.7", "--for", "1h", "--yes")


@pytest.mark.parametrize("command", [BAN, (*BAN, "--json"), ("entries", "--export", "-")], ids=" ".join)
def test_output_that_cannot_be_written_is_an_error_of_one_line(on_server: Command, command: tuple[str, ...]) -> None:
    on_server(*BAN)

    run = on_server(*command, out=Unwritable(errno.ENOSPC))

    assert run.code == 1
    told = "Error: cannot write the output: No space left on device. What the command has changed stays\n"
    assert run.err.endswith(told)
    assert "203.0.113.7" in on_server("bans").out


def test_output_that_nobody_reads_any_more_is_no_error(on_server: Command) -> None:
    on_server(*BAN)
    assert on_server("entries", out=Unwritable(errno.EPIPE)).err == ""
