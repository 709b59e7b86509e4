"""Makes text safe to show: a client chooses its name, and must not be able to forge a line of a log or a row of a
screen.

What a terminal, a log viewer or a browser would obey, instead of showing it, becomes a Python escape sequence: new
lines (U+0085, U+2028 and U+2029 too), ESC and all other control characters (U+009B begins a command as ESC [ does),
characters that change the direction of text or have no width, lone surrogates, unassigned code points. Safe text stays
as it is, so escaping twice changes nothing. A space of any width stays.

The constants at the end say how long text from outside may be.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import partialmethod
from typing import Any
from unicodedata import category

__all__ = ["Phrase", "SafeLogger", "quoted", "unquoted", "visible", "visible_json", "visible_page"]

LOGGER = "flask_multilimit"
"""The logger of whatever has no app."""

_TAG_OR_TEXT = r"(<[^<>]*>)|[^<]+"


def visible(text: str, keep: str = "") -> str:
    """``text`` as one line that shows every character. Characters of ``keep`` stay."""
    if text.isprintable():
        return text
    return "".join([each if each in keep or _is_visible(each) else ascii(each)[1:-1] for each in text])


def visible_page(html: str) -> str:
    """``html`` with text that is safe to show. Its tags stay as they are, because forms send back what is in them."""
    if html.replace("\n", " ").isprintable():
        return html
    escaped = re.sub(_TAG_OR_TEXT, lambda match: match[1] or visible(match[0], keep="\n\t"), html)
    return escaped.encode("utf-8", "backslashreplace").decode()


def visible_json(value: Any, **options: Any) -> str:
    """``value`` as JSON that is safe to show: the same value to a program, with more characters escaped."""
    text = json.dumps(value, ensure_ascii=False, **options)
    if text.replace("\n", "").isprintable():
        return text
    return "".join([each if each == "\n" or _is_visible(each) else json.dumps(each)[1:-1] for each in text])


def quoted(text: str) -> str:
    """``text`` as it is shown where people copy it; as JSON if they would see, or type, another one."""
    return text if text == visible(text) and text == text.strip() and text[:1] != '"' else visible_json(text)


def unquoted(text: str) -> str:
    """The text that is shown as ``text`` by :func:`quoted`; otherwise ``text`` itself."""
    if text.startswith('"'):
        with suppress(ValueError):
            found: str = json.loads(text)
            return found if quoted(found) == text else text
    return text


class Phrase(str):
    """English text that keeps the ``template`` and the ``values`` it was made of, so that a page can translate it. A
    value may be a phrase, too."""

    __slots__ = ("template", "values")
    template: str
    values: dict[str, str]

    def __new__(cls, template: str, **values: object) -> Phrase:
        parts = {name: each if isinstance(each, Phrase) else str(each) for name, each in values.items()}
        self = super().__new__(cls, template.format(**parts) if parts else template)
        self.template, self.values = template, parts
        return self


def joined(texts: Sequence[str]) -> str:
    """At least one text, joined by semicolons; several become a :class:`Phrase`."""
    first, *more = texts
    return Phrase("{first}; {more}", first=first, more=joined(more)) if more else first


def plain_text(text: str) -> str:
    """``text`` as a ``str`` itself: a member of an ``Enum`` would be formatted as its name, and a proxy would be
    another text at the next request."""
    return text if type(text) is str else "".join(text)


def is_storable(text: str) -> bool:
    """Whether ``text`` is valid Unicode: no storage takes a lone surrogate, which stands for an undecodable byte."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_visible(character: str) -> bool:
    return character.isprintable() or category(character) == "Zs"


class SafeLogger:
    """The only way to a logger in this package: it makes every message, argument and traceback safe to show.

    Otherwise, its records are those that ``logger`` would have made: arguments stay separate from the message, and
    handlers that report exceptions elsewhere find the exception.
    """

    _logger: logging.Logger | logging.LoggerAdapter[Any]

    def __init__(self, logger: SafeLogger | logging.Logger | logging.LoggerAdapter[Any] | None = None) -> None:
        given = logger._logger if isinstance(logger, SafeLogger) else logger
        self._logger = logging.getLogger(LOGGER) if given is None else given

    def exception(self, message: str, *arguments: object) -> None:
        """Log the exception that is being handled, with its traceback."""
        self.log(logging.ERROR, message, *arguments, error=sys.exc_info()[1])

    def log(self, level: int, message: str, *arguments: object, error: BaseException | None = None) -> None:
        logger = self._logger
        if not logger.isEnabledFor(level):
            return
        options: dict[str, Any] = {}
        while isinstance(logger, logging.LoggerAdapter):
            processed, changed = logger.process(message, options)
            message, options, logger = str(processed), dict(changed), logger.logger
        caller = _caller()
        record = logger.makeRecord(
            logger.name,
            level,
            caller.f_code.co_filename,
            caller.f_lineno,
            visible(message),
            tuple(map(_safe, arguments)),
            None if error is None else (type(error), error, error.__traceback__),
            caller.f_code.co_name,
            options.get("extra"),
        )
        record.exc_text = None if error is None else _traceback(error)
        logger.handle(record)

    info: partialmethod[None] = partialmethod(log, logging.INFO)
    warning: partialmethod[None] = partialmethod(log, logging.WARNING)
    error: partialmethod[None] = partialmethod(log, logging.ERROR)
    critical: partialmethod[None] = partialmethod(log, logging.CRITICAL)


class _Safe:
    """An argument of a log line, as ``%s`` and ``%r`` show it."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return visible(str(self._value))

    def __repr__(self) -> str:
        return visible(repr(self._value))


def _safe(argument: object) -> object:
    if isinstance(argument, str):
        return visible(argument)
    return argument if argument is None or isinstance(argument, (int, float)) else _Safe(argument)


def _caller() -> Any:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame


def _traceback(error: BaseException) -> str:
    """The traceback as Python writes it, except that the message of each exception is one line."""
    chain: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in chain:
        chain.append(each)
        each = each.__cause__ if each.__suppress_context__ else each.__context__
    return "\n\n".join(map(_one_traceback, reversed(chain)))


def _one_traceback(error: BaseException) -> str:
    frames = "".join(traceback.format_tb(error.__traceback__))
    message = visible(str(error))
    return f"Traceback (most recent call last):\n{frames}{type(error).__qualname__}{message and ': '}{message}"


# How long text from outside may be, in characters. Longer text is refused or ignored before anything matches or keeps
# it: strangers send text of any length, and sending it must cost them more than it costs the app.

LONGEST_RULES = 1000
"""Rules, such as ``"100/minute; 10/second"``."""
LONGEST_DURATION = 100
LONGEST_NUMBER = 20
LONGEST_ADDRESS = 64
"""An IPv6 address with a zone and a port has fewer, but an app that trusts too many proxies gets text of any length."""
LONGEST_NAME = 500
"""An endpoint, a pattern, a rule, a limiter, an author, a reason."""
LONGEST_SUBJECT = 2000
"""A subject in a list, such as an API key. Subjects of requests may be longer: keys have their digest."""
LONGEST_MESSAGE = 10_000
"""The message to a refused client."""
LONGEST_PREFERENCE = 512
"""A header field such as ``Accept``. No browser sends a longer one; instead of a longer one, the default applies."""
LONGEST_COOKIE = 500
"""A cookie that this package has set."""
LONGEST_QUERY = 8192
"""The query of a page of this package."""
LONGEST_ARGUMENT = 8192
"""An argument of a command."""
LONGEST_FILE = 1 << 26
"""A file of limits."""
LONGEST_LINE = 1 << 16
"""A line of a log. No server accepts a longer request line."""
