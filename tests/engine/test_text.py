"""Text that is safe for eyes, whoever has chosen it."""

from __future__ import annotations

import json
import logging

import pytest

from flask_multilimit.engine import ConfigurationError
from flask_multilimit.engine.text import SafeLogger, visible, visible_json, visible_page

OBEYED = ["\n", "\r", "\t", "\x00", "\x1b[2J", "\x7f", "\x85", "\x9b2J", "\u2028", "\u2029", "\u202e", "\u2066"]
OBEYED += ["\u200b", "\u00ad", "\ud800", "\ufeff", "\U000e0041", "\ufff9"]
SHOWN = ["", "203.0.113.7", "a b", "Ünïcödé", "中文", "🙂", "no\u00a0break", "\\x1b", "<b>"]


@pytest.mark.parametrize("text", OBEYED)
def test_control_characters_are_shown_as_escape_sequences(text: str) -> None:
    shown = visible(f"before{text}after")

    assert shown.isprintable()
    assert shown.startswith("before\\")
    assert shown.endswith("after")
    assert visible(shown) == shown


@pytest.mark.parametrize("text", SHOWN)
def test_text_without_control_characters_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize("text", OBEYED)
def test_json_is_safe_and_says_the_same(text: str) -> None:
    written = visible_json({text: [text]}, indent=2)

    assert written.replace("\n", "").isprintable()
    assert json.loads(written) == {text: [text]}


def test_json_stays_readable() -> None:
    assert visible_json("中文") == '"中文"'


def test_a_page_is_safe_in_its_text_and_sends_back_what_its_forms_held() -> None:
    page = '<p>\u202eab</p>\n<input type="hidden" value="\u202eab">'

    assert visible_page(page) == '<p>\\u202eab</p>\n<input type="hidden" value="\u202eab">'


def test_the_message_of_an_error_is_one_line() -> None:
    assert str(ConfigurationError("no limiter of x\nERROR forged")) == "no limiter of x\\nERROR forged"


@pytest.mark.parametrize("text", OBEYED)
def test_a_log_line_is_safe_in_its_message_and_in_each_argument(text: str, caplog: pytest.LogCaptureFixture) -> None:
    SafeLogger().warning(f"x{text} %s %r %s %d", text, text, ValueError(text), 3)

    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert record.getMessage().endswith(" 3")


def test_a_traceback_is_safe_and_names_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    try:
        try:
            raise KeyError("a") from OSError("first\x1b[2J")
        except KeyError:
            raise ValueError("second\nERROR forged") from None
    except ValueError as error:
        SafeLogger(logging.getLogger("shop")).error("failed", error=error)
    try:
        raise KeyError("a") from OSError("first\x1b[2J")
    except KeyError:
        SafeLogger(logging.getLogger("shop")).exception("failed")

    without, with_cause = [logging.Formatter().format(record) for record in caplog.records]
    assert "\\nERROR forged" in without
    assert "\nERROR" not in without
    assert "KeyError" not in without
    assert "OSError: first\\x1b[2J\n" in with_cause
    assert with_cause.endswith("KeyError: 'a'")
    assert caplog.records[0].exc_info is not None
    assert isinstance(caplog.records[0].exc_info[1], ValueError)


def test_a_record_names_the_line_that_logs(caplog: pytest.LogCaptureFixture) -> None:
    SafeLogger().warning("here")

    assert (caplog.records[0].filename, caplog.records[0].funcName) == (
        "test_text.py",
        "test_a_record_names_the_line_that_logs",
    )


def test_an_adapter_may_add_what_it_knows(caplog: pytest.LogCaptureFixture) -> None:
    adapter = logging.LoggerAdapter(logging.getLogger("shop"), {"tenant": "a"})

    SafeLogger(adapter).warning("refused %s", "x")

    assert (caplog.records[0].name, caplog.records[0].getMessage(), caplog.records[0].__dict__["tenant"]) == (
        "shop",
        "refused x",
        "a",
    )


def test_nothing_is_made_for_a_level_that_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("quiet").setLevel(logging.ERROR)

    SafeLogger(logging.getLogger("quiet")).warning("refused")

    assert caplog.records == []
