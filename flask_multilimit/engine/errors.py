"""What can go wrong, as few classes as a caller can tell apart."""

from __future__ import annotations


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


class ConfigurationWarning(UserWarning):
    """A declaration that works, but hardly as it was meant: for instance a rule that can never refuse."""
