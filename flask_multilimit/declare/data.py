"""Limits written as data: in settings, in a file, in overrides, in simulations. One model serves all of them.

It has all options of :func:`rate_limiter`. A callable is given by its import path.
"""

from __future__ import annotations

import difflib
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, cast

from flask import request
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ..engine import Ban, ConfigurationError, Rule
from ..engine.algorithms import ALGORITHMS
from ..engine.bans import MOST_FACTOR, MOST_STRIKES
from ..engine.errors import brief
from ..engine.hits import OnStorageError
from ..engine.keys import NAME_PATTERN, PREFIX_PATTERN, HashTag
from ..engine.rules import (
    CONCURRENCY,
    LONGEST,
    LONGEST_TIMEOUT,
    MAX_COUNT,
    NAME,
    SHORTEST,
    SHORTEST_TIMEOUT,
    rule_of,
)
from .file import OFF, FileLimits
from .limiter import LONGEST_WAIT, OPTIONS, Declaration, reject_unknown_options
from .networks import Networks, network_from
from .subjects import LimitType, SingleType, SubjectType

NO_IMPORTS = {"imports": False}
"""The validation context of data that must not import modules, because importing a module runs it."""

_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_HEADER = re.compile(r"header:([A-Za-z0-9!#$%&'*.^_`|~-]{1,64})")
_IMPORT_PATTERN = f"^{_IMPORT_PATH.pattern}$"
_CALLABLES = ("cost", "exempt_when", "charge_when", "on_rejected", "priority")
"""Options for which text names a callable."""
_COST = 'give a whole number, 0 or more, or "module:function"'
_STATUSES = 'give a list of statuses such as [401, 403] or ["4xx"], or "module:function"'
_TYPES = {name.lower(): type_ for name, type_ in LimitType.__members__.items()}

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class Mistake(NamedTuple):
    """What is wrong with one field of the data."""

    place: str
    """The path of the field: ``limit.rules``. Empty: the mistake is about the whole."""
    value: str
    """What was given, shortened. Empty: nothing was given, or it must not be shown."""
    remedy: str
    """What is wrong with it, and what to give."""

    def __str__(self) -> str:
        shown = f"{self.place}={self.value}" if self.value else self.place
        return f"{shown}: {self.remedy}" if shown else self.remedy


class InvalidData(ConfigurationError):  # noqa: N818 - the name says enough
    """A :class:`ConfigurationError` about data. Its mistakes can be shown beside the fields of a form."""

    def __init__(self, where: str, mistakes: Sequence[Mistake]) -> None:
        super().__init__("; ".join(f"{where}: {each}" if where else str(each) for each in mistakes))
        self.mistakes: tuple[Mistake, ...] = tuple(mistakes)


# Values in place of a callable


class HeaderType:
    """The subject is the value of a request header; all requests without the header are one subject.

    A client can send any value, so limit by a header that your proxy sets or that your app verifies.
    """

    def __init__(self, header: str) -> None:
        self.header = header
        self.__qualname__ = f"header:{header}"

    def __call__(self) -> str:
        return request.headers.get(self.header, "")


class ChargeWhenStatus:
    """``charge_when`` by the status of the response: numbers such as 401, and classes such as ``"4xx"``."""

    def __init__(self, statuses: Iterable[int | str]) -> None:
        statuses = tuple(statuses)
        self._codes = frozenset(status for status in statuses if isinstance(status, int))
        self._classes = frozenset(int(status[0]) for status in statuses if isinstance(status, str))
        self.__qualname__ = f"charge_when={list(statuses)}"

    def __call__(self, response: Any) -> bool:
        status: int = response.status_code
        return status in self._codes or status // 100 in self._classes


