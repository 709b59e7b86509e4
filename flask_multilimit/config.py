"""Settings: ``MULTILIMIT_*`` of ``app.config``, read once and validated."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from .engine import ConfigurationError
from .engine.keys import DEFAULT_PREFIX, PREFIX_PATTERN
from .engine.storage import DEFAULT_TIMEOUT

PREFIX = "MULTILIMIT_"


class Settings(BaseModel):
    """Each field is the setting ``MULTILIMIT_<NAME IN CAPITALS>``."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    storage_uri: str = "memory://"
    """Where quotas are kept: ``memory://``, ``redis://``, ``rediss://``, ``unix://``, ``valkey://``, ``valkeys://``."""

    storage_timeout: float = Field(DEFAULT_TIMEOUT, gt=0, le=60, strict=False)
    """Seconds the server may take to accept a connection, and to reply; above 0, at most 60."""

    key_prefix: str = DEFAULT_PREFIX
    """What every key begins with, unless a limiter has a ``key`` of its own."""

    enabled: bool = True
    """``False`` lets everything pass, without asking storage: for tests."""

    headers: Literal["standard", "legacy", "both", "off"] = "standard"
    """Which header fields tell a client where it stands: ``standard`` (``RateLimit-Policy`` and ``RateLimit`` of the
    IETF draft), ``legacy`` (``X-RateLimit-*``), ``both``, ``off``. ``Retry-After`` is sent on every refusal."""

    ipv6_prefix: int = Field(64, ge=16, le=128)
    """IPv6 addresses that share so many leading bits are one client."""

    anonymous_user: Literal["ip", "shared"] = "ip"
    """What a ``USER`` limit goes by when nobody is logged in: ``ip``, each address by itself; ``shared``, all of them
    together."""

    message: str | Callable[..., str] = "Too many requests. Please try again later."
    """What a refused client is told: text, or a callable of the :class:`Decision`; a limiter may have its own."""

    @field_validator("key_prefix")
    @classmethod
    def _check_key_prefix(cls, value: str) -> str:
        check_prefix(value)
        return value

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Settings:
        """Raise :class:`ConfigurationError` for an unknown setting or a value it cannot take."""
        given = {name: value for name, value in config.items() if name.startswith(PREFIX)}
        known = [PREFIX + name.upper() for name in cls.model_fields]
        for name in given:
            if name not in known:
                nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
                raise ConfigurationError(f"{name} is not a setting; did you mean {nearest}?")
        try:
            return cls(**{name.removeprefix(PREFIX).lower(): value for name, value in given.items()})
        except ValidationError as error:
            raise ConfigurationError("; ".join(_reason(problem) for problem in error.errors())) from None


def check_prefix(value: object) -> None:
    """Raise :class:`ConfigurationError` unless ``value`` can begin a key."""
    if not isinstance(value, str) or not PREFIX_PATTERN.fullmatch(value):
        raise ConfigurationError(f"key prefix {value!r}: 1 to 32 printable ASCII characters, no blanks, no braces")


def _reason(problem: Any) -> str:
    name = PREFIX + str(problem["loc"][0]).upper()
    reason = problem["msg"].removeprefix("Value error, ")
    return f"{name}={problem['input']!r}: {reason[0].lower()}{reason[1:]}"
