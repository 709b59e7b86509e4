"""What a refused client gets: `on_rejected`, messages, languages, and the header fields that are chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import flask_babel
import pytest
from flask import Flask, Response, abort, jsonify, redirect, render_template_string, request

from flask_multilimit import Decision, LimitType, MultiLimit, rate_limiter
from support.asking import ask, policy, statuses, view

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.doubles import RecordingStorage

ENGLISH = "Too many requests. Please try again later."
CHINESE = "访问过于频繁,请稍候再试"


def fail(_: Decision) -> None:
    raise KeyError("missing")


class Untranslatable:
    """A lazy translation that fails."""

    def __str__(self) -> str:
        raise KeyError("no such text")


def refuse(app: Flask, path: str = "/", **headers: str) -> Any:
    """The answer to the second request, in JSON unless asked for else."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    given = {"Accept": "application/json", **headers}
    return [ask(app, path, headers=given) for _ in range(2)][1]


def limit(app: Flask, storage: RecordingStorage, level: str, **options: Any) -> None:
    """A view, by ``options`` of its limiter or of the app."""
    MultiLimit(app, storage=storage, **options if level == "app" else {})
    limiter = rate_limiter(rules="1/minute", **options if level == "limiter" else {})
    app.add_url_rule("/", "view", limiter(view()))


def assert_default(refusal: Any) -> None:
    assert refusal.status_code == 429
    assert refusal.json["violated-policies"] == ["default-60s"]


def detail(app: Flask, **headers: str) -> str:
    return str(refuse(app, **headers).json["detail"])


