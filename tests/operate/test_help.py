"""The help of each command."""

import re
from inspect import cleandoc

import click
import pytest
from click.testing import CliRunner

from flask_multilimit.operate.command_line import COMMANDS, Commands


def command_called(name: str) -> click.Command:
    group = Commands()
    found = group.get_command(click.Context(group), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_command_help_is_paragraphs_with_one_margin(name: str) -> None:
    paragraphs = cleandoc(command_called(name).help or "").split("\n\n")

    assert paragraphs != [""]
    assert [text for text in paragraphs if text[:1].isspace() or re.search(r'"\s"', text)] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_option_with_its_own_converter_has_a_metavar(name: str) -> None:
    """Otherwise click would show the name of the function."""
    options = [each for each in command_called(name).params if isinstance(each.type, click.types.FuncParamType)]
    assert [each.name for each in options if each.metavar is None] == []


def test_help_of_ban_has_no_option_that_a_ban_refuses() -> None:
    assert "--lasting" not in CliRunner().invoke(command_called("ban"), ["--help"]).output
    assert "--lasting" in CliRunner().invoke(command_called("deny"), ["--help"]).output


def test_group_help_lists_every_command() -> None:
    group = Commands()
    group.add_command(click.Command("own"))
    told = CliRunner().invoke(group, ["--help"]).output
    assert [line.split()[0] for line in told.partition("Commands:\n")[2].splitlines()] == sorted({*COMMANDS, "own"})
