"""``flask multilimit`` as every app knows it: its commands are loaded when somebody asks for one of them."""

from __future__ import annotations

import click


class Commands(click.Group):
    """Those of :mod:`.cli`, of which a process that serves requests needs nothing."""

    def __init__(self) -> None:
        super().__init__("multilimit", help="Look at the rate limits of the app.")

    def list_commands(self, context: click.Context) -> list[str]:
        return _loaded().list_commands(context)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        return _loaded().get_command(context, name)


def _loaded() -> click.Group:
    from .cli import multilimit  # noqa: PLC0415 - that is the point

    return multilimit
