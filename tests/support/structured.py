"""Structured fields (RFC 9651), as the library http-sf reads them."""

from __future__ import annotations

from typing import Any

import http_sf


def read_list(field: str) -> list[tuple[str, dict[str, Any]]]:
    """The members of a list of strings, with their parameters. Raises an error for what a recipient would ignore."""
    found: Any = http_sf.parse(field.encode(), tltype="list")
    assert all(type(name) is str for name, _ in found)
    return [(name, dict(parameters)) for name, parameters in found]
