"""The pytest plugin of flask-multilimit, which pytest loads by itself.

It stands outside of the package, so that loading it imports nothing but pytest: tests that have nothing to do with
limits do not wait for Flask and Redis, and coverage sees the package being imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from flask_multilimit.testing import Clock


@pytest.fixture
def multilimit_clock(request: pytest.FixtureRequest) -> Iterator[Clock]:
    """The clock of the limits of your fixture ``app``, standing still: ``multilimit_clock.advance(60)``."""
    from flask_multilimit.testing import freeze  # noqa: PLC0415 - see above

    try:
        app = request.getfixturevalue("app")
    except pytest.FixtureLookupError as error:
        if error.argname != "app":
            raise
        pytest.fail(
            "multilimit_clock freezes the limits of the app that a fixture called `app` returns, but there is none; "
            "define one in conftest.py, or use `with flask_multilimit.testing.freeze(app) as clock:`",
            pytrace=False,
        )
    with freeze(app) as clock:
        yield clock
