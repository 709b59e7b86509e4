"""The places where a request is checked: before the view, and at a decorated function or a ``with`` statement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from .declared import MetaLimit, RuntimeLimit
from .registry import Applicable, Destination, Resolved
from .requests import Asked, Meta

KeyFunction = Callable[[], str]
Keys = Mapping[KeyFunction, str]
"""The key that each ``key_func`` returned for a request."""


@dataclass(eq=False, slots=True)
class Stop:
    """One such place, for all requests to it: the limits that apply there, as far as known before the request."""

    destination: Destination
    applicable: Applicable
    version: int
    """The version of the registry when this was made."""
    key_prefix: str
    meta_limits: tuple[MetaLimit, ...]
    """The meta limits of the Limiter."""
    spared: bool
    """Whether meta limits refuse nobody here."""
    is_before: bool = False
    """Whether it is before the view."""
    owner: str = ""
    """The function or ``with`` statement inside the view."""
    keyed_by: tuple[KeyFunction, ...] | None = field(init=False)
    """The key functions, if nothing but their keys depends on the request; otherwise ``None``."""

    def __post_init__(self) -> None:
        self.keyed_by = self._keyed_by()

    @property
    def is_free(self) -> bool:
        """Whether nothing is limited here."""
        fixed = self.applicable.fixed
        return fixed is not None and not fixed.limits and not self.meta_limits

    def asked(self, resolved: Resolved, limits: Iterable[RuntimeLimit], keys: Keys) -> tuple[list[Asked], list[Meta]]:
        """The ``limits`` that apply to a request, and their meta limits."""
        asked: list[Asked] = []
        metas = [Meta(each, None) for each in self._metas(self.meta_limits, keys)]
        for limit in limits:
            watched: tuple[int, ...] = ()
            if self._applies(limit):
                watched = (len(asked),)
                owner = self._owner_of(limit) if limit not in resolved.once else ""
                asked.append(self._ask(limit, keys, owner))
            metas += [Meta(each, watched) for each in self._metas(limit.meta_limits, keys)]
        return asked, metas

    def _applies(self, limit: RuntimeLimit) -> bool:
        if limit.methods is not None and self.destination.method.lower() not in limit.methods:
            return False
        return limit.exempt_when is None or not limit.exempt_when()

    def _ask(self, limit: RuntimeLimit, keys: Keys, owner: str) -> Asked:
        scope = limit.scope_for(self.destination.endpoint, self.destination.method)
        key = keys[limit.key_func]
        return Asked(limit, (self.key_prefix, key, scope) if self.key_prefix else (key, scope), limit.units(), owner)

    def _metas(self, declared: Iterable[MetaLimit], keys: Keys) -> Iterator[Asked]:
        for limit in chain.from_iterable(each.limits() for each in declared):
            if limit.exempt_when is None or not limit.exempt_when():
                scope = limit.scope_for(self.destination.endpoint, self.destination.method)
                yield Asked(limit, (keys[limit.key_func], scope), limit.units())

    def _owner_of(self, limit: RuntimeLimit) -> str:
        """The owner of ``limit``. Only the counts of several ``with`` statements in one function distinguish them
        across restarts."""
        if limit.shared:
            return ""
        return f"{self.owner}: {limit.limit.amount}" if " " in self.owner else self.owner

    def _keyed_by(self) -> tuple[KeyFunction, ...] | None:
        fixed = self.applicable.fixed
        if fixed is None:
            return None
        declared = (*self.meta_limits, *chain.from_iterable(each.meta_limits for each in fixed.limits))
        if any(each.is_dynamic for each in declared):
            return None
        limits = (*chain.from_iterable(each.limits() for each in declared), *fixed.limits)
        if any(each.depends_on_request for each in limits):
            return None
        return tuple(dict.fromkeys(each.key_func for each in limits))
