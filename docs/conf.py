"""How the documentation is built: sphinx-build -W --keep-going -b html docs docs/_build/html."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version as version_of
from typing import Any

from flask_multilimit import Ban
from flask_multilimit.declare import decorators
from flask_multilimit.engine import hits

modules: list[Any] = [decorators, hits]
for module in modules:  # a signature with a name that only type checkers load would be shown as it is written
    module.Ban = Ban

project = "flask-multilimit"
author = "flask-multilimit contributors"
project_copyright = author
version = release = version_of("flask-multilimit")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [
    # Other projects' names, and aliases that a signature spells out: there is no page here to link to.
    (
        "py:.*",
        r"(flask|redis|werkzeug|blinker|pydantic|uuid|datetime|collections|contextlib|enum|ipaddress|logging|pathlib"
        r"|prometheus_client|typing|typing_extensions)\..*",
    ),
    (
        "py:.*",
        r"(Any|Client|Flask|IPv[46]Address|Named|UUID|Sequence|Iterable|Iterator|Callable|timedelta|datetime|SansIOResponse)",
    ),
    ("py:.*", r"(Rules|SubjectType|UserLoader|Message|Messages|Cost|Reaction|Charge|WrittenLimiter|WrittenRules|T|U)"),
    ("py:.*", r"flask_multilimit\.\w+\..*"),
    ("py:.*", r"wire\.Wire|count_workers|memoized"),  # not public, but named in docstrings
]

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
python_maximum_signature_line_length = 88

copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True


def find_in_all_modules(app: Any, env: Any, node: Any, shown: Any) -> Any:
    """A docstring names what is public in another module as if it were its own: look for it everywhere."""
    if node["refdomain"] != "py" or node.get("refspecific"):
        return None
    node["refspecific"] = True
    builder, kind, name = app.builder, node["reftype"], node["reftarget"]
    return env.domains["py"].resolve_xref(env, node["refdoc"], builder, kind, name, node, shown)


def drop_aliases(*arguments: Any) -> None:
    """Leave out what Python says of a field of a ``NamedTuple`` that has no text."""
    lines = arguments[-1]
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()


def show_constants(*arguments: Any) -> Any:
    """Show the value of a default that the source names by a constant."""
    _, _, _, shown, _, signature, returns = arguments
    if signature is None:
        return None
    module = sys.modules[shown.__module__]
    return re.sub(r"(?<==) ?([A-Z_]{3,})\b", lambda found: f" {getattr(module, found[1])!r}", signature), returns


def setup(app: Any) -> None:
    app.connect("autodoc-process-signature", show_constants)
    app.connect("missing-reference", find_in_all_modules)
    app.connect("autodoc-process-docstring", drop_aliases)


html_theme = "furo"
html_title = "flask-multilimit"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6e6e", "color-brand-content": "#0b6e6e"},
    "dark_css_variables": {"color-brand-primary": "#5cc4c0", "color-brand-content": "#5cc4c0"},
}
