"""``flask multilimit migrate``: what it prints runs."""

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask import Blueprint, Flask, request

import flask_multilimit
from flask_multilimit import MultiLimit
from flask_multilimit.compat.flask_limiter import ApplicationLimit, ExemptionScope, Limit, Limiter, get_remote_address
from flask_multilimit.compat.flask_limiter.contrib.util import get_remote_address_cloudflare
from flask_multilimit.compat.flask_limiter.in_force import InForce
from flask_multilimit.compat.flask_limiter.migrate import Writer
from support import flask_limiter_usages as usages
from support.limiters import OURS, library


def printed(app: Flask) -> str:
    result = app.test_cli_runner().invoke(args=["multilimit", "migrate"])
    assert result.exit_code == 0, result.output
    return result.output


def written_in(text: str) -> dict[str, list[str]]:
    """For each place in ``text``, the lines to write there."""
    found: dict[str, list[str]] = {}
    for block in text.split("\n\n"):
        lines = block.splitlines()
        place = next((number for number, line in enumerate(lines) if line.startswith("    - ")), 1) - 1
        added = [line.removeprefix("    + ") for line in lines if line.startswith("    + ")]
        if added:
            found.setdefault(lines[place], []).extend(added)
    return found


def by_plan() -> str:
    return request.headers.get("X-Plan", "")


def user() -> str:
    return "ann"


def is_internal() -> bool:
    return False


def is_probe() -> bool:
    return False


def is_vip() -> bool:
    return False


def failed(response: Any) -> bool:
    return bool(response.status_code == 401)


def tell(told: Any) -> None:
    assert told is not None


def units() -> int:
    return 2


def part(endpoint: str) -> str:
    return endpoint


def limits_now() -> str:
    return "3/minute"


def search() -> str:
    return "found"


def limited(*limits: Any, methods: tuple[str, ...] = ("GET",), **options: Any) -> Flask:
    app = Flask("shop")
    limiter = Limiter(get_remote_address, app=app, strategy="moving-window", **options)
    view: Any = search
    for limit in limits:
        view = limit(limiter)(view)
    app.route("/", endpoint="search", methods=methods)(view)
    return app


@pytest.mark.parametrize(
    ("limit", "declaration"),
    [
        (lambda it: it.limit("3/minute"), 'type=IP, rules="3/minute"'),
        (lambda it: it.limit("3 per minute,20/2hours | 90/day"), 'type=IP, rules="3/minute; 20 per 2 hours; 90/day"'),
        (lambda it: it.limit("100/year"), "type=IP, rules=[Rule(31104000, 100)]"),
        (lambda it: it.limit("0/minute"), "type=IP, rules=lambda: 0"),
        (lambda it: it.limit(limits_now), "type=IP, rules=limits_now"),
        (lambda it: it.limit(lambda: "3/minute"), "type=IP, rules=RULES"),
        (lambda it: it.shared_limit("3/minute", "mail"), 'type=IP, rules="3/minute", scope="mail"'),
        (lambda it: it.limit("3/minute", scope="part"), 'type=IP, rules="3/minute", scope="search:part"'),
        (
            lambda it: it.limit("3/minute", scope=part),
            'type=(IP, lambda: part(request.endpoint or "")), name="IP_part", rules="3/minute"',
        ),
        (lambda it: it.limit("3/minute", methods=["GET"]), 'type=IP, rules="3/minute", methods=["GET"]'),
        (lambda it: it.limit("4/minute", cost=2), 'type=IP, rules="4/minute", cost=2'),
        (lambda it: it.limit("4/minute", cost=units), 'type=IP, rules="4/minute", cost=units'),
        (
            lambda it: it.limit("3/minute", exempt_when=is_internal),
            'type=IP, rules="3/minute", exempt_when=is_internal',
        ),
        (lambda it: it.limit("3/minute", deduct_when=failed), 'type=IP, rules="3/minute", charge_when=failed'),
        (lambda it: it.limit("3/minute", error_message="wait"), 'type=IP, rules="3/minute", message="wait"'),
        (
            lambda it: it.limit("3/minute", error_message=user),
            'type=IP, rules="3/minute", message=lambda decision: user()',
        ),
        (
            lambda it: it.shared_limit("3/minute", part),
            'type=(IP, lambda: part(request.endpoint or "")), name="IP_part", rules="3/minute", scope="part"',
        ),
        (
            lambda it: it.limit("3/minute", meta_limits=["5/hour"]),
            'type=IP, rules="3/minute", ban=Ban(after=5, within=3600, time=3600, factor=1)',
        ),
        (
            lambda it: it.limit("3/minute", meta_limits=["5/month"]),
            'type=IP, rules="3/minute", ban=Ban(after=5, within=2592000, time=2592000, factor=1, most=2592000)',
        ),
        (lambda it: it.limit("3/minute", on_breach=tell), 'type=IP, rules="3/minute", on_rejected=tell'),
        (lambda it: it.limit("3/minute", override_defaults=False), 'type=IP, rules="3/minute", with_defaults=True'),
        (lambda it: it.limit("3/minute", key_func=by_plan), 'type=by_plan, name="by_plan", rules="3/minute"'),
        (lambda it: it.limit("3/minute", key_func=user), 'type=user, name="by_user", rules="3/minute"'),
        (lambda it: it.limit("3/minute", key_func=lambda: "all"), 'type=KEY, name="KEY", rules="3/minute"'),
        (
            lambda it: it.limit("3/minute", key_func=get_remote_address_cloudflare),
            'type=get_remote_address_cloudflare, name="client", rules="3/minute"',
        ),
    ],
)
def test_each_option_becomes_a_declaration(limit: Any, declaration: str) -> None:
    app = limited(limit)
    assert f"    + @rate_limiter({declaration})\n" in printed(app)
    assert_printed_declarations_run(app)


