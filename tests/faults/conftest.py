"""The server of the fault suite, and limiters that use it directly or through a proxy."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flask_multilimit.engine import GuardedStorage, Health, Limiter, storage_from_uri


@pytest.fixture
def changes() -> list[Health]:
    """The changes of health that open guards report."""
    return []


@pytest.fixture
def open_limiter() -> Iterator[Callable[..., Limiter]]:
    """Opens limiters without layers."""
    opened: list[Limiter] = []

    def open_limiter(uri: str, *, timeout: float = 10) -> Limiter:
        opened.append(Limiter(storage_from_uri(uri, timeout=timeout)))
        return opened[-1]

    yield open_limiter
    for limiter in opened:
        limiter.close()


@pytest.fixture
def open_guarded(changes: list[Health]) -> Iterator[Callable[..., Limiter]]:
    opened: list[Limiter] = []

    def open_guarded(uri: str, *, timeout: float = 0.3, **options: Any) -> Limiter:
        storage = storage_from_uri(uri, timeout=timeout)
        guard = GuardedStorage(storage, on_change=changes.append, **{"workers": 1, **options})
        opened.append(Limiter(guard))
        return opened[-1]

    yield open_guarded
    for limiter in opened:
        limiter.close()
