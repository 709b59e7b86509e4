"""Makes one HTML file that loads nothing else: its style and its script are elements of the file."""

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
    """The content of the file. ``body`` is HTML; ``styles`` and ``script`` name files of this folder.

    Its policy lets the browser use only these. So even if text from a log became an element, it could do nothing.
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
    """The content of a file of this folder, such as ``slider.js``, for another page to serve."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def data_element(value: Any) -> str:
    """A ``<script>`` element that holds ``value`` as JSON. No text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"))
    return f'<script type="application/json">{text.replace("<", chr(92) + "u003c")}</script>'


def plain(name: str) -> str:
    """``name`` without lone surrogates, which stand for bytes that are not UTF-8: no file could hold them."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def text(value: str) -> str:
    """Text from a log, as HTML."""
    return escape(plain(value))


def _hash(text: str) -> str:
    """The hash of ``text``, as a source of a policy."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
