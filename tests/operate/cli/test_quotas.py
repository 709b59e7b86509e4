"""flask multilimit reset and keys: the quotas in storage, and how to reset them."""

from pathlib import Path

import pytest
import redis
from flask.testing import FlaskClient

from flask_multilimit.operate.cli import user_name
from flask_multilimit.operate.cli.quotas import MOST_SHOWN
from operate.cli.conftest import Command, call
from support.servers import Server
from support.waiting import until

FREE = """
from flask import Flask
from flask_multilimit import IP, MultiLimit, rate_limiter

app = Flask("free")
app.config.from_prefixed_env()
MultiLimit(app)
app.get("/", endpoint="view")(rate_limiter(type=IP, rules=lambda: None)(lambda: "ok"))
"""


def wait_until_admitted(shop: FlaskClient, path: str) -> None:
    until(lambda: call(shop, path) == [200])


def test_reset_admits_next_request_after_confirmation(on_server: Command, shop: FlaskClient) -> None:
    assert call(shop, "/update", 4)[-1] == 429

    run = on_server("reset", "update", "--ip", "203.0.113.7", answer="y\n")

    assert run.code == 0
    assert "Reset 2 quotas? [y/N]" in run.err
    assert run.out == "Reset: ip-20s, ip-3600s.\n"
    wait_until_admitted(shop, "/update")  # the deny cache repeats a refusal for up to a second


@pytest.mark.parametrize(
    ("change", "names"), [("ip-20s 3/minute", "ip-3600s, ip-20s"), ("--off", "ip-20s, ip-3600s")], ids=["rules", "off"]
)
def test_reset_during_an_override_also_resets_declared_rules(
    on_server: Command, shop: FlaskClient, change: str, names: str
) -> None:
    assert call(shop, "/update", 4)[-1] == 429
    assert on_server("set", "update", *change.split(), "--for", "1h", "--yes", "--force").code == 0

    run = on_server("reset", "update", "--ip", "203.0.113.7", "--yes")

    assert run.out == f"Reset: {names}.\n"
    assert ":ip:203.0.113.7:" not in on_server("keys").out


def test_reset_asks_about_the_rule_in_force(on_server: Command, shop: FlaskClient) -> None:
    """Its key is that of the declared rule, whose count is another."""
    assert call(shop, "/update") == [200]
    assert on_server("set", "update", "ip-20s", "7 per 20 seconds", "--for", "1h", "--yes").code == 0

    run = on_server("reset", "update", "--ip", "203.0.113.7", answer="n\n")

    assert "7 per 20 s" in run.err
    assert "3 per 20 s" not in run.err


@pytest.mark.parametrize("kinds", [["ban"], ["sliding_window"], ["ban", "sliding_window"]], ids="+".join)
def test_reset_and_unban_delete_what_cannot_be_read_in_place_of_a_quota(
    on_server: Command, shop: FlaskClient, redis_client: redis.Redis, kinds: list[str]
) -> None:
    assert call(shop, "/secret", 3, method="POST") == [200, 429, 429]
    spoilt = [key for kind in kinds for key in redis_client.keys(f"*{{secret}}*:{kind}:*")]

    def spoil() -> None:
        redis_client.delete(*spoilt)
        assert all(redis_client.set(key, "not ours") for key in spoilt)

    spoil()
    assert on_server("reset", "secret", "--ip", "203.0.113.7", "--yes").out == "Reset: ip-60s, ip-ban.\n"
    assert redis_client.exists(*spoilt) == 0
    spoil()
    assert on_server("keys").code == 0, "each is listed, if none can be read, too"
    lifted = "Lifted: 1 ban started by limiters.\n" if "ban" in kinds else "Nothing to lift"
    assert on_server("unban", "203.0.113.7", "--yes").out.startswith(lifted)
    assert redis_client.exists(*spoilt) == len(kinds) - ("ban" in kinds)


