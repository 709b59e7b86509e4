"""Who may see the dashboard, and its security headers."""

from typing import Any

import pytest
from flask import Flask, Response, abort, redirect, request
from flask.testing import FlaskClient
from flask_babel import Babel, lazy_gettext
from werkzeug.exceptions import ServiceUnavailable
from werkzeug.test import create_environ, run_wsgi_app

from flask_multilimit import IP, MultiLimit, rate_limiter
from flask_multilimit.dashboard import Dashboard
from flask_multilimit.engine import ConfigurationError
from flask_multilimit.engine.text import LONGEST_PREFERENCE
from support.changes import control_of

from .conftest import ROOT, browser_of, made
from .forms import send
from .test_changes import RULE, confirm


def test_authorized_visitors_see_the_page_with_their_name_and_are_not_throttled(basic_auth_app: Flask) -> None:
    for name in ("ada", "bob") * 12:
        answer = browser_of(name, basic_auth_app).get(ROOT)
        assert (answer.status_code, f">{name}<" in answer.text) == (200, True)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("body", ["", "{", '{"error": "who are you?"}'])
def test_authorize_may_answer_with_any_json(method: str, body: str) -> None:
    app = made(dashboard={"authorize": lambda: abort(Response(body, 401, mimetype="application/json"))})
    assert app.test_client().open(ROOT, method=method).status_code == 401


@pytest.mark.parametrize("page", ["", "api/now"])
def test_authorize_may_abort_with_a_lazy_text(page: str) -> None:
    app = made(dashboard={"authorize": lambda: abort(403, lazy_gettext("Not you"))})
    Babel(app)

    answer = app.test_client().get(ROOT + page)

    assert (answer.status_code, "Not you" in answer.text) == (403, True)


@pytest.mark.parametrize("returned", [True, 7, b"ada", "x" * 201])
def test_authorize_that_returns_no_name_is_an_error(returned: Any) -> None:
    app = made(dashboard={"authorize": lambda: returned}, PROPAGATE_EXCEPTIONS=True)
    with pytest.raises(ConfigurationError, match="authorize returned"):
        app.test_client().get(ROOT)


def test_registration_without_authorize_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="give authorize="):
        made(dashboard={"authorize": None})


@pytest.mark.parametrize("host", ["localhost:5000", "shop.localhost:5000", "127.0.0.1", "127.0.0.1:5000", "[::1]:5000"])
def test_debug_mode_without_authorize_admits_this_machine_with_a_banner(host: str) -> None:
    answer, mapped = (
        debugged().test_client().get(ROOT, headers={"Host": host}, environ_base={"REMOTE_ADDR": address})
        for address in ("127.0.0.1", "::ffff:127.0.0.1")
    )

    assert answer.status_code == mapped.status_code == 200
    assert "anyone on this machine may see and change this" in answer.text


@pytest.mark.parametrize(
    "asking",
    [
        {"REMOTE_ADDR": "203.0.113.7"},
        {"HTTP_X_FORWARDED_FOR": "203.0.113.7"},
        {"HTTP_HOST": "evil.example:5000"},
        {"HTTP_HOST": "localhost.evil.example"},
        {"HTTP_HOST": "localhost:5000:5000"},
    ],
    ids=["other address", "over a proxy", "other host", "longer host", "malformed host"],
)
def test_debug_mode_without_authorize_refuses_other_machines(asking: dict[str, str]) -> None:
    """Without the test client: that of older werkzeug releases refuses malformed hosts."""
    _, status, _ = run_wsgi_app(debugged(), {**create_environ(ROOT), "REMOTE_ADDR": "127.0.0.1", **asking})
    assert status.startswith("403")


def test_dashboard_without_authorize_is_closed_when_debug_mode_ends() -> None:
    app = debugged()
    app.debug = False
    assert app.test_client().get(ROOT).status_code == 403


@pytest.mark.parametrize("name", ["authorize", "may_change"])
def test_callback_that_is_not_callable_is_an_error(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}='ada'"):
        made(dashboard={name: "ada"})


