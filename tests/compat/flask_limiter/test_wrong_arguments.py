"""A wrong argument is an error that names it, where it is declared. Flask-Limiter fails at requests, if at all."""

import math
from typing import Any

import pytest
from flask import Flask

from flask_multilimit import ConfigurationError
from flask_multilimit.compat.flask_limiter import Limiter

NONSENSE: list[Any] = [5.5, math.nan, b"x", {5: 5}, object()]
OF_LIMITERS = ("default_limits", "application_limits", "meta_limits", "in_memory_fallback", "storage_uri", "strategy")
OF_LIMITS = ("key_func", "exempt_when", "deduct_when", "on_breach", "methods", "meta_limits", "error_message")


def key() -> str:
    return "ann"


@pytest.mark.parametrize("nonsense", NONSENSE, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("argument", [*OF_LIMITERS, "request_identifier"])
def test_wrong_argument_of_a_limiter_is_an_error_that_names_it(argument: str, nonsense: Any) -> None:
    with pytest.raises(ConfigurationError, match="limits=" if "limits" in argument else f"{argument}=|limits="):
        Limiter(key, **{argument: nonsense})


@pytest.mark.parametrize("nonsense", NONSENSE, ids=lambda each: type(each).__name__)
def test_wrong_key_function_of_a_limiter_is_an_error_that_names_it(nonsense: Any) -> None:
    with pytest.raises(ConfigurationError, match="key_func="):
        Limiter(nonsense)


def test_app_in_place_of_the_key_function_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="key_func=<Flask 'shop'>: give a callable, and app=app"):
        Limiter(Flask("shop"))  # type: ignore[arg-type]


@pytest.mark.parametrize("nonsense", [5.5, b"x", ["a"]], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("argument", ["header_name_mapping", "storage_options"])
def test_mapping_argument_of_a_limiter_must_be_a_dict(argument: str, nonsense: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{argument}=.*: give a dict"):
        Limiter(key, **{argument: nonsense})


@pytest.mark.parametrize("nonsense", NONSENSE, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("argument", [*OF_LIMITS, "cost"])
def test_wrong_argument_of_a_limit_is_an_error_that_names_it(argument: str, nonsense: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{argument.replace('key_func', 'key_function')}=.*: give"):
        Limiter(key).limit("5/minute", **{argument: nonsense})


def test_cost_below_zero_is_an_error_where_it_is_declared() -> None:
    with pytest.raises(ConfigurationError, match="cost=-1: give a whole number of 0 or more"):
        Limiter(key).limit("5/minute", cost=-1)


def test_methods_of_a_limit_must_be_text() -> None:
    methods: Any = [5]
    with pytest.raises(ConfigurationError, match="methods=5: give text"):
        Limiter(key).limit("5/minute", methods=methods)
