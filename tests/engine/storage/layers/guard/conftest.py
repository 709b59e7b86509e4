"""Workers, and one whose breaker is half open."""

from collections.abc import Callable, Iterator

import pytest

from engine.storage.layers.guard.workers import Workers
from flask_multilimit.engine.hits import OnStorageError
from support.bench import hits


@pytest.fixture
def make() -> Iterator[Callable[..., Workers]]:
    made: list[Workers] = []

    def make(many: int = 1, on_error: OnStorageError = "local", *, broken: bool = False) -> Workers:
        made.append(Workers(many, on_error))
        if broken:
            made[-1].break_down()
        return made[-1]

    yield make
    for workers in made:
        workers.close()


@pytest.fixture
def workers(make: Callable[..., Workers]) -> Workers:
    """One worker."""
    return make()


@pytest.fixture
def broken(make: Callable[..., Workers]) -> Workers:
    """One worker, whose storage fails."""
    return make(broken=True)


@pytest.fixture
def returning(workers: Workers) -> Iterator[Workers]:
    """One worker that admitted 3 of 10 in an outage. The storage answers again, but the charges are pending."""
    workers.break_down()
    assert workers.admitted(hits("10/minute"), 3) == [3]
    workers.half_open()
    yield workers
    workers.storage.takes_charges.set()
