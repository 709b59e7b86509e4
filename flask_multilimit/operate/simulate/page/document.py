"""One HTML file that fetches nothing: its style and its scripts are in it, each in one element of its own."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}</main>
{script}</body>
</html>
"""


def document(title: str, body: str, *, styles: Sequence[str], script: str | None = None) -> str:
    """The file. ``body`` is HTML; ``styles`` and ``script`` name files of this folder.

    Its policy lets the browser apply exactly these: text from a log that became an element could do nothing.
    """
    style = "".join(part(name) for name in styles)
    code = "" if script is None else part(script)
    return _PAGE.format(
        title=escape(title),
        body=body,
        style=style,
        script=f"<script>{code}</script>\n" if code else "",
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(code)}",
    )


def part(name: str) -> str:
    """A file of this folder, such as ``slider.js``, which another page may serve by itself."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def data_element(value: Any) -> str:
    """A ``<script>`` that holds ``value`` as JSON; no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"))
    return f'<script type="application/json">{text.replace("<", chr(92) + "u003c")}</script>'


def plain(name: str) -> str:
    """Without the halves of characters that bytes which are no UTF-8 leave: a file could not hold them."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def text(value: str) -> str:
    """What came from a log, as HTML."""
    return escape(plain(value))


def _hash(text: str) -> str:
    """As a source of a policy: what has this hash."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
