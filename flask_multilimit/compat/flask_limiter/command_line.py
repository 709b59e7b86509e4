"""``flask limiter`` and ``flask multilimit migrate``, loaded when they are called."""

from __future__ import annotations

from importlib import import_module

import click
from flask import Flask, current_app
from flask.cli import with_appcontext


class Commands(click.Group):
    """The commands of :mod:`.commands`, which a process that serves requests never loads."""

    def __init__(self) -> None:
        super().__init__("limiter", help="Show and reset the limits of this app's Limiter.")

    def list_commands(self, context: click.Context) -> list[str]:
        return _commands().list_commands(context)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        return _commands().get_command(context, name)


@click.command("migrate", help="Print, for each limit of the app's Limiter, the declaration to write in its place.")
@with_appcontext
def migrate() -> None:
    """Run ``flask multilimit migrate``."""
    import_module(".migrate", __package__).migrate(current_app)


def add_commands(app: Flask) -> None:
    """Add the commands to ``app``, once."""
    if "limiter" not in app.cli.commands:
        app.cli.add_command(Commands())
    ours = app.cli.commands.get("multilimit")
    if isinstance(ours, click.Group):
        ours.add_command(migrate)


def _commands() -> click.Group:
    group: click.Group = import_module(".commands", __package__).cli
    return group
