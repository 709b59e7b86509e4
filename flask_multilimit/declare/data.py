"""Limits written as data: in settings, files, overrides and simulations, which all use these models.

A limiter has all options of :func:`rate_limiter`; a callable is given by its import path. An error names the field as
TOML and Python write it, and says what to give.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ..config import remedy_for
from ..engine import Ban, ConfigurationError, Rule
from ..engine.algorithms import ALGORITHMS
from ..engine.bans import MOST_FACTOR, MOST_STRIKES
from ..engine.errors import brief
from ..engine.hits import OnStorageError
from ..engine.keys import NAME_PATTERN, PREFIX_PATTERN, HashTag
from ..engine.periods import Period
from ..engine.rules import (
    CONCURRENCY,
    LONGEST,
    LONGEST_TIMEOUT,
    MAX_COUNT,
    NAME,
    SHORTEST,
    SHORTEST_TIMEOUT,
    fields_of,
    rule_of,
    rules_from,
)
from ..engine.text import LONGEST_ADDRESS, LONGEST_FILE, LONGEST_MESSAGE, LONGEST_NAME, LONGEST_SUBJECT, Phrase
from .addresses import network_from
from .limiter import LONGEST_WAIT, Declaration, Reserve, reject_unknown_options
from .written import (
    IMPORT_PATTERN,
    OFF,
    SETTLE_FORMS,
    STATUS_CLASS,
    ExemptNetworks,
    InvalidData,
    Mistake,
    check_type_text,
    imported,
    is_header,
    is_import_path,
    nearest,
    parse_json,
    parts_of_type,
)

CALLABLES = ("cost", "exempt_when", "charge_when", "on_rejected")
"""Options for which text names a callable."""
COST_FORMS = 'give a whole number, 0 or more, or "module:function"'
STATUSES_FORMS = 'give statuses such as [401, 403] or "4xx", or "module:function"'

NO_IMPORTS = {"imports": False}
"""The validation context of data that must not import modules, because importing a module runs it."""
PART = {"part": True}
"""The validation context of some options of a limiter whose others are Python objects: the whole is checked later."""

T = TypeVar("T")


# Forms: text, a table, a list


def _form(value: Any) -> str | None:
    if isinstance(value, str):
        return "<text>"
    if isinstance(value, int):
        return "<bool>" if isinstance(value, bool) else "<number>"
    if isinstance(value, (Mapping, BaseModel, Rule)):
        return "<table>"
    return "<list>" if isinstance(value, (list, tuple)) else None


def _forms(remedy: str) -> Discriminator:
    """Choose one of several models by the form of a value, so that errors are only about that model."""
    return Discriminator(_form, custom_error_type="form", custom_error_message=remedy)


def _not_empty(value: tuple[T, ...]) -> tuple[T, ...]:
    if not value:
        raise ValueError("give at least one")
    return value


# pydantic checks a whole value after its parts, and only if it finds nothing wrong with them.
Some = Annotated[tuple[T, ...], Field(strict=False, json_schema_extra={"minItems": 1}), AfterValidator(_not_empty)]
Text = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
SubjectText = Annotated[str, Field(min_length=1, max_length=LONGEST_SUBJECT)]


def _check_may_import(text: str, info: ValidationInfo) -> str:
    """``text``. Raises ``ValueError`` if it is an import path and this data must not import modules."""
    if is_import_path(text) and info.context == NO_IMPORTS:
        raise ValueError("names a callable, which only settings and files can; declare it there")
    return text


ImportPath = Annotated[str, Field(pattern=IMPORT_PATTERN), AfterValidator(_check_may_import)]
Status = Annotated[
    Annotated[int, Field(ge=100, le=599), Tag("<number>")]
    | Annotated[str, Field(pattern=f"^{STATUS_CLASS}$"), Tag("<text>")],
    _forms('give a number such as 401, or a class such as "4xx"'),
]
NetworkText = Annotated[str, Field(max_length=LONGEST_ADDRESS, examples=["203.0.113.0/24", "2001:db8::/32"])]


class Written(BaseModel):
    """The base of all models here: immutable, strict, and an unknown option is an error. pydantic builds each at its
    first use: most apps use none."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


