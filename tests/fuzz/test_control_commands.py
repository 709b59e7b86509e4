"""Random input to commands that change limits: done, or a clear error and nothing stored. Never a traceback."""

from typing import Any

from click.testing import Result
from flask import Flask, request
from hypothesis import given
from hypothesis import strategies as st

from flask_multilimit import IP, USER, MultiLimit, rate_limiter
from flask_multilimit.control.document import Document, document_from
from flask_multilimit.control.store import Announced, StoreInMemory
from flask_multilimit.serve.gate import gate_of
from support.effort import tries

HOSTILE = [
    *(
        "",
        " ",
        "*",
        "**",
        "[",
        "]",
        "?",
        "0",
        "-1",
        "1e309",
        "nan",
        "inf",
        "\x00",
        "\n",
        "a" * 600,
        "ü",
        "\udc80",
        "%s",
        "{}",
    ),
    *(
        "../..",
        "$(id)",
        "os:system",
        "json:loads",
        "'; --",
        "<script>",
        "::",
        ":",
        "user:",
        "ip:",
        "default:x",
        "a+b:c",
    ),
    *("0.0.0.0/0", "::/0", "::ffff:0:0/96", "1.2.3.4/33", "010.0.0.1", "fe80::1%eth0", "203.0.113.7", "user:42"),
    *("show", "api.*", "mine", "ip-60s", "user-60s", "ip", "user", "1/minute", "0/minute", "9" * 30 + "/minute"),
    *("2h", "0s", "401d", "1d 12h", "5 at once", '{"count": 3}', "true", "429", "404", "shadow", "off"),
]
VALUES = st.sampled_from(HOSTILE) | st.text(max_size=12)
OPTIONS = st.sampled_from(
    [
        *("--for", "--reason", "--author", "--limiter", "--who", "--rules", "--times", "--limit", "--type", "--status"),
        *("--method", "--ip"),
    ]
)
FLAGS = st.sampled_from(["--lasting", "--dry-run", "--force", "--json", "--shadow", "--no-shadow", "--off"])
USUAL = st.sampled_from([["--lasting"], ["--for", "2h"], []])


@st.composite
def commands(draw: st.DrawFn) -> list[str]:
    name = draw(st.sampled_from(["set", "unset", "allow", "deny", "ban", "entries", "history"]))
    positional = draw(st.lists(VALUES, max_size=3))
    options = draw(st.lists(st.tuples(OPTIONS, VALUES), max_size=3))
    flags = draw(st.lists(FLAGS, max_size=3))
    yes = [] if name in {"entries", "history"} else ["--yes", *draw(USUAL)]
    return [name, *(part for option in options for part in option), *flags, *yes, "--", *positional]


class SharedStore(StoreInMemory):
    """Says that others see what it keeps: otherwise, commands would change nothing."""

    shared = True  # type: ignore[assignment]

    def announce(self, *_: object) -> None: ...

    def workers(self) -> Announced:
        return Announced(0, [], [])


def made() -> Flask:
    """The control document is in this process, but commands treat it as shared."""
    app = Flask("shop")
    MultiLimit(app, user_loader=lambda: request.headers.get("X-User"))
    app.add_url_rule("/", "show", rate_limiter(type=IP, rules="100/minute")(lambda: "ok"))
    app.add_url_rule("/mine", "mine", rate_limiter(type=USER, rules="100/minute; 1000/hour")(lambda: "ok"))
    gate_of(app).applier.follower.store = SharedStore()
    return app


def run(app: Flask, arguments: list[str]) -> Result:
    return app.test_cli_runner().invoke(args=["multilimit", *arguments])


def entries(app: Flask) -> tuple[Any, ...]:
    return gate_of(app).applier.control.entries()


@tries(2)
@given(st.lists(commands(), min_size=1, max_size=4))
def test_random_command_succeeds_or_is_an_error_that_stores_nothing(many: list[list[str]]) -> None:
    app = made()
    for arguments in many:
        before = entries(app)

        result = run(app, arguments)

        assert result.exception is None or isinstance(result.exception, SystemExit), (arguments, result.exception)
        if result.exit_code != 0 or "--dry-run" in arguments:
            assert entries(app) == before
        if result.exit_code != 0:
            assert "Error" in result.output or "Usage" in result.output, arguments
        document = Document(entries=entries(app))
        assert document_from(document.dump()) == document
    assert app.test_client().get("/", environ_base={"REMOTE_ADDR": "192.0.2.77"}).status_code in {200, 403, 429}


def test_valid_commands_store_entries() -> None:
    app = made()
    for arguments in (
        ["deny", "203.0.113.7"],
        ["set", "show", "ip-60s", "50/minute"],
        ["ban", "--for", "2h", "user:42"],
    ):
        lasting = [] if "--for" in arguments else ["--lasting"]
        assert run(app, [*arguments, *lasting, "--yes"]).exit_code == 0

    assert len(entries(app)) == 3