def test_multilimit_of_another_app_is_an_error() -> None:
    app = Flask("shop")
    MultiLimit(app)
    with pytest.raises(ConfigurationError, match="does not have the MultiLimit"):
        app.register_blueprint(Dashboard(MultiLimit(), authorize=lambda: "ada"))


def test_multilimit_may_be_initialised_after_the_dashboard() -> None:
    app, multilimit = Flask("shop"), MultiLimit()
    app.register_blueprint(Dashboard(multilimit, authorize=lambda: "ada"))
    multilimit.init_app(app)
    assert app.test_client().get(ROOT).status_code == 200


@pytest.mark.parametrize("page", ["", "api/now"])
def test_security_headers_of_pages_are_strict(app: Flask, ada: FlaskClient, page: str) -> None:
    for answer, status in ((ada.get(ROOT + page), 200), (app.test_client().get(ROOT + page), 403)):
        policy = answer.headers["Content-Security-Policy"]

        assert answer.status_code == status
        assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "same-origin"
        assert answer.headers["Cache-Control"] == "no-store"


def test_security_headers_of_pages_stay_strict_beside_those_of_the_app(app: Flask, ada: FlaskClient) -> None:
    @app.after_request
    def loosen(response: Response) -> Response:  # as Flask-Talisman does, for example in Superset
        response.headers["Content-Security-Policy"] = "script-src 'nonce-1' 'strict-dynamic'"
        response.headers["X-Frame-Options"] = "SAMEORIGIN"
        response.headers["Cache-Control"] = "public"
        return response

    app.add_url_rule("/own", "own", lambda: "own")

    ours, own = ada.get(ROOT).headers, ada.get("/own").headers

    assert (ours["X-Frame-Options"], own["X-Frame-Options"]) == ("DENY", "SAMEORIGIN")
    assert (ours["Cache-Control"], own["Cache-Control"]) == ("no-store", "public")
    assert ours["Content-Security-Policy"].startswith("default-src 'none'")
    assert "nonce" in own["Content-Security-Policy"]


def test_response_that_the_app_sends_on_all_paths_keeps_its_own_fields_elsewhere() -> None:
    app = made()
    kept = Response("closed", headers={"Content-Security-Policy": "img-src *"})
    app.before_request(lambda: kept)

    ours, own = (browser_of("ada", app).get(path).headers for path in (ROOT, "/open"))

    assert (ours["X-Frame-Options"], ours["Cache-Control"]) == ("DENY", "no-store")
    assert own["Content-Security-Policy"] == "img-src *"
    assert {"X-Frame-Options", "Cache-Control", "Vary"}.isdisjoint(own.keys())


def test_response_of_a_view_in_place_of_a_page_does_not_tell_the_quota_of_another_client() -> None:
    app, kept = made(), redirect("/login")
    app.add_url_rule("/kept", "kept", rate_limiter(type=IP, rules="2/minute")(lambda: kept))
    app.before_request(lambda: kept if request.path == ROOT else None)

    limited, ours = (app.test_client().get(path).headers for path in ("/kept", ROOT))

    assert "RateLimit" in limited
    assert (ours["Location"], "RateLimit" in ours) == ("/login", False)


def test_no_other_site_may_read_pages_although_the_app_lets_it_read_everything(app: Flask, ada: FlaskClient) -> None:
    @app.after_request
    def share(response: Response) -> Response:  # as Flask-CORS does
        response.headers["Access-Control-Allow-Origin"] = "https://blog.example"
        response.headers["Access-Control-Allow-Credentials"] = "true"
        return response

    app.add_url_rule("/own", "own", lambda: "own")

    shared = {path: "Access-Control-Allow-Origin" in ada.get(path).headers for path in ("/own", ROOT, f"{ROOT}api/now")}

    assert shared == {"/own": True, ROOT: False, f"{ROOT}api/now": False}