_RATE_OPTIONS = ("time", "algorithm", "burst", "max_delay", "lease", "timeout")
"""The options of a rule that a calendar does not have."""
_SCHEMA_BY_KIND: dict[str, Any] = {
    "allOf": [
        {
            "if": {"required": ["timeout"], "properties": {"timeout": {"type": "number"}}},
            "then": {"properties": {"time": False, "algorithm": {"const": CONCURRENCY}}},
        },
        {
            "if": {"required": ["per"], "properties": {"per": {"type": "string"}}},
            "then": {"properties": {name: {"type": "null"} for name in _RATE_OPTIONS}},
            "else": {"properties": {name: {"type": "null"} for name in ("timezone", "anchor")}},
        },
    ]
}
"""What the JSON Schema adds for a rule with a timeout, for a calendar, and for rules that are no calendars."""


def _check_anchor(value: Any) -> Any:
    if type(value) not in {int, str, NoneType}:
        raise ValueError('give the number of a day, such as 15, or "MM-DD"')
    return value


class WrittenRule(Written):
    """At most ``count`` units in any ``time`` seconds; with a ``timeout``, at most ``count`` at once; with ``per``, at
    most ``count`` in each period of a calendar."""

    model_config: ClassVar[ConfigDict] = ConfigDict(json_schema_extra=_SCHEMA_BY_KIND)

    time: float = Field(60, ge=SHORTEST, le=LONGEST)
    """Seconds."""
    count: int = Field(100, ge=1, le=MAX_COUNT)
    """Units."""
    algorithm: str = Field("sliding_window", json_schema_extra={"enum": list(ALGORITHMS)})
    """How units are counted."""
    burst: int | None = Field(None, ge=1, le=MAX_COUNT)
    """Units that may pass at once: for token_bucket, leaky_bucket and gcra."""
    max_delay: float | None = Field(None, ge=SHORTEST, le=LONGEST)
    """Seconds that a request may wait in the queue of a leaky_bucket."""
    lease: int | None = Field(None, ge=2)
    """Units that a process may take at once and spend without asking the storage."""
    timeout: float | None = Field(None, ge=SHORTEST_TIMEOUT, le=LONGEST_TIMEOUT)
    """In place of time: at most count run at once, and slots of a dead worker are free after so many seconds."""
    per: Period | None = None
    """In place of time: a period of the calendar."""
    timezone: Text | None = Field(None, max_length=64, examples=["Europe/Berlin"])
    """The time zone in which the period begins; default: UTC."""
    anchor: Annotated[int | str | None, BeforeValidator(_check_anchor)] = Field(None, examples=[15, "04-06"])
    """The day on which it begins: of a week, 1 (Monday) to 7; of a month, 1 to 31; of a year, "MM-DD"."""
    name: str | None = Field(None, pattern=f"^{NAME}$")
    """Its name in header fields and errors."""

    @property
    def given(self) -> dict[str, Any]:
        """The fields of the rule that are given."""
        given = self.model_dump(exclude_unset=True)
        timeout, period = given.pop("timeout", None), given.pop("per", None)
        if period is not None:
            return {**{name: value for name, value in given.items() if value is not None}, "period": period}
        given = {name: value for name, value in given.items() if name not in {"timezone", "anchor"}}
        return given if timeout is None else {**given, "time": timeout, "algorithm": CONCURRENCY}

    @property
    def rule(self) -> Rule:
        return rule_of({"count": self.count, **self.given})

    @model_validator(mode="before")
    @classmethod
    def _take_rule(cls, value: Any) -> Any:
        """Code may give a :class:`Rule`."""
        if not isinstance(value, Rule):
            return value
        names = {"period": "per", "time": "timeout" if value.holds_slots else "time"}
        taken = value.implementation.PARAMETERS  # none of them is kept of a rule in whose place this one is
        known = fields_of(value).items()
        return {names.get(name, name): each for name, each in known if each is not None or name in taken}

    @model_validator(mode="after")
    def _check_rule(self) -> WrittenRule:
        self._check_calendar()
        if self.timeout is not None:
            self._check_timeout()
        self.rule  # noqa: B018 - raises if anything is wrong in it
        return self

    def _check_calendar(self) -> None:
        wrong = _RATE_OPTIONS if self.per is not None else ("timezone", "anchor")
        found = [name for name in wrong if getattr(self, name) is not None and name in self.model_fields_set]
        if found and self.per is None:
            raise ValueError(f"{' and '.join(found)}: for a calendar period; give per, too, such as month")
        if found:
            raise ValueError(f"per and {' and '.join(found)}: a calendar has no {found[0]}; give only one of them")

    def _check_timeout(self) -> None:
        """Reject ``time`` and another ``algorithm``: a timeout alone makes the rule one for requests at once."""
        if "time" in self.model_fields_set:
            raise ValueError("time and timeout: give only one of them: time for a rate, timeout for concurrency")
        if "algorithm" in self.model_fields_set and self.algorithm != CONCURRENCY:
            raise ValueError(f"timeout is for concurrency limits, not for {self.algorithm}; leave one of them out")


