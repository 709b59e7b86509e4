"""How commands print: text that is safe for eyes, tables that fit the terminal, paragraphs.

Only this file writes to the terminal. It makes control characters in the text of a client visible, so that the terminal
does not obey them.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any

import click

from ..engine.text import visible, visible_json

GAP = 2
NARROWEST = 12
"""A column is never made narrower than this many characters."""
_MARK = str(secrets.randbits(64))
"""Marks our own styles. A client cannot know this number, so it cannot add any."""
_OWN_STYLE = re.compile(rf"\x1b\[([\d;]+);{_MARK}m")


def style(text: str, **styles: Any) -> str:
    """``text`` as :func:`echo` shows it in color, or bold."""
    return re.sub(r"\x1b\[([\d;]+)m", f"\x1b[\\1;{_MARK}m", click.style(visible(text), **styles))


def styled(line: str) -> str:
    """``line`` for a terminal: safe for eyes, with only our own styles, or none."""
    parts = _OWN_STYLE.split(line)  # every second one is a style
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return "".join(map(visible, parts[::2]))
    return "".join(f"\x1b[{part}m" if place % 2 else visible(part) for place, part in enumerate(parts))


def is_screen(*streams: Any) -> bool:
    """Whether all ``streams`` are terminals where text can be drawn again. One that was closed is ``None``."""
    return os.environ.get("TERM") != "dumb" and all(each is not None and each.isatty() for each in streams)


def echo(line: str, *, err: bool = False) -> None:
    write_text(f"{styled(line)}\n", err=err)


def write_text(text: str, *, err: bool = False) -> None:
    """Write ``text`` as it is, but characters that the encoding of the output has not as in JSON."""
    try:
        click.echo(text, nl=False, err=err)
    except UnicodeEncodeError as error:  # nothing has been written yet
        shown = (each if each.encode(error.encoding, "ignore") else json.dumps(each)[1:-1] for each in text)
        write_text("".join(shown), err=err)
    except BrokenPipeError:  # the reader has enough: Click ends the command without a word
        raise
    except OSError as error:
        lost = f"cannot write the output: {error.strerror}. What the command has changed stays"
        raise click.ClickException(lost) from error


def write(lines: Iterable[str], *, err: bool = False) -> None:
    for line in lines:
        echo(line, err=err)


def write_json(value: Any) -> None:
    write_text(f"{visible_json(value, indent=2)}\n")


def confirm(question: str) -> None:
    """Ask on the error output, and end the command unless the answer is yes."""
    if sys.stdin is None or not click.confirm(visible(question), err=True):  # it was closed
        raise click.Abort


def width() -> int:
    """Columns of the terminal; 80 if there is none."""
    return shutil.get_terminal_size((80, 24)).columns


def columns(
    rows: Sequence[Sequence[str | int]], *, indent: int = 0, headings: Sequence[str] = (), whole: bool = False
) -> list[str]:
    """Aligned lines; numbers are written as ``1,234``. Empty columns are left out. If the screen is too narrow, the
    widest cells are wrapped, unless they must stay ``whole``."""
    used = [any(cell != "" for cell in column) for column in zip(*rows, strict=True)]
    cells = [[f"{cell:,}" if isinstance(cell, int) else visible(cell) for cell in compress(row, used)] for row in rows]
    headings = [*compress(headings, used)]
    sizes = sizes_of([headings, *cells] if headings else cells, indent, whole=whole)
    lines = [style(line, dim=True) for line in aligned(headings, sizes, indent)] if headings else []
    return lines + [line for row in cells for line in aligned(row, sizes, indent)]


def table(rows: Sequence[Sequence[str | int]], headings: Sequence[str]) -> list[str]:
    """An empty line and aligned lines; nothing without rows."""
    return ["", *columns(rows, headings=headings)] if rows else []


def sizes_of(rows: Sequence[Sequence[str]], indent: int = 0, *, whole: bool = False) -> list[int]:
    """The width of each column, which several tables can share. Words are broken only where nothing else helps."""
    columns = list(zip(*rows, strict=True))
    sizes = [max(len(cell) for cell in column) for column in columns]
    words = [max((len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    room = width() - indent - GAP * (len(sizes) - 1)
    while sizes and sum(sizes) > room and not whole:
        places = [at for at, size in enumerate(sizes) if size > max(words[at], NARROWEST)] or range(len(sizes))
        widest = max(places, key=lambda at: (sizes[at], at))
        if sizes[widest] <= NARROWEST:
            break
        sizes[widest] -= 1
    return sizes


def aligned(row: Sequence[str], sizes: Sequence[int], indent: int) -> list[str]:
    """The lines of one row. Unless they are indented, only its first line begins with text, which may be a client's."""
    hanging = "" if indent else " "
    cells = [
        textwrap.wrap(visible(cell), max(size, 2), break_on_hyphens=False, subsequent_indent="" if place else hanging)
        or [""]
        for place, (cell, size) in enumerate(zip(row, sizes, strict=True))
    ]
    height = max((len(cell) for cell in cells), default=0)
    padded = [
        [line.ljust(size) for line in (*cell, *[""] * (height - len(cell)))]
        for cell, size in zip(cells, sizes, strict=True)
    ]
    return [(" " * indent + (" " * GAP).join(line)).rstrip() for line in zip(*padded, strict=True)]


def paragraph(text: str, *, indent: int = 0, first: str | None = None) -> list[str]:
    """``text`` wrapped; ``first`` replaces the first line's indent."""
    return textwrap.wrap(
        visible(text),
        max(width(), 40),
        initial_indent=" " * indent if first is None else first,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
