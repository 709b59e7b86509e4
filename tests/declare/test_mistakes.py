"""A mistake in a declaration is an error at start-up that names the place of the declaration."""

import re
import sys
from typing import Any

import pytest
from flask import Blueprint, Flask
from werkzeug.routing import Rule as Route

from flask_multilimit import Ban, ConfigurationError, LimitType, MultiLimit, Rule, exempt, rate_limiter
from support.asking import ask, view
from support.doubles import RecordingStorage


async def later(*_: Any) -> bool:
    return True


class Later:
    async def __call__(self) -> int:
        return 1


def with_none() -> str:
    return ""


def with_two(one: Any, two: Any) -> bool:
    return bool(one and two)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"rules": "5/fortnight"}, "unknown unit 'fortnight'"),
    ({"rules": []}, "rules: none given"),
    ({"rules": 5}, "rules=5"),
    ({"rules": Rule}, "rules=.*Rule'>: give Rule objects"),
    ({"rules": "0/minute"}, "count must be"),
    ({"rules": later}, "rules=.*async"),
    ({"rules": lambda _user: "5/minute"}, "rules=.*type DEFAULT counts everyone as one subject, so"),
    ({"rules": lambda _user: "5/minute", "type": (LimitType.DEFAULT,)}, "rules=.*counts everyone as one subject, so"),
    ({"rules": with_two}, "rules=.*is called with the subject, which it does not take"),
    ({"type": "ipp"}, "type='ipp': unknown type 'ipp'; did you mean 'ip'"),
    ({"type": "header:a b"}, "type='header:a b'"),
    ({"type": "no_module:find"}, "type='no_module:find': cannot be imported"),
    ({"settle": "hdr:X"}, "settle='hdr:X': cannot be imported: No module named 'hdr'"),
    ({"type": (LimitType.IP, LimitType.IP)}, "type: several parts together are one subject, so give each of them once"),
    ({"type": (LimitType.DEFAULT, LimitType.IP)}, "give each of them once, and leave out DEFAULT"),
    ({"type": ()}, "give at least one"),
    ({"type": (LimitType.IP, "usr")}, "type='usr'"),
    ({"type": lambda: "k"}, "needs a name"),
    ({"type": (LimitType.IP, lambda: "k")}, "needs a name"),
    ({"type": later, "name": "later"}, "async"),
    ({"type": lambda _request: "k", "name": "key"}, "which it does not take"),
    ({"type": (with_none, lambda _request: "k"), "name": "key"}, "type=.*which it does not take"),
    ({"name": "a b"}, "name='a b'"),
    ({"scope": ""}, "scope=''"),
    ({"methods": "POST"}, "methods='POST'"),
    ({"methods": []}, "methods: none given"),
    ({"cost": -1}, "cost=-1: must be a whole number, 0 or more"),
    ({"cost": True}, "cost=True"),
    ({"cost": 1.5}, "cost=1.5"),
    ({"cost": 10**5000}, "cost=int too long to show: sliding_window takes at most"),
    ({"cost": 101}, "cost=101: 100 per minute could never admit it"),
    ({"cost": 2, "rules": Rule(60, 500, algorithm="gcra")}, "by gcra could never admit it: at most 1 at once"),
    ({"cost": later}, "async"),
    ({"cost": Later()}, "async"),
    ({"cost": lambda _request: 1}, "cost=.*which it does not take"),
    ({"exempt_when": True}, "exempt_when=True: give a callable without arguments"),
    ({"exempt_when": later}, "exempt_when=.*async"),
    ({"exempt_when": lambda _request: True}, "exempt_when=.*which it does not take"),
    ({"ban": 3}, "ban=3: give a Ban, such as"),
    ({"ban": Ban()}, "ban: a limiter of type DEFAULT counts everyone as one subject"),
    ({"ban": Ban(), "type": (LimitType.DEFAULT,)}, "ban: a limiter of type DEFAULT"),
    ({"ban": Ban(), "type": LimitType.IP, "wait": 1}, "ban and wait: .*leave one out"),
    ({"ban": Ban(), "type": LimitType.IP, "rules": ()}, "rules: none given"),
    ({"charge_when": "failed"}, "charge_when='failed'"),
    ({"charge_when": later}, "charge_when=.*async"),
    ({"charge_when": lambda: True}, "charge_when=.*which it does not take"),
    ({"shadow": 1}, "shadow=1"),
    ({"shadow": "false"}, "shadow='false'"),
    ({"with_defaults": "yes"}, "with_defaults='yes'"),
    ({"wait": -1}, "wait=-1"),
    ({"wait": 3601}, "wait=3601"),
    ({"wait": float("nan")}, "wait=nan"),
    ({"wait": "5"}, "wait='5'"),
    ({"wait": 10**5000}, "wait=int too long to show: give seconds"),
    ({"message": 5}, "message=5"),
    ({"message": lambda: "no"}, "message=.*which it does not take"),
    ({"on_rejected": "no"}, "on_rejected='no'"),
    ({"on_storage_error": "ignore"}, "on_storage_error='ignore': give one of 'local', 'allow'"),
    ({"type": None}, "type=None"),
    ({"cost": None}, "cost=None"),
    ({"wait": None}, "wait=None"),
    ({"shadow": None}, "shadow=None"),
    ({"with_defaults": None}, "with_defaults=None"),
    ({"hash_tag": None}, "hash_tag=None"),
    ({"hash_tag": 1}, "hash_tag=1"),
    ({"scope": 5}, "scope=5: give a name, or leave it out for the endpoint"),
    ({"key": 5}, "key prefix 5"),
    ({"methods": [5]}, r"methods.*5"),
    ({"cost": "1", "rules": lambda: "5/minute"}, "cost='1'"),
    ({"on_rejected": with_two}, "on_rejected=.*which it does not take"),
    ({"on_rejected": later}, "on_rejected=.*async"),
    ({"rules": 100}, 'rules=100: give Rule objects or text such as "100/minute"'),
    ({"rules": [(60, 100)]}, r"rules: \(60, 100\) is not a rule; give a Rule or text"),
    ({"rules": [Rule(60, 5), Rule(60, 9, lease=2)]}, "would share one key, because type and window are the same, but"),
    ({"type": 7}, "type=7: give (a LimitType|text) such as"),
    *(
        (
            {"type": with_none, "name": name},
            f"name={re.escape(repr(name))}: 1 to 20 characters, a letter and then letters",
        )
        for name in ("", "x" * 21, "api key", "é", "a\n", 7)
    ),
    *(
        ({"type": with_none, "name": name}, f"name='{name}': taken by a LimitType; call your own type something else")
        for name in ("default", "global", "ip", "user", "anonymous", "IP", "User")
    ),
    *(
        ({"key": key}, f"key prefix {re.escape(repr(key))}: 1 to 32 printable ASCII characters, no spaces or braces")
        for key in ("", "a b", "a{b", "é:", "x" * 33, "a\n")
    ),
    ({"scope": b"x"}, "scope=b'x': give a name"),
    ({"cost": 10_001, "rules": "1000000/minute"}, "cost=10001: sliding_window takes at most 10000 units"),
    ({"charge_when": True}, r"charge_when=True: give statuses such as \[401, 403\] or"),
    ({"message": b"no"}, "message=b'no': give text"),
    ({"message": later}, "later: must not be async"),
]
EACH_MISTAKE = pytest.mark.parametrize(
    ("options", "message"),
    WRONG,
    ids=[f"{number} {'+'.join(options)}" for number, (options, _) in enumerate(WRONG)],
)


