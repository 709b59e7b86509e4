"""What can go wrong, as few classes as a caller can tell apart."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID


class MultiLimitError(Exception):
    """Base class of every error this package raises on its own behalf."""


class ConfigurationError(MultiLimitError, ValueError):
    """A rule, a declaration, a setting or a call is wrong; the message names the place, the value and the remedy.

    Raised as early as the mistake can be known: at import for a decorator, at start-up for a setting.
    """


class StorageError(MultiLimitError):
    """The storage gave no answer, or none that can be understood; ``__cause__`` keeps the client's error.

    Whether the check was charged is unknown: a request that got no reply may still have been counted.
    """

    remedy: str = ""
    """What the operator can do about it, where that is known."""
    key_specific: bool = False
    """Whether only checks of these keys fail, for instance because a key holds a value of another type. The storage as
    a whole works, so the guard does not open its breaker."""
    no_reply: bool = False
    """Whether the storage did not reply at all, or not in time. Then the guard asks once more before it opens its
    breaker."""
    check_id: UUID | None = None
    """The id of the check that may have been charged; a check that is repeated with it is charged once."""


def with_remedy(error: StorageError) -> str:
    """What ``error`` says, and behind it what can be done about it."""
    text = str(error).rstrip(".")
    return f"{text} ({error.remedy})" if error.remedy else text


class StorageDenied(StorageError):  # noqa: N818 - an answer, after the error that is its cause
    """Refused because the storage failed and ``on_storage_error`` is ``"deny"``."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds until it is worth trying again."""


class ConfigurationWarning(UserWarning):
    """A declaration that works, but hardly as it was meant: for instance a rule that can never refuse."""


def brief(value: object, *, without_secrets: Callable[[str], str] = str) -> str:
    """``value`` as an error shows it."""
    try:
        text = without_secrets(repr(value))
    except ValueError:  # an int of more digits than Python writes
        return f"{type(value).__name__} too long to show"
    return text if len(text) <= 80 else text[:77] + "..."
