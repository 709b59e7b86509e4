"""Settings: ``MULTILIMIT_*`` of ``app.config``, read once and validated."""

# No `from __future__ import annotations` here: pydantic would have to compile the text of each annotation.

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from flask import Flask
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from .engine import ConfigurationError
from .engine.errors import brief, message_of
from .engine.hits import OnStorageError
from .engine.keys import DEFAULT_PREFIX, checked_prefix
from .engine.storage import DEFAULT_TIMEOUT, DENY_SECONDS, LONGEST_DENY_SECONDS
from .engine.storage.addresses import shown_storage
from .engine.storage.forgetting import FEWEST_KEYS, MOST_KEYS
from .engine.text import Phrase
from .observe.traffic.flushing import ShownSubjects
from .observe.traffic.log import Log

PREFIX = "MULTILIMIT_"
MISSPELT = 0.93
"""A key without our prefix that is at least this similar to a setting is a misspelt one, as ``MULTILIMITS_ENABLED``."""
MOST_WORKERS = 100_000
NAMES = 'names or patterns, such as ["health", "admin.*"]'
WHO = 'networks and subjects, such as ["203.0.113.0/24", "user:42"]'
"""What settings that are lists of text hold."""


class Settings(BaseModel):
    """Each field is the setting ``MULTILIMIT_<NAME IN CAPITALS>``."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    storage_uri: str = Field("memory://", repr=False)
    """Where quotas are kept: ``memory://``, or a URI of another scheme in ``SCHEMES``."""

    storage_timeout: float = Field(DEFAULT_TIMEOUT, gt=0, le=60)
    """Seconds to wait for a connection, and again for an answer; above 0, at most 60. A check without an answer is
    repeated once, unless the first try took more than a second. A client object of your own has its own time-outs."""

    on_storage_error: OnStorageError = "local"
    """What happens to a check that storage does not answer: ``local`` (this process enforces its share of each limit),
    ``allow`` (the request passes), ``deny`` (503 with ``Retry-After``), ``raise`` (:exc:`StorageError`). A limiter can
    have its own policy."""

    workers: int | None = Field(None, ge=1, le=MOST_WORKERS)
    """Number of processes that serve the app on all machines together. While the storage is down, each admits its share
    of a limit. By default, the number on this machine, found when it is needed."""

    memory_keys: int = Field(MOST_KEYS, ge=FEWEST_KEYS)
    """Maximum number of keys that a process counts by itself, with ``memory://`` or while another storage is down, and
    of charges that it keeps to make later. Beyond that, those whose quota is whole again soonest are forgotten first,
    and those that refuse now last."""

    deny_cache: float = Field(DENY_SECONDS, ge=0, le=LONGEST_DENY_SECONDS)
    """Maximum seconds for which a process remembers a refusal and repeats it without asking a shared storage; 0 asks
    each time."""

    key_prefix: Annotated[str, AfterValidator(checked_prefix)] = DEFAULT_PREFIX
    """Every key begins with this, unless a limiter has a ``key`` of its own."""

    enabled: bool = True
    """``False`` is for tests: every request passes without a check."""

    headers: Literal["draft-11", "draft-10", "draft-06", "legacy", "both", "off"] = "draft-11"
    """Which header fields tell a client where it stands: those of draft-ietf-httpapi-ratelimit-headers by its number
    (``draft-11``: ``RateLimit-Policy`` and ``RateLimit``; ``draft-10``: the same with the ``t`` of the drafts 08 to 10;
    ``draft-06``: ``RateLimit-Limit``, ``-Remaining``, ``-Reset`` and ``-Policy``), ``legacy`` (``X-RateLimit-*``),
    ``both`` (draft-11 and legacy), ``off``. ``Retry-After`` is sent on every refusal that waiting ends."""

    headers_on: Literal["always", "refusals"] = "always"
    """Whether all responses have these header fields, or only refusals."""

    slot_retry_after: int = Field(1, ge=1, le=3600)
    """Seconds in ``Retry-After`` when a ``Concurrent`` rule refuses: nobody knows when a slot becomes free."""

    retry_after: Literal["seconds", "date"] = "seconds"
    """Whether ``Retry-After`` contains seconds to wait, or the date (by the clock of this machine)."""

    partition_keys: bool = False
    """Whether ``RateLimit-Policy`` and ``RateLimit`` name the quota of each rule with a partition key (``pk``): a hash,
    keyed with the app's ``SECRET_KEY``, which is the same for all requests that share the quota."""

    shadow_headers: bool = False
    """Whether header fields include limiters with ``shadow=True``."""

    ipv6_prefix: int = Field(64, ge=16, le=128)
    """IPv6 addresses with this many leading bits in common are one client."""

    anonymous_user: Literal["ip", "shared"] = "ip"
    """Which quota a ``USER`` limit uses when nobody is logged in: ``ip``, one for each address; ``shared``, one for all
    of them."""

    traffic: bool = True
    """Whether each process counts what it lets pass and refuses, and flushes the counts to the storage once a second:
    what ``flask multilimit top`` and the log show. ``False`` costs nothing."""

    traffic_subjects: ShownSubjects = "plain"
    """How the most refused subjects are stored: ``plain``, ``hashed`` (keyed with the app's ``SECRET_KEY``), or not at
    all (``none``)."""

    log: Log = "summary"
    """What the app's logger logs at level INFO, at most once a minute while something is refused: a ``summary`` by
    endpoint and rule; also the most refused ``subjects``; or nothing (``off``)."""

    message: Any = None
    """The text for a refused client, or a callable of the :class:`Decision` that returns it. A limiter can have its
    own. The default is a sentence in the language of ``locale``."""

    locale: Literal["auto", "en", "zh"] = "auto"
    """Language of the package's own texts: English, Chinese, or (``auto``) whichever ``Accept-Language`` prefers."""

    application_limits: Any = ()
    """Limits of the whole app, with one quota: text such as ``"1000/minute"``, a dict of the options of
    ``rate_limiter`` (``{"type": "ip", "rules": "100/minute"}``), a ``rate_limiter(...)``, or a list of these."""

    default_limits: Any = ()
    """Limits of each endpoint for which nothing else is declared, in the same form."""

    unmatched_limits: Any = ()
    """Limits of requests that match no route (404) or no method of it (405), in the same form. Without this setting,
    they are not limited."""

    limits: Annotated[Any, AfterValidator(lambda given: dict(given) if isinstance(given, Mapping) else given)] = {}
    """Limits by endpoint, blueprint or pattern (``{"api.*": "100/minute"}``), in the same form."""

    file: str | None = None
    """A file of limits, TOML or JSON, relative to the app's folder. Its limits apply in addition to these settings."""

    exempt: tuple[str, ...] = ()
    """Endpoints, blueprints or patterns to which only the limits of their own decorators apply."""

    unknown_names: Literal["error", "warn"] = "error"
    """How a name or pattern that matches no endpoint is reported: as an ``error`` that :meth:`MultiLimit.validate`
    raises, or as a warning (``warn``)."""

    allow: tuple[str, ...] = ()
    """Networks and subjects that no limit applies to: ``["10.0.0.0/8", "user:42"]``."""

    deny: tuple[str, ...] = ()
    """Networks and subjects that are refused before any limit is checked, in the same form."""

    deny_status: Literal[403, 429] = 403
    """The status of such a refusal."""

    control: bool = True
    """Whether limits and lists can be changed while the app runs: a thread asks a shared storage twice a second."""

    control_copy: str | None = Field(None, min_length=1)
    """A file in which workers keep the newest changes, relative to the app's instance folder. A worker that starts
    while the storage is down applies them. Without it, such a worker knows no bans and no changes."""

    @field_validator("exempt", "allow", "deny", mode="before")
    @classmethod
    def _check_texts(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
            raise ValueError(f"give a list of {NAMES if info.field_name == 'exempt' else WHO}")
        return tuple(value)

    @staticmethod
    def name_of(field: str) -> str:
        """The setting of a field."""
        return PREFIX + field.upper()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Settings":
        """Raise :class:`ConfigurationError` for an unknown setting or a value it cannot take."""
        given = {name: value for name, value in config.items() if name.startswith(PREFIX)}
        known = [cls.name_of(name) for name in cls.model_fields]
        unknown = (name for name in config if name not in known and name not in Flask.default_config)
        for name in (name for name in unknown if name[:1].upper() == PREFIX[0]):
            similarity = 0 if name in given else MISSPELT
            nearest = difflib.get_close_matches(name.upper(), known, n=1, cutoff=similarity)
            if nearest:
                raise ConfigurationError(f"{name} is not a setting; did you mean {nearest[0]}?")
        try:
            return cls(**{name.removeprefix(PREFIX).lower(): value for name, value in given.items()})
        except ValidationError as error:
            raise ConfigurationError("; ".join(_reason(problem) for problem in error.errors())) from None

    def require_unchanged(self, config: Mapping[str, Any]) -> None:
        """Raise :class:`ConfigurationError` if ``config``, from which these settings were read, has others now."""
        now = self.from_config(config)
        pairs = {name: (getattr(self, name), getattr(now, name)) for name in type(self).model_fields}
        late = [self.name_of(name) for name, (read, given) in pairs.items() if given is not read and given != read]
        if late:
            in_tests = "; for a test, see flask_multilimit.testing.enabled" if f"{PREFIX}ENABLED" in late else ""
            raise ConfigurationError(
                f"{' and '.join(late)} changed in app.config after MultiLimit had read it, so the change has no "
                f"effect: make it before MultiLimit(app) or init_app(app){in_tests}"
            )


def _reason(problem: Any) -> str:
    name = Settings.name_of(str(problem["loc"][0]))
    shown = shown_storage(problem["input"]) if name == f"{PREFIX}STORAGE_URI" else brief(problem["input"])
    otherwise = ", or leave it out" if problem["input"] is None else ""
    return f"{name}={shown}: {remedy_for(problem)}{otherwise}"


def remedy_for(problem: Any) -> str:
    """What is wrong with a value that pydantic refuses, and what to give."""
    context = problem.get("ctx", {})
    if "error" in context:
        return message_of(context["error"])
    if problem["type"] in _BOUNDS:
        return Phrase(_BOUNDS[problem["type"]], n=f"{next(iter(context.values())):.15g}")
    message = str(problem["msg"])
    return _REMEDIES.get(problem["type"], message[:1].lower() + message[1:])


_BOUNDS = {
    "string_too_long": "string should have at most {n} characters",
    "greater_than": "input should be greater than {n}",
    "less_than_equal": "input should be less than or equal to {n}",
}
_REMEDIES = {
    "tuple_type": "give a list",
    "missing": "is missing; give it",
    "model_type": "give a table",
    "dict_type": "give a table",
    "string_type": "give text",
    "string_unicode": "give valid Unicode",
    "string_too_short": "give text that is not empty",
    "int_type": "give a whole number",
    "float_type": "give a number",
    "finite_number": "give a finite number",
    "bool_type": "give true or false",
}
