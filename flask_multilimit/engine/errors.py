"""The errors: one class for each case that callers handle differently."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, TypeGuard
from uuid import UUID

from .text import Phrase, visible


class MultiLimitError(Exception):
    """Base class of every error that this package raises. Its text is safe to log and show, whatever a client sent."""

    def __str__(self) -> str:
        return visible(super().__str__())


class ConfigurationError(MultiLimitError, ValueError):
    """A rule, a declaration, a setting or a call is wrong. The message names the place, the value and the remedy.

    It is raised as early as possible: at import for a decorator, at start-up for a setting.
    """


class StorageError(MultiLimitError):
    """The storage gave no answer, or one that makes no sense. ``__cause__`` is the error of the client library.

    It is not known whether the check was charged: a request without a reply may still have been counted.
    """

    remedy: str = ""
    """What the operator can do about it, if that is known."""
    key_specific: bool = False
    """Whether only checks of these keys fail, for example because a key holds a value of another type. The storage
    works otherwise, so the guard does not open its breaker."""
    no_reply: bool = False
    """Whether the storage did not reply at all, or not in time. Then the guard asks once more before it opens its
    breaker."""
    server_code: str = ""
    """The error code of the server, such as ``NOPERM``, if it has answered with one."""
    check_id: UUID | None = None
    """The id of the check that may have been charged. A check that is repeated with this id is charged once."""
    check_ids: Sequence[UUID] = ()
    """The same for each check of a batch."""
    decisions: Mapping[UUID | None, Any] = {}
    """The decisions, by id, of checks of a batch that did not fail."""

    def __init__(
        self,
        *args: object,
        remedy: str = "",
        key_specific: bool = False,
        no_reply: bool = False,
        check_id: UUID | None = None,
        check_ids: Sequence[UUID] = (),
    ) -> None:
        super().__init__(*args)
        self.remedy, self.key_specific, self.no_reply = remedy, key_specific, no_reply
        self.check_id, self.check_ids = check_id, check_ids


def message_of(error: Exception) -> str:
    """The :class:`.Phrase` that ``error`` was raised with, if that is safe to show; otherwise the text of ``error``."""
    message = error.args[0] if error.args else ""
    return message if isinstance(message, Phrase) and message.isprintable() else str(error)


def with_remedy(error: Exception) -> str:
    """The message of ``error``; if it is a :class:`StorageError`, followed by its remedy."""
    if not isinstance(error, StorageError):
        return message_of(error)
    text = str(error).rstrip(".")
    return f"{text} ({error.remedy})" if error.remedy else text


class StorageDenied(StorageError):  # noqa: N818 - an answer, after the error that is its cause
    """Refused because the storage failed and ``on_storage_error`` is ``"deny"``."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds until it is worth trying again."""


class ConfigurationWarning(UserWarning):
    """A declaration that works, but probably not as intended, such as a rule that can never refuse."""


def require(holds: object, name: str, value: object, remedy: str) -> None:
    """Raise :class:`ConfigurationError` unless ``holds``: the ``value`` of ``name`` is wrong, and ``remedy`` says what
    to give."""
    if not holds:
        raise ConfigurationError(f"{name}={brief(value)}: give {remedy}")


def check_bool(name: str, value: object) -> None:
    """Raise :class:`ConfigurationError` unless ``value`` is ``True`` or ``False``; the text ``"false"`` is truthy."""
    require(value is True or value is False, name, value, "True or False")


def is_number(value: object) -> TypeGuard[float]:
    """Whether ``value`` is an ``int`` or a ``float``, and neither ``True`` nor ``False``. It may be NaN."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_text(name: str, value: object) -> None:
    """Raise :class:`ConfigurationError` unless ``value`` is text."""
    require(isinstance(value, str), name, value, "text")


def check_path(name: str, value: object) -> None:
    """Raise :class:`ConfigurationError` unless ``value`` is the path of a file or folder."""
    require(isinstance(value, (str, Path)) and value != "", name, value, "a path")


def check_iterable(name: str, value: object, remedy: str = "a list") -> None:
    """Raise :class:`ConfigurationError` unless ``value`` is iterable, and neither a mapping nor text, whose items would
    be its characters."""
    require(isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)), name, value, remedy)


def check_mapping(name: str, value: object, remedy: str) -> None:
    """Raise :class:`ConfigurationError` unless ``value`` is a dict with text as keys."""
    require(isinstance(value, Mapping) and all(isinstance(key, str) for key in value), name, value, remedy)


def check_logger(logger: object) -> None:
    """Raise :class:`ConfigurationError` unless ``logger`` is a logger, an adapter of one, or ``None``."""
    allowed = (logging.Logger, logging.LoggerAdapter, NoneType)
    require(isinstance(logger, allowed), "logger", logger, "a logging.Logger")


def brief(value: object) -> str:
    """``value`` as an error shows it, in at most 80 characters. Of a URI, even one in a wrong place, without user and
    password."""
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python writes
        return f"{type(value).__name__} too long to show"
    except Exception:  # a lazy translation needs a request
        return f"a {type(value).__name__}"
    before, _, rest = text.partition("://")
    if "@" in rest:
        text = f"{before}://***@{rest.rpartition('@')[2]}"
    return text if len(text) <= 80 else text[:77] + "..."
