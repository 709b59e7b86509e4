"""What limits written as data have in place of a callable."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from flask import request

from ..engine import ConfigurationError
from .networks import Networks, network_from
from .subjects import LimitType

IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
IMPORT_PATTERN = f"^{IMPORT_PATH.pattern}$"
TYPES = {name.lower(): type_ for name, type_ in LimitType.__members__.items()}
"""Types by the names that they have in data. Any other text with a colon is an import path."""


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