@EACH_MISTAKE
def test_error_on_a_function_names_the_function(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf'limiter on "support.asking:view.*": .*{message}'):
        rate_limiter(**options)(view())


@EACH_MISTAKE
def test_error_in_data_names_the_setting(app: Flask, options: dict[str, Any], message: str) -> None:
    app.config["MULTILIMIT_LIMITS"] = {"view": options}
    with pytest.raises(ConfigurationError, match=rf'limiter on "MULTILIMIT_LIMITS\["view"\]": .*{message}'):
        MultiLimit(app)


@pytest.mark.parametrize("level", ["application", "default", "unmatched"])
def test_error_in_a_list_of_limits_names_the_list(app: Flask, level: str) -> None:
    wrong = {"type": "ip", "cost": -1}
    with pytest.raises(ConfigurationError, match=f'limiter on "{level}_limits": cost=-1'):
        MultiLimit(Flask("shop"), **{f"{level}_limits": rate_limiter(**wrong)})  # type: ignore[arg-type]
    app.config[f"MULTILIMIT_{level.upper()}_LIMITS"] = [wrong]
    with pytest.raises(ConfigurationError, match=f'limiter on "MULTILIMIT_{level.upper()}_LIMITS": cost=-1'):
        MultiLimit(app)


def test_error_on_a_blueprint_names_the_blueprint() -> None:
    with pytest.raises(ConfigurationError, match='limiter on "blueprint "api"": cost=-1'):
        rate_limiter(cost=-1)(Blueprint("api", "api"))


