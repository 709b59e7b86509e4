"""What limits written as data have in place of a callable."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from flask import request

from ..engine import ConfigurationError
from ..engine.errors import brief
from .networks import Networks, network_from
from .subjects import LimitType

IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
IMPORT_PATTERN = f"^{IMPORT_PATH.pattern}$"
STATUS_CLASS = "[1-5]xx"
TYPES = {name.lower(): type_ for name, type_ in LimitType.__members__.items()}
"""Types by the names that they have in data. Any other text with a colon is an import path."""


class _Callable:
    """Equal to another one that does the same."""

    def __init__(self, name: str) -> None:
        self.__qualname__ = name

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__qualname__ == getattr(other, "__qualname__", None)

    def __hash__(self) -> int:
        return hash(self.__qualname__)


class HeaderType(_Callable):
    """The subject is the value of a request header; all requests without the header are one subject.

    A client can send any value, so limit by a header that your proxy sets or that your app verifies.
    """

    def __init__(self, header: str) -> None:
        super().__init__(f"header:{header}")
        self.header = header

    def __call__(self) -> str:
        return request.headers.get(self.header, "")


class ChargeWhenStatus(_Callable):
    """``charge_when`` by the status of the response: numbers such as 401, and classes such as ``"4xx"``. Raises
    :class:`ConfigurationError` for anything else."""

    def __init__(self, given: object) -> None:
        several = (given,) if isinstance(given, (int, str)) or not isinstance(given, Iterable) else tuple(given)
        if not several or not all(map(_is_status, several)):
            raise ConfigurationError(
                f'charge_when={brief(given)}: give statuses such as [401, 403] or "4xx", or a callable with the '
                "response"
            )
        super().__init__(f"charge_when={list(several)}")
        self._codes = frozenset(status for status in several if isinstance(status, int))
        self._classes = frozenset(int(status[0]) for status in several if isinstance(status, str))

    def __call__(self, response: Any) -> bool:
        status: int = response.status_code
        return status in self._codes or status // 100 in self._classes


def _is_status(given: object) -> bool:
    if isinstance(given, str):
        return re.fullmatch(STATUS_CLASS, given) is not None
    return isinstance(given, int) and not isinstance(given, bool) and 100 <= given <= 599


class ExemptNetworks(_Callable):
    """``exempt_when`` by the address of the client."""

    def __init__(self, networks: Sequence[str]) -> None:
        super().__init__(f"exempt={list(networks)}")
        self._networks: Networks[str] = Networks((network_from(each), each) for each in networks)

    def __call__(self) -> bool:
        return self._networks.find(request.remote_addr or "") is not None


def imported(text: str) -> Callable[..., Any]:
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


def is_import_path(value: object) -> bool:
    return isinstance(value, str) and value not in TYPES and IMPORT_PATH.fullmatch(value) is not None