class WrittenBan(Written):
    """A subject that is refused repeatedly is refused for a time."""

    after: int = Field(3, ge=1, le=MOST_STRIKES)
    """The number of refusals that begin a ban."""
    within: float = Field(600, ge=SHORTEST, le=LONGEST)
    """Seconds within which these refusals come."""
    time: float = Field(3600, ge=SHORTEST, le=LONGEST)
    """Seconds that the first ban lasts."""
    factor: float = Field(2, ge=1, le=MOST_FACTOR)
    """A ban that repeats the last one lasts so many times as long."""
    most: float = Field(86_400, ge=SHORTEST, le=LONGEST)
    """The most seconds that a ban lasts; also the seconds after its end within which the next one repeats it."""

    @property
    def ban(self) -> Ban:
        return Ban(**self.model_dump(exclude_unset=True))

    @model_validator(mode="before")
    @classmethod
    def _take_ban(cls, value: Any) -> Any:
        """Code may give a :class:`Ban`."""
        return {name: getattr(value, name) for name in cls.model_fields} if isinstance(value, Ban) else value

    @model_validator(mode="after")
    def _check_ban(self) -> WrittenBan:
        try:
            self.ban  # noqa: B018 - raises if anything is wrong in it
        except ConfigurationError as error:
            raise ValueError(str(error).partition("): ")[2]) from error
        return self


def _check_rule_text(text: str, info: ValidationInfo) -> str:
    if not is_import_path(text):
        rules_of(text)
    return _check_may_import(text, info)


_EXAMPLES = Field(examples=["100/minute", "10 per 20 seconds; 100/hour"])
RuleText = Annotated[str, _EXAMPLES, AfterValidator(_check_rule_text)]
RuleItem = Annotated[
    Annotated[RuleText, Tag("<text>")] | Annotated[WrittenRule, Tag("<table>")],
    _forms('give text such as "100/minute", or a table such as {"count": 100, "time": 60}'),
]
WrittenRules = Annotated[
    Annotated[RuleText, Tag("<text>")]
    | Annotated[WrittenRule, Tag("<table>")]
    | Annotated[Some[RuleItem], Tag("<list>")],
    _forms('give text such as "100/minute", a table such as {"count": 100, "time": 60}, or a list of these'),
]
"""One rule or several."""


def rules_of(written: str | WrittenRule | Iterable[str | WrittenRule]) -> tuple[Rule, ...]:
    """The rules in ``written``. Raises :class:`ConfigurationError`."""
    items = [written] if isinstance(written, (str, WrittenRule)) else written
    return rules_from([item.rule if isinstance(item, WrittenRule) else item for item in items])


class WrittenReserve(Written):
    """A part of each count is kept for requests of a priority."""

    parts: dict[Text, Annotated[float, Field(gt=0, lt=1)]] = Field(examples=[{"critical": 0.2}])
    """The part that is kept, by priority, the most important first."""
    priority: ImportPath
    """module:function, which returns the priority of the current request."""

    @property
    def reserve(self) -> Reserve:
        return Reserve(self.parts, imported("priority", self.priority))


