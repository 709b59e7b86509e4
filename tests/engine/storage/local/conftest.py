"""A directory for each test, in which nothing may be left."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.storage.local.places import Place
from flask_multilimit.engine import Limiter, storage_from_uri
from support.waiting import until


@pytest.fixture
def place() -> Iterator[Place]:
    """Its path is short, because the path of a socket is limited."""
    folder = Path(tempfile.mkdtemp(prefix="multilimit-"))
    place = Place(folder / "limits")
    try:
        yield place
        for user in place.users:
            if user.process.is_alive():
                user.leave()
        until(place.is_deserted)
    finally:
        place.clean_up()
        shutil.rmtree(folder)


@pytest.fixture
def limiter(place: Place) -> Iterator[Limiter]:
    """Its first check makes the directory. After a failed start, the log and the locks stay, so that the reason can be
    read: they are removed here."""
    limiter = Limiter(storage_from_uri(place.uri, timeout=10))
    yield limiter
    limiter.close()
    if not place.supervisors() and place.directory.is_dir():  # in this order: the last one removes it
        for path in place.directory.iterdir():
            path.unlink()
