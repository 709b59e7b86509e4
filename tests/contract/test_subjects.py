"""Subjects and scopes of any content and length have separate quotas."""

import pytest

from flask_multilimit.engine import Hit
from support.bench import Bench, exhaust, hits, rule

LONG = "x" * 10_240
SUBJECTS = [
    *("", " ", "ada", "Ada", "ADA", "%61da", "ada ", " ada", "ada\n", "ada\r\n", "ada\t"),
    *("\0", "\0\0", "ada\0", "\\0", "%00", "%", "%25", "*", "**", "+", "?", "#", "&", "="),
    *("{", "}", "{}", "{ada}", "}ada{", "}:ip:{", ":", "::", "a:b", "a:b:sliding_window:60000"),
    *("203.0.113.7", "2001:db8::1", "ada@example.org", "/a/b", "../a"),
    *("é", "e\u0301", "ü", "日本", "😀", "\u200b", "\ufeff", "\u2028"),
    *("\ud800", "\udfff", "\ud83d\ude00", "a\ud800", "?" * 3, "\ufffd"),
    *(LONG, LONG + "x", LONG[:-1] + "y", "é" * 5000, "{" * 10_240, "\0" * 10_240, "\ud800" * 5000),
    *("x" * 48, "x" * 49, "x" * 50, "é" * 8, "é" * 9, "*" + "0" * 40),
]
"""All are different, although some look alike."""


@pytest.fixture(params=["subject", "scope"])
def part(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def hits_of(part: str, text: str, count: int) -> tuple[Hit, ...]:
    scope, subject = (text, "ada") if part == "scope" else ("api", text)
    return hits(rule("sliding_window", 60, count), scope=scope, subject=subject)


def test_subjects_and_scopes_of_any_content_have_separate_quotas(bench: Bench, part: str) -> None:
    for count, text in enumerate(SUBJECTS):
        plan = hits_of(part, text, count + 1)
        assert exhaust(bench.limiter, plan) == count + 1

    for text in SUBJECTS:
        assert bench.limiter.peek(hits_of(part, text, 1)).remaining == 0


def test_empty_subject_is_limited(bench: Bench, algorithm: str) -> None:
    assert exhaust(bench.limiter, hits(rule(algorithm), subject="")) == 5