class WrittenLimiter(Written):
    """One limiter: the options of ``rate_limiter`` as data."""

    type: Annotated[
        Annotated[Text, Tag("<text>")] | Annotated[Some[Text], Tag("<list>")],
        _forms('give text such as "ip", "user", "user+ip" or "header:X-Api-Key"'),
    ] = Field("default", examples=["ip", "user", "user+ip", "header:X-Api-Key", "module:function"])
    """Who shares the quota: default (everyone), ip, user, header:NAME, module:function, or several together."""
    rules: WrittenRules = Field(default="100/minute")
    """How much in how much time: text, a table, a list of these, or module:function, which is called at each
    request."""
    fallback: WrittenRules | None = None
    """The rules that apply if module:function fails for a subject for which it has not worked yet."""
    key: str | None = Field(None, pattern=f"^{PREFIX_PATTERN.pattern}$")
    """The prefix of its keys, in place of MULTILIMIT_KEY_PREFIX."""
    scope: Text | None = None
    """Limiters of one scope share their quotas. Default: the endpoint."""
    hash_tag: HashTag = "scope"
    """What determines the slot of a key in a cluster."""
    methods: Some[Text] | None = None
    """Request methods it applies to. Default: all, but not OPTIONS that Flask answers without the view."""
    cost: Annotated[
        Annotated[int, Field(ge=0, le=MAX_COUNT), Tag("<number>")] | Annotated[ImportPath, Tag("<text>")],
        _forms(COST_FORMS),
    ] = 1
    """Units that a request takes; or module:function."""
    exempt: tuple[NetworkText, ...] = Field((), strict=False)
    """Networks to which it does not apply."""
    exempt_when: ImportPath | None = None
    """module:function; when it returns true, the limiter does not apply."""
    charge_when: (
        Annotated[
            Annotated[str, Field(pattern=f"^{STATUS_CLASS}$|{IMPORT_PATTERN}"), Tag("<text>")]
            | Annotated[int, Field(ge=100, le=599), Tag("<number>")]
            | Annotated[Some[Status], Tag("<list>")],
            _forms(STATUSES_FORMS),
        ]
        | None
    ) = Field(None, examples=[[401, 403], "4xx"])
    """Statuses of responses that count: for any other, the charge is refunded. Or module:function."""
    settle: (
        Annotated[
            Annotated[Literal[True], Tag("<bool>")] | Annotated[Text, Tag("<text>")],
            _forms(SETTLE_FORMS),
        ]
        | None
    ) = Field(None, examples=["header:X-Tokens", "module:function", True])
    """What the request really cost: a header of the response, module:function, or true if the view says it."""
    settle_header: Literal["remove", "keep"] = "remove"
    """Whether clients see the header of the response that says what it cost."""
    unit: str | None = Field(None, pattern=f"^{NAME_PATTERN}$", examples=["content-bytes", "tokens"])
    """What the rules count, if not requests, for header fields."""
    shadow: bool = False
    """Evaluate and count, but never refuse."""
    on_storage_error: OnStorageError | None = None
    """What to do when the storage does not answer."""
    wait: float = Field(0, ge=0, le=LONGEST_WAIT)
    """Seconds that a request may sleep in its worker instead of being refused."""
    ban: WrittenBan | None = None
    """A subject that is refused repeatedly is refused for a time."""
    reserve: WrittenReserve | None = None
    """A part of each count is kept for requests of a priority."""
    message: str | None = Field(None, max_length=LONGEST_MESSAGE)
    """The message to a refused client."""
    on_rejected: ImportPath | None = None
    """module:function, called with the Decision; its return value is the response."""
    with_defaults: bool = False
    """Let the default limits apply, too."""
    name: str | None = Field(None, pattern=f"^{NAME_PATTERN}$")
    """The name of its rules in header fields."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        """Let ``null`` omit an option, but only if its default is ``null``, too: with ``type``, a limit for each client
        would become one for everybody."""
        if not isinstance(value, Mapping):
            return value
        defaults = {name: field.default for name, field in cls.model_fields.items()}
        return {name: given for name, given in value.items() if given is not None or defaults.get(name) is not None}

    @field_validator("exempt")
    @classmethod
    def _check_exempt(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(network_from(each)) for each in value)

    @field_validator("type", "settle", "charge_when")
    @classmethod
    def _check_text(cls, value: Any, info: ValidationInfo) -> Any:
        for text in (str(part).strip() for part in parts_of_type(value)):
            if info.field_name == "type":
                check_type_text(text, imports=info.context != NO_IMPORTS)
            if info.field_name == "charge_when" or not is_header(text):
                _check_may_import(text, info)
        return value

    @model_validator(mode="after")
    def _check_limiter(self, info: ValidationInfo) -> WrittenLimiter:
        if info.context == PART:
            return self
        if not self.model_fields_set:
            raise ValueError('give at least one option, such as {"rules": "100/minute"}')
        if self.exempt and self.exempt_when is not None:
            raise ValueError("exempt and exempt_when: give only one of them")
        try:
            Declaration.of("", self.options)
        except ConfigurationError as error:
            raise ValueError(str(error).removeprefix('limiter on "": ')) from error
        return self

    @property
    def options(self) -> dict[str, Any]:
        """What :func:`rate_limiter` takes. Raises :class:`ConfigurationError`."""
        options = {name: getattr(self, name) for name in self.model_fields_set if name != "exempt"}
        if "rules" in options and not is_import_path(self.rules):
            options["rules"] = rules_of(self.rules)
        if self.fallback is not None:
            options["fallback"] = rules_of(self.fallback)
        for name in ("rules", *CALLABLES):
            if is_import_path(options.get(name)):
                options[name] = imported(name, options[name])
        if self.ban is not None:
            options["ban"] = self.ban.ban
        if self.reserve is not None:
            options["reserve"] = self.reserve.reserve
        if self.exempt:
            options["exempt_when"] = ExemptNetworks(self.exempt)
        return options


def _check_limit_text(text: str) -> str:
    rules_of(text)
    return text


LimitText = Annotated[str, _EXAMPLES, AfterValidator(_check_limit_text)]
LimitTextOrOff = Annotated[
    str, _EXAMPLES, AfterValidator(lambda text: text if text == OFF else _check_limit_text(text))
]
_REMEDY = 'give text such as "100/minute", a table such as {"type": "ip", "rules": "100/minute"}, or a list of these'
WrittenLimit = Annotated[
    Annotated[LimitText, Tag("<text>")] | Annotated[WrittenLimiter, Tag("<table>")], _forms(_REMEDY)
]
WrittenLimits = Annotated[
    Annotated[LimitText, Tag("<text>")]
    | Annotated[WrittenLimiter, Tag("<table>")]
    | Annotated[Some[WrittenLimit], Tag("<list>")],
    _forms(_REMEDY),
]
"""One limiter or several. Text is a limiter that everyone shares."""
LimitsOfName = Annotated[
    Annotated[LimitTextOrOff, Tag("<text>")]
    | Annotated[WrittenLimiter, Tag("<table>")]
    | Annotated[Some[WrittenLimit], Tag("<list>")],
    _forms(f"{_REMEDY}, or {OFF!r}"),
]


class LimitsFile(Written):
    """The limits of an app: what ``MULTILIMIT_FILE`` names."""

    schema_: str | None = Field(None, alias="$schema")
    """The location of the JSON Schema of this file, for editors."""
    application_limits: WrittenLimits = ()
    """Limits that the whole app shares."""
    default_limits: WrittenLimits = ()
    """Limits of each endpoint for which nothing else is declared."""
    unmatched_limits: WrittenLimits = ()
    """Limits of requests that match no route (404) or no method of it (405)."""
    limits: dict[str, LimitsOfName] = Field(default_factory=dict)
    """Limits by endpoint, blueprint or pattern; "off" does the same as listing the name in ``exempt``."""
    exempt: tuple[Text, ...] = Field((), strict=False)
    """Endpoints, blueprints or patterns to which only the limits of their own decorators apply."""
    allow: tuple[SubjectText, ...] = Field((), strict=False)
    """Networks and subjects that are never limited: "203.0.113.0/24", "user:42"."""
    deny: tuple[SubjectText, ...] = Field((), strict=False)
    """Networks and subjects that are refused before any limit is checked."""


# The JSON Schema of a file


SCHEMA = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The schema (draft 2020-12)."""
    schema = {"$schema": SCHEMA, "$id": "urn:flask-multilimit:limits", **LimitsFile.model_json_schema(by_alias=True)}
    models = {model.__name__: model for model in Written.__subclasses__()}
    _describe(schema, LimitsFile)
    for name, definition in schema["$defs"].items():
        _describe(definition, models[name])
    return schema


