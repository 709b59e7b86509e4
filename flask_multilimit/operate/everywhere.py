"""Finds the quotas of a subject everywhere: at all endpoints, in functions, and in checks that no plan knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..declare.subjects import EVERYONE, LimitType, Subject
from ..engine import ConfigurationError
from ..engine.keys import escape_subject
from ..serve.gate import AppGate
from .listing import prefixes_of, stored_keys, subject_of


def keys_of(gate: AppGate, given: Mapping[str, str]) -> list[str]:
    """The keys in storage that count the ``given`` subjects, found by looking at all keys.

    Raises :class:`ConfigurationError` if no subject is given, and :class:`StorageError`.
    """
    if not given:
        raise ConfigurationError('reset: say whose quotas: "user:42", "ip:203.0.113.7" or "everyone"')
    wanted = {(subject.type, escape_subject(subject.value)) for subject in _subjects(gate, given)}
    return [key for key in all_keys(gate) if subject_of(key) in wanted]


def all_keys(gate: AppGate) -> list[str]:
    """All quotas of the app. Raises :class:`StorageError`."""
    return [stored.key for stored in stored_keys(gate, prefixes_of(gate))]


def _subjects(gate: AppGate, given: Mapping[str, str]) -> Iterator[Subject]:
    """The ``given`` subjects, each by itself and several as one, for the types of plans and of checks."""
    gate.plans.ensure()
    resolve = gate.subjects.given(given)
    for name, type_ in gate.plans.types.items():
        subject = resolve(type_, name)
        if subject is not None and subject != EVERYONE:
            yield subject
    for name, value in given.items():
        known = gate.subjects.here(name, value)(LimitType.DEFAULT, name)
        if known is not None:
            yield known
