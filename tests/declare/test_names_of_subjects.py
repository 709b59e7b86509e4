"""One text names a subject, wherever people write or read one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flask_multilimit.declare.subjects import EVERYONE, Subject, subjects_from
from flask_multilimit.engine import ConfigurationError

types = st.text(st.characters(exclude_characters=":"), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("user:42", ("user", "42")),
        ("ip:203.0.113.7", ("ip", "203.0.113.7")),
        ("ip:2001:db8::/64", ("ip", "2001:db8::/64")),
        ("api_key:a:b", ("api_key", "a:b")),
        ("anonymous:", ("anonymous", "")),
        ("everyone", ("default", "")),
    ],
)
def test_a_subject_is_named_by_its_type_and_its_value(text: str, subject: tuple[str, str]) -> None:
    assert Subject.parse(text) == subject
    assert str(Subject(*subject)) == text


@given(st.builds(Subject, types, st.text()))
def test_the_name_of_a_subject_is_read_back_as_that_subject(subject: Subject) -> None:
    assert Subject.parse(str(subject)) == subject


@pytest.mark.parametrize("text", ["", "42", ":42", "203.0.113.7", None, 42, b"user:42"])
def test_a_text_that_names_no_subject_is_an_error_with_a_remedy(text: object) -> None:
    with pytest.raises(ConfigurationError, match='give TYPE:VALUE, such as "user:42"'):
        Subject.parse(text)


def test_several_subjects_of_one_request_are_given_together() -> None:
    assert subjects_from("user:42") == {"user": "42"}
    assert subjects_from(["user:42", EVERYONE, "user:42"]) == {"user": "42", "default": ""}


@pytest.mark.parametrize("given", [42, [], ["42"], ["user:42", "user:43"]])
def test_subjects_that_contradict_each_other_or_are_none_are_errors(given: object) -> None:
    with pytest.raises(ConfigurationError, match="subject"):
        subjects_from(given)