class ExemptNetworks:
    """``exempt_when`` by the address of the client."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks: Networks[str] = Networks((network_from(each), each) for each in networks)
        self.__qualname__ = f"exempt={list(networks)}"

    def __call__(self) -> bool:
        return self._networks.find(request.remote_addr or "") is not None


def _imported(text: str) -> Callable[..., Any]:
    """The callable that ``module:function`` names. Raises :class:`ConfigurationError`."""
    module, _, names = text.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{text!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ConfigurationError(f"{text!r} is not a callable")
    return cast("Callable[..., Any]", found)


def _is_import_path(value: object) -> bool:
    return isinstance(value, str) and value not in _TYPES and _IMPORT_PATH.fullmatch(value) is not None


# Forms: text, a table, a list


def _form(value: Any) -> str | None:
    if isinstance(value, str):
        return "<text>"
    if isinstance(value, int) and not isinstance(value, bool):
        return "<number>"
    if isinstance(value, (Mapping, BaseModel)):
        return "<table>"
    return "<list>" if isinstance(value, (list, tuple)) else None


def _forms(remedy: str) -> Discriminator:
    """Chooses one of several models by the form of a value, so that errors are about that model only."""
    return Discriminator(_form, custom_error_type="form", custom_error_message=remedy)


def _not_empty(value: tuple[T, ...]) -> tuple[T, ...]:
    if not value:
        raise ValueError("give at least one")
    return value


# The checks of a whole value run after those of its parts, and only if these found nothing wrong.
Some = Annotated[tuple[T, ...], Field(strict=False, json_schema_extra={"minItems": 1}), AfterValidator(_not_empty)]
Text = Annotated[str, Field(min_length=1)]
ImportPath = Annotated[str, Field(pattern=_IMPORT_PATTERN)]
Status = Annotated[
    Annotated[int, Field(ge=100, le=599), Tag("<number>")] | Annotated[str, Field(pattern="^[1-5]xx$"), Tag("<text>")],
    _forms('give a number such as 401, or a class such as "4xx"'),
]
NetworkText = Annotated[str, Field(examples=["203.0.113.0/24", "2001:db8::/32"])]


class Written(BaseModel):
    """The base of all models here: immutable, strict, and an unknown option is an error. Each is built when it is first
    used, and most apps use none."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


_WITH_TIMEOUT: dict[str, Any] = {
    "if": {"required": ["timeout"], "properties": {"timeout": {"type": "number"}}},
    "then": {"properties": {"time": False, "algorithm": {"const": CONCURRENCY}}},
}
"""The JSON Schema of a rule with a timeout."""


class WrittenRule(Written):
    """At most ``count`` units in any ``time`` seconds; with a ``timeout``, at most ``count`` at once."""

    model_config: ClassVar[ConfigDict] = ConfigDict(json_schema_extra=_WITH_TIMEOUT)

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
    name: str | None = Field(None, pattern=f"^{NAME}$")
    """Its name in header fields and errors."""

    @property
    def given(self) -> dict[str, Any]:
        """The fields of the rule that are given."""
        given = self.model_dump(exclude_unset=True)
        timeout = given.pop("timeout", None)
        return given if timeout is None else {**given, "time": timeout, "algorithm": CONCURRENCY}

    @property
    def rule(self) -> Rule:
        return rule_of(self.given)

    @model_validator(mode="after")
    def _check_rule(self) -> WrittenRule:
        if self.timeout is not None:
            self._check_timeout()
        self.rule  # noqa: B018 - raises if anything is wrong in it
        return self

    def _check_timeout(self) -> None:
        """Reject what contradicts it: a timeout alone says that the rule is about what runs at once."""
        if "time" in self.model_fields_set:
            raise ValueError(
                "time and timeout: give one of them: time for a rate, or timeout for a limit of what runs at once"
            )
        if "algorithm" in self.model_fields_set and self.algorithm != CONCURRENCY:
            raise ValueError(f"timeout is for what runs at once, not for {self.algorithm}; leave one of them out")


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

    @model_validator(mode="after")
    def _check_ban(self) -> WrittenBan:
        try:
            self.ban  # noqa: B018 - raises if anything is wrong in it
        except ConfigurationError as error:
            raise ValueError(str(error).partition("): ")[2]) from error
        return self


def _check_rule_text(text: str) -> str:
    if not _IMPORT_PATH.fullmatch(text):
        rules_of(text)
    return text