@pytest.mark.parametrize("name", usages.USAGES)
def test_printed_declarations_of_public_apps_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, library(OURS, patch.setattr) as lib:
        usages.USAGES[name](lib)
        assert_printed_declarations_run(lib.latest.app)


def assert_printed_declarations_run(app: Flask) -> None:
    """Write what is printed for ``app`` into an app of its own, and ask each of its endpoints."""
    names: dict[str, Any] = {name: getattr(flask_multilimit, name) for name in flask_multilimit.__all__}
    names |= {"functools": functools, "request": request}
    for state in InForce.all_of(app):
        writer = Writer(state)
        list(writer.moves())
        names |= writer.names
    written, moved = written_in(printed(app)), Flask("moved")
    moved.config |= {name: value for name, value in app.config.items() if "LIMIT_" not in name}
    lists: dict[str, Any] = {"default_limits": [], "application_limits": []}
    for name, found in lists.items():
        found += [eval(line, names) for line in written.pop(f"MultiLimit(app, {name}=[...])", [])]
    MultiLimit(moved, **lists)
    endpoints = {f"{view.__module__}.{view.__qualname__}": endpoint for endpoint, view in app.view_functions.items()}
    for where, lines in written.items():
        if where.startswith("blueprint "):
            names["blueprint"] = Blueprint(re.sub(r"\W", "", where), __name__)
            names["blueprint"].add_url_rule(f"/{where}", "view", lambda: "ok")
            exec("\n".join(lines), names)
            moved.register_blueprint(names["blueprint"])
        elif lines[0].startswith("@"):
            exec("\n".join([*reversed(lines), "def view(**_): return 'ok'"]), names)
            for route in app.url_map.iter_rules(endpoints[where]) if where in endpoints else ():
                moved.add_url_rule(route.rule, route.endpoint, names["view"], methods=route.methods)
        else:
            ban = lines[0].startswith("ban=")
            exec(f"rate_limiter(rules='9/minute', {lines[0]})" if ban else "\n".join(lines), names)
    for route in list(moved.url_map.iter_rules()):
        for method in (route.methods or set()) & {"GET", "POST"}:
            path, headers = re.sub("<.*?>", "1", route.rule), {"CF-Connecting-IP": "203.0.113.7"}
            assert moved.test_client().open(path, method=method, headers=headers).status_code < 500, route


@pytest.mark.parametrize(
    ("methods", "given", "expected"),
    [
        (("GET", "POST"), None, "GET POST"),
        (("GET", "POST", "PUT"), ["GET", "POST"], "GET POST"),
        (("GET",), None, "GET"),
    ],
)
def test_per_method_becomes_one_limiter_for_each_method(
    methods: tuple[str, ...], given: list[str] | None, expected: str
) -> None:
    app = limited(lambda it: it.limit("3/minute", per_method=True, methods=given), methods=methods)
    assert re.findall(r'rules="3/minute", methods=\["(\w+)"\]\)', printed(app)) == expected.split()
    assert_printed_declarations_run(app)