@pytest.mark.parametrize(
    "name",
    [
        *("../shell.py", "..%2fshell.py", "%2e%2e/shell.py", "..%5cshell.py", "/etc/passwd", "%2fetc%2fpasswd", ""),
        *("dashboard.css%00.svg", "slider.js/../../templates/base.html"),
    ],
)
def test_static_route_serves_no_other_files(app: Flask, name: str) -> None:
    assert app.test_client().get(f"{ROOT}static/{name}", follow_redirects=True).status_code in {400, 404}


@pytest.mark.parametrize(
    "target",
    ["//evil.example/multilimit/", "/multilimit//evil.example", "/multilimit", "/multilimit/what-if"],
)
@pytest.mark.parametrize("host", ["localhost", "evil.example"], ids=["own host", "forged host"])
def test_answers_never_link_to_another_site(app: Flask, ada: FlaskClient, target: str, host: str) -> None:
    query = "lang=//evil.example&next=https://evil.example&endpoint=//evil.example"
    environ = {**create_environ("/", headers={"Host": host}), **ada.environ_base, "QUERY_STRING": query}

    body, status, headers = run_wsgi_app(app, {**environ, "PATH_INFO": target})

    location, text = headers.get("Location", ""), b"".join(body).decode()
    assert "evil.example" not in location.removeprefix(f"http://{host}").partition("?")[0]
    for attribute in ("href", "src", "action") if status.startswith("200") else ():
        assert f'{attribute}="//' not in text
        assert f'{attribute}="http' not in text


def test_chosen_language_is_remembered(ada: FlaskClient) -> None:
    assert '<html lang="en"' in ada.get(ROOT).text
    assert '<html lang="zh-Hans"' in ada.get(ROOT, headers={"Accept-Language": "zh-CN,zh;q=0.9,en;q=0.8"}).text
    assert '<html lang="en"' in ada.get(ROOT, headers={"Accept-Language": f"zh{',fr' * LONGEST_PREFERENCE}"}).text
    assert '<html lang="zh-Hans"' in ada.get(f"{ROOT}?lang=zh").text
    assert '<html lang="zh-Hans"' in ada.get(ROOT).text
    assert '<html lang="zh-Hans"' in ada.get(f"{ROOT}?lang=fr").text


def debugged() -> Flask:
    app = Flask("shop")
    app.debug = True
    app.register_blueprint(Dashboard(MultiLimit(app)))
    return app


# Visitors who are not authorized


def basic_auth() -> str | None:
    """The user name, if the password is right."""
    given = request.authorization
    if given is None:
        return None
    return given.username if given.password == "secret" else abort(401)


@pytest.fixture
def basic_auth_app() -> Flask:
    """An app whose operators log in by HTTP basic."""
    return made(dashboard={"authorize": basic_auth})


def guess(app: Flask, path: str = ROOT, **options: Any) -> int:
    return app.test_client().get(path, auth=("ada", "wrong"), **options).status_code


def test_anonymous_visits_are_throttled_without_locking_out_operators(basic_auth_app: Flask) -> None:
    stranger = basic_auth_app.test_client()
    assert [stranger.get(ROOT).status_code for _ in range(12)] == [403] * 10 + [429] * 2
    assert browser_of("ada", basic_auth_app).get(ROOT).status_code == 200
    assert stranger.get(ROOT).status_code == 429


@pytest.mark.parametrize("answer", [401, Response(status=401), redirect("/login")], ids=str)
def test_visitors_without_credentials_always_get_the_login_answer(answer: Any) -> None:
    stranger = made(dashboard={"authorize": lambda: abort(answer)}).test_client()
    assert {stranger.get(ROOT).status_code for _ in range(12)} == {getattr(answer, "status_code", answer)}