class TestResetInTheHistory:
    def history(self, on_server: Command) -> list[tuple[str, str, str, str]]:
        changes = on_server("history", "--json").json["changes"]
        return [(each["what"], each["entry"], each["author"], each["reason"]) for each in changes]

    def test_history_shows_author_target_and_reason_of_a_reset(self, on_server: Command, shop: FlaskClient) -> None:
        told = ("--yes", "--author", "ann", "--reason", "a mistake")
        for what in (
            ("login", "--ip", "203.0.113.7", "--method", "post"),
            ("update", "--everyone"),
            ("--all", "--ip", "203.0.113.7"),
            ("--everything",),
        ):
            call(shop, "/update")
            assert call(shop, "/login", method="POST") == [200]
            assert on_server("reset", *what, *told).code == 0

        assert self.history(on_server) == [
            ("reset", "all quotas of all subjects", "ann", "a mistake"),
            ("reset", "203.0.113.7 everywhere", "ann", "a mistake"),
            ("reset", "everyone at update", "ann", "a mistake"),
            ("reset", "203.0.113.7 at login (POST)", "ann", "a mistake"),
        ]

    @pytest.mark.parametrize("arguments", [("--dry-run",), ("--yes",)], ids=["dry run", "nothing used"])
    def test_history_is_empty_when_nothing_was_reset(
        self, on_server: Command, shop: FlaskClient, arguments: tuple[str, ...]
    ) -> None:
        if "--dry-run" in arguments:
            call(shop, "/update")

        assert on_server("reset", "update", "--ip", "203.0.113.7", *arguments).code == 0
        assert on_server("reset", "--all", "--ip", "203.0.113.7", *arguments).code == 0

        assert self.history(on_server) == []

    def test_reset_succeeds_when_history_cannot_be_written(
        self, on_server: Command, shop: FlaskClient, redis_client: redis.Redis
    ) -> None:
        redis_client.hset("rate_limit:{control}:document", mapping={"stamp": "9-x", "document": "{"})
        call(shop, "/update")

        run = on_server("reset", "update", "--ip", "203.0.113.7", "--yes")

        assert (run.code, run.out) == (0, "Reset: ip-20s, ip-3600s.\n")
        assert "Reset, but the history does not show it: the control document is not JSON" in run.err

    def test_author_is_the_system_user_by_default_and_invalid_unicode_of_a_subject_is_escaped(
        self, on_server: Command, shop: FlaskClient
    ) -> None:
        assert shop.get("/api/items", environ_overrides={"HTTP_X_USER": "\udc80"}).status_code == 200
        on_server("reset", "api.items", "--user", "\udc80", "--yes")
        assert self.history(on_server) == [("reset", '"user:\\udc80" at api.items', user_name(), "")]

    def test_history_is_not_written_when_control_is_switched_off(self, on_server: Command, shop: FlaskClient) -> None:
        call(shop, "/update")
        on_server.environment["FLASK_MULTILIMIT_CONTROL"] = "false"

        run = on_server("reset", "update", "--ip", "203.0.113.7", "--yes")

        assert (run.code, run.err) == (0, "")
        del on_server.environment["FLASK_MULTILIMIT_CONTROL"]
        assert self.history(on_server) == []


def test_reset_is_an_error_when_rules_depend_on_the_request(on_server: Command, tmp_path: Path) -> None:
    app = tmp_path / "free.py"
    app.write_text(FREE)
    on_free = Command(app, on_server.environment["FLASK_MULTILIMIT_STORAGE_URI"])

    check = on_free("check", "view", "--ip", "203.0.113.7")
    reset = on_free("reset", "view", "--ip", "203.0.113.7", "--yes")

    assert check.out.startswith("view GET  no limit now, as far as checked\n")
    assert reset.code == 1
    assert 'the rules of ip at "view" depend on the request and are not known here' in reset.err
    assert "--all in place of the endpoint" in reset.err


@pytest.mark.parametrize("place", ["update", "--all"])
def test_reset_reports_changed_only_when_something_was_used(on_server: Command, shop: FlaskClient, place: str) -> None:
    call(shop, "/update")
    arguments = ("reset", place, "--ip", "203.0.113.7", "--json")

    changed = [on_server(*arguments, how).json["changed"] for how in ("--dry-run", "--yes", "--yes")]

    assert changed == [False, True, False]
    assert on_server(*arguments[:-1], "--yes").out.startswith(
        {"update": "Full already: ip-20s, ip-3600s.", "--all": "Nothing to reset: nothing is used."}[place]
    )


def test_reset_keeps_shared_quotas_unless_everyone_is_given(on_server: Command, shop: FlaskClient) -> None:
    call(shop, "/update", 3)
    on_server("reset", "update", "--ip", "203.0.113.7", "--yes")
    (before,) = on_server("check", "update", "--json").json["requests"]

    reset = on_server("reset", "update", "--everyone", "--yes", "--json").json
    (after,) = on_server("check", "update", "--json").json["requests"]

    assert [rule["remaining"] for rule in before["rules"]] == [4997, 997]
    assert [rule["name"] for rule in reset["reset"]] == ["application-60s", "default-86400s"]
    assert [rule["remaining"] for rule in after["rules"]] == [5000, 1000]


