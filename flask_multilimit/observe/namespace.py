"""The namespace of metrics: the first part of their names."""

from __future__ import annotations

import re
from typing import Final

from ..engine import ConfigurationError

NAMESPACE: Final = "multilimit"
_PATTERN = re.compile("[a-zA-Z][a-zA-Z0-9_]*")


def check_namespace(namespace: object) -> None:
    """Raise :class:`ConfigurationError` unless names that begin with it can be written in queries as they are."""
    if not isinstance(namespace, str) or not _PATTERN.fullmatch(namespace):
        raise ConfigurationError(f"namespace={namespace!r}: give a letter, then letters, digits or underscores")
