"""Columns and paragraphs on screens of any width, and characters that an output has not."""

import json
import sys
from io import BytesIO, TextIOWrapper

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