@pytest.mark.parametrize(
    "names",
    [
        ["X-Forwarded-Scheme", "X-Original-Forwarded-For", "X-Scheme"],
        ["Connect-Time", "Total-Route-Time", "X-Request-Start"],
        ["B3", "X-B3-TraceId", "X-Envoy-External-Address"],
        ["CloudFront-Viewer-Country", "X-Amz-Cf-Id"],
        ["Fly-Client-IP", "Fly-Forwarded-Proto", "Fly-Region", "X-Forwarded-Ssl"],
        ["X-Cloud-Trace-Context"],
        ["Client-IP", "Disguised-Host", "Max-Forwards", "Was-Default-Hostname", "X-AppService-Proto", "X-Arr-Log-Id"],
        ["X-Arr-Ssl", "X-Client-Port", "X-Forwarded-TlsVersion", "X-Original-Url", "X-Site-Deployment-Id"],
    ],
    ids=["ingress-nginx", "heroku", "envoy", "cloudfront", "fly", "google", "azure", "azure with TLS"],
)
def test_fields_of_proxies_make_no_visit_a_guess(names: list[str]) -> None:
    stranger = made(dashboard={"authorize": lambda: abort(401)}).test_client()
    assert {stranger.get(ROOT, headers=dict.fromkeys(names, "1")).status_code for _ in range(12)} == {401}


def test_fields_of_an_unknown_proxy_keep_nobody_out_who_logs_in(basic_auth_app: Flask) -> None:
    fields = {"X-Edge-Id": "1"}
    stranger = basic_auth_app.test_client()
    assert [stranger.get(ROOT, headers=fields).status_code for _ in range(12)] == [403] * 10 + [429] * 2
    assert browser_of("ada", basic_auth_app).get(ROOT, headers=fields).status_code == 200


def test_guesses_are_throttled_by_address_even_with_the_right_password(basic_auth_app: Flask) -> None:
    assert [guess(basic_auth_app) for _ in range(12)] == [401] * 10 + [429] * 2
    assert browser_of("ada", basic_auth_app).get(ROOT).status_code == 429
    assert browser_of("ada", basic_auth_app).get(ROOT, environ_base={"REMOTE_ADDR": "198.51.100.7"}).status_code == 200


@pytest.mark.parametrize("change", [{"off": True}, {"shadow": True}, {"times": 1000}], ids=str)
def test_guesses_are_throttled_whatever_overrides_say(basic_auth_app: Flask, change: dict[str, Any]) -> None:
    control_of(basic_auth_app).override("*", **change, for_="1h", force=True)
    assert [guess(basic_auth_app) for _ in range(12)] == [401] * 10 + [429] * 2


@pytest.mark.parametrize(
    "guessing",
    [
        {"headers": {"X-Api-Key": "guess"}},
        {"headers": {"Cookie": "session=guess"}},
        {"query_string": {"token": "x"}},
        {"data": {"token": "x"}},
    ],
    ids=["header", "cookie", "query", "form"],
)
def test_guesses_are_throttled_in_every_part_of_a_request(guessing: dict[str, Any]) -> None:
    asked: list[str] = []
    app = made(dashboard={"authorize": lambda: asked.append(request.values.get("token", ""))})

    stranger = app.test_client(use_cookies=False)
    answers = [stranger.post(f"{ROOT}change", **guessing).status_code for _ in range(12)]

    assert answers == [403] * 10 + [429] * 2
    assert len(asked) == 10


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        *((Response(status=401), 401), (Response(status=403), 403), (redirect("/login"), 302)),
        *((ValueError, 500), (ServiceUnavailable, 503)),
    ],
    ids=str,
)
def test_guesses_are_throttled_with_every_answer_of_authorize(answer: Any, status: int) -> None:
    """Some hash functions raise when a password is wrong."""

    def authorize() -> str:
        if isinstance(answer, type):
            raise answer
        abort(answer)

    app = made(dashboard={"authorize": authorize})

    assert [guess(app) for _ in range(12)] == [status] * 10 + [429] * 2


def test_concurrent_guesses_call_authorize_ten_times() -> None:
    asked: list[Any] = []

    def authorize() -> str | None:
        asked.append(request.authorization)
        if len(asked) < 30:
            guess(app)  # another one, before this one is answered
        return basic_auth()

    app = made(dashboard={"authorize": authorize})
    guess(app)

    assert len(asked) == 10


def test_known_browser_works_while_others_guess_from_its_address(basic_auth_app: Flask) -> None:
    ada = browser_of("ada", basic_auth_app)
    page = confirm(ada, **RULE)
    lists = ada.get(page.location)
    for _ in range(12):
        guess(basic_auth_app)

    assert send(ada, lists, ending="/undo").status_code == 303


