"""``RATELIMIT_*`` settings and the arguments of ``Limiter``: what applies to one app."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypedDict

from flask import Response

from .constants import ConfigVars, HeaderNames
from .declared import ApplicationLimit, Cost, Limit, LimitText, MetaLimit, Reaction, check, is_list
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


def setting_of(option: str) -> str:
    """The setting that says the same as an argument of a Limiter."""
    return str(getattr(ConfigVars, "HEADER_RETRY_AFTER_VALUE" if option == "retry_after" else option.upper()))


LISTS = ("default_limits", "application_limits", "meta_limits", "in_memory_fallback")


def check_options(given: Options) -> None:
    """Raises :class:`ConfigurationError` for an argument of the wrong kind, and ``TypeError`` for an unknown one."""
    value: Any
    for name, value in given.items():
        if name not in Options.__annotations__:
            raise TypeError(f"Limiter.__init__() got an unexpected keyword argument {name!r}")
        if name in LISTS:
            check(name, value or (), is_list, "a list")  # as in Flask-Limiter, "" means none
            given[name] = [*(value or ())]  # type: ignore[literal-required]  # an iterator serves only one app
        if name in {"storage_uri", "strategy"}:
            check(name, value, str, "text")
        if name in {"header_name_mapping", "storage_options"}:
            check(name, value or None, dict, "a dict")
    check("request_identifier", given.get("request_identifier") or None, callable, "a callable")


class Settings:
    """The settings of one app. Arguments of the Limiter take precedence over those of ``app.config``."""

    def __init__(self, config: Mapping[str, Any], given: Options) -> None:
        """Raises :class:`ConfigurationError` for an invalid limit or an unknown strategy."""

        def chosen(name: str, otherwise: Any = None) -> Any:
            return given.get(name) or config.get(setting_of(name)) or otherwise

        def flag(name: str, otherwise: bool = False) -> bool:
            value = given.get(name)
            return bool(config.get(setting_of(name), otherwise) if value is None else value)

        def limits(name: str, kind: type[Limit], **options: Any) -> tuple[Any, ...]:
            """The limits given to the Limiter, otherwise those of the settings; text gets the ``options``."""
            found = chosen(name) or ()
            listed = [found] if isinstance(found, (str, Limit)) or callable(found) else found
            return tuple(each if isinstance(each, Limit) else kind(each, **options) for each in listed)

        def options_of(name: str) -> dict[str, Any]:
            options = {each: chosen(f"{name}_{each}") for each in ("exempt_when", "deduct_when", "cost")}
            return {**options, "per_method": flag(f"{name}_per_method")}

        self.default_limits: tuple[Limit, ...] = limits("default_limits", Limit, **options_of("default_limits"))
        self.application_limits: tuple[ApplicationLimit, ...] = limits(
            "application_limits", ApplicationLimit, **options_of("application_limits")
        )
        self.meta_limits: tuple[MetaLimit, ...] = limits("meta_limits", MetaLimit)
        self.in_memory_fallback: tuple[Limit, ...] = limits("in_memory_fallback", Limit)
        self.in_memory_fallback_enabled: bool = flag("in_memory_fallback_enabled")
        self.strategy: str = chosen("strategy", "fixed-window")
        check("strategy", self.strategy, ALGORITHMS.__contains__, f"one of {', '.join(ALGORITHMS)}")
        self.storage_uri: str | None = chosen("storage_uri")
        options = config.get(ConfigVars.STORAGE_OPTIONS)
        check(ConfigVars.STORAGE_OPTIONS, options or None, dict, "a dict")
        self.storage_options: dict[str, Any] = {**(given.get("storage_options") or {}), **(options or {})}
        self.swallow_errors: bool = flag("swallow_errors")
        self.fail_on_first_breach: bool = flag("fail_on_first_breach", otherwise=True)
        self.on_breach: Reaction | None = chosen("on_breach")
        self.on_meta_breach: Reaction | None = chosen("on_meta_breach")
        self.headers_enabled: bool = flag("headers_enabled")
        named = given.get("header_name_mapping") or {}
        self.header_names: dict[HeaderNames, str] = {
            each: named.get(each) or config.get(f"{PREFIX}HEADER_{each.name}") or each.value for each in HeaderNames
        }
        self.retry_after: str | None = chosen("retry_after")
        self.key_prefix: str = str(chosen("key_prefix", ""))
        self.request_identifier: Callable[[], str] | None = chosen("request_identifier")

    @property
    def limits(self) -> tuple[Limit, ...]:
        return (*self.default_limits, *self.application_limits, *self.meta_limits, *self.in_memory_fallback)

    @property
    def algorithm(self) -> str:
        return ALGORITHMS[self.strategy]

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
    """For each unknown ``RATELIMIT_*``, the setting that it may have meant, if any. It may be the app's own."""
    known = {name.removeprefix(PREFIX): name for name in KNOWN}
    found = []
    for name in config:
        if name.startswith(PREFIX) and name not in KNOWN:
            nearest = difflib.get_close_matches(name.removeprefix(PREFIX), known, n=1)
            meant = f"; did you mean {known[nearest[0]]}?" if nearest else ""
            found.append(f"{name} is not a setting of Flask-Limiter{meant}")
    return found
