"""``RATELIMIT_*`` settings and the arguments of ``Limiter``: what applies to one app."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from flask_multilimit import ConfigurationError

from .constants import ConfigVars, HeaderNames
from .declared import ApplicationLimit, Limit, LimitText, MetaLimit, Reaction
from .storage import ALGORITHMS

KNOWN = frozenset(value for name, value in vars(ConfigVars).items() if name.isupper())
PREFIX = "RATELIMIT_"
NOTHING: Mapping[Any, Any] = MappingProxyType({})


class Common(NamedTuple):
    """Options of all limits that are given as text: of the default limits, or of those of the application."""

    per_method: bool | None = None
    exempt_when: Callable[[], bool] | None = None
    deduct_when: Callable[[Any], bool] | None = None
    cost: int | Callable[[], int] | None = None

    @classmethod
    def from_settings(cls, config: Mapping[str, Any], family: str, given: Common) -> Common:
        """Arguments of the Limiter take precedence over the settings of ``family``."""
        per_method = given.per_method
        if per_method is None:
            per_method = bool(config.get(f"{family}_PER_METHOD", False))
        return cls(
            per_method=per_method,
            exempt_when=given.exempt_when or config.get(f"{family}_EXEMPT_WHEN"),
            deduct_when=given.deduct_when or config.get(f"{family}_DEDUCT_WHEN"),
            cost=given.cost or config.get(f"{family}_COST", 1),
        )


class Options(
    NamedTuple
):  # a dataclass with this many fields would take longer to define than the rest of the module to load
    """The arguments of a Limiter; ``None`` for those that were not given."""

    default_limits: Iterable[LimitText | Limit] | None = None
    default: Common = Common()
    application_limits: Iterable[LimitText | ApplicationLimit] | None = None
    application: Common = Common()
    headers_enabled: bool | None = None
    header_names: Mapping[HeaderNames, str] = NOTHING
    strategy: str | None = None
    storage_uri: str | None = None
    storage_options: Mapping[str, Any] = NOTHING
    swallow_errors: bool | None = None
    fail_on_first_breach: bool | None = None
    on_breach: Reaction | None = None
    meta_limits: Iterable[LimitText | MetaLimit] | None = None
    on_meta_breach: Reaction | None = None
    in_memory_fallback: Iterable[LimitText | Limit] | None = None
    in_memory_fallback_enabled: bool | None = None
    retry_after: str | None = None
    key_prefix: str = ""
    request_identifier: Callable[..., str] | None = None


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
    def of(cls, config: Mapping[str, Any], given: Options, key_func: Callable[[], str]) -> Settings:
        """Raises :class:`ConfigurationError` for an invalid limit or an unknown strategy."""
        default = Common.from_settings(config, f"{PREFIX}DEFAULTS", given.default)
        application = Common.from_settings(config, f"{PREFIX}APPLICATION", given.application)
        meta = list(given.meta_limits or ()) or _listed(config.get(ConfigVars.META_LIMITS))
        fallback = list(given.in_memory_fallback or ()) or _listed(config.get(ConfigVars.IN_MEMORY_FALLBACK))
        return cls(
            default_limits=_limits(
                given.default_limits, config.get(ConfigVars.DEFAULT_LIMITS), Limit, default, key_function=key_func
            ),
            application_limits=_limits(
                given.application_limits, config.get(ConfigVars.APPLICATION_LIMITS), ApplicationLimit, application
            ),
            meta_limits=tuple(each if isinstance(each, MetaLimit) else MetaLimit(each) for each in meta),
            in_memory_fallback=tuple(
                each if isinstance(each, Limit) else Limit(each, key_function=key_func) for each in fallback
            ),
            in_memory_fallback_enabled=_first(
                given.in_memory_fallback_enabled, config.get(ConfigVars.IN_MEMORY_FALLBACK_ENABLED, False)
            ),
            algorithm=_algorithm(given.strategy or config.get(ConfigVars.STRATEGY) or "fixed-window"),
            storage_uri=given.storage_uri or config.get(ConfigVars.STORAGE_URI) or None,
            storage_options={**given.storage_options, **(config.get(ConfigVars.STORAGE_OPTIONS) or {})},
            swallow_errors=_first(given.swallow_errors, config.get(ConfigVars.SWALLOW_ERRORS, False)),
            fail_on_first_breach=_first(given.fail_on_first_breach, config.get(ConfigVars.FAIL_ON_FIRST_BREACH, True)),
            on_breach=given.on_breach or config.get(ConfigVars.ON_BREACH),
            on_meta_breach=given.on_meta_breach or config.get(ConfigVars.ON_META_BREACH),
            headers_enabled=_first(given.headers_enabled, config.get(ConfigVars.HEADERS_ENABLED, False)),
            header_names=_header_names(config, given.header_names),
            retry_after=given.retry_after or config.get(ConfigVars.HEADER_RETRY_AFTER_VALUE),
            key_prefix=given.key_prefix or config.get(ConfigVars.KEY_PREFIX) or "",
            request_identifier=given.request_identifier or config.get(ConfigVars.REQUEST_IDENTIFIER),
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


def _limits(
    given: Iterable[Any] | None, configured: Any, kind: type[Limit], common: Common, **more: Any
) -> tuple[Limit, ...]:
    """The limits given to the Limiter, otherwise those of the settings. ``common`` applies to limits given as text."""
    options = {
        "per_method": common.per_method,
        "exempt_when": common.exempt_when,
        "deduct_when": common.deduct_when,
        "cost": common.cost,
        **more,
    }
    limits = list(given or ()) or _listed(configured)
    return tuple(each if isinstance(each, Limit) else kind(each, **options) for each in limits)


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


def _first(given: bool | None, configured: object) -> bool:
    return bool(configured) if given is None else bool(given)
