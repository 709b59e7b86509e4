"""Finds problems with the limits of an app and with its storage, says how much each matters, and how to fix it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ...engine import StorageError

FIX = "Fix the problem reported above. Until then, each process limits by itself."
"""The remedy for a storage that does not answer."""


class Severity(str, Enum):
    """How much a finding matters."""

    OK = "ok"
    HINT = "hint"
    """Nothing is wrong, but something could be better, or cannot be known from here."""
    WARNING = "warning"
    """Limits are enforced now, but perhaps not as intended."""
    WRONG = "wrong"
    """Limits are not enforced."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    severity: Severity
    text: str
    remedy: str = ""


def remedy_for(error: StorageError, otherwise: str) -> str:
    """The remedy that ``error`` knows, as a sentence."""
    return f"{error.remedy[:1].upper()}{error.remedy[1:]}." if error.remedy else otherwise