def _describe(definition: dict[str, Any], model: type[BaseModel]) -> None:
    """Describe each property by the string below its field. pydantic could do so by itself, but would read the source
    whenever the models are imported."""
    descriptions = _docstrings_of(model)
    for name, field in model.model_fields.items():
        if name in descriptions:
            definition["properties"][field.alias or name]["description"] = descriptions[name]


def _docstrings_of(model: type[BaseModel]) -> dict[str, str]:
    """The string below each field."""
    body = ast.parse(inspect.getsource(model)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            text = getattr(below.value, "value", None)
            if isinstance(text, str):
                found[field.target.id] = inspect.cleandoc(text)
    return found


# Checks of data


M = TypeVar("M", bound=BaseModel)


def limiter_options(where: str, given: object) -> dict[str, Any]:
    """The options of :func:`rate_limiter` from a model, or from a mapping that may mix data with Python objects such as
    a callable or a :class:`Rule`. Raises :class:`ConfigurationError`."""
    if isinstance(given, WrittenLimiter):
        return given.options
    if not isinstance(given, Mapping) or not given:
        raise ConfigurationError(
            f'{where}: {brief(given)} is not a limit; give text such as "100/minute", a dict such as '
            '{"type": "ip", "rules": "100/minute"}, a rate_limiter(...), or a list of these'
        )
    reject_unknown_options(where, (name for name in given if name not in WrittenLimiter.model_fields))
    written = {name: value for name, value in given.items() if _needs_model(name, value)}
    place = f'limiter on "{where}"'
    try:
        read = WrittenLimiter.model_validate(written, context=PART)
        if read.exempt and given.get("exempt_when") is not None:
            raise ConfigurationError("exempt and exempt_when: give only one of them")
        return {**{name: value for name, value in given.items() if name not in written}, **read.options}
    except ValidationError as error:
        raise invalid_data(place, error, WrittenLimiter) from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}: {error}") from error


