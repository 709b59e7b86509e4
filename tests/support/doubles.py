"""A storage that records checks, and the foreign decorators that tests put among ours."""

import functools
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import wrapt

from flask_multilimit import Decision, rate_limiter
from flask_multilimit.engine import Hit, MemoryStorage, StorageError
from support.clock import Clock


class RecordingStorage(MemoryStorage):
    """Keeps the hits of every check; ``broken`` makes it fail. It says that it is shared, which prevents warnings."""

    shared = True

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.checks: list[tuple[Hit, ...]] = []
        self.other_calls: list[str] = []
        self.broken = False

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        self.checks.append(hits)
        if self.broken:
            raise StorageError("the rate limit storage gave no answer: it is broken")
        return super().check(hits, check_id)

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        self.other_calls.append("peek")
        return super().peek(hits)

    def check_many(self, many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        self.other_calls.append("check_many")
        return super().check_many(many, ids)

    def settle(self, *arguments: Any) -> None:
        self.other_calls.append("settle")
        super().settle(*arguments)

    def reset(self, keys: Sequence[str]) -> None:
        self.other_calls.append("reset")
        super().reset(keys)

    @property
    def keys_asked(self) -> list[list[str]]:
        """The keys of each check."""
        return [[hit.key for hit in hits] for hits in self.checks]

    @property
    def windows(self) -> list[list[float]]:
        """The windows of each check, in seconds. Tests give each limiter another window, and so can tell them apart."""
        return [[hit.rule.time for hit in hits] for hits in self.checks]


class OwnStorage:
    """A storage that has what the protocol asks for, and nothing else: no clock, no slots, no traffic."""

    shared = False

    def __init__(self) -> None:
        kept = MemoryStorage()
        for name in ("check", "peek", "check_many", "settle", "reset", "close"):
            setattr(self, name, getattr(kept, name))


def limited_service(**options: Any) -> Callable[[], str]:
    """A limited function that is no view. All of these functions have the same name, and so the same scope."""

    def service() -> str:
        return "done"

    return rate_limiter(**options)(service)


def raising(error: BaseException | type[BaseException]) -> Callable[..., Any]:
    """A function that raises ``error``, with whatever it is called."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def failing(error: Exception, *methods: str) -> MemoryStorage:
    """A storage in memory, these methods of which raise ``error``."""
    storage = MemoryStorage()
    for name in methods:
        setattr(storage, name, raising(error))
    return storage


def with_wraps(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def retrying(function: Callable[..., Any]) -> Callable[..., Any]:
    """Calls the function twice."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        function(*args, **kwargs)
        return function(*args, **kwargs)

    return wrapper


def without_wraps(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    wrapper.__name__ = getattr(function, "__name__", "view")
    return wrapper


class Instance:
    """A decorator that is a class: the function is an attribute."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", "view")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class UpdatedInstance(Instance):
    """The same with ``functools.update_wrapper``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        super().__init__(function)


def partial(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.partial(function)


@wrapt.decorator  # type: ignore[untyped-decorator, unused-ignore]
def with_wrapt(wrapped: Callable[..., Any], _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return wrapped(*args, **kwargs)


def copying_attributes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Copies attributes without setting ``__wrapped__``, as decorators did before ``functools.wraps`` set it."""
    wrapper = without_wraps(function)
    vars(wrapper).update({name: value for name, value in vars(function).items() if name != "__wrapped__"})
    return wrapper


def without_arguments(function: Callable[[], Any]) -> Callable[[], Any]:
    def wrapper() -> Any:
        return function()

    return wrapper


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
OPEN: dict[str, Decorator] = {
    "functools.wraps": with_wraps,
    "updated class instance": UpdatedInstance,
    "functools.partial": partial,
    "functools.cache": functools.cache,
    "wrapt": with_wrapt,
}
"""Decorators of others that show which function they wrap."""
OPAQUE: dict[str, Decorator] = {
    "no wraps": without_wraps,
    "class instance": Instance,
    "fixed arguments": without_arguments,
}
"""Decorators of others that do not show which function they wrap."""
FOREIGN = OPEN | OPAQUE
