"""A copy of the control document on disk, for workers that start while the storage is away."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

from ..engine import ConfigurationError
from ..engine.text import SafeLogger
from .document import Document, document_from

LONGEST = 1 << 27
"""Bytes of a copy. The largest document that workers can follow is shorter."""
LONGEST_STAMP = 100


class Copied(NamedTuple):
    """What a copy holds."""

    stamp: str
    run: str
    """The run of the server that had it."""
    document: Document


class DiskCopy:
    """The newest document that the workers of one machine have seen. Only its owner may read or write it, and whatever
    is wrong with it is logged, and otherwise ignored."""

    def __init__(self, path: Path, *, key: str, logger: logging.Logger | None) -> None:
        self.path = path
        self._key = key
        self._logger = SafeLogger(logger)
        self._cannot_write = False

    def read(self) -> Copied | None:
        """What it holds; ``None`` if there is none, or none that may be believed."""
        try:
            return _copied(_content(self.path), self._key)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # a ConfigurationError is one
            self._logger.error("Rate limits: cannot use the copy of the changes in %s: %s", self.path, error)
            return None

    def write(self, stamp: str, run: str, text: str) -> None:
        """Replace it in one step."""
        content = f"{self._key} {stamp} {run}\n{text}".encode()
        beside = self.path.with_name(f"{self.path.name}.{token_hex(4)}")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                _write_new(beside, content)
                beside.replace(self.path)
            finally:
                beside.unlink(missing_ok=True)
        except OSError as error:
            self._say_once(error)
        else:
            self._cannot_write = False

    def _say_once(self, error: OSError) -> None:
        if not self._cannot_write:
            self._cannot_write = True
            self._logger.warning(
                "Rate limits: cannot write the copy of the changes, so a worker that starts while the storage is away "
                "will not know them: %s",
                error,
            )


def _write_new(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _content(path: Path) -> bytes:
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        if wrong := _what_is_wrong(os.fstat(file.fileno())):
            raise ValueError(wrong)
        return file.read(LONGEST)


def _what_is_wrong(found: os.stat_result) -> str:
    """Why others could have written it, or why it is no copy; empty if neither."""
    if not stat.S_ISREG(found.st_mode):
        return "it is not a regular file"
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}"
    if os.name == "posix" and found.st_mode & 0o022:
        return f"its mode is {found.st_mode & 0o777:o}, so other users may write it"
    return f"it is longer than {LONGEST} bytes" if found.st_size > LONGEST else ""


def _copied(content: bytes, key: str) -> Copied:
    head, _, text = content.decode().partition("\n")
    of, _, versions = head.partition(" ")
    if of != key:
        raise ConfigurationError(f"it is of {of[:LONGEST_STAMP]!r}, not of {key!r}: give each app a file of its own")
    stamp, _, run = versions.partition(" ")
    if len(versions) > LONGEST_STAMP:
        raise ConfigurationError("its first line is too long")
    return Copied(stamp, run, document_from(text) if text else Document())