def _needs_model(name: str, value: object) -> bool:
    """Whether only a model can read the value of an option; :class:`Declaration` takes all others as they are."""
    if name == "exempt" or isinstance(value, Mapping):
        return True
    if name == "rules" and (value is None or is_import_path(value)):
        return True
    if isinstance(value, (list, tuple)):
        return any(isinstance(each, Mapping) for each in value)
    return name in CALLABLES and isinstance(value, str)


def validated(model: type[M], where: str, given: Any, *, imports: bool = True) -> M:
    """``given`` as ``model``; without ``imports``, an import path is a mistake.

    Raises :class:`ConfigurationError`, which says for each mistake ``where`` it is, the path, the value and the remedy.
    """
    try:
        return model.model_validate(given, context=None if imports else NO_IMPORTS)
    except ValidationError as error:
        raise invalid_data(where, error, model) from None


def invalid_data(where: str, error: ValidationError, model: type[BaseModel]) -> InvalidData:
    """All that pydantic found wrong in data for ``model``, in our words."""
    return InvalidData(where, [_mistake(found, model) for found in error.errors(include_url=False)])


def _mistake(found: Any, model: type[BaseModel]) -> Mistake:
    steps = [step for step in found["loc"] if not str(step).startswith("<")]
    path = "".join(map(_path_step, enumerate(steps)))
    if found["type"] == "extra_forbidden":
        return Mistake(path, "", f"is not an option{_hint_for(str(steps[-1]), _model_at(steps[:-1], model))}")
    given = brief(found["input"]) if path and found["type"] != "missing" else ""
    reason = _remedy_for(found, str(steps[-1]) if steps else "")
    if isinstance(reason, Phrase):
        return Mistake(path, given, reason.values["remedy"] if reason.values.get("given") == given else reason)
    return Mistake(path, given, reason.removeprefix(f"{given}: "))


