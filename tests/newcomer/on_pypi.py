"""Shows the page that PyPI makes of a wheel: it renders, and with the links of a release each of them leads somewhere.

python tests/newcomer/on_pypi.py dist/flask_multilimit-1.0.0-py3-none-any.whl
"""

import re
import runpy
import sys
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

from readme_renderer.markdown import render

RELEASE = Path(__file__).parents[2] / ".github" / "absolute_links.py"
REPOSITORY = "https://example.com/shop/flask-multilimit"


def main(wheel: str) -> None:
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        description = message_from_bytes(archive.read(name)).get_payload()
    absolute = runpy.run_path(str(RELEASE))["absolute"]
    page = render(absolute(str(description), REPOSITORY, "v1.0.0"))

    links = re.findall(r'(?:href|src)="([^"]*)"', page or "")
    nowhere = [link for link in links if not link.startswith(("https://", "http://", "#"))]
    if not page or "<table>" not in page or "<img" not in page or nowhere:
        sys.exit(f"PyPI would not show README as it is meant; links that lead nowhere: {nowhere}")


if __name__ == "__main__":
    main(sys.argv[1])
