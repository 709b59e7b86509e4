"""Generators and coroutines return before their work ends: they hold their slots until then."""

import asyncio
import gc
import threading
import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextvars import Context, copy_context
from typing import Any

import pytest
from flask import Flask

from flask_multilimit import MultiLimit, RateLimitExceeded, rate_limiter
from flask_multilimit.declare.advice import Holder
from flask_multilimit.engine import Limiter, hits_for
from flask_multilimit.engine.slots import KEEPER
from support.doubles import raising
from support.threads import another_collects_garbage
from support.waiting import PATIENCE, until

one_at_once = rate_limiter(rules="1 at once", scope="export")


class BrokenError(Exception):
    pass


@pytest.fixture
def app() -> Iterator[Flask]:
    app = Flask("shop")
    MultiLimit(app)
    with app.app_context():
        yield app
    until(lambda: len(KEEPER) == 0)


@one_at_once
def rows(last: BaseException | None = None) -> Generator[str, str, int]:
    sent = yield "first"
    yield f"second {sent}"
    if last is not None:
        raise last
    return 2


@one_at_once
async def arows(last: BaseException | None = None) -> AsyncGenerator[str, str]:
    sent = yield "first"
    yield f"second {sent}"
    if last is not None:
        raise last


class Drawn(Generator[str, Any, None]):
    """An async generator that is drawn like a plain one: it waits for nothing."""

    def __init__(self, generator: AsyncGenerator[str, str]) -> None:
        self._generator: Any = generator

    def send(self, value: Any) -> Any:
        return self._end(self._generator.asend(value))

    def throw(self, *error: Any) -> Any:
        return self._end(self._generator.athrow(*error))

    def close(self) -> None:
        self._end(self._generator.aclose())

    def _end(self, awaitable: Any) -> Any:
        try:
            awaitable.send(None)
        except StopIteration as ended:
            return ended.value
        except StopAsyncIteration:
            raise StopIteration from None


Rows = Callable[..., Any]


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("draw", [rows, lambda *last: Drawn(arows(*last))], ids=["plain", "async"])
class TestGenerators:
    def test_generator_holds_its_slot_until_it_ends(self, draw: Rows) -> None:
        drawn = draw()

        assert len(KEEPER) == 1
        with pytest.raises(RateLimitExceeded):
            draw()
        assert list(drawn) == ["first", "second None"]
        assert len(KEEPER) == 0
        assert list(draw()) == ["first", "second None"]

    def test_limited_generator_takes_what_is_sent(self, draw: Rows) -> None:
        drawn = draw()
        assert [next(drawn), drawn.send("ada"), *drawn] == ["first", "second ada"]

    @pytest.mark.parametrize("number", [0, 1], ids=["before it begins", "half way"])
    @pytest.mark.parametrize("throws", [False, True], ids=["closed", "thrown into"])
    def test_generator_that_is_closed_or_thrown_into_releases_its_slot(
        self, draw: Rows, number: int, throws: bool
    ) -> None:
        drawn = draw()
        for _ in range(number):
            next(drawn)

        if throws:
            with pytest.raises(BrokenError):
                drawn.throw(BrokenError())
        drawn.close()
        drawn.close()  # as often as one likes

        assert len(KEEPER) == 0

    def test_generator_that_raises_releases_its_slot(self, draw: Rows) -> None:
        with pytest.raises(BrokenError):
            list(draw(BrokenError()))
        assert len(KEEPER) == 0

    def test_generator_that_is_garbage_collected_releases_its_slot(self, draw: Rows) -> None:
        drawn = draw()
        next(drawn)
        assert len(KEEPER) == 1

        del drawn
        gc.collect()

        until(lambda: len(KEEPER) == 0)

    def test_generator_can_end_in_the_context_of_another_app(self, draw: Rows) -> None:
        drawn = draw()
        with Flask("other").app_context():
            assert list(drawn) == ["first", "second None"]
        assert len(KEEPER) == 0