def _remedy_for(found: Any, field: str) -> str:
    if found["type"] == "string_pattern_mismatch":
        pattern = found["ctx"]["pattern"]
        return (
            _FORMS.get(field, _CALLABLE) if IMPORT_PATTERN in pattern else _PATTERNS.get(pattern) or remedy_for(found)
        )
    return remedy_for(found)


_CALLABLE = 'name a callable as "module:function"'
_FORMS = {"cost": COST_FORMS, "charge_when": STATUSES_FORMS}
_PATTERNS = {
    f"^{PREFIX_PATTERN.pattern}$": "1 to 32 printable ASCII characters, no spaces or braces",
    f"^{NAME_PATTERN}$": "1 to 20 characters, a letter and then letters, digits, - and _",
    f"^{NAME}$": "1 to 64 of letters, digits and _.:*/-",
}


def _path_step(numbered: tuple[int, Any]) -> str:
    """One step of a path such as ``limits."api.*"[0].rules``, with its number."""
    number, step = numbered
    if isinstance(step, int):
        return f"[{step}]"
    step = step[:LONGEST_NAME]
    plain = step if re.fullmatch(r"[\w-]+", step) else json.dumps(step, ensure_ascii=False)
    return plain if number == 0 else f".{plain}"


def _model_at(steps: Sequence[Any], model: type[BaseModel]) -> type[BaseModel]:
    """The model of the value at a path in ``model``."""
    fields = [step for step in steps if isinstance(step, str)]
    if fields[:1] == ["limits"]:
        del fields[1:2]  # the name of an endpoint
    return _INNER.get(fields[-1], WrittenLimiter) if fields else model


_INNER: dict[str, type[BaseModel]] = {
    "rules": WrittenRule,
    "ban": WrittenBan,
    "limit": WrittenLimiter,
    "default_limits": WrittenLimiter,
}
"""The models of these fields; all others are of limiters."""
_WORDS: dict[type[BaseModel], str] = {WrittenRule: "a rule", WrittenBan: "a ban", WrittenLimiter: "a limiter"}


def _hint_for(option: str, model: type[BaseModel]) -> str:
    """The end of the error about an ``option`` that ``model`` does not have: where it belongs, or the nearest name."""
    for field, inner in _INNER.items():
        if field in model.model_fields and option in inner.model_fields:
            return f'; it is one of {_WORDS[inner]}: "{field}": {{"{option}": ...}}'
    if model in {WrittenRule, WrittenBan} and option in WrittenLimiter.model_fields:
        return f"; it is one of a limiter: put it beside {'rules' if model is WrittenRule else 'ban'}"
    return nearest(option[:LONGEST_NAME], model.model_fields)


def read_limits(path: Path) -> LimitsFile:
    """The limits in a file, which is TOML or JSON according to its suffix. Raises :class:`ConfigurationError`."""
    return validated(LimitsFile, path.name, _parsed(path))


def _parsed(path: Path) -> Any:
    parsers: dict[str, Callable[[str], Any]] = {".json": parse_json, ".toml": parse_toml}
    parse = parsers.get(path.suffix.lower())
    if parse is None:
        raise ConfigurationError(f"{path}: give a file whose name ends in {' or '.join(parsers)}")
    try:
        if path.stat().st_size > LONGEST_FILE:
            raise ConfigurationError(f"has more than {LONGEST_FILE} bytes")
        text = path.read_text(encoding="utf-8-sig")  # editors on Windows begin it with a byte order mark
        found = parse(text) if text.strip() else {}
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:  # also for bad UTF-8, and for brackets in brackets
        raise ConfigurationError(f"{path}: is not valid {path.suffix[1:].upper()}: {error}") from error
    if found == {}:  # an editor may still be writing it, or was interrupted
        raise ConfigurationError(f"{path}: is empty; write limits into it, or do not name it as a file of limits")
    return found


def parse_toml(text: str) -> Any:
    try:  # here, and not at the top: few apps read a file, and the import would slow the start of all
        tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise ConfigurationError(
            "Python 3.10 cannot read TOML: pip install 'flask-multilimit[toml]', or write JSON"
        ) from None
    return tomllib.loads(text)