class TestOnRejected:
    @pytest.mark.parametrize(
        ("answer", "status", "text"),
        [
            (lambda decision: f"wait {decision.retry_after:.0f}", 200, "wait 60"),
            (lambda _: ("busy", 503), 503, "busy"),
            (lambda _: jsonify(busy=True), 200, '{"busy":true}\n'),
            (lambda _: {"busy": True}, 200, '{"busy":true}\n'),
            (lambda _: redirect("/captcha"), 302, None),
            (lambda _: render_template_string("{{ request.path }}"), 200, "/"),
            (lambda _: Response("own", 429), 429, "own"),
        ],
    )
    @pytest.mark.parametrize("level", ["limiter", "app"])
    def test_the_answer_of_on_rejected_is_the_response(
        self, app: Flask, storage: RecordingStorage, answer: Any, status: int, text: str | None, level: str
    ) -> None:
        MultiLimit(app, storage=storage, on_rejected=answer if level == "app" else None)
        own = answer if level == "limiter" else None
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute", on_rejected=own)(view()))

        response = refuse(app)

        assert response.status_code == status
        assert text is None or response.text == text
        assert policy(response) == ["default-60s"], "what it returns has header fields like every response"

    def test_returning_nothing_it_only_looks_on(self, app: Flask, storage: RecordingStorage) -> None:
        seen: list[Decision] = []
        MultiLimit(app, storage=storage, on_rejected=seen.append)
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute")(view()))

        assert refuse(app).status_code == 429
        assert [decision.retry_after for decision in seen] == [60]

    def test_of_the_limiter_goes_before_that_of_the_app(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage, on_rejected=lambda _: "app", default_limits="1/minute")
        app.add_url_rule("/", "own", rate_limiter(rules="1/minute", on_rejected=lambda _: "limiter")(view()))
        app.add_url_rule("/other", "other", view())

        assert (refuse(app).text, refuse(app, "/other").text) == ("limiter", "app")

    def test_is_that_of_the_limiter_with_the_longest_wait(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage)
        brief = rate_limiter(rules="1/second", on_rejected=lambda _: "brief")
        long = rate_limiter(type=LimitType.IP, rules="1/minute", on_rejected=lambda _: "long")
        app.add_url_rule("/", "view", brief(long(view())))

        assert refuse(app).text == "long"

    def test_leaves_error_handlers_out_only_if_it_returns_something(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        app.register_error_handler(429, lambda _: ("handled", 429))
        MultiLimit(app, storage=storage)
        app.add_url_rule("/", "looks", rate_limiter(rules="1/minute", on_rejected=lambda _: None)(view()))
        app.add_url_rule("/a", "answers", rate_limiter(rules="1/minute", on_rejected=lambda _: ("mine", 429))(view()))

        assert refuse(app).text == "handled"
        assert refuse(app, "/a").text == "mine"

    def test_may_refuse_in_another_way(self, app: Flask, storage: RecordingStorage) -> None:
        def forbid(_: Decision) -> None:
            raise PermissionError

        app.register_error_handler(PermissionError, lambda _: ("go away", 403))
        MultiLimit(app, storage=storage, unmatched_limits="1/minute", on_rejected=forbid)

        assert statuses(app, "/no", "/no") == [404, 403]

    @pytest.mark.parametrize("level", ["limiter", "app"])
    def test_that_fails_leaves_the_default_refusal(
        self, app: Flask, storage: RecordingStorage, caplog: pytest.LogCaptureFixture, level: str
    ) -> None:
        limit(app, storage, level, on_rejected=fail)

        assert_default(refuse(app))
        assert "Rate limits: on_rejected failed; the client gets the default refusal" in caplog.text

    @pytest.mark.parametrize("level", ["limiter", "app"])
    @pytest.mark.parametrize(
        "answer",
        [5, True, object(), ("a", "b", "c", "d"), {"a": object()}, "\ud800", ("x", {"X-A": "b\nc"})],
        ids=["number", "bool", "object", "tuple", "dict", "surrogate", "field"],
    )
    def test_that_returns_what_no_view_may_return_leaves_the_default_refusal(
        self, app: Flask, storage: RecordingStorage, answer: Any, level: str
    ) -> None:
        limit(app, storage, level, on_rejected=lambda _: answer)

        assert_default(refuse(app))

    def test_may_abort(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage, unmatched_limits="1/minute", on_rejected=lambda _: abort(418))

        assert statuses(app, "/no", "/no") == [404, 418]


class TestMessages:
    def test_a_callable_that_fails_leaves_the_default_message(
        self, app: Flask, storage: RecordingStorage, caplog: pytest.LogCaptureFixture
    ) -> None:
        MultiLimit(app, storage=storage)
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute", message=fail)(view()))

        assert detail(app) == "Too many requests. Please try again later."
        assert "Rate limits: message failed; the client gets the default refusal" in caplog.text

    @pytest.mark.parametrize("level", ["limiter", "setting"])
    @pytest.mark.parametrize(
        "message",
        [Untranslatable(), lambda _: Untranslatable(), lambda _: "\ud800", "\ud800"],
        ids=["lazy", "returned lazy", "returned surrogate", "surrogate"],
    )
    def test_that_cannot_be_made_into_text_leave_the_default_message(
        self, app: Flask, storage: RecordingStorage, message: Any, level: str
    ) -> None:
        app.config["MULTILIMIT_MESSAGE"] = message if level == "setting" else None
        MultiLimit(app, storage=storage)
        own = message if level == "limiter" else None
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute", message=own)(view()))

        assert [detail(app), ask(app, headers={"Accept": "text/plain"}).text.splitlines()[0]] == [ENGLISH] * 2

    def test_text_of_the_limiter_goes_before_the_setting(self, app: Flask, storage: RecordingStorage) -> None:
        app.config["MULTILIMIT_MESSAGE"] = "of the app"
        MultiLimit(app, storage=storage, default_limits="1/minute")
        app.add_url_rule("/", "own", rate_limiter(rules="1/minute", message="of the limiter")(view()))
        app.add_url_rule("/other", "other", view())

        assert detail(app) == "of the limiter"
        assert refuse(app, "/other").json["detail"] == "of the app"

    @pytest.mark.parametrize("level", ["limiter", "setting"])
    def test_callables_see_the_decision_and_the_request(
        self, app: Flask, storage: RecordingStorage, level: str
    ) -> None:
        def message(decision: Decision) -> str:
            return f"{request.path}: {decision.violated[0].name}, {decision.retry_after:.0f} s"

        app.config["MULTILIMIT_MESSAGE"] = message if level == "setting" else "another"
        MultiLimit(app, storage=storage)
        own = message if level == "limiter" else None
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute", message=own)(view()))

        assert detail(app) == "/: default-60s, 60 s"

    @pytest.mark.parametrize("level", ["limiter", "setting", "callable"])
    def test_lazy_translations_are_made_for_each_client(
        self, app: Flask, storage: RecordingStorage, level: str
    ) -> None:
        words = {"de": "Zu viele Anfragen", "en": "Too many requests"}
        flask_babel.Babel(app, locale_selector=lambda: request.accept_languages.best_match(list(words)))
        lazy = flask_babel.LazyString(lambda: words[str(flask_babel.get_locale())])
        app.config["MULTILIMIT_MESSAGE"] = lazy if level == "setting" else None
        MultiLimit(app, storage=storage)
        own: Any = {"limiter": lazy, "setting": None, "callable": lambda _: lazy}[level]
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute", message=own)(view()))

        assert detail(app, Accept_Language="de") == "Zu viele Anfragen"
        assert detail(app, Accept_Language="en") == "Too many requests"

    def test_lazy_gettext_of_flask_babel_is_taken(self, app: Flask, storage: RecordingStorage) -> None:
        flask_babel.Babel(app)
        MultiLimit(app, storage=storage)
        lazy: Any = flask_babel.lazy_gettext("Slow down")
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute", message=lazy)(view()))

        assert detail(app) == "Slow down"


class TestLanguages:
    @pytest.fixture
    def speaking(self, app: Flask, storage: RecordingStorage) -> Callable[[str], Flask]:
        def make(locale: str) -> Flask:
            app.config["MULTILIMIT_LOCALE"] = locale
            MultiLimit(app, storage=storage, default_limits="1/minute")
            app.add_url_rule("/", "view", view())
            return app

        return make

    @pytest.mark.parametrize(
        ("locale", "accepted", "expected"),
        [
            ("en", "zh", ENGLISH),
            ("zh", "en", CHINESE),
            ("zh", "", CHINESE),
            ("auto", "", ENGLISH),
            ("auto", "zh", CHINESE),
            ("auto", "zh-CN,zh;q=0.9,en;q=0.8", CHINESE),
            ("auto", "en-GB,en;q=0.9,zh;q=0.8", ENGLISH),
            ("auto", "de,fr;q=0.9", ENGLISH),
            ("auto", "de,zh-TW;q=0.5", CHINESE),
            ("auto", "zh-CN,en;q=0.5", CHINESE),
            ("auto", "en;q=0.5, zh-TW", CHINESE),
            ("auto", "zh-Hant-HK;q=0.2, en;q=0.1", CHINESE),
            ("auto", "zh-CN;q=0, en-US;q=0.1", ENGLISH),
            ("auto", "*", ENGLISH),
            ("auto", ";;,,\x00nonsense", ENGLISH),
        ],
    )
    def test_are_the_setting_s_or_the_client_s(
        self, speaking: Callable[[str], Flask], locale: str, accepted: str, expected: str
    ) -> None:
        assert detail(speaking(locale), Accept_Language=accepted) == expected

    def test_reach_every_kind_of_body(self, speaking: Callable[[str], Flask]) -> None:
        app = speaking("zh")

        text = refuse(app, Accept="text/plain").text
        page = refuse(app, Accept="text/html")

        assert text == f"{CHINESE}\n请在 60 秒后重试。\n"
        assert f"<p>{CHINESE}</p>" in page.text
        assert page.content_type == "text/html; charset=utf-8"
