"""Reads limits from a file."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..engine import ConfigurationError
from .data import LimitsFile
from .file import FileLimits
from .validation import validated


def read_limits(path: Path) -> FileLimits:
    """The limits in a file, which is TOML or JSON according to its suffix. Raises :class:`ConfigurationError`."""
    return file_limits(path.name, _parsed(path))


def file_limits(where: str, given: Any) -> FileLimits:
    """The limits in ``given``, which has the form of a file. Raises :class:`ConfigurationError`."""
    read = validated(LimitsFile, where, given)
    return FileLimits(*(getattr(read, name) for name in FileLimits._fields))


def _parsed(path: Path) -> Any:
    parsers: dict[str, Callable[[str], Any]] = {".json": json.loads, ".toml": parse_toml}
    parse = parsers.get(path.suffix.lower())
    if parse is None:
        raise ConfigurationError(f"{path}: give a file whose name ends in {' or '.join(parsers)}")
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # raised by both parsers and for bad UTF-8
        raise ConfigurationError(f"{path}: is not valid {path.suffix[1:].upper()}: {error}") from error


def parse_toml(text: str) -> Any:
    try:  # here, and not at the top: few apps read a file, and the import would slow the start of all
        tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise ConfigurationError(
            "Python 3.10 cannot read TOML: pip install 'flask-multilimit[toml]', or write JSON"
        ) from None
    return tomllib.loads(text)
