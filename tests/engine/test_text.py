"""Text that clients choose is safe to show in messages, JSON, pages and logs."""

import json
import logging

import pytest

from flask_multilimit.engine import ConfigurationError
from flask_multilimit.engine.text import SafeLogger, visible, visible_json, visible_page

UNSAFE = ["\n", "\r", "\t", "\x00", "\x1b[2J", "\x7f", "\x85", "\x9b2J", "\u2028", "\u2029", "\u202e", "\u2066"]
UNSAFE += ["\u200b", "\u00ad", "\ud800", "\ufeff", "\U000e0041", "\ufff9"]
SAFE = ["", "203.0.113.7", "a b", "Ünïcödé", "中文", "🙂", "no\u00a0break", "\\x1b", "<b>"]


@pytest.mark.parametrize("text", UNSAFE)
def test_control_characters_are_shown_as_escape_sequences(text: str) -> None:
    shown = visible(f"before{text}after")

    assert shown.isprintable()
    assert shown.startswith("before\\")
    assert shown.endswith("after")
    assert visible(shown) == shown


@pytest.mark.parametrize("text", SAFE)
def test_text_without_control_characters_is_unchanged(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize("text", UNSAFE)
def test_json_escapes_control_characters_and_keeps_its_value(text: str) -> None:
    written = visible_json({text: [text]}, indent=2)
    assert written.replace("\n", "").isprintable()
    assert json.loads(written) == {text: [text]}


def test_json_does_not_escape_printable_text() -> None:
    assert visible_json("中文") == '"中文"'


def test_page_escapes_its_text_but_not_the_values_of_its_forms() -> None:
    page = '<p>\u202eab</p>\n<input type="hidden" value="\u202eab">'
    assert visible_page(page) == '<p>\\u202eab</p>\n<input type="hidden" value="\u202eab">'


def test_message_of_a_configuration_error_is_one_line() -> None:
    assert str(ConfigurationError("no limiter of x\nERROR forged")) == "no limiter of x\\nERROR forged"


@pytest.mark.parametrize("text", UNSAFE)
def test_logger_escapes_its_message_and_each_argument(text: str, caplog: pytest.LogCaptureFixture) -> None:
    SafeLogger().warning(f"x{text} %s %r %s %d", text, text, ValueError(text), 3)
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert record.getMessage().endswith(" 3")


def test_logged_traceback_is_escaped_and_names_its_cause(caplog: pytest.LogCaptureFixture) -> None:
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


def test_log_record_names_the_file_and_function_that_log(caplog: pytest.LogCaptureFixture) -> None:
    SafeLogger().warning("here")

    assert (caplog.records[0].filename, caplog.records[0].funcName) == (
        "test_text.py",
        "test_log_record_names_the_file_and_function_that_log",
    )


def test_logger_adapter_adds_its_fields_to_the_record(caplog: pytest.LogCaptureFixture) -> None:
    adapter = logging.LoggerAdapter(logging.getLogger("shop"), {"tenant": "a"})

    SafeLogger(adapter).warning("refused %s", "x")

    assert (caplog.records[0].name, caplog.records[0].getMessage(), caplog.records[0].__dict__["tenant"]) == (
        "shop",
        "refused x",
        "a",
    )


def test_message_below_the_level_of_its_logger_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("quiet").setLevel(logging.ERROR)
    SafeLogger(logging.getLogger("quiet")).warning("refused")
    assert caplog.records == []