@pytest.mark.parametrize("rules", [{"time": 60, "count": 5}, [{"time": 60, "count": 5}]])
def test_mapping_in_place_of_a_rule_in_code_is_an_error(rules: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"{'time': 60, 'count': 5}.*: .*give Rule\(time=60, count=5\), or text"
    ):
        rate_limiter(rules=rules)(view())


CONTAINING_ITSELF: list[Any] = []
CONTAINING_ITSELF.append(CONTAINING_ITSELF)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("5/fortnight", "unknown unit"),
        (5, "5 is not a limit; give text such as"),
        (object(), "is not a limit"),
        ({}, "{} is not a limit; give text such as"),
        ({"5/minute"}, "is not a limit"),
        (["5/minute", 5], "5 is not a limit"),
        (["5/minute", ["6/minute"]], r"\['6/minute'\] is not a limit"),
        (CONTAINING_ITSELF, r"\[\[...\]\] is not a limit"),
        (rate_limiter, "is not a limit"),
        ({"type": "ipp"}, "type='ipp': .*use default, global, ip, user"),
        ({"type": "user+ipp"}, "type='ipp'"),
        ({"rulse": "5/minute"}, "'rulse' is not an option of a limiter; did you mean 'rules'"),
        ({"where": "here"}, "'where' is not an option"),
        ({"per": 60}, "'per' is not an option of a limiter; give one of type, rules, fallback"),
        ({"after": 3}, r"'after' is not an option of a limiter; it is one of a ban: ban=Ban\(after="),
        ({"charge_when": "6xx"}, r"charge_when='6xx': give statuses such as \[401, 403\] or \"4xx\""),
        (
            {"algorithm": "gcra"},
            r"'algorithm' is not an option of a limiter; it is one of a rule: rules=Rule\(..., algorithm=",
        ),
        ({"exempt": ["::1"], "exempt_when": lambda: True}, "exempt and exempt_when: give only one of them"),
        ({"cost": "no_module:find"}, "cost='no_module:find': cannot be imported"),
        (["5/minute", rate_limiter(rules="9/minute", cost=2)], "would share one key, .* but differ in cost"),
    ],
)
@pytest.mark.parametrize("setting", ["APPLICATION_LIMITS", "DEFAULT_LIMITS", "UNMATCHED_LIMITS", "LIMITS"])
def test_setting_with_an_invalid_limit_is_an_error_that_names_it(
    app: Flask, given: Any, message: str, setting: str
) -> None:
    app.config[f"MULTILIMIT_{setting}"] = {"view": given} if setting == "LIMITS" else given
    with pytest.raises(ConfigurationError, match=rf"(?i)MULTILIMIT_{setting}|{setting}.*{message}") as raised:
        MultiLimit(app)
    assert raised.match(message)


