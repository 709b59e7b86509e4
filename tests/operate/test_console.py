"""Columns and paragraphs on screens of any width."""

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


@pytest.mark.usefixtures("_narrow")
def test_column_is_not_narrower_than_twelve_on_any_screen() -> None:
    rows = [("x" * 20, "y" * 20, "z" * 20)]
    assert console.sizes_of(rows) == [12, 12, 12]
    assert console.sizes_of(rows, whole=True) == [20, 20, 20]
