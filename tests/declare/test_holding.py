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


@pytest.mark.usefixtures("app")
class TestGenerators:
    def test_generator_holds_its_slot_until_it_ends(self) -> None:
        drawn = rows()

        assert len(KEEPER) == 1
        with pytest.raises(RateLimitExceeded):
            rows()
        assert list(drawn) == ["first", "second None"]
        assert len(KEEPER) == 0
        assert list(rows()) == ["first", "second None"]

    def test_limited_generator_supports_send_and_return_value(self) -> None:
        def outer() -> Generator[str, str, int]:
            return (yield from rows())

        drawn = outer()

        assert [next(drawn), drawn.send("ada")] == ["first", "second ada"]
        with pytest.raises(StopIteration) as ended:
            next(drawn)
        assert ended.value.value == 2

    @pytest.mark.parametrize("drawn", [0, 1], ids=["before it begins", "half way"])
    @pytest.mark.parametrize("throws", [False, True], ids=["closed", "thrown into"])
    def test_generator_that_is_closed_or_thrown_into_releases_its_slot(self, drawn: int, throws: bool) -> None:
        generator = rows()
        for _ in range(drawn):
            next(generator)

        if throws:
            with pytest.raises(BrokenError):
                generator.throw(BrokenError())
        else:
            generator.close()

        assert len(KEEPER) == 0

    def test_generator_that_raises_releases_its_slot(self) -> None:
        with pytest.raises(BrokenError):
            list(rows(BrokenError()))
        assert len(KEEPER) == 0

    def test_generator_that_is_garbage_collected_releases_its_slot(self) -> None:
        generator = rows()
        next(generator)
        assert len(KEEPER) == 1

        del generator
        gc.collect()

        until(lambda: len(KEEPER) == 0)

    def test_generator_can_end_in_the_context_of_another_app(self) -> None:
        drawn = rows()
        with Flask("other").app_context():
            assert list(drawn) == ["first", "second None"]
        assert len(KEEPER) == 0


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
class TestAsyncGenerators:
    def run(self, ask: Callable[[], Any]) -> Any:
        found = asyncio.run(ask())
        assert len(KEEPER) == 0
        return found

    def test_async_generator_holds_its_slot_until_it_ends(self) -> None:
        async def ask() -> list[str]:
            drawn = arows()
            assert len(KEEPER) == 1
            with pytest.raises(RateLimitExceeded):
                arows()
            return [each async for each in drawn]

        assert self.run(ask) == ["first", "second None"]

    def test_limited_async_generator_supports_asend_and_athrow(self) -> None:
        async def ask() -> list[str]:
            drawn = arows()
            found = [await anext(drawn), await drawn.asend("ada")]
            with pytest.raises(BrokenError):
                await drawn.athrow(BrokenError())
            return found

        assert self.run(ask) == ["first", "second ada"]

    @pytest.mark.parametrize("drawn", [0, 1], ids=["before it begins", "half way"])
    def test_async_generator_that_is_closed_releases_its_slot(self, drawn: int) -> None:
        async def ask() -> None:
            generator = arows()
            for _ in range(drawn):
                await anext(generator)
            await generator.aclose()
            await generator.aclose()  # as often as one likes

        self.run(ask)

    def test_async_generator_that_raises_releases_its_slot(self) -> None:
        async def ask() -> None:
            with pytest.raises(BrokenError):
                _ = [each async for each in arows(BrokenError())]

        self.run(ask)


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