RuleText = Annotated[
    str, Field(examples=["100/minute", "10 per 20 seconds; 100/hour"]), AfterValidator(_check_rule_text)
]
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
    found: list[Rule] = []
    for item in items:
        if isinstance(item, WrittenRule):
            found.append(item.rule)
        else:
            found += map(Rule.parse, re.split("[;,]", item))
    return tuple(found)


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
    key: str | None = Field(None, pattern=f"^{PREFIX_PATTERN.pattern}$")
    """The prefix of its keys, in place of MULTILIMIT_KEY_PREFIX."""
    scope: Text | None = None
    """Limiters of one scope share their quotas. Default: the endpoint."""
    hash_tag: HashTag = "scope"
    """What determines the slot of a key in a cluster."""
    methods: Some[Text] | None = None
    """Request methods it applies to. Default: all but OPTIONS."""
    cost: Annotated[
        Annotated[int, Field(ge=0, le=MAX_COUNT), Tag("<number>")] | Annotated[ImportPath, Tag("<text>")],
        _forms(_COST),
    ] = 1
    """Units that a request takes; or module:function."""
    exempt: tuple[NetworkText, ...] = Field((), strict=False)
    """Networks to which it does not apply."""
    exempt_when: ImportPath | None = None
    """module:function; when it returns true, the limiter does not apply."""
    charge_when: (
        Annotated[
            Annotated[ImportPath, Tag("<text>")] | Annotated[Some[Status], Tag("<list>")],
            _forms(_STATUSES),
        ]
        | None
    ) = Field(None, examples=[[401, 403], ["4xx"]])
    """Statuses of responses that count: for any other, the charge is refunded. Or module:function."""
    shadow: bool = False
    """Evaluate and count, but never refuse."""
    on_storage_error: OnStorageError | None = None
    """What to do when the storage does not answer."""
    wait: float = Field(0, ge=0, le=LONGEST_WAIT)
    """Seconds that a request may sleep in its worker instead of being refused."""
    ban: WrittenBan | None = None
    """A subject that is refused repeatedly is refused for a time."""
    reserve: dict[Text, Annotated[float, Field(gt=0, lt=1)]] | None = Field(None, examples=[{"critical": 0.2}])
    """The part of each count that is kept for requests of a priority."""
    priority: ImportPath | None = None
    """module:function, which returns the priority of the current request; used with reserve."""
    message: str | None = None
    """The message to a refused client."""
    on_rejected: ImportPath | None = None
    """module:function, called with the Decision; its return value is the response."""
    with_defaults: bool = False
    """Let the default limits apply, too."""
    name: str | None = Field(None, pattern=f"^{NAME_PATTERN}$")
    """The name of its rules in header fields."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nothing(cls, value: Any) -> Any:
        """``null`` omits an option, unless its default has a meaning: a limit for each client would become one for
        everybody."""
        if not isinstance(value, Mapping):
            return value
        by_default = {name: field.default for name, field in cls.model_fields.items()}
        return {name: given for name, given in value.items() if given is not None or by_default.get(name) is not None}

    @field_validator("exempt")
    @classmethod
    def _check_exempt(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(network_from(each)) for each in value)

    @field_validator("type", "rules", *_CALLABLES)
    @classmethod
    def _check_imports(cls, value: Any, info: ValidationInfo) -> Any:
        if info.context and not info.context.get("imports", True):
            for part in value if isinstance(value, tuple) else (value,):
                if _is_import_path(part) and not _HEADER.fullmatch(part):
                    raise ValueError("names a callable, which only settings and files can; declare it there")
        return value

    @field_validator("type")
    @classmethod
    def _check_type(cls, value: Any) -> Any:
        for part in _parts_of(value):
            if part.lower() not in _TYPES and not _HEADER.fullmatch(part) and not _is_import_path(part):
                known = f"{', '.join(_TYPES)}, header:NAME, module:function"
                raise ValueError(f"unknown type {part!r}{_nearest(part, _TYPES)}; use {known}, or several joined by +")
        return value

    @model_validator(mode="after")
    def _check_limiter(self) -> WrittenLimiter:
        if self.exempt and self.exempt_when is not None:
            raise ValueError("exempt and exempt_when: give one of them")
        try:
            Declaration.of("", self.options)
        except ConfigurationError as error:
            raise ValueError(str(error).removeprefix('limiter on "": ')) from error
        return self

    @property
    def options(self) -> dict[str, Any]:
        """What :func:`rate_limiter` takes. Raises :class:`ConfigurationError`."""
        options = {name: getattr(self, name) for name in self.model_fields_set if name != "exempt"}
        if "type" in options:
            options["type"] = type_of(self.type)
        if "rules" in options:
            options["rules"] = _imported(str(self.rules)) if _is_import_path(self.rules) else rules_of(self.rules)
        for name in _CALLABLES:
            if _is_import_path(options.get(name)):
                options[name] = _imported(options[name])
        if self.ban is not None:
            options["ban"] = self.ban.ban
        if self.exempt:
            options["exempt_when"] = ExemptNetworks(self.exempt)
        if isinstance(self.charge_when, tuple):
            options["charge_when"] = ChargeWhenStatus(self.charge_when)
        if self.name is None and (own := _name_for(self.type)):
            options["name"] = own
        return options


def _parts_of(type_: str | tuple[str, ...]) -> list[str]:
    texts = [type_] if isinstance(type_, str) else type_
    return [part.strip() for text in texts for part in text.split("+")]


def type_of(written: str | tuple[str, ...]) -> SubjectType:
    """The type that ``written`` names, such as ``ip``, ``user+ip``, ``header:X-Api-Key`` or ``module:function``."""
    found = tuple(_single_type(part) for part in _parts_of(written))
    return found[0] if len(found) == 1 else found


def _single_type(text: str) -> SingleType:
    if text.lower() in _TYPES:
        return _TYPES[text.lower()]
    if header := _HEADER.fullmatch(text):
        return HeaderType(header[1])
    return _imported(text)


def _name_for(type_: str | tuple[str, ...]) -> str | None:
    """The default name of a limiter whose type needs one: that of the header or the function."""
    own = [part for part in _parts_of(type_) if part.lower() not in _TYPES]
    if len(own) != 1:
        return None
    name = own[0].rpartition(":")[2].rpartition(".")[2].lower()
    return name if re.fullmatch(NAME_PATTERN, name) else None


def _check_limit_text(text: str) -> str:
    rules_of(text)
    return text


def _check_limit_text_or_off(text: str) -> str:
    return text if text == OFF else _check_limit_text(text)


_EXAMPLES = Field(examples=["100/minute", "10 per 20 seconds; 100/hour"])
LimitText = Annotated[str, _EXAMPLES, AfterValidator(_check_limit_text)]
LimitTextOrOff = Annotated[str, _EXAMPLES, AfterValidator(_check_limit_text_or_off)]
_REMEDY = 'give text such as "100/minute", a table such as {"type": "ip", "rules": "100/minute"}, or a list of these'
WrittenLimit = Annotated[
    Annotated[LimitText, Tag("<text>")] | Annotated[WrittenLimiter, Tag("<table>")], _forms(_REMEDY)
]
WrittenLimits = Annotated[
    Annotated[LimitText, Tag("<text>")]
    | Annotated[WrittenLimiter, Tag("<table>")]
    | Annotated[tuple[WrittenLimit, ...], Field(strict=False), Tag("<list>")],
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
    allow: tuple[Text, ...] = Field((), strict=False)
    """Networks and subjects that are never limited: "203.0.113.0/24", "user:42"."""
    deny: tuple[Text, ...] = Field((), strict=False)
    """Networks and subjects that are refused before any limit is checked."""


def limiter_options(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of :func:`rate_limiter`, from a mapping in which some values are written as data, and others are
    Python objects, such as a callable or a :class:`Rule`. Raises :class:`ConfigurationError`."""
    objects = {name: value for name, value in given.items() if _has_object(value)}
    written = {name: value for name, value in given.items() if name not in objects}
    reject_unknown_options(where, (name for name in given if name not in WrittenLimiter.model_fields))
    try:
        options = validated(WrittenLimiter, f'limiter on "{where}"', written).options
    except ConfigurationError:
        Declaration.of(where, _same_in_python(written))  # raises the same error as a decorator
        raise
    return {**options, **objects}


