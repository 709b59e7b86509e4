"""Parses what limits say as text: types, statuses, import paths. Imports no pydantic models: most apps need none."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pkgutil import resolve_name
from typing import Any, NamedTuple, TypeGuard, cast

from flask import request

from ..engine import ConfigurationError
from ..engine.errors import brief
from ..engine.keys import NAME_PATTERN
from ..engine.text import LONGEST_NAME, LONGEST_NUMBER, Phrase
from .addresses import Networks, network_from
from .subjects import FromText, LimitType, SingleType, address_of

IMPORT_PATH = r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"
IMPORT_PATTERN = f"^{IMPORT_PATH}$"
STATUS_CLASS = "[1-5]xx"
SETTLE_FORMS = 'give "header:X-Tokens", "module:function", or true if the view says it'
TYPES = {name.lower(): type_ for name, type_ in LimitType.__members__.items()}
"""Types by the names that they have in data. Any other text with a colon is an import path."""


class HeaderType(FromText):
    """The subject is the value of a request header; all requests without the header are one subject.

    A client can send any value, so limit by a header that your proxy sets or that your app verifies.
    """

    def __init__(self, header: str) -> None:
        super().__init__(f"header:{header}")
        self.header = header

    def __call__(self) -> str:
        return request.headers.get(self.header, "")


class ChargeWhenStatus(FromText):
    """``charge_when`` by the status of the response: numbers such as 401, and classes such as ``"4xx"``. 200 stands
    for all of a file, too, with another status that the client has chosen: for a 206, and for a 412 with an ``ETag`` or
    ``Last-Modified``, in which Werkzeug sends the whole content. Raises :class:`ConfigurationError` for anything
    else."""

    def __init__(self, given: object) -> None:
        several = (given,) if isinstance(given, (int, str, bytes)) or not isinstance(given, Iterable) else tuple(given)
        if not several or not all(map(_is_status, several)):
            raise ConfigurationError(
                f'charge_when={brief(given)}: give statuses such as [401, 403] or "4xx", or a callable with the '
                "response"
            )
        super().__init__(f"charge_when={list(several)}")
        self._statuses = set(several)

    def __call__(self, response: Any) -> bool:
        status: int = response.status_code
        sends_all = status == 206 or (status == 412 and any(map(response.headers.get, ("ETag", "Last-Modified"))))
        return self._counts(status) or (sends_all and self._counts(200))

    def _counts(self, status: int) -> bool:
        return status in self._statuses or f"{status // 100}xx" in self._statuses


class SettleByHeader(FromText):
    """``settle`` by a field of the response, which says what the request really cost."""

    def __init__(self, header: str) -> None:
        super().__init__(f"header:{header}")
        self.header = header

    def __call__(self, response: Any) -> int | str | None:
        units: str | None = response.headers.get(self.header)
        is_number = units is not None and len(units) <= LONGEST_NUMBER and units.isascii() and units.isdecimal()
        return int(units or 0) if is_number else units


def settle_from(given: object) -> object:
    """What ``settle`` means if it is text; a callable and true as they are. Raises :class:`ConfigurationError`."""
    if given is True or callable(given):
        return given
    if isinstance(given, str) and is_header(given):
        return SettleByHeader(given.partition(":")[2])
    if isinstance(given, str) and is_import_path(given):
        return imported("settle", given)
    raise ConfigurationError(f"settle={brief(given)}: {SETTLE_FORMS}, or a callable with the response")


def _is_status(given: object) -> bool:
    if isinstance(given, str):
        return re.fullmatch(STATUS_CLASS, given) is not None
    return isinstance(given, int) and not isinstance(given, bool) and 100 <= given <= 599


class ExemptNetworks(FromText):
    """``exempt_when`` by the address of the client."""

    def __init__(self, networks: Sequence[str]) -> None:
        super().__init__(f"exempt={list(networks)}")
        self._networks: Networks[str] = Networks((network_from(each), each) for each in networks)

    def __call__(self) -> bool:
        return self._networks.find(address_of(request)) is not None


def imported(option: str, text: str) -> Callable[..., Any]:
    """The callable that ``module:function`` names, the value of ``option``. Raises :class:`ConfigurationError`."""
    try:
        found: Any = resolve_name(text)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{option}={brief(text)}: cannot be imported: {error}") from error
    if not callable(found):
        raise ConfigurationError(f"{option}={brief(text)}: is not a callable")
    return cast("Callable[..., Any]", found)


def is_import_path(value: object) -> bool:
    return isinstance(value, str) and value not in TYPES and re.fullmatch(IMPORT_PATH, value) is not None


def parts_of_type(type_: object) -> list[object]:
    """The parts of a type; text may join several: ``"user+ip"``."""
    parts = type_ if isinstance(type_, (tuple, list)) else (type_,)
    return [single for part in parts for single in (part.split("+") if _is_text(part) else [part])]


def type_from(type_: object) -> tuple[Any, str | None]:
    """A type and a default name for its limiter. ``type_`` is a type already, or text such as ``ip``, ``user+ip``,
    ``header:X-Api-Key`` or ``module:function``, where the header or the function gives the name. Raises
    :class:`ConfigurationError`."""
    parts = parts_of_type(type_)
    found = tuple(_type_from_text(part.strip()) if _is_text(part) else part for part in parts)
    own = [part for part in parts if _is_text(part) and part.strip().lower() not in TYPES]
    name = own[0].strip().rpartition(":")[2].rpartition(".")[2].lower() if len(own) == 1 else ""
    single = len(found) == 1 and (not isinstance(type_, (tuple, list)) or _is_text(parts[0]))
    return found[0] if single else found, name if re.fullmatch(NAME_PATTERN, name) else None


def _is_text(part: object) -> TypeGuard[str]:
    return isinstance(part, str) and not isinstance(part, LimitType)


def check_type_text(text: object, *, imports: bool = True) -> None:
    """Raise ``ValueError`` unless ``text`` names a type. ``imports``: whether it may be a callable."""
    text = str(text).strip()
    if text.lower() not in TYPES and not is_header(text) and not is_import_path(text):
        known = ", ".join((*TYPES, "header:NAME", *["module:function"] * imports))
        unknown = f"{brief(text)}{nearest(text[:LONGEST_NAME], TYPES)}"
        raise ValueError(
            Phrase("unknown type {name}; use {choices}, or several joined by +", name=unknown, choices=known)
        )


def _type_from_text(text: str) -> SingleType:
    try:
        check_type_text(text)
    except ValueError as error:
        raise ConfigurationError(f"type={brief(text)}: {error}") from None
    if text.lower() in TYPES:
        return TYPES[text.lower()]
    return HeaderType(text.partition(":")[2]) if is_header(text) else imported("type", text)


def is_header(text: str) -> bool:
    """Whether it is a type such as ``header:X-Api-Key``."""
    return re.fullmatch(r"header:[A-Za-z0-9!#$%&'*.^_`|~-]{1,64}", text) is not None


def nearest(value: str, names: Iterable[str]) -> str:
    """The end of a sentence: which of ``names`` may be meant, or nothing."""
    match = difflib.get_close_matches(value, list(names), n=1)
    return f"; did you mean {match[0]!r}?" if match else ""


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


MOST_NAMED = 20
"""The most mistakes that the text of an error names."""


class InvalidData(ConfigurationError):  # noqa: N818 - the name says enough
    """A :class:`ConfigurationError` about data. Its mistakes can be shown beside the fields of a form."""

    def __init__(self, where: str, mistakes: Sequence[Mistake]) -> None:
        shown = [f"{where}: {each}" if where else str(each) for each in mistakes[:MOST_NAMED]]
        more = [f"{len(mistakes) - MOST_NAMED} more mistakes"] if len(mistakes) > MOST_NAMED else []
        super().__init__("; ".join([*shown, *more]))
        self.mistakes: tuple[Mistake, ...] = tuple(mistakes)
        """All that is wrong."""


def parse_json(text: str | bytes) -> Any:
    """As ``json.loads``. Raises :class:`ConfigurationError` if a name has two values, one of which would be lost."""
    return json.loads(text, object_pairs_hook=_without_repetition)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ConfigurationError(f"{brief(name)} is given twice; join them, or keep one")
        found[name] = value
    return found


OFF = "off"
"""Written in place of limits: there are none."""