def test_guesses_with_new_cookies_are_throttled_together(basic_auth_app: Flask) -> None:
    def guess_with_new_cookie() -> int:
        ada = browser_of("ada", basic_auth_app)
        ada.get(ROOT)
        return ada.get(ROOT, auth=("bob", "wrong")).status_code

    assert [guess_with_new_cookie() for _ in range(12)] == [401] * 10 + [429] * 2


@pytest.mark.parametrize("setting", ["deny", "raise"])
def test_dashboard_answers_while_storage_is_away_and_requests_to_the_app_are_denied(setting: str) -> None:
    app = made("redis://127.0.0.1:1", MULTILIMIT_ON_STORAGE_ERROR=setting)
    assert browser_of("ada", app).get(f"{ROOT}limits").status_code == 200


@pytest.mark.parametrize("at", ["*", "multi*", "multilimit"])
def test_override_of_a_pattern_does_not_limit_the_dashboard(at: str) -> None:
    app = made()
    ada = browser_of("ada", app)
    entry = control_of(app).override(at, limit="1/hour", for_="1h", force=True)

    ada.get(ROOT + "static/slider.css", buffered=True).close()
    pages = [ada.get(ROOT + page) for page in ("", "limits", "lists")]

    assert [page.status_code for page in pages] == [200] * 3
    assert send(ada, pages[-1], ending="/undo", id=entry.id).status_code == 303


@pytest.mark.parametrize(("preferred", "lang"), [("en", "en"), ("zh-CN", "zh-Hans")])
@pytest.mark.parametrize("path", [ROOT, f"{ROOT}limits", f"{ROOT}lists?undone=x"])
def test_refusal_page_shows_its_language_and_nothing_about_the_app(path: str, preferred: str, lang: str) -> None:
    app = made(MULTILIMIT_ENABLED=False)

    page = app.test_client().get(path, headers={"Accept-Language": preferred})

    assert (page.status_code, page.mimetype) == (403, "text/html")
    assert f'<html lang="{lang}">' in page.text
    for word in ("shop", "multilimit", "nav", "MULTILIMIT", "stylesheet"):
        assert word not in page.text
    assert "Set-Cookie" not in page.headers


@pytest.mark.parametrize("page", ["api/", "api/now", "api/openapi.json"])
def test_api_below_a_prefix_refuses_in_json(page: str) -> None:
    answer = made().test_client().get(ROOT + page, environ_overrides={"SCRIPT_NAME": "/shop"})
    assert (answer.status_code, answer.get_json()) == (403, {"error": "You may not see this page."})


@pytest.mark.parametrize("query", ["lists?undone=everything", "subject?who=192.0.2.1&done=9"])
def test_forged_link_shows_no_message_of_a_change(ada: FlaskClient, query: str) -> None:
    assert 'class="done"' not in ada.get(ROOT + query).text


def test_message_of_a_change_is_shown_only_to_its_author(app: Flask, ada: FlaskClient) -> None:
    lists = ada.get(confirm(ada, **RULE).location)
    address = send(ada, lists, ending="/undo").location
    assert "Undone in all workers" in ada.get(address).text
    assert "Undone in all workers" not in browser_of("bob", app).get(address).text


def test_existing_static_files_are_cached_without_cookies(app: Flask) -> None:
    stranger = app.test_client()

    found, missing = (stranger.get(f"{ROOT}static/{name}?lang=zh") for name in ("dashboard.css", "none.css"))
    with found, missing:
        assert (found.headers["Cache-Control"], found.headers.getlist("Set-Cookie")) == ("max-age=31536000", [])
        known = {"If-None-Match": found.headers["ETag"]}
        assert stranger.get(f"{ROOT}static/dashboard.css", headers=known).status_code == 304
        assert (missing.status_code, missing.headers["Cache-Control"]) == (404, "no-store")
        assert "Set-Cookie" not in missing.headers
