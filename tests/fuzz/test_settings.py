"""Random configurations are taken, or are a ConfigurationError that shows no password."""

import contextlib
import math
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from hypothesis import example, given
from hypothesis import strategies as st

from flask_multilimit import ConfigurationError, MultiLimit, Rule, rate_limiter
from flask_multilimit.config import PREFIX, Settings
from flask_multilimit.declare.limiter import OPTIONS
from flask_multilimit.engine import storage_from_uri
from flask_multilimit.engine.rules import rules_from
from support.effort import tries

SECRET = "correcthorse"
FIELDS = ("time", "count", "algorithm", "burst", "max_delay", "name")

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.timedeltas()
    | st.sampled_from([1e308, math.inf, math.nan, object, SECRET, "100/minute", timedelta.max])
)
too_long_to_show = st.just(5000).map(lambda digits: 10**digits)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | scalars, inner, max_size=3),
    max_leaves=6,
)


def error_text(act: Callable[[], object]) -> str:
    """The ConfigurationError of ``act`` as a traceback shows it, with its causes; "" if there is none."""
    try:
        act()
    except ConfigurationError as error:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return ""


@tries(3)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, anything | too_long_to_show)))
def test_random_arguments_are_a_rule_or_a_configuration_error(given: dict[str, Any]) -> None:
    with contextlib.suppress(ConfigurationError):
        assert Rule(**given).quota.window > 0


@tries()
@given(anything | too_long_to_show | st.text("0159/ per;,minutesecondhoyar-+.", max_size=30))
def test_random_value_is_rules_or_a_configuration_error(given: Any) -> None:
    with contextlib.suppress(ConfigurationError):
        assert all(0.001 <= rule.time <= 400 * 86_400 and 1 <= rule.count <= 10**9 for rule in rules_from(given))


@tries(5)
@given(st.sampled_from(OPTIONS), anything | too_long_to_show)
@example("wait", 10**5000)
@example("cost", 10**5000)
def test_random_option_is_a_limiter_or_a_configuration_error(option: str, given: Any) -> None:
    with contextlib.suppress(ConfigurationError):
        rate_limiter(**{option: given}).at("fuzzed")


hosts = st.sampled_from(
    ["", "localhost", "127.0.0.1", "[::1]", "[::1", "::1", "[fe80::1%25eth0]", "h%00st", "ho st", "é"]
)
hosts |= st.text("abc.:[]%/@#?-\0 ", max_size=12)
ports = st.sampled_from(
    ["", ":", ":6379", ":0", ":-1", ":65536", ":99999999999", ":\u0661", ":abc", ":6379:6379", ":%36"]
)
passwords = st.sampled_from(
    [SECRET, f"{SECRET}%", f"%zz{SECRET}", f"{SECRET}#x", f"a/{SECRET}", f"{SECRET}@x", f"[{SECRET}", f"{SECRET}\n"]
)
options = st.sampled_from(
    [
        "",
        f"?password={SECRET}",
        f"?socket_timeout={SECRET}",
        f"?db={SECRET}",
        f"?max_connections={SECRET}&x=%zz",
        f"?{SECRET}=1",
        f"#{SECRET}",
        "?socket_timeout=nan",
        "?max_connections=-1",
        "?retry_on_timeout=maybe",
        "?protocol=7",
        "?db=-1",
        "?connection_class=x",
        "?host=other",
        "?retry=1",
        "?decode_responses=yes",
        "?health_check_interval=x",
        "?ssl_cert_reqs=x",
    ]
)
paths = st.sampled_from(["", "/", "/0", "/-1", "/x", "//", "/0/1", "/%30", "/\u0661", "/99999999999999999999", "/0\n"])
schemes = st.sampled_from(["redis", "rediss", "unix", "valkey", "valkeys", "memory", "REDIS", "http", ""])
uris = st.builds(
    lambda scheme, user, password, host, port, path, option: f"{scheme}://{user}:{password}@{host}{port}{path}{option}",
    schemes,
    st.sampled_from(["", "user", "us%3aer", "[", "u@"]),
    passwords,
    hosts,
    ports,
    paths,
    options,
)


texts = st.text(max_size=30) | st.builds("{}://{}".format, schemes, st.text(max_size=20))


@tries(7)
@given(uris | texts)
@example(f"redis://:{SECRET}@?{SECRET}=1")
def test_random_uri_is_a_storage_or_an_error_that_shows_no_password(uri: str) -> None:
    assert SECRET not in error_text(lambda: storage_from_uri(uri).close())


names = st.sampled_from([PREFIX + name.upper() for name in Settings.model_fields]) | st.text(max_size=8).map(
    PREFIX.__add__
)


@pytest.mark.filterwarnings("ignore:limiter on .* can never refuse")  # two equal limits are allowed
@tries(5)
@given(st.dictionaries(names.map(str.upper), anything | too_long_to_show, min_size=1, max_size=3))
@example({"MULTILIMIT_STORAGE_URI": f"redis://:{SECRET}@localhost".encode()})
@example({"MULTILIMIT_LIMITS": f"redis://:{SECRET}@localhost"})
@example({"MULTILIMIT_STORAGE_TIMEOUT": [f"redis://user:{SECRET}@localhost/?x=@"]})
@example({"MULTILIMIT_STORAGE_URI": [f"redis://:{SECRET}@localhost"]})
@example({"MULTILIMIT_APPLICATION_LIMITS": [{}, {}]})
def test_random_configuration_is_an_extension_or_a_configuration_error(config: dict[str, Any]) -> None:
    app = Flask("fuzzed")
    app.config.update(config)
    said = error_text(lambda: MultiLimit(app))
    assert f":{SECRET}@" not in said