def _same_in_python(written: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are written the same way in data and in Python."""
    alike = set(OPTIONS) - {"type"} | ({"rules"} if not isinstance(written.get("rules"), Mapping) else set())
    return {
        name: value
        for name, value in written.items()
        if name in alike and not _holds_data(value) and not (name in _CALLABLES and isinstance(value, str))
    }


def _holds_data(value: object) -> bool:
    if _is_import_path(value) or isinstance(value, Mapping):
        return True
    return isinstance(value, (list, tuple)) and any(isinstance(each, (Mapping, int)) for each in value)


def _has_object(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_object, value))
    if isinstance(value, Mapping):
        return any(map(_has_object, value.values()))
    return not isinstance(value, (str, int, float, bool, type(None))) or isinstance(value, LimitType)


def validated(model: type[M], where: str, given: Any, *, imports: bool = True) -> M:
    """``given`` as ``model``; without ``imports``, an import path is a mistake.

    Raises :class:`ConfigurationError`, which says for each mistake ``where`` it is, the path, the value and the remedy.
    """
    try:
        return model.model_validate(given, context=None if imports else NO_IMPORTS)
    except ValidationError as error:
        found = error.errors(include_url=False)
        mistakes = tuple(_mistake(each, model) for each in found)
        raise InvalidData(where, mistakes) from None


def read_limits(path: Path) -> FileLimits:
    """The limits in a file, which is TOML or JSON according to its suffix. Raises :class:`ConfigurationError`."""
    return file_limits(path.name, _parsed(path))


def file_limits(where: str, given: Any) -> FileLimits:
    """The limits in ``given``, which has the form of a file. Raises :class:`ConfigurationError`."""
    read = validated(LimitsFile, where, given)
    return FileLimits(*(getattr(read, name) for name in FileLimits._fields))


def _parsed(path: Path) -> Any:
    parsers: dict[str, Callable[[str], Any]] = {".json": json.loads, ".toml": parse_toml}
    parse = parsers.get(path.suffix.lower())
    if parse is None:
        raise ConfigurationError(f"{path}: give a file whose name ends in {' or '.join(parsers)}")
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # raised by both parsers and for bad UTF-8
        raise ConfigurationError(f"{path}: is not valid {path.suffix[1:].upper()}: {error}") from error


def parse_toml(text: str) -> Any:
    try:  # here, and not at the top: few apps read a file, and the import would slow the start of all
        tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise ConfigurationError(
            "Python 3.10 cannot read TOML: pip install 'flask-multilimit[toml]', or write JSON"
        ) from None
    return tomllib.loads(text)


def _mistake(found: Any, model: type[BaseModel]) -> Mistake:
    steps = [step for step in found["loc"] if not str(step).startswith("<")]
    path = "".join(map(_step, enumerate(steps)))
    if found["type"] == "extra_forbidden":
        return Mistake(path, "", f"is not an option{_belonging(str(steps[-1]), _model_at(steps[:-1], model))}")
    reason = _remedy_for(found, str(steps[-1]) if steps else "")
    reason = reason if reason[1:2].isupper() else reason[:1].lower() + reason[1:]
    return Mistake(path, brief(found["input"]) if path else "", reason)


def _remedy_for(found: Any, field: str) -> str:
    told = str(found["msg"]).removeprefix("Value error, ")
    if found["type"] == "string_pattern_mismatch":
        pattern = found["ctx"]["pattern"]
        return _FORMS.get(field, _CALLABLE) if pattern == _IMPORT_PATTERN else _PATTERNS.get(pattern, told)
    return _REMEDIES.get(found["type"], told)


_REMEDIES = {
    "tuple_type": "give a list",
    "missing": "is missing; give it",
    "model_type": "give a table",
    "dict_type": "give a table",
    "string_type": "give text",
    "int_type": "give a whole number",
    "float_type": "give a number",
    "bool_type": "give true or false",
}
_CALLABLE = 'name a callable as "module:function"'
_FORMS = {"cost": _COST, "charge_when": _STATUSES}
_PATTERNS = {
    f"^{PREFIX_PATTERN.pattern}$": "1 to 32 printable ASCII characters, no blanks, no braces",
    f"^{NAME_PATTERN}$": "1 to 20 characters, a letter and then letters, digits, - and _",
    f"^{NAME}$": "1 to 64 of letters, digits and _.:*/-",
}


def _step(numbered: tuple[int, Any]) -> str:
    """One step of a path as TOML and Python write it: ``limits."api.*"[0].rules``."""
    number, step = numbered
    if isinstance(step, int):
        return f"[{step}]"
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
"""The models of these fields; those of all others are limiters."""
_WORDS: dict[type[BaseModel], str] = {WrittenRule: "a rule", WrittenBan: "a ban", WrittenLimiter: "a limiter"}


def _belonging(option: str, model: type[BaseModel]) -> str:
    """Where ``option``, which ``model`` does not have, belongs, or which option of ``model`` may be meant."""
    for field, inner in _INNER.items():
        if field in model.model_fields and option in inner.model_fields:
            return f'; it is one of {_WORDS[inner]}: "{field}": {{"{option}": ...}}'
    if model in {WrittenRule, WrittenBan} and option in WrittenLimiter.model_fields:
        return f"; it is one of a limiter: put it beside {'rules' if model is WrittenRule else 'ban'}"
    return _nearest(option, model.model_fields)


def _nearest(value: str, names: Iterable[str]) -> str:
    match = difflib.get_close_matches(value, list(names), n=1)
    return f"; did you mean {match[0]!r}?" if match else ""
