"""``schema``: the JSON Schema of a file of limits."""

from __future__ import annotations

import click

from ...declare.data import json_schema
from .. import console


@click.command("schema", short_help="Print the JSON Schema of a file of limits.")
def schema_command() -> None:
    """Print the JSON Schema (draft 2020-12) of the file that MULTILIMIT_FILE names, for completion in editors."""
    console.write_json(json_schema())
