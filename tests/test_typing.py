"""Types: decorators keep the signature of what they decorate (mypy reads this file), and nothing public is untyped."""

import inspect
from collections.abc import Coroutine
from typing import Any, get_type_hints

from flask import Blueprint, Flask
from typing_extensions import assert_type

import flask_multilimit
from flask_multilimit import Decision, MultiLimit, RateLimiter, exempt, rate_limiter


@rate_limiter(rules="5/minute")
@rate_limiter(type=lambda: "k", name="key")
def view(item: int, *, size: str = "m") -> list[str]:
    return [size] * item


@rate_limiter()
async def later(item: int) -> bytes:
    return bytes(item)


@exempt
def free(item: int) -> str:
    return str(item)


@exempt("default", "blueprint")
def half_free(item: int) -> str:
    return str(item)


class Items:
    @rate_limiter()
    def get(self, item: int) -> str:
        return str(item)


def test_decorators_keep_signatures() -> None:
    app = Flask("shop")
    multilimit = MultiLimit(app)

    @multilimit.user_loader
    def user() -> int:
        return 1

    assert_type(rate_limiter(), RateLimiter)
    assert_type(user(), int)
    assert_type(free(item=1), str)
    assert_type(half_free(item=1), str)
    assert_type(rate_limiter()(Blueprint("api", "api")), Blueprint)
    assert_type(exempt(Blueprint("docs", "shop")), Blueprint)
    with app.test_request_context():
        assert_type(view(2, size="l"), list[str])
        assert_type(Items().get(1), str)
        assert_type(multilimit.check("5/minute", scope="a"), Decision)
        coroutine = later(1)
        assert_type(coroutine, Coroutine[Any, Any, bytes]).close()
        with multilimit.limit("5/minute", scope="a") as decision:
            assert_type(decision, Decision)

    def never_called() -> None:
        view("2")  # type: ignore[arg-type]
        view(2, color="red")  # type: ignore[call-arg]
        free("2")  # type: ignore[arg-type]
        half_free("2")  # type: ignore[arg-type]
        later("2").close()  # type: ignore[arg-type]
        multilimit.control.ban("user:42", fro="2h")  # type: ignore[call-arg]

    assert callable(never_called)
    assert list(inspect.signature(view).parameters) == ["item", "size"]


def test_every_public_function_is_fully_typed() -> None:
    untyped = []
    for name in set(flask_multilimit.__all__) - {"current_decision"}:
        public = getattr(flask_multilimit, name)
        members = list(vars(public).items()) if inspect.isclass(public) else [(name, public)]  # models may be built now
        for member, function in members:
            unwrapped = inspect.unwrap(getattr(function, "__func__", getattr(function, "fget", function)))
            if member.startswith("_") or not inspect.isfunction(unwrapped):
                continue
            if unwrapped.__module__ and not unwrapped.__module__.startswith("flask_multilimit"):
                continue
            signature = inspect.signature(unwrapped)
            given = [each.annotation for each in signature.parameters.values() if each.name not in {"self", "cls"}]
            if inspect.Signature.empty in (*given, signature.return_annotation):
                untyped.append(f"{name}.{member}")
    assert untyped == []


def test_programs_can_evaluate_the_annotations_of_what_view_code_needs() -> None:
    for name in set(flask_multilimit.__all__) - {"current_decision"}:
        public = getattr(flask_multilimit, name)
        members = [each for key, each in vars(public).items() if key == "__init__" or key[0] != "_"]
        for member in (public, *members) if inspect.isclass(public) else (public,):
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if inspect.isfunction(function) or inspect.isclass(function):
                get_type_hints(function)
