"""``flask multilimit`` for every app: each command is loaded when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from ..control.store import LISTING_KINDS
from ..engine.errors import brief
from ..engine.text import LONGEST_ARGUMENT, visible

COMMANDS: dict[str, str] = {
    **dict.fromkeys(LISTING_KINDS, "control"),
    "alerts": "config",
    "bans": "control",
    "unban": "control",
    "entries": "control",
    "history": "control",
    "set": "control",
    "unset": "control",
    "check": "check",
    "why": "check",
    "config": "config",
    "doctor": "config",
    "grafana": "config",
    "keys": "quotas",
    "limits": "limits",
    "record": "logs",
    "reset": "quotas",
    "schema": "config",
    "simulate": "logs",
    "suggest": "logs",
    "top": "top",
}
"""The file in ``cli/`` that has each command, as ``NAME_command``."""


class Commands(click.Group):
    """The group of :data:`COMMANDS`, and of commands added to it. A process that only serves requests loads none."""

    def __init__(self) -> None:
        super().__init__("multilimit", help="Inspect and change the rate limits of the app.")

    def list_commands(self, context: click.Context) -> list[str]:  # noqa: ARG002
        return sorted({*COMMANDS, *self.commands})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name not in COMMANDS:
            return self.commands.get(name)
        file = import_module(f".cli.{COMMANDS[name]}", __package__)
        command: click.Command = getattr(file, f"{name}_command")
        return command

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        for each in args:
            if len(each) > LONGEST_ARGUMENT:
                raise click.UsageError(f"{brief(each)}: give at most {LONGEST_ARGUMENT} characters.", context)
        return super().parse_args(context, args)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except click.ClickException as error:
            error.message = visible(error.message)  # type: ignore[misc]  # Final, but shown later
            raise