@pytest.mark.usefixtures("app")
def test_limited_generator_returns_its_value() -> None:
    def outer() -> Generator[str, str, int]:
        return (yield from rows())

    drawn = outer()
    assert [next(drawn), next(drawn)] == ["first", "second None"]
    with pytest.raises(StopIteration) as ended:
        next(drawn)
    assert ended.value.value == 2


def test_streamed_generator_holds_its_slot_until_the_response_is_closed() -> None:
    app = Flask("shop")
    MultiLimit(app)

    @app.get("/")
    def index() -> Generator[str, str, int]:
        return rows()

    with app.test_client().get("/") as streamed:
        assert len(KEEPER) == 1
        assert app.test_client().get("/").status_code == 429
        assert streamed.get_data(as_text=True) == "firstsecond None"

    assert len(KEEPER) == 0


@pytest.mark.usefixtures("app")
def test_coroutine_that_is_never_awaited_releases_its_slot() -> None:
    async def export() -> None: ...

    def ask() -> Any:
        return export()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns that it was never awaited
        coroutine = one_at_once(ask)()
        assert len(KEEPER) == 1
        del coroutine
        gc.collect()

    until(lambda: len(KEEPER) == 0)


async def numbers() -> AsyncGenerator[int, None]:
    yield 1


@pytest.mark.usefixtures("app")
@pytest.mark.filterwarnings("ignore:coroutine")  # that it was never awaited
@pytest.mark.parametrize("stream", [lambda: (each for each in "ab"), numbers, lambda: asyncio.sleep(0)])
def test_dropped_stream_releases_its_slot_although_a_task_that_it_began_goes_on(stream: Callable[[], Any]) -> None:
    kept = list[Context]()

    def begin() -> Any:
        kept.append(copy_context())  # as each task does
        return stream()

    one_at_once(begin)()
    gc.collect()

    until(lambda: len(KEEPER) == 0)
    assert kept


@pytest.mark.usefixtures("app")
def test_dropped_generator_settles_and_releases_in_another_thread_when_garbage_is_collected() -> None:
    ends = list[threading.Thread]()

    def export() -> Generator[None, None, None]:
        holder = Holder()
        holder.at_end.append(lambda: ends.append(threading.current_thread()))
        try:
            yield
        finally:
            holder.end()

    cycle: list[Any] = [export()]
    next(cycle[0])
    cycle.append(cycle)
    del cycle
    gc.collect()

    until(lambda: bool(ends))
    assert ends != [threading.current_thread()], "this one may hold the lock of a storage"


def test_work_that_ends_is_settled_by_its_thread_while_another_collects_garbage() -> None:
    """Otherwise many requests of a busy process would leave their ends to one thread, which makes them later."""
    ends, holder = list[threading.Thread](), Holder()
    holder.at_end.append(lambda: ends.append(threading.current_thread()))

    with another_collects_garbage():
        holder.end()

    assert ends == [threading.current_thread()]


def test_work_that_is_dropped_before_its_end_is_settled() -> None:
    settled, holder = threading.Event(), Holder()
    holder.at_end.append(settled.set)

    del holder
    gc.collect()

    assert settled.wait(PATIENCE)


def test_work_is_settled_although_the_release_of_its_slots_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a signal handler."""

    settled, holder = threading.Event(), Holder()
    holder.hold(Limiter().check(hits_for("5 at once", scope="export")))
    holder.at_end.append(settled.set)
    with monkeypatch.context() as patch:
        patch.setattr(KEEPER, "release_all", raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            holder.end()

    del holder
    gc.collect()

    assert settled.wait(PATIENCE)


@pytest.mark.usefixtures("app")
def test_function_without_concurrent_rules_returns_its_object_unchanged() -> None:
    given = (number for number in range(2))
    assert rate_limiter(rules="9/minute")(lambda: given)() is given
    assert rate_limiter(rules=lambda: "9/minute", name="plan")(lambda: given)() is given