@pytest.mark.parametrize("registered", ["api", "other"])
def test_limits_per_method_of_a_blueprint_and_of_all_views_name_the_methods_of_their_routes(registered: str) -> None:
    app = limited(default_limits=["9/minute"], default_limits_per_method=True, methods=("GET", "POST"))
    blueprint = Blueprint("api", __name__)
    blueprint.add_url_rule("/api", "view", search, methods=("PUT", "DELETE"))
    for state in InForce.all_of(app):
        state.limiter.limit("3/minute", per_method=True)(blueprint)
    app.register_blueprint(blueprint, name=registered)

    found = re.findall(r'rules="(.*)", methods=\["(\w+)"\]\)', printed(app))

    assert [method for text, method in found if text == "3/minute"] == ["DELETE", "PUT"]
    assert [method for text, method in found if text == "9/minute"] == ["DELETE", "GET", "POST", "PUT"]


def test_second_limit_of_the_same_window_gets_a_scope() -> None:
    app = limited(lambda it: it.limit("3/minute"), lambda it: it.limit("5/minute", deduct_when=failed))
    assert '+ @rate_limiter(type=IP, rules="5/minute", charge_when=failed, scope="search.1")' in printed(app)
    assert_printed_declarations_run(app)


def test_limit_beside_a_default_of_the_same_window_gets_a_scope() -> None:
    app = limited(
        lambda it: it.limit("3/minute", override_defaults=False),
        default_limits=["9/minute"],
        default_limits_exempt_when=is_vip,
    )

    assert '+ @rate_limiter(type=IP, rules="3/minute", with_defaults=True, scope="search.0")' in printed(app)
    assert_printed_declarations_run(app)


@pytest.mark.parametrize("overriding", ["blueprint", "view"])
def test_limit_keeps_the_defaults_away_where_another_limit_overrides_them(app: Flask, overriding: str) -> None:
    limiter = Limiter(get_remote_address, app=app, default_limits=["2/minute"])
    blueprint = Blueprint("api", __name__)
    view = limiter.limit("5/minute", override_defaults=False)(lambda: "ok")
    if overriding == "view":
        view = limiter.limit("9/hour")(view)
    else:
        limiter.limit("9/hour")(blueprint)
    blueprint.add_url_rule("/", "view", view)
    app.register_blueprint(blueprint)

    assert '+ @rate_limiter(type=IP, rules="5/minute")\n' in printed(app)


def test_defaults_blueprints_filters_and_callbacks_become_declarations(app: Flask) -> None:
    limiter = Limiter(
        get_remote_address,
        app=app,
        default_limits=[Limit("50/hour", cost=2), "9/second"],
        application_limits=[ApplicationLimit("1000/day")],
        meta_limits=["5/day"],
        on_breach=tell,
    )
    limiter.request_filter(is_internal)
    limiter.limit("7/minute", scope="x")(Blueprint("api", __name__))
    limiter.exempt(Blueprint("admin", __name__), flags=ExemptionScope.DEFAULT)

    text = printed(app)

    for line in (
        'blueprint "api"\n    - @limiter.limit("7/minute")\n    + rate_limiter(type=IP, rules="7/minute")(blueprint)\n',
        'blueprint "admin"\n    - @limiter.exempt(flags=DEFAULT)\n    + exempt("default")(blueprint)\n',
        'MultiLimit(app, default_limits=[...])\n    - Limit("50/hour")\n',
        '    + rate_limiter(type=IP, rules="50/hour", cost=2)\n',
        '    + rate_limiter(type=IP, rules="1000/day")\n',
        "limit = functools.partial(rate_limiter, exempt_when=is_internal)",
        "MultiLimit(app, on_rejected=...)\n    - on_breach\n    + on_rejected=tell\n",
        "fixed-window admits up to twice the count",
        'meta_limits\n    - "5/day"\n    + ban=Ban(after=5, within=86400, time=86400, factor=1)',
    ):
        assert line in text, text
    assert_printed_declarations_run(app)


