"""``RATELIMIT_*`` settings and the arguments of ``Limiter``: what applies to one app."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypedDict

from flask import Response

from flask_multilimit import ConfigurationError

from .constants import ConfigVars, HeaderNames
from .declared import ApplicationLimit, Cost, Limit, LimitText, MetaLimit, Reaction, check, is_list, is_text
from .storage import ALGORITHMS

KNOWN = frozenset(value for name, value in vars(ConfigVars).items() if name.isupper())
PREFIX = "RATELIMIT_"


class Options(TypedDict, total=False):
    """The arguments of a Limiter."""

    default_limits: Iterable[LimitText | Limit] | None
    default_limits_per_method: bool | None
    default_limits_exempt_when: Callable[[], bool] | None
    default_limits_deduct_when: Callable[[Response], bool] | None
    default_limits_cost: Cost | None
    application_limits: Iterable[LimitText | ApplicationLimit] | None
    application_limits_per_method: bool | None
    application_limits_exempt_when: Callable[[], bool] | None
    application_limits_deduct_when: Callable[[Response], bool] | None
    application_limits_cost: Cost | None
    headers_enabled: bool | None
    header_name_mapping: dict[HeaderNames, str] | None
    strategy: str | None
    storage_uri: str | None
    storage_options: dict[str, Any] | None
    swallow_errors: bool | None
    fail_on_first_breach: bool | None
    on_breach: Reaction | None
    meta_limits: Iterable[LimitText | MetaLimit] | None
    on_meta_breach: Reaction | None
    in_memory_fallback: Iterable[LimitText | Limit] | None
    in_memory_fallback_enabled: bool | None
    retry_after: str | None
    key_prefix: str
    request_identifier: Callable[..., str] | None


LISTS = ("default_limits", "application_limits", "meta_limits", "in_memory_fallback")


def check_options(given: Options) -> None:
    """Raises :class:`ConfigurationError` for an argument of the wrong kind, and ``TypeError`` for an unknown one."""
    for name, value in given.items():
        if name not in Options.__annotations__:
            raise TypeError(f"Limiter.__init__() got an unexpected keyword argument {name!r}")
        if name in LISTS:
            check(name, value, is_list, "a list")
        if name in {"storage_uri", "strategy"}:
            check(name, value, is_text, "text")
        if name in {"header_name_mapping", "storage_options"}:
            check(name, value, lambda value: isinstance(value, dict), "a dict")
    check("request_identifier", given.get("request_identifier"), callable, "a callable")


class Settings(NamedTuple):
    """The settings of one app. Arguments of the Limiter take precedence over those of ``app.config``."""

    default_limits: tuple[Limit, ...]
    application_limits: tuple[Limit, ...]
    meta_limits: tuple[MetaLimit, ...]
    in_memory_fallback: tuple[Limit, ...]
    in_memory_fallback_enabled: bool
    algorithm: str
    storage_uri: str | None
    """``None`` if none is given."""
    storage_options: Mapping[str, Any]
    swallow_errors: bool
    fail_on_first_breach: bool
    on_breach: Reaction | None
    on_meta_breach: Reaction | None
    headers_enabled: bool
    header_names: Mapping[HeaderNames, str]
    retry_after: str | None
    key_prefix: str
    request_identifier: Callable[..., str] | None

    @classmethod
    def of(cls, config: Mapping[str, Any], given: Options) -> Settings:
        """Raises :class:`ConfigurationError` for an invalid limit or an unknown strategy."""

        def chosen(name: str, setting: str, otherwise: Any = None) -> Any:
            return given.get(name) or config.get(setting) or otherwise

        def flag(name: str, setting: str, otherwise: bool) -> bool:
            value = given.get(name)
            return bool(config.get(setting, otherwise) if value is None else value)

        def limits(name: str, setting: str, kind: type[Limit], **options: Any) -> tuple[Any, ...]:
            """The limits given to the Limiter, otherwise those of the settings; ``options`` are of those as text."""
            found = list(given.get(name) or ()) or _listed(config.get(setting))  # type: ignore[call-overload]
            return tuple(each if isinstance(each, Limit) else kind(each, **options) for each in found)

        def common(name: str, family: str) -> dict[str, Any]:
            return {
                "per_method": flag(f"{name}_per_method", f"{family}_PER_METHOD", False),
                "exempt_when": chosen(f"{name}_exempt_when", f"{family}_EXEMPT_WHEN"),
                "deduct_when": chosen(f"{name}_deduct_when", f"{family}_DEDUCT_WHEN"),
                "cost": chosen(f"{name}_cost", f"{family}_COST", 1),
            }

        options = config.get(ConfigVars.STORAGE_OPTIONS)
        check(ConfigVars.STORAGE_OPTIONS, options, lambda value: isinstance(value, dict), "a dict")
        return cls(
            default_limits=limits(
                "default_limits", ConfigVars.DEFAULT_LIMITS, Limit, **common("default_limits", f"{PREFIX}DEFAULTS")
            ),
            application_limits=limits(
                "application_limits",
                ConfigVars.APPLICATION_LIMITS,
                ApplicationLimit,
                **common("application_limits", f"{PREFIX}APPLICATION"),
            ),
            meta_limits=limits("meta_limits", ConfigVars.META_LIMITS, MetaLimit),
            in_memory_fallback=limits("in_memory_fallback", ConfigVars.IN_MEMORY_FALLBACK, Limit),
            in_memory_fallback_enabled=flag("in_memory_fallback_enabled", ConfigVars.IN_MEMORY_FALLBACK_ENABLED, False),
            algorithm=_algorithm(chosen("strategy", ConfigVars.STRATEGY, "fixed-window")),
            storage_uri=chosen("storage_uri", ConfigVars.STORAGE_URI),
            storage_options={**(given.get("storage_options") or {}), **(options or {})},
            swallow_errors=flag("swallow_errors", ConfigVars.SWALLOW_ERRORS, False),
            fail_on_first_breach=flag("fail_on_first_breach", ConfigVars.FAIL_ON_FIRST_BREACH, True),
            on_breach=chosen("on_breach", ConfigVars.ON_BREACH),
            on_meta_breach=chosen("on_meta_breach", ConfigVars.ON_META_BREACH),
            headers_enabled=flag("headers_enabled", ConfigVars.HEADERS_ENABLED, False),
            header_names=_header_names(config, given.get("header_name_mapping") or {}),
            retry_after=chosen("retry_after", ConfigVars.HEADER_RETRY_AFTER_VALUE),
            key_prefix=chosen("key_prefix", ConfigVars.KEY_PREFIX, ""),
            request_identifier=chosen("request_identifier", ConfigVars.REQUEST_IDENTIFIER),
        )

    @property
    def is_in_memory(self) -> bool:
        return self.storage_uri is None or self.storage_uri.startswith("memory:")

    @property
    def on_storage_error(self) -> Literal["allow", "raise", "local"] | None:
        """What happens to a check that the storage does not answer; ``None``: see ``MULTILIMIT_ON_STORAGE_ERROR``."""
        if self.in_memory_fallback:
            return "raise"  # so that the fallback limits are checked instead
        if self.in_memory_fallback_enabled:
            return "local"
        return "allow" if self.swallow_errors else None


def unknown_settings(config: Mapping[str, Any]) -> list[str]:
    """For each unknown ``RATELIMIT_*``, the setting that it may have meant."""
    return [
        f"{name} is not a setting; did you mean {''.join(difflib.get_close_matches(name, KNOWN, n=1, cutoff=0))}?"
        for name in config
        if name.startswith(PREFIX) and name not in KNOWN
    ]


def _listed(configured: Any) -> list[Any]:
    """The items of a setting: one text, which may have several limits, or a list of texts."""
    if isinstance(configured, (list, tuple)):
        return list(configured)
    return [configured] if configured else []


def _algorithm(strategy: str) -> str:
    if strategy not in ALGORITHMS:
        raise ConfigurationError(f"strategy={strategy!r}: use one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[strategy]


def _header_names(config: Mapping[str, Any], given: Mapping[HeaderNames, str]) -> dict[HeaderNames, str]:
    settings = {
        HeaderNames.RESET: ConfigVars.HEADER_RESET,
        HeaderNames.REMAINING: ConfigVars.HEADER_REMAINING,
        HeaderNames.LIMIT: ConfigVars.HEADER_LIMIT,
        HeaderNames.RETRY_AFTER: ConfigVars.HEADER_RETRY_AFTER,
    }
    return {header: given.get(header) or config.get(name) or header.value for header, name in settings.items()}
