"""Columns and paragraphs on screens of any width, and characters that an output has not."""

import json
import os
import pty
import sys
from io import BytesIO, TextIOWrapper

import click
import pytest

from flask_multilimit.operate import console


@pytest.fixture
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")


@pytest.mark.usefixtures("_narrow")
def test_widest_cells_are_wrapped_between_words_and_not_at_hyphens() -> None:
    assert console.columns([("a short one", "rate-limit per-client of-shop")]) == [
        "a short one  rate-limit",
        "             per-client",
        "             of-shop",
    ]


def test_columns_without_text_are_left_out() -> None:
    rows = [("ann", "", 0, ""), ("bob", "", 2, "x")]
    assert console.columns(rows, headings=("WHO", "WHERE", "N", "WHY"))[1:] == ["ann  0", "bob  2  x"]


@pytest.mark.usefixtures("_narrow")
def test_only_the_first_line_of_a_row_begins_with_the_text_of_a_client() -> None:
    first, *others = console.columns([("one two three four five", "six seven eight nine ten")], headings=())
    assert (first[:3], len(others) > 0, {each[0] for each in others}) == ("one", True, {" "})


@pytest.mark.usefixtures("_narrow")
def test_column_is_not_narrower_than_twelve_on_any_screen() -> None:
    rows = [("x" * 20, "y" * 20, "z" * 20)]
    assert console.sizes_of(rows) == [12, 12, 12]
    assert console.sizes_of(rows, whole=True) == [20, 20, 20]


def test_character_that_the_encoding_of_the_output_has_not_is_written_as_in_json(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client may choose its name. On Windows, an output that is no terminal often has the encoding cp1252."""
    written = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(written, encoding="cp1252", write_through=True))

    console.echo("Zoë \N{SNOWMAN}")
    console.write_json("Zoë \N{SNOWMAN} \N{GRINNING FACE}")

    text, document = written.getvalue().decode("cp1252").splitlines()
    assert text == "Zoë \\u2603"
    assert json.loads(document) == "Zoë \N{SNOWMAN} \N{GRINNING FACE}"


@pytest.mark.parametrize(
    ("no_color", "term", "shown"),
    [("", "xterm", "\x1b[31mred\x1b[0m"), ("1", "xterm", "red"), ("", "dumb", "red"), ("", "", "\x1b[31mred\x1b[0m")],
)
def test_text_is_plain_for_who_wants_no_color_and_on_a_terminal_that_has_none(
    monkeypatch: pytest.MonkeyPatch, no_color: str, term: str, shown: str
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", term)
    assert console.styled(console.style("red", fg="red")) == shown


def test_nothing_is_drawn_where_a_stream_is_closed_or_the_terminal_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    main, other = pty.openpty()
    with os.fdopen(main), os.fdopen(other) as terminal, open(os.devnull, encoding="utf-8") as file:  # noqa: PTH123
        drawn = [console.is_screen(terminal, each) for each in (terminal, file, None)]
        monkeypatch.setenv("TERM", "dumb")
        assert [*drawn, console.is_screen(terminal)] == [True, False, False, False]


def test_question_that_nobody_can_answer_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as in a process whose standard input was closed
    with pytest.raises(click.Abort):
        console.confirm("Change this?")
