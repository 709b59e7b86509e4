"""No text that a stranger sends makes a regular expression slow."""

from support.patterns import patterns_of_the_package


def test_every_regular_expression_takes_linear_time() -> None:
    patterns = list(patterns_of_the_package())
    assert len(patterns) > 50
    assert [str(used) for used in patterns if not used.is_linear] == []