class TestAtTheFirstRequest:
    """Mistakes that only the complete app shows."""

    def test_error_names_both_places_of_limits_that_share_a_key(self, app: Flask, storage: RecordingStorage) -> None:
        app.config["MULTILIMIT_LIMITS"] = {"api.*": "5/minute"}
        api = rate_limiter(rules="9/minute", cost=2)(Blueprint("api", "api"))
        api.add_url_rule("/", "view", view())
        MultiLimit(app, storage=storage)
        app.register_blueprint(api)

        with pytest.raises(ConfigurationError, match=r'limiter on "api.view": .*MULTILIMIT_LIMITS.*blueprint "api"'):
            ask(app)

    @pytest.mark.parametrize(
        ("method", "message"),
        [
            ("POST", r"methods=\['POST'\]: its routes take only GET, HEAD, OPTIONS, so nothing"),
            ("FETCH", r"methods=\['FETCH'\]: its routes take only GET"),
        ],
    )
    def test_methods_that_no_route_takes_are_an_error(self, app: Flask, method: str, message: str) -> None:
        MultiLimit(app)
        app.add_url_rule("/", "view", rate_limiter(methods=[method])(view()))
        with pytest.raises(ConfigurationError, match=f'limiter on "view": {message}'):
            ask(app)

    def test_methods_of_another_endpoint_of_the_view_are_no_error(self, app: Flask) -> None:
        MultiLimit(app)
        both = rate_limiter(methods=["POST"])(view())
        app.add_url_rule("/", "view", both)
        app.add_url_rule("/post", "post", both, methods=["POST"])

        ask(app)

    def test_methods_are_no_error_on_a_route_without_methods(self, app: Flask) -> None:
        MultiLimit(app)
        app.url_map.add(Route("/", endpoint="view"))
        app.endpoint("view")(rate_limiter(methods=["POST"])(view()))
        app.add_url_rule("/view", "view")

        ask(app)

    @pytest.mark.parametrize("level", ["application", "default", "unmatched"])
    def test_limit_by_user_without_a_user_loader_is_an_error_at_every_request(
        self, app: Flask, storage: RecordingStorage, level: str
    ) -> None:
        MultiLimit(app, storage=storage, **{f"{level}_limits": {"type": "user"}})  # type: ignore[arg-type]
        app.add_url_rule("/", "view", view())
        app.add_url_rule("/other", "other", rate_limiter()(view()))

        for path in ("/", "/other", "/"):
            with pytest.raises(ConfigurationError, match=r"LimitType\.USER.*user_loader= to MultiLimit.*flask-login"):
                ask(app, path)

    def test_limit_by_user_is_an_error_in_an_app_that_makes_any_attribute(self, storage: RecordingStorage) -> None:
        class Eventful(Flask):
            """As Eve: a name that nobody has set is an event."""

            def __getattr__(self, name: str) -> list[str]:
                return [name]

        app = Eventful(__name__)
        multilimit = MultiLimit(app, storage=storage, default_limits=rate_limiter(type=LimitType.USER))
        app.add_url_rule("/", "view", view())

        with pytest.raises(ConfigurationError, match=r"LimitType\.USER.*flask-login"):
            multilimit.validate(app)


class TestExempt:
    @pytest.mark.parametrize("level", ["defaults", "", None])
    def test_exempt_from_an_unknown_level_is_an_error_that_lists_the_levels(self, level: Any) -> None:
        with pytest.raises(ConfigurationError, match="application, blueprint, configuration, default"):
            exempt("default", level)

    @pytest.mark.parametrize(
        "target",
        [5, Flask("shop").make_response, staticmethod(with_two), Flask("shop")],
        ids=["number", "bound method", "static method", "app"],
    )
    def test_exempt_on_an_unsupported_object_is_an_error(self, target: Any) -> None:
        with pytest.raises(ConfigurationError, match="put it on a function, a view class or a blueprint"):
            exempt(target)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated with the function")
def test_annotations_with_undefined_names_are_no_error() -> None:
    app: dict[str, Any] = {}
    text = "def succeeded(response: Response) -> Unknown: pass\ndef view(page: Page) -> Response: pass"
    exec(compile(text, "app.py", "exec", dont_inherit=True), app)  # without imports from __future__

    rate_limiter(charge_when=app["succeeded"])(app["view"])
    with pytest.raises(ConfigurationError, match=r"cost=.*which it does not take"):
        rate_limiter(cost=app["succeeded"])(app["view"])
