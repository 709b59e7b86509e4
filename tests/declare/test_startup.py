"""A mistake in a declaration or a setting is an error that names the place, the value and the remedy."""

import math
import re
import warnings
from pathlib import Path
from typing import Any, get_args
from unittest.mock import AsyncMock

import pytest
import redis.asyncio
from click.testing import CliRunner
from flask import Blueprint, Flask
from flask.cli import FlaskGroup
from flask.testing import FlaskClient

from flask_multilimit import (
    IP,
    Ban,
    ConfigurationError,
    ConfigurationWarning,
    LimitType,
    MultiLimit,
    Reserve,
    Rule,
    rate_limiter,
)
from flask_multilimit.config import Settings
from flask_multilimit.engine.storage import SCHEMES
from flask_multilimit.serve.gate import gate_of


def view() -> str:
    return "ok"


def app_with_unknown_name() -> Flask:
    app = Flask("shop")
    MultiLimit(app, limits={"idnex": "5/minute"})
    app.add_url_rule("/", "index", lambda: "ok")  # not `view`, which other tests limit without registering it
    return app


@pytest.fixture
def _flask_cli(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what a command of Flask sets: otherwise app.run() would do nothing in later tests."""
    monkeypatch.setenv("FLASK_RUN_FROM_CLI", "false")


@pytest.mark.usefixtures("_flask_cli")
@pytest.mark.parametrize("options", [[], ["--debugger"], ["--reload"]], ids=" ".join)
def test_flask_run_refuses_to_start_with_a_limit_for_an_unknown_endpoint(options: list[str]) -> None:
    answer = CliRunner().invoke(FlaskGroup(create_app=app_with_unknown_name), ["run", *options])
    assert isinstance(answer.exception, ConfigurationError)
    assert 'no endpoint or blueprint is called "idnex"' in str(answer.exception)


@pytest.mark.usefixtures("_flask_cli")
def test_flask_routes_runs_with_a_limit_for_an_unknown_endpoint() -> None:
    answer = CliRunner().invoke(FlaskGroup(create_app=app_with_unknown_name), ["routes"])
    assert answer.exit_code == 0, answer.output


PLACE = r'^limiter on ".*test_startup:view": '


WRONG_TARGETS: list[Any] = [
    staticmethod(view),
    classmethod(view),  # type: ignore[arg-type]
    property(view),  # type: ignore[arg-type]
    type("Page", (), {}),
    7,
    None,
    "view",
]


@pytest.mark.parametrize(
    "target",
    WRONG_TARGETS,
    ids=["staticmethod", "classmethod", "property", "class", "number", "None", "text"],
)
def test_decorator_on_anything_but_a_function_is_an_error(target: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"@rate_limiter on .*: decorate a function or a blueprint; of a class, its methods"
    ):
        rate_limiter()(target)


def test_decorator_on_an_app_is_an_error_that_names_application_limits(app: Flask) -> None:
    with pytest.raises(ConfigurationError, match=r"MultiLimit\(app, application_limits=\.\.\.\)"):
        rate_limiter()(app)


def test_decorator_without_parentheses_is_an_error_that_shows_the_syntax() -> None:
    with pytest.raises(
        ConfigurationError, match=r"on [\w.]+:view: write @rate_limiter\(\) or @rate_limiter\('5/minute'\), with"
    ):
        rate_limiter(view)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limiter", "policy"),
    [
        *(
            (rate_limiter(rules, type=type_), '"ip-60s";q=5;w=60')
            for rules in ("5/minute", Rule(60, 5), ["5/minute"])
            for type_ in ("ip", ("ip",), LimitType.IP)
        ),
        (
            rate_limiter("5/minute", Rule(3600, 20), type="header:X-Tenant"),
            '"x-tenant-60s";q=5;w=60, "x-tenant-3600s";q=20;w=3600',
        ),
    ],
)
def test_rules_can_be_positional_and_types_text(
    limited_app: Flask, client: FlaskClient, limiter: Any, policy: str
) -> None:
    limited_app.add_url_rule("/", "index", limiter(lambda: "ok"))
    assert client.get("/").headers["RateLimit-Policy"] == policy


def test_rules_given_twice_are_an_error() -> None:
    with pytest.raises(ConfigurationError, match="give the rules once"):
        rate_limiter("5/minute", rules="9/minute")


@pytest.mark.parametrize(
    ("given", "options"), [((IP,), {}), ((IP, "5/minute"), {}), (("5/minute", IP), {}), ((IP,), {"rules": "5/minute"})]
)
def test_positional_type_is_an_error_that_says_how_to_give_it(given: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"give the type by name: type=LimitType\.IP"):
        rate_limiter(*given, **options)


class TestSharedKeys:
    MESSAGE = "would share one key.* but differ in .*; make these the same, or give one of them a scope"

    @pytest.mark.parametrize(
        ("option", "outer", "inner"),
        [
            ("cost", {"cost": 2}, {}),
            ("exempt_when", {"exempt_when": lambda: False}, {"exempt_when": lambda: False}),
            ("charge_when", {"charge_when": "4xx"}, {"charge_when": "5xx"}),
            ("ban", {"ban": Ban()}, {}),
            ("on_storage_error", {}, {"on_storage_error": "deny"}),
            ("reserve", {"reserve": Reserve({"first": 0.5}, lambda: None)}, {}),
            ("lease", {"rules": Rule(60, 5, lease=2)}, {}),
            ("type", {"type": lambda: "a", "name": "mine"}, {"type": lambda: "b", "name": "mine"}),
        ],
    )
    def test_limiters_with_one_key_and_different_options_are_an_error(
        self, option: str, outer: dict[str, Any], inner: dict[str, Any]
    ) -> None:
        below = rate_limiter(**{"type": LimitType.IP, "rules": "7/minute", **inner})(view)
        with pytest.raises(ConfigurationError, match=f"{PLACE}.*differ in {option}; make these the same"):
            rate_limiter(**{"type": LimitType.IP, "rules": "5/minute", **outer})(below)

    @pytest.mark.parametrize("options", [{"scope": "page"}, {"key": "rate_limit:"}])
    def test_limiters_whose_keys_are_equal_only_in_the_app_are_an_error(
        self, limited_app: Flask, client: FlaskClient, options: dict[str, Any]
    ) -> None:
        limited_app.add_url_rule("/free", "free", lambda: "ok")
        inner = rate_limiter(rules="3/minute", cost=2, **options)(lambda: "ok")
        limited_app.add_url_rule("/", "page", rate_limiter(rules="5/minute")(inner))

        with pytest.raises(ConfigurationError, match='limiter on "page": .*' + self.MESSAGE):
            client.get("/free")

    def test_single_type_and_combined_types_with_one_key_are_an_error(
        self, limited_app: Flask, client: FlaskClient
    ) -> None:
        """Otherwise a client could choose a document named ``[["ip", "203.0.113.7"], ["document", "a"]]``."""
        options: dict[str, Any] = {"name": "document", "scope": "documents", "rules": "5/minute"}
        limited_app.add_url_rule("/a", "one", rate_limiter(type=lambda: "a", **options)(lambda: "ok"))
        limited_app.add_url_rule("/", "each", rate_limiter(type=("ip", lambda: "a"), **options)(lambda: "ok"))

        with pytest.raises(ConfigurationError, match="only one of them counts several types together; give one of"):
            client.get("/")

    @pytest.mark.parametrize(
        "options",
        [
            {"type": LimitType.IP, "rules": "3/minute"},
            {"scope": "other"},
            {"key": "other:"},
            {"rules": "7/2 minutes"},
            {"type": lambda: "x", "name": "mine"},
        ],
        ids=["type", "scope", "key", "window", "custom type"],
    )
    def test_limiters_with_different_keys_are_no_error(self, options: dict[str, Any]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConfigurationWarning)
            rate_limiter(rules="5/minute")(rate_limiter(**{"rules": "5/minute", **options})(view))


class TestIdleRules:
    """Warnings about rules that can never refuse, because another rule always refuses first."""

    @pytest.mark.parametrize("target", [view, Blueprint("shop", "shop")], ids=["view", "blueprint"])
    def test_limiter_with_cost_0_is_warned_of(self, target: Any) -> None:
        with pytest.warns(ConfigurationWarning, match="cost=0: it charges nothing, so it never refuses"):
            rate_limiter("5/minute", cost=0)(target)

    def test_warning_has_the_line_of_the_declaration(self) -> None:
        with pytest.warns(ConfigurationWarning) as caught:
            rate_limiter(rules="10/minute; 600/hour")(view)  # this line

        (warning,) = caught
        assert Path(warning.filename) == Path(__file__)
        assert Path(__file__).read_text().splitlines()[warning.lineno - 1].endswith("# this line")
        assert re.search(
            PLACE
            + r"Rule\(600 per hour\) of the default limiter .* can never refuse, because Rule\(10 per minute\) of "
            r"the default limiter .* always refuses first; leave it out or make it stricter$",
            str(warning.message),
        )

    @pytest.mark.parametrize(
        ("outer", "inner"),
        [
            ({"rules": "10/minute"}, {"rules": "600/hour"}),
            ({"rules": "600/hour"}, {"rules": "10/minute"}),
            ({"rules": "10/minute"}, {"rules": "10/minute", "type": LimitType.IP}),
            ({"rules": "10/hour"}, {"rules": "10/minute"}),
            ({"rules": "10/minute", "exempt_when": view}, {"rules": "20/minute", "exempt_when": view}),
            ({"rules": Rule(60, 10, algorithm="gcra")}, {"rules": Rule(60, 11, algorithm="gcra")}),
        ],
    )
    def test_rule_that_can_never_refuse_is_warned_of(self, outer: dict[str, Any], inner: dict[str, Any]) -> None:
        below = rate_limiter(**inner)(view)
        with pytest.warns(ConfigurationWarning, match="can never refuse"):
            rate_limiter(**outer)(below)

    def test_idle_rule_is_warned_of_once_below_more_limiters(self) -> None:
        below = rate_limiter(rules="10/minute")(view)
        with pytest.warns(ConfigurationWarning, match="can never refuse"):
            below = rate_limiter(rules="600/hour")(below)
        rate_limiter(rules="100/hour", type=LimitType.IP)(rate_limiter(rules="2000/day")(below))

    @pytest.mark.parametrize(
        ("outer", "inner"),
        [
            ({"rules": "10/minute"}, {"rules": "599/hour"}),
            ({"rules": Rule(7, 10)}, {"rules": Rule(10, 19)}),
            ({"rules": "10/minute", "type": LimitType.IP}, {"rules": "1000/minute"}),
            ({"rules": "10/minute", "type": LimitType.IP}, {"rules": "1000/minute", "type": LimitType.USER}),
            ({"rules": "10/minute", "exempt_when": lambda: False}, {"rules": "600/hour"}),
            ({"rules": "10/minute", "cost": lambda: 1}, {"rules": "600/hour"}),
            ({"rules": "10/minute"}, {"rules": "600/hour", "cost": 3}),
            ({"rules": "10/minute"}, {"rules": "600/hour", "scope": "shared with others"}),
            ({"rules": "10/minute", "scope": "shared"}, {"rules": "600/hour", "scope": "shared"}),
            ({"rules": "10/minute", "type": lambda: None, "name": "mine"}, {"rules": "600/hour"}),
        ],
    )
    def test_rules_that_can_both_refuse_give_no_warning(self, outer: dict[str, Any], inner: dict[str, Any]) -> None:
        rate_limiter(**outer)(rate_limiter(**inner)(view))


def choices_of(setting: str) -> str:
    """The values of a setting, as an error lists them."""
    *others, last = map(repr, get_args(Settings.model_fields[setting].annotation))
    return f"{', '.join(others)} or {last}"


SCHEMES_IN_ERRORS = ", ".join(f"{each}://" for each in SCHEMES)


class TestSettings:
    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("STORAGE_URI", "redis:/localhost", f"not one of {SCHEMES_IN_ERRORS}, for instance"),
            ("STORAGE_URI", "memory", "MULTILIMIT_STORAGE_URI: storage URI 'memory': not one of"),
            ("STORAGE_URI", "memory://x", "storage URI 'memory://x': nothing may follow memory://"),
            ("STORAGE_URI", "redis://", "it names no server; write it as redis://localhost:6379"),
            ("STORAGE_URI", "unix://", "it names no server; write it as unix:///run/redis.sock"),
            ("STORAGE_URI", "redis://localhost:port/0", "storage URI 'redis://localhost:***'"),
            ("STORAGE_URI", 6379, "MULTILIMIT_STORAGE_URI=6379: give text"),
            ("STORAGE_TIMEOUT", 0, "MULTILIMIT_STORAGE_TIMEOUT=0: input should be greater than 0"),
            ("STORAGE_TIMEOUT", 61, "less than or equal to 60"),
            ("STORAGE_TIMEOUT", math.nan, "MULTILIMIT_STORAGE_TIMEOUT=nan"),
            ("STORAGE_TIMEOUT", True, "MULTILIMIT_STORAGE_TIMEOUT=True: give a number"),
            ("DENY_CACHE", False, "MULTILIMIT_DENY_CACHE=False: give a number"),
            ("DENY_CACHE", "1", "MULTILIMIT_DENY_CACHE='1': give a number"),
            ("EXEMPT", "static", "MULTILIMIT_EXEMPT='static': give a list of names or patterns, such as"),
            ("DENY", "203.0.113.7", "MULTILIMIT_DENY='203.0.113.7': give a list of networks and subjects, such as"),
            ("EXEMPT", ["static", 5], "MULTILIMIT_EXEMPT=['static', 5]: give a list of names or patterns, such as"),
            ("STORAGE_TIMEOUT", "soon", "MULTILIMIT_STORAGE_TIMEOUT='soon'"),
            ("KEY_PREFIX", "", "MULTILIMIT_KEY_PREFIX='': key prefix '': 1 to 32 printable ASCII"),
            ("KEY_PREFIX", None, "MULTILIMIT_KEY_PREFIX=None: give text, or leave it out"),
            ("ENABLED", "no", "MULTILIMIT_ENABLED='no': give true or false"),
            ("ENABLED", 0, "MULTILIMIT_ENABLED=0: give true or false"),
            ("HEADERS", "all", f"MULTILIMIT_HEADERS='all': input should be {choices_of('headers')}"),
            ("IPV6_PREFIX", 129, "MULTILIMIT_IPV6_PREFIX=129: input should be less than or equal to 128"),
            ("IPV6_PREFIX", 15, "greater than or equal to 16"),
            ("IPV6_PREFIX", "64", "MULTILIMIT_IPV6_PREFIX='64': give a whole number"),
            ("WORKERS", 0, "MULTILIMIT_WORKERS=0: input should be greater than or equal to 1"),
            ("WORKERS", 1.5, "MULTILIMIT_WORKERS=1.5: give a whole number"),
            ("ON_STORAGE_ERROR", "ignore", "MULTILIMIT_ON_STORAGE_ERROR='ignore': input should be 'local', 'allow'"),
            ("ON_STORAGE_ERROR", None, "MULTILIMIT_ON_STORAGE_ERROR=None: input should be 'local', 'allow'"),
            ("MESSAGE", 7, "MULTILIMIT_MESSAGE=7: give text, or a callable of the Decision"),
            ("MESSAGE", lambda: "slow down", "is called with the Decision, which it does not take"),
            ("LIMITS", ["5/minute"], "MULTILIMIT_LIMITS=['5/minute']: give a dict such as"),
            ("LIMITS", {5: "5/minute"}, "MULTILIMIT_LIMITS={5: '5/minute'}: give a dict such as"),
            ("CONTROL_COPY", "", "MULTILIMIT_CONTROL_COPY='': give text that is not empty"),
            ("LOG", "\ud800", "MULTILIMIT_LOG='\\ud800': give valid Unicode"),
            ("LIMITS", {"view": []}, 'MULTILIMIT_LIMITS["view"]: no limit given'),
        ],
    )
    def test_invalid_value_is_an_error_at_start_up(self, app: Flask, name: str, value: object, message: str) -> None:
        app.config[f"MULTILIMIT_{name}"] = value
        with pytest.raises(ConfigurationError, match=re.escape(message)):
            MultiLimit(app)
        assert "multilimit" not in app.extensions

    @pytest.mark.parametrize(
        "name", ["STORAGE_TIMEOUT", "WORKERS", "DENY_CACHE", "IPV6_PREFIX", "ENABLED", "MESSAGE", "KEY_PREFIX"]
    )
    def test_value_that_is_too_long_to_show_is_an_error(self, app: Flask, name: str) -> None:
        for value, shown in (
            (10**5000, "int too long to show: "),
            (-(10**5000), "int too long to show: "),
            ([10**5000], "list too long to show: "),
            (b"9" * 5000, f"b'{'9' * 75}...: "),
        ):
            app.config[f"MULTILIMIT_{name}"] = value
            with pytest.raises(ConfigurationError, match=re.escape(f"MULTILIMIT_{name}={shown}")):
                MultiLimit(app)

    def test_one_error_names_all_invalid_settings(self, app: Flask) -> None:
        app.config.update(MULTILIMIT_ENABLED=1, MULTILIMIT_HEADERS="x")
        with pytest.raises(ConfigurationError, match=r"MULTILIMIT_ENABLED=1: .*; MULTILIMIT_HEADERS='x': "):
            MultiLimit(app)

    @pytest.mark.parametrize(
        ("unknown", "nearest"),
        [
            ("MULTILIMIT_STORAGE_URL", "MULTILIMIT_STORAGE_URI"),
            ("MULTILIMIT_HEADER", "MULTILIMIT_HEADERS"),
            ("MULTILIMIT_ENABLE", "MULTILIMIT_ENABLED"),
            ("MULTILIMIT_IPV6_PREFIX_LENGTH", "MULTILIMIT_IPV6_PREFIX"),
            ("MULTILIMIT_storage_uri", "MULTILIMIT_STORAGE_URI"),
            ("MULTILIMITS_ENABLED", "MULTILIMIT_ENABLED"),
            ("MULTI_LIMIT_STORAGE_URI", "MULTILIMIT_STORAGE_URI"),
        ],
    )
    def test_unknown_setting_suggests_the_nearest_name(self, app: Flask, unknown: str, nearest: str) -> None:
        app.config.update(MULTI="x", RATELIMIT_ENABLED="x", MULTILIMITED="x")  # settings of other extensions
        MultiLimit().init_app(app)
        app.extensions.clear()
        app.config[unknown] = "x"

        with pytest.raises(ConfigurationError, match=f"^{unknown} is not a setting; did you mean {nearest}"):
            MultiLimit(app)

    def test_settings_are_read_from_the_environment(self, app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SHOP_MULTILIMIT_ENABLED", "false")
        monkeypatch.setenv("SHOP_MULTILIMIT_IPV6_PREFIX", "56")
        monkeypatch.setenv("SHOP_MULTILIMIT_STORAGE_TIMEOUT", "0.5")
        monkeypatch.setenv("SHOP_MULTILIMIT_STORAGE_URI", "memory://")
        app.config.from_prefixed_env("SHOP")

        MultiLimit(app)

        settings = gate_of(app).settings
        assert (settings.enabled, settings.ipv6_prefix, settings.storage_timeout) == (False, 56, 0.5)

    @pytest.mark.parametrize(
        "uri",
        ["rediss+x://user:secret@localhost", b"redis://:secret@localhost", "rediss://limiter:secret@example.com:port"],
    )
    def test_error_hides_the_password_in_a_storage_uri(self, app: Flask, uri: object) -> None:
        app.config["MULTILIMIT_STORAGE_URI"] = uri
        with pytest.raises(ConfigurationError) as raised:
            MultiLimit(app)
        assert "secret" not in str(raised.value)

    def test_object_that_is_not_a_storage_is_an_error(self, app: Flask) -> None:
        with pytest.raises(ConfigurationError, match=r"storage=7: give a URI, a client object of redis, or a Storage"):
            MultiLimit(app, storage=7)

    @pytest.mark.parametrize("kind", [redis.asyncio.Redis, redis.asyncio.RedisCluster])
    def test_asyncio_redis_client_is_an_error(self, app: Flask, kind: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"storage=Redis.* of redis\.asyncio.*give a client that is not"):
            MultiLimit(app, storage=kind(host="localhost"))

    def test_pipeline_of_a_redis_client_is_an_error(self, app: Flask) -> None:
        with pytest.raises(ConfigurationError, match=r"storage=Pipeline: .* give the client that made it"):
            MultiLimit(app, storage=redis.Redis(port=1).pipeline())

    @pytest.mark.parametrize(
        "loader", ["ann", 7, AsyncMock(), lambda _request: "ann"], ids=["text", "number", "async", "argument"]
    )
    def test_user_loader_or_on_rejected_that_cannot_be_called_is_an_error(self, app: Flask, loader: Any) -> None:
        with pytest.raises(ConfigurationError, match="user_loader="):
            MultiLimit(app, user_loader=loader)
        with pytest.raises(ConfigurationError, match="user_loader="):
            MultiLimit().user_loader(loader)
        with pytest.raises(ConfigurationError, match="on_rejected=5: give a callable"):
            MultiLimit(on_rejected=5)  # type: ignore[arg-type]