def test_every_request_filter_exempts_from_every_printed_limit() -> None:
    app = limited(lambda it: it.limit("3/minute", exempt_when=is_vip))
    for each in InForce.all_of(app):
        each.limiter.request_filter(is_internal)
        each.limiter.request_filter(is_probe)

    text = printed(app)

    assert (
        '+ @rate_limiter(type=IP, rules="3/minute", exempt_when=lambda: is_vip() or is_internal() or is_probe())'
        in text
    )
    assert re.findall(r"\+ limit = .*", text) == [
        "+ limit = functools.partial(rate_limiter, exempt_when=lambda: is_internal() or is_probe())"
    ]
    assert_printed_declarations_run(app)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (ExemptionScope.APPLICATION, '@exempt("application")'),
        (ExemptionScope.DEFAULT, '@exempt("default")'),
        (ExemptionScope.APPLICATION | ExemptionScope.DEFAULT, '@exempt("application", "default")'),
        (ExemptionScope.META, None),
    ],
)
def test_exempt_view_gets_the_same_exemptions(flags: ExemptionScope, expected: str | None) -> None:
    app = limited(lambda it: it.limit("3/minute"), lambda it: it.exempt(flags=flags), default_limits=["9/minute"])
    written = written_in(printed(app)).get(f"{__name__}.search")
    assert written == (expected and [expected]), "its own limit is off"
    assert_printed_declarations_run(app)


def test_every_limiter_of_the_app_is_printed(app: Flask) -> None:
    for text in ("1/minute", "2/hour"):
        app.get(f"/{text}", endpoint=text[0])(Limiter(get_remote_address, app=app).limit(text)(search))

    text = printed(app)

    assert re.findall("# Limiter .*|rules=.*", text) == [
        *("# Limiter 1 of 2, with key_func flask_multilimit.compat.flask_limiter.util.get_remote_address",),
        'rules="1/minute")',
        *("# Limiter 2 of 2, with key_func flask_multilimit.compat.flask_limiter.util.get_remote_address",),
        'rules="2/hour")',
    ]
    assert text.count("The strategy fixed-window") == 1


def test_lambda_is_identified_by_file_and_line() -> None:
    app = limited(lambda it: it.limit(lambda: "3/minute"), lambda it: it.limit(lambda: "5/hour"))
    assert re.findall(r"(RULES\w*) is <lambda> at .*test_migrate.py:\d+", printed(app)) == ["RULES", "RULES_2"]


@pytest.mark.parametrize(
    "metas",
    [["5/hour", lambda: "9/day"], ["0/hour"], ["5/hour; 9/day"]],
    ids=["callable", "zero", "two limits"],
)
def test_meta_limits_that_are_not_one_ban_get_a_note(metas: list[str | Callable[[], str]]) -> None:
    text = printed(limited(lambda it: it.limit("3/minute", meta_limits=metas)))
    assert "meta limits become a ban: one for each limiter, not from a callable" in text


def test_migrate_without_a_limiter_is_an_error() -> None:
    app = limited(lambda it: it.limit("3/minute"))
    app.extensions["multilimit.flask_limiter"].clear()

    result = app.test_cli_runner().invoke(args=["multilimit", "migrate"])

    assert result.exit_code == 1
    assert "No Flask-Limiter extension installed on <Flask 'shop'>" in result.output


def test_printed_declarations_of_the_guide_example_run() -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "flask-limiter-by-hand.md"
    text = page.read_text(encoding="utf-8").partition("% example: before\n```python\n")[2].partition("```")[0]
    namespace: dict[str, Any] = {"__name__": "shop"}
    exec(compile(text.replace("flask_limiter", "flask_multilimit.compat.flask_limiter"), "before", "exec"), namespace)

    printed_now = printed(namespace["app"])

    assert '+ @rate_limiter(type=IP, rules="3/minute; 20/hour")' in printed_now
    assert '+ @rate_limiter(type=IP, rules="2/hour", scope="mail")' in printed_now
    assert_printed_declarations_run(namespace["app"])


def test_printed_settings_limit_no_static_files() -> None:
    def app() -> Flask:
        made = Flask(__name__)
        made.register_blueprint(Blueprint("theme", __name__, static_folder=".", static_url_path="/theme"))
        return made

    before, after = app(), app()
    Limiter(get_remote_address, app=before, default_limits=["1/minute"])
    (written,) = re.findall(r"MULTILIMIT_EXEMPT = (\[.*\])", printed(before))
    after.config["MULTILIMIT_EXEMPT"] = json.loads(written)
    MultiLimit(after, default_limits="1/minute")
    for each in (before, after):
        assert [each.test_client().get("/theme/none.css").status_code for _ in range(3)] == [404] * 3
