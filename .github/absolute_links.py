"""Makes the relative links and pictures of README absolute, for PyPI, where they would lead nowhere.

python .github/absolute_links.py https://github.com/OWNER/REPOSITORY v1.0.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^]]*)\]\((?P<target>(?!\w+:|#)[^)]+)\)")


def absolute(text: str, repository: str, tag: str) -> str:
    """``text`` with links to the files of ``repository`` as they are at ``tag``."""

    def replaced(found: re.Match[str]) -> str:
        folder = "raw" if found["picture"] else "blob"
        return f"{found['picture']}[{found['text']}]({repository}/{folder}/{tag}/{found['target']})"

    return LINK.sub(replaced, text)


if __name__ == "__main__":
    README.write_text(absolute(README.read_text(encoding="utf-8"), *sys.argv[1:]), encoding="utf-8")