def test_reset_all_resets_one_subject_at_every_endpoint(on_server: Command, shop: FlaskClient) -> None:
    for path in ("/update", "/api/items", "/nowhere"):
        call(shop, path)
        shop.get(path, environ_base={"REMOTE_ADDR": "203.0.113.70"})
    before = on_server("keys", "--json").json["keys"]

    shown = on_server("reset", "--ip", "203.0.113.7", "--all", "--dry-run", "--json").json
    assert on_server("keys", "--json").json["keys"]
    assert shown["changed"] is False
    run = on_server("reset", "--ip", "203.0.113.7", "--all", answer="y\n")

    left = {each["key"] for each in on_server("keys", "--json").json["keys"]}
    gone = {each["key"] for each in before} - left
    assert gone == set(shown["keys"]) == {key for key in gone if ":ip:203.0.113.7:" in key}
    assert {key.partition("{")[2].partition("}")[0] for key in gone} == {"update", "api.items", "unmatched"}
    assert any(":ip:203.0.113.70:" in key for key in left)
    assert f"Reset: {len(gone)} quotas." in run.out


def test_reset_all_shows_twenty_keys_and_counts_the_others(on_server: Command, shop: FlaskClient) -> None:
    for number in range(12):
        shop.get("/update", environ_base={"REMOTE_ADDR": f"203.0.113.{number}"})

    asked = on_server("reset", "--everything", answer="n\n").err

    assert asked.count("  rate_limit:{") == MOST_SHOWN
    assert f"\n  and {2 * 12 + 2 - MOST_SHOWN} more\n" in asked


def test_reset_everything_asks_first_and_keeps_changes(on_server: Command, shop: FlaskClient) -> None:
    call(shop, "/update")
    on_server("deny", "192.0.2.1", "--lasting", "--yes")

    assert on_server("reset", "--everything", answer="n\n").code == 1
    assert on_server("keys", "--json").json["keys"]
    assert on_server("reset", "--everything", "--yes").out.startswith("Reset: ")

    assert on_server("keys", "--json").json["keys"] == []
    assert len(on_server("entries", "--json").json["entries"]) == 1
    assert on_server("reset", "--everything", "--yes").out == "Nothing to reset: nothing is used.\n"


def test_keys_command_shows_use_and_expiry_of_each_key(on_server: Command, shop: FlaskClient) -> None:
    call(shop, "/update", 2)

    lines = on_server("keys").out.splitlines()

    assert lines[0].split() == ["USED", "EXPIRES", "IN", "KEY"]
    assert [line.split("  ")[0] for line in lines[1:5]] == ["2 of 5000", "2 of 1000", "2 of 3", "2 of 10"]
    assert lines[3].endswith(" s        rate_limit:{update}:ip:203.0.113.7:sliding_window:20000")
    assert lines[-1] == "4 keys."


def test_keys_command_shows_use_of_token_buckets_and_dynamic_rules(on_server: Command, shop: FlaskClient) -> None:
    shop.get("/api/search/x", headers={"X-User": "ann", "X-Api-Key": "abc"})

    keys = {key["key"]: key for key in on_server("keys", "--json").json["keys"]}

    (bucket,) = (key for name, key in keys.items() if ":token_bucket:" in name)
    assert bucket["used"] == 1
    assert bucket["rule"]["burst"] == 5
    by_request = keys["rate_limit:{api.search}:api_key:abc:sliding_window:3600000"]
    assert by_request["used"] == 1
    assert by_request["rule"] is None


def test_keys_command_takes_a_limit_and_another_prefix(on_server: Command, shop: FlaskClient, server: Server) -> None:
    shop.get("/update")
    server.client().set("rate*other", "not ours")

    some = on_server("keys", "--json", "--limit", "2").json
    other = on_server("keys", "--prefix", "rate*").out

    assert len(some["keys"]) == 2
    assert some["truncated"]
    assert other.splitlines()[1].split() == ["?", "never", "rate*other"]
    assert "Without a TTL, so not ours, which all have one: 1." in other


def test_keys_command_refuses_a_prefix_of_invalid_unicode(on_server: Command) -> None:
    run = on_server("keys", "--prefix", "\udc80")
    assert run.code == 2
    assert run.err.splitlines()[-1] == "Error: Invalid value for '--prefix': '\\udc80' is not valid Unicode"


def test_keys_command_says_when_storage_is_empty(on_server: Command) -> None:
    assert on_server("keys").out == "No key begins with rate_limit:\n"
