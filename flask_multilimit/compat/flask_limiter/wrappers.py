"""Names that Flask-AppBuilder and others import from here: the modules of Flask-Limiter before version 4."""

from __future__ import annotations

from .checks import RequestLimit
from .declared import RuntimeLimit as Limit

__all__ = ["Limit", "RequestLimit"]
