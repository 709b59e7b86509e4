"""Escaping: every text gives a short key of plain characters that no other text gives."""

from typing import get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flask_multilimit.engine import Rule, hits_for, keys
from flask_multilimit.engine.keys import (
    MAX_KEY,
    MAX_PREFIX,
    MAX_SCOPE,
    MAX_SUBJECT,
    MAX_TYPE,
    HashTag,
    escape,
    escape_scope,
    escape_subject,
    hash_tag_of,
    without_subject,
)
from support.doubles import raising

LONGEST_IN_A_KEY = Rule(400 * 86_400, 5, algorithm="sliding_window_counter")
HASH_TAGS: tuple[HashTag, ...] = get_args(HashTag)

any_text = st.text(st.characters(codec=None), max_size=80) | st.text("ab{}:%*\0\n é😀\ud800", max_size=80)


@given(any_text)
def test_escaped_text_changes_when_it_is_escaped_again(text: str) -> None:
    """Unless there was nothing to escape. So the escaped text of one subject is never the name of another."""
    escaped = escape_subject(text)
    assert escaped == text or escape_subject(escaped) != escaped


@given(any_text | any_text.map(lambda text: text * 200))
def test_escaped_texts_are_short_and_have_no_braces_colons_or_blanks(text: str) -> None:
    for escaped, longest in ((escape_subject(text), MAX_SUBJECT), (escape_scope(text), MAX_SCOPE)):
        assert len(escaped.encode()) <= longest
        assert escaped.isascii()
        assert not set(escaped) & set("{}: \t\r\n\0")


@given(st.text("abcXYZ019._~@/-", max_size=MAX_SUBJECT))
def test_plain_text_is_not_escaped(text: str) -> None:
    assert escape_subject(text) == text


@pytest.mark.parametrize("longest", [MAX_SCOPE, MAX_SUBJECT])
def test_text_is_replaced_by_a_digest_only_when_it_is_too_long(longest: int) -> None:
    assert escape("x" * longest, longest) == "x" * longest
    assert escape("x" * (longest + 1), longest).startswith("*")
    assert escape("é" * (longest // 6), longest) == "%C3%A9" * (longest // 6)
    assert escape("é" * (longest // 6 + 1), longest).startswith("*")


def test_a_long_text_is_replaced_by_a_digest_without_being_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "quote", raising(AssertionError("it takes 0.2 s for a megabyte")))
    assert escape("é" * (MAX_SUBJECT + 1), MAX_SUBJECT).startswith("*")


any_tag = st.sampled_from(HASH_TAGS)


@given(any_text, any_text, any_tag, any_text, any_text, any_tag)
def test_different_scope_subject_or_hash_tag_gives_a_different_key(
    a: str, b: str, tag: HashTag, c: str, d: str, other_tag: HashTag
) -> None:
    assume((a, b, tag) != (c, d, other_tag))
    first = hits_for("1/second", scope=a, subject=f"user:{b}", hash_tag=tag)[0].key
    second = hits_for("1/second", scope=c, subject=f"user:{d}", hash_tag=other_tag)[0].key
    assert first != second


@given(any_text, any_text, any_tag)
def test_key_has_exactly_one_hash_tag_that_is_not_empty(scope: str, subject: str, tag: HashTag) -> None:
    subject = f"{'t' * MAX_TYPE}:{subject}"
    key = hits_for(LONGEST_IN_A_KEY, scope=scope, subject=subject, prefix="p" * MAX_PREFIX, hash_tag=tag)[0].key
    assert key.count("{") == key.count("}") == 1
    assert 0 < key.index("{") + 1 < key.index("}")
    assert len(key) <= MAX_KEY
    assert key.isascii()
    assert key.isprintable()


@given(any_text, any_text, any_tag)
def test_hash_tag_is_the_scope_or_the_subject_as_chosen(scope: str, subject: str, tag: HashTag) -> None:
    key = hits_for("1/second", scope=scope, subject=f"user:{subject}", hash_tag=tag)[0].key
    assert hash_tag_of(key) == (escape_scope(scope) if tag == "scope" else escape_subject(subject) or "*")


@given(any_text, any_text.filter(bool), any_tag)
def test_a_key_in_a_log_line_shows_the_scope_and_never_the_subject(scope: str, subject: str, tag: HashTag) -> None:
    marked = f"somebody{subject}"
    place = without_subject(hits_for("1/second", scope=scope, subject=f"user:{marked}", hash_tag=tag)[0].key)
    assert escape_scope(scope) in place
    assert escape_subject(marked) not in place.replace(escape_scope(scope), "")
