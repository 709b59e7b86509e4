"""A browser's forms: found in a page, filled in, sent."""

from html.parser import HTMLParser
from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[dict[str, Any]] = []
        self._open = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._open = True
            action = given.get("action", "").partition("#")[0]  # a browser scrolls there, and does not send it
            self.forms.append({"action": action, "method": given.get("method", "get"), "fields": {}})
        elif tag == "input" and self._open and "name" in given:
            if given.get("type") in {"radio", "checkbox"} and "checked" not in given:
                return
            self.forms[-1]["fields"][given["name"]] = _brought_back(given)

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag != "form"


def _brought_back(given: dict[str, str]) -> str:
    """The value of an input, changed as browsers change it."""
    value = given.get("value", "").replace("\0", "\ufffd").replace("\r\n", "\n").replace("\r", "\n")
    return value.replace("\n", "\r\n" if given.get("type") == "hidden" else "")


def forms_of(page: str) -> list[dict[str, Any]]:
    parser = _Forms()
    parser.feed(page)
    return parser.forms


def send(
    browser: FlaskClient, page: TestResponse, *, ending: str, method: str | None = None, **fields: str
) -> TestResponse:
    """Send the first form of ``page`` whose action has this ending, with its own fields and ``fields``."""
    forms = [each for each in forms_of(page.text) if method in {None, each["method"]}]
    form = next(each for each in forms if each["action"].split("?")[0].endswith(ending))
    data = {**form["fields"], **fields}
    if form["method"] == "post":
        return browser.post(form["action"], data=data)
    return browser.get(form["action"], query_string=data)
