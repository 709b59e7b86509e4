"""The code of pages of the documentation, to be run unchanged."""

import re
from typing import Any

from support.folders import DOCS

_FILE = re.compile(r"^```\{code-block\} \w+\n:caption: (?P<name>\S+)\n\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def files_on(page: str) -> dict[str, str]:
    """The files that the page shows, by name."""
    return {match["name"]: match["text"] for match in _FILE.finditer((DOCS / page).read_text(encoding="utf-8"))}


def own_storage() -> dict[str, Any]:
    """The names of the module on the page "Write your own storage"."""
    names: dict[str, Any] = {"__name__": "sqlite_storage"}
    exec(compile(files_on("how-to/own-storage.md")["sqlite_storage.py"], "sqlite_storage.py", "exec"), names)
    return names
